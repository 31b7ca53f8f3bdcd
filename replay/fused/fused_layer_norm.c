/* Fused layer norm: how mean and variance of a row are found.
 *
 *      two-pass    m = sum x / n      v = sum (x - m)² / n
 *      one-pass    m = sum x / n      v = sum x² / n - m², at least 0: kernels that read a row once
 *      welford     torch's CPU kernel (welford.h)
 *
 * Where the program divides by n - 1, two-pass does so, too; the others make the variance larger by n / (n - 1). Sums
 * are in the order that sum: says; 1 / sqrt(v + eps) has two roundings, as in torch, and eps stands where the program
 * has it. y = (x - m) r weight + bias, the last product fused with the sum (torch's build), or apply:affine: x r + (-r
 * m), then weight and bias. */
#include "fused/fused.h"
#include "orders/schedule.h"
#include "orders/welford.h"

#include <math.h>
#include <string.h>

typedef struct kernel {
    enum { TWO_PASS, ONE_PASS, WELFORD } form;
    bool has_sum, affine;
    lb_schedule sum;
} kernel;

static const lb_composite_kernel kernels[] = {
    {"eager", "eager", "the recorded op"},
    {"welford", "welford", "torch's CPU kernel: eight lanes of Welford's update, chunks joined in a tree"},
    {"two-pass", "two-pass", "the mean, then the mean square of what differs from it"},
    {"one-pass", "one-pass", "mean and mean square at once, the variance as their difference"},
    {NULL, NULL, NULL}};
#define OPTIONS "sum:ORDER (cascade), apply:fma|affine"

static bool read_kernel(const lb_fused_text *text, void *out)
{
    kernel *k = out;
    static const char *const names[] = {"two-pass", "one-pass", "welford"};
    int form = -1;
    *k = (kernel){0};
    for (int i = 0; i < 3; i++)
        if (!strcmp(text->name, names[i])) form = i;
    const int apply = lb_fused_text_choice(text, "apply", "fma|affine", 0);
    if (form < 0 || apply < 0 || *text->parameters ||
        !lb_fused_text_keys(text, form == WELFORD ? "apply" : "sum apply") ||
        !lb_fused_text_order(text, "sum", &k->sum, &k->has_sum))
        return false;
    k->form = form, k->affine = apply;
    return true;
}
typedef struct work {
    lb_frame frame;
    kernel kernel;
    int64_t size;
    double eps, less; /* the variance is that of so many elements less than size */
    int place;        /* of eps */
    bool halves;
    const void *weight, *bias;
    float *row;
} work;

static void row_f32(const work *work, const float *x, float *y, float *mean, float *rstd)
{
    const kernel *kernel = &work->kernel;
    const lb_schedule *order = kernel->has_sum ? &kernel->sum : NULL;
    const float *g = work->weight, *b = work->bias;
    const int64_t n = work->size;
    const float others = (float)((double)n - work->less);
    float m, v;
    if (kernel->form == WELFORD) {
        lb_welford(x, n, work->halves, &m, &v);
    } else {
        m = lb_schedule_sum_f32(order, x, n, LB_NO_DTYPE) / (float)n;
        const float from = kernel->form == TWO_PASS ? m : 0;
        for (int64_t i = 0; i < n; i++) work->row[i] = (x[i] - from) * (x[i] - from);
        v = lb_schedule_sum_f32(order, work->row, n, LB_NO_DTYPE) / (kernel->form == TWO_PASS ? others : (float)n);
        if (kernel->form == ONE_PASS) v -= m * m;
    }
    if (work->less > 0 && kernel->form != TWO_PASS) v *= (float)n / others;
    const float r = lb_fused_inverse_root_f32(v > 0 ? v : v * 0, (float)work->eps, work->place), shift = -r * m;
    for (int64_t i = 0; i < n; i++) {
        const float normal = kernel->affine ? x[i] * r + shift : (x[i] - m) * r;
        y[i] = g && b ? (kernel->affine ? normal * g[i] + b[i] : fmaf(normal, g[i], b[i]))
               : g    ? normal * g[i]
                      : normal + (b ? b[i] : 0);
    }
    *mean = m, *rstd = r;
}

static void row_f64(const work *work, const double *x, double *y, double *mean, double *rstd, bool twin, double scale)
{
    const double *g = work->weight, *b = work->bias;
    const double others = (double)work->size - work->less;
    double m = 0, e = 0, v = 0, mixed = 0;
    for (int64_t i = 0; i < work->size; i++) m += x[i] / (double)work->size, e += fabs(x[i]) / (double)work->size;
    for (int64_t i = 0; i < work->size; i++) {
        v += (x[i] - m) * (x[i] - m) / others;
        mixed += (work->kernel.form == ONE_PASS ? x[i] * x[i] : fabs(x[i] - m) * (fabs(x[i]) + e)) / others;
    }
    /* An error of v is one of its root, relative to v where eps does not stand beside it. */
    const double r = lb_fused_inverse_root(v, work->eps, work->place),
                 kappa = mixed * r * (work->place == LB_EPS_INSIDE || v == 0 ? r : 1 / sqrt(v));
    for (int64_t i = 0; i < work->size; i++) {
        const double spread = fabs(x[i]) + e + fabs(x[i] - m) * (1 + kappa);
        y[i] = twin ? (spread * r * (g ? fabs(g[i]) : 1) + (b ? fabs(b[i]) : 0)) * scale
                    : (x[i] - m) * r * (g ? g[i] : 1) + (b ? b[i] : 0);
    }
    *mean = twin ? e * scale : m, *rstd = twin ? r * (1 + kappa) * scale : r;
}

static lb_status run(lb_call *call, lb_composite_kind kind, bool twin)
{
    work work = {.frame = lb_frame_begin(call)};
    LB_TRY(lb_fused_kernel_of(call, kind, &work.kernel));
    const lb_tensor *in = lb_fused_input(call, LB_LAYER_X), *weight = lb_fused_input(call, LB_LAYER_WEIGHT),
                    *bias = lb_fused_input(call, LB_LAYER_BIAS);
    work.size = in->layout.ndim ? in->layout.shape[in->layout.ndim - 1] : 1;
    const int64_t rows = work.size ? lb_tensor_numel(in) / work.size : 0;
    work.eps = lb_fused_number(call, LB_LAYER_EPS), work.less = lb_fused_number(call, LB_LAYER_LESS);
    work.place = (int)lb_fused_number(call, LB_LAYER_PLACE), work.halves = lb_dtype_bits(in->dtype) == 16;
    if ((weight && lb_tensor_numel(weight) != work.size) || (bias && lb_tensor_numel(bias) != work.size) ||
        lb_tensor_numel(&call->results[0]) != rows * work.size)
        lb_frame_fail(&work.frame, LB_ERR_INVALID, "weight, bias or result of another size");
    const char *x = lb_frame_tensor(&work.frame, in);
    work.weight = lb_frame_tensor(&work.frame, weight), work.bias = lb_frame_tensor(&work.frame, bias);
    char *y = lb_frame_output(&work.frame, LB_LAYER_Y, rows * work.size);
    char *mean = lb_fused_wants(call, LB_LAYER_MEAN) ? lb_frame_output(&work.frame, LB_LAYER_MEAN, rows)
                                                     : lb_frame_reals(&work.frame, rows + 1);
    char *rstd = lb_fused_wants(call, LB_LAYER_RSTD) ? lb_frame_output(&work.frame, LB_LAYER_RSTD, rows)
                                                     : lb_frame_reals(&work.frame, rows + 1);
    work.row = lb_frame_reals(&work.frame, work.size + 1);
    const double scale = 16 + (double)work.size + 2 * lb_frame_twin_scale(call, LB_FUSED_INPUTS);
    const int64_t e = work.frame.wide ? 8 : 4;
    for (int64_t i = 0; lb_frame_ok(&work.frame) && i < rows; i++) {
        const int64_t at = i * work.size * e;
        if (work.frame.wide)
            row_f64(&work, (const double *)(x + at), (double *)(y + at), (double *)mean + i, (double *)rstd + i, twin,
                    scale);
        else
            row_f32(&work, (const float *)(x + at), (float *)(y + at), (float *)mean + i, (float *)rstd + i);
    }
    return lb_frame_end(&work.frame);
}

const lb_fused_kind lb_fused_layer_norm = {
    .row = "fused::layer_norm",
    .kernels = kernels,
    .options = OPTIONS,
    .usual = "two-pass",
    .run = run,
    .read = read_kernel,
    .kernel_size = sizeof(kernel),
    .fixed = "eager welford two-pass two-pass,apply:affine one-pass two-pass,sum:sequential "
             "one-pass,sum:sequential two-pass,sum:butterfly:128x4 one-pass,sum:butterfly:128x4 "
             "two-pass,sum:pairwise two-pass,sum:exact",
};
