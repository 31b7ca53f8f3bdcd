/* Random ops: their results are recorded sources, no generator is reproduced here.
 *
 * Dropout is in between: its mask is the draw, its output depends on the input. The kernel is called with the recorded
 * mask in results[1] (filled in by the caller) and computes results[0] alone, so that a changed input passes through
 * the same mask. The same holds of a rectifier with random slopes and the noise that it writes: the slope where the
 * input is not positive, and 1 elsewhere. */
#include "kernel/pointwise.h"

#include "ops/row_call.h"

#include <string.h>

/* input * mask * scale; on the CPU torch rounds the scale to the input's dtype, which CUDA does not. */
#define DROPPED ((a[i] * b[i]) * s0)
#define DROPPED_TWIN LB_COARSE(LB_ABS(a[i] * b[i] * s0))
LB_POINTWISE_FT(dropped, "xxs", LB_POINTWISE_COMMON, DROPPED, DROPPED_TWIN)
LB_POINTWISE_FT(undropped, "xxs", 0, DROPPED, DROPPED_TWIN)

/* native_dropout(input, p, train), _fused_dropout(self, p, generator); p of the latter is the probability to keep. */
static lb_status dropout(lb_call *call, bool keep, lb_kernel kernel)
{
    if (call->n_results < 2 || !call->results[1].data)
        return lb_fail(call->err, LB_ERR_UNSUPPORTED, "%s: needs the recorded mask", call->row->name);
    double p = call->args[1].f;
    if (!keep && call->n_args > 2 && call->args[2].tag == LB_OPERAND_BOOL && !call->args[2].i) p = 0;
    const double kept = keep ? p : 1 - p;
    lb_operand args[3] = {call->args[0], {.tag = LB_OPERAND_TENSOR}, {.tag = LB_OPERAND_FLOAT}};
    args[1].tensor = call->results[1];
    args[2].f = kept == 0 ? 0 : 1 / kept;
    lb_call inner = *call;
    inner.args = args;
    inner.n_args = 3;
    inner.n_results = 1;
    return kernel(&inner);
}
LB_WITH_TWIN(native_dropout, dropout(call, false, twin ? dropped_twin : dropped_kernel))
LB_WITH_TWIN(fused_dropout, dropout(call, true, twin ? dropped_twin : dropped_kernel))

/* rrelu_with_noise(self, noise, lower, upper, training): the slope is in the middle where nothing is drawn. On the CPU
 * torch multiplies by the draw before that is rounded to the dtype of the noise. */
static lb_status rectified(lb_call *call, bool twin)
{
    const double unit = lb_dtype_unit_roundoff(call->args[1].tensor.dtype);
    const lb_operand scale = lb_operand_real(twin && unit > 0x1p-24 ? 1 + unit * 0x1p24 : 1);
    const lb_operand slope = lb_operand_real((call->args[2].f + call->args[3].f) / 2);
    if (!call->args[4].i) {
        lb_row_call p = {
            .row = "aten::leaky_relu", .args = {call->args[0], slope}, .n_args = 2, .results = {call->results[0]}};
        p.n_results = 1;
        return lb_row_call_run(call, &p, twin);
    }
    if (call->n_results < 2 || !call->results[1].data)
        return lb_fail(call->err, LB_ERR_UNSUPPORTED, "%s: needs the recorded noise", call->row->name);
    const lb_operand args[3] = {call->args[0], lb_operand_tensor(&call->results[1]), scale};
    lb_call inner = *call;
    inner.args = args, inner.n_args = 3, inner.n_results = 1;
    return twin ? dropped_twin(&inner) : dropped_kernel(&inner);
}
LB_WITH_TWIN(rrelu, rectified(call, twin))

/* rrelu_with_noise_backward(grad_output, self, noise, lower, upper, training, self_is_result) */
static lb_status rectified_backward(lb_call *call, bool twin)
{
    const bool drawn = call->args[5].i;
    lb_row_call p = {.row = drawn ? "aten::mul.Tensor" : "aten::leaky_relu_backward",
                     .args = {call->args[0], drawn ? call->args[2] : call->args[1],
                              lb_operand_real((call->args[3].f + call->args[4].f) / 2), call->args[6]},
                     .n_args = drawn ? 2 : 4,
                     .results = {call->results[0]},
                     .n_results = 1};
    return lb_row_call_run(call, &p, twin);
}
LB_WITH_TWIN(rrelu_backward, rectified_backward(call, twin))

#define RANDOM(NAME, ARGS) {.name = "aten::" NAME, .args = ARGS, .flags = LB_ROW_RANDOM, .samples = "random"},

/* clang-format off */
const lb_op_row lb_rows_random[] = {
    {.name = "aten::native_dropout", .args = "input! p train", LB_COMPUTED_BY(native_dropout),
     .roundings = 4, .flags = LB_ROW_RANDOM, .samples = "native_dropout"},
    {.name = "aten::_fused_dropout", .args = "self! p generator", LB_COMPUTED_BY(fused_dropout),
     .roundings = 4, .flags = LB_ROW_RANDOM, .samples = "native_dropout fused"},
    {.name = "aten::native_dropout_backward", .args = "grad_output! mask! scale", LB_COMPUTED_BY(undropped),
     .roundings = 3, .flags = LB_ROW_ELEMENTWISE, .samples = "native_dropout_backward"},
    {.name = "aten::_masked_scale", .args = "self! mask! scale", LB_COMPUTED_BY(undropped),
     .roundings = 3, .flags = LB_ROW_ELEMENTWISE, .samples = "native_dropout_backward bytes"},
    RANDOM("dropout", "input p train")
    RANDOM("feature_dropout", "input p train")
    RANDOM("alpha_dropout", "input p train")
    RANDOM("feature_alpha_dropout", "input p train")
    RANDOM("bernoulli", "self generator")
    RANDOM("bernoulli.p", "self p generator")
    RANDOM("bernoulli.Tensor", "self p generator")
    RANDOM("binomial", "count prob generator")
    RANDOM("cauchy", "self median sigma generator")
    RANDOM("exponential", "self lambd generator")
    RANDOM("geometric", "self p generator")
    RANDOM("log_normal", "self mean std generator")
    RANDOM("multinomial", "self num_samples replacement generator")
    RANDOM("normal.Tensor_Tensor", "mean std generator")
    RANDOM("normal.Tensor_float", "mean std generator")
    RANDOM("normal.float_Tensor", "mean std generator")
    RANDOM("normal.float_float", "mean std size generator dtype layout device pin_memory")
    RANDOM("normal_functional", "self mean std generator")
    RANDOM("poisson", "self generator")
    RANDOM("_cudnn_init_dropout_state", "dropout train dropout_seed dtype layout device pin_memory")
    RANDOM("rand", "size dtype layout device pin_memory")
    RANDOM("rand.generator", "size generator dtype layout device pin_memory")
    RANDOM("rand_like", "self dtype layout device pin_memory memory_format")
    RANDOM("randn", "size dtype layout device pin_memory")
    RANDOM("randn.generator", "size generator dtype layout device pin_memory")
    RANDOM("randn_like", "self dtype layout device pin_memory memory_format")
    RANDOM("randint", "high size dtype layout device pin_memory")
    RANDOM("randint.generator", "high size generator dtype layout device pin_memory")
    RANDOM("randint.low", "low high size dtype layout device pin_memory")
    RANDOM("randint.low_generator", "low high size generator dtype layout device pin_memory")
    RANDOM("randint_like", "self high dtype layout device pin_memory memory_format")
    RANDOM("randint_like.low_dtype", "self low high dtype layout device pin_memory memory_format")
    RANDOM("randperm", "n dtype layout device pin_memory")
    RANDOM("randperm.generator", "n generator dtype layout device pin_memory")
    RANDOM("random", "self generator")
    {.name = "aten::rrelu_with_noise", .args = "self! noise! lower upper training generator", LB_COMPUTED_BY(rrelu),
     .roundings = 4, .flags = LB_ROW_RANDOM, .samples = "rrelu"},
    {.name = "aten::rrelu_with_noise_functional", .args = "self! noise! lower upper training generator",
     LB_COMPUTED_BY(rrelu), .roundings = 4, .flags = LB_ROW_RANDOM, .samples = "rrelu"},
    {.name = "aten::rrelu_with_noise_backward",
     .args = "grad_output! self! noise! lower upper training self_is_result", LB_COMPUTED_BY(rrelu_backward),
     .roundings = 2, .flags = LB_ROW_ELEMENTWISE | LB_ROW_EXACT, .samples = "rrelu backward"},
    RANDOM("rrelu_with_noise.out", "self noise lower upper training generator") /* its noise stands before its result */
    RANDOM("rrelu", "self lower upper training generator")
    RANDOM("random.from", "self from to generator")
    RANDOM("random.to", "self to generator")
    RANDOM("uniform", "self from to generator")
    {NULL}
};
