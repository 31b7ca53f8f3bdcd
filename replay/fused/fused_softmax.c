/* Softmax as kernels compute it: two passes over a row, or one that keeps a running maximum.
 *
 *      two-pass       m = max x    l = sum e^(x - m) in the order sum: says    y = e^(x - m) / l
 *      online[:B]     over blocks of B elements (1): l = l e^(m_old - m) + sum of the block; then y = e^(x - m) / l
 *      warp           PyTorch's CUDA kernel for rows of up to 1024: lane i adds elements i, i + 32, …, then xor 16 to 1
 *                     (PersistentSoftmax.cuh) */
#include "functions/elementary.h"
#include "fused/fused.h"
#include "orders/schedule.h"

#include <math.h>
#include <string.h>

typedef struct kernel {
    bool online, warp, reciprocal, has_sum;
    int64_t block;
    lb_schedule sum;
} kernel;

static const lb_composite_kernel kernels[] = {
    {"eager", "eager", "the recorded op"},
    {"two-pass", "two-pass", "maximum, sum of exponentials (torch's cascade), quotient"},
    {"online", "online[:BLOCK]", "a running maximum that rescales a running sum, blocks of elements (1)"},
    {"warp", "warp", "one warp per row: 32 lanes in turn, then xor 16 to 1 (PyTorch on CUDA)"},
    {NULL, NULL, NULL}};
#define OPTIONS "sum:ORDER (of a pass or block), end:divide|reciprocal"

static bool read_kernel(const lb_fused_text *text, void *out)
{
    kernel *k = out;
    *k = (kernel){.block = 1};
    k->online = !strcmp(text->name, "online"), k->warp = !strcmp(text->name, "warp");
    const int end = lb_fused_text_choice(text, "end", "divide|reciprocal", 0),
              n = lb_fused_text_numbers(text->parameters, &k->block, k->online);
    bool ok = (k->online || k->warp || !strcmp(text->name, "two-pass")) && end >= 0 && n >= 0 &&
              lb_fused_text_keys(text, k->warp ? "end" : "sum end");
    for (uint32_t i = 0; ok && i < text->n_options; i++) {
        if (strcmp(text->options[i].key, "sum")) continue;
        ok = lb_schedule_parse(text->options[i].value, &k->sum, NULL) == LB_OK;
        if (ok && (k->sum.kind == LB_SCHEDULE_TREE || lb_schedule_of_products(&k->sum)))
            lb_schedule_release(&k->sum), ok = false;
        k->has_sum = ok;
    }
    k->reciprocal = end == 1;
    if (k->warp) k->sum = (lb_schedule){.kind = LB_SCHEDULE_BUTTERFLY, .size = 32, .vector = 1}, k->has_sum = true;
    return ok;
}

static float sum_of(const kernel *kernel, const float *x, int64_t n)
{
    return lb_schedule_sum_f32(kernel->has_sum ? &kernel->sum : NULL, x, n, LB_NO_DTYPE);
}

static void row_f32(const kernel *kernel, const float *x, float *y, int64_t n)
{
    float top = -INFINITY, sum = 0;
    const int64_t block = kernel->online ? kernel->block : n;
    for (int64_t at = 0; at < n; at += block) {
        const int64_t count = n - at < block ? n - at : block;
        const float old = top;
        for (int64_t i = at; i < at + count; i++) top = x[i] > top ? x[i] : top;
        if (top == -INFINITY) continue;
        for (int64_t i = at; i < at + count; i++) y[i] = x[i] - top;
        lb_exp_f32(y + at, y + at, (size_t)count);
        const float part = sum_of(kernel, y + at, count);
        sum = at && old != -INFINITY ? sum * (float)lb_exp((double)(old - top)) + part : part;
    }
    if (top == -INFINITY) {
        memset(y, 0, (size_t)n * sizeof *y);
        return;
    }
    for (int64_t i = 0; i < n; i++) y[i] = x[i] - top;
    lb_exp_f32(y, y, (size_t)n);
    for (int64_t i = 0; i < n; i++) y[i] = kernel->reciprocal ? y[i] * (1 / sum) : y[i] / sum;
}

static void row_f64(const double *x, double *y, int64_t n, bool twin)
{
    double top = -INFINITY, sum = 0, weighted = 0;
    for (int64_t i = 0; i < n; i++) top = x[i] > top ? x[i] : top;
    for (int64_t i = 0; i < n; i++) {
        y[i] = top == -INFINITY ? 0 : lb_exp(x[i] - top);
        sum += y[i];
        if (y[i] > 0) weighted += y[i] * (8 + fabs(x[i] - top));
    }
    for (int64_t i = 0; i < n && sum > 0; i++)
        y[i] = y[i] / sum * (twin && y[i] > 0 ? 8 + (double)n + fabs(x[i] - top) + weighted / sum : 1);
}

static lb_status run(lb_call *call, lb_composite_kind kind, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    kernel kernel;
    LB_TRY(lb_fused_kernel_of(call, kind, &kernel));
    const lb_tensor *in = lb_fused_input(call, LB_SOFTMAX_X);
    const int64_t n = in->layout.ndim ? in->layout.shape[in->layout.ndim - 1] : 1, numel = lb_tensor_numel(in);
    if (lb_tensor_numel(&call->results[0]) != numel) lb_frame_fail(&frame, LB_ERR_INVALID, "a result of another shape");
    const void *x = lb_frame_tensor(&frame, in);
    void *y = lb_frame_output(&frame, LB_SOFTMAX_Y, numel);
    for (int64_t i = 0; lb_frame_ok(&frame) && i < numel; i += n) {
        if (frame.wide)
            row_f64((const double *)x + i, (double *)y + i, n, twin);
        else
            row_f32(&kernel, (const float *)x + i, (float *)y + i, n);
    }
    return lb_frame_end(&frame);
}

const lb_fused_kind lb_fused_softmax = {
    .row = "fused::softmax",
    .kernels = kernels,
    .options = OPTIONS,
    .usual = "online",
    .run = run,
    .read = read_kernel,
    .kernel_size = sizeof(kernel),
    .fixed = "eager two-pass two-pass,sum:sequential online warp two-pass,end:reciprocal online:128 "
             "online:512 two-pass,sum:pairwise two-pass,sum:exact two-pass,sum:butterfly:128x4 "
             "two-pass,sum:butterfly:1024x4",
};
