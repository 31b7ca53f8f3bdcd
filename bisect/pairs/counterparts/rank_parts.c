/* Parts on several ranks: see rank_parts.h. */
#include "counterparts/rank_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double ALONG = 0.7; /* the cosine of what is one thing but for a difference */

/* The rank that gives it; none of what was put together of several. */
static uint32_t part_of(const lb_exact_side *s, uint32_t v)
{
    const uint32_t op = s->graph.giver[v];
    if (!lb_program_view_is_recorded(s->view, v)) return LB_NONE;
    return op == LB_NONE ? 0 : lb_program_view_part_of(s->view, op);
}

typedef struct placed {
    uint32_t part, nth, value; /* the how manieth of its place on its rank */
    const lb_op *op;
    bool taken;
} placed;

static bool is_same_place(const placed *x, const placed *y)
{
    if (!x->op || !y->op) return x->op == y->op;
    return x->op->name == y->op->name && x->op->scope == y->op->scope && x->op->phase == y->op->phase;
}

static uint32_t list_placed(const lb_exact_side *s, const uint32_t *list, uint32_t n, placed *out)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t op = s->graph.giver[list[i]];
        placed one = {part_of(s, list[i]), 0, list[i], op == LB_NONE ? NULL : &s->program->ops[op], false};
        if (one.part == LB_NONE) continue;
        for (uint32_t k = 0; k < kept; k++) one.nth += out[k].part == one.part && is_same_place(&out[k], &one);
        out[kept++] = one;
    }
    return kept;
}

bool lb_rank_parts_group(const lb_exact_side *s, const uint32_t *list, uint32_t n, lb_rank_parts *out)
{
    placed *all = malloc(((size_t)n + 1) * sizeof *all);
    *out = (lb_rank_parts){.values = malloc(((size_t)n + 1) * sizeof *out->values),
                           .first = calloc((size_t)n + 2, sizeof *out->first)};
    const bool room = all && out->values && out->first;
    uint32_t at = 0;
    n = room ? list_placed(s, list, n, all) : 0;
    for (uint32_t i = 0; i < n; i++) {
        if (all[i].taken) continue;
        for (uint32_t part = 0; part < s->view->n_parts; part++)
            for (uint32_t k = i; k < n; k++)
                if (!all[k].taken && all[k].part == part && all[k].nth == all[i].nth && is_same_place(&all[k], &all[i]))
                    all[k].taken = true, out->values[at++] = all[k].value;
        out->first[++out->n_groups] = at;
    }
    free(all);
    if (!room) lb_rank_parts_release(out);
    return room;
}

void lb_rank_parts_release(lb_rank_parts *parts)
{
    free(parts->values), free(parts->first);
    *parts = (lb_rank_parts){0};
}

/* ---- which dimensions ---- */

typedef struct group {
    const lb_exact_side *side;
    const uint32_t *values;
    uint32_t n;
    int dim; /* that its ranks share out */
} group;

static const lb_layout *layout_of(const group *g, uint32_t i)
{
    return &g->side->program->values[g->values[i]].layout;
}

/* The shape of all parts together along g->dim; false: they are not alike in all others. */
static bool whole_of(const group *g, int64_t *shape)
{
    const lb_layout *first = layout_of(g, 0);
    if (!first->ndim) return g->n == 1;
    memcpy(shape, first->shape, sizeof *shape * (size_t)first->ndim);
    shape[g->dim] = 0;
    for (uint32_t i = 0; i < g->n; i++) {
        const lb_layout *l = layout_of(g, i);
        if (l->ndim != first->ndim) return false;
        for (int k = 0; k < l->ndim; k++)
            if (k != g->dim && l->shape[k] != first->shape[k]) return false;
        shape[g->dim] += l->shape[g->dim];
    }
    return true;
}

static bool fit(const group *a, const group *b)
{
    int64_t x[LB_MAX_DIMS], y[LB_MAX_DIMS];
    const int ndim = layout_of(a, 0)->ndim;
    return ndim == layout_of(b, 0)->ndim && whole_of(a, x) && whole_of(b, y) && !memcmp(x, y, sizeof *x * (size_t)ndim);
}

/* Both sides' dimensions, the same one first. */
static bool find_dimensions(group *a, group *b)
{
    const int ndim = layout_of(a, 0)->ndim;
    for (int apart = 0; apart < 2; apart++)
        for (a->dim = 0; a->dim < ndim; a->dim++)
            for (b->dim = 0; b->dim < ndim; b->dim++)
                if ((a->dim != b->dim) == apart && fit(a, b)) return true;
    return false;
}

/* In different shapes (tokens flattened) elements lie one rank behind the other, in both. */
static bool lie_behind_each_other(group *a, group *b)
{
    int64_t n[2] = {0, 0};
    a->dim = b->dim = 0;
    for (int k = 0; k < 2; k++) {
        const group *g = k ? b : a;
        int64_t shape[LB_MAX_DIMS];
        if (!layout_of(g, 0)->ndim || !whole_of(g, shape)) return false;
        for (uint32_t i = 0; i < g->n; i++) n[k] += lb_layout_numel(layout_of(g, i));
    }
    return n[0] == n[1] && layout_of(a, 0)->ndim != layout_of(b, 0)->ndim;
}

/* ---- pieces ---- */

/* Part i of a group: where it begins in the whole, and its sizes. */
typedef struct box {
    int64_t from[LB_MAX_DIMS], size[LB_MAX_DIMS];
    int ndim;
} box;

static box box_of(const group *g, uint32_t i, bool flat)
{
    box b = {.ndim = flat ? 1 : layout_of(g, 0)->ndim};
    for (uint32_t k = 0; k < i; k++)
        b.from[g->dim] += flat ? lb_layout_numel(layout_of(g, k)) : layout_of(g, k)->shape[g->dim];
    for (int d = 0; d < b.ndim; d++) b.size[d] = flat ? lb_layout_numel(layout_of(g, i)) : layout_of(g, i)->shape[d];
    return b;
}

/* The element of the box, row-major, that lies at `at` of the whole. */
static int64_t element_of(const box *b, const int64_t *at)
{
    int64_t n = 0;
    for (int d = 0; d < b->ndim; d++) n = n * b->size[d] + at[d] - b->from[d];
    return n;
}

/* What both boxes have, a run for each row of it, or several rows; `first`: of the pieces of this counterpart. */
static bool add_overlap(lb_counterparts *out, uint32_t first, uint32_t va, const box *a, const box *b)
{
    int64_t from[LB_MAX_DIMS], to[LB_MAX_DIMS], at[LB_MAX_DIMS];
    const int last = b->ndim - 1;
    for (int d = 0; d < b->ndim; d++) {
        const int64_t x = a->from[d] + a->size[d], y = b->from[d] + b->size[d];
        from[d] = at[d] = a->from[d] > b->from[d] ? a->from[d] : b->from[d], to[d] = x < y ? x : y;
        if (from[d] >= to[d]) return true;
    }
    for (;;) {
        const lb_content_run run = {va, element_of(a, at), 1, element_of(b, at), 1, to[last] - from[last]};
        lb_content_run *before = out->n_pieces > first ? &out->pieces[out->n_pieces - 1] : NULL;
        if (before && before->tensor == va && before->from + before->n == run.from && before->to + before->n == run.to)
            before->n += run.n;
        else if (!lb_counterparts_add_piece(out, run))
            return false;
        int d = last - 1;
        for (; d >= 0 && ++at[d] == to[d]; d--) at[d] = from[d];
        if (d < 0) return true;
    }
}

/* Rows `j` of B's group, made of A's. False when out of memory. */
static bool put_part(lb_counterparts *out, lb_counterpart_kind kind, const group *x, const group *y, uint32_t j,
                     bool flat)
{
    const uint32_t first = out->n_pieces;
    const box mine = box_of(y, j, flat);
    for (uint32_t i = 0; i < x->n; i++) {
        const box other = box_of(x, i, flat);
        if (!add_overlap(out, first, x->values[i], &other, &mine)) return false;
    }
    const uint32_t row = out->n;
    lb_counterpart *made = lb_counterparts_close(out, kind, y->values[j], first);
    if (made) made->in_parts = true, made->group = j ? out->list[row - 1].group : row + 1;
    return made != NULL;
}

/* ---- token by token ---- */

typedef struct token_group {
    lb_token_group group;
    const lb_layout **layouts;
    uint32_t *parts;
} token_group;

static void close_group(token_group *g)
{
    free(g->layouts), free(g->parts);
}

/* False: out of memory, or no part has the value. */
static bool open_group(const lb_exact_side *s, const uint32_t *values, uint32_t n, token_group *g)
{
    *g = (token_group){.layouts = malloc(((size_t)n + 1) * sizeof *g->layouts),
                       .parts = malloc(((size_t)n + 1) * sizeof *g->parts)};
    bool known = g->layouts && g->parts;
    for (uint32_t i = 0; i < n && known; i++) {
        g->layouts[i] = &s->program->values[values[i]].layout, g->parts[i] = part_of(s, values[i]);
        known = g->parts[i] != LB_NONE;
    }
    g->group = (lb_token_group){g->layouts, g->parts, known ? n : 0};
    return g->layouts && g->parts;
}

/* Runs between values of side 0 of the map and of side 1. False when out of memory. */
static bool list_runs(const lb_exact_side *a, const uint32_t *of_a, uint32_t n_a, const lb_exact_side *b,
                      const uint32_t *of_b, uint32_t n_b, bool ends, lb_token_run **runs, uint32_t *n)
{
    token_group x, y;
    bool room = open_group(a, of_a, n_a, &x);
    room = open_group(b, of_b, n_b, &y) && room;
    *runs = NULL, *n = 0;
    if (room) room = lb_token_map_runs(a->tokens, &x.group, &y.group, ends, runs, n);
    close_group(&x), close_group(&y);
    return room;
}

/* A counterpart for each value of B that has a token which A has. */
static bool put_tokens(lb_counterparts *out, lb_counterpart_kind kind, const lb_exact_side *a, const uint32_t *of_a,
                       uint32_t n_a, const lb_exact_side *b, const uint32_t *of_b, uint32_t n_b, bool *added)
{
    lb_token_run *runs;
    uint32_t n, group = 0;
    bool room = list_runs(a, of_a, n_a, b, of_b, n_b, kind == LB_COUNTERPART_EXIT, &runs, &n);
    *added = n > 0;
    for (uint32_t i = 0; i < n && room;) {
        const uint32_t first = out->n_pieces, row = runs[i].b;
        for (; i < n && runs[i].b == row && room; i++) {
            const lb_token_run *r = &runs[i];
            room = lb_counterparts_add_piece(
                out, (lb_content_run){of_a[r->a], r->from, r->from_stride, r->to, r->to_stride, r->n});
        }
        lb_counterpart *made = room ? lb_counterparts_close(out, kind, of_b[row], first) : NULL;
        room = made != NULL;
        if (made) group = group ? group : out->n, made->in_parts = made->by_token = true, made->group = group;
    }
    free(runs);
    return room;
}

bool lb_rank_parts_put(lb_counterparts *out, lb_counterpart_kind kind, const lb_exact_side *a, const uint32_t *of_a,
                       uint32_t n_a, const lb_exact_side *b, const uint32_t *of_b, uint32_t n_b, bool *added)
{
    if (a->tokens) return put_tokens(out, kind, a, of_a, n_a, b, of_b, n_b, added);
    group x = {a, of_a, n_a, 0}, y = {b, of_b, n_b, 0};
    const bool flat = !find_dimensions(&x, &y);
    *added = !flat || lie_behind_each_other(&x, &y);
    for (uint32_t j = 0; j < n_b && *added; j++)
        if (!put_part(out, kind, &x, &y, j, flat)) return false;
    return true;
}

/* ---- in order ---- */

/* Are B's numbers `scale` times A's, element by element? */
static bool agree_along(const group *x, const group *y, double scale)
{
    lb_counterparts all = {0};
    double difference = 0, size = 0;
    bool room = true;
    for (uint32_t j = 0; j < y->n && room; j++) room = put_part(&all, LB_COUNTERPART_ANCHOR, x, y, j, false);
    for (uint32_t i = 0; i < all.n && room; i++)
        for (uint32_t k = all.list[i].first; k < all.list[i].first + all.list[i].n; k++) {
            const lb_content_run *r = &all.pieces[k];
            for (int64_t e = 0; e < r->n; e++) {
                const double u = scale * x->side->kept[r->tensor][r->from + e],
                             v = y->side->kept[all.list[i].b][r->to + e];
                if (!(fabs(u) < 0x1p96) || !(fabs(v) < 0x1p96)) continue;
                difference += (u - v) * (u - v), size += u * u;
            }
        }
    lb_counterparts_release(&all);
    return room && difference <= 0x1p-40 * size;
}

/* Where tokens tell which element is which: are B's numbers not `scale` times A's? */
static bool differ_by_token(const lb_exact_side *a, const uint32_t *of_a, uint32_t n_a, const lb_exact_side *b,
                            const uint32_t *of_b, uint32_t n_b, double scale)
{
    lb_token_run *runs;
    uint32_t n;
    double difference = 0, size = 0;
    if (!list_runs(a, of_a, n_a, b, of_b, n_b, false, &runs, &n)) return true;
    for (uint32_t i = 0; i < n; i++)
        for (int64_t e = 0; e < runs[i].n; e++) {
            const lb_token_run *r = &runs[i];
            const double u = scale * a->kept[of_a[r->a]][r->from + e * r->from_stride],
                         v = b->kept[of_b[r->b]][r->to + e * r->to_stride];
            if (!(fabs(u) < 0x1p96) || !(fabs(v) < 0x1p96)) continue;
            difference += (u - v) * (u - v), size += u * u;
        }
    free(runs);
    return difference > 0x1p-40 * size;
}

bool lb_rank_parts_are_out_of_order(const lb_exact_side *a, const uint32_t *of_a, uint32_t n_a, const lb_exact_side *b,
                                    const uint32_t *of_b, uint32_t n_b, double scale)
{
    group x = {a, of_a, n_a, 0}, y = {b, of_b, n_b, 0};
    bool any = false;
    if (a->number > b->number) return lb_rank_parts_are_out_of_order(b, of_b, n_b, a, of_a, n_a, 1 / scale);
    for (uint32_t i = 0; i < n_a; i++)
        if (!a->kept[of_a[i]]) return false;
    for (uint32_t i = 0; i < n_b; i++)
        if (!b->kept[of_b[i]]) return false;
    if (a->tokens) return differ_by_token(a, of_a, n_a, b, of_b, n_b, scale);
    const int ndim = layout_of(&x, 0)->ndim;
    for (x.dim = 0; x.dim < ndim; x.dim++)
        for (y.dim = 0; y.dim < ndim; y.dim++) {
            if (!fit(&x, &y)) continue;
            if (agree_along(&x, &y, scale)) return false;
            any = true;
        }
    return any;
}

/* ---- in any order ---- */

typedef struct numbers {
    double *list;
    int64_t n;
    lb_quantity quantity;
} numbers;

static bool add_numbers(numbers *x, const lb_exact_side *s, uint32_t v)
{
    const int64_t n = lb_layout_numel(&s->program->values[v].layout);
    double *more = s->kept[v] ? realloc(x->list, (size_t)(x->n + n + 1) * sizeof *more) : NULL;
    if (!more) return false;
    x->list = more;
    memcpy(x->list + x->n, s->kept[v], (size_t)n * sizeof *more), x->n += n;
    for (int k = 0; k < LB_QUANTITY_MEANS; k++)
        x->quantity.noise[k] = fmax(x->quantity.noise[k], s->quantities[v].noise[k]);
    return true;
}

static void close_numbers(numbers *x)
{
    const lb_tensor t = {x->list, LB_F64, lb_layout_contiguous(1, &x->n)};
    lb_quantity found = x->n ? lb_quantity_of(&t) : (lb_quantity){0};
    memcpy(found.noise, x->quantity.noise, sizeof found.noise);
    x->quantity = found;
    free(x->list);
}

/* Is the value of A that a piece names one of an earlier piece of the group? */
static bool is_listed(const lb_counterparts *all, uint32_t row, uint32_t piece, uint32_t v)
{
    for (uint32_t i = 0; i <= row; i++) {
        const lb_counterpart *c = &all->list[i];
        if (!c->in_parts || c->group != all->list[row].group) continue;
        for (uint32_t k = 0; k < (i < row ? c->n : piece); k++)
            if (all->pieces[c->first + k].tensor == v) return true;
    }
    return false;
}

/* All numbers of a group on both sides, as quantities. */
static bool agree_in_any_order(const lb_counterparts *all, uint32_t group, const lb_exact_side *a,
                               const lb_exact_side *b)
{
    numbers x = {0}, y = {0};
    bool known = true;
    for (uint32_t i = 0; i < all->n; i++) {
        const lb_counterpart *c = &all->list[i];
        if (!c->in_parts || c->group != group) continue;
        known = known && add_numbers(&y, b, c->b);
        for (uint32_t k = 0; k < c->n && known; k++) {
            const uint32_t v = all->pieces[c->first + k].tensor;
            if (!is_listed(all, i, k, v)) known = add_numbers(&x, a, v);
        }
    }
    close_numbers(&x), close_numbers(&y);
    return known && lb_quantities_agree(&x.quantity, &y.quantity);
}

void lb_rank_parts_settle(lb_counterparts *all, const lb_exact_side *a, const lb_exact_side *b)
{
    bool any = false;
    for (uint32_t i = 0; i < all->n; i++) {
        lb_counterpart *c = &all->list[i];
        if (c->in_parts && !c->by_token && c->state == LB_COUNTERPART_APART && c->kind < LB_COUNTERPART_TURNED)
            any |= c->any_order = agree_in_any_order(all, c->group, a, b);
    }
    for (uint32_t i = 0; i < all->n && any; i++) {
        lb_counterpart *c = &all->list[i];
        if (!c->in_parts) continue;
        if (c->any_order && c->kind == LB_COUNTERPART_EXIT) c->state = LB_COUNTERPART_SAME;
        if (c->kind == LB_COUNTERPART_ANCHOR) c->kind = LB_COUNTERPART_DROPPED, c->state = LB_COUNTERPART_UNKNOWN;
    }
}

/* ---- parameters in parts ---- */

bool lb_rank_parts_has_part(const lb_step_sources *s, uint32_t row)
{
    const char *name = s->list[row].name;
    for (uint32_t i = 0; i < s->n && *name; i++)
        if (i != row && s->list[i].learnt && !strcmp(s->list[i].name, name)) return true;
    return false;
}

bool lb_rank_parts_is_shared_out(const lb_step_sources *s)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (s->list[i].learnt && lb_rank_parts_has_part(s, i)) return true;
    return false;
}

/* ---- what regions share ---- */

bool lb_rank_parts_same_op(const lb_exact_side *s, uint32_t x, uint32_t y)
{
    if (x == LB_NONE || y == LB_NONE || s->view->n_parts < 2) return false;
    const lb_op *a = &s->program->ops[x], *b = &s->program->ops[y];
    return a->name == b->name && a->scope == b->scope && a->call == b->call && a->phase == b->phase &&
           lb_program_view_part_of(s->view, x) != lb_program_view_part_of(s->view, y);
}

bool lb_rank_parts_are_parted(const lb_exact_side *const sides[2])
{
    return sides[0]->view->n_parts > 1 || sides[1]->view->n_parts > 1;
}

/* Which result of its op; LB_NONE: none. */
static uint32_t outcome_of(const lb_program *p, const lb_op *op, uint32_t v)
{
    for (uint32_t k = 0; k < lb_op_outcomes(op); k++)
        if (lb_op_outcome(p, op, k) == v) return k;
    return LB_NONE;
}

/* How many ops of a part stand at a place, before op `before`. */
static uint32_t count_at_place(const lb_exact_side *s, const placed *place, uint32_t part, uint32_t before)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < before; i++) {
        const placed other = {.op = &s->program->ops[i]};
        n += lb_program_view_part_of(s->view, i) == part && is_same_place(place, &other);
    }
    return n;
}

/* The nth op of a part at a place; LB_NONE. */
static uint32_t nth_at_place(const lb_exact_side *s, const placed *place, uint32_t part, uint32_t nth)
{
    for (uint32_t i = 0; i < s->program->n_ops; i++) {
        const placed other = {.op = &s->program->ops[i]};
        if (lb_program_view_part_of(s->view, i) == part && is_same_place(place, &other) && !nth--) return i;
    }
    return LB_NONE;
}

/* What the parts of a side have where it has the value, in their order; 0: another part gets there more often or not at
 * all. Room for n_parts. */
static uint32_t list_at_place(const lb_exact_side *s, uint32_t v, uint32_t *list)
{
    const lb_program *p = s->program;
    const uint32_t giver = s->graph.given[v] ? s->graph.giver[v] : LB_NONE, parts = s->view->n_parts;
    list[0] = v;
    if (parts < 2) return 1;
    if (giver == LB_NONE || !lb_program_view_is_recorded(s->view, v)) return 0;
    const placed here = {.op = &p->ops[giver]};
    const uint32_t which = outcome_of(p, here.op, v), nth = count_at_place(s, &here, part_of(s, v), giver),
                   count = count_at_place(s, &here, part_of(s, v), p->n_ops);
    for (uint32_t part = 0; part < parts; part++) {
        const uint32_t op = nth_at_place(s, &here, part, nth);
        if (op == LB_NONE || which >= lb_op_outcomes(&p->ops[op]) || count_at_place(s, &here, part, p->n_ops) != count)
            return 0;
        list[part] = lb_op_outcome(p, &p->ops[op], which);
        if (list[part] == LB_NONE || !s->graph.given[list[part]]) return 0;
    }
    return parts;
}

/* The cosine of what the counterparts say is one. */
static bool go_along(const lb_counterparts *all, const lb_exact_side *const sides[2])
{
    double product = 0, squares[2] = {0, 0};
    for (uint32_t i = 0; i < all->n; i++)
        for (uint32_t k = all->list[i].first; k < all->list[i].first + all->list[i].n; k++) {
            const lb_content_run *r = &all->pieces[k];
            const double *u = sides[0]->kept[r->tensor], *v = sides[1]->kept[all->list[i].b];
            if (!u || !v) return false;
            for (int64_t e = 0; e < r->n; e++) {
                const double x = u[r->from + e * r->from_stride], y = v[r->to + e * r->to_stride];
                if (!(fabs(x) < 0x1p96) || !(fabs(y) < 0x1p96)) continue;
                product += x * y, squares[0] += x * x, squares[1] += y * y;
            }
        }
    return product > 0 && product * product > ALONG * ALONG * squares[0] * squares[1];
}

/* All parts of either side beside each other; `*added` false: they do not fit. */
static bool put_places(lb_counterparts *out, const lb_exact_side *const sides[2], uint32_t a, uint32_t b, bool *added)
{
    uint32_t *lists[2], n[2];
    bool room = true;
    *added = false;
    for (int k = 0; k < 2; k++) {
        lists[k] = malloc(((size_t)sides[k]->view->n_parts + 1) * sizeof *lists[k]);
        room &= lists[k] != NULL;
        n[k] = lists[k] ? list_at_place(sides[k], k ? b : a, lists[k]) : 0;
    }
    if (room && n[0] && n[1])
        room = lb_rank_parts_put(out, LB_COUNTERPART_SHARED, sides[0], lists[0], n[0], sides[1], lists[1], n[1], added);
    free(lists[0]), free(lists[1]);
    return room;
}

static bool put_shared(lb_counterparts *out, const lb_exact_side *const sides[2], uint32_t a, uint32_t b, bool *added)
{
    const lb_layout *x = &sides[0]->program->values[a].layout, *y = &sides[1]->program->values[b].layout;
    if (sides[0]->tokens || !lb_layout_same_shape(x, y)) return put_places(out, sides, a, b, added);
    return *added = lb_counterparts_add(out, LB_COUNTERPART_SHARED, a, b, lb_layout_numel(y));
}

/* Where tokens tell which element is which, what one op of one module gives on both sides is one thing, however far
 * apart. */
static bool are_told(const lb_exact_side *const sides[2], uint32_t a, uint32_t b)
{
    const lb_program *p[] = {sides[0]->program, sides[1]->program};
    const uint32_t op[] = {sides[0]->graph.giver[a], sides[1]->graph.giver[b]};
    if (!sides[0]->tokens || op[0] == LB_NONE || op[1] == LB_NONE) return false;
    const lb_op *x = &p[0]->ops[op[0]], *y = &p[1]->ops[op[1]];
    return *lb_op_layer(p[0], x) && !strcmp(lb_op_layer(p[0], x), lb_op_layer(p[1], y)) &&
           !strcmp(lb_op_name(p[0], x), lb_op_name(p[1], y));
}

bool lb_rank_parts_may_be_one(const lb_exact_side *const sides[2], uint32_t a, uint32_t b)
{
    lb_counterparts all = {0};
    bool added = false;
    const bool one = put_shared(&all, sides, a, b, &added) && added && (are_told(sides, a, b) || go_along(&all, sides));
    lb_counterparts_release(&all);
    return one;
}

bool lb_rank_parts_add_shared(lb_counterparts *out, const lb_exact_side *const sides[2], uint32_t a, uint32_t b)
{
    bool added;
    return put_shared(out, sides, a, b, &added);
}
