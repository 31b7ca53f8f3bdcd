/* What one step leaves for the next: see left_values.h. */
#include "counterparts/left_values.h"

#include "base/array.h"
#include <stdlib.h>
#include <string.h>

/* Exact runs from the same numbers agree to the rounding of f64; numbers in another order do not agree at all. */
#define MOST_APART 1e-3
/* Relative L2 of the numbers of one tensor of A. */
#define AGREES 1e-9

static bool agree(const lb_exact_side *const sides[2], uint32_t a, uint32_t b)
{
    const lb_value *x = &sides[0]->program->values[a], *y = &sides[1]->program->values[b];
    const int64_t n = lb_layout_numel(&x->layout);
    if (!lb_dtype_is_float(x->dtype) || !lb_dtype_is_float(y->dtype) || n < 2 || lb_layout_numel(&y->layout) != n)
        return false;
    if (lb_digest_is_none(x->logical) || lb_digest_is_none(y->logical) || !sides[0]->kept[a] || !sides[1]->kept[b])
        return false;
    return lb_counterparts_distance(sides[0]->kept[a], sides[1]->kept[b], n) < MOST_APART;
}

static bool add_run(lb_source_memory *m, lb_digest of_a, const lb_content_run *run)
{
    lb_left_run *more = lb_array_grow(m->left_runs, m->n_left_runs, sizeof *more);
    if (!more) return false;
    m->left_runs = more;
    m->left_runs[m->n_left_runs++] = (lb_left_run){of_a, run->from, run->from_stride, run->to, run->to_stride, run->n};
    return true;
}

/* The runs from row `first` on make up B's value. */
static bool close_runs(lb_source_memory *m, lb_digest of_b, uint32_t first)
{
    lb_left_value *more = lb_array_grow(m->left, m->n_left, sizeof *more);
    if (!more) return false;
    m->left = more;
    m->left[m->n_left++] = (lb_left_value){of_b, first, m->n_left_runs - first};
    return true;
}

static bool learn_counterpart(lb_source_memory *m, const lb_exact_side *const sides[2], const lb_counterparts *all,
                              const lb_counterpart *c)
{
    const uint32_t first = m->n_left_runs;
    if (c->shift != 0) return true; /* known by its name */
    for (uint32_t k = 0; k < c->n; k++) {
        const lb_content_run *run = &all->pieces[c->first + k];
        const lb_digest of_a = sides[0]->program->values[run->tensor].logical;
        if (lb_digest_is_none(of_a)) return m->n_left_runs = first, true;
        if (!add_run(m, of_a, run)) return false;
    }
    return close_runs(m, sides[1]->program->values[c->b].logical, first);
}

/* ---- what lies as new parameters do ---- */

static bool is_alike(const lb_exact_side *s, uint32_t v, uint32_t like)
{
    const lb_value *value = &s->program->values[v];
    return s->graph.given[v] && s->kept[v] && lb_dtype_is_float(value->dtype) && !lb_digest_is_none(value->logical) &&
           lb_layout_same_shape(&value->layout, &s->program->values[like].layout);
}

/* Do the pieces that lie in `tensor` hold, of A's value x, what B's value y has there? */
static bool pieces_agree(const lb_counterparts *all, const lb_counterpart *c, uint32_t tensor, const double *x,
                         const double *y)
{
    double apart = 0, size = 0;
    for (uint32_t k = 0; k < c->n; k++) {
        const lb_content_run *r = &all->pieces[c->first + k];
        for (int64_t i = 0; r->tensor == tensor && i < r->n; i++) {
            const double p = x[r->from + i * r->from_stride], q = y[r->to + i * r->to_stride];
            apart += (p - q) * (p - q), size += p * p;
        }
    }
    return apart <= AGREES * AGREES * size;
}

/* The value of A that is to `tensor` what B's value is to its new parameter; LB_NONE. */
static uint32_t find_alike(const lb_exact_side *a, const lb_counterparts *all, const lb_counterpart *c, uint32_t tensor,
                           const double *y)
{
    for (uint32_t v = a->program->n_values; v-- > 0;)
        if (is_alike(a, v, tensor) && pieces_agree(all, c, tensor, a->kept[v], y)) return v;
    return LB_NONE;
}

/* The states of a program that makes them anew have no names, and those of stacked parameters are stacked: B's value
 * beside those of A whose numbers lie in it as A's parameters do in the new one. */
static bool learn_alike(lb_source_memory *m, const lb_exact_side *const sides[2], const lb_counterparts *all,
                        const lb_counterpart *c, uint32_t of_b)
{
    const uint32_t first = m->n_left_runs;
    uint32_t tensor = LB_NONE, found = LB_NONE;
    for (uint32_t k = 0; k < c->n; k++) {
        const lb_content_run *run = &all->pieces[c->first + k];
        if (run->tensor != tensor)
            tensor = run->tensor, found = find_alike(sides[0], all, c, tensor, sides[1]->kept[of_b]);
        if (found == LB_NONE) return m->n_left_runs = first, true;
        if (!add_run(m, sides[0]->program->values[found].logical, run)) return false;
    }
    return close_runs(m, sides[1]->program->values[of_b].logical, first);
}

static bool learn_all_alike(lb_source_memory *m, const lb_exact_side *const sides[2], const lb_counterparts *all,
                            const lb_counterpart *c)
{
    for (uint32_t v = 0; v < sides[1]->program->n_values; v++)
        if (v != c->b && is_alike(sides[1], v, c->b) && !learn_alike(m, sides, all, c, v)) return false;
    return true;
}

bool lb_left_values_learn(lb_source_memory *memory, const lb_exact_side *const sides[2],
                          const lb_counterparts *counterparts, const uint32_t *met)
{
    const lb_program *b = sides[1]->program;
    for (uint32_t i = 0; i < counterparts->n; i++) {
        const lb_counterpart *c = &counterparts->list[i];
        const bool known = c->kind == LB_COUNTERPART_FINAL && c->n && !lb_digest_is_none(b->values[c->b].logical);
        if (known && c->nameless && !learn_all_alike(memory, sides, counterparts, c)) return false;
        if (known && !learn_counterpart(memory, sides, counterparts, c)) return false;
    }
    for (uint32_t v = 0; met && v < b->n_values; v++) {
        if (met[v] == LB_NONE || !agree(sides, met[v], v)) continue;
        const lb_content_run whole = {met[v], 0, 1, 0, 1, lb_layout_numel(&b->values[v].layout)};
        const uint32_t first = memory->n_left_runs;
        if (!add_run(memory, sides[0]->program->values[met[v]].logical, &whole) ||
            !close_runs(memory, b->values[v].logical, first))
            return false;
    }
    return true;
}

/* ---- parameters that are given other memory ---- */

/* The parameter whose memory this was as the step began; NULL. */
static const lb_value *parameter_in(const lb_exact_side *s, int64_t storage)
{
    const lb_program *p = s->program;
    for (uint32_t v = 0; v < p->n_values; v++)
        if (p->values[v].storage == storage && p->values[v].flags & LB_VALUE_PARAMETER &&
            p->values[v].name != LB_NONE && s->graph.giver[v] != LB_NONE &&
            lb_op_is_source(p, &p->ops[s->graph.giver[v]]))
            return &p->values[v];
    return NULL;
}

/* What a step begins with of the parameter; NULL: it reads none. */
static const lb_value *begins_with(const lb_program *p, const char *name, const lb_layout *shape)
{
    for (uint32_t i = 0; i < p->n_ops; i++) {
        if (!lb_op_is_source(p, &p->ops[i]) || !p->ops[i].results) continue;
        const lb_value *v = &p->values[lb_op_results(p, &p->ops[i])[0]];
        if (v->flags & LB_VALUE_PARAMETER && v->name != LB_NONE && !strcmp(lb_program_text(p, v->name), name) &&
            lb_layout_same_shape(&v->layout, shape))
            return v;
    }
    return NULL;
}

/* The last value that an op computed with these bits; LB_NONE. */
static uint32_t last_with(const lb_exact_side *s, lb_digest digest, const lb_layout *shape)
{
    const lb_program *p = s->program;
    for (uint32_t v = p->n_values; v-- > 0;)
        if (lb_value_graph_is_computed(&s->graph, v) && lb_digest_equal(p->values[v].logical, digest) &&
            lb_layout_same_shape(&p->values[v].layout, shape))
            return v;
    return LB_NONE;
}

/* What the parameter ends with that ends as `final` in its own memory; `final` where it is that. */
static uint32_t follow(const lb_exact_side *s, const lb_program *after, uint32_t final)
{
    const lb_value *left = &s->program->values[final], *parameter = parameter_in(s, left->storage);
    const lb_value *next =
        parameter && after ? begins_with(after, lb_program_text(s->program, parameter->name), &left->layout) : NULL;
    if (!next || lb_digest_is_none(next->logical) || lb_digest_is_none(left->logical) ||
        lb_digest_equal(next->logical, left->logical))
        return final;
    const uint32_t given = last_with(s, next->logical, &left->layout);
    return given == LB_NONE ? final : given;
}

void lb_left_values_follow(const lb_source_memory *memory, const lb_exact_side *const sides[2],
                           lb_counterparts *counterparts)
{
    for (uint32_t i = 0; i < counterparts->n; i++) {
        lb_counterpart *c = &counterparts->list[i];
        if (c->kind != LB_COUNTERPART_FINAL || c->n != 1) continue;
        for (int k = 0; k < 2; k++) {
            uint32_t *of = k ? &c->b : &counterparts->pieces[c->first].tensor;
            const uint32_t given = sides[k]->view->n_parts == 1 ? follow(sides[k], memory->after[k], *of) : *of;
            if (given == *of) continue;
            c->is_rebound = true, c->rebound = sides[k]->program->values[*of].storage;
            *of = given;
        }
    }
}

/* ---- states that differ ---- */

/* One side's values that the next step begins with and that are none of the other side's. */
typedef struct orphans {
    const lb_exact_side *side;
    uint32_t *list, n;
    uint8_t *seen, *roots; /* per value */
    uint32_t *stack;
} orphans;

static bool is_compared(const lb_counterparts *all, int side, uint32_t v)
{
    for (uint32_t i = 0; i < all->n; i++) {
        const lb_counterpart *c = &all->list[i];
        if (c->kind != LB_COUNTERPART_FINAL) continue;
        if (side && c->b == v) return true;
        for (uint32_t k = 0; k < c->n && !side; k++)
            if (all->pieces[c->first + k].tensor == v) return true;
    }
    return false;
}

/* The last value of these bits that an op of the step computed; LB_NONE. */
static uint32_t last_like(const lb_exact_side *s, const lb_value *like)
{
    const lb_program *p = s->program;
    for (uint32_t v = p->n_values; v-- > 0;)
        if (s->kept[v] && lb_value_graph_is_computed(&s->graph, v) && !lb_op_is_source(p, &p->ops[s->graph.giver[v]]) &&
            lb_digest_equal(p->values[v].logical, like->logical))
            return v;
    return LB_NONE;
}

static bool open_orphans(const lb_exact_side *s, orphans *o)
{
    const size_t n = (size_t)s->program->n_values + 1;
    *o = (orphans){s, malloc(n * sizeof *o->list), 0, calloc(n, 1), calloc(n, 1), malloc(n * sizeof *o->stack)};
    return o->list && o->seen && o->roots && o->stack;
}

static void close_orphans(orphans *o)
{
    free(o->list), free(o->seen), free(o->roots), free(o->stack);
}

static void list_orphans(const lb_program *after, const lb_counterparts *all, int side, const uint32_t *met, orphans *o)
{
    for (uint32_t i = 0; i < after->n_ops; i++) {
        if (!lb_op_is_source(after, &after->ops[i]) || !after->ops[i].results) continue;
        const lb_value *next = &after->values[lb_op_results(after, &after->ops[i])[0]];
        if (next->source != LB_SOURCE_CARRIED || !lb_dtype_is_float(next->dtype) ||
            lb_layout_numel(&next->layout) < 2 || lb_digest_is_none(next->logical))
            continue;
        const uint32_t v = o->n < o->side->program->n_values ? last_like(o->side, next) : LB_NONE;
        if (v != LB_NONE && met[v] == LB_NONE && !is_compared(all, side, v)) o->list[o->n++] = v;
    }
}

/* Where an update of the value's shape comes from: what backward gives of it, or what is put together of that. */
static void walk_to_roots(orphans *o, uint32_t value)
{
    const lb_exact_side *s = o->side;
    const lb_value_graph *g = &s->graph;
    const lb_program *p = s->program;
    uint32_t n = 1;
    memset(o->seen, 0, p->n_values), memset(o->roots, 0, p->n_values);
    o->stack[0] = value, o->seen[value] = 1;
    while (n) {
        const uint32_t v = o->stack[--n];
        bool inner = false;
        for (uint32_t k = g->first_pred[v]; k < g->first_pred[v + 1]; k++) {
            const uint32_t from = lb_value_graph_whole(g, g->preds[k]), giver = g->giver[from];
            if (giver == LB_NONE || lb_op_is_source(p, &p->ops[giver]) ||
                lb_layout_numel(&p->values[from].layout) != lb_layout_numel(&p->values[value].layout))
                continue;
            inner = true;
            if (p->ops[giver].phase == LB_PHASE_BACKWARD)
                o->roots[from] = 1;
            else if (!o->seen[from])
                o->seen[from] = 1, o->stack[n++] = from;
        }
        o->roots[v] |= !inner && v != value;
    }
}

/* The one orphan that follows from what `final` follows from; LB_NONE: there is none, or several. */
static uint32_t orphan_beside(orphans *o, uint32_t final, uint8_t *of_final)
{
    const lb_program *p = o->side->program;
    uint32_t found = LB_NONE;
    walk_to_roots(o, final);
    memcpy(of_final, o->roots, p->n_values);
    for (uint32_t i = 0; i < o->n; i++) {
        bool common = false;
        if (lb_layout_numel(&p->values[o->list[i]].layout) != lb_layout_numel(&p->values[final].layout)) continue;
        walk_to_roots(o, o->list[i]);
        for (uint32_t v = 0; v < p->n_values && !common; v++) common = o->roots[v] && of_final[v];
        if (common && found != LB_NONE && found != o->list[i]) return LB_NONE;
        if (common) found = o->list[i];
    }
    return found;
}

/* What is left of the parameter that ends as counterpart `row`. False when out of memory. */
static bool pair_states(lb_counterparts *all, uint32_t row, orphans of[2], uint8_t *of_final, bool *any)
{
    const uint32_t pieces = all->list[row].n, first = all->list[row].first, before = all->n_pieces,
                   b = orphan_beside(&of[1], all->list[row].b, of_final);
    uint32_t tensor = LB_NONE, beside = LB_NONE;
    for (uint32_t k = 0; k < pieces && b != LB_NONE; k++) {
        lb_content_run run = all->pieces[first + k];
        if (run.tensor != tensor) tensor = run.tensor, beside = orphan_beside(&of[0], tensor, of_final);
        if (beside == LB_NONE) return all->n_pieces = before, true;
        run.tensor = beside;
        if (!lb_counterparts_add_piece(all, run)) return false;
    }
    if (b == LB_NONE) return true;
    *any = true;
    return lb_counterparts_close(all, LB_COUNTERPART_FINAL, b, before) != NULL;
}

lb_status lb_left_values_pair(const lb_source_memory *memory, const lb_exact_side *const sides[2],
                              uint32_t *const met[2], lb_counterparts *all, bool *any, lb_err *err)
{
    orphans of[2] = {{0}, {0}};
    const uint32_t n_values[] = {sides[0]->program->n_values, sides[1]->program->n_values}, rows = all->n;
    *any = false;
    if (!memory->after[0] || !memory->after[1]) return LB_OK;
    uint8_t *of_final = malloc((n_values[0] > n_values[1] ? n_values[0] : n_values[1]) + 1);
    bool room = of_final != NULL;
    for (int k = 0; k < 2 && room; k++) {
        room = open_orphans(sides[k], &of[k]);
        if (room) list_orphans(memory->after[k], all, k, met[k], &of[k]);
    }
    for (uint32_t i = 0; i < rows && room && of[0].n && of[1].n; i++)
        if (all->list[i].kind == LB_COUNTERPART_FINAL) room = pair_states(all, i, of, of_final, any);
    close_orphans(&of[0]), close_orphans(&of[1]);
    free(of_final);
    return room ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for what a step leaves");
}
