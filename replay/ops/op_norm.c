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

static bool rows_begin(rows *r, lb_call *call, const lb_tensor *in, uint32_t shape_arg)
{
    int64_t shape[LB_MAX_DIMS];
    r->frame = lb_frame_begin(call);
    r->size = 1;
    for (int k = 0, n = lb_frame_arg_ints(call, shape_arg, shape, LB_MAX_DIMS); k < n; k++) r->size *= shape[k];
    r->count = r->size ? lb_tensor_numel(in) / r->size : 0;
    r->halves = lb_dtype_bits(in->dtype) == 16;
    r->x = lb_frame_tensor(&r->frame, in);
    if (r->size < 1) lb_frame_fail(&r->frame, LB_ERR_UNSUPPORTED, "rows without elements");
    return lb_frame_ok(&r->frame);
}

/* ---- layer norm -------------------------------------------------------------------------------------------------- */

static void layer_row(const rows *r, int64_t i, double eps, void *row, void *y, void *mean, void *rstd)
{
    const lb_method *method = &r->frame.call->method;
    if (r->frame.wide) {
        const double *x = (const double *)r->x + i * r->size;
        double m, var;
        two_pass_f64(method, x, r->size, row, &m, &var);
        ((double *)mean)[i] = m;
        ((double *)rstd)[i] = 1 / sqrt((var > 0 ? var : var * 0) + eps);
        normalize_f64(x, (double *)y + i * r->size, r->size, m, ((double *)rstd)[i], r->gamma, r->beta);
    } else {
        const float *x = (const float *)r->x + i * r->size;
        float m, var;
        if (method->schedule)
            two_pass_f32(method, x, r->size, row, &m, &var);
        else
            lb_welford(x, r->size, r->halves, &m, &var);
        ((float *)mean)[i] = m;
        ((float *)rstd)[i] = 1 / sqrtf((var > 0 ? var : var * 0) + (float)eps);
        normalize_f32(x, (float *)y + i * r->size, r->size, m, ((float *)rstd)[i], r->gamma, r->beta);
    }
}

/* Args: input, normalized_shape, weight, bias, eps. Results: y, mean, rstd. */
static lb_status layer_norm_kernel(lb_call *call)
{
    rows r;
    if (!rows_begin(&r, call, lb_frame_arg_tensor(call, 0), 1)) return lb_frame_end(&r.frame);
    r.gamma = lb_frame_input(&r.frame, 2), r.beta = lb_frame_input(&r.frame, 3);
    void *y = lb_frame_output(&r.frame, 0, r.count * r.size);
    void *mean = lb_frame_output(&r.frame, 1, r.count), *rstd = lb_frame_output(&r.frame, 2, r.count);
    double eps = lb_frame_arg_float(call, 4, 1e-5);
    bool own = r.frame.wide || call->method.schedule;
    void *row = own ? lb_frame_reals(&r.frame, r.size) : NULL;
    if (lb_frame_ok(&r.frame)) {
#pragma omp parallel for schedule(static) if (!own && r.count * r.size > PARALLEL_ELEMENTS)
        for (int64_t i = 0; i < r.count; i++) layer_row(&r, i, eps, row, y, mean, rstd);
    }
    return lb_frame_end(&r.frame);
}

/* With e = mean |x|: the mean's twin is e, the relative error of rstd is that of the variance, u (1 + kappa) with
 * kappa = mean |x - m| (|x| + e) / (var + eps), and y's is |gamma| rstd (|x| + e + |x - m| (1 + kappa)) + |beta|. */
static lb_status layer_norm_twin(lb_call *call)
{
    rows r;
    if (!rows_begin(&r, call, lb_frame_arg_tensor(call, 0), 1)) return lb_frame_end(&r.frame);
    const double *gamma = lb_frame_input(&r.frame, 2), *beta = lb_frame_input(&r.frame, 3), *x = r.x;
    double *y = lb_frame_output(&r.frame, 0, r.count * r.size), *mean = lb_frame_output(&r.frame, 1, r.count);
    double *rstd = lb_frame_output(&r.frame, 2, r.count), eps = lb_frame_arg_float(call, 4, 1e-5);
    for (int64_t i = 0; lb_frame_ok(&r.frame) && i < r.count; i++, x += r.size, y += r.size) {
        double m = 0, e = 0, var = 0, mixed = 0;
        for (int64_t k = 0; k < r.size; k++) m += x[k] / (double)r.size, e += fabs(x[k]) / (double)r.size;
        for (int64_t k = 0; k < r.size; k++) {
            double d = fabs(x[k] - m);
            var += d * d / (double)r.size;
            mixed += d * (fabs(x[k]) + e) / (double)r.size;
        }
        double s = 1 / sqrt(var + eps), kappa = mixed / (var + eps);
        for (int64_t k = 0; k < r.size; k++) {
            double spread = fabs(x[k]) + e + fabs(x[k] - m) * (1 + kappa);
            y[k] = spread * s * (gamma ? fabs(gamma[k]) : 1) + (beta ? fabs(beta[k]) : 0);
        }
        mean[i] = e;
        rstd[i] = s * (1 + kappa);
    }
    return lb_frame_end(&r.frame);
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
static norm_row_f64 row_f64(const backward *b, int64_t i, int64_t at, int64_t n)
{
    const double *mean = b->mean, *rstd = b->rstd;
    return (norm_row_f64){(const double *)b->dy + at, (const double *)b->r.x + at, mean ? mean[i] : 0, rstd[i], n};
}

static norm_row_f32 row_f32(const backward *b, int64_t i, int64_t at, int64_t n)
{
    const float *mean = b->mean, *rstd = b->rstd;
    return (norm_row_f32){(const float *)b->dy + at, (const float *)b->r.x + at, mean ? mean[i] : 0, rstd[i], n};
}

static bool wanted(const lb_call *call, uint32_t mask_arg, uint32_t r)
{
    int64_t mask[4] = {1, 1, 1, 1};
    lb_frame_arg_ints(call, mask_arg, mask, 4);
    return mask[r] && r < call->n_results && call->results[r].data;
}

/* dgamma and dbeta are sums over rows `first` to `end`, in order: threads take columns. */
#define COLUMNS 256
static void affine_columns(const backward *b, int64_t first, int64_t end)
{
    const rows *r = &b->r;
    size_t bytes = (size_t)r->size * (r->frame.wide ? 8 : 4);
    if (b->dgamma) memset(b->dgamma, 0, bytes);
    if (b->dbeta) memset(b->dbeta, 0, bytes);
    if (!b->dgamma && !b->dbeta) return;
#pragma omp parallel for schedule(static) if ((end - first) * r->size > PARALLEL_ELEMENTS)
    for (int64_t j = 0; j < r->size; j += COLUMNS) {
        int64_t width = r->size - j < COLUMNS ? r->size - j : COLUMNS;
        for (int64_t i = first; i < end; i++) {
            int64_t at = i * r->size + j;
            if (r->frame.wide) {
                const norm_row_f64 row = row_f64(b, i, at, width);
                affine_backward_f64(&row, b->dgamma ? (double *)b->dgamma + j : NULL,
                                    b->dbeta ? (double *)b->dbeta + j : NULL, false, 0);
            } else {
                const norm_row_f32 row = row_f32(b, i, at, width);
                affine_backward_f32(&row, b->dgamma ? (float *)b->dgamma + j : NULL,
                                    b->dbeta ? (float *)b->dbeta + j : NULL, !b->rms && !b->affine, b->affine);
            }
        }
    }
}

/* torch on several threads: each adds up rows of its own, then the threads' sums are added in order
 * (layer_norm_kernel.cpp). */
static void affine_pieces(backward *b, int64_t threads)
{
    rows *r = &b->r;
    const int64_t used = r->count < threads ? r->count : threads, size = used ? (r->count + used - 1) / used : 1;
    float *sums[] = {b->dgamma, b->dbeta}, *part = lb_frame_reals(&r->frame, 2 * r->size);
    if (!part) return;
    for (int s = 0; s < 2; s++)
        if (sums[s]) memset(sums[s], 0, (size_t)r->size * sizeof *sums[s]);
    for (int64_t first = 0; first < r->count; first += size) {
        b->dgamma = sums[0] ? part : NULL, b->dbeta = sums[1] ? part + r->size : NULL;
        affine_columns(b, first, first + size < r->count ? first + size : r->count);
        for (int s = 0; s < 2; s++) {
            for (int64_t k = 0; sums[s] && k < r->size; k++) sums[s][k] += part[s * r->size + k];
            if (sums[s] && b->affine) lb_round_to_grid_f32(sums[s], (size_t)r->size, b->affine, NULL);
        }
    }
    b->dgamma = sums[0], b->dbeta = sums[1];
}

static void input_row(const backward *b, int64_t i, void *row)
{
    const rows *r = &b->r;
    const lb_method *method = &r->frame.call->method;
    int64_t at = i * r->size;
    if (r->frame.wide) {
        const norm_row_f64 x = row_f64(b, i, at, r->size);
        (b->rms ? rms_backward_f64 : layer_backward_f64)(method, &x, r->gamma, row, (double *)b->dx + at);
    } else {
        const norm_row_f32 x = row_f32(b, i, at, r->size);
        (b->rms ? rms_backward_f32 : layer_backward_f32)(method, &x, r->gamma, row, (float *)b->dx + at);
    }
}

/* |a g| + B |x| + B |mean| + sum |g| a / n with B = (sum |g| |mean| + sum |g x|) a^3 / n; dgamma's terms are
 * |dy| (|x| + |mean|) rstd. All f64. */
static void twin_row(const backward *b, int64_t i)
{
    const rows *r = &b->r;
    const double *dy = (const double *)b->dy + i * r->size, *x = (const double *)r->x + i * r->size, *gamma = r->gamma;
    double mean = b->mean ? fabs(((const double *)b->mean)[i]) : 0, a = fabs(((const double *)b->rstd)[i]);
    double g_sum = 0, gx_sum = 0, n = (double)r->size;
    for (int64_t k = 0; k < r->size; k++) {
        double g = fabs(dy[k] * (gamma ? gamma[k] : 1));
        g_sum += g, gx_sum += g * fabs(x[k]);
        if (b->dgamma) ((double *)b->dgamma)[k] += fabs(dy[k]) * (fabs(x[k]) + mean) * a;
        if (b->dbeta) ((double *)b->dbeta)[k] += fabs(dy[k]);
    }
    double B = (g_sum * mean + gx_sum) * a * a * a / n;
    for (int64_t k = 0; b->dx && k < r->size; k++)
        ((double *)b->dx)[i * r->size + k] =
            fabs(a * dy[k] * (gamma ? gamma[k] : 1)) + B * (fabs(x[k]) + mean) + g_sum * a / n;
}

static lb_status run_backward(backward *b, uint32_t mask_arg, bool twin)
{
    rows *r = &b->r;
    lb_frame *f = &r->frame;
    int64_t n = r->count * r->size;
    b->dx = wanted(f->call, mask_arg, 0) ? lb_frame_output(f, 0, n) : NULL;
    b->dgamma = wanted(f->call, mask_arg, 1) ? lb_frame_output(f, 1, r->size) : NULL;
    b->dbeta = !b->rms && wanted(f->call, mask_arg, 2) ? lb_frame_output(f, 2, r->size) : NULL;
    void *row = lb_frame_reals(f, 2 * r->size);
    if (!lb_frame_ok(f)) return lb_frame_end(f);
    const lb_tensor *in = lb_frame_arg_tensor(f->call, 1);
    if (!b->rms && lb_dtype_bits(in->dtype) == 16) b->affine = in->dtype;
    if (twin) {
        if (b->dgamma) memset(b->dgamma, 0, (size_t)r->size * 8);
        if (b->dbeta) memset(b->dbeta, 0, (size_t)r->size * 8);
        for (int64_t i = 0; i < r->count; i++) twin_row(b, i);
        const double scale = b->rms ? 1 : lb_frame_twin_scale(f->call, 1),
                     grain = b->rms ? 0 : lb_twin_grain(f->call, 1);
        for (int64_t k = 0; b->dgamma && k < r->size; k++)
            ((double *)b->dgamma)[k] = ((double *)b->dgamma)[k] * scale + grain;
        for (int64_t k = 0; b->dbeta && k < r->size; k++) ((double *)b->dbeta)[k] *= scale;
        return lb_frame_end(f);
    }
    const lb_schedule *schedule = f->call->method.schedule;
    const int64_t threads = schedule && schedule->kind == LB_SCHEDULE_TORCH && !f->wide && !b->rms ? schedule->size : 1;
    if (threads > 1) f->call->method.schedule = NULL; /* rows are one thread's */
    for (int64_t i = 0; b->dx && i < r->count; i++) input_row(b, i, row);
    if (threads > 1)
        affine_pieces(b, threads);
    else
        affine_columns(b, 0, r->count);
    return lb_frame_end(f);
}

/* Args: grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask. */
static lb_status layer_backward(lb_call *call, bool twin)
{
    backward b = {.rms = false};
    if (!rows_begin(&b.r, call, lb_frame_arg_tensor(call, 1), 2)) return lb_frame_end(&b.r.frame);
    lb_frame *f = &b.r.frame;
    b.dy = lb_frame_input(f, 0), b.mean = lb_frame_input(f, 3), b.rstd = lb_frame_input(f, 4);
    b.r.gamma = lb_frame_input(f, 5);
    return run_backward(&b, 7, twin);
}

LB_WITH_TWIN(layer_norm_backward, layer_backward(call, twin))

/* ---- RMS norm ---------------------------------------------------------------------------------------------------- */

/* Args: input, normalized_shape, weight, eps. Results: y = x rstd weight in f32 with one rounding, rstd. */
static lb_status rms_norm_run(lb_call *call, bool twin)
{
    rows r;
    if (!rows_begin(&r, call, lb_frame_arg_tensor(call, 0), 1)) return lb_frame_end(&r.frame);
    lb_frame *f = &r.frame;
    const void *gamma = lb_frame_input(f, 2);
    double eps = lb_frame_arg_float(call, 3, lb_frame_arg_tensor(call, 0)->dtype == LB_F64 ? DBL_EPSILON : FLT_EPSILON);
    void *y = lb_frame_output(f, 0, r.count * r.size), *rstd = lb_frame_output(f, 1, r.count);
    void *row = lb_frame_reals(f, r.size);
    const lb_method *method = &call->method;
    for (int64_t i = 0; lb_frame_ok(f) && i < r.count; i++) {
        int64_t at = i * r.size;
        for (int64_t k = 0; k < r.size; k++)
            lb_frame_set(f, row, k, lb_frame_get(f, r.x, at + k) * lb_frame_get(f, r.x, at + k));
        if (f->wide) {
            double s = lb_schedule_sum_f64(method->schedule, row, r.size, method->accumulate) / (double)r.size;
            s = ((double *)rstd)[i] = 1 / sqrt(s + eps);
            normalize_f64((const double *)r.x + at, (double *)y + at, r.size, 0, s, gamma, NULL);
        } else {
            float s = lb_schedule_sum_f32(method->schedule, row, r.size, method->accumulate) / (float)r.size;
            s = ((float *)rstd)[i] = (float)(1 / sqrt((double)(s + (float)eps)));
            normalize_f32((const float *)r.x + at, (float *)y + at, r.size, 0, s, gamma, NULL);
        }
        for (int64_t k = at; twin && k < at + r.size; k++) ((double *)y)[k] = fabs(((double *)y)[k]);
    }
    return lb_frame_end(f);
}

LB_WITH_TWIN(rms_norm, rms_norm_run(call, twin))

/* Args: grad_out, input, normalized_shape, rstd, weight, output_mask. */
static lb_status rms_backward(lb_call *call, bool twin)
{
    backward b = {.rms = true};
    if (!rows_begin(&b.r, call, lb_frame_arg_tensor(call, 1), 2)) return lb_frame_end(&b.r.frame);
    lb_frame *f = &b.r.frame;
    b.dy = lb_frame_input(f, 0), b.rstd = lb_frame_input(f, 3);
    b.r.gamma = lb_frame_input(f, 4);
    return run_backward(&b, 5, twin);
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
