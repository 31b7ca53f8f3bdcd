/* Creation and copies: filling, casting, ranges. All bit-equal: the only rounding is the cast to the result's dtype. */
#include "kernel/complex_rows.h"
#include "kernel/frame.h"
#include "kernel/pointwise.h"

#include <lastbit/statistics.h>

#include <math.h>

/* A cast to e4m3fn of a number beyond its range gives NaN in torch before 2.13, ±448 since then
 * (c10/util/Float8_e4m3fn.h, fp8e4m3fn_from_fp32_value), on every device. Where the recorded result has other NaNs than
 * that rule gives, the other rule is tried: both are right, and a number below 464, which rounds to 448, is neither's.
 * It is taken where it gives as many NaNs as were recorded: in a trial, whose numbers are others, what was recorded
 * says nothing. */
static lb_status copy_of(lb_call *call, const lb_tensor *source)
{
    lb_tensor *result = &call->results[0];
    lb_cast cast = LB_CAST_INIT;
    lb_call inner = *call;
    const bool casts = result->data && result->dtype == LB_E4M3FN && source->dtype != LB_E4M3FN && !call->method.cast;
    if (!casts) return lb_pointwise_copy(call, result, source);
    const lb_overflow rules[] = {LB_OVERFLOW_TORCH, LB_OVERFLOW_IEEE};
    const int first = call->e4m3_nan;
    inner.method.cast = &cast;
    for (int tried = 0; tried < 2; tried++) {
        cast.overflow = rules[tried ? !first : first];
        LB_TRY(lb_pointwise_copy(&inner, result, source));
        if (!call->branch || !call->branch[0].data || call->branch[0].dtype != LB_E4M3FN) return LB_OK;
        if (lb_statistics_of(&call->branch[0]).nan == lb_statistics_of(result).nan) return LB_OK;
    }
    cast.overflow = rules[first];
    return lb_pointwise_copy(&inner, result, source);
}

/* copy(self, src, …): the result has self's shape; src broadcasts to it. */
static lb_status copy(lb_call *call)
{
    return copy_of(call, &call->args[1].tensor);
}

static lb_status copy_self(lb_call *call)
{
    if (call->args[0].tag != LB_OPERAND_TENSOR)
        return lb_fail(call->err, LB_ERR_INVALID, "%s: self is not a tensor", call->row->name);
    return copy_of(call, &call->args[0].tensor);
}

static lb_status fill_number(lb_call *call, int64_t number)
{
    const lb_operand value = {.tag = LB_OPERAND_INT, .i = number, .f = (double)number};
    return lb_pointwise_fill(call, &call->results[0], &value);
}
static lb_status fill_zero(lb_call *call)
{
    return fill_number(call, 0);
}
static lb_status fill_one(lb_call *call)
{
    return fill_number(call, 1);
}
static lb_status fill_first(lb_call *call)
{
    return lb_pointwise_fill(call, &call->results[0], &call->args[0]);
}
static lb_status fill_second(lb_call *call)
{
    return lb_pointwise_fill(call, &call->results[0], &call->args[1]);
}
static lb_status fill_third(lb_call *call)
{
    return lb_pointwise_fill(call, &call->results[0], &call->args[2]);
}

/* A dense row of `n` numbers made by `at(i)` in f64 or i64, stored into a 1-dim result. */
#define SERIES_CHUNK 512

static lb_status arange_from(lb_call *call, const lb_operand *start, const lb_operand *step)
{
    const lb_tensor *result = &call->results[0];
    if (!result->data) return LB_OK;
    if (result->layout.ndim != 1)
        return lb_fail(call->err, LB_ERR_INVALID, "%s: the result has no one dimension", call->row->name);
    const int64_t n = result->layout.shape[0], stride = result->layout.stride[0];
    const size_t element = lb_dtype_bits(result->dtype) / 8;
    const bool integers = lb_dtype_is_integer(result->dtype);
    const double first = start ? start->f : 0, by = step ? step->f : 1;
    const int64_t first_i = start ? start->i : 0, by_i = step ? step->i : 1;
    for (int64_t at = 0; at < n; at += SERIES_CHUNK) {
        const size_t count = (size_t)(n - at < SERIES_CHUNK ? n - at : SERIES_CHUNK);
        char *to = (char *)result->data + at * stride * (int64_t)element;
        double floats[SERIES_CHUNK];
        int64_t ints[SERIES_CHUNK];
        for (size_t k = 0; k < count; k++) {
            if (integers)
                ints[k] = LB_WADD(first_i, LB_WMUL(by_i, at + (int64_t)k));
            else
                floats[k] = first + by * (double)(at + (int64_t)k);
        }
        if (integers)
            lb_convert_strided(result->dtype, to, stride, LB_I64, ints, 1, count, call->method.cast);
        else
            lb_store_f64_strided(result->dtype, to, stride, floats, count, call->method.cast);
    }
    return LB_OK;
}
static const lb_operand *given(const lb_call *call, uint32_t k)
{
    return k < call->n_args && call->args[k].tag != LB_OPERAND_NONE ? &call->args[k] : NULL;
}
/* The twin: |start| + |step| i. */
static lb_status range(lb_call *call, const lb_operand *start, const lb_operand *step, bool twin)
{
    const lb_operand first = {.tag = LB_OPERAND_FLOAT, .f = start ? fabs(start->f) : 0};
    const lb_operand by = {.tag = LB_OPERAND_FLOAT, .f = step ? fabs(step->f) : 1};
    return twin ? arange_from(call, &first, &by) : arange_from(call, start, step);
}
LB_WITH_TWIN(arange, range(call, NULL, NULL, twin))
LB_WITH_TWIN(arange_start, range(call, given(call, 0), NULL, twin))
LB_WITH_TWIN(arange_start_step, range(call, given(call, 0), given(call, 2), twin))

static lb_status eye(lb_call *call)
{
    LB_TRY(fill_zero(call));
    lb_tensor diagonal = call->results[0];
    if (!diagonal.data) return LB_OK;
    const int64_t *shape = diagonal.layout.shape, *stride = diagonal.layout.stride;
    if (diagonal.layout.ndim != 2)
        return lb_fail(call->err, LB_ERR_INVALID, "%s: the result is not a matrix", call->row->name);
    const int64_t n = shape[0] < shape[1] ? shape[0] : shape[1], step = stride[0] + stride[1];
    diagonal.layout.ndim = 1;
    diagonal.layout.shape[0] = n;
    diagonal.layout.stride[0] = step;
    const lb_operand one = {.tag = LB_OPERAND_INT, .i = 1, .f = 1};
    return n > 0 ? lb_pointwise_fill(call, &diagonal, &one) : LB_OK;
}

/* Args: start, end, steps, dtype, …: from the start in the first half, from the end in the other, as torch has it. In
 * 16 bits torch rounds the step to that dtype; of integers, which are truncated, no bound holds. */
static lb_status linspace_run(lb_call *call, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    const lb_dtype dtype = (lb_dtype)lb_frame_arg_int(call, 3, LB_F32);
    if (!lb_dtype_is_float(dtype))
        lb_frame_fail(&frame, LB_ERR_UNSUPPORTED, "a dtype that is not a floating-point type");
    const int64_t n = call->results[0].data ? lb_tensor_numel(&call->results[0]) : 0;
    const double start = lb_frame_arg_float(call, 0, 0), end = lb_frame_arg_float(call, 1, 0),
                 step = n > 1 ? (end - start) / (double)(n - 1) : 0,
                 coarse = dtype == LB_BF16  ? 0x1p16
                          : dtype == LB_F16 ? 0x1p13
                                            : 0;
    void *y = lb_frame_output(&frame, 0, n);
    for (int64_t i = 0; lb_frame_ok(&frame) && i < n; i++) {
        const double value = i < n / 2 || n == 1 ? start + step * (double)i : end - step * (double)(n - 1 - i);
        lb_frame_set(&frame, y, i, twin ? (fabs(start) + fabs(end)) * (1 + coarse) : value);
    }
    return lb_frame_end(&frame);
}
LB_WITH_TWIN(linspace, linspace_run(call, twin))

/* Args: row, col, offset. Row and column of each element of a triangle, row by row. */
static lb_status triangle_indices(lb_call *call, bool upper)
{
    const int64_t rows = lb_frame_arg_int(call, 0, 0), columns = lb_frame_arg_int(call, 1, 0),
                  offset = lb_frame_arg_int(call, 2, 0);
    const lb_layout *out = &call->results[0].layout;
    lb_frame frame = lb_frame_begin(call);
    const int64_t n = out->ndim == 2 ? out->shape[1] : 0;
    int64_t *y = lb_frame_output_integers(&frame, 0, 2 * n), k = 0;
    for (int64_t i = 0; lb_frame_ok(&frame) && i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            if (upper ? j < i + offset : j > i + offset) continue;
            if (k < n) y[k] = i, y[n + k] = j;
            k++;
        }
    if (k != n) lb_frame_fail(&frame, LB_ERR_INVALID, "a recorded result has another number of elements");
    return lb_frame_end(&frame);
}
static lb_status tril_indices(lb_call *call)
{
    return triangle_indices(call, false);
}
static lb_status triu_indices(lb_call *call)
{
    return triangle_indices(call, true);
}

#define MADE(NAME, ARGS, KERNEL, SAMPLES)                                                                              \
    {.name = "aten::" NAME, .args = ARGS, .kernel = KERNEL, .flags = LB_ROW_EXACT, .samples = SAMPLES},
#define FILLED(NAME, ARGS, KERNEL, SAMPLES, WAY)                                                                       \
    {.name = "aten::" NAME, .args = ARGS, .kernel = KERNEL, .flags = LB_ROW_EXACT, .samples = SAMPLES, .complex = &WAY},
#define ZERO(NAME, ARGS, SAMPLES)                                                                                      \
    {.name = "aten::" NAME,                                                                                            \
     .args = ARGS,                                                                                                     \
     .kernel = fill_zero,                                                                                              \
     .flags = LB_ROW_EXACT | LB_ROW_ZERO,                                                                              \
     .samples = SAMPLES,                                                                                               \
     .complex = &lb_complex_moved},
/* torch steps within a vector in f32; integers are exact all the same. */
#define RANGE(NAME, ARGS, ID, SAMPLES)                                                                                 \
    {.name = "aten::" NAME, .args = ARGS, LB_COMPUTED_BY(ID), .roundings = 3, .samples = SAMPLES},
#define FILL(NAME, ARGS, KERNEL, SAMPLES, ...)                                                                         \
    {.name = "aten::" NAME,                                                                                            \
     .args = ARGS,                                                                                                     \
     .kernel = KERNEL,                                                                                                 \
     .flags = LB_ROW_EXACT | LB_ROW_ELEMENTWISE,                                                                       \
     .samples = SAMPLES,                                                                                               \
     __VA_ARGS__},
#define COPY(NAME, ARGS, KERNEL, SAMPLES)                                                                              \
    {.name = "aten::" NAME,                                                                                            \
     .args = ARGS,                                                                                                     \
     .kernel = KERNEL,                                                                                                 \
     .flags = LB_ROW_EXACT | LB_ROW_ELEMENTWISE | LB_ROW_CASTS,                                                        \
     .samples = SAMPLES,                                                                                               \
     .complex = &lb_complex_moved},
#define EMPTY(NAME, ARGS) {.name = "aten::" NAME, .args = ARGS, .flags = LB_ROW_UNDEFINED, .samples = "undefined"},
#define OPTIONS "dtype layout device pin_memory"

/* clang-format off */
const lb_op_row lb_rows_creation[] = {
    COPY("_to_copy", "self! " OPTIONS " non_blocking memory_format", copy_self, "cast")
    COPY("clone", "self! memory_format", copy_self, "unary")
    COPY("copy", "self! src! non_blocking", copy, "copy")
    COPY("lift_fresh_copy", "self!", copy_self, "unary")
    FILL("fill.Scalar", "self! value", fill_second, "fill", .complex = &lb_complex_second)
    FILL("fill.Tensor", "self! value!", fill_second, "fill tensor")
    COPY("zero", "self!", fill_zero, "unary")
    ZERO("zeros", "size " OPTIONS, "created")
    ZERO("zeros_like", "self! " OPTIONS " memory_format", "like")
    ZERO("new_zeros", "self! size " OPTIONS, "new")
    FILLED("ones", "size " OPTIONS, fill_one, "created", lb_complex_ones)
    FILLED("ones_like", "self! " OPTIONS " memory_format", fill_one, "like", lb_complex_ones)
    FILLED("new_ones", "self! size " OPTIONS, fill_one, "new", lb_complex_ones)
    FILLED("full", "size fill_value " OPTIONS, fill_second, "created value", lb_complex_second)
    FILLED("full_like", "self! fill_value " OPTIONS " memory_format", fill_second, "like value", lb_complex_second)
    MADE("new_full", "self! size fill_value " OPTIONS, fill_third, "new value")
    MADE("scalar_tensor", "s " OPTIONS, fill_first, "scalar_tensor")
    RANGE("arange", "end " OPTIONS, arange, "arange 1")
    RANGE("arange.start", "start end " OPTIONS, arange_start, "arange 2")
    RANGE("arange.start_step", "start end step " OPTIONS, arange_start_step, "arange 3")
    {.name = "aten::linspace", .args = "start end steps " OPTIONS, LB_COMPUTED_BY(linspace), .roundings = 8, .samples = "linspace"},
    {.name = "aten::tril_indices", .args = "row col offset " OPTIONS, .kernel = tril_indices,
     .flags = LB_ROW_EXACT | LB_ROW_DISCONTINUOUS, .samples = "triangle_indices"},
    {.name = "aten::triu_indices", .args = "row col offset " OPTIONS, .kernel = triu_indices,
     .flags = LB_ROW_EXACT | LB_ROW_DISCONTINUOUS, .samples = "triangle_indices"},
    MADE("eye", "n " OPTIONS, eye, "eye 1")
    MADE("eye.m", "n m " OPTIONS, eye, "eye 2")
    EMPTY("empty.memory_format", "size " OPTIONS " memory_format")
    EMPTY("empty_strided", "size stride " OPTIONS)
    EMPTY("empty_like", "self " OPTIONS " memory_format")
    EMPTY("new_empty", "self size " OPTIONS)
    EMPTY("new_empty_strided", "self size stride " OPTIONS)
    EMPTY("empty_permuted", "size physical_layout " OPTIONS)
    {NULL}
};
