/* Quantisers of serving stacks: a tensor becomes fp8 or int8 with scales per tensor, row, channel or group.
 *
 * q = clamp(x / s) or clamp(x (1 / s)), which some kernels prefer, with s given or from the largest magnitude. All is
 * evaluated as the kernels do it, in f32 (f64 in a shadow, where q of fp8 stays wide), so that bits agree but where
 * versions multiply with 1/448 instead of dividing. A NaN becomes the largest value of fp8, as fmin and fmax leave it.
 * int8 is rounded to the nearest even one, or, in groups, towards zero, and may have a zero point, which is added to
 * it.
 *
 *      _C::          vllm-project/vllm csrc/torch_bindings.cpp, csrc/libtorch_stable/torch_bindings.cpp,
 *                    csrc/quantization/w8a8/fp8/common.{cu,cuh}, per_token_group_quant.cu, w8a8/int8/scaled_quant.cu
 *      sgl_kernel::  sgl-project/sglang sgl-kernel/csrc/common_extension.cc,
 *                    sgl-kernel/csrc/gemm/per_tensor_quant_fp8.cu, per_token_quant_fp8.cu,
 *                    per_token_group_quant_8bit.cu
 *
 * Schemas of sgl_kernel do not say that q and s are written: capture/lastbit/torch/dispatch.py does.
 */
#include "kernel/frame.h"

#include <math.h>
#include <stdint.h>

#define E4M3_MAX 448.0
/* vLLM: the smallest scale of a row, 1 / (448 * 512). Source: csrc/quantization/utils.cuh. */
#define LEAST_ROW_SCALE (1.0 / (E4M3_MAX * 512.0))

typedef struct quantisation {
    lb_frame frame;
    const lb_tensor *in;
    const void *x;
    void *q, *s;
    int64_t *integers; /* in place of q */
    int64_t n, size;   /* elements; of the last dimension */
    double most;
} quantisation;

static double rounded(const quantisation *quantisation, double value)
{
    return quantisation->frame.wide ? value : (float)value;
}

/* Result 0 is q, result 1 its scales; `scales` of them, or 0: they are an argument. */
static bool begin(quantisation *begun, lb_call *call, uint32_t x, int64_t scales)
{
    *begun = (quantisation){.frame = lb_frame_begin(call), .in = lb_frame_arg_tensor(call, x), .most = E4M3_MAX};
    const lb_dtype to = call->results[0].dtype;
    if (!begun->in ||
        (to != LB_E4M3FN && to != LB_I8 && to != LB_F32 && to != LB_F64 && to != LB_BF16 && to != LB_F16)) {
        lb_frame_fail(&begun->frame, LB_ERR_UNSUPPORTED, "a result that is neither e4m3fn nor int8");
        return false;
    }
    const lb_layout *layout = &begun->in->layout;
    begun->n = lb_tensor_numel(begun->in), begun->size = layout->ndim ? layout->shape[layout->ndim - 1] : 1;
    if (scales && (call->n_results < 2 || lb_tensor_numel(&call->results[1]) != scales ||
                   lb_dtype_is_integer(call->results[1].dtype)))
        lb_frame_fail(&begun->frame, LB_ERR_UNSUPPORTED, "scales that are packed, or of another number");
    begun->x = lb_frame_tensor(&begun->frame, begun->in);
    if (to == LB_I8)
        begun->integers = lb_frame_output_integers(&begun->frame, 0, begun->n);
    else
        begun->q = lb_frame_output(&begun->frame, 0, begun->n);
    begun->s = scales ? lb_frame_output(&begun->frame, 1, scales) : NULL;
    return lb_frame_ok(&begun->frame);
}

static double largest(const quantisation *quantisation, int64_t first, int64_t count)
{
    double most = 0;
    for (int64_t i = first; i < first + count; i++)
        most = fmax(most, fabs(lb_frame_get(&quantisation->frame, quantisation->x, i)));
    return most;
}

static void quantise(const quantisation *quantisation, int64_t i, double scale, double least, double most,
                     bool inverted)
{
    const double x = lb_frame_get(&quantisation->frame, quantisation->x, i);
    const double y =
        inverted ? rounded(quantisation, x * rounded(quantisation, 1 / scale)) : rounded(quantisation, x / scale);
    const double q = fmax(least, fmin(y, most));
    if (quantisation->integers)
        quantisation->integers[i] = (int64_t)q;
    else
        lb_frame_set(&quantisation->frame, quantisation->q, i, q);
}

/* result, input, scale, group_shape: one scale, one per channel or row, or (rows / m, columns / n) of them. */
static lb_status static_fp8(lb_call *call)
{
    quantisation quantisation;
    if (!begin(&quantisation, call, 1, 0)) return lb_frame_end(&quantisation.frame);
    const lb_tensor *scales = lb_frame_arg_tensor(call, 2);
    const lb_layout *layout = &scales->layout;
    int64_t shape[2] = {0, 0}, down = 1, across = lb_tensor_numel(scales);
    const int64_t rows = quantisation.size ? quantisation.n / quantisation.size : 0;
    const bool by_row = lb_frame_arg_ints(call, 3, shape, 2) == 2 && shape[0] == 1 && shape[1] != 1;
    if (layout->ndim == 2)
        down = layout->shape[0], across = layout->shape[1];
    else if (by_row)
        down = across, across = 1;
    if (down < 1 || across < 1 || rows % down || quantisation.size % across)
        lb_frame_fail(&quantisation.frame, LB_ERR_UNSUPPORTED,
                      "scales whose number does not divide the input's rows and columns");
    const void *s = lb_frame_tensor(&quantisation.frame, scales);
    for (int64_t i = 0; lb_frame_ok(&quantisation.frame) && i < quantisation.n; i++) {
        const int64_t row = i / quantisation.size * down / rows,
                      column = i % quantisation.size * across / quantisation.size;
        quantise(&quantisation, i, lb_frame_get(&quantisation.frame, s, row * across + column), -quantisation.most,
                 quantisation.most, true);
    }
    return lb_frame_end(&quantisation.frame);
}

/* One scale for all: what `given` holds, else largest / 448. */
static lb_status whole(lb_call *call, uint32_t x, const lb_tensor *given)
{
    quantisation quantisation;
    if (!begin(&quantisation, call, x, 1)) return lb_frame_end(&quantisation.frame);
    if (given && !lb_tensor_numel(given))
        lb_frame_fail(&quantisation.frame, LB_ERR_UNSUPPORTED, "a scale without elements");
    const void *s = lb_frame_tensor(&quantisation.frame, given);
    if (!lb_frame_ok(&quantisation.frame)) return lb_frame_end(&quantisation.frame);
    const double scale = s ? lb_frame_get(&quantisation.frame, s, 0)
                           : rounded(&quantisation, largest(&quantisation, 0, quantisation.n) / quantisation.most);
    lb_frame_set(&quantisation.frame, quantisation.s, 0, scale);
    for (int64_t i = 0; i < quantisation.n; i++)
        quantise(&quantisation, i, scale, -quantisation.most, quantisation.most, true);
    return lb_frame_end(&quantisation.frame);
}

/* result, input, scale. */
static lb_status dynamic_fp8(lb_call *call)
{
    return whole(call, 1, NULL);
}
/* input, output_q, output_s, is_static. */
static lb_status sgl_tensor(lb_call *call)
{
    return whole(call, 0, lb_frame_arg_int(call, 3, 0) ? lb_frame_arg_tensor(call, 2) : NULL);
}

/* result, input, scale, scale_ub: x / s by rows. */
static lb_status dynamic_row_fp8(lb_call *call)
{
    quantisation quantisation;
    const lb_tensor *in = lb_frame_arg_tensor(call, 1), *bound = lb_frame_arg_tensor(call, 3);
    const int64_t size = in && in->layout.ndim ? in->layout.shape[in->layout.ndim - 1] : 1;
    if (!begin(&quantisation, call, 1, size && in ? lb_tensor_numel(in) / size : 0))
        return lb_frame_end(&quantisation.frame);
    if (bound && !lb_tensor_numel(bound))
        lb_frame_fail(&quantisation.frame, LB_ERR_UNSUPPORTED, "a bound without elements");
    const void *upper = lb_frame_tensor(&quantisation.frame, bound);
    for (int64_t i = 0; lb_frame_ok(&quantisation.frame) && i < quantisation.n; i += quantisation.size) {
        double most = largest(&quantisation, i, quantisation.size);
        if (upper) most = fmin(most, lb_frame_get(&quantisation.frame, upper, 0));
        const double scale =
            fmax(rounded(&quantisation, most / quantisation.most), rounded(&quantisation, LEAST_ROW_SCALE));
        lb_frame_set(&quantisation.frame, quantisation.s, i / quantisation.size, scale);
        for (int64_t k = i; k < i + quantisation.size; k++)
            quantise(&quantisation, k, scale, -quantisation.most, quantisation.most, false);
    }
    return lb_frame_end(&quantisation.frame);
}

/* input, output_q, output_s: x (1 / s) by rows. */
static lb_status sgl_row(lb_call *call)
{
    quantisation quantisation;
    const lb_tensor *in = lb_frame_arg_tensor(call, 0);
    const int64_t size = in && in->layout.ndim ? in->layout.shape[in->layout.ndim - 1] : 1;
    if (!begin(&quantisation, call, 0, size && in ? lb_tensor_numel(in) / size : 0))
        return lb_frame_end(&quantisation.frame);
    for (int64_t i = 0; lb_frame_ok(&quantisation.frame) && i < quantisation.n; i += quantisation.size) {
        const double scale = rounded(&quantisation, largest(&quantisation, i, quantisation.size) / quantisation.most);
        if (scale == 0)
            lb_frame_fail(&quantisation.frame, LB_ERR_UNSUPPORTED,
                          "a row of zeros, which the kernels for few and for many tokens take for different things");
        lb_frame_set(&quantisation.frame, quantisation.s, i / quantisation.size, scale);
        for (int64_t k = i; k < i + quantisation.size; k++)
            quantise(&quantisation, k, scale, -quantisation.most, quantisation.most, true);
    }
    return lb_frame_end(&quantisation.frame);
}

/* The smallest power of two that is not below `scale`. */
static double power_above(double scale)
{
    int exponent;
    const double fraction = frexp(fmax(scale, 1e-10), &exponent);
    return ldexp(1, fraction == 0.5 ? exponent - 1 : exponent);
}

/* input, output_q, output_s, group_size, eps, min, max, scale_ue8m0: groups of neighbours in a row. */
static lb_status group_quant(lb_call *call)
{
    quantisation quantisation;
    const lb_tensor *in = lb_frame_arg_tensor(call, 0);
    const int64_t group = lb_frame_arg_int(call, 3, 128), n = in ? lb_tensor_numel(in) : 0;
    if (!begin(&quantisation, call, 0, group > 0 ? n / group : 0)) return lb_frame_end(&quantisation.frame);
    if (group < 1 || quantisation.size % group)
        lb_frame_fail(&quantisation.frame, LB_ERR_UNSUPPORTED, "groups that do not divide a row");
    const double least = lb_frame_arg_float(call, 5, -quantisation.most),
                 most = lb_frame_arg_float(call, 6, quantisation.most);
    const bool power = lb_frame_arg_int(call, 7, 0) != 0;
    if (quantisation.integers && !(least >= INT8_MIN && most <= INT8_MAX))
        lb_frame_fail(&quantisation.frame, LB_ERR_UNSUPPORTED, "limits that int8 does not hold");
    for (int64_t i = 0; lb_frame_ok(&quantisation.frame) && i < quantisation.n; i += group) {
        const double magnitude =
            fmax(largest(&quantisation, i, group), rounded(&quantisation, lb_frame_arg_float(call, 4, 1e-10)));
        double scale = rounded(&quantisation, magnitude / most);
        if (power) scale = power_above(scale);
        lb_frame_set(&quantisation.frame, quantisation.s, i / group, scale);
        for (int64_t k = i; k < i + group; k++) quantise(&quantisation, k, scale, least, most, false);
    }
    return lb_frame_end(&quantisation.frame);
}

/* ---- int8 -------------------------------------------------------------------------------------------------------- */

#define I8_MOST 127.0

static int64_t saturated(double x, double least, double most)
{
    return isnan(x) ? 0 : (int64_t)fmax(least, fmin(x, most));
}

/* To the nearest even integer, then the zero point, where there is one. */
static void round_to_i8(const quantisation *quantisation, int64_t i, double y, const int64_t *zero)
{
    const int64_t q = saturated(rint(y), INT32_MIN, INT32_MAX);
    quantisation->integers[i] = saturated((double)(q + (zero ? *zero : 0)), -I8_MOST - 1, I8_MOST);
}

static bool begin_i8(quantisation *quantisation, lb_call *call, int64_t scales)
{
    if (!begin(quantisation, call, 1, scales)) return false;
    if (!quantisation->integers) lb_frame_fail(&quantisation->frame, LB_ERR_UNSUPPORTED, "a result that is not int8");
    return lb_frame_ok(&quantisation->frame);
}

/* result, input, scale, azp: one scale, one zero point. */
static lb_status static_i8(lb_call *call)
{
    quantisation quantisation;
    if (!begin_i8(&quantisation, call, 0)) return lb_frame_end(&quantisation.frame);
    const lb_tensor *scales = lb_frame_arg_tensor(call, 2), *zeros = lb_frame_arg_tensor(call, 3);
    if (lb_tensor_numel(scales) != 1 || (zeros && lb_tensor_numel(zeros) != 1))
        lb_frame_fail(&quantisation.frame, LB_ERR_UNSUPPORTED, "more than one scale, or more than one zero point");
    const void *s = lb_frame_tensor(&quantisation.frame, scales);
    const int64_t *zero = lb_frame_integers(&quantisation.frame, zeros);
    for (int64_t i = 0; lb_frame_ok(&quantisation.frame) && i < quantisation.n; i++) {
        const double x = lb_frame_get(&quantisation.frame, quantisation.x, i),
                     scale = lb_frame_get(&quantisation.frame, s, 0);
        round_to_i8(&quantisation, i,
                    zero ? rounded(&quantisation, x * rounded(&quantisation, 1 / scale))
                         : rounded(&quantisation, x / scale),
                    zero);
    }
    return lb_frame_end(&quantisation.frame);
}

/* From the row's least and largest number: its scale and its zero point. */
static double zero_point(const quantisation *quantisation, int64_t first, int64_t *zero)
{
    double least = INFINITY, most = -INFINITY;
    for (int64_t k = first; k < first + quantisation->size; k++) {
        least = fmin(least, lb_frame_get(&quantisation->frame, quantisation->x, k));
        most = fmax(most, lb_frame_get(&quantisation->frame, quantisation->x, k));
    }
    const double scale = rounded(quantisation, rounded(quantisation, most - least) / 255);
    *zero = saturated(rint(rounded(quantisation, -128 - rounded(quantisation, least / scale))), INT32_MIN, INT32_MAX);
    return scale;
}

/* result, input, scale, azp: by rows. */
static lb_status dynamic_i8(lb_call *call)
{
    quantisation quantisation;
    const lb_tensor *in = lb_frame_arg_tensor(call, 1);
    const int64_t size = in && in->layout.ndim ? in->layout.shape[in->layout.ndim - 1] : 1,
                  rows = size && in ? lb_tensor_numel(in) / size : 0;
    if (!begin_i8(&quantisation, call, rows)) return lb_frame_end(&quantisation.frame);
    int64_t *zeros = lb_frame_arg_given(call, 3) ? lb_frame_output_integers(&quantisation.frame, 2, rows) : NULL;
    for (int64_t row = 0; lb_frame_ok(&quantisation.frame) && row < rows; row++) {
        const double most = zeros ? 0 : largest(&quantisation, row * size, size);
        const double scale =
            zeros ? zero_point(&quantisation, row * size, &zeros[row]) : rounded(&quantisation, most / I8_MOST);
        const double factor = zeros       ? rounded(&quantisation, 1 / scale)
                              : most == 0 ? 0
                                          : rounded(&quantisation, I8_MOST / most);
        lb_frame_set(&quantisation.frame, quantisation.s, row, scale);
        for (int64_t k = row * size; k < (row + 1) * size; k++)
            round_to_i8(&quantisation, k,
                        rounded(&quantisation, lb_frame_get(&quantisation.frame, quantisation.x, k) * factor),
                        zeros ? &zeros[row] : NULL);
    }
    return lb_frame_end(&quantisation.frame);
}

/* Scales by 1/448 instead of a division, or a factor instead of a quotient: a few roundings of f32. */
#define ROW(NAME, ARGS, KERNEL)                                                                                        \
    {.name = NAME, .args = ARGS, .kernel = KERNEL, .roundings = 6, .flags = LB_ROW_WRITES, .samples = "custom"},
#define GROUP "group_size eps fp8_min fp8_max scale_ue8m0"
const lb_op_row lb_rows_quantise[] = {
    ROW("_C::static_scaled_fp8_quant", "result input! scale! group_shape",
        static_fp8) ROW("_C::dynamic_scaled_fp8_quant", "result input! scale", dynamic_fp8)
        ROW("_C::dynamic_per_token_scaled_fp8_quant", "result input! scale scale_ub", dynamic_row_fp8)
            ROW("_C::per_token_group_fp8_quant",
                "input! output_q output_s " GROUP " dummy_is_scale_transposed dummy_is_tma_aligned", group_quant)
                ROW("_C::per_token_group_quant_int8", "input! output_q output_s group_size eps int8_min int8_max",
                    group_quant) ROW("_C::static_scaled_int8_quant", "result input! scale! azp", static_i8)
                    ROW("_C::dynamic_scaled_int8_quant", "result input! scale azp",
                        dynamic_i8) ROW("sgl_kernel::sgl_per_token_group_quant_int8",
                                        "input! output_q output_s group_size eps int8_min int8_max", group_quant)
                        ROW("sgl_kernel::sgl_per_tensor_quant_fp8", "input! output_q output_s is_static", sgl_tensor)
                            ROW("sgl_kernel::sgl_per_token_quant_fp8", "input! output_q output_s", sgl_row)
                                ROW("sgl_kernel::sgl_per_token_group_quant_fp8", "input! output_q output_s " GROUP,
                                    group_quant) ROW("sgl_kernel::sgl_per_token_group_quant_8bit",
                                                     "input! output_q output_s " GROUP, group_quant){NULL},
};
