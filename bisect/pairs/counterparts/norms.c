/* Norms, whatever ops they are made of: see norms.h. */
#include "counterparts/norms.h"

#include "counterparts/counterpart_orders.h"

#include <stdlib.h>

enum { MOST_OPS = 16 };

static int64_t numel(const lb_program *p, uint32_t v)
{
    return lb_layout_numel(&p->values[v].layout);
}

static int64_t width_of(const lb_program *p, uint32_t v)
{
    const lb_layout *l = &p->values[v].layout;
    return l->ndim ? l->shape[l->ndim - 1] : 1;
}

/* ---- what it gives ---- */

/* The operand of a product or quotient that is not the value: one number for each row of that; LB_NONE. */
static uint32_t row_factor(const lb_exact_side *s, uint32_t op, uint32_t value)
{
    static const char *const names[] = {"aten::mul", "aten::div"};
    const lb_program *p = s->program;
    const int64_t n = numel(p, value), rows = n / (width_of(p, value) > 0 ? width_of(p, value) : 1);
    if (lb_op_name_among(p, &p->ops[op], names, 2) < 0 || p->ops[op].args < 2 || rows < 2) return LB_NONE;
    for (uint32_t k = 0; k < 2; k++) {
        const lb_arg *arg = &lb_op_args(p, &p->ops[op])[k];
        if (arg->tag == LB_ARG_VALUE && arg->u.value != LB_NONE && numel(p, arg->u.value) == rows && rows < n &&
            width_of(p, arg->u.value) == 1)
            return arg->u.value;
    }
    return LB_NONE;
}

uint32_t lb_norms_result(const lb_exact_side *s, uint32_t value)
{
    const lb_program *p = s->program;
    const uint32_t giver = s->graph.giver[value];
    if (giver == LB_NONE || !s->graph.given[value]) return value;
    const uint32_t op = lb_exact_side_only_reader(s, giver, value);
    if (op == LB_NONE || row_factor(s, op, value) == LB_NONE || !lb_op_outcomes(&p->ops[op])) return value;
    const uint32_t result = lb_op_outcome(p, &p->ops[op], 0);
    return result != LB_NONE && numel(p, result) == numel(p, value) ? result : value;
}

/* ---- what it normalises ---- */

/* The one operand of an elementwise op that has as many elements as its result, and whether the other is a number for
 * each row; LB_NONE: there is none, or both have. */
static uint32_t carried(const lb_exact_side *s, uint32_t op, int64_t n, int64_t rows, bool *by_rows)
{
    const lb_program *p = s->program;
    uint32_t found = LB_NONE;
    for (uint32_t k = 0; k < p->ops[op].args && k < 2; k++) {
        const lb_arg *arg = &lb_op_args(p, &p->ops[op])[k];
        if (arg->tag != LB_ARG_VALUE || arg->u.value == LB_NONE) continue;
        const int64_t size = numel(p, arg->u.value);
        if (size == n && found != LB_NONE) return LB_NONE;
        if (size == n)
            found = arg->u.value;
        else
            *by_rows |= size == rows;
    }
    return found;
}

/* The input of a norm that is one op; LB_NONE. */
static uint32_t input_of_op(const lb_program *p, const lb_op *op)
{
    static const char *const names[] = {"aten::native_layer_norm", "aten::_fused_rms_norm", "aten::rms_norm"};
    const lb_arg *arg = lb_op_args(p, op);
    const bool norm = lb_op_name_among(p, op, names, sizeof names / sizeof *names) >= 0 && op->args;
    return norm && arg->tag == LB_ARG_VALUE ? arg->u.value : LB_NONE;
}

/* Through windows on all of a result, copies and casts. */
static uint32_t uncopied(const lb_exact_side *s, uint32_t v)
{
    const lb_value_graph *g = &s->graph;
    for (uint32_t depth = 0; depth < MOST_OPS && g->giver[v] != LB_NONE; depth++) {
        const uint32_t first = g->first_pred[v], from = g->first_pred[v + 1] - first == 1 ? g->preds[first] : LB_NONE;
        const bool copied = !lb_value_graph_is_computed(g, v);
        if (!copied || from == LB_NONE || numel(s->program, from) != numel(s->program, v) ||
            !lb_counterpart_orders_agree(&s->program->values[from].layout, &s->program->values[v].layout))
            break;
        v = from;
    }
    return v;
}

uint32_t lb_norms_input(const lb_exact_side *s, uint32_t result)
{
    static const char *const names[] = {"aten::mul", "aten::div", "aten::add", "aten::sub"};
    const lb_program *p = s->program;
    const int64_t n = numel(p, result), rows = n / (width_of(p, result) > 0 ? width_of(p, result) : 1);
    bool by_rows = false;
    uint32_t v = uncopied(s, result);
    for (uint32_t depth = 0; depth < MOST_OPS && s->graph.giver[v] != LB_NONE && rows > 1; depth++) {
        const uint32_t op = s->graph.giver[v], whole = input_of_op(p, &p->ops[op]);
        if (whole != LB_NONE && s->graph.given[v]) return uncopied(s, whole);
        const int name = s->graph.given[v] ? lb_op_name_among(p, &p->ops[op], names, 4) : -1;
        const uint32_t from = name < 0 ? LB_NONE : carried(s, op, n, rows, &by_rows);
        if (from == LB_NONE) break;
        v = uncopied(s, from);
    }
    return by_rows ? v : LB_NONE;
}

/* ---- beside each other ---- */

/* One value of A beside one of B. */
static bool is_pair(const lb_counterpart *c)
{
    return c->n == 1 || c->turned_by_shape;
}

/* Is one of the two a counterpart of something else that stands, or are they a pair already? What a norm gives, and the
 * other side's norm gives differently, does not: where one side normalises behind the block and the other before it,
 * that is the sum itself. */
static bool is_taken(const lb_counterparts *all, uint32_t va, uint32_t vb)
{
    for (uint32_t i = 0; i < all->n; i++) {
        const lb_counterpart *c = &all->list[i];
        bool of_a = false;
        if (c->kind >= LB_COUNTERPART_TURNED) continue;
        for (uint32_t k = 0; k < c->n && !of_a; k++) of_a = all->pieces[c->first + k].tensor == va;
        if ((of_a && c->b == vb) || ((of_a || c->b == vb) && (c->state != LB_COUNTERPART_APART || !is_pair(c))))
            return true;
    }
    return false;
}

/* What stands for another thing on one of the sides is no counterpart any more. */
static void drop_others(lb_counterparts *all, uint32_t n, uint32_t va, uint32_t vb)
{
    for (uint32_t i = 0; i < n; i++) {
        lb_counterpart *c = &all->list[i];
        if (c->kind == LB_COUNTERPART_ANCHOR && is_pair(c) && (c->b == vb || all->pieces[c->first].tensor == va))
            c->kind = LB_COUNTERPART_DROPPED, c->state = LB_COUNTERPART_UNKNOWN;
    }
}

/* Can the one value stand beside the other, as far as shapes tell? Both sides compute it, and it is no anchor yet. */
static bool may_stand_beside(const lb_counterparts *all, const lb_exact_side *a, uint32_t va, const lb_exact_side *b,
                             uint32_t vb)
{
    if (va == LB_NONE || vb == LB_NONE || !a->graph.given[va] || !b->graph.given[vb] || !a->kept[va] || !b->kept[vb])
        return false;
    const lb_layout *x = &a->program->values[va].layout, *y = &b->program->values[vb].layout;
    return numel(a->program, va) == numel(b->program, vb) && !is_taken(all, va, vb) &&
           (lb_counterpart_orders_agree(x, y) || lb_counterpart_orders_turned(x, y));
}

static bool is_forward_anchor(const lb_counterpart *c, const lb_exact_side *b)
{
    const uint32_t giver = b->graph.giver[c->b];
    return c->kind == LB_COUNTERPART_ANCHOR && is_pair(c) && giver != LB_NONE &&
           b->program->ops[giver].phase == LB_PHASE_FORWARD;
}

lb_status lb_norms_find(const lb_exact_side *a, const lb_exact_side *b, lb_counterparts *all, lb_err *err)
{
    const uint32_t n = all->n, pieces = all->n_pieces;
    uint32_t earliest = LB_NONE;
    bool agree = false, room = true;
    for (uint32_t i = 0; i < n && room; i++) {
        const lb_counterpart c = all->list[i];
        if (!is_forward_anchor(&c, b)) continue;
        const uint32_t va = lb_norms_input(a, all->pieces[c.first].tensor), vb = lb_norms_input(b, c.b);
        if (!may_stand_beside(all, a, va, b, vb)) continue;
        if (earliest == LB_NONE || a->graph.giver[va] < earliest)
            earliest = a->graph.giver[va], agree = lb_quantities_agree(&a->quantities[va], &b->quantities[vb]);
        room = lb_counterparts_add_values(all, LB_COUNTERPART_ANCHOR, a, va, b, vb);
    }
    if (!room) return lb_fail(err, LB_ERR_NOMEM, "out of memory for the inputs of norms");
    for (uint32_t i = n; i < all->n && agree; i++)
        drop_others(all, n, all->pieces[all->list[i].first].tensor, all->list[i].b);
    if (!agree) all->n = n, all->n_pieces = pieces;
    return LB_OK;
}
