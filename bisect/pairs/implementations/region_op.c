/* Which op of a region to name: see region_op.h. */
#include "implementations/region_op.h"

#include "counterparts/counterpart_orders.h"
#include "implementations/implementations.h"
#include "pair/op_kind.h"
#include "counterparts/rank_parts.h"
#include "program/input_name.h"

#include <string.h>

bool lb_region_is_source(const lb_exact_side *s, uint32_t v)
{
    return s->graph.giver[v] != LB_NONE && lb_op_is_source(s->program, &s->program->ops[s->graph.giver[v]]);
}

bool lb_region_holds(const lb_region_frontier *f, int side, uint32_t v)
{
    const lb_exact_side *s = f->asked->sides[side];
    const uint32_t source = lb_op_results(s->program, &s->program->ops[s->graph.giver[v]])[0],
                   row = f->asked->sources[side]->row_of[source];
    return row != LB_NONE && f->held[side][row];
}

static bool is_met(const lb_region_frontier *f, int side, uint32_t v)
{
    const lb_exact_side *s = f->asked->sides[side];
    return f->same[side][v] || (lb_region_is_source(s, v) && lb_region_holds(f, side, v));
}

bool lb_region_begins_at(const lb_region_frontier *f, int side, uint32_t op)
{
    const lb_exact_side *s = f->asked->sides[side];
    const lb_value_graph *g = &s->graph;
    const uint32_t v =
        lb_op_outcomes(&s->program->ops[op]) ? lb_op_outcome(s->program, &s->program->ops[op], 0) : LB_NONE;
    if (v == LB_NONE) return false;
    for (uint32_t k = g->first_pred[v]; k < g->first_pred[v + 1]; k++) {
        uint32_t from = g->preds[k];
        for (uint32_t depth = 0; depth < 32 && !f->same[side][from]; depth++) { /* through copies and casts */
            if (lb_region_is_source(s, from)) break;
            const uint32_t giver = g->giver[from], first = g->first_pred[from];
            if (giver == LB_NONE || lb_value_graph_is_computed(g, from) || g->first_pred[from + 1] == first)
                return false;
            from = g->preds[first];
        }
        if (!is_met(f, side, from)) return false;
    }
    return true;
}

static bool is_drawn(const lb_exact_side *s, uint32_t v)
{
    return s->graph.giver[v] != LB_NONE && s->program->ops[s->graph.giver[v]].flags & LB_OP_RANDOM;
}

/* `any_bool`: every bool is taken for a mask of positions, also one that was chosen by numbers. Otherwise a single
 * number counts as a constant. */
static bool follows_from_positions(const lb_exact_side *s, uint32_t v, uint32_t depth, bool any_bool)
{
    const lb_value_graph *g = &s->graph;
    const lb_dtype dtype = s->program->values[v].dtype;
    if (is_drawn(s, v)) return false;
    if (dtype == LB_BOOL && (any_bool || lb_region_is_source(s, v))) return true;
    if (lb_dtype_is_integer(dtype) && lb_region_is_source(s, v)) return true;
    if (!any_bool && lb_region_is_source(s, v) && lb_layout_numel(&s->program->values[v].layout) == 1) return true;
    if (!depth || lb_region_is_source(s, v)) return false;
    for (uint32_t k = g->first_pred[v]; k < g->first_pred[v + 1]; k++)
        if (!follows_from_positions(s, g->preds[k], depth - 1, any_bool)) return false;
    return true;
}

static bool is_made_of_positions(const lb_exact_side *s, uint32_t v)
{
    return follows_from_positions(s, v, 32, true);
}

bool lb_region_is_made_of_positions(const lb_exact_side *s, uint32_t value)
{
    return follows_from_positions(s, value, 32, false);
}

typedef struct reads {
    uint32_t list[16], n;
} reads;

static void note_read(void *context, uint32_t value)
{
    reads *r = context;
    if (value != LB_NONE && r->n < sizeof r->list / sizeof *r->list) r->list[r->n++] = value;
}

/* What the op reads but masks; false: some of it is not met, or there is nothing else. */
static bool read_but_masks(const lb_region_frontier *f, int side, uint32_t op, reads *out)
{
    const lb_exact_side *s = f->asked->sides[side];
    reads all = {.n = 0};
    out->n = 0;
    lb_op_each_input(s->program, &s->program->ops[op], note_read, &all);
    for (uint32_t i = 0; i < all.n; i++) {
        if (is_made_of_positions(s, all.list[i])) continue;
        const uint32_t whole = lb_value_graph_whole(&s->graph, all.list[i]);
        if (!is_met(f, side, all.list[i]) && !is_met(f, side, whole)) return false;
        out->list[out->n++] = all.list[i];
    }
    return out->n > 0;
}

bool lb_region_same_op(const lb_program *pa, const lb_op *a, const lb_program *pb, const lb_op *b)
{
    const char *x = lb_op_name(pa, a), *y = lb_op_name(pb, b);
    while (*x == *y && *x && *x != '.') x++, y++;
    while (*x == '_') x++; /* in place or not */
    while (*y == '_') y++;
    return (!*x || *x == '.') && (!*y || *y == '.');
}

/* Of one phase and one name, in place or not: an op of A, and one of B. */
static bool are_of_one_kind(const lb_region_frontier *f, uint32_t a, uint32_t b)
{
    const lb_exact_side *const *sides = f->asked->sides;
    return sides[0]->kinds[a] == sides[1]->kinds[b] &&
           sides[0]->program->ops[a].phase == sides[1]->program->ops[b].phase;
}

static uint32_t *ops_of(const lb_region_frontier *f, const lb_region *r, int side)
{
    return f->regions->ops + r->first[side];
}

static uint32_t row_of_source(const lb_region_frontier *f, int side, uint32_t v)
{
    const uint32_t source = lb_value_graph_source(&f->asked->sides[side]->graph, v);
    return source == LB_NONE ? LB_NONE : f->asked->sources[side]->row_of[source];
}

/* The result that a value shows, through windows and copies. */
static uint32_t shown_by(const lb_exact_side *s, uint32_t v)
{
    const lb_value_graph *g = &s->graph;
    for (uint32_t depth = 0; depth < 32 && g->first_pred[v + 1] - g->first_pred[v] == 1; depth++) {
        if (lb_value_graph_is_computed(g, v)) break;
        v = g->preds[g->first_pred[v]];
    }
    return v;
}

uint32_t lb_region_shown_whole(const lb_exact_side *s, uint32_t v)
{
    const lb_value_graph *g = &s->graph;
    for (uint32_t depth = 0; depth < 32 && !g->given[v] && g->first_pred[v + 1] - g->first_pred[v] == 1; depth++)
        v = g->preds[g->first_pred[v]];
    return v;
}

/* Where sides have parts: is one value what the other is a part of, or do parts of one thing overlap in them? */
static bool is_part_of(const lb_region_frontier *f, uint32_t va, uint32_t vb)
{
    const lb_region_question *q = f->asked;
    if (!lb_rank_parts_are_parted(q->sides)) return false;
    va = shown_by(q->sides[0], va), vb = shown_by(q->sides[1], vb);
    if (q->met[0][va] == vb || q->met[1][vb] == va) return true;
    for (uint32_t i = 0; i < q->counterparts->n; i++) {
        const lb_counterpart *c = &q->counterparts->list[i];
        if (c->b != vb || !c->in_parts || c->state == LB_COUNTERPART_UNKNOWN) continue;
        for (uint32_t k = 0; k < c->n; k++)
            if (q->counterparts->pieces[c->first + k].tensor == va) return true;
    }
    return false;
}

bool lb_region_are_alike(const lb_region_frontier *f, uint32_t va, uint32_t vb)
{
    const lb_quantity *a = &f->asked->sides[0]->quantities[va], *b = &f->asked->sides[1]->quantities[vb];
    const uint32_t row[2] = {row_of_source(f, 0, va), row_of_source(f, 1, vb)};
    const bool held[2] = {row[0] != LB_NONE && f->held[0][row[0]], row[1] != LB_NONE && f->held[1][row[1]]};
    if (held[0] != held[1]) return false;
    if (held[0]) {
        const lb_content *c = &f->asked->contents->list[row[1]];
        for (uint32_t k = 0; k < c->n; k++)
            if (f->asked->contents->runs[c->first + k].tensor == row[0]) return true;
        return false;
    }
    return !a->tells || !b->tells || lb_quantities_agree(a, b) || is_part_of(f, va, vb);
}

static bool read_alike(const lb_region_frontier *f, uint32_t a, uint32_t b)
{
    const lb_program *pa = f->asked->sides[0]->program, *pb = f->asked->sides[1]->program;
    reads x = {.n = 0}, y = {.n = 0};
    lb_op_each_input(pa, &pa->ops[a], note_read, &x), lb_op_each_input(pb, &pb->ops[b], note_read, &y);
    for (uint32_t k = 0; k < x.n && k < y.n; k++)
        if (!lb_region_are_alike(f, x.list[k], y.list[k])) return false;
    return x.n > 0 && y.n > 0;
}

static bool may_begin(const lb_region_frontier *f, uint32_t a)
{
    return lb_region_begins_at(f, 0, a) || f->asked->sides[0]->program->ops[a].flags & LB_OP_RANDOM;
}

/* From the same inputs, all of them met. */
static bool begin_alike(const lb_region_frontier *f, uint32_t a, uint32_t b)
{
    return lb_region_begins_at(f, 0, a) && lb_region_begins_at(f, 1, b) && read_alike(f, a, b);
}

/* Does the op write to a parameter itself? p.mul_(1 - lr * decay) and decay * p read the same numbers, each for its own
 * purpose. */
static bool writes_parameter(const lb_program *p, const lb_op *op)
{
    for (uint32_t i = 0; i < lb_op_outcomes(op); i++) {
        const uint32_t v = lb_op_outcome(p, op, i);
        if (v != LB_NONE && p->values[v].flags & LB_VALUE_PARAMETER) return true;
    }
    return false;
}

/* A product with a tensor (a mask) and one with a number (a weight) are not calls of one op with different arguments:
 * both sides may multiply by both, in another order. */
static bool take_numbers_alike(const lb_program *pa, const lb_op *x, const lb_program *pb, const lb_op *y)
{
    static const char *const products[] = {"aten::mul", "aten::mul_"};
    if (lb_op_name_among(pa, x, products, 2) < 0) return true;
    for (uint32_t k = 0; k < x->args && k < y->args; k++) {
        const uint8_t a = lb_op_args(pa, x)[k].tag, b = lb_op_args(pb, y)[k].tag;
        const bool numbers[] = {a == LB_ARG_INT || a == LB_ARG_FLOAT, b == LB_ARG_INT || b == LB_ARG_FLOAT};
        if ((numbers[0] && b == LB_ARG_VALUE) || (numbers[1] && a == LB_ARG_VALUE)) return false;
    }
    return true;
}

/* Where the best of a row stand in the result, sorted or not, is no other choice. */
static bool is_order_of_results(const lb_program *p, const lb_op *op, uint32_t arg)
{
    enum { SORTED = 4 };
    return arg == SORTED && lb_op_is(p, op, "aten::topk");
}

static bool have_same_arguments(const lb_program *pa, const lb_op *a, const lb_program *pb, const lb_op *b)
{
    for (uint32_t i = 0; i < a->args && i < b->args; i++)
        if (!is_order_of_results(pa, a, i) &&
            !lb_op_kind_same_arg(pa, &lb_op_args(pa, a)[i], pb, &lb_op_args(pb, b)[i]))
            return false;
    return a->args == b->args;
}

static bool are_called_differently(const lb_region_frontier *f, uint32_t a, uint32_t b)
{
    const lb_program *pa = f->asked->sides[0]->program, *pb = f->asked->sides[1]->program;
    const lb_op *x = &pa->ops[a], *y = &pb->ops[b];
    const bool innocent = f->asked->innocent && f->asked->innocent[b];
    /* What was drawn is given, so that an exchange of arguments would show nothing. */
    const bool drawn = x->flags & y->flags & LB_OP_RANDOM;
    if (writes_parameter(pa, x) != writes_parameter(pb, y) || !take_numbers_alike(pa, x, pb, y)) return false;
    return (drawn || (!innocent && begin_alike(f, a, b))) && !have_same_arguments(pa, x, pb, y);
}

static bool may_be_masked(const lb_region_frontier *f, uint32_t a)
{
    reads x;
    return read_but_masks(f, 0, a, &x);
}

/* Are they, or are they made of, whole numbers that the step was given, and that are none of the model's own? */
static bool are_given(const lb_exact_side *s, uint32_t v, uint32_t depth)
{
    const lb_value_graph *g = &s->graph;
    const lb_value *value = &s->program->values[v];
    if (!lb_dtype_is_integer(value->dtype)) return false;
    if (lb_region_is_source(s, v))
        return value->source == LB_SOURCE_BATCH ||
               (value->source == LB_SOURCE_OTHER &&
                (value->name == LB_NONE || lb_input_name_is(lb_program_text(s->program, value->name))));
    bool given = false;
    for (uint32_t k = g->first_pred[v]; k < g->first_pred[v + 1] && depth && !given; k++)
        given = are_given(s, g->preds[k], depth - 1);
    return given;
}

/* Is what the op chooses by no mask: places that another op chose, or tokens? */
static bool chooses_by_no_mask(const lb_exact_side *s, uint32_t op)
{
    enum { IDS = 1, MOST_BETWEEN = 8 };
    const lb_op *o = &s->program->ops[op];
    const lb_arg *ids = o->args > IDS ? &lb_op_args(s->program, o)[IDS] : NULL;
    return lb_op_is(s->program, o, "aten::gather") ||
           (lb_op_is(s->program, o, "aten::embedding") && ids && ids->tag == LB_ARG_VALUE &&
            are_given(s, ids->u.value, MOST_BETWEEN));
}

/* The rule of the mask is another one, whatever it is made by. */
static bool are_masked_differently(const lb_region_frontier *f, uint32_t a, uint32_t b)
{
    reads x, y;
    if (chooses_by_no_mask(f->asked->sides[0], a) || chooses_by_no_mask(f->asked->sides[1], b)) return false;
    if (!read_but_masks(f, 0, a, &x) || !read_but_masks(f, 1, b, &y) || x.n != y.n ||
        (lb_region_begins_at(f, 0, a) && lb_region_begins_at(f, 1, b)))
        return false;
    for (uint32_t k = 0; k < x.n; k++)
        if (!lb_region_are_alike(f, x.list[k], y.list[k])) return false;
    return true;
}

/* The numbers of a value, or of the result that it shows all of, in its order; NULL: they were not kept. */
static const double *numbers_of(const lb_exact_side *s, uint32_t v)
{
    const uint32_t whole = s->kept[v] ? v : lb_value_graph_whole(&s->graph, v);
    return s->kept[whole];
}

bool lb_region_is_in_another_order(const lb_region_question *asked, uint32_t va, uint32_t vb)
{
    const lb_exact_side *a = asked->sides[0], *b = asked->sides[1];
    const int64_t n = lb_layout_numel(&b->program->values[vb].layout);
    const double *x = numbers_of(a, va), *y = numbers_of(b, vb);
    if (!x || !y || !a->quantities[va].tells || !lb_quantities_agree(&a->quantities[va], &b->quantities[vb]) ||
        lb_layout_numel(&a->program->values[va].layout) != n ||
        !lb_counterpart_orders_agree(&a->program->values[va].layout, &b->program->values[vb].layout))
        return false;
    return lb_counterparts_distance(x, y, n) > 0x1p-20;
}

/* What a result has the numbers of in another order, where an op does nothing but rearrange one result; LB_NONE. */
static uint32_t rearranged_from(const lb_exact_side *s, uint32_t v)
{
    const lb_value_graph *g = &s->graph;
    uint32_t from = LB_NONE;
    for (uint32_t k = g->first_pred[v]; k < g->first_pred[v + 1]; k++) {
        const uint32_t whole = lb_region_shown_whole(s, g->preds[k]);
        if (!lb_dtype_is_float(s->program->values[whole].dtype)) continue; /* an index */
        if (from != LB_NONE && whole != from) return LB_NONE;
        from = whole;
    }
    if (from == LB_NONE || from == v || !s->kept[from] || lb_region_is_source(s, from)) return LB_NONE;
    const bool all =
        lb_layout_numel(&s->program->values[from].layout) == lb_layout_numel(&s->program->values[v].layout);
    return all && lb_quantities_agree(&s->quantities[from], &s->quantities[v]) ? from : LB_NONE;
}

enum { MOST_REARRANGED = 8 };

/* A result and what it was rearranged from, the last first. */
static uint32_t list_rearranged(const lb_exact_side *s, uint32_t v, uint32_t *list)
{
    uint32_t n = 0;
    for (; v != LB_NONE && n < MOST_REARRANGED; v = rearranged_from(s, v)) list[n++] = v;
    return n;
}

/* Both sides have these numbers, each in an order of its own: the op by which that begins. Where one side is there
 * already, the other alone rearranges. */
static bool name_rearranger(const lb_region_frontier *f, lb_region *r)
{
    const lb_counterpart *c = &f->asked->counterparts->list[r->counterpart];
    const lb_exact_side *sides[] = {f->asked->sides[0], f->asked->sides[1]};
    const uint32_t va = f->asked->counterparts->pieces[c->first].tensor;
    uint32_t list[2][MOST_REARRANGED], n[2], at[2] = {0, 0}, nearest = 2 * MOST_REARRANGED;
    if (c->kind != LB_COUNTERPART_SHARED || c->n != 1 || !sides[0]->kept[va] || !sides[1]->kept[c->b] ||
        !lb_region_is_in_another_order(f->asked, va, c->b))
        return false;
    for (int k = 0; k < 2; k++) n[k] = list_rearranged(sides[k], k ? c->b : va, list[k]);
    for (uint32_t i = 0; i < n[0]; i++)
        for (uint32_t j = 0; j < n[1] && i + j < nearest; j++)
            if (lb_counterparts_distance(sides[0]->kept[list[0][i]], sides[1]->kept[list[1][j]],
                                         lb_layout_numel(&sides[1]->program->values[c->b].layout)) <= 0x1p-20)
                at[0] = i, at[1] = j, nearest = i + j;
    for (int k = 0; k < 2; k++) {
        const bool alone = at[!k] && !at[k];
        r->op[k] = alone ? LB_NONE : sides[k]->graph.giver[list[k][at[k] ? at[k] - 1 : 0]];
    }
    r->reason = r->op[0] == LB_NONE || r->op[1] == LB_NONE ? LB_REGION_MISSING : LB_REGION_REARRANGED;
    return true;
}

/* Heads, or halves, are put together differently. */
static bool read_in_another_order(const lb_region_frontier *f, uint32_t a, uint32_t b)
{
    const lb_program *pa = f->asked->sides[0]->program, *pb = f->asked->sides[1]->program;
    reads x = {.n = 0}, y = {.n = 0};
    if (!begin_alike(f, a, b)) return false;
    lb_op_each_input(pa, &pa->ops[a], note_read, &x), lb_op_each_input(pb, &pb->ops[b], note_read, &y);
    for (uint32_t k = 0; k < x.n && k < y.n; k++)
        if (lb_region_is_in_another_order(f->asked, x.list[k], y.list[k])) return true;
    return false;
}

/* The view before `before` that takes a part of what it shows, and shows that as `v`, maybe through others; LB_NONE. */
static uint32_t taker_of(const lb_exact_side *s, uint32_t v, uint32_t before)
{
    const lb_program *p = s->program;
    uint32_t found = LB_NONE;
    for (uint32_t i = before; i-- > 0 && !s->graph.given[v];) {
        const lb_op *op = &p->ops[i];
        reads in = {.n = 0};
        if (!(op->flags & LB_OP_VIEW) || !lb_op_outcomes(op) || lb_op_outcome(p, op, 0) != v) continue;
        lb_op_each_input(p, op, note_read, &in);
        if (!in.n) break;
        if (lb_layout_numel(&p->values[in.list[0]].layout) > lb_layout_numel(&p->values[v].layout)) found = i;
        v = in.list[0];
    }
    return found;
}

/* The result that a value is a part of, where the other side has that; LB_NONE. */
static uint32_t met_whole(const lb_region_frontier *f, int side, uint32_t v)
{
    const lb_value_graph *g = &f->asked->sides[side]->graph;
    const uint32_t first = g->first_pred[v];
    if (f->same[side][v] || f->asked->met[side][v] != LB_NONE || g->given[v] || g->first_pred[v + 1] - first != 1)
        return LB_NONE;
    return is_met(f, side, g->preds[first]) ? g->preds[first] : LB_NONE;
}

/* Two ops of one name read parts of one thing, and neither part is there on the other side: the views that took them
 * differ. */
static bool name_views(const lb_region_frontier *f, lb_region *r, uint32_t a, uint32_t b)
{
    const lb_exact_side *sa = f->asked->sides[0], *sb = f->asked->sides[1];
    reads x = {.n = 0}, y = {.n = 0};
    lb_op_each_input(sa->program, &sa->program->ops[a], note_read, &x);
    lb_op_each_input(sb->program, &sb->program->ops[b], note_read, &y);
    for (uint32_t k = 0; k < x.n && k < y.n; k++) {
        const uint32_t va = x.list[k], vb = y.list[k], wa = met_whole(f, 0, va), wb = met_whole(f, 1, vb);
        if (wa == LB_NONE || wb == LB_NONE || !sa->quantities[va].tells || !sb->quantities[vb].tells ||
            lb_layout_numel(&sa->program->values[va].layout) != lb_layout_numel(&sb->program->values[vb].layout) ||
            !lb_region_are_alike(f, wa, wb))
            continue;
        const uint32_t views[] = {taker_of(sa, va, a), taker_of(sb, vb, b)};
        if (views[0] == LB_NONE || views[1] == LB_NONE) continue;
        r->op[0] = views[0], r->op[1] = views[1], r->reason = LB_REGION_PART;
        return true;
    }
    return false;
}

static bool name_part(const lb_region_frontier *f, lb_region *r)
{
    for (uint32_t i = 0; i < r->n[0]; i++)
        for (uint32_t j = 0; j < r->n[1]; j++) {
            const uint32_t a = ops_of(f, r, 0)[i], b = ops_of(f, r, 1)[j];
            if (are_of_one_kind(f, a, b) && name_views(f, r, a, b)) return true;
        }
    return false;
}

/* The first two ops of one name of which `differs` holds; of A's, of those of which `may` does. */
static bool name_pair(const lb_region_frontier *f, lb_region *r, lb_region_reason reason,
                      bool (*may)(const lb_region_frontier *f, uint32_t a),
                      bool (*differs)(const lb_region_frontier *f, uint32_t a, uint32_t b))
{
    for (uint32_t i = 0; i < r->n[0]; i++) {
        const uint32_t a = ops_of(f, r, 0)[i];
        if (!may(f, a)) continue;
        for (uint32_t j = 0; j < r->n[1]; j++) {
            const uint32_t b = ops_of(f, r, 1)[j];
            if (!are_of_one_kind(f, a, b) || !differs(f, a, b)) continue;
            r->op[0] = a, r->op[1] = b, r->reason = reason;
            return true;
        }
    }
    return false;
}

/* Of a choice that stands in the region on one side alone, as the other side's result is some other mask by chance: the
 * other side's op of that name from the same inputs, with different arguments; LB_NONE where there is none, or one with
 * the same arguments. */
static uint32_t choice_beside(const lb_region_frontier *f, int side, uint32_t op)
{
    const lb_program *p = f->asked->sides[side]->program, *other = f->asked->sides[!side]->program;
    uint32_t beside = LB_NONE;
    for (uint32_t i = 0; i < other->n_ops; i++) {
        const uint32_t a = side ? i : op, b = side ? op : i;
        if (!are_of_one_kind(f, a, b) || !begin_alike(f, a, b)) continue;
        if (have_same_arguments(p, &p->ops[op], other, &other->ops[i])) return LB_NONE;
        if (beside == LB_NONE) beside = i;
    }
    return beside;
}

static bool name_choice(const lb_region_frontier *f, lb_region *r)
{
    for (int k = 0; k < 2; k++) {
        const lb_program *p = f->asked->sides[k]->program;
        for (uint32_t i = 0; i < r->n[k]; i++) {
            const uint32_t op = ops_of(f, r, k)[i],
                           v = lb_op_outcomes(&p->ops[op]) ? lb_op_outcome(p, &p->ops[op], 0) : LB_NONE;
            if (v == LB_NONE || p->values[v].dtype != LB_BOOL || !lb_region_begins_at(f, k, op)) continue;
            const uint32_t beside = choice_beside(f, k, op);
            if (beside == LB_NONE) continue;
            r->op[k] = op, r->op[!k] = beside, r->reason = LB_REGION_ARGUMENTS;
            return true;
        }
    }
    return false;
}

/* Are two ops of one name called with different numbers? Lists of tensors may stand in any order. */
static bool have_other_numbers(const lb_program *pa, const lb_op *a, const lb_program *pb, const lb_op *b)
{
    for (uint32_t i = 0; i < a->args; i++) {
        const lb_arg *x = &lb_op_args(pa, a)[i], *y = &lb_op_args(pb, b)[i];
        const bool number = x->tag == LB_ARG_FLOAT || x->tag == LB_ARG_INT || x->tag == LB_ARG_BOOL;
        if (number && x->tag == y->tag && !is_order_of_results(pa, a, i) && !lb_op_kind_same_arg(pa, x, pb, y))
            return true;
    }
    return false;
}

/* Both sides run the same ops in the same order, and one of them is called with different arguments: inputs that ops
 * before it give need not be met. */
static bool name_within_same_ops(const lb_region_frontier *f, lb_region *r)
{
    const lb_program *pa = f->asked->sides[0]->program, *pb = f->asked->sides[1]->program;
    uint32_t odd = LB_NONE;
    if (r->n[0] != r->n[1]) return false;
    for (uint32_t i = 0; i < r->n[0]; i++) {
        const uint32_t b = ops_of(f, r, 1)[i];
        const lb_op *x = &pa->ops[ops_of(f, r, 0)[i]], *y = &pb->ops[b];
        if (x->phase != y->phase || x->args != y->args || strcmp(lb_op_name(pa, x), lb_op_name(pb, y))) return false;
        if (odd == LB_NONE && !(f->asked->innocent && f->asked->innocent[b]) && have_other_numbers(pa, x, pb, y))
            odd = i;
    }
    if (odd == LB_NONE) return false;
    for (int k = 0; k < 2; k++) r->op[k] = ops_of(f, r, k)[odd];
    r->reason = LB_REGION_ARGUMENTS;
    return true;
}

/* How many of a side's ops in the region have that name. */
static uint32_t count_named(const lb_region_frontier *f, const lb_region *r, int side, uint64_t kind)
{
    const uint64_t *kinds = f->asked->sides[side]->kinds;
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n[side]; i++) n += kinds[ops_of(f, r, side)[i]] == kind;
    return n;
}

/* Does it make positions, or a mask of these? The other side may make them in another way, or find them ready. */
static bool makes_positions(const lb_region_frontier *f, int side, uint32_t op)
{
    const lb_program *p = f->asked->sides[side]->program;
    const uint32_t v = lb_op_outcomes(&p->ops[op]) ? lb_op_outcome(p, &p->ops[op], 0) : LB_NONE;
    return v != LB_NONE && is_made_of_positions(f->asked->sides[side], v);
}

/* A concatenation of one tensor gives that. */
static bool joins_one(const lb_exact_side *s, uint32_t op)
{
    const lb_arg *parts = lb_op_args(s->program, &s->program->ops[op]);
    return lb_op_is(s->program, &s->program->ops[op], "aten::cat") && parts->tag == LB_ARG_LIST && parts->count == 1;
}

/* Not to be named where there is another op: it makes positions, joins one tensor, or what it gives is right elsewhere
 * (a table that other layers read, too). */
static bool is_spared(const lb_region_frontier *f, int side, uint32_t op)
{
    return f->cleared[side][op] || makes_positions(f, side, op) || joins_one(f->asked->sides[side], op);
}

/* An op that one side alone runs, where all ops of the other are among its own: something was left out. */
static bool name_by_absence(const lb_region_frontier *f, lb_region *r)
{
    uint32_t alone[2] = {LB_NONE, LB_NONE};
    for (int k = 0; k < 2; k++) {
        for (uint32_t i = 0; i < r->n[k] && alone[k] == LB_NONE; i++) {
            const uint32_t op = ops_of(f, r, k)[i];
            if (!count_named(f, r, !k, f->asked->sides[k]->kinds[op]) && !is_spared(f, k, op)) alone[k] = op;
        }
    }
    if ((alone[0] == LB_NONE) == (alone[1] == LB_NONE)) return false;
    r->op[0] = alone[0], r->op[1] = alone[1], r->reason = LB_REGION_MISSING;
    return true;
}

static uint32_t count_values(const lb_counterparts *all, const lb_counterpart *c)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < c->n; k++) {
        uint32_t j = 0;
        while (j < k && all->pieces[c->first + j].tensor != all->pieces[c->first + k].tensor) j++;
        n += j == k;
    }
    return n;
}

/* B's one op stands beside those of all the values of A that make up its own: of all names but one as many, of that one
 * too few. */
static bool name_by_count(const lb_region_frontier *f, lb_region *r)
{
    const lb_counterpart *c = &f->asked->counterparts->list[r->counterpart];
    const uint32_t times = c->n > 64 ? 1 : count_values(f->asked->counterparts, c);
    uint32_t odd[2] = {LB_NONE, LB_NONE};
    if (f->asked->sides[0]->tokens && lb_rank_parts_are_parted(f->asked->sides))
        return false; /* what one op does of all tokens several do of some each */
    for (int k = 0; k < 2; k++) {
        const uint64_t *kinds = f->asked->sides[k]->kinds;
        for (uint32_t i = 0; i < r->n[k]; i++) {
            const uint32_t op = ops_of(f, r, k)[i];
            const uint32_t a = count_named(f, r, 0, kinds[op]), b = count_named(f, r, 1, kinds[op]) * times;
            if (a == b || (k == 0) != (a > b) || is_spared(f, k, op)) continue;
            if (odd[k] != LB_NONE && kinds[odd[k]] != kinds[op]) return false;
            if (odd[k] == LB_NONE) odd[k] = op;
        }
    }
    if ((odd[0] == LB_NONE) == (odd[1] == LB_NONE)) return false;
    r->op[0] = odd[0], r->op[1] = odd[1], r->reason = LB_REGION_MISSING;
    return true;
}

/* The first op of a region that goes on from what both sides have, else the first of all; one that is spared only where
 * there is no other. */
static uint32_t first_of(const lb_region_frontier *f, const lb_region *r, int side)
{
    for (int pass = 0; pass < 4; pass++)
        for (uint32_t i = 0; i < r->n[side]; i++) {
            const uint32_t op = ops_of(f, r, side)[i];
            if ((pass < 2) == !is_spared(f, side, op) && (pass & 1 || lb_region_begins_at(f, side, op))) return op;
        }
    return LB_NONE;
}

/* The part of a tensor's name that both sides may share: "inv_freq" of
 * "model.layers.0.self_attn.rotary_emb.inv_freq". */
static const char *last_part(const lb_program *p, uint32_t v)
{
    const char *name = p->values[v].name == LB_NONE ? "" : lb_program_text(p, p->values[v].name);
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

static uint32_t *unheld_of(const lb_region_frontier *f, const lb_region *r, int side)
{
    return f->regions->unheld + r->first_unheld[side];
}

/* The first op of the region that reads the source. */
static uint32_t reader_of(const lb_region_frontier *f, const lb_region *r, int side, uint32_t source)
{
    const lb_exact_side *s = f->asked->sides[side];
    for (uint32_t i = 0; i < r->n[side]; i++) {
        const lb_op *op = &s->program->ops[ops_of(f, r, side)[i]];
        if (lb_op_reads(s->program, op, s->program->values[source].storage) != LB_NONE) return ops_of(f, r, side)[i];
    }
    return LB_NONE;
}

/* Zeros that an optimizer made before its first step; the other side may make them in it. */
static bool is_blank_state(const lb_region_frontier *f, int side, uint32_t source)
{
    const lb_step_sources *s = f->asked->sources[side];
    const uint32_t row = s->row_of[source];
    if (row == LB_NONE || !lb_step_source_is_state(&s->list[row])) return false;
    const lb_tensor *t = &s->tensors[row].tensor;
    const size_t bytes = lb_dtype_bytes(t->dtype, (size_t)lb_layout_numel(&t->layout));
    bool blank = t->data && lb_layout_is_contiguous(&t->layout);
    for (size_t i = 0; i < bytes && blank; i++) blank = !((const char *)t->data)[i];
    return blank;
}

/* A weight that leads to numbers which are right, but for its rounding, is right (an embedding that its norm was
 * multiplied into). A table may be right where it is read first, and not elsewhere. */
static bool is_proven(const lb_region_frontier *f, const lb_region *r, int side, uint32_t source)
{
    const uint32_t reader = reader_of(f, r, side, source);
    if (is_blank_state(f, side, source)) return true;
    if (!(f->asked->sides[side]->program->values[source].flags & LB_VALUE_PARAMETER)) return false;
    return reader != LB_NONE && f->cleared[side][reader];
}

/* Of what the other side does not hold: what both are given, else a pair that is called the same, else the table of
 * floats (a mask is none) that is read first: what is read behind it may differ only because that does. */
static void choose_sources(const lb_region_frontier *f, lb_region *r)
{
    const lb_program *p[] = {f->asked->sides[0]->program, f->asked->sides[1]->program};
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < r->n_unheld[0]; i++)
            for (uint32_t j = 0; j < r->n_unheld[1]; j++) {
                const uint32_t a = unheld_of(f, r, 0)[i], b = unheld_of(f, r, 1)[j];
                const char *name = last_part(p[0], a);
                if (!*name || strcmp(name, last_part(p[1], b)) || (!pass && !lb_input_name_is(name)) ||
                    is_proven(f, r, 0, a) || is_proven(f, r, 1, b))
                    continue;
                r->source[0] = a, r->source[1] = b;
                return;
            }
    for (int k = 0; k < 2; k++) {
        bool is_float = false;
        r->source[k] = LB_NONE;
        for (uint32_t i = 0; i < r->n_unheld[k]; i++) {
            const uint32_t v = unheld_of(f, r, k)[i];
            const bool as_good = r->source[k] == LB_NONE || (is_float == lb_dtype_is_float(p[k]->values[v].dtype) &&
                                                             reader_of(f, r, k, v) < reader_of(f, r, k, r->source[k]));
            if (is_proven(f, r, k, v) || !(as_good || (!is_float && lb_dtype_is_float(p[k]->values[v].dtype))))
                continue;
            r->source[k] = v, is_float = lb_dtype_is_float(p[k]->values[v].dtype);
        }
    }
}

/* Is one of the sources to be named a table of floats? A mask may be made in many ways. */
static bool reads_table(const lb_region_frontier *f, const lb_region *r)
{
    for (int k = 0; k < 2; k++)
        if (r->source[k] != LB_NONE && lb_dtype_is_float(f->asked->sides[k]->program->values[r->source[k]].dtype))
            return true;
    return false;
}

/* Are both sources inputs of the step, which differ before anything is computed? */
static bool differ_as_inputs(const lb_region_frontier *f, const lb_region *r)
{
    for (int k = 0; k < 2; k++) {
        const uint32_t v = r->source[k], row = v == LB_NONE ? LB_NONE : f->asked->sources[k]->row_of[v];
        if (row == LB_NONE || f->asked->sources[k]->list[row].kind != LB_SOURCE_BATCH ||
            !lb_input_name_is(f->asked->sources[k]->list[row].name))
            return false;
    }
    return true;
}

/* Are they of another length, so that no element is known to be the other side's, and any op named would be a guess? */
static bool name_inputs(const lb_region_frontier *f, lb_region *r)
{
    if (!differ_as_inputs(f, r)) return false;
    const lb_value *a = &f->asked->sides[0]->program->values[r->source[0]],
                   *b = &f->asked->sides[1]->program->values[r->source[1]];
    if (lb_layout_numel(&a->layout) == lb_layout_numel(&b->layout)) return false;
    for (int k = 0; k < 2; k++) r->op[k] = f->asked->sides[k]->graph.giver[r->source[k]];
    r->reason = LB_REGION_SOURCE;
    return true;
}

/* What one side leaves at the end is what it began with: the other side's update is named by the op that writes it. */
static bool name_lone_update(const lb_region_frontier *f, lb_region *r)
{
    const lb_counterpart *c = &f->asked->counterparts->list[r->counterpart];
    if (c->kind != LB_COUNTERPART_FINAL || !c->n) return false;
    const lb_content_run *pieces = f->asked->counterparts->pieces + c->first;
    bool alone[] = {true, lb_region_is_source(f->asked->sides[1], c->b)};
    for (uint32_t i = 0; i < c->n; i++) alone[0] &= lb_region_is_source(f->asked->sides[0], pieces[i].tensor);
    if (alone[0] == alone[1]) return false;
    r->op[0] = alone[0] ? LB_NONE : f->asked->sides[0]->graph.giver[pieces[0].tensor];
    r->op[1] = alone[1] ? LB_NONE : f->asked->sides[1]->graph.giver[c->b];
    r->reason = LB_REGION_UPDATE;
    return true;
}

/* What is left of backward differs, and forward does not. */
static bool name_detached(const lb_region_frontier *f, lb_region *r)
{
    const uint32_t giver = f->asked->sides[1]->graph.giver[f->asked->counterparts->list[r->counterpart].b];
    if (giver == LB_NONE || f->asked->sides[1]->program->ops[giver].phase != LB_PHASE_BACKWARD) return false;
    if (!f->detached->found) return false;
    memcpy(r->op, f->detached->op, sizeof r->op);
    r->stops = f->detached->side, r->reason = LB_REGION_DETACHED;
    return true;
}

void lb_region_op_choose(const lb_region_frontier *f, lb_region *r)
{
    choose_sources(f, r);
    if (name_lone_update(f, r) || name_detached(f, r) || name_rearranger(f, r) || name_inputs(f, r)) return;
    if (name_pair(f, r, LB_REGION_ARGUMENTS, may_begin, are_called_differently) || name_choice(f, r) ||
        name_part(f, r) || name_pair(f, r, LB_REGION_ORDER, may_begin, read_in_another_order) ||
        name_pair(f, r, LB_REGION_MASK, may_be_masked, are_masked_differently))
        return;
    if (!reads_table(f, r) && (name_by_absence(f, r) || name_by_count(f, r) || name_within_same_ops(f, r))) return;
    for (int k = 0; k < 2; k++) r->op[k] = first_of(f, r, k);
    r->reason = r->n[0] && r->n[1] ? LB_REGION_OPS : LB_REGION_MISSING;
    for (int k = 0; k < 2; k++) {
        const uint32_t reader = r->source[k] == LB_NONE ? LB_NONE : reader_of(f, r, k, r->source[k]);
        if (reader != LB_NONE) r->op[k] = reader, r->reason = LB_REGION_SOURCE;
    }
    for (int k = 0; k < 2 && r->reason == LB_REGION_SOURCE && differ_as_inputs(f, r); k++)
        r->op[k] = f->asked->sides[k]->graph.giver[r->source[k]];
}
