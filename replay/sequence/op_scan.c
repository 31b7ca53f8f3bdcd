/* Running sums, products, logarithms of sums of exponentials and extremes along a dimension, and histograms.
 *
 * A running sum is sequential, as torch's on a CPU (in f64 there for f32 sums, rounded at each step's store; see
 * below); of what was recorded on CUDA it is what the kernels there make (cuda_scan.h). `schedule` does not apply:
 * every prefix is a result. */
#include "sequence/cuda_scan.h"
#include "functions/elementary.h"
#include "kernel/tied_choice.h"

#include <float.h>
#include <math.h>
#include <string.h>

typedef struct scan {
    lb_frame frame;
    bool integer;
    int64_t rows, n;
    lb_tensor results[2];
    int dim;
    const void *x;
    void *y;
    int64_t *at;
} scan;

static bool scan_begin(scan *scan, lb_call *call, bool positions)
{
    const lb_tensor *self = lb_frame_arg_tensor(call, 0);
    int dim = lb_frame_wrap_dim(lb_frame_arg_int(call, 1, 0), self->layout.ndim);
    scan->frame = lb_frame_begin(call);
    if (dim < 0) {
        lb_frame_fail(&scan->frame, LB_ERR_INVALID, "no such dimension");
        return false;
    }
    scan->dim = dim;
    scan->integer = lb_dtype_is_integer(call->results[0].data ? call->results[0].dtype : self->dtype);
    scan->n = self->layout.ndim ? self->layout.shape[dim] : 1;
    scan->rows = scan->n ? lb_tensor_numel(self) / scan->n : 0;
    lb_tensor moved = lb_frame_dim_last(self, dim);
    scan->results[0] = lb_frame_dim_last(&call->results[0], dim);
    scan->x =
        scan->integer ? (const void *)lb_frame_integers(&scan->frame, &moved) : lb_frame_tensor(&scan->frame, &moved);
    scan->y = scan->integer
                  ? (void *)lb_frame_output_view_integers(&scan->frame, &scan->results[0], scan->rows * scan->n)
                  : lb_frame_output_view(&scan->frame, &scan->results[0], scan->rows * scan->n);
    if (positions) {
        scan->results[1] = lb_frame_dim_last(&call->results[1], dim);
        scan->at = lb_frame_output_view_integers(&scan->frame, &scan->results[1], scan->rows * scan->n);
    }
    return lb_frame_ok(&scan->frame);
}

typedef enum scan_kind { SUM, PRODUCT, LOG_SUM } scan_kind;

static double step(scan_kind kind, double so_far, double x)
{
    if (kind != LOG_SUM) return kind == PRODUCT ? so_far * x : so_far + x;
    const double low = x < so_far ? x : so_far, high = x < so_far ? so_far : x;
    if (isnan(x) || isnan(so_far)) return NAN;
    return low != high || isfinite(low) ? high + lb_log1p(lb_exp(low - high)) : high;
}

/* torch accumulates floats in f64, 16-bit ones in f32, and rounds what it stores (ReduceOpsKernel.cpp,
 * cumsum_cpu_kernel: at::acc_type<T, false>). */
static void scan_row(const scan *scan, scan_kind kind, int64_t row)
{
    int64_t base = row * scan->n;
    double sum = kind == PRODUCT ? 1 : kind == SUM ? 0 : -INFINITY;
    uint64_t integers = kind == PRODUCT ? 1 : 0;
    for (int64_t i = base; i < base + scan->n; i++) {
        if (scan->integer) {
            uint64_t x = (uint64_t)((const int64_t *)scan->x)[i];
            integers = kind == PRODUCT ? integers * x : integers + x;
            ((int64_t *)scan->y)[i] = (int64_t)integers;
            continue;
        }
        sum = step(kind, sum, lb_frame_get(&scan->frame, scan->x, i));
        lb_frame_set(&scan->frame, scan->y, i, sum);
    }
}

/* ---- as on CUDA -------------------------------------------------------------------------------------------------- */

/* Of self, unless arg 2 names a dtype that it is converted to first. */
static lb_dtype dtype_of_partials(const lb_call *call)
{
    const bool named = call->n_args > 2 && call->args[2].tag == LB_OPERAND_DTYPE;
    return named ? (lb_dtype)call->args[2].i : lb_frame_arg_tensor(call, 0)->dtype;
}

static lb_cuda_scan cuda_scan_of(const scan *scan, scan_kind kind)
{
    const lb_cuda_scan_kind kinds[] = {
        [SUM] = LB_CUDA_SCAN_SUM, [PRODUCT] = LB_CUDA_SCAN_PRODUCT, [LOG_SUM] = LB_CUDA_SCAN_LOG_SUM};
    const lb_call *call = scan->frame.call;
    return (lb_cuda_scan){.kind = kinds[kind],
                          .dtype = dtype_of_partials(call),
                          .innermost = scan->dim == lb_frame_arg_tensor(call, 0)->layout.ndim - 1,
                          .rows = scan->rows,
                          .n = scan->n};
}

/* Do results have the dtype of the partial results? Those of an exact shadow or a wider replay do not. */
static bool runs_as_on_cuda(const scan *scan)
{
    const lb_call *call = scan->frame.call;
    return call->cuda && !scan->integer && !call->method.exact && call->results[0].dtype == dtype_of_partials(call) &&
           lb_dtype_is_float(call->results[0].dtype);
}

/* `row`: 4 n numbers. */
static void cuda_row(const scan *scan, const lb_cuda_scan *as, int64_t r, double *row)
{
    for (int64_t i = 0; i < scan->n; i++) row[i] = lb_frame_get(&scan->frame, scan->x, r * scan->n + i);
    lb_cuda_scan_row(as, row, row + scan->n);
    for (int64_t i = 0; i < scan->n; i++) lb_frame_set(&scan->frame, scan->y, r * scan->n + i, row[scan->n + i]);
}

/* The twin whose bound is the error of the network. */
static void cuda_twin_row(const scan *scan, const lb_cuda_scan *as, int64_t r, double *row)
{
    const lb_call *call = scan->frame.call;
    const double u = as->dtype == LB_F64 ? 0x1p-53 : 0x1p-24,
                 factor =
                     u * ((double)call->row->roundings + (double)call->row->roundings_per_term * lb_call_terms(call));
    double *errors = row + scan->n;
    for (int64_t i = 0; i < scan->n; i++) row[i] = lb_frame_get(&scan->frame, scan->x, r * scan->n + i);
    lb_cuda_scan_errors(as, row, errors, row + 2 * scan->n);
    for (int64_t i = 0; i < scan->n; i++) {
        const double beyond = as->dtype == LB_F64 ? DBL_MAX : 0x1p128;
        lb_frame_set(&scan->frame, scan->y, r * scan->n + i, isinf(errors[i]) ? beyond : errors[i] / factor);
    }
}

static lb_status cumulate_as_on_cuda(scan *scan, scan_kind kind, bool twin)
{
    const lb_cuda_scan as = cuda_scan_of(scan, kind);
    double *row = lb_frame_scratch(&scan->frame, (size_t)scan->n * 4 * sizeof *row + 1);
    for (int64_t r = 0; lb_frame_ok(&scan->frame) && r < scan->rows; r++) {
        if (twin)
            cuda_twin_row(scan, &as, r, row);
        else
            cuda_row(scan, &as, r, row);
    }
    return lb_frame_end(&scan->frame);
}

static lb_status cumulate(lb_call *call, scan_kind kind)
{
    scan scan;
    if (!scan_begin(&scan, call, false)) return lb_frame_end(&scan.frame);
    if (runs_as_on_cuda(&scan)) return cumulate_as_on_cuda(&scan, kind, false);
#pragma omp parallel for schedule(static) if (scan.rows * scan.n > 65536)
    for (int64_t row = 0; row < scan.rows; row++) scan_row(&scan, kind, row);
    return lb_frame_end(&scan.frame);
}

/* ---- twins: a row of sizes --------------------------------------------------------------------------------------- */

static void twin_of_sums(const scan *scan, int64_t row)
{
    double sizes = 0;
    for (int64_t i = row * scan->n; i < (row + 1) * scan->n; i++)
        ((double *)scan->y)[i] = sizes += fabs(((const double *)scan->x)[i]);
}

/* |y|, and what is left of a prefix that underflowed: later factors magnify what it lost. After a prefix that
 * overflowed nothing is said. */
static void twin_of_products(const scan *scan, int64_t row)
{
    const bool f64 = lb_frame_arg_tensor(scan->frame.call, 0)->dtype == LB_F64;
    const double tiny = f64 ? 0x1p-1074 : 0x1p-149, limit = f64 ? DBL_MAX : FLT_MAX, roundoff = f64 ? 0x1p-53 : 0x1p-24;
    double product = 1, lost = 0;
    for (int64_t i = row * scan->n; i < (row + 1) * scan->n; i++) {
        const double factor = fabs(((const double *)scan->x)[i]);
        product *= factor;
        lost = lost * factor + tiny;
        if (product > limit) product = NAN; /* and so are all that follow */
        ((double *)scan->y)[i] = isnan(product) ? (f64 ? DBL_MAX : 0x1p128) : product + lost / roundoff;
    }
}

/* Each step is off by a few units of its own size, which is at most |y| and the logarithm of how many there are where
 * it weighs most. */
static void twin_of_log_sums(const scan *scan, int64_t row)
{
    double so_far = -INFINITY;
    for (int64_t k = 0, i = row * scan->n; k < scan->n; k++, i++) {
        so_far = step(LOG_SUM, so_far, ((const double *)scan->x)[i]);
        ((double *)scan->y)[i] = isinf(so_far) ? fabs(so_far) : 4 * (1 + fabs(so_far) + lb_log((double)k + 1));
    }
}

static lb_status twin_of(lb_call *call, scan_kind kind)
{
    scan scan;
    if (!scan_begin(&scan, call, false)) return lb_frame_end(&scan.frame);
    if (call->cuda && !scan.integer && lb_dtype_is_float(dtype_of_partials(call)))
        return cumulate_as_on_cuda(&scan, kind, true);
    for (int64_t row = 0; row < scan.rows; row++) {
        if (kind == SUM) twin_of_sums(&scan, row);
        if (kind == PRODUCT) twin_of_products(&scan, row);
        if (kind == LOG_SUM) twin_of_log_sums(&scan, row);
    }
    return lb_frame_end(&scan.frame);
}

LB_WITH_TWIN(cumsum, twin ? twin_of(call, SUM) : cumulate(call, SUM))
LB_WITH_TWIN(cumprod, twin ? twin_of(call, PRODUCT) : cumulate(call, PRODUCT))
LB_WITH_TWIN(logcumsumexp, twin ? twin_of(call, LOG_SUM) : cumulate(call, LOG_SUM))

/* ---- extremes ---------------------------------------------------------------------------------------------------- */

/* Does element `at` of a row take the place of the best before it? A NaN does, and nothing but a NaN takes its. */
static bool takes_over(const scan *scan, int64_t at, int64_t best, bool largest)
{
    if (scan->integer) {
        const int64_t a = ((const int64_t *)scan->x)[at], b = ((const int64_t *)scan->x)[best];
        return largest ? a >= b : a <= b;
    }
    const double a = lb_frame_get(&scan->frame, scan->x, at), b = lb_frame_get(&scan->frame, scan->x, best);
    return isnan(a) || (!isnan(b) && (largest ? a >= b : a <= b));
}

/* The last of equal elements; once a NaN, always the latest NaN (cummax_helper_cpu). Or the one whose position was
 * recorded (tied_choice.h): the parallel scan of CUDA may take another. */
static lb_status extremes_so_far(lb_call *call, bool largest)
{
    scan scan;
    if (!scan_begin(&scan, call, true)) return lb_frame_end(&scan.frame);
    for (int64_t row = 0; row < scan.rows; row++)
        for (int64_t k = 0, best = 0, base = row * scan.n; k < scan.n; k++) {
            if (takes_over(&scan, base + k, base + best, largest)) best = k;
            scan.at[base + k] = best;
        }
    const lb_tied_choice choice = {.frame = &scan.frame,
                                   .integer = scan.integer,
                                   .rows = scan.rows,
                                   .n = scan.n,
                                   .inner = 1,
                                   .k = scan.n,
                                   .x = scan.x,
                                   .at = scan.at,
                                   .prefix = true};
    lb_tied_choice_follow(&choice, 1, scan.dim);
    for (int64_t i = 0; lb_frame_ok(&scan.frame) && i < scan.rows * scan.n; i++) {
        const int64_t from = i / scan.n * scan.n + scan.at[i];
        if (scan.integer)
            ((int64_t *)scan.y)[i] = ((const int64_t *)scan.x)[from];
        else
            lb_frame_set(&scan.frame, scan.y, i, lb_frame_get(&scan.frame, scan.x, from));
    }
    return lb_frame_end(&scan.frame);
}

static lb_status cummax(lb_call *call)
{
    return extremes_so_far(call, true);
}
static lb_status cummin(lb_call *call)
{
    return extremes_so_far(call, false);
}

/* ---- histogram --------------------------------------------------------------------------------------------------- */

/* Args: self, bins, min, max. Equal bounds mean the range of the data. The bin is torch's: (x - min) / (max - min) *
 * bins truncated, then moved by one when x lies outside the edges of that bin (HistogramKernel.cpp,
 * LINEAR_INTERPOLATION). */
static lb_status histc(lb_call *call)
{
    lb_frame frame = lb_frame_begin(call);
    const lb_tensor *self = lb_frame_arg_tensor(call, 0);
    int64_t n = lb_tensor_numel(self), bins = lb_frame_arg_int(call, 1, 100);
    double low = lb_frame_arg_float(call, 2, 0), high = lb_frame_arg_float(call, 3, 0);
    const void *x = lb_frame_tensor(&frame, self);
    void *y = lb_frame_output(&frame, 0, bins);
    if (!lb_frame_ok(&frame)) return lb_frame_end(&frame);
    memset(y, 0, (size_t)bins * (frame.wide ? 8 : 4));
    if (low == high && n > 0) {
        low = INFINITY, high = -INFINITY;
        for (int64_t i = 0; i < n; i++) {
            double v = frame.wide ? ((const double *)x)[i] : ((const float *)x)[i];
            low = v < low ? v : low;
            high = v > high ? v : high;
        }
    }
    if (low == high) low -= 1, high += 1;
    for (int64_t i = 0; i < n; i++) {
        double v = frame.wide ? ((const double *)x)[i] : ((const float *)x)[i];
        if (!(v >= low && v <= high)) continue;
        int64_t bin = frame.wide ? (int64_t)((v - low) / (high - low) * (double)bins)
                                 : (int64_t)(((float)v - (float)low) / ((float)high - (float)low) * (float)bins);
        if (bin >= bins) bin = bins - 1;
        if (frame.wide)
            ((double *)y)[bin] += 1;
        else
            ((float *)y)[bin] += 1;
    }
    return lb_frame_end(&frame);
}

#define SCAN LB_ROW_REDUCTION
#define CHOICE (LB_ROW_EXACT | LB_ROW_DISCONTINUOUS)
const lb_op_row lb_rows_scan[] = {
    {.name = "aten::cumsum",
     .args = "self! dim dtype",
     LB_COMPUTED_BY(cumsum),
     LB_SUMS(1, LB_TERMS(DIMENSION, 1)),
     .flags = SCAN,
     .samples = "cumulative"},
    {.name = "aten::cumprod",
     .args = "self! dim dtype",
     LB_COMPUTED_BY(cumprod),
     LB_SUMS(1, LB_TERMS(DIMENSION, 1)),
     .flags = SCAN,
     .samples = "cumulative"},
    {.name = "aten::logcumsumexp",
     .args = "self! dim",
     LB_COMPUTED_BY(logcumsumexp),
     LB_SUMS(4, LB_TERMS(DIMENSION, 1)),
     .flags = SCAN,
     .samples = "log_cumulative"},
    {.name = "aten::cummax",
     .args = "self! dim",
     .kernel = cummax,
     .flags = CHOICE | LB_ROW_CHOOSES,
     .samples = "cumulative_extreme"},
    {.name = "aten::cummin",
     .args = "self! dim",
     .kernel = cummin,
     .flags = CHOICE | LB_ROW_CHOOSES,
     .samples = "cumulative_extreme"},
    {.name = "aten::histc", .args = "self! bins min max", .kernel = histc, .flags = CHOICE, .samples = "histc"},
    {NULL},
};
