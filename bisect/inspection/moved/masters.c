/* Which parameter a master is of: see masters.h. */
#include "moved/masters.h"

#include <stdlib.h>
#include <string.h>

bool lb_masters_copies(const lb_program *program, const lb_op *op)
{
    return lb_op_is(program, op, "aten::copy_") || lb_op_is(program, op, "aten::_foreach_copy_");
}

bool lb_masters_has_form(const lb_layout *layout, const lb_layout *like)
{
    const bool flat = layout->ndim == 1 || like->ndim == 1;
    if (flat && lb_layout_numel(layout) == lb_layout_numel(like)) return true;
    return lb_layout_same_shape(layout, like);
}

/* ---- what a step begins with ---- */

uint32_t lb_masters_source(const lb_moved_run *run, int64_t storage)
{
    const lb_program *program = run->program;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        if (!lb_op_is_source(program, &program->ops[i])) continue;
        const uint32_t v = lb_op_results(program, &program->ops[i])[0];
        if (program->values[v].storage == storage && lb_dtype_is_float(program->values[v].dtype)) return v;
    }
    return LB_NONE;
}

uint32_t lb_masters_first(const lb_moved_run *run, int64_t storage)
{
    const lb_program *program = run->program;
    uint32_t found = LB_NONE;
    for (uint32_t v = 0; v < program->n_values; v++) {
        const lb_value *value = &program->values[v];
        const uint32_t giver = run->graph.giver[v];
        if (value->storage != storage || giver == LB_NONE || !run->graph.given[v] || !lb_dtype_is_float(value->dtype))
            continue;
        if (found == LB_NONE || value->version < program->values[found].version) found = v;
    }
    return found == LB_NONE || lb_op_is_source(program, &program->ops[run->graph.giver[found]]) ? LB_NONE : found;
}

uint32_t lb_masters_held(const lb_moved_run *run, const lb_group *group, int64_t storage)
{
    const uint32_t source = lb_masters_source(run, storage);
    const uint32_t first = source == LB_NONE && group->ops ? lb_masters_first(run, storage) : LB_NONE;
    return first != LB_NONE && run->graph.giver[first] < group->first_op ? first : source;
}

static bool hands_on(const lb_program *program, const lb_op *op)
{
    return lb_op_is_cast(program, op) || lb_op_is(program, op, "aten::clone");
}

uint32_t lb_masters_made_of(const lb_moved_run *run, uint32_t value)
{
    const lb_program *program = run->program;
    for (int depth = 0; depth < 8 && value != LB_NONE; depth++) {
        const uint32_t giver = run->graph.giver[value];
        if (giver == LB_NONE) return LB_NONE;
        const lb_op *op = &program->ops[giver];
        if (lb_op_is_source(program, op)) return value;
        if (!hands_on(program, op) || !op->args || lb_op_args(program, op)[0].tag != LB_ARG_VALUE) return LB_NONE;
        value = lb_op_args(program, op)[0].u.value;
    }
    return LB_NONE;
}

bool lb_masters_leads(const lb_moved_run *run, uint32_t op)
{
    const lb_program *program = run->program;
    const lb_value_graph *graph = &run->graph;
    uint8_t *follows = calloc((size_t)program->n_values + 1, 1);
    bool leads = !follows || !run->n_roots; /* where it is not known it is taken for an ordinary parameter */
    for (uint32_t i = op; follows && i < program->n_ops; i++)
        for (uint32_t k = 0; k < lb_op_outcomes(&program->ops[i]); k++) {
            const uint32_t v = lb_op_outcome(program, &program->ops[i], k);
            if (v == LB_NONE) continue;
            follows[v] |= i == op;
            for (uint32_t e = graph->first_pred[v]; e < graph->first_pred[v + 1]; e++)
                follows[v] |= follows[graph->preds[e]];
        }
    for (uint32_t r = 0; follows && r < run->n_roots; r++) leads |= follows[run->roots[r].value];
    free(follows);
    return leads;
}

/* ---- by its gradient ---- */

/* What the step begins with of the parameter whose gradient has that name, of fewer digits than its master. */
static uint32_t parameter_named(const lb_moved_run *run, uint32_t name, const lb_value *master)
{
    const lb_program *program = run->program;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        if (!lb_op_is_source(program, &program->ops[i])) continue;
        const uint32_t v = lb_op_results(program, &program->ops[i])[0];
        const lb_value *value = &program->values[v];
        if (value->name == name && value->flags & LB_VALUE_PARAMETER && value->storage != master->storage &&
            lb_dtype_precision(value->dtype) < lb_dtype_precision(master->dtype) &&
            lb_masters_has_form(&value->layout, &master->layout) && !lb_program_group_of(program, value->storage))
            return v;
    }
    return LB_NONE;
}

/* Of an op over lists: does the value follow from that one, which stands in the same place? */
static bool stands_alike(const lb_program *program, const lb_op *op, uint32_t value, uint32_t from)
{
    uint32_t place = 0;
    if (!lb_op_is_over_lists(program, op)) return true;
    while (place < lb_op_outcomes(op) && lb_op_outcome(program, op, place) != value) place++;
    for (uint32_t i = 0; i < op->args; i++) {
        const lb_arg *list = &lb_op_args(program, op)[i];
        if (list->tag != LB_ARG_LIST || place >= list->count) continue;
        const lb_arg *item = &program->args[list->u.first + place];
        if (item->tag == LB_ARG_VALUE && item->u.value == from) return true;
    }
    return false;
}

uint32_t lb_masters_gradient(const lb_moved_run *run, uint32_t held, uint32_t read, uint32_t *copy)
{
    enum { MOST = 64 };
    const lb_program *program = run->program;
    const lb_value *values = program->values, *master = &values[held];
    const lb_value_graph *graph = &run->graph;
    uint32_t todo[MOST] = {read}, n = read == LB_NONE ? 0 : 1, found = LB_NONE;
    *copy = LB_NONE;
    for (uint32_t at = 0; at < n; at++) {
        const lb_value *value = &values[todo[at]];
        const bool named = value->flags & LB_VALUE_GRADIENT && value->name != LB_NONE;
        const uint32_t of = named ? parameter_named(run, value->name, master) : LB_NONE;
        if (of != LB_NONE && *copy != LB_NONE && of != *copy) return *copy = LB_NONE;
        if (of != LB_NONE && found == LB_NONE) *copy = of, found = todo[at];
        for (uint32_t e = graph->first_pred[todo[at]]; of == LB_NONE && e < graph->first_pred[todo[at] + 1]; e++) {
            const bool like = lb_masters_has_form(&values[graph->preds[e]].layout, &master->layout);
            const uint32_t giver = graph->giver[todo[at]];
            if (giver != LB_NONE && !stands_alike(program, &program->ops[giver], todo[at], graph->preds[e])) continue;
            if (like && n < MOST) todo[n++] = graph->preds[e];
        }
    }
    return found;
}

/* ---- by its numbers ---- */

bool lb_masters_rounds_to(const lb_tensor *master, const lb_tensor *parameter)
{
    if (lb_dtype_precision(master->dtype) <= lb_dtype_precision(parameter->dtype) ||
        !lb_layout_is_contiguous(&master->layout) || !lb_layout_is_contiguous(&parameter->layout))
        return false;
    const size_t n = (size_t)lb_layout_numel(&master->layout), bytes = lb_dtype_bytes(parameter->dtype, n);
    void *rounded = malloc(bytes + 1);
    if (!rounded) return false;
    lb_convert(parameter->dtype, rounded, master->dtype, master->data, n, NULL);
    const bool same = !memcmp(rounded, parameter->data, bytes);
    free(rounded);
    return same;
}

/* The one parameter, of no optimizer, that the master rounds to as the step begins. */
static uint32_t by_rounding(const lb_moved_run *run, uint32_t held)
{
    const lb_program *program = run->program;
    uint32_t found = LB_NONE;
    lb_tensor master, x;
    if (lb_program_view_value(run->view, held, &master, NULL) != LB_OK || !master.data) return LB_NONE;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        if (!lb_op_is_source(program, &program->ops[i])) continue;
        const uint32_t value = lb_op_results(program, &program->ops[i])[0];
        if (!(program->values[value].flags & LB_VALUE_PARAMETER) ||
            lb_program_group_of(program, program->values[value].storage))
            continue;
        if (!lb_layout_same_shape(&program->values[value].layout, &master.layout)) continue;
        if (lb_program_view_value(run->view, value, &x, NULL) != LB_OK || !x.data || !lb_masters_rounds_to(&master, &x))
            continue;
        if (found != LB_NONE) return LB_NONE;
        found = value;
    }
    return found;
}

/* ---- by its copy ---- */

/* Is `value` what lies in the storage, or a cast of it? */
static bool is_of(const lb_program *program, uint32_t value, int64_t storage, uint32_t before)
{
    if (program->values[value].storage == storage) return true;
    for (uint32_t i = before; i-- > 0;) {
        const lb_op *op = &program->ops[i];
        if (op->results != 1 || lb_op_results(program, op)[0] != value) continue;
        return lb_op_is_cast(program, op) && lb_op_reads(program, op, storage) != LB_NONE;
    }
    return false;
}

/* Where a copy of what lies in `storage` goes: `to` and `from` are values, or lists of them side by side. */
static uint32_t copied_in(const lb_program *program, const lb_arg *to, const lb_arg *from, int64_t storage, uint32_t op)
{
    if (to->tag == LB_ARG_VALUE && from->tag == LB_ARG_VALUE)
        return is_of(program, from->u.value, storage, op) ? to->u.value : LB_NONE;
    uint32_t found = LB_NONE;
    if (to->tag != LB_ARG_LIST || from->tag != LB_ARG_LIST || to->count != from->count) return LB_NONE;
    for (uint32_t i = 0; i < to->count && found == LB_NONE; i++)
        found = copied_in(program, &program->args[to->u.first + i], &program->args[from->u.first + i], storage, op);
    return found;
}

/* The parameter that gets a copy behind the update. */
static uint32_t by_copy(const lb_moved_run *run, const lb_group *group, int64_t storage, const lb_layout *like)
{
    const lb_program *program = run->program;
    for (uint32_t i = group->ops ? group->first_op : program->n_ops; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        if (op->args < 2 || !lb_masters_copies(program, op)) continue;
        const uint32_t v = copied_in(program, lb_op_args(program, op), lb_op_args(program, op) + 1, storage, i);
        const uint32_t source = v == LB_NONE ? LB_NONE : lb_masters_source(run, program->values[v].storage);
        if (source != LB_NONE && lb_masters_has_form(&program->values[source].layout, like)) return source;
    }
    return LB_NONE;
}

uint32_t lb_masters_copy(const lb_moved_run *run, const lb_group *group, const lb_group_param *param, uint32_t held,
                         uint32_t read)
{
    const lb_value *values = run->program->values, *master = &values[held];
    const bool made = !lb_op_is_source(run->program, &run->program->ops[run->graph.giver[held]]);
    uint32_t copy = made ? lb_masters_made_of(run, held) : LB_NONE;
    if (copy != LB_NONE && lb_program_group_of(run->program, values[copy].storage)) copy = LB_NONE;
    if (copy == LB_NONE) lb_masters_gradient(run, held, read, &copy);
    if (copy == LB_NONE) copy = by_rounding(run, held);
    return copy != LB_NONE ? copy : by_copy(run, group, param->storage, &master->layout);
}
