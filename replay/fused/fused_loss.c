/* Fused cross-entropy: a row's log-sum-exp, and the mean of the rows.
 *
 *      two-pass      m = max x   l = sum e^(x - m)   x - m - log l, of the target alone: log-softmax and its negative
 *                    log likelihood
 *      online[:B]    a running maximum over blocks of B classes (1) that rescales the sum; lse = log l + m, lse -
 *                    x[target]: fused cross-entropy kernels (Liger, Cut Cross Entropy)
 *
 * Rows are added in the order rows: says (sequential), then divided by how many count. */
#include "functions/elementary.h"
#include "fused/fused.h"
#include "orders/schedule.h"

#include <math.h>
#include <string.h>

typedef struct kernel {
    bool online, has_sum, has_rows;
    int64_t block;
    lb_schedule sum, rows;
} kernel;

static const lb_composite_kernel kernels[] = {
    {"eager", "eager", "the recorded ops"},
    {"two-pass", "two-pass", "log-softmax, then the mean of what the targets have"},
    {"online", "online[:CLASSES]", "a running maximum over blocks of classes, log-sum-exp minus the target's logit"},
    {NULL, NULL, NULL}};
#define OPTIONS "sum:ORDER (of the exponentials of a pass or block), rows:ORDER (of the mean)"

static bool read_kernel(const lb_fused_text *text, void *out)
{
    kernel *k = out;
    *k = (kernel){.block = 1};
    k->online = !strcmp(text->name, "online");
    const bool known = (k->online || !strcmp(text->name, "two-pass")) &&
                       lb_fused_text_numbers(text->parameters, &k->block, k->online) >= 0;
    return known && lb_fused_text_keys(text, "sum rows") && lb_fused_text_order(text, "sum", &k->sum, &k->has_sum) &&
           lb_fused_text_order(text, "rows", &k->rows, &k->has_rows);
}
static float row_f32(const kernel *kernel, const float *x, float *p, int64_t n, int64_t target)
{
    const int64_t block = kernel->online ? kernel->block : n;
    float top = -INFINITY, sum = 0;
    for (int64_t at = 0; at < n; at += block) {
        const int64_t count = n - at < block ? n - at : block;
        const float old = top;
        for (int64_t i = at; i < at + count; i++) top = x[i] > top ? x[i] : top;
        for (int64_t i = 0; i < count; i++) p[i] = x[at + i] - top;
        lb_exp_f32(p, p, (size_t)count);
        const float part = lb_schedule_sum_f32(kernel->has_sum ? &kernel->sum : NULL, p, count, LB_NO_DTYPE);
        sum = at ? sum * (float)lb_exp((double)(old - top)) + part : part;
    }
    const float log_sum = (float)lb_log((double)sum);
    return kernel->online ? log_sum + top - x[target] : -(x[target] - top - log_sum);
}

static double row_f64(const double *x, int64_t n, int64_t target, bool twin)
{
    double top = -INFINITY, sum = 0, weighted = 0;
    for (int64_t i = 0; i < n; i++) top = x[i] > top ? x[i] : top;
    for (int64_t i = 0; i < n; i++) sum += lb_exp(x[i] - top), weighted += lb_exp(x[i] - top) * (8 + fabs(x[i] - top));
    return twin ? fabs(x[target]) + 2 * fabs(top) + fabs(x[target] - top) + fabs(lb_log(sum)) + 8 + (double)n +
                      weighted / sum
                : lb_log(sum) + top - x[target];
}

static lb_status run(lb_call *call, lb_composite_kind kind, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    kernel kernel;
    LB_TRY(lb_fused_kernel_of(call, kind, &kernel));
    const lb_tensor *in = lb_fused_input(call, LB_LOSS_LOGITS), *at = lb_fused_input(call, LB_LOSS_TARGET);
    const int64_t n = in->layout.ndim ? in->layout.shape[in->layout.ndim - 1] : 0,
                  rows = n ? lb_tensor_numel(in) / n : 0;
    const int64_t ignored = (int64_t)lb_fused_number(call, LB_LOSS_IGNORED);
    if (!at || lb_tensor_numel(at) != rows || lb_tensor_numel(&call->results[0]) != 1)
        lb_frame_fail(&frame, LB_ERR_INVALID, "logits, targets and loss do not match");
    const char *x = lb_frame_tensor(&frame, in);
    const int64_t *target = lb_frame_integers(&frame, at);
    void *y = lb_frame_output(&frame, LB_LOSS_Y, 1);
    float *p = lb_frame_scratch(&frame, (size_t)(n + 1) * sizeof *p),
          *each = lb_frame_scratch(&frame, (size_t)(rows + 1) * sizeof *each);
    int64_t counted = 0;
    double wide = 0;
    for (int64_t i = 0; lb_frame_ok(&frame) && i < rows; i++) {
        if (target[i] == ignored) continue;
        if (target[i] < 0 || target[i] >= n)
            lb_frame_fail(&frame, LB_ERR_INVALID, "a target is not a class");
        else if (frame.wide)
            wide += row_f64((const double *)x + i * n, n, target[i], twin), counted++;
        else
            each[counted++] = row_f32(&kernel, (const float *)x + i * n, p, n, target[i]);
    }
    if (!lb_frame_ok(&frame)) return lb_frame_end(&frame);
    const bool mean = !(lb_fused_flags(call) & LB_LOSS_SUM);
    static const lb_schedule in_order = {.kind = LB_SCHEDULE_SEQUENTIAL};
    if (frame.wide) {
        *(double *)y = (mean ? wide / (double)counted : wide) * (twin ? 4 + (double)counted : 1);
    } else {
        const float sum = lb_schedule_sum_f32(kernel.has_rows ? &kernel.rows : &in_order, each, counted, LB_NO_DTYPE);
        *(float *)y = mean ? sum / (float)counted : sum;
    }
    return lb_frame_end(&frame);
}

const lb_fused_kind lb_fused_cross_entropy = {
    .row = "fused::cross_entropy",
    .kernels = kernels,
    .options = OPTIONS,
    .usual = "online",
    .run = run,
    .read = read_kernel,
    .kernel_size = sizeof(kernel),
    .fixed = "eager two-pass online online:1024 online:4096 two-pass,sum:sequential "
             "two-pass,rows:cascade online,rows:cascade two-pass,sum:butterfly:1024x4 "
             "online:1024,rows:cascade",
};
