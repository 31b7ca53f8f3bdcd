/* Composite ops: those that torch usually takes apart before they are seen, under inference_mode or from a compiled
 * graph whole.
 *
 * Each rewrites its arguments and calls the row it is made of, so that bits, bounds and schedules are that row's. A
 * composite whose pieces torch rounds to 16 bits in between has these roundings in its twin. Views that may copy
 * (`reshape`, `to.dtype`) have a kernel for the case that the recording found the result in memory of its own. */
#include "kernel/elements.h"
#include "kernel/frame.h"
#include "ops/row_call.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static lb_status unsupported(lb_call *call, const char *what)
{
    return lb_fail(call->err, LB_ERR_UNSUPPORTED, "%s: %s", call->row->name, what);
}

/* ---- the same op under another order of arguments ---------------------------------------------------------------- */

/* The first `n` arguments, the first result. */
static lb_status forwarded(lb_call *call, const char *row, uint32_t n, uint32_t n_results, bool twin)
{
    lb_row_call p = {.row = row, .n_args = n, .n_results = n_results, .results = {call->results[0]}};
    for (uint32_t i = 0; i < n; i++) p.args[i] = lb_operand_arg(call, i);
    return lb_row_call_run(call, &p, twin);
}

static lb_status layer_norm_run(lb_call *call, bool twin)
{
    return forwarded(call, "aten::native_layer_norm", 5, 3, twin);
}
static lb_status rms_norm_run(lb_call *call, bool twin)
{
    return forwarded(call, "aten::_fused_rms_norm", 4, 2, twin);
}
static lb_status nll_run(lb_call *call, bool twin)
{
    return forwarded(call, "aten::nll_loss_forward", 5, 2, twin);
}
static lb_status log_sigmoid_run(lb_call *call, bool twin)
{
    return forwarded(call, "aten::log_sigmoid_forward", 1, 1, twin);
}

/* input, num_groups, weight, bias, eps, cudnn_enabled */
static lb_status group_norm_run(lb_call *call, bool twin)
{
    const lb_layout *layout = &lb_frame_arg_tensor(call, 0)->layout;
    if (layout->ndim < 2) return unsupported(call, "an input without channels");
    int64_t spatial = 1;
    for (int d = 2; d < layout->ndim; d++) spatial *= layout->shape[d];
    lb_row_call p = {.row = "aten::native_group_norm",
                     .args = {lb_operand_arg(call, 0), lb_operand_arg(call, 2), lb_operand_arg(call, 3),
                              lb_operand_int(layout->shape[0]), lb_operand_int(layout->shape[1]),
                              lb_operand_int(spatial), lb_operand_arg(call, 1), lb_operand_arg(call, 4)},
                     .n_args = 8,
                     .results = {call->results[0]},
                     .n_results = 3};
    return lb_row_call_run(call, &p, twin);
}

/* input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled */
static lb_status batch_norm_run(lb_call *call, bool twin)
{
    if (lb_frame_arg_int(call, 5, 0) && lb_frame_arg_given(call, 3))
        return unsupported(call, "running statistics that change unseen");
    return forwarded(call, "aten::native_batch_norm", 8, 3, twin);
}

/* self, dim, dtype. The input takes the result's dtype first; nothing is lost then unless that is narrower. */
static lb_status softmax_of(lb_call *call, const char *row, bool twin)
{
    const lb_tensor *x = lb_frame_arg_tensor(call, 0);
    if (lb_frame_arg_given(call, 2) && lb_dtype_is_float(x->dtype) &&
        lb_dtype_precision(call->results[0].dtype) < lb_dtype_precision(x->dtype))
        return unsupported(call, "an input that is rounded first");
    lb_row_call p = {.row = row,
                     .args = {lb_operand_arg(call, 0), lb_operand_arg(call, 1), lb_operand_flag(false)},
                     .n_args = 3,
                     .results = {call->results[0]},
                     .n_results = 1};
    return lb_row_call_run(call, &p, twin);
}

static lb_status softmax_run(lb_call *call, bool twin)
{
    return softmax_of(call, "aten::_softmax", twin);
}
static lb_status log_softmax_run(lb_call *call, bool twin)
{
    return softmax_of(call, "aten::_log_softmax", twin);
}

/* self, target, weight, reduction, ignore_index, label_smoothing: a log-softmax over the classes, then the
 * likelihood. */
static lb_status cross_entropy_run(lb_call *call, bool twin)
{
    const lb_tensor *scores = lb_frame_arg_tensor(call, 0), *target = lb_frame_arg_tensor(call, 1);
    if (lb_frame_arg_float(call, 5, 0) != 0 || lb_dtype_is_float(target->dtype))
        return unsupported(call, "smoothed targets and targets that are probabilities");
    lb_tensor log = {.dtype = twin ? LB_F64 : call->results[0].dtype,
                     .layout = lb_layout_contiguous(scores->layout.ndim, scores->layout.shape)};
    log.data = malloc(lb_dtype_bytes(log.dtype, (size_t)lb_tensor_numel(&log)) + 1);
    if (!log.data) return lb_fail(call->err, LB_ERR_NOMEM, "%s: no memory for the scores", call->row->name);
    lb_row_call first = {
        .row = "aten::_log_softmax",
        .args = {lb_operand_arg(call, 0), lb_operand_int(scores->layout.ndim == 1 ? 0 : 1), lb_operand_flag(false)},
        .n_args = 3,
        .results = {log},
        .n_results = 1};
    lb_row_call second = {.row = "aten::nll_loss_forward",
                          .args = {lb_operand_tensor(&log), lb_operand_arg(call, 1), lb_operand_arg(call, 2),
                                   lb_operand_arg(call, 3), lb_operand_arg(call, 4)},
                          .n_args = 5,
                          .results = {call->results[0]},
                          .n_results = 2};
    lb_status status = lb_row_call_run(call, &first, twin);
    if (status == LB_OK) status = lb_row_call_run(call, &second, twin);
    double *y = call->results[0].data;
    for (int64_t i = 0; twin && status == LB_OK && i < lb_tensor_numel(&call->results[0]); i++)
        y[i] *= lb_frame_twin_scale(call, 0);
    free(log.data);
    return status;
}

static lb_status elu_of(lb_call *call, double alpha, double scale, double input_scale, bool twin)
{
    lb_row_call p = {
        .row = "aten::elu",
        .args = {lb_operand_arg(call, 0), lb_operand_real(alpha), lb_operand_real(scale), lb_operand_real(input_scale)},
        .n_args = 4,
        .results = {call->results[0]},
        .n_results = 1};
    return lb_row_call_run(call, &p, twin);
}

static lb_status selu_run(lb_call *call, bool twin)
{
    return elu_of(call, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1, twin);
}
static lb_status celu_run(lb_call *call, bool twin)
{
    return elu_of(call, lb_frame_arg_float(call, 1, 1), 1, 1 / lb_frame_arg_float(call, 1, 1), twin);
}
static lb_status relu6(lb_call *call)
{
    lb_row_call p = {.row = "aten::hardtanh",
                     .args = {lb_operand_arg(call, 0), lb_operand_int(0), lb_operand_int(6)},
                     .n_args = 3,
                     .results = {call->results[0]},
                     .n_results = 1};
    return lb_row_call_run(call, &p, false);
}

/* relu of the one result, where it lies. */
static lb_status relu_of_result(lb_call *call)
{
    lb_row_call relu = {.row = "aten::relu",
                        .args = {lb_operand_tensor(&call->results[0])},
                        .n_args = 1,
                        .results = {call->results[0]},
                        .n_results = 1};
    return lb_row_call_run(call, &relu, false);
}

/* gelu of `x`: the tanh form, into which CUDA's products end, or the exact one. */
static lb_status gelu_of(lb_call *call, const lb_tensor *x, lb_tensor y, bool twin)
{
    lb_row_call gelu = {
        .row = "aten::gelu",
        .args = {lb_operand_tensor(x), {.tag = LB_OPERAND_STRING, .string = call->cuda ? "tanh" : "none"}},
        .n_args = 2,
        .results = {y},
        .n_results = 1};
    return lb_row_call_run(call, &gelu, twin);
}

/* What gelu makes of the twin of its argument, which the result holds: at most its slope times that, and its own, whose
 * row has twice as many roundings. */
static lb_status gelu_twin(lb_call *call)
{
    const lb_tensor *y = &call->results[0];
    const int64_t n = lb_tensor_numel(y);
    double *x = malloc((size_t)(2 * n + 1) * sizeof *x), *own = x + n, *twin = y->data;
    if (!x) return lb_fail(call->err, LB_ERR_NOMEM, "%s: no memory for its product", call->row->name);
    lb_tensor product = {.dtype = LB_F64, .layout = y->layout, .data = x}, of_gelu = product;
    of_gelu.data = own;
    lb_row_call first = {.row = "aten::addmm", .n_args = 5, .results = {product}, .n_results = 1};
    for (uint32_t i = 0; i < 5; i++) first.args[i] = lb_operand_arg(call, i);
    lb_status status = lb_row_call_run(call, &first, false);
    if (status == LB_OK) status = gelu_of(call, &product, of_gelu, true);
    for (int64_t i = 0; status == LB_OK && i < n; i++)
        twin[i] = 1.13 * (twin[i] + lb_frame_twin_rounding(call, 1) * fabs(x[i])) + 2 * own[i];
    free(x);
    return status;
}

/* self, mat1, mat2, beta, alpha, use_gelu */
static lb_status addmm_activation_run(lb_call *call, bool twin)
{
    const bool gelu = lb_frame_arg_int(call, 5, 0);
    LB_TRY(forwarded(call, "aten::addmm", 5, 1, twin));
    if (twin) return gelu ? gelu_twin(call) : LB_OK;
    return gelu ? gelu_of(call, &call->results[0], call->results[0], false) : relu_of_result(call);
}

/* ---- convolutions ------------------------------------------------------------------------------------------------ */

/* Positions plus one; 0: absent. */
typedef struct convolution_args {
    uint8_t bias, stride, padding, dilation, output_padding, groups;
    bool transposed, depthwise, relu;
} convolution_args;

/* A batch of one in front of what has none. */
static lb_tensor batched(const lb_tensor *t, int ndim)
{
    lb_tensor b = *t;
    if (t->layout.ndim != ndim - 1) return b;
    b.layout.ndim = ndim;
    for (int d = ndim - 1; d > 0; d--)
        b.layout.shape[d] = t->layout.shape[d - 1], b.layout.stride[d] = t->layout.stride[d - 1];
    b.layout.shape[0] = 1, b.layout.stride[0] = 0;
    return b;
}

/* "valid" or "same" as numbers. */
static bool padding_of(const lb_call *call, const convolution_args *at, const lb_layout *weight, int64_t *pads)
{
    int64_t dilation[LB_MAX_DIMS];
    const bool same = call->args[at->padding - 1].string && !strcmp(call->args[at->padding - 1].string, "same");
    const int n = lb_frame_arg_ints(call, at->dilation - 1u, dilation, LB_MAX_DIMS);
    for (int d = 0; d < weight->ndim - 2; d++) {
        const int64_t total = same ? (n ? dilation[n == 1 ? 0 : d] : 1) * (weight->shape[d + 2] - 1) : 0;
        if (total % 2) return false;
        pads[d] = total / 2;
    }
    return true;
}

static lb_status convolution_run(lb_call *call, const convolution_args *at, bool twin)
{
    static const double zeros[LB_MAX_DIMS];
    static const int64_t nothing[LB_MAX_DIMS];
    const lb_tensor *weight = lb_frame_arg_tensor(call, 1);
    const int ndim = weight->layout.ndim;
    const lb_tensor in = batched(lb_frame_arg_tensor(call, 0), ndim);
    int64_t pads[LB_MAX_DIMS];
    lb_operand padding = lb_operand_arg(call, at->padding - 1u);
    if (padding.tag == LB_OPERAND_STRING) {
        if (!padding_of(call, at, &weight->layout, pads))
            return unsupported(call, "padding that differs by one between its sides");
        padding = lb_operand_numbers(pads, zeros, (uint32_t)(ndim - 2));
    }
    lb_row_call p = {
        .row = "aten::convolution", .n_args = 9, .n_results = 1, .results = {batched(&call->results[0], ndim)}};
    p.args[0] = lb_operand_tensor(&in), p.args[1] = lb_operand_tensor(weight),
    p.args[2] = at->bias ? lb_operand_arg(call, at->bias - 1u) : lb_operand_none();
    p.args[3] = lb_operand_arg(call, at->stride - 1u), p.args[4] = padding;
    p.args[5] = at->dilation ? lb_operand_arg(call, at->dilation - 1u) : lb_operand_int(1);
    p.args[6] = lb_operand_flag(at->transposed);
    p.args[7] = at->output_padding ? lb_operand_arg(call, at->output_padding - 1u)
                                   : lb_operand_numbers(nothing, zeros, (uint32_t)(ndim - 2));
    p.args[8] = at->depthwise ? lb_operand_int(in.layout.shape[1])
                : at->groups  ? lb_operand_arg(call, at->groups - 1u)
                              : lb_operand_int(1);
    LB_TRY(lb_row_call_run(call, &p, twin));
    if (!at->relu || twin) return LB_OK;
    return relu_of_result(call);
}

/* self, weight, z, alpha, bias, stride, padding, dilation, groups: relu(convolution + alpha z). Where the library has
 * no fused kernel, torch rounds the convolution and the sum to the result's dtype. */
static lb_status convolution_add_relu_run(lb_call *call, bool twin)
{
    const lb_layout *shape = &call->results[0].layout;
    const int64_t n = lb_layout_numel(shape);
    lb_frame frame = lb_frame_begin(call);
    lb_tensor sum = {.dtype = frame.type, .layout = lb_layout_contiguous(shape->ndim, shape->shape)};
    sum.data = lb_frame_reals(&frame, n);
    const lb_tensor *z = lb_frame_arg_tensor(call, 2);
    if (lb_tensor_numel(z) != n) lb_frame_fail(&frame, LB_ERR_INVALID, "a sum of another size than the convolution");
    const void *added = lb_frame_tensor(&frame, z);
    const double alpha = lb_frame_arg_float(call, 3, 1), twice = 1 + 2 * lb_frame_twin_rounding(call, 0);
    void *y = lb_frame_output(&frame, 0, n);
    lb_row_call p = {.row = "aten::conv2d",
                     .args = {lb_operand_arg(call, 0), lb_operand_arg(call, 1), lb_operand_arg(call, 4),
                              lb_operand_arg(call, 5), lb_operand_arg(call, 6), lb_operand_arg(call, 7),
                              lb_operand_arg(call, 8)},
                     .n_args = 7,
                     .results = {sum},
                     .n_results = 1};
    if (lb_frame_ok(&frame)) frame.status = lb_row_call_run(call, &p, twin);
    for (int64_t i = 0; lb_frame_ok(&frame) && i < n; i++) {
        const double a = lb_frame_get(&frame, sum.data, i), b = alpha * lb_frame_get(&frame, added, i), whole = a + b;
        lb_frame_set(&frame, y, i, twin ? (a + fabs(b)) * twice : whole > 0 || whole != whole ? whole : 0);
    }
    return lb_frame_end(&frame);
}

#define AT(n) ((n) + 1)
#define CONVOLUTION(ID, ...)                                                                                           \
    static const convolution_args ID##_args = {__VA_ARGS__};                                                           \
    static lb_status ID##_run(lb_call *call, bool twin)                                                                \
    {                                                                                                                  \
        return convolution_run(call, &ID##_args, twin);                                                                \
    }
CONVOLUTION(conv, .bias = AT(2), .stride = AT(3), .padding = AT(4), .dilation = AT(5), .groups = AT(6))
CONVOLUTION(conv_transpose, .bias = AT(2), .stride = AT(3), .padding = AT(4), .output_padding = AT(5), .groups = AT(6),
            .dilation = AT(7), .transposed = true)
CONVOLUTION(cudnn_conv, .padding = AT(2), .stride = AT(3), .dilation = AT(4), .groups = AT(5))
CONVOLUTION(cudnn_transpose, .padding = AT(2), .output_padding = AT(3), .stride = AT(4), .dilation = AT(5),
            .groups = AT(6), .transposed = true)
CONVOLUTION(cudnn_relu, .bias = AT(2), .stride = AT(3), .padding = AT(4), .dilation = AT(5), .groups = AT(6),
            .relu = true)
CONVOLUTION(miopen_conv, .bias = AT(2), .padding = AT(3), .stride = AT(4), .dilation = AT(5), .groups = AT(6))
CONVOLUTION(miopen_transpose, .bias = AT(2), .padding = AT(3), .output_padding = AT(4), .stride = AT(5),
            .dilation = AT(6), .groups = AT(7), .transposed = true)
CONVOLUTION(thnn_conv, .bias = AT(3), .stride = AT(4), .padding = AT(5))
CONVOLUTION(dilated_conv, .bias = AT(3), .stride = AT(4), .padding = AT(5), .dilation = AT(6))
CONVOLUTION(depthwise_conv, .bias = AT(3), .stride = AT(4), .padding = AT(5), .dilation = AT(6), .depthwise = true)

/* ---- copies ------------------------------------------------------------------------------------------------------ */

/* The elements in row-major order, whatever both shapes are. */
static lb_status copied(lb_call *call)
{
    const lb_tensor *from = lb_frame_arg_tensor(call, 0), *to = &call->results[0];
    lb_frame frame = lb_frame_begin(call);
    const int64_t n = lb_tensor_numel(to);
    const void *x = lb_frame_bytes(&frame, from);
    void *y = lb_frame_output_bytes(&frame, 0);
    if (lb_frame_ok(&frame) && lb_tensor_numel(from) != n)
        lb_frame_fail(&frame, LB_ERR_INVALID, "a recorded result has another number of elements");
    const lb_elements move = lb_elements_of(to->dtype, from->dtype, call->method.cast);
    if (lb_frame_ok(&frame) && y) lb_elements_move(&move, y, 0, x, 0, n);
    return lb_frame_end(&frame);
}

/* self, num_classes */
static lb_status one_hot(lb_call *call)
{
    lb_frame frame = lb_frame_begin(call);
    const lb_tensor *index = lb_frame_arg_tensor(call, 0), *out = &call->results[0];
    const int64_t n = lb_tensor_numel(index), classes = n ? lb_tensor_numel(out) / n : 0;
    const int64_t *at = lb_frame_integers(&frame, index);
    int64_t *y = lb_frame_output_integers(&frame, 0, n * classes);
    if (lb_frame_ok(&frame)) memset(y, 0, (size_t)(n * classes) * 8);
    for (int64_t i = 0; lb_frame_ok(&frame) && i < n; i++) {
        if (at[i] < 0 || at[i] >= classes)
            lb_frame_fail(&frame, LB_ERR_INVALID, "an index that is not a class");
        else
            y[i * classes + at[i]] = 1;
    }
    return lb_frame_end(&frame);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

#define COMPOSITE(ID) LB_WITH_TWIN(ID, ID##_run(call, twin))
COMPOSITE(layer_norm)
COMPOSITE(rms_norm)
COMPOSITE(group_norm)
COMPOSITE(batch_norm)
COMPOSITE(softmax)
COMPOSITE(log_softmax)
COMPOSITE(nll)
COMPOSITE(cross_entropy)
COMPOSITE(log_sigmoid)
COMPOSITE(selu)
COMPOSITE(celu)
COMPOSITE(addmm_activation)
COMPOSITE(conv)
COMPOSITE(conv_transpose)
COMPOSITE(cudnn_conv)
COMPOSITE(cudnn_transpose)
COMPOSITE(cudnn_relu)
COMPOSITE(miopen_conv)
COMPOSITE(miopen_transpose)
COMPOSITE(convolution_add_relu)
COMPOSITE(thnn_conv)
COMPOSITE(dilated_conv)
COMPOSITE(depthwise_conv)

#define ROW(NAME, ARGS, ID, ROUNDINGS, FLAGS, KERNELS, TERMS, SAMPLES)                                                 \
    {.name = "aten::" NAME,                                                                                            \
     .args = ARGS,                                                                                                     \
     LB_COMPUTED_BY(ID),                                                                                               \
     LB_SUMS(ROUNDINGS, TERMS),                                                                                        \
     .flags = FLAGS,                                                                                                   \
     .kernels = KERNELS,                                                                                               \
     .samples = SAMPLES},
#define SUM(NAME, ARGS, ID, ROUNDINGS, TERMS, SAMPLES)                                                                 \
    ROW(NAME, ARGS, ID, ROUNDINGS, LB_ROW_REDUCTION, NULL, TERMS, SAMPLES)
#define NORM(NAME, ARGS, ID, ROUNDINGS, TERMS, SAMPLES)                                                                \
    ROW(NAME, ARGS, ID, ROUNDINGS, LB_ROW_REDUCTION | LB_ROW_SQUARES, NULL, TERMS, SAMPLES)
#define CONV(NAME, ARGS, ID, TERMS, SAMPLES) ROW(NAME, ARGS, ID, 2, LB_ROW_REDUCTION, "openblas", TERMS, SAMPLES)
#define COPIED(NAME, ARGS, SAMPLES)                                                                                    \
    {.name = "aten::" NAME, .args = ARGS, .kernel = copied, .flags = LB_ROW_VIEW | LB_ROW_EXACT, .samples = SAMPLES},
#define CAST "non_blocking copy memory_format"
#define TRANSPOSED "input! weight! bias stride padding output_padding groups dilation"
#define USUAL "input! weight! bias stride padding dilation groups"
#define FLAGS_ " benchmark deterministic allow_tf32"

/* clang-format off */
const lb_op_row lb_rows_composite[] = {
    NORM("layer_norm", "input! normalized_shape weight bias eps cudnn_enable", layer_norm, 8, LB_TERMS(SIZES, 1), "layer_norm")
    NORM("rms_norm", "input! normalized_shape weight eps", rms_norm, 6, LB_TERMS(SIZES, 1), "rms_norm")
    NORM("group_norm", "input! num_groups weight bias eps cudnn_enabled", group_norm, 8, LB_TERMS(GROUPS, 0), "group_norm whole")
    NORM("batch_norm", "input! weight bias running_mean running_var training momentum eps cudnn_enabled", batch_norm, 8,
         LB_TERMS(PER_CHANNEL, 0), "batch_norm whole")
    SUM("softmax.int", "self! dim dtype", softmax, 5, LB_TERMS(DIMENSION, 1), "softmax_int")
    SUM("special_softmax", "self! dim dtype", softmax, 5, LB_TERMS(DIMENSION, 1), "softmax_int")
    SUM("log_softmax.int", "self! dim dtype", log_softmax, 5, LB_TERMS(DIMENSION, 1), "softmax_int")
    SUM("special_log_softmax", "self! dim dtype", log_softmax, 5, LB_TERMS(DIMENSION, 1), "softmax_int")
    SUM("nll_loss", "self! target! weight reduction ignore_index", nll, 4, LB_TERMS(ELEMENTS, 1), "nll_loss")
    SUM("nll_loss2d", "self! target! weight reduction ignore_index", nll, 4, LB_TERMS(ELEMENTS, 1), "nll_loss2d")
    SUM("nll_loss_nd", "self! target! weight reduction ignore_index", nll, 4, LB_TERMS(ELEMENTS, 1), "nll_loss")
    SUM("cross_entropy_loss", "self! target! weight reduction ignore_index label_smoothing", cross_entropy, 10,
        LB_TERMS(ELEMENTS, 0), "cross_entropy")
    {.name = "aten::log_sigmoid", .args = "self!", LB_COMPUTED_BY(log_sigmoid), .roundings = 6,
     .flags = LB_ROW_ELEMENTWISE, .samples = "unary float"},
    {.name = "aten::selu", .args = "self!", LB_COMPUTED_BY(selu), .roundings = 6, .flags = LB_ROW_ELEMENTWISE,
     .samples = "unary float"},
    {.name = "aten::celu", .args = "self! alpha", LB_COMPUTED_BY(celu), .roundings = 6,
     .flags = LB_ROW_ELEMENTWISE, .samples = "unary float lambd"},
    {.name = "aten::relu6", .args = "self!", .kernel = relu6, .flags = LB_ROW_EXACT | LB_ROW_ELEMENTWISE, .samples = "unary float"},
    ROW("_addmm_activation", "self! mat1! mat2! beta alpha use_gelu", addmm_activation, 4, LB_ROW_MATMUL, "openblas",
        LB_TERMS(INNER, 1), "addmm activation")
    CONV("conv1d", USUAL, conv, LB_TERMS(KERNEL, 1), "convolution conv1d")
    CONV("conv2d", USUAL, conv, LB_TERMS(KERNEL, 1), "convolution conv2d")
    CONV("conv3d", USUAL, conv, LB_TERMS(KERNEL, 1), "convolution conv3d")
    CONV("conv1d.padding", USUAL, conv, LB_TERMS(KERNEL, 1), "convolution conv1d word")
    CONV("conv2d.padding", USUAL, conv, LB_TERMS(KERNEL, 1), "convolution conv2d word")
    CONV("conv3d.padding", USUAL, conv, LB_TERMS(KERNEL, 1), "convolution conv3d word")
    CONV("conv_transpose1d", TRANSPOSED, conv_transpose, LB_TERMS(TRANSPOSED, 1), "convolution conv1d transposed")
    CONV("conv_transpose2d.input", TRANSPOSED, conv_transpose, LB_TERMS(TRANSPOSED, 1), "convolution conv2d transposed")
    CONV("conv_transpose3d.input", TRANSPOSED, conv_transpose, LB_TERMS(TRANSPOSED, 1), "convolution conv3d transposed")
    CONV("cudnn_convolution", "self! weight! padding stride dilation groups" FLAGS_, cudnn_conv,
         LB_TERMS(KERNEL, 1), "convolution cudnn")
    CONV("cudnn_convolution_transpose", "self! weight! padding output_padding stride dilation groups" FLAGS_, cudnn_transpose,
         LB_TERMS(TRANSPOSED, 1), "convolution cudnn transposed")
    CONV("cudnn_convolution_relu", "self! weight! bias stride padding dilation groups", cudnn_relu,
         LB_TERMS(KERNEL, 1), "convolution cudnn relu")
    CONV("miopen_convolution", "self! weight! bias padding stride dilation groups benchmark deterministic", miopen_conv,
         LB_TERMS(KERNEL, 1), "convolution miopen")
    CONV("mkldnn_convolution", "self! weight! bias padding stride dilation groups", miopen_conv,
         LB_TERMS(KERNEL, 1), "convolution mkldnn")
    CONV("_slow_conv2d_forward", "self! weight! kernel_size bias stride padding", thnn_conv, LB_TERMS(KERNEL, 1), "convolution thnn")
    CONV("thnn_conv2d", "self! weight! kernel_size bias stride padding", thnn_conv, LB_TERMS(KERNEL, 1), "convolution thnn")
    CONV("slow_conv3d_forward", "self! weight! kernel_size bias stride padding", thnn_conv,
         LB_TERMS(KERNEL, 1), "convolution thnn conv3d")
    CONV("slow_conv_dilated2d", "self! weight! kernel_size bias stride padding dilation", dilated_conv,
         LB_TERMS(KERNEL, 1), "convolution thnn dilated")
    CONV("_conv_depthwise2d", "self! weight! kernel_size bias stride padding dilation", depthwise_conv,
         LB_TERMS(KERNEL, 1), "convolution depthwise")
    CONV("conv_depthwise3d", "self! weight! kernel_size bias stride padding dilation", depthwise_conv,
         LB_TERMS(KERNEL, 1), "convolution depthwise conv3d")
    CONV("miopen_convolution_relu", "self! weight! bias stride padding dilation groups", cudnn_relu,
         LB_TERMS(KERNEL, 1), "convolution cudnn relu")
    CONV("miopen_convolution_transpose", "self! weight! bias padding output_padding stride dilation groups benchmark deterministic",
         miopen_transpose, LB_TERMS(TRANSPOSED, 1), "convolution miopen transposed")
    CONV("miopen_depthwise_convolution", "self! weight! bias padding stride dilation groups benchmark deterministic", miopen_conv,
         LB_TERMS(KERNEL, 1), "convolution miopen")
    ROW("cudnn_convolution_add_relu", "self! weight! z! alpha bias stride padding dilation groups", convolution_add_relu, 4,
        LB_ROW_REDUCTION, "openblas", LB_TERMS(KERNEL, 1), "convolution cudnn added")
    ROW("miopen_convolution_add_relu", "self! weight! z! alpha bias stride padding dilation groups", convolution_add_relu, 4,
        LB_ROW_REDUCTION, "openblas", LB_TERMS(KERNEL, 1), "convolution cudnn added")
    {.name = "aten::one_hot", .args = "self! num_classes", .kernel = one_hot, .flags = LB_ROW_EXACT | LB_ROW_DISCONTINUOUS,
     .samples = "one_hot"},
    COPIED("reshape", "self! shape", "reshape")
    COPIED("reshape_as", "self! other!", "reshape as")
    COPIED("contiguous", "self! memory_format", "contiguous")
    COPIED("ravel", "self!", "contiguous plain")
    COPIED("flatten.using_ints", "self! start_dim end_dim", "flatten")
    COPIED("to.dtype", "self! dtype " CAST, "to dtype")
    COPIED("to.device", "self! device dtype " CAST, "to device")
    COPIED("to.dtype_layout", "self! dtype layout device pin_memory " CAST, "to layout")
    COPIED("to.other", "self! other! " CAST, "to other")
    COPIED("type_as", "self! other!", "to as")
    {NULL}
};
