/* The gradient scaler of mixed precision: scaled gradients divided out, infinities looked for, the scale adapted.
 *
 * Both ops write tensors and return nothing new: the results here are the written arguments, in their order
 * (https://docs.pytorch.org/docs/stable/amp.html, "Gradient Scaling"; torch.amp.GradScaler). */
#include "kernel/pointwise.h"

#include <lastbit/statistics.h>
#include <math.h>

LB_LOOP(unscale_f32, float, a[i] * s0)
LB_LOOP(unscale_f64, double, a[i] * s0)
static const lb_pointwise unscale_op = {"xn", unscale_f32, unscale_f64, NULL, NULL, 0};

static double number(const lb_operand *arg)
{
    return arg->tag == LB_OPERAND_TENSOR && arg->tensor.data ? lb_to_f64(arg->tensor.dtype, arg->tensor.data) : arg->f;
}

static lb_status fill(lb_call *call, const lb_tensor *result, double value)
{
    const lb_operand operand = {.tag = LB_OPERAND_FLOAT, .f = value, .i = (int64_t)value};
    return result->data ? lb_pointwise_fill(call, result, &operand) : LB_OK;
}

/* One gradient times inv_scale; by a scale of 1 it stays as it is, NaN payloads included. */
static lb_status unscale_one(lb_call *call, lb_tensor *result, const lb_tensor *gradient, double inv_scale)
{
    lb_operand args[2] = {{.tag = LB_OPERAND_TENSOR, .tensor = *gradient}, {.tag = LB_OPERAND_FLOAT, .f = inv_scale}};
    if (!result->data) return LB_OK;
    if (inv_scale == 1) return lb_pointwise_copy(call, result, gradient);
    lb_call inner = *call;
    inner.args = args;
    inner.n_args = 2;
    inner.results = result;
    inner.n_results = 1;
    return lb_pointwise_run(&inner, &unscale_op);
}

/* Gradients times inv_scale; found_inf becomes 1 where one was not finite before, and otherwise stays. */
static lb_status unscale_kernel(lb_call *call)
{
    const lb_operand *gradients = &call->args[0];
    if (call->n_args < 3 || gradients->tag != LB_OPERAND_TENSORS || call->n_results != gradients->count + 1)
        return lb_fail(call->err, LB_ERR_INVALID, "%s: expects gradients, found_inf and inv_scale", call->row->name);
    double found = number(&call->args[1]);
    const double inv_scale = number(&call->args[2]);
    for (uint32_t t = 0; t < gradients->count; t++) {
        const lb_statistics statistics = lb_statistics_of(&gradients->tensors[t]);
        if (lb_statistics_nonfinite(&statistics) > 0) found = 1;
        LB_TRY(unscale_one(call, &call->results[t], &gradients->tensors[t], inv_scale));
    }
    return fill(call, &call->results[gradients->count], found);
}

/* scale and growth_tracker: smaller at once after an infinity, larger after growth_interval steps without one. */
static lb_status update_kernel(lb_call *call)
{
    const lb_operand *operand = call->args;
    if (call->n_args < 6 || call->n_results != 2)
        return lb_fail(call->err, LB_ERR_INVALID, "%s: expects six arguments", call->row->name);
    double scale = number(&operand[0]), steps = number(&operand[1]) + 1;
    const double grown = scale * operand[3].f;
    if (number(&operand[2]) != 0) {
        scale *= operand[4].f;
        steps = 0;
    } else if (steps == (double)operand[5].i) {
        if (isfinite((float)grown)) scale = grown;
        steps = 0;
    }
    LB_TRY(fill(call, &call->results[0], scale));
    return fill(call, &call->results[1], steps);
}

const lb_op_row lb_rows_scaler[] = {
    {.name = "aten::_amp_foreach_non_finite_check_and_unscale_",
     .args = "self[] found_inf! inv_scale!",
     .kernel = unscale_kernel,
     .roundings = 2,
     .flags = LB_ROW_EXACT,
     .samples = "unscale"},
    {.name = "aten::_amp_update_scale_",
     .args = "self! growth_tracker! found_inf! scale_growth_factor scale_backoff_factor growth_interval",
     .kernel = update_kernel,
     .roundings = 2,
     .flags = LB_ROW_EXACT | LB_ROW_DISCONTINUOUS,
     .samples = "update_scale"},
    {NULL}};
