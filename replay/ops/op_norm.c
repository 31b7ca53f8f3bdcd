/* Layer norm and RMS norm with their backwards. Group and batch norm are in op_channel_norm.c.
 *
 * The forward layer norm has torch's CPU bits (welford.h) unless a schedule asks for another order: then mean and
 * variance are two passes of sums. Twins carry what cancellation in x - mean does to the variance. */
#include "kernel/frame.h"
#include "kernel/twin_grain.h"
#include "orders/schedule.h"
#include "orders/welford.h"

#include <lastbit/processor.h>

#include <float.h>
#include <math.h>
#include <string.h>

#define PER_ISA(...) LB_PER_ISA(__VA_ARGS__)
#define REAL_TEMPLATE "ops/norm_real.h"
#include "functions/real_template.h"

#define PARALLEL_ELEMENTS 32768

/* Rows of `size` elements: the dimensions named by a normalized_shape. */
typedef struct rows {
    lb_frame frame;
    int64_t count, size;
    const void *x, *gamma, *beta;
    bool halves; /* 16-bit input */
} rows;

static bool rows_begin(rows *rows, lb_call *call, const lb_tensor *in, uint32_t shape_arg)
{
    int64_t shape[LB_MAX_DIMS];
    rows->frame = lb_frame_begin(call);
    rows->size = 1;
    for (int k = 0, n = lb_frame_arg_ints(call, shape_arg, shape, LB_MAX_DIMS); k < n; k++) rows->size *= shape[k];
    rows->count = rows->size ? lb_tensor_numel(in) / rows->size : 0;
    rows->halves = lb_dtype_bits(in->dtype) == 16;
    rows->x = lb_frame_tensor(&rows->frame, in);
    if (rows->size < 1) lb_frame_fail(&rows->frame, LB_ERR_UNSUPPORTED, "rows without elements");
    return lb_frame_ok(&rows->frame);
}

/* ---- layer norm -------------------------------------------------------------------------------------------------- */

/* The results of a layer norm: y of each element, mean and 1 / deviation of each row. */
typedef struct layer_results {
    void *y, *mean, *rstd;
} layer_results;

static void layer_row(const rows *rows, int64_t i, double eps, void *row, const layer_results *results)
{
    void *y = results->y, *mean = results->mean, *rstd = results->rstd;
    const lb_method *method = &rows->frame.call->method;
    if (rows->frame.wide) {
        const double *x = (const double *)rows->x + i * rows->size;
        double m, var;
        two_pass_f64(method, x, rows->size, row, &m, &var);
        ((double *)mean)[i] = m;
        ((double *)rstd)[i] = 1 / sqrt((var > 0 ? var : var * 0) + eps);
        normalize_f64(x, (double *)y + i * rows->size, rows->size, m, ((double *)rstd)[i], rows->gamma, rows->beta);
    } else {
        const float *x = (const float *)rows->x + i * rows->size;
        float m, var;
        if (method->schedule)
            two_pass_f32(method, x, rows->size, row, &m, &var);
        else
            lb_welford(x, rows->size, rows->halves, &m, &var);
        ((float *)mean)[i] = m;
        ((float *)rstd)[i] = 1 / sqrtf((var > 0 ? var : var * 0) + (float)eps);
        normalize_f32(x, (float *)y + i * rows->size, rows->size, m, ((float *)rstd)[i], rows->gamma, rows->beta);
    }
}

/* Args: input, normalized_shape, weight, bias, eps. Results: y, mean, rstd. */
static lb_status layer_norm_kernel(lb_call *call)
{
    rows rows;
    if (!rows_begin(&rows, call, lb_frame_arg_tensor(call, 0), 1)) return lb_frame_end(&rows.frame);
    rows.gamma = lb_frame_input(&rows.frame, 2), rows.beta = lb_frame_input(&rows.frame, 3);
    const layer_results results = {lb_frame_output(&rows.frame, 0, rows.count * rows.size),
                                   lb_frame_output(&rows.frame, 1, rows.count),
                                   lb_frame_output(&rows.frame, 2, rows.count)};
    double eps = lb_frame_arg_float(call, 4, 1e-5);
    bool own = rows.frame.wide || call->method.schedule;
    void *row = own ? lb_frame_reals(&rows.frame, rows.size) : NULL;
    if (lb_frame_ok(&rows.frame)) {
#pragma omp parallel for schedule(static) if (!own && rows.count * rows.size > PARALLEL_ELEMENTS)
        for (int64_t i = 0; i < rows.count; i++) layer_row(&rows, i, eps, row, &results);
    }
    return lb_frame_end(&rows.frame);
}

/* With e = mean |x|: the mean's twin is e, the relative error of rstd is that of the variance, u (1 + kappa) with
 * kappa = mean |x - m| (|x| + e) / (var + eps), and y's is |gamma| rstd (|x| + e + |x - m| (1 + kappa)) + |beta|. */
static lb_status layer_norm_twin(lb_call *call)
{
    rows rows;
    if (!rows_begin(&rows, call, lb_frame_arg_tensor(call, 0), 1)) return lb_frame_end(&rows.frame);
    const double *gamma = lb_frame_input(&rows.frame, 2), *beta = lb_frame_input(&rows.frame, 3), *x = rows.x;
    double *y = lb_frame_output(&rows.frame, 0, rows.count * rows.size),
           *mean = lb_frame_output(&rows.frame, 1, rows.count);
    double *rstd = lb_frame_output(&rows.frame, 2, rows.count), eps = lb_frame_arg_float(call, 4, 1e-5);
    for (int64_t i = 0; lb_frame_ok(&rows.frame) && i < rows.count; i++, x += rows.size, y += rows.size) {
        double m = 0, e = 0, var = 0, mixed = 0;
        for (int64_t k = 0; k < rows.size; k++) m += x[k] / (double)rows.size, e += fabs(x[k]) / (double)rows.size;
        for (int64_t k = 0; k < rows.size; k++) {
            double d = fabs(x[k] - m);
            var += d * d / (double)rows.size;
            mixed += d * (fabs(x[k]) + e) / (double)rows.size;
        }
        double s = 1 / sqrt(var + eps), kappa = mixed / (var + eps);
        for (int64_t k = 0; k < rows.size; k++) {
            double spread = fabs(x[k]) + e + fabs(x[k] - m) * (1 + kappa);
            y[k] = spread * s * (gamma ? fabs(gamma[k]) : 1) + (beta ? fabs(beta[k]) : 0);
        }
        mean[i] = e;
        rstd[i] = s * (1 + kappa);
    }
    return lb_frame_end(&rows.frame);
}

/* ---- backwards --------------------------------------------------------------------------------------------------- */

typedef struct backward {
    rows r;
    const void *dy, *mean, *rstd;
    void *dx, *dgamma, *dbeta; /* NULL: not wanted */
    bool rms;
    lb_dtype affine; /* the 16-bit dtype in which torch adds up dgamma and dbeta, or none */
} backward;

/* `n` columns of row `i`, from element `at` of all on. */
static norm_row_f64 row_f64(const backward *backward, int64_t i, int64_t at, int64_t n)
{
    const double *mean = backward->mean, *rstd = backward->rstd;
    return (norm_row_f64){(const double *)backward->dy + at, (const double *)backward->r.x + at, mean ? mean[i] : 0,
                          rstd[i], n};
}

static norm_row_f32 row_f32(const backward *backward, int64_t i, int64_t at, int64_t n)
{
    const float *mean = backward->mean, *rstd = backward->rstd;
    return (norm_row_f32){(const float *)backward->dy + at, (const float *)backward->r.x + at, mean ? mean[i] : 0,
                          rstd[i], n};
}

static bool wanted(const lb_call *call, uint32_t mask_arg, uint32_t r)
{
    int64_t mask[4] = {1, 1, 1, 1};
    lb_frame_arg_ints(call, mask_arg, mask, 4);
    return mask[r] && r < call->n_results && call->results[r].data;
}

/* dgamma and dbeta are sums over rows `first` to `end`, in order: threads take columns. */
#define COLUMNS 256
static void affine_columns(const backward *backward, int64_t first, int64_t end)
{
    const rows *rows = &backward->r;
    size_t bytes = (size_t)rows->size * (rows->frame.wide ? 8 : 4);
    if (backward->dgamma) memset(backward->dgamma, 0, bytes);
    if (backward->dbeta) memset(backward->dbeta, 0, bytes);
    if (!backward->dgamma && !backward->dbeta) return;
#pragma omp parallel for schedule(static) if ((end - first) * rows->size > PARALLEL_ELEMENTS)
    for (int64_t j = 0; j < rows->size; j += COLUMNS) {
        int64_t width = rows->size - j < COLUMNS ? rows->size - j : COLUMNS;
        for (int64_t i = first; i < end; i++) {
            int64_t at = i * rows->size + j;
            if (rows->frame.wide) {
                const norm_row_f64 row = row_f64(backward, i, at, width);
                affine_backward_f64(&row, backward->dgamma ? (double *)backward->dgamma + j : NULL,
                                    backward->dbeta ? (double *)backward->dbeta + j : NULL, false, 0);
            } else {
                const norm_row_f32 row = row_f32(backward, i, at, width);
                affine_backward_f32(&row, backward->dgamma ? (float *)backward->dgamma + j : NULL,
                                    backward->dbeta ? (float *)backward->dbeta + j : NULL,
                                    !backward->rms && !backward->affine, backward->affine);
            }
        }
    }
}

/* torch on several threads: each adds up rows of its own, then the threads' sums are added in order
 * (layer_norm_kernel.cpp). */
static void affine_pieces(backward *backward, int64_t threads)
{
    rows *rows = &backward->r;
    const int64_t used = rows->count < threads ? rows->count : threads,
                  size = used ? (rows->count + used - 1) / used : 1;
    float *sums[] = {backward->dgamma, backward->dbeta}, *part = lb_frame_reals(&rows->frame, 2 * rows->size);
    if (!part) return;
    for (int s = 0; s < 2; s++)
        if (sums[s]) memset(sums[s], 0, (size_t)rows->size * sizeof *sums[s]);
    for (int64_t first = 0; first < rows->count; first += size) {
        backward->dgamma = sums[0] ? part : NULL, backward->dbeta = sums[1] ? part + rows->size : NULL;
        affine_columns(backward, first, first + size < rows->count ? first + size : rows->count);
        for (int s = 0; s < 2; s++) {
            for (int64_t k = 0; sums[s] && k < rows->size; k++) sums[s][k] += part[s * rows->size + k];
            if (sums[s] && backward->affine) lb_round_to_grid_f32(sums[s], (size_t)rows->size, backward->affine, NULL);
        }
    }
    backward->dgamma = sums[0], backward->dbeta = sums[1];
}

static void input_row(const backward *backward, int64_t i, void *row)
{
    const rows *rows = &backward->r;
    const lb_method *method = &rows->frame.call->method;
    int64_t at = i * rows->size;
    if (rows->frame.wide) {
        const norm_row_f64 f64 = row_f64(backward, i, at, rows->size);
        (backward->rms ? rms_backward_f64 : layer_backward_f64)(method, &f64, rows->gamma, row,
                                                                (double *)backward->dx + at);
    } else {
        const norm_row_f32 f64 = row_f32(backward, i, at, rows->size);
        (backward->rms ? rms_backward_f32 : layer_backward_f32)(method, &f64, rows->gamma, row,
                                                                (float *)backward->dx + at);
    }
}

/* |a g| + B |x| + B |mean| + sum |g| a / n with B = (sum |g| |mean| + sum |g x|) a^3 / n; dgamma's terms are
 * |dy| (|x| + |mean|) rstd. All f64. */
static void twin_row(const backward *backward, int64_t i)
{
    const rows *rows = &backward->r;
    const double *dy = (const double *)backward->dy + i * rows->size, *x = (const double *)rows->x + i * rows->size,
                 *gamma = rows->gamma;
    double mean = backward->mean ? fabs(((const double *)backward->mean)[i]) : 0,
           a = fabs(((const double *)backward->rstd)[i]);
    double g_sum = 0, gx_sum = 0, n = (double)rows->size;
    for (int64_t k = 0; k < rows->size; k++) {
        double g = fabs(dy[k] * (gamma ? gamma[k] : 1));
        g_sum += g, gx_sum += g * fabs(x[k]);
        if (backward->dgamma) ((double *)backward->dgamma)[k] += fabs(dy[k]) * (fabs(x[k]) + mean) * a;
        if (backward->dbeta) ((double *)backward->dbeta)[k] += fabs(dy[k]);
    }
    double B = (g_sum * mean + gx_sum) * a * a * a / n;
    for (int64_t k = 0; backward->dx && k < rows->size; k++)
        ((double *)backward->dx)[i * rows->size + k] =
            fabs(a * dy[k] * (gamma ? gamma[k] : 1)) + B * (fabs(x[k]) + mean) + g_sum * a / n;
}

static lb_status run_backward(backward *backward, uint32_t mask_arg, bool twin)
{
    rows *rows = &backward->r;
    lb_frame *frame = &rows->frame;
    int64_t n = rows->count * rows->size;
    backward->dx = wanted(frame->call, mask_arg, 0) ? lb_frame_output(frame, 0, n) : NULL;
    backward->dgamma = wanted(frame->call, mask_arg, 1) ? lb_frame_output(frame, 1, rows->size) : NULL;
    backward->dbeta = !backward->rms && wanted(frame->call, mask_arg, 2) ? lb_frame_output(frame, 2, rows->size) : NULL;
    void *row = lb_frame_reals(frame, 2 * rows->size);
    if (!lb_frame_ok(frame)) return lb_frame_end(frame);
    const lb_tensor *in = lb_frame_arg_tensor(frame->call, 1);
    if (!backward->rms && lb_dtype_bits(in->dtype) == 16) backward->affine = in->dtype;
    if (twin) {
        if (backward->dgamma) memset(backward->dgamma, 0, (size_t)rows->size * 8);
        if (backward->dbeta) memset(backward->dbeta, 0, (size_t)rows->size * 8);
        for (int64_t i = 0; i < rows->count; i++) twin_row(backward, i);
        const double scale = backward->rms ? 1 : lb_frame_twin_scale(frame->call, 1),
                     grain = backward->rms ? 0 : lb_twin_grain(frame->call, 1);
        for (int64_t k = 0; backward->dgamma && k < rows->size; k++)
            ((double *)backward->dgamma)[k] = ((double *)backward->dgamma)[k] * scale + grain;
        for (int64_t k = 0; backward->dbeta && k < rows->size; k++) ((double *)backward->dbeta)[k] *= scale;
        return lb_frame_end(frame);
    }
    const lb_schedule *schedule = frame->call->method.schedule;
    const int64_t threads =
        schedule && schedule->kind == LB_SCHEDULE_TORCH && !frame->wide && !backward->rms ? schedule->size : 1;
    if (threads > 1) frame->call->method.schedule = NULL; /* rows are one thread's */
    for (int64_t i = 0; backward->dx && i < rows->count; i++) input_row(backward, i, row);
    if (threads > 1)
        affine_pieces(backward, threads);
    else
        affine_columns(backward, 0, rows->count);
    return lb_frame_end(frame);
}

/* Args: grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask. */
static lb_status layer_backward(lb_call *call, bool twin)
{
    backward backward = {.rms = false};
    if (!rows_begin(&backward.r, call, lb_frame_arg_tensor(call, 1), 2)) return lb_frame_end(&backward.r.frame);
    lb_frame *frame = &backward.r.frame;
    backward.dy = lb_frame_input(frame, 0), backward.mean = lb_frame_input(frame, 3),
    backward.rstd = lb_frame_input(frame, 4);
    backward.r.gamma = lb_frame_input(frame, 5);
    return run_backward(&backward, 7, twin);
}

LB_WITH_TWIN(layer_norm_backward, layer_backward(call, twin))

/* ---- RMS norm ---------------------------------------------------------------------------------------------------- */

/* Args: input, normalized_shape, weight, eps. Results: y = x rstd weight in f32 with one rounding, rstd. */
static lb_status rms_norm_run(lb_call *call, bool twin)
{
    rows rows;
    if (!rows_begin(&rows, call, lb_frame_arg_tensor(call, 0), 1)) return lb_frame_end(&rows.frame);
    lb_frame *frame = &rows.frame;
    const void *gamma = lb_frame_input(frame, 2);
    double eps = lb_frame_arg_float(call, 3, lb_frame_arg_tensor(call, 0)->dtype == LB_F64 ? DBL_EPSILON : FLT_EPSILON);
    void *y = lb_frame_output(frame, 0, rows.count * rows.size), *rstd = lb_frame_output(frame, 1, rows.count);
    void *row = lb_frame_reals(frame, rows.size);
    const lb_method *method = &call->method;
    for (int64_t i = 0; lb_frame_ok(frame) && i < rows.count; i++) {
        int64_t at = i * rows.size;
        for (int64_t k = 0; k < rows.size; k++)
            lb_frame_set(frame, row, k, lb_frame_get(frame, rows.x, at + k) * lb_frame_get(frame, rows.x, at + k));
        if (frame->wide) {
            double s = lb_schedule_sum_f64(method->schedule, row, rows.size, method->accumulate) / (double)rows.size;
            s = ((double *)rstd)[i] = 1 / sqrt(s + eps);
            normalize_f64((const double *)rows.x + at, (double *)y + at, rows.size, 0, s, gamma, NULL);
        } else {
            float s = lb_schedule_sum_f32(method->schedule, row, rows.size, method->accumulate) / (float)rows.size;
            s = ((float *)rstd)[i] = (float)(1 / sqrt((double)(s + (float)eps)));
            normalize_f32((const float *)rows.x + at, (float *)y + at, rows.size, 0, s, gamma, NULL);
        }
        for (int64_t k = at; twin && k < at + rows.size; k++) ((double *)y)[k] = fabs(((double *)y)[k]);
    }
    return lb_frame_end(frame);
}

LB_WITH_TWIN(rms_norm, rms_norm_run(call, twin))

/* Args: grad_out, input, normalized_shape, rstd, weight, output_mask. */
static lb_status rms_backward(lb_call *call, bool twin)
{
    backward backward = {.rms = true};
    if (!rows_begin(&backward.r, call, lb_frame_arg_tensor(call, 1), 2)) return lb_frame_end(&backward.r.frame);
    lb_frame *frame = &backward.r.frame;
    backward.dy = lb_frame_input(frame, 0), backward.rstd = lb_frame_input(frame, 3);
    backward.r.gamma = lb_frame_input(frame, 4);
    return run_backward(&backward, 5, twin);
}

LB_WITH_TWIN(rms_norm_backward, rms_backward(call, twin))

#define SUM (LB_ROW_REDUCTION | LB_ROW_SQUARES)
const lb_op_row lb_rows_norm[] = {
    {.name = "aten::native_layer_norm",
     .args = "input! normalized_shape weight bias eps",
     LB_COMPUTED_BY(layer_norm),
     LB_SUMS(8, LB_TERMS(SIZES, 1)),
     .flags = SUM,
     .samples = "layer_norm"},
    {.name = "aten::native_layer_norm_backward",
     .args = "grad_out! input! normalized_shape mean! rstd! weight bias output_mask",
     LB_COMPUTED_BY(layer_norm_backward),
     LB_SUMS(12, LB_TERMS(ELEMENTS, 1)),
     .flags = SUM,
     .samples = "layer_norm_backward"},
    {.name = "aten::_fused_rms_norm",
     .args = "input! normalized_shape weight eps",
     LB_COMPUTED_BY(rms_norm),
     LB_SUMS(6, LB_TERMS(SIZES, 1)),
     .flags = SUM,
     .samples = "rms_norm"},
    {.name = "aten::_fused_rms_norm_backward",
     .args = "grad_out! input! normalized_shape rstd! weight output_mask",
     LB_COMPUTED_BY(rms_norm_backward),
     LB_SUMS(12, LB_TERMS(ELEMENTS, 1)),
     .flags = SUM,
     .samples = "rms_norm_backward"},
    {NULL},
};
