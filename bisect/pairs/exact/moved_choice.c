/* Choices that a run makes anew: see moved_choice.h. */
#include "exact/moved_choice.h"

#include <math.h>
#include <stdlib.h>

/* Relative L2, of what a choice reads, from what was recorded: far beyond rounding in f32. */
static const double MOVED = 1e-3;

static bool is_index(const lb_program *p, uint32_t v)
{
    return lb_dtype_is_integer(p->values[v].dtype) && p->values[v].dtype != LB_BOOL;
}

static bool steers_nothing(const lb_exact_side *s, uint32_t v);

/* Does what reads the value itself only compute numbers from it? Indices may go into backward, bools into further
 * bools. */
static bool is_only_computed_with(const lb_exact_side *s, uint32_t v)
{
    const lb_value_graph *g = &s->graph;
    const lb_program *p = g->program;
    const bool index = is_index(p, v);
    for (uint32_t k = g->first_use[v]; k < g->first_use[v + 1]; k++) {
        const lb_op *op = &p->ops[g->uses[k]];
        if (op->flags & LB_OP_DECISION || (index && op->phase != LB_PHASE_BACKWARD)) return false;
        for (uint32_t i = 0; i < lb_op_outcomes(op); i++) {
            const uint32_t next = lb_op_outcome(p, op, i);
            if (!index && next != LB_NONE && next != v && !lb_dtype_is_float(p->values[next].dtype) &&
                (is_index(p, next) || !steers_nothing(s, next)))
                return false;
        }
    }
    return true;
}

/* The same of what reads it through a window. */
static bool steers_nothing(const lb_exact_side *s, uint32_t v)
{
    const uint32_t giver = s->graph.giver[v];
    if (!is_only_computed_with(s, v)) return false;
    for (uint32_t k = giver == LB_NONE ? 0 : s->first_window[giver]; giver != LB_NONE && k < s->first_window[giver + 1];
         k++)
        if (s->program->values[s->windows[k]].storage == s->program->values[v].storage &&
            !is_only_computed_with(s, s->windows[k]))
            return false;
    return true;
}

/* What the run at hand goes on with there; beside the last run, what that left where nothing changes. NULL: not
 * kept. */
static const double *numbers_of(const lb_exact_side *s, uint32_t v)
{
    const double *taken = lb_exact_side_taken(s, v);
    if (taken) return taken;
    return s->kept[v] || !s->former.asks ? s->kept[v] : s->former.numbers[v];
}

/* Are its numbers none that were recorded, but for rounding? In 16 bits rounding may be as far. */
static bool is_moved(const lb_exact_side *s, uint32_t v)
{
    const lb_value *value = &s->program->values[v];
    const int64_t n = lb_layout_numel(&value->layout);
    const double *now = numbers_of(s, v);
    if (!now || !lb_dtype_is_float(value->dtype) || lb_dtype_bits(value->dtype) < 32) return false;
    double *recorded = lb_exact_side_recorded(s, v), off = 0, size = 0;
    for (int64_t i = 0; recorded && i < n; i++)
        off += (now[i] - recorded[i]) * (now[i] - recorded[i]), size += recorded[i] * recorded[i];
    free(recorded);
    return off > MOVED * MOVED * size;
}

/* The float that an op reads, or what it is a window on. */
static bool has_moved(const lb_exact_side *s, uint32_t v)
{
    const lb_value_graph *g = &s->graph;
    if (g->given[v] || numbers_of(s, v)) return is_moved(s, v);
    for (uint32_t k = g->first_pred[v]; k < g->first_pred[v + 1]; k++)
        if (is_moved(s, g->preds[k])) return true;
    return false;
}

bool lb_moved_choice_is_made(const lb_exact_side *s, uint8_t *anew, uint32_t number)
{
    const lb_program *p = s->program;
    const lb_op *op = &p->ops[number];
    bool moved = false;
    if (op->flags & LB_OP_DECISION || !lb_op_outcomes(op)) return false;
    for (uint32_t i = 0; i < lb_op_outcomes(op); i++) {
        const uint32_t v = lb_op_outcome(p, op, i);
        if (v != LB_NONE && !lb_dtype_is_float(p->values[v].dtype) && !steers_nothing(s, v)) return false;
    }
    for (uint32_t k = 0; k < op->args && !moved; k++) {
        const lb_arg *arg = &lb_op_args(p, op)[k];
        if (arg->tag != LB_ARG_VALUE || arg->u.value == LB_NONE) continue;
        const uint32_t v = lb_value_graph_whole(&s->graph, arg->u.value);
        moved = anew[v] || has_moved(s, v);
    }
    for (uint32_t i = 0; i < lb_op_outcomes(op) && moved; i++) {
        const uint32_t v = lb_op_outcome(p, op, i);
        if (v != LB_NONE) anew[v] = p->values[v].dtype == LB_BOOL;
    }
    return moved;
}
