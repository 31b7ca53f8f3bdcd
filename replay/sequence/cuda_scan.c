/* Scans in the order and the dtype of torch's CUDA kernels: see cuda_scan.h. */
#include "sequence/cuda_scan.h"

#include "functions/elementary.h"

#include <lastbit/dtype.h>

#include <float.h>
#include <math.h>
#include <string.h>

/* A partial result, and how far it may be from the exact one. */
typedef struct partial {
    double value, error;
} partial;

static double rounded(const lb_cuda_scan *scan, double x)
{
    if (scan->dtype == LB_F64) return x;
    x = (float)x; /* the operation is one of f32 */
    if (scan->dtype != LB_F32) lb_round_to_grid_f64(&x, 1, scan->dtype, NULL);
    return x;
}

static double log_of_sum(double a, double b)
{
    const double low = a < b ? a : b, high = a < b ? b : a;
    if (isnan(a) || isnan(b)) return NAN;
    return low != high || isfinite(low) ? high + lb_log1p(lb_exp(low - high)) : high;
}

static double combined(const lb_cuda_scan *scan, double a, double b)
{
    switch (scan->kind) {
    case LB_CUDA_SCAN_SUM: return a + b;
    case LB_CUDA_SCAN_PRODUCT: return a * b;
    case LB_CUDA_SCAN_LOG_SUM: break;
    }
    return log_of_sum(a, b);
}

/* The rounding of a step, and what it does with the errors of both sides. */
static double error_of(const lb_cuda_scan *scan, partial a, partial b, double value)
{
    const double u = lb_dtype_unit_roundoff(scan->dtype), tiny = lb_dtype_min_subnormal(scan->dtype);
    double carried = a.error + b.error, own = u * fabs(value) + tiny;
    if (scan->kind == LB_CUDA_SCAN_PRODUCT)
        carried = fabs(a.value) * b.error + fabs(b.value) * a.error + a.error * b.error;
    if (scan->kind == LB_CUDA_SCAN_LOG_SUM) {
        carried = fmax(a.error, b.error); /* weights that add up to 1 */
        own += 8 * (scan->dtype == LB_F64 ? 0x1p-53 : 0x1p-24) * (1 + fabs(value));
    }
    const double error = carried * (1 + u) + own;
    if (scan->kind == LB_CUDA_SCAN_LOG_SUM && value == -INFINITY) return 0; /* of nothing but -inf */
    const bool over = fabs(value) + error > lb_dtype_max_finite(scan->dtype);
    return over || isnan(error) ? INFINITY : error;
}

static partial step(const lb_cuda_scan *scan, partial a, partial b, bool errors)
{
    const double value = combined(scan, a.value, b.value);
    if (!errors) return (partial){rounded(scan, value), 0};
    return (partial){value, error_of(scan, a, b, value)};
}

static double identity_of(const lb_cuda_scan *scan)
{
    return scan->kind == LB_CUDA_SCAN_PRODUCT ? 1 : scan->kind == LB_CUDA_SCAN_SUM ? 0 : -INFINITY;
}

/* ---- networks ---------------------------------------------------------------------------------------------------- */

static void one_by_one(const lb_cuda_scan *scan, const double *x, double *values, double *errors)
{
    partial sum = {identity_of(scan), 0};
    for (int64_t i = 0; i < scan->n; i++) {
        sum = step(scan, sum, (partial){x[i], 0}, errors != NULL);
        values[i] = sum.value;
        if (errors) errors[i] = sum.error;
    }
}

/* log2 of the threads of a row, as get_log_num_threads_x_inner_scan has it; its arithmetic wraps around. */
static uint32_t log_threads(int64_t rows, int64_t n)
{
    uint32_t of_rows = 0, of_n = 0;
    while ((int64_t)1 << of_n < n) of_n++;
    while ((int64_t)1 << of_rows < rows) of_rows++;
    const uint32_t half = (9 + of_n - of_rows) / 2;
    return half < 4 ? 4 : half > 9 ? 9 : half;
}

#define TILE 1024 /* at most */

/* One tile: level m adds the last element of every run of 2^m to those of the next. */
static void sklansky(const lb_cuda_scan *scan, partial *tile, uint32_t log, bool errors)
{
    for (uint32_t m = 0; m <= log; m++)
        for (uint32_t thread = 0; thread < 1u << log; thread++) {
            const uint32_t run = (thread >> m << (m + 1)) | 1u << m, to = run + thread % (1u << m);
            tile[to] = step(scan, tile[to], tile[run - 1], errors);
        }
}

static void by_tiles(const lb_cuda_scan *scan, const double *x, double *values, double *errors, uint32_t log)
{
    partial tile[TILE], total = {identity_of(scan), 0};
    const int64_t size = (int64_t)2 << log;
    for (int64_t from = 0; from < scan->n; from += size) {
        for (int64_t i = 0; i < size; i++) tile[i] = (partial){from + i < scan->n ? x[from + i] : identity_of(scan), 0};
        tile[0] = step(scan, tile[0], total, errors != NULL);
        sklansky(scan, tile, log, errors != NULL);
        for (int64_t i = 0; i < size && from + i < scan->n; i++) {
            values[from + i] = tile[i].value;
            if (errors) errors[from + i] = tile[i].error;
        }
        total = tile[size - 1];
    }
}

/* ---- any network of a depth -------------------------------------------------------------------------------------- */

/* cub's scan (agent_scan.cuh): at most 32 elements by one thread, a warp, the warps of a block, the thread's elements
 * again; and of every tile, which has 256 elements at least, the step that adds what came before. */
static double depth_of(int64_t k)
{
    const double deepest = 112 + (double)k / 256;
    return (double)k < deepest ? (double)k : deepest;
}

/* No network of `depth` levels errs more: the partial results of one level have disjoint elements. */
static void any_order(const lb_cuda_scan *scan, const double *x, double *errors)
{
    const double u = lb_dtype_unit_roundoff(scan->dtype), tiny = lb_dtype_min_subnormal(scan->dtype);
    double sizes = 0, product = 1, larger = 1, log_sum = -INFINITY;
    for (int64_t i = 0; i < scan->n; i++) {
        const double k = (double)(i + 1), depth = depth_of(i + 1), grown = lb_expm1(depth * u);
        sizes += fabs(x[i]), product *= fabs(x[i]);
        if (!(fabs(x[i]) <= 1)) larger *= fabs(x[i]); /* the largest product of some of the factors */
        log_sum = log_of_sum(log_sum, x[i]);
        if (scan->kind == LB_CUDA_SCAN_SUM) {
            errors[i] = grown * sizes + k * tiny;
            if (sizes > lb_dtype_max_finite(scan->dtype)) errors[i] = INFINITY;
        } else if (scan->kind == LB_CUDA_SCAN_PRODUCT) {
            errors[i] = lb_expm1(k * u) * product + larger * k * tiny;
            if (larger > lb_dtype_max_finite(scan->dtype)) errors[i] = INFINITY;
        } else {
            const double own = u + 8 * (scan->dtype == LB_F64 ? 0x1p-53 : 0x1p-24);
            /* The weighted size of a level's partial results is at most |y| and the entropy of the weights. */
            errors[i] = log_sum == -INFINITY ? 0 : depth * own * (1 + fabs(log_sum) + lb_log(k));
        }
        if (isnan(errors[i])) errors[i] = INFINITY;
    }
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

void lb_cuda_scan_row(const lb_cuda_scan *scan, const double *x, double *y)
{
    if (scan->innermost && scan->rows > 1)
        by_tiles(scan, x, y, NULL, log_threads(scan->rows, scan->n));
    else
        one_by_one(scan, x, y, NULL);
}

void lb_cuda_scan_errors(const lb_cuda_scan *scan, const double *x, double *errors, double *work)
{
    if (scan->rows == 1)
        any_order(scan, x, errors);
    else if (scan->innermost)
        by_tiles(scan, x, work, errors, log_threads(scan->rows, scan->n));
    else
        one_by_one(scan, x, work, errors);
}
