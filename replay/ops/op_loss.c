/* Losses that are elementwise up to a last mean or sum, their derivatives, and gated linear units.
 *
 * With reduction none the elementwise result is the loss. With mean or sum torch stores the elementwise loss in the
 * result's dtype and reduces that, and so does this: the reduction is the row of `mean` or `sum`, with its order and
 * its bound. Most of torch's loops here round every step to 16 bits where the operands have 16: the twins are as
 * coarse. */
#include "kernel/transcendental.h"

#include <stdlib.h>
#include <string.h>

enum { REDUCE_NONE, REDUCE_MEAN, REDUCE_SUM };

/* clang-format off */
/* Elementwise parts. Scalars: s0 beta, delta or weight flags, as the callers below give them. */
LB_POINTWISE_FT(squared, "xx", 0, (a[i] - b[i]) * (a[i] - b[i]),
    ((LB_ABS(a[i]) + LB_ABS(b[i])) * (LB_ABS(a[i]) + LB_ABS(b[i])) * l->coarse + l->grain))
LB_POINTWISE_FT(smooth_l1, "xxs", 0,
    LB_ABS(a[i] - b[i]) < s0 ? (T)0.5 * LB_ABS(a[i] - b[i]) * LB_ABS(a[i] - b[i]) / s0 : LB_ABS(a[i] - b[i]) - (T)0.5 * s0,
    (LB_ABS(a[i] - b[i]) < s0 ? (T)0.5 * (LB_ABS(a[i]) + LB_ABS(b[i])) * (LB_ABS(a[i]) + LB_ABS(b[i])) / s0 : LB_ABS(a[i]) + LB_ABS(b[i]) + s0) * l->coarse + l->grain)
LB_POINTWISE_FT(huber, "xxs", 0,
    LB_ABS(a[i] - b[i]) <= s0 ? (T)0.5 * LB_ABS(a[i] - b[i]) * LB_ABS(a[i] - b[i]) : s0 * (LB_ABS(a[i] - b[i]) - (T)0.5 * s0),
    (LB_ABS(a[i] - b[i]) <= s0 ? (T)0.5 * (LB_ABS(a[i]) + LB_ABS(b[i])) * (LB_ABS(a[i]) + LB_ABS(b[i])) : s0 * (LB_ABS(a[i]) + LB_ABS(b[i]) + s0)) * l->coarse + l->grain)
#define LOG100(x) ((x) < -100 ? -100 : (x))
LB_POINTWISE_DT(bce, "xxo", 0, LB_F64_SET(t, -a[i]); LB_F64_FN(log1p, t, t); LB_F64_FN(log, u, a);,
    (l->given[2] ? c[i] : 1) * ((b[i] - 1) * LOG100(t[i]) - b[i] * LOG100(u[i])),
    (l->given[2] ? fabs(c[i]) : 1) * (fabs(b[i] - 1) * fabs(LOG100(t[i])) + fabs(b[i] * LOG100(u[i])) + 1) * l->coarse + l->grain)
/* log_sigmoid(x) = min(0, x) - log1p(exp(-|x|)) */
#define LOG_SIGMOID ((a[i] < 0 ? a[i] : 0) - t[i])
LB_POINTWISE_DT(bce_logits, "xxoo", 0, LB_F64_SET(t, -fabs(a[i])); LB_F64_FN(exp, t, t); LB_F64_FN(log1p, t, t);,
    (l->given[2] ? c[i] : 1) * ((1 - b[i]) * a[i] - (l->given[3] ? (d[i] - 1) * b[i] + 1 : 1) * LOG_SIGMOID),
    (l->given[2] ? fabs(c[i]) : 1) * ((1 + fabs(b[i])) * fabs(a[i]) + (l->given[3] ? (fabs(d[i]) + 1) * fabs(b[i]) + 1 : 1) * (fabs(a[i]) + t[i]))
        * l->coarse + l->grain)

#define MAX1(x) (LB_ABS(x) > 1 ? LB_ABS(x) : 1)
/* Derivatives: grad self target …; s0 the factor 2/n, 1/n or 1, s1 beta or delta. */
LB_POINTWISE_FT(squared_backward, "xxxs", 0, s0 * (b[i] - c[i]) * a[i],
    LB_UNLESS_STEP_OVERFLOWS(MAX1(s0) * (LB_ABS(b[i]) + LB_ABS(c[i])), LB_ABS(s0) * (LB_ABS(b[i]) + LB_ABS(c[i])) * LB_ABS(a[i]) * l->coarse + l->grain * MAX1(a[i])))
LB_POINTWISE_FT(smooth_l1_backward, "xxxss", 0,
    b[i] - c[i] <= -s1 ? -s0 * a[i] : b[i] - c[i] >= s1 ? s0 * a[i] : s0 * (b[i] - c[i]) * a[i] / s1,
    LB_ABS(s0 * a[i]) * (LB_ABS(b[i] - c[i]) >= s1 ? 1 : (LB_ABS(b[i]) + LB_ABS(c[i])) / s1) * l->coarse + l->grain)
LB_POINTWISE_FT(huber_backward, "xxxss", 0,
    b[i] - c[i] <= -s1 ? -s0 * a[i] * s1 : b[i] - c[i] >= s1 ? s0 * a[i] * s1 : s0 * (b[i] - c[i]) * a[i],
    LB_ABS(s0 * a[i]) * (LB_ABS(b[i] - c[i]) >= s1 ? s1 : LB_ABS(b[i]) + LB_ABS(c[i])) * l->coarse + l->grain)
/* grad (x - y) / max((1 - x) x, 1e-12), which torch has as an f32 number, and f16 as 0 */
#define BCE_LEAST (l->common == LB_F16 ? (T)0 : (T)1e-12f)
#define BCE_DENOMINATOR ((1 - b[i]) * b[i] < BCE_LEAST ? BCE_LEAST : (1 - b[i]) * b[i])
LB_POINTWISE_FT(bce_backward, "xxxos", 0, (l->given[3] ? d[i] : 1) * a[i] * (b[i] - c[i]) / BCE_DENOMINATOR * s0,
    !(BCE_DENOMINATOR > 0) ? LB_NOTHING_SAID
    : LB_UNLESS_STEP_OVERFLOWS(2 * a[i] * (LB_ABS(b[i]) + LB_ABS(c[i])) / BCE_DENOMINATOR * (l->given[3] ? MAX1(d[i]) : 1),
        (LB_ABS(a[i] * s0) * (LB_ABS(b[i]) + LB_ABS(c[i])) * l->coarse + l->grain + 0x1p-125) * (l->given[3] ? MAX1(d[i]) : 1) / BCE_DENOMINATOR))

/* Gated linear unit of the two halves; its derivative for each half. */
LB_POINTWISE_DT(gate, "xx", 0, LB_F64_FN(sigmoid, u, b);, a[i] * u[i], fabs(a[i] * u[i]) * (b[i] < -87 ? 0x1p24 : 1))
LB_POINTWISE_DT(gate_first, "xx", 0, LB_F64_FN(sigmoid, u, b);, a[i] * u[i],
    fabs(a[i] * u[i]) * (b[i] < -87 ? 0x1p24 : 1) * l->coarse + l->grain)
/* grad, first half, second half */
LB_POINTWISE_DT(gate_second, "xxx", 0, LB_F64_FN(sigmoid, u, c);, a[i] * b[i] * u[i] * (1 - u[i]),
    fabs(a[i] * b[i]) * u[i] * (c[i] < -87 ? 0x1p24 : 1) * l->coarse + 2 * l->grain * (1 + fabs(a[i]) + fabs(b[i])))
/* clang-format on */

/* ---- reductions -------------------------------------------------------------------------------------------------- */

static lb_status elementwise(lb_call *call, const lb_pointwise *op, const lb_operand *args, uint32_t n_args,
                             lb_tensor *result, bool twin)
{
    lb_call inner = *call;
    inner.args = args;
    inner.n_args = n_args;
    inner.results = result;
    inner.n_results = 1;
    return twin ? lb_pointwise_twin(&inner, op) : lb_pointwise_run(&inner, op);
}

/* The shape two or more operands broadcast to, dense. */
static lb_layout broadcast_shape(const lb_operand *args, uint32_t n_args)
{
    int64_t shape[LB_MAX_DIMS];
    int ndim = 0;
    for (uint32_t k = 0; k < n_args; k++)
        if (args[k].tag == LB_OPERAND_TENSOR && args[k].tensor.layout.ndim > ndim) ndim = args[k].tensor.layout.ndim;
    for (int d = 0; d < ndim; d++) {
        shape[d] = 1;
        for (uint32_t k = 0; k < n_args; k++) {
            const lb_layout *layout = &args[k].tensor.layout;
            if (args[k].tag != LB_OPERAND_TENSOR || d < ndim - layout->ndim) continue;
            const int64_t size = layout->shape[d - (ndim - layout->ndim)];
            if (size != 1) shape[d] = size;
        }
    }
    return lb_layout_contiguous(ndim, shape);
}

/* Elementwise loss of `args` into results[0], reduced as `reduction` says. */
static lb_status loss(lb_call *call, const lb_pointwise *op, const lb_operand *args, uint32_t n_args, int64_t reduction,
                      bool twin)
{
    lb_tensor *result = &call->results[0];
    if (!result->data) return LB_OK;
    if (reduction == REDUCE_NONE) return elementwise(call, op, args, n_args, result, twin);
    const lb_op_row *reducer = lb_op_find(reduction == REDUCE_MEAN ? "aten::mean" : "aten::sum", NULL);
    if (!reducer || !reducer->kernel)
        return lb_fail(call->err, LB_ERR_UNSUPPORTED, "%s: no row to reduce with", call->row->name);
    lb_tensor each = {.dtype = result->dtype, .layout = broadcast_shape(args, n_args)};
    const int64_t n = lb_layout_numel(&each.layout);
    const size_t bytes = n < 0 ? SIZE_MAX : lb_dtype_bytes(each.dtype, (size_t)n);
    each.data = bytes == SIZE_MAX ? NULL : malloc(bytes ? bytes : 1);
    if (!each.data) return lb_fail(call->err, LB_ERR_NOMEM, "%s: %zu bytes", call->row->name, bytes);
    lb_status status = elementwise(call, op, args, n_args, &each, twin);
    if (status == LB_OK) {
        const lb_operand reduced[2] = {{.tag = LB_OPERAND_TENSOR, .tensor = each}, {.tag = LB_OPERAND_NONE}};
        lb_call inner = *call;
        inner.row = reducer;
        inner.args = reduced;
        inner.n_args = 2;
        inner.n_results = 1;
        status = (twin && reducer->twin ? reducer->twin : reducer->kernel)(&inner);
    }
    free(each.data);
    return status;
}

static int64_t reduction_of(const lb_operand *arg)
{
    return arg->tag == LB_OPERAND_NONE ? REDUCE_MEAN : arg->i;
}

static lb_operand factor(const lb_call *call, uint32_t self, int64_t reduction, double by)
{
    const int64_t n = lb_layout_numel(&call->args[self].tensor.layout);
    const lb_operand operand = {.tag = LB_OPERAND_FLOAT, .f = reduction == REDUCE_MEAN ? by / (double)n : by};
    return operand;
}

/* mse_loss(self target reduction) */
static lb_status mse(lb_call *call, bool twin)
{
    return loss(call, &squared_op, call->args, 2, reduction_of(&call->args[2]), twin);
}
/* smooth_l1_loss, huber_loss(self target reduction beta|delta) */
static lb_status with_border(lb_call *call, const lb_pointwise *op, bool twin)
{
    const lb_operand args[3] = {call->args[0], call->args[1], call->args[3]};
    return loss(call, op, args, 3, reduction_of(&call->args[2]), twin);
}
/* binary_cross_entropy(self target weight reduction), …_with_logits(self target weight pos_weight reduction) */
static lb_status cross_entropy(lb_call *call, bool twin)
{
    return loss(call, &bce_op, call->args, 3, reduction_of(&call->args[3]), twin);
}
static lb_status logits(lb_call *call, bool twin)
{
    return loss(call, &bce_logits_op, call->args, 4, reduction_of(&call->args[4]), twin);
}

/* mse_loss_backward(grad_output self target reduction) */
static lb_status mse_backward(lb_call *call, bool twin)
{
    const lb_operand args[4] = {call->args[0], call->args[1], call->args[2],
                                factor(call, 1, reduction_of(&call->args[3]), 2)};
    return elementwise(call, &squared_backward_op, args, 4, call->results, twin);
}
/* smooth_l1_loss_backward, huber_loss_backward(grad_output self target reduction beta|delta) */
static lb_status border_backward(lb_call *call, const lb_pointwise *op, bool twin)
{
    const lb_operand args[5] = {call->args[0], call->args[1], call->args[2],
                                factor(call, 1, reduction_of(&call->args[3]), 1), call->args[4]};
    return elementwise(call, op, args, 5, call->results, twin);
}
/* binary_cross_entropy_backward(grad_output self target weight reduction) */
static lb_status entropy_backward(lb_call *call, bool twin)
{
    const lb_operand args[5] = {call->args[0], call->args[1], call->args[2], call->args[3],
                                factor(call, 1, reduction_of(&call->args[4]), 1)};
    return elementwise(call, &bce_backward_op, args, 5, call->results, twin);
}

/* ---- gated linear units ------------------------------------------------------------------------------------------ */

/* Half `which` of a tensor along `dim`; false when it has no two halves. */
static bool half(lb_tensor *tensor, int64_t dim, int which)
{
    if (dim < 0) dim += tensor->layout.ndim;
    if (dim < 0 || dim >= tensor->layout.ndim || tensor->layout.shape[dim] % 2 != 0) return false;
    tensor->layout.shape[dim] /= 2;
    const size_t element = lb_dtype_bits(tensor->dtype) / 8;
    if (which && tensor->data)
        tensor->data = (char *)tensor->data + (int64_t)element * tensor->layout.shape[dim] * tensor->layout.stride[dim];
    return true;
}
static lb_status no_halves(lb_call *call)
{
    return lb_fail(call->err, LB_ERR_INVALID, "%s: no two halves", call->row->name);
}

/* glu(self dim) */
static lb_status glu(lb_call *call, bool twin)
{
    lb_operand args[2] = {call->args[0], call->args[0]};
    if (!half(&args[0].tensor, call->args[1].i, 0) || !half(&args[1].tensor, call->args[1].i, 1))
        return no_halves(call);
    return elementwise(call, &gate_op, args, 2, call->results, twin);
}
/* glu_backward(grad_output self dim): the gradient of both halves */
static lb_status glu_backward(lb_call *call, bool twin)
{
    lb_operand args[3] = {call->args[0], call->args[1], call->args[1]};
    lb_tensor first = call->results[0], second = call->results[0];
    const int64_t dim = call->args[2].i;
    if (!half(&args[1].tensor, dim, 0) || !half(&args[2].tensor, dim, 1) || !half(&first, dim, 0) ||
        !half(&second, dim, 1))
        return no_halves(call);
    LB_TRY(elementwise(call, &gate_second_op, args, 3, &second, twin));
    const lb_operand gates[2] = {args[0], args[2]};
    return elementwise(call, &gate_first_op, gates, 2, &first, twin);
}

/* Every loss as a kernel and a twin. */
LB_WITH_TWIN(mse, mse(call, twin))
LB_WITH_TWIN(smooth, with_border(call, &smooth_l1_op, twin))
LB_WITH_TWIN(huber_loss, with_border(call, &huber_op, twin))
LB_WITH_TWIN(entropy, cross_entropy(call, twin))
LB_WITH_TWIN(logits, logits(call, twin))
LB_WITH_TWIN(mse_backward, mse_backward(call, twin))
LB_WITH_TWIN(smooth_backward, border_backward(call, &smooth_l1_backward_op, twin))
LB_WITH_TWIN(huber_loss_backward, border_backward(call, &huber_backward_op, twin))
LB_WITH_TWIN(entropy_backward, entropy_backward(call, twin))
LB_WITH_TWIN(glu, glu(call, twin))
LB_WITH_TWIN(glu_backward, glu_backward(call, twin))

#define REDUCED(NAME, ARGS, ID, ROUNDINGS, SAMPLES)                                                                    \
    {.name = "aten::" NAME,                                                                                            \
     .args = ARGS,                                                                                                     \
     LB_COMPUTED_BY(ID),                                                                                               \
     .roundings = ROUNDINGS,                                                                                           \
     .roundings_per_term = 1,                                                                                          \
     .flags = LB_ROW_REDUCTION,                                                                                        \
     .samples = SAMPLES},
#define PLAIN(NAME, ARGS, ID, ROUNDINGS, SAMPLES)                                                                      \
    {.name = "aten::" NAME,                                                                                            \
     .args = ARGS,                                                                                                     \
     LB_COMPUTED_BY(ID),                                                                                               \
     .roundings = ROUNDINGS,                                                                                           \
     .flags = LB_ROW_ELEMENTWISE,                                                                                      \
     .samples = SAMPLES},

/* clang-format off */
const lb_op_row lb_rows_loss[] = {
    REDUCED("mse_loss", "self! target! reduction", mse, 6, "loss")
    REDUCED("smooth_l1_loss", "self! target! reduction beta", smooth, 8, "loss border")
    REDUCED("huber_loss", "self! target! reduction delta", huber_loss, 8, "loss border")
    REDUCED("binary_cross_entropy", "self! target! weight reduction", entropy, 12, "loss probability weight")
    REDUCED("binary_cross_entropy_with_logits", "self! target! weight pos_weight reduction", logits, 16, "loss weight pos_weight target")
    PLAIN("mse_loss_backward", "grad_output! self! target! reduction", mse_backward, 4, "loss_backward")
    PLAIN("smooth_l1_loss_backward", "grad_output! self! target! reduction beta", smooth_backward, 5, "loss_backward border")
    PLAIN("huber_loss_backward", "grad_output! self! target! reduction delta", huber_loss_backward, 5, "loss_backward border")
    PLAIN("binary_cross_entropy_backward", "grad_output! self! target! weight reduction", entropy_backward, 8, "loss_backward probability weight")
    {.name = "aten::glu", .args = "self! dim", LB_COMPUTED_BY(glu), .roundings = 5, .samples = "glu"},
    {.name = "aten::glu_backward", .args = "grad_output! self! dim", LB_COMPUTED_BY(glu_backward),
     .roundings = 10, .samples = "glu backward modest"},
    {NULL}
};
