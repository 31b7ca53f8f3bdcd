/* Sums and what is made of them: sum, mean, vector norms, variance, logsumexp, counts.
 *
 * The default order of sum and mean is torch's own (torch_sum.h); a swap's schedule runs over the reduced elements in
 * row-major order. Integers are exact in i64. Extremes and scans are in op_extremum.c and op_scan.c. */
#include "kernel/complex_rows.h"
#include "functions/elementary.h"
#include "kernel/fold.h"
#include "orders/torch_sum.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void fold_sum(lb_frame *frame, const lb_fold *fold, const void *x, void *out)
{
    const lb_method *method = &frame->call->method;
    if (frame->wide)
        lb_fold_sum_f64(fold, x, method->schedule, method->accumulate, out);
    else
        lb_fold_sum_f32(fold, x, method->schedule, method->accumulate, out);
}

/* Bools and integers, wrapping as torch's do. */
static lb_status sum_integers(lb_call *call, const lb_fold *fold)
{
    lb_frame frame = lb_frame_begin(call);
    const int64_t *x = lb_frame_integers(&frame, &fold->view);
    int64_t *y = lb_frame_output_integers(&frame, 0, fold->results);
    for (int64_t i = 0; lb_frame_ok(&frame) && i < fold->results; i++) {
        uint64_t sum = 0;
        const int64_t *from = x + i / fold->inner * fold->size * fold->inner + i % fold->inner;
        for (int64_t k = 0; k < fold->size; k++) sum += (uint64_t)from[k * fold->inner];
        y[i] = (int64_t)sum;
    }
    return lb_frame_end(&frame);
}

/* torch casts the input to the result's dtype before it adds; to f32 for the mean of 16-bit floats. */
static lb_dtype added_dtype(const lb_call *call, const lb_tensor *in, bool mean)
{
    lb_dtype out = call->results[0].dtype;
    if (mean && lb_dtype_bits(out) == 16) return LB_F32;
    return lb_dtype_bits(in->dtype) == 16 && in->dtype == out ? out : LB_F32;
}

static lb_status sum_reals(lb_call *call, const lb_fold *fold, bool mean, bool twin)
{
    const lb_tensor *in = lb_frame_arg_tensor(call, 0);
    lb_frame frame = lb_frame_begin(call);
    void *y = lb_frame_output(&frame, 0, fold->results);
    if (!frame.wide && !call->method.schedule && !twin && lb_dtype_bits(in->dtype) >= 8) {
        int64_t stride[LB_MAX_DIMS];
        lb_fold_strides(fold, in, &call->results[0], stride);
        const lb_torch_sum_way way = {.reduced = fold->reduced,
                                      .kept_stride = stride,
                                      .lanes = 8,
                                      .dtype = added_dtype(call, in, mean),
                                      .compute = call->method.compute,
                                      .accumulate = call->method.accumulate};
        if (y && lb_torch_sum(in, &way, y, call->err) != LB_OK) lb_frame_fail(&frame, LB_ERR_NOMEM, "sum");
    } else {
        const void *x = lb_frame_tensor(&frame, &fold->view);
        void *positive = twin ? lb_frame_reals(&frame, fold->results * fold->size) : NULL;
        if (lb_frame_ok(&frame) && twin) lb_frame_absolute(&frame, x, positive, fold->results * fold->size);
        if (lb_frame_ok(&frame)) fold_sum(&frame, fold, twin ? positive : x, y);
    }
    for (int64_t i = 0; mean && lb_frame_ok(&frame) && i < fold->results; i++) {
        if (frame.wide)
            ((double *)y)[i] /= (double)fold->size;
        else
            ((float *)y)[i] /= (float)fold->size;
    }
    return lb_frame_end(&frame);
}

static lb_status sum_over(lb_call *call, uint32_t dims_arg, bool mean, bool twin)
{
    const lb_tensor *in = lb_frame_arg_tensor(call, 0);
    lb_fold fold = lb_fold_of(in, lb_fold_dims(call, dims_arg, in->layout.ndim));
    if (lb_dtype_is_integer(call->results[0].dtype)) return sum_integers(call, &fold);
    return sum_reals(call, &fold, mean, twin);
}

#define NO_DIMS 99 /* no such arg: all dimensions */
LB_WITH_TWIN(sum, sum_over(call, NO_DIMS, false, twin))
LB_WITH_TWIN(sum_dim, sum_over(call, 1, false, twin))
LB_WITH_TWIN(mean, sum_over(call, NO_DIMS, true, twin))
LB_WITH_TWIN(mean_dim, sum_over(call, 1, true, twin))

/* The input with 0 for NaN, under the same strides: torch adds up in an order that depends on them. */
static lb_status without_nan(lb_call *call, const lb_tensor *in, lb_tensor *clean)
{
    const int64_t n = lb_tensor_numel(in);
    const size_t size = lb_dtype_bits(in->dtype) / 8;
    int64_t last = 0, index[LB_MAX_DIMS] = {0}, at = 0;
    for (int d = 0; d < in->layout.ndim; d++)
        last += in->layout.stride[d] * (in->layout.shape[d] > 0 ? in->layout.shape[d] - 1 : 0);
    *clean = *in;
    clean->data = calloc((size_t)last + 1, size ? size : 1);
    if (!clean->data) return lb_fail(call->err, LB_ERR_NOMEM, "nansum: %lld elements", (long long)last + 1);
    for (int64_t i = 0; i < n; i++) {
        const char *from = (const char *)in->data + at * (int64_t)size;
        if (!lb_dtype_is_float(in->dtype) || !isnan(lb_to_f64(in->dtype, from)))
            memcpy((char *)clean->data + at * (int64_t)size, from, size);
        for (int d = in->layout.ndim - 1; d >= 0; d--) {
            at += in->layout.stride[d];
            if (++index[d] < in->layout.shape[d]) break;
            at -= in->layout.stride[d] * in->layout.shape[d];
            index[d] = 0;
        }
    }
    return LB_OK;
}

/* nansum(self dim keepdim dtype): the sum of what is a number, in the order of `sum`. */
static lb_status nansum_run(lb_call *call, bool twin)
{
    lb_operand args[2] = {{.tag = LB_OPERAND_TENSOR}, {.tag = LB_OPERAND_NONE}};
    if (call->n_args > 1) args[1] = call->args[1];
    const lb_tensor *in = lb_frame_arg_tensor(call, 0);
    if (lb_dtype_is_complex(in->dtype) || lb_dtype_bits(in->dtype) < 8)
        return lb_fail(call->err, LB_ERR_UNSUPPORTED, "nansum of dtype %s", lb_dtype_name(in->dtype));
    LB_TRY(without_nan(call, in, &args[0].tensor));
    lb_call inner = *call;
    inner.args = args;
    inner.n_args = 2;
    const lb_status status = sum_over(&inner, 1, false, twin);
    const double scale = twin ? lb_frame_twin_scale(call, 0)
                              : 1; /* 16-bit partial sums go through the result where several dimensions are summed */
    for (int64_t i = 0, n = lb_tensor_numel(&call->results[0]); scale > 1 && status == LB_OK && i < n; i++)
        ((double *)call->results[0].data)[i] *= scale;
    free(args[0].tensor.data);
    return status;
}
LB_WITH_TWIN(nansum, nansum_run(call, twin))

/* ---- norms ------------------------------------------------------------------------------------------------------- */

/* |x|^p, or x != 0 for p = 0 */
static double power(double x, double power)
{
    x = fabs(x);
    if (power == 0) return x != 0;
    if (power == 1) return x;
    if (power == 2) return x * x;
    double y;
    lb_pow_f64(&y, &x, &power, 1);
    return y;
}

static double extreme(double a, double b, bool largest)
{
    if (isnan(a) || isnan(b)) return NAN;
    return largest ? (a > b ? a : b) : (a < b ? a : b);
}

/* torch adds the squares of dense rows as eight lanes and then the lanes, whatever the number of threads; everything
 * else one after the other (any p other than 0, 1, 2 and infinity goes through pow). */
static const lb_schedule norm_of_rows = {LB_SCHEDULE_LANES, 8, 0}, norm_order = {LB_SCHEDULE_SEQUENTIAL, 0, 0};
enum { GRAIN = 32768 };

/* One number of more terms than the grain: a piece per thread, each one after the other, and then the pieces. Read from
 * torch's ReduceOpsKernel.cpp (`norm_kernel_tensor_iterator_impl`) and Reduce.h (`binary_kernel_reduce`). */
static float sum_of_pieces(const float *terms, int64_t n, int64_t threads, lb_dtype accumulate)
{
    const int64_t used = (n + GRAIN - 1) / GRAIN < threads ? (n + GRAIN - 1) / GRAIN : threads,
                  size = (n + used - 1) / used;
    float parts[LB_SCHEDULE_MAX_SIZE];
    int64_t count = 0;
    for (int64_t at = 0; at < n; at += size)
        parts[count++] = lb_schedule_sum_f32(&norm_order, terms + at, n - at < size ? n - at : size, accumulate);
    return lb_schedule_sum_f32(&norm_order, parts, count, accumulate);
}

/* All elements of a tensor lie side by side, in whatever order of the dimensions. */
static bool is_dense(const lb_tensor *tensor)
{
    int64_t first, last;
    return lb_layout_is_contiguous(&tensor->layout) ||
           (lb_layout_dense_range(&tensor->layout, &first, &last, NULL) == LB_OK &&
            last - first == lb_tensor_numel(tensor));
}

/* p = inf or -inf: the largest or the smallest magnitude. */
static void norm_of_extremes(const lb_frame *frame, const lb_fold *fold, const void *x, bool largest, void *y)
{
    for (int64_t i = 0; i < fold->results; i++) {
        double best = largest ? 0 : INFINITY;
        int64_t from = i / fold->inner * fold->size * fold->inner + i % fold->inner;
        for (int64_t k = 0; k < fold->size; k++, from += fold->inner)
            best = extreme(best, fabs(frame->wide ? ((const double *)x)[from] : ((const float *)x)[from]), largest);
        if (frame->wide)
            ((double *)y)[i] = best;
        else
            ((float *)y)[i] = (float)best;
    }
}

/* |x|^p of each element. */
static void put_powers(const lb_frame *frame, const void *x, int64_t n, double p, void *terms)
{
    const double *x64 = x;
    const float *x32 = x;
    const bool squares = frame->wide && p == 2;
    for (int64_t i = 0; i < n && squares; i++) ((double *)terms)[i] = x64[i] * x64[i];
    for (int64_t i = 0; i < n && !squares; i++) {
        if (frame->wide)
            ((double *)terms)[i] = power(x64[i], p);
        else
            ((float *)terms)[i] = (float)power(x32[i], p);
    }
}

static void take_roots(const lb_frame *frame, void *y, int64_t n, double power)
{
    for (int64_t i = 0; i < n; i++) {
        double sum = frame->wide ? ((double *)y)[i] : ((float *)y)[i], root = sqrt(sum), inverse = 1 / power;
        if (power != 2) lb_pow_f64(&root, &sum, &inverse, 1);
        if (frame->wide)
            ((double *)y)[i] = root;
        else
            ((float *)y)[i] = (float)root; /* of an f32: correctly rounded */
    }
}

static lb_status norm_over(lb_call *call, double power, uint32_t reduced)
{
    const lb_tensor *in = lb_frame_arg_tensor(call, 0);
    lb_fold fold = lb_fold_of(in, reduced);
    int64_t n = fold.results * fold.size;
    lb_frame frame = lb_frame_begin(call);
    const void *x = lb_frame_tensor(&frame, &fold.view);
    const bool rows = power == 2 && fold.inner == 1 && (fold.results > 1 || is_dense(in)),
               by_threads = call->method.schedule && call->method.schedule->kind == LB_SCHEDULE_TORCH,
               pieces = by_threads && !rows && !frame.wide && fold.results == 1 && n >= GRAIN &&
                        call->method.schedule->size > 1;
    if (by_threads && !pieces) call->method.schedule = NULL;
    const int64_t threads = pieces ? call->method.schedule->size : 1;
    const bool usual = !frame.wide && rows && !call->method.schedule && !call->method.accumulate;
    void *y = lb_frame_output(&frame, 0, fold.results), *terms = lb_frame_reals(&frame, usual || isinf(power) ? 0 : n);
    if (!lb_frame_ok(&frame)) return lb_frame_end(&frame);
    if (isinf(power)) {
        norm_of_extremes(&frame, &fold, x, power > 0, y);
        return lb_frame_end(&frame);
    }
    if (!usual) put_powers(&frame, x, n, power, terms);
    if (!call->method.schedule) call->method.schedule = rows ? &norm_of_rows : &norm_order;
    if (pieces)
        *(float *)y = sum_of_pieces(terms, n, threads, call->method.accumulate);
    else if (usual) /* squares are added as they arise: no second array as large as the first */
        for (int64_t i = 0; i < fold.results; i++)
            ((float *)y)[i] = lb_schedule_sum_squares_f32((const float *)x + i * fold.size, fold.size);
    else
        fold_sum(&frame, &fold, terms, y);
    if (power != 0 && power != 1) take_roots(&frame, y, fold.results, power);
    return lb_frame_end(&frame);
}

/* All terms are positive, so that the op is its own twin, and the root halves relative errors. */
static lb_status norm_run(lb_call *call, uint32_t dims_arg)
{
    return norm_over(call, lb_frame_arg_float(call, 1, 2),
                     lb_fold_dims(call, dims_arg, lb_frame_arg_tensor(call, 0)->layout.ndim));
}
static lb_status vector_norm(lb_call *call)
{
    return norm_run(call, 2);
}
static lb_status norm_all(lb_call *call)
{
    return norm_run(call, NO_DIMS);
}

/* ---- variance ---------------------------------------------------------------------------------------------------- */

/* In f64 throughout, as torch's Welford sums on a CPU are. Results: the variance or its root, then the mean. */
static lb_fold fold_of_variance(const lb_call *call)
{
    const lb_tensor *in = lb_frame_arg_tensor(call, 0);
    return lb_fold_of(in, lb_fold_dims(call, 1, in->layout.ndim));
}

static lb_status variance(lb_call *call, bool root)
{
    lb_fold fold = fold_of_variance(call);
    double correction = lb_frame_arg_float(call, 2, 1);
    lb_frame frame = lb_frame_begin(call);
    const void *x = lb_frame_tensor(&frame, &fold.view);
    double *spread = lb_frame_scratch(&frame, (size_t)fold.results * 8),
           *middle = lb_frame_scratch(&frame, (size_t)fold.results * 8);
    void *y = lb_frame_output(&frame, 0, fold.results), *m = lb_frame_output(&frame, 1, fold.results);
    if (!lb_frame_ok(&frame)) return lb_frame_end(&frame);
    int64_t n = fold.size;
#pragma omp parallel for if (fold.results * n > 65536)
    for (int64_t i = 0; i < fold.results; i++) {
        int64_t from = i / fold.inner * n * fold.inner + i % fold.inner;
        double sum = 0, squares = 0;
        for (int64_t k = 0; k < n; k++) {
            int64_t at = from + k * fold.inner;
            sum += frame.wide ? ((const double *)x)[at] : ((const float *)x)[at];
        }
        double center = sum / (double)n;
        for (int64_t k = 0; k < n; k++) {
            int64_t at = from + k * fold.inner;
            double d = (frame.wide ? ((const double *)x)[at] : ((const float *)x)[at]) - center;
            squares += d * d;
        }
        double divisor = (double)n - correction;
        spread[i] = squares / (divisor > 0 ? divisor : 0);
        if (root) spread[i] = sqrt(spread[i]);
        middle[i] = center;
    }
    for (int64_t i = 0; i < fold.results; i++) {
        if (frame.wide)
            ((double *)y)[i] = spread[i], ((double *)m)[i] = middle[i];
        else
            ((float *)y)[i] = (float)spread[i], ((float *)m)[i] = (float)middle[i];
    }
    return lb_frame_end(&frame);
}

/* With e = mean |x|: a square is off by 2 |x - m| (|x| + e) ulps, the root of a sum s by half of that over its root.
 * The mean's terms are |x|. */
static lb_status variance_twin(lb_call *call, bool root)
{
    lb_fold fold = fold_of_variance(call);
    double correction = lb_frame_arg_float(call, 2, 1);
    lb_frame frame = lb_frame_begin(call);
    const double *x = lb_frame_tensor(&frame, &fold.view);
    double *y = lb_frame_output(&frame, 0, fold.results), *m = lb_frame_output(&frame, 1, fold.results);
    int64_t n = fold.size;
    for (int64_t i = 0; lb_frame_ok(&frame) && i < fold.results; i++) {
        int64_t from = i / fold.inner * n * fold.inner + i % fold.inner;
        double center = 0, size = 0, squares = 0, mixed = 0, divisor = (double)n - correction;
        for (int64_t k = 0; k < n; k++)
            center += x[from + k * fold.inner] / (double)n, size += fabs(x[from + k * fold.inner]) / (double)n;
        for (int64_t k = 0; k < n; k++) {
            double v = x[from + k * fold.inner], d = fabs(v - center);
            squares += d * d, mixed += 2 * d * (fabs(v) + size);
        }
        if (divisor <= 0) divisor = 0;
        double spread = squares / divisor;
        y[i] = (squares + mixed) / divisor;
        if (root) y[i] = spread > 0 ? sqrt(spread) + y[i] / (2 * sqrt(spread)) : sqrt(y[i]);
        m[i] = size;
    }
    return lb_frame_end(&frame);
}

LB_WITH_TWIN(var, twin ? variance_twin(call, false) : variance(call, false))
LB_WITH_TWIN(std, twin ? variance_twin(call, true) : variance(call, true))

/* ---- logsumexp, counts ------------------------------------------------------------------------------------------- */

/* torch composes it from amax, sub, exp, sum, log and add, each of which rounds to the tensor's dtype. */
static void logsumexp_one(const lb_frame *frame, const lb_fold *fold, const void *x, int64_t i, void *row, void *y)
{
    int64_t n = fold->size, from = i / fold->inner * n * fold->inner + i % fold->inner;
    double top = -INFINITY;
    for (int64_t k = 0; k < n; k++) {
        int64_t at = from + k * fold->inner;
        double value = lb_frame_get(frame, x, at);
        top = isnan(value) || isnan(top) ? NAN : value > top ? value : top;
    }
    if (isinf(top)) top = 0; /* all -inf gives -inf, any inf gives inf */
    const lb_method *method = &frame->call->method;
    lb_dtype dtype = frame->call->results[0].dtype;
    if (frame->wide) {
        double *r = row, *out = (double *)y + i;
        for (int64_t k = 0; k < n; k++) r[k] = ((const double *)x)[from + k * fold->inner] - top;
        lb_exp_f64(r, r, (size_t)n);
        *out = lb_schedule_sum_f64(method->schedule, r, n, method->accumulate);
        lb_log_f64(out, out, 1);
        *out += top;
    } else {
        float *r = row, *out = (float *)y + i;
        for (int64_t k = 0; k < n; k++) r[k] = ((const float *)x)[from + k * fold->inner] - (float)top;
        lb_frame_round(frame, r, n, dtype);
        lb_exp_f32(r, r, (size_t)n);
        lb_frame_round(frame, r, n, dtype);
        *out = lb_schedule_sum_f32(method->schedule, r, n, method->accumulate);
        lb_frame_round(frame, out, 1, dtype);
        lb_log_f32(out, out, 1);
        lb_frame_round(frame, out, 1, dtype);
        *out += (float)top;
    }
}

static lb_status logsumexp_kernel(lb_call *call)
{
    const lb_tensor *in = lb_frame_arg_tensor(call, 0);
    lb_fold fold = lb_fold_of(in, lb_fold_dims(call, 1, in->layout.ndim));
    lb_frame frame = lb_frame_begin(call);
    const void *x = lb_frame_tensor(&frame, &fold.view);
    void *y = lb_frame_output(&frame, 0, fold.results), *row = lb_frame_reals(&frame, fold.size);
    for (int64_t i = 0; lb_frame_ok(&frame) && i < fold.results; i++) logsumexp_one(&frame, &fold, x, i, row, y);
    return lb_frame_end(&frame);
}

/* |y| + 1: the rounding of x - max enters y as an absolute error of u |x - max|, which near the maximum is below u. */
static lb_status logsumexp_twin(lb_call *call)
{
    LB_TRY(logsumexp_kernel(call));
    lb_tensor *result = &call->results[0];
    double *y = result->data;
    double scale = lb_frame_twin_scale(call, 0);
    for (int64_t i = 0, n = lb_tensor_numel(result); i < n; i++) y[i] = (fabs(y[i]) + 1) * scale;
    return LB_OK;
}

static lb_status count_nonzero(lb_call *call)
{
    const lb_tensor *in = lb_frame_arg_tensor(call, 0);
    lb_fold fold = lb_fold_of(in, lb_fold_dims(call, 1, in->layout.ndim));
    lb_frame frame = lb_frame_begin(call);
    bool real = lb_dtype_is_float(in->dtype);
    const void *x = real ? lb_frame_tensor(&frame, &fold.view) : (const void *)lb_frame_integers(&frame, &fold.view);
    int64_t *y = lb_frame_output_integers(&frame, 0, fold.results);
    for (int64_t i = 0; lb_frame_ok(&frame) && i < fold.results; i++) {
        int64_t from = i / fold.inner * fold.size * fold.inner + i % fold.inner;
        y[i] = 0;
        for (int64_t k = 0; k < fold.size; k++, from += fold.inner)
            y[i] += !real        ? ((const int64_t *)x)[from] != 0
                    : frame.wide ? ((const double *)x)[from] != 0
                                 : ((const float *)x)[from] != 0;
    }
    return lb_frame_end(&frame);
}

#define SUM LB_ROW_REDUCTION
#define SQUARES (LB_ROW_REDUCTION | LB_ROW_SQUARES)
#define ROW(NAME, ARGS, ID, ROUNDINGS, FLAGS, SAMPLES)                                                                 \
    ROW_OF(NAME, ARGS, ID##_kernel, ID##_twin, ROUNDINGS, FLAGS, SAMPLES, NULL)
#define LINEAR(NAME, ARGS, ID, ROUNDINGS, SAMPLES)                                                                     \
    ROW_OF(NAME, ARGS, ID##_kernel, ID##_twin, ROUNDINGS, SUM, SAMPLES, &lb_complex_sums)
#define NORM(NAME, ARGS, KERNEL, SAMPLES) ROW_OF(NAME, ARGS, KERNEL, KERNEL, 4, SQUARES, SAMPLES, NULL)
#define ROW_OF(NAME, ARGS, KERNEL, TWIN, ROUNDINGS, FLAGS, SAMPLES, COMPLEX)                                           \
    {.name = "aten::" NAME,                                                                                            \
     .args = ARGS,                                                                                                     \
     .kernel = KERNEL,                                                                                                 \
     .twin = TWIN,                                                                                                     \
     LB_SUMS(ROUNDINGS, LB_TERMS_USUAL),                                                                               \
     .flags = FLAGS,                                                                                                   \
     .samples = SAMPLES,                                                                                               \
     .complex = COMPLEX}
const lb_op_row lb_rows_reduction[] = {
    LINEAR("sum", "self! dtype", sum, 1, "sum"),
    LINEAR("sum.dim_IntList", "self! dim keepdim dtype", sum_dim, 1, "sum_dim"),
    ROW("nansum", "self! dim keepdim dtype", nansum, 1, SUM, "nansum"),
    LINEAR("mean", "self! dtype", mean, 2, "mean"),
    LINEAR("mean.dim", "self! dim keepdim dtype", mean_dim, 2, "mean_dim"),
    NORM("linalg_vector_norm", "self! ord dim keepdim dtype", vector_norm, "vector_norm"),
    NORM("norm.Scalar", "self! p", norm_all, "norm"),
    NORM("norm.ScalarOpt_dim", "self! p dim keepdim", vector_norm, "norm_dim"),
    ROW("var.correction", "self! dim correction keepdim", var, 2, SQUARES, "var"),
    ROW("std.correction", "self! dim correction keepdim", std, 2, SQUARES, "var"),
    ROW("var_mean.correction", "self! dim correction keepdim", var, 2, SQUARES, "var"),
    ROW("std_mean.correction", "self! dim correction keepdim", std, 2, SQUARES, "var"),
    ROW("logsumexp", "self! dim keepdim", logsumexp, 6, SUM, "logsumexp"),
    {.name = "aten::count_nonzero",
     .args = "self! dim",
     .kernel = count_nonzero,
     .flags = LB_ROW_EXACT | LB_ROW_DISCONTINUOUS,
     .samples = "count_nonzero"},
    {.name = "aten::count_nonzero.dim_IntList",
     .args = "self! dim",
     .kernel = count_nonzero,
     .flags = LB_ROW_EXACT | LB_ROW_DISCONTINUOUS,
     .samples = "count_nonzero list"},
    {NULL},
};
