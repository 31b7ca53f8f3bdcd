/* Which results of a program are watched: see watched.h. */
#include "failure/watched.h"

#include "failure/failure.h"
#include "program/optimizer_ops.h"
#include "program/slice.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Its third argument is the inverse of the scale, one number. */
static double scale_of(const lb_program *program, const lb_op *op)
{
    const lb_arg *inverse = op->args > 2 ? &lb_op_args(program, op)[2] : NULL;
    if (!inverse || inverse->tag != LB_ARG_VALUE || inverse->u.value == LB_NONE) return 0;
    const uint32_t row = program->values[inverse->u.value].statistics;
    const lb_statistics *statistics = row == LB_NONE ? NULL : &program->statistics[row];
    return statistics && statistics->elements == 1 && !lb_statistics_nonfinite(statistics) && statistics->sum > 0
               ? 1 / statistics->sum
               : 0;
}

static bool float_value(const lb_program *program, uint32_t value)
{
    return value != LB_NONE && lb_dtype_is_float(program->values[value].dtype);
}

typedef struct marker {
    const lb_program *program;
    const lb_slice_flow *flow;
    lb_watched *watched;
    uint32_t reader;
    uint8_t bit;
    uint8_t *leads;     /* per op: see leads_somewhere */
    uint8_t *optimizer; /* per op: an optimizer's */
} marker;

/* Marks what computed the contents that `reader` sees in `value`. */
static void mark_defs(void *context, uint32_t value)
{
    marker *marker = context;
    uint32_t defs[32];
    if (!float_value(marker->program, value)) return;
    uint32_t n = lb_slice_flow_defs_of(marker->flow, marker->reader, value, defs, 32);
    for (uint32_t i = 0; i < n && i < 32; i++)
        if (!lb_op_is_source(marker->program, &marker->program->ops[defs[i]]))
            marker->watched->marks[defs[i]] |= marker->bit;
}

static void mark_inputs(marker *marker, uint32_t reader, uint8_t bit)
{
    marker->reader = reader;
    marker->bit = bit;
    marker->watched->marks[reader] |= LB_WATCH_EVIDENCE;
    lb_op_each_input(marker->program, &marker->program->ops[reader], mark_defs, marker);
}

static bool tests_finiteness(const lb_program *program, const lb_op *op)
{
    return lb_op_is_in_any_form(program, op, "isfinite") || lb_op_is_in_any_form(program, op, "isnan") ||
           lb_op_is_in_any_form(program, op, "isinf") || lb_op_is_in_any_form(program, op, "abs") ||
           lb_op_is_in_any_form(program, op, "ne") || lb_op_is_in_any_form(program, op, "eq") ||
           lb_op_is_in_any_form(program, op, "logical_not") || lb_op_is_in_any_form(program, op, "bitwise_not") ||
           lb_op_is_in_any_form(program, op, "mul") || lb_op_is_in_any_form(program, op, "bitwise_and") ||
           lb_op_is_in_any_form(program, op, "logical_and");
}

/* Does the condition of this where or masked_fill come from asking whether something is finite? isfinite(x) runs as
 * (x == x) * (abs(x) != inf), isnan(x) as x != x. */
static bool asks_finiteness(const marker *marker, uint32_t op, uint32_t condition)
{
    const lb_program *program = marker->program;
    uint32_t def;
    if (lb_slice_flow_defs_of(marker->flow, op, condition, &def, 1) == 0 ||
        !tests_finiteness(program, &program->ops[def]))
        return false;
    for (int hop = 0; hop < 4; hop++) {
        const lb_op *test = &program->ops[def];
        const lb_arg *args = lb_op_args(program, test);
        if (lb_op_is_in_any_form(program, test, "isfinite") || lb_op_is_in_any_form(program, test, "isnan") ||
            lb_op_is_in_any_form(program, test, "isinf"))
            return true;
        if (lb_op_is_in_any_form(program, test, "ne") || lb_op_is_in_any_form(program, test, "eq"))
            return test->args >= 2 && ((args[1].tag == LB_ARG_VALUE && args[1].u.value == args[0].u.value) ||
                                       (args[1].tag == LB_ARG_FLOAT && isinf(args[1].u.f)));
        if (args[0].tag != LB_ARG_VALUE || lb_slice_flow_defs_of(marker->flow, def, args[0].u.value, &def, 1) == 0)
            return false;
    }
    return false;
}

static bool is_sanitiser(const marker *marker, uint32_t i)
{
    const lb_program *program = marker->program;
    const lb_op *op = &program->ops[i];
    const lb_arg *args = lb_op_args(program, op);
    if (op->phase == LB_PHASE_FORWARD) return false;
    if (lb_op_is_in_any_form(program, op, "nan_to_num")) return true;
    /* One element is the coefficient that gradients are clipped by: one over their norm, and large when that is
     * small. */
    if (lb_op_is_in_any_form(program, op, "clamp") || lb_op_is_in_any_form(program, op, "clip"))
        return args[0].tag == LB_ARG_VALUE && lb_layout_numel(&program->values[args[0].u.value].layout) != 1;
    if (lb_op_is_in_any_form(program, op, "where"))
        return args[0].tag == LB_ARG_VALUE && asks_finiteness(marker, i, args[0].u.value);
    return lb_op_is_in_any_form(program, op, "masked_fill") && op->args > 1 && args[1].tag == LB_ARG_VALUE &&
           asks_finiteness(marker, i, args[1].u.value);
}

static uint8_t bits_of_flags(const lb_program *program, const lb_op *op)
{
    uint8_t bits = 0;
    for (uint32_t r = 0; r < op->results + op->written; r++) {
        uint32_t value = lb_op_outcome(program, op, r);
        if (!float_value(program, value)) continue;
        uint32_t flags = program->values[value].flags;
        if (flags & LB_VALUE_PARAMETER) bits |= LB_WATCH_PARAMETER;
        if (flags & LB_VALUE_STATE) bits |= LB_WATCH_STATE;
    }
    return bits;
}

/* Storages that the optimizers of this step own. */
static bool group_storage(const lb_program *program, int64_t storage)
{
    for (uint32_t i = 0; i < program->n_group_params; i++)
        if (program->group_params[i].storage == storage) return true;
    return false;
}

static void mark_op(marker *marker, uint32_t i)
{
    const lb_program *program = marker->program;
    const lb_op *op = &program->ops[i];
    if (marker->optimizer[i]) marker->watched->marks[i] |= bits_of_flags(program, op);
    marker->watched->updates += marker->watched->marks[i] & LB_WATCH_PARAMETER ? 1 : 0;
    for (uint32_t r = 0; marker->optimizer[i] && r < op->written; r++) {
        uint32_t value = lb_op_written(program, op)[r];
        if (value != LB_NONE && group_storage(program, program->values[value].storage))
            marker->watched->marks[i] |= LB_WATCH_PARAMETER;
    }
    if (op->phase == LB_PHASE_BACKWARD && strstr(lb_program_text(program, op->node_name), "AccumulateGrad")) {
        if (!(op->flags & LB_OP_VIEW) && lb_slice_op_defines(program, op))
            marker->watched->marks[i] |= LB_WATCH_GRADIENT;
        mark_inputs(marker, i, LB_WATCH_GRADIENT);
    }
    if (op->flags & LB_OP_COLLECTIVE && op->phase != LB_PHASE_FORWARD) mark_inputs(marker, i, LB_WATCH_GRADIENT);
    /* Of a program that is seen by its calls of NCCL alone, what these give is all that comes out. */
    if (!strncmp(lb_op_name(program, op), "nccl::", 6) && lb_slice_op_defines(program, op))
        marker->watched->marks[i] |= LB_WATCH_OUTPUT;
    if (is_sanitiser(marker, i)) mark_inputs(marker, i, LB_WATCH_GRADIENT);
    if (lb_op_is_unscaling(program, op)) marker->watched->scaler = true, marker->watched->scale = scale_of(program, op);
    /* Backward starts from ones like the loss, made outside of any autograd node. */
    if (lb_op_is_in_any_form(program, op, "ones_like") && op->phase == LB_PHASE_BACKWARD &&
        !*lb_program_text(program, op->node_name))
        mark_inputs(marker, i, LB_WATCH_LOSS);
}

static bool trains(const lb_program *program)
{
    for (uint32_t i = 0; i < program->n_ops; i++)
        if (program->ops[i].phase == LB_PHASE_BACKWARD) return true;
    return false;
}

/* What outlives the step, is sent to another rank, or is read by Python. */
static bool leaves(const lb_program *program, const lb_op *op)
{
    if (op->flags & (LB_OP_COLLECTIVE | LB_OP_DECISION) || op->phase == LB_PHASE_OPTIMIZER) return true;
    if (strstr(lb_program_text(program, op->node_name), "AccumulateGrad")) return true;
    for (uint32_t r = 0; r < op->results + op->written && !(op->flags & LB_OP_VIEW); r++) {
        const uint32_t v = lb_op_outcome(program, op, r);
        if (v != LB_NONE && program->values[v].flags & (LB_VALUE_PARAMETER | LB_VALUE_STATE | LB_VALUE_GRADIENT))
            return true;
    }
    return false;
}

/* Per op: something that leaves the step was computed from it. In a step that trains, gradients and loss speak for the
 * model; what leads nowhere is no failure: a stage of a pipeline is sent through whatever memory holds, for the shapes
 * of what it gives. NULL: all lead somewhere. */
static uint8_t *leads_somewhere(const lb_program *program, const lb_slice_flow *flow)
{
    uint8_t *marks = trains(program) ? calloc((size_t)program->n_ops + 1, 1) : NULL;
    for (uint32_t i = 0; marks && i < program->n_ops; i++) marks[i] = leaves(program, &program->ops[i]);
    if (marks) lb_slice_grow(flow, true, 0, NULL, marks);
    return marks;
}

/* Op that computed what a module returns, or LB_NONE. */
static void mark_boundary(marker *marker, const lb_boundary *row)
{
    const lb_program *program = marker->program;
    if (!row->output || row->recompute || !float_value(program, row->value)) return;
    for (uint32_t i = row->op; i-- > 0;) {
        const lb_op *op = &program->ops[i];
        if (!lb_slice_op_defines(program, op)) continue;
        for (uint32_t r = 0; r < op->results + op->written; r++) {
            uint32_t value = lb_op_outcome(program, op, r);
            if (value == LB_NONE || program->values[value].storage != program->values[row->value].storage) continue;
            if (!lb_op_is_source(program, op) && (!marker->leads || marker->leads[i]))
                marker->watched->marks[i] |=
                    lb_layout_numel(&program->values[value].layout) == 1 ? LB_WATCH_LOSS : LB_WATCH_OUTPUT;
            return;
        }
    }
}

/* The outermost modules: scope 0 where the model itself was seen, else what has no parent. */
static void mark_outputs(marker *marker)
{
    const lb_program *program = marker->program;
    bool root = false;
    for (uint32_t i = 0; i < program->n_boundaries; i++) root |= program->boundaries[i].scope == 0;
    for (uint32_t i = 0; i < program->n_boundaries; i++) {
        uint32_t scope = program->boundaries[i].scope;
        if (root ? scope == 0 : program->scopes[scope].parent == 0) mark_boundary(marker, &program->boundaries[i]);
    }
}

lb_status lb_watch_program(lb_watched *watched, const lb_selector *selector, lb_err *err)
{
    const lb_program *program = watched->program;
    lb_slice_flow *flow;
    watched->marks = calloc((size_t)program->n_ops + 1, 1);
    if (!watched->marks) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    LB_TRY(lb_slice_flow_new(program, &flow, err));
    marker marker = {.program = program,
                     .flow = flow,
                     .watched = watched,
                     .leads = leads_somewhere(program, flow),
                     .optimizer = lb_optimizer_ops(flow)};
    for (uint32_t i = 0; marker.optimizer && i < program->n_ops; i++) mark_op(&marker, i);
    mark_outputs(&marker);
    const bool room = marker.optimizer;
    free(marker.leads);
    free(marker.optimizer);
    lb_slice_flow_free(flow);
    if (!room) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (!selector) return LB_OK;
    return lb_selector_mark(selector, program, NULL, NULL, watched->marks, LB_WATCH_PREDICATE, NULL, err);
}
