/* Group norm and batch norm with their backwards: norms whose weights belong to channels.
 *
 * Group norm's moments are torch's (welford.h); batch norm adds up in f64, as torch's CPU kernels do. What follows is
 * evaluated in f64 and rounded once to the frame's type. */
#include "kernel/channel_moments.h"
#include "kernel/twin_grain.h"
#include "orders/schedule.h"
#include "orders/welford.h"

#include <math.h>
#include <string.h>

static bool wanted(const lb_call *call, uint32_t mask_arg, uint32_t r)
{
    int64_t mask[3] = {1, 1, 1};
    lb_frame_arg_ints(call, mask_arg, mask, 3);
    return mask[r] && r < call->n_results && call->results[r].data;
}

/* ---- group norm -------------------------------------------------------------------------------------------------- */

/* (samples, channels, spatial) in `groups` groups of channels. */
typedef struct groups {
    lb_frame frame;
    int64_t samples, channels, spatial, groups, width; /* width: channels of a group */
    const void *x, *gamma;
    bool halves;
} groups;

/* Args from `first`: N, C, HxW, group. */
static bool groups_begin(groups *groups, lb_call *call, const lb_tensor *in, uint32_t first)
{
    groups->frame = lb_frame_begin(call);
    groups->samples = lb_frame_arg_int(call, first, 1), groups->channels = lb_frame_arg_int(call, first + 1, 1);
    groups->spatial = lb_frame_arg_int(call, first + 2, 1), groups->groups = lb_frame_arg_int(call, first + 3, 1);
    if (groups->groups < 1 || groups->channels % groups->groups ||
        lb_tensor_numel(in) != groups->samples * groups->channels * groups->spatial)
        lb_frame_fail(&groups->frame, LB_ERR_INVALID, "groups do not divide the channels");
    groups->width = lb_frame_ok(&groups->frame) ? groups->channels / groups->groups : 1;
    groups->halves = lb_dtype_bits(in->dtype) == 16;
    groups->x = lb_frame_tensor(&groups->frame, in);
    return lb_frame_ok(&groups->frame) && lb_tensor_numel(in) > 0;
}

/* Two passes in f64. */
static void moments(const lb_frame *frame, const void *x, int64_t from, int64_t n, double *mean, double *var)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) sum += lb_frame_get(frame, x, from + i);
    *mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++)
        squares += (lb_frame_get(frame, x, from + i) - *mean) * (lb_frame_get(frame, x, from + i) - *mean);
    *var = squares / (double)n;
}

/* What cancellation does, as in op_norm.c: e = mean |x|, kappa = mean |x - m| (|x| + e) / (var + eps). */
static lb_channel_moments twin_moments(const lb_frame *frame, const void *x, int64_t from, int64_t n, double eps)
{
    lb_channel_moments m = {0};
    double mixed = 0;
    moments(frame, x, from, n, &m.mean, &m.var);
    for (int64_t i = 0; i < n; i++) m.e += fabs(lb_frame_get(frame, x, from + i)) / (double)n;
    for (int64_t i = 0; i < n; i++)
        mixed += fabs(lb_frame_get(frame, x, from + i) - m.mean) * (fabs(lb_frame_get(frame, x, from + i)) + m.e) /
                 (double)n;
    m.kappa = mixed / (m.var + eps);
    return m;
}

/* What torch's CUDA kernel rounds to the dtype of 16-bit inputs besides the result (group_norm_kernel.cu): mean and
 * 1/std, which many versions read back so, and eps. As parts of a twin: `part` of each of those two, and how far eps
 * moved in units of roundoff. Elsewhere 0. */
typedef struct narrow_statistics {
    double part, eps_off;
} narrow_statistics;

static narrow_statistics narrow_statistics_of(const lb_call *call, double eps)
{
    const lb_dtype dtype = lb_frame_arg_tensor(call, 0)->dtype;
    if (!call->cuda || lb_dtype_bits(dtype) != 16) return (narrow_statistics){0};
    double rounded = eps;
    lb_round_to_grid_f64(&rounded, 1, dtype, NULL);
    return (narrow_statistics){lb_frame_twin_rounding(call, 0), fabs(rounded - eps) / lb_dtype_unit_roundoff(dtype)};
}

/* Args: input, weight, bias, N, C, HxW, group, eps. Results: y = x a + b with a = rstd gamma, b = beta - a mean; mean,
 * rstd. */
static lb_status group_norm_run(lb_call *call, bool twin)
{
    groups groups;
    if (!groups_begin(&groups, call, lb_frame_arg_tensor(call, 0), 3)) return lb_frame_end(&groups.frame);
    lb_frame *frame = &groups.frame;
    const void *gamma = lb_frame_input(frame, 1), *beta = lb_frame_input(frame, 2);
    int64_t count = groups.samples * groups.groups, n = groups.width * groups.spatial;
    void *y = lb_frame_output(frame, 0, count * n), *means = lb_frame_output(frame, 1, count),
         *rstds = lb_frame_output(frame, 2, count);
    double eps = lb_frame_arg_float(call, 7, 1e-5);
    const narrow_statistics narrow = narrow_statistics_of(call, eps);
    for (int64_t i = 0; lb_frame_ok(frame) && i < count; i++) {
        double mean, var, rstd, e = 0, kappa = 0, spread = 0;
        if (twin) {
            const lb_channel_moments m = twin_moments(frame, groups.x, i * n, n, eps);
            mean = m.mean, e = m.e, kappa = m.kappa;
            rstd = 1 / sqrt(m.var + eps);
            spread = narrow.part * (1 + narrow.eps_off / (m.var + eps));
        } else if (frame->wide) {
            moments(frame, groups.x, i * n, n, &mean, &var);
            rstd = 1 / sqrt(var + eps);
        } else {
            float m, v;
            lb_welford((const float *)groups.x + i * n, n, groups.halves, &m, &v);
            mean = m;
            rstd = 1 / sqrtf((v > 0 ? v : v * 0) + (float)eps);
        }
        lb_frame_set(frame, means, i, twin ? e : mean);
        lb_frame_set(frame, rstds, i, twin ? rstd * (1 + kappa + spread) : rstd);
        for (int64_t c = 0; c < groups.width; c++) {
            int64_t channel = i % groups.groups * groups.width + c;
            double w = gamma ? lb_frame_get(frame, gamma, channel) : 1,
                   b = beta ? lb_frame_get(frame, beta, channel) : 0, scale = rstd * w;
            if (!frame->wide) scale = (float)scale;
            double shift = -scale * mean + b;
            if (!frame->wide) shift = (float)shift;
            for (int64_t k = 0; k < groups.spatial; k++) {
                int64_t at = i * n + c * groups.spatial + k;
                double x = lb_frame_get(frame, groups.x, at);
                double size = fabs(scale) * (fabs(x) + fabs(mean) * (1 + narrow.part) + e +
                                             fabs(x - mean) * (1 + kappa + spread)) +
                              fabs(b);
                lb_frame_set(frame, y, at, twin ? size : x * scale + shift);
            }
        }
    }
    return lb_frame_end(frame);
}

LB_WITH_TWIN(group_norm, group_norm_run(call, twin))

/* What a backward call reads besides x and gamma, and what it writes; a gradient that is not wanted is NULL. */
typedef struct gradients {
    const void *dy, *mean, *rstd;
    void *dx, *dgamma, *dbeta;
    bool twin;
} gradients;

/* Per channel of a sample: ds = sum dy x, db = sum dy (of magnitudes for the twin). dx = a dy gamma + b x + c with the
 * sums over the group, b = (db mean - ds) a^3 / n, c = -b mean - db a / n. */
static void group_backward(const groups *groups, const gradients *to, int64_t i)
{
    const lb_frame *frame = &groups->frame;
    const bool twin = to->twin;
    const void *dy = to->dy;
    void *dx = to->dx, *dgamma = to->dgamma, *dbeta = to->dbeta;
    int64_t n = groups->width * groups->spatial;
    double m = lb_frame_get(frame, to->mean, i), a = lb_frame_get(frame, to->rstd, i), ds_sum = 0, db_sum = 0;
    if (twin) m = fabs(m);
    for (int64_t c = 0; c < groups->width; c++) {
        int64_t channel = i % groups->groups * groups->width + c, from = i * n + c * groups->spatial;
        double ds = 0, db = 0, w = groups->gamma ? lb_frame_get(frame, groups->gamma, channel) : 1;
        for (int64_t k = from; k < from + groups->spatial; k++) {
            double d = lb_frame_get(frame, dy, k), x = lb_frame_get(frame, groups->x, k);
            ds += twin ? fabs(d * x) : d * x;
            db += twin ? fabs(d) : d;
        }
        ds_sum += ds * (twin ? fabs(w) : w), db_sum += db * (twin ? fabs(w) : w);
        if (dgamma)
            lb_frame_set(frame, dgamma, channel,
                         lb_frame_get(frame, dgamma, channel) + (twin ? ds + db * m : ds - db * m) * a);
        if (dbeta) lb_frame_set(frame, dbeta, channel, lb_frame_get(frame, dbeta, channel) + db);
    }
    double b = (twin ? db_sum * m + ds_sum : db_sum * m - ds_sum) * a * a * a / (double)n;
    double shift = twin ? b * m + db_sum * a / (double)n : -b * m - db_sum * a / (double)n;
    for (int64_t k = 0; dx && k < n; k++) {
        int64_t at = i * n + k;
        double w = groups->gamma
                       ? lb_frame_get(frame, groups->gamma, i % groups->groups * groups->width + k / groups->spatial)
                       : 1;
        double first = a * lb_frame_get(frame, dy, at) * w, x = lb_frame_get(frame, groups->x, at);
        lb_frame_set(frame, dx, at, twin ? fabs(first) + b * fabs(x) + shift : first + b * x + shift);
    }
}

/* Args: grad_out, input, mean, rstd, weight, N, C, HxW, group, output_mask. */
static lb_status group_norm_backward_run(lb_call *call, bool twin)
{
    groups groups;
    if (!groups_begin(&groups, call, lb_frame_arg_tensor(call, 1), 5)) return lb_frame_end(&groups.frame);
    lb_frame *frame = &groups.frame;
    gradients to = {.dy = lb_frame_input(frame, 0),
                    .mean = lb_frame_input(frame, 2),
                    .rstd = lb_frame_input(frame, 3),
                    .twin = twin};
    groups.gamma = lb_frame_input(frame, 4);
    int64_t count = groups.samples * groups.groups;
    to.dx = wanted(call, 9, 0) ? lb_frame_output(frame, 0, count * groups.width * groups.spatial) : NULL;
    to.dgamma = wanted(call, 9, 1) ? lb_frame_output(frame, 1, groups.channels) : NULL;
    to.dbeta = wanted(call, 9, 2) ? lb_frame_output(frame, 2, groups.channels) : NULL;
    if (!lb_frame_ok(frame)) return lb_frame_end(frame);
    for (int64_t channel = 0; channel < groups.channels; channel++) {
        if (to.dgamma) lb_frame_set(frame, to.dgamma, channel, 0);
        if (to.dbeta) lb_frame_set(frame, to.dbeta, channel, 0);
    }
    for (int64_t i = 0; i < count; i++) group_backward(&groups, &to, i);
    return lb_frame_end(frame);
}

LB_WITH_TWIN(group_norm_backward, group_norm_backward_run(call, twin))

/* ---- batch norm -------------------------------------------------------------------------------------------------- */

/* Where its pieces stand in the schema; NONE: absent. */
#define NONE 99
#define ALWAYS 98
typedef struct batch_args {
    uint32_t running, training, momentum, eps;
    uint32_t updated; /* result that is the new running mean, the variance follows */
} batch_args;

static bool trains(const lb_call *call, uint32_t at)
{
    return at == ALWAYS || (at != NONE && lb_frame_arg_int(call, at, 0));
}

/* Result r, if it is wanted and has a value for every channel. */
static void *per_channel(lb_channel_batch *batch, uint32_t r)
{
    const lb_call *call = batch->frame.call;
    bool there = r < call->n_results && call->results[r].data && lb_tensor_numel(&call->results[r]) == batch->channels;
    return there ? lb_frame_output(&batch->frame, r, batch->channels) : NULL;
}

/* Arg `i`, which has a number for every channel; NULL: it is absent, or empty, as what evaluation saves is. */
static const void *channel_input(lb_channel_batch *batch, uint32_t i)
{
    const lb_tensor *tensor = lb_frame_arg_tensor(batch->frame.call, i);
    const int64_t n = tensor ? lb_tensor_numel(tensor) : 0;
    if (n && n != batch->channels) lb_frame_fail(&batch->frame, LB_ERR_INVALID, "no number for every channel");
    return n == batch->channels ? lb_frame_input(&batch->frame, i) : NULL;
}

/* How the running statistics go on. `coarse`: of the twin, whose terms torch rounds to the dtype of the statistics; 0:
 * no twin. */
typedef struct running {
    bool training, narrow; /* narrow: torch blends in f32 */
    double momentum, coarse;
} running;

/* Torch's CPU kernel (ATen/native/Normalization.cpp) takes the momentum in f32, and so 1 - momentum: of 0.99 that is
 * off by 1e-6. */
static double blend_in_f32(float momentum, float value, float before)
{
    const float from_batch = momentum * value, from_before = (1 - momentum) * before;
    return from_batch + from_before;
}

/* The running statistics as training leaves them, else as they were. */
static void blend_running(const lb_frame *frame, running how, void *out, const void *old, int64_t channel, double value)
{
    if (!out || !old) return;
    double before = lb_frame_get(frame, old, channel);
    if (how.coarse > 0) before = fabs(before);
    double blended = how.momentum * value + (1 - how.momentum) * before;
    /* Whatever 1 - momentum is, its rounding is one of a number near 1. */
    if (how.coarse > 0) blended = fabs(how.momentum) * value + before;
    if (how.narrow && !(how.coarse > 0)) blended = blend_in_f32((float)how.momentum, (float)value, (float)before);
    lb_frame_set(frame, out, channel, !how.training ? before : how.coarse > 0 ? blended * how.coarse : blended);
}

/* Results: y, saved mean, saved 1/std, and for ops that write them the running mean and variance. What is saved is what
 * x was normalised with: in evaluation torch saves nothing, but where a call of training is computed as one of
 * evaluation its backward reads it. */
static lb_status batch_norm_run(lb_call *call, batch_args at, bool twin)
{
    lb_channel_batch batch;
    if (!lb_channel_batch_begin(&batch, call, lb_frame_arg_tensor(call, 0))) return lb_frame_end(&batch.frame);
    lb_frame *frame = &batch.frame;
    const void *gamma = channel_input(&batch, 1), *beta = channel_input(&batch, 2), *mean = NULL, *var = NULL;
    if (at.running != NONE) mean = channel_input(&batch, at.running), var = channel_input(&batch, at.running + 1);
    bool training = trains(call, at.training);
    const lb_tensor *stats = at.running != NONE ? lb_frame_arg_tensor(call, at.running) : NULL;
    const running how = {training, stats && stats->dtype != LB_F64, lb_frame_arg_float(call, at.momentum, 0.1),
                         twin ? lb_frame_twin_scale(call, at.running) : 0};
    double eps = lb_frame_arg_float(call, at.eps, 1e-5);
    if (!training && (!mean || !var)) lb_frame_fail(frame, LB_ERR_INVALID, "no running statistics");
    void *y = lb_frame_output(frame, 0, batch.n * batch.channels), *saved = per_channel(&batch, 1),
         *inverse = per_channel(&batch, 2);
    void *new_mean = per_channel(&batch, at.updated), *new_var = per_channel(&batch, at.updated + 1);
    for (int64_t channel = 0; lb_frame_ok(frame) && channel < batch.channels; channel++) {
        lb_channel_moments moments = training ? lb_channel_moments_of(&batch, channel, eps)
                                              : (lb_channel_moments){lb_frame_get(frame, mean, channel),
                                                                     lb_frame_get(frame, var, channel), 0, 0};
        double invstd = 1 / sqrt(moments.var + eps), w = gamma ? lb_frame_get(frame, gamma, channel) : 1,
               shift = beta ? lb_frame_get(frame, beta, channel) : 0;
        double unbiased = moments.var * (double)batch.n / (double)(batch.n > 1 ? batch.n - 1 : 1);
        if (saved) lb_frame_set(frame, saved, channel, twin ? moments.e : moments.mean);
        if (inverse)
            lb_frame_set(frame, inverse, channel,
                         twin ? invstd * (1 + moments.kappa) * lb_frame_twin_scale(call, 0) : invstd);
        blend_running(frame, how, new_mean, mean, channel, twin ? moments.e : moments.mean);
        blend_running(frame, how, new_var, var, channel, unbiased);
        double a = invstd * w, b_shift = shift - moments.mean * a;
        if (!frame->wide) a = (float)a, b_shift = (float)b_shift;
        for (int64_t i = 0; i < batch.n; i++) {
            double x = lb_frame_get(frame, batch.x, lb_channel_place(&batch, channel, i));
            double size =
                fabs(a) * (fabs(x) + fabs(moments.mean) + moments.e + fabs(x - moments.mean) * (1 + moments.kappa)) +
                fabs(shift);
            lb_frame_set(frame, y, lb_channel_place(&batch, channel, i),
                         twin ? size * lb_frame_twin_scale(call, 0) + lb_twin_grain(call, 0) : x * a + b_shift);
        }
    }
    return lb_frame_end(frame);
}

#define BATCH(ID, ...) LB_WITH_TWIN(ID, batch_norm_run(call, (batch_args){__VA_ARGS__}, twin))
BATCH(batch_norm, 3, 5, 6, 7, 3)
BATCH(batch_norm_no_stats, NONE, 3, 4, 5, NONE)
BATCH(batch_norm_inference, 3, NONE, 5, 6, NONE)
BATCH(batch_norm_update, 3, ALWAYS, 5, 6, 4)

typedef struct batch_backward_args {
    uint32_t grad, input, weight, running, saved, train, eps, mask;
} batch_backward_args;

/* What a channel was normalised with: the numbers that training saved (mean, invstd) or evaluation ran with (mean,
 * var). Where a call of evaluation is computed as one of training, its forward saved none: they are the moments of
 * x. */
typedef struct normalised {
    double mean, invstd;
} normalised;

static normalised normalised_with(const lb_channel_batch *batch, const void *mean, const void *spread, bool training,
                                  int64_t channel, double eps)
{
    const bool known = mean && spread;
    const lb_channel_moments of_x = known ? (lb_channel_moments){0} : lb_channel_moments_of(batch, channel, eps);
    const double m = known ? lb_frame_get(&batch->frame, mean, channel) : of_x.mean,
                 s = known ? lb_frame_get(&batch->frame, spread, channel) : of_x.var;
    return (normalised){m, known && training ? s : 1 / sqrt(s + eps)};
}

/* Training: dx = (dy - sum dy / n - (x - mean) invstd^2 sum dy (x - mean) / n) invstd gamma. */
static lb_status batch_norm_backward_run(lb_call *call, batch_backward_args at, bool twin)
{
    lb_channel_batch batch;
    if (!lb_channel_batch_begin(&batch, call, lb_frame_arg_tensor(call, at.input))) return lb_frame_end(&batch.frame);
    lb_frame *frame = &batch.frame;
    bool training = trains(call, at.train);
    const uint32_t from = training ? at.saved : at.running;
    const void *dy = lb_frame_input(frame, at.grad), *gamma = channel_input(&batch, at.weight);
    const void *mean = channel_input(&batch, from), *spread = channel_input(&batch, from + 1);
    if (!training && (!mean || !spread)) lb_frame_fail(frame, LB_ERR_INVALID, "no running statistics");
    double eps = lb_frame_arg_float(call, at.eps, 1e-5), n = (double)batch.n,
           coarse = twin ? lb_frame_twin_scale(call, at.input) : 1, grain = twin ? lb_twin_grain(call, at.input) : 0;
    void *dx = wanted(call, at.mask, 0) ? lb_frame_output(frame, 0, batch.n * batch.channels) : NULL;
    void *dgamma = wanted(call, at.mask, 1) ? lb_frame_output(frame, 1, batch.channels) : NULL;
    void *dbeta = wanted(call, at.mask, 2) ? lb_frame_output(frame, 2, batch.channels) : NULL;
    for (int64_t channel = 0; lb_frame_ok(frame) && channel < batch.channels; channel++) {
        const normalised with = normalised_with(&batch, mean, spread, training, channel, eps);
        const double m = with.mean, invstd = with.invstd;
        double w = gamma ? lb_frame_get(frame, gamma, channel) : 1, sum = 0, dot = 0;
        for (int64_t i = 0; i < batch.n; i++) {
            double d = lb_frame_get(frame, dy, lb_channel_place(&batch, channel, i)),
                   x = lb_frame_get(frame, batch.x, lb_channel_place(&batch, channel, i));
            sum += twin ? fabs(d) : d;
            dot += twin ? fabs(d) * (fabs(x) + fabs(m)) : d * (x - m);
        }
        double k = dot * invstd * invstd / n, center = sum / n;
        for (int64_t i = 0; dx && i < batch.n; i++) {
            double d = lb_frame_get(frame, dy, lb_channel_place(&batch, channel, i)),
                   x = lb_frame_get(frame, batch.x, lb_channel_place(&batch, channel, i));
            double value = training ? (d - center - (x - m) * k) * invstd * w : d * invstd * w;
            if (twin)
                value =
                    (fabs(d) + (training ? center + (fabs(x) + fabs(m)) * k : 0)) * invstd * fabs(w) * coarse + grain;
            lb_frame_set(frame, dx, lb_channel_place(&batch, channel, i), value);
        }
        if (dgamma) lb_frame_set(frame, dgamma, channel, dot * invstd * coarse + grain);
        if (dbeta) lb_frame_set(frame, dbeta, channel, sum * coarse + grain);
    }
    return lb_frame_end(frame);
}

#define BATCH_BACKWARD(ID, ...)                                                                                        \
    LB_WITH_TWIN(ID, batch_norm_backward_run(call, (batch_backward_args){__VA_ARGS__}, twin))
BATCH_BACKWARD(batch_norm_backward, 0, 1, 2, 3, 5, 7, 8, 9)
BATCH_BACKWARD(cudnn_backward, 1, 0, 2, 3, 5, ALWAYS, 7, NONE) /* MIOpen's, too, without a reserve */

#define NORM(NAME, ARGS, KERNEL, ROUNDINGS, FLAGS, TERMS, SAMPLES)                                                     \
    {.name = "aten::" NAME,                                                                                            \
     .args = ARGS,                                                                                                     \
     LB_COMPUTED_BY(KERNEL),                                                                                           \
     LB_SUMS(ROUNDINGS, TERMS),                                                                                        \
     .flags = LB_ROW_REDUCTION | LB_ROW_SQUARES | (FLAGS),                                                             \
     .samples = SAMPLES}
#define RESERVE LB_ROW_GIVEN(3, 1)
#define STATS "running_mean running_var"
#define STATS_NEEDED "running_mean! running_var!"
#define SAVED "save_mean save_var"
const lb_op_row lb_rows_channel_norm[] = {
    NORM("native_group_norm", "input! weight bias N C HxW group eps", group_norm, 8, 0, LB_TERMS(ROWS, 0),
         "group_norm"),
    NORM("native_group_norm_backward", "grad_out! input! mean! rstd! weight N C HxW group output_mask",
         group_norm_backward, 12, 0, LB_TERMS(ELEMENTS, 1), "group_norm_backward"),
    NORM("native_batch_norm", "input! weight bias " STATS " training momentum eps", batch_norm, 8, 0,
         LB_TERMS(PER_CHANNEL, 0), "batch_norm"),
    NORM("_native_batch_norm_legit", "input! weight bias " STATS_NEEDED " training momentum eps", batch_norm, 8, 0,
         LB_TERMS(PER_CHANNEL, 0), "batch_norm"),
    NORM("_native_batch_norm_legit_functional", "input! weight bias " STATS_NEEDED " training momentum eps", batch_norm,
         8, 0, LB_TERMS(PER_CHANNEL, 0), "batch_norm"),
    NORM("_native_batch_norm_legit.no_stats", "input! weight bias training momentum eps", batch_norm_no_stats, 8, 0,
         LB_TERMS(PER_CHANNEL, 0), "batch_norm no_stats"),
    NORM("_native_batch_norm_legit_no_training", "input! weight bias " STATS_NEEDED " momentum eps",
         batch_norm_inference, 8, 0, LB_TERMS(PER_CHANNEL, 0), "batch_norm inference"),
    NORM("_batch_norm_no_update", "input! weight bias " STATS " momentum eps", batch_norm_inference, 8, RESERVE,
         LB_TERMS(PER_CHANNEL, 0), "batch_norm inference"),
    NORM("_batch_norm_with_update", "input! weight bias " STATS_NEEDED " momentum eps", batch_norm_update, 8, RESERVE,
         LB_TERMS(PER_CHANNEL, 0), "batch_norm inference"),
    NORM("cudnn_batch_norm", "input! weight! bias " STATS " training exponential_average_factor epsilon", batch_norm, 8,
         RESERVE, LB_TERMS(PER_CHANNEL, 0), "batch_norm cudnn"),
    NORM("miopen_batch_norm", "input! weight! bias " STATS " training exponential_average_factor epsilon", batch_norm,
         8, 0, LB_TERMS(PER_CHANNEL, 0), "batch_norm cudnn"),
    NORM("native_batch_norm_backward", "grad_out! input! weight " STATS " save_mean save_invstd train eps output_mask",
         batch_norm_backward, 12, 0, LB_TERMS(PER_CHANNEL, 1), "batch_norm_backward"),
    NORM("batch_norm_backward", "grad_out! input! weight! " STATS " " SAVED " update eps output_mask reserve",
         batch_norm_backward, 12, 0, LB_TERMS(PER_CHANNEL, 1), "batch_norm_backward reserve"),
    NORM("cudnn_batch_norm_backward", "input! grad_output! weight! " STATS " " SAVED " epsilon reserveSpace",
         cudnn_backward, 12, 0, LB_TERMS(PER_CHANNEL, 0), "batch_norm_backward cudnn"),
    NORM("miopen_batch_norm_backward", "input! grad_output! weight! " STATS " " SAVED " epsilon", cudnn_backward, 12, 0,
         LB_TERMS(PER_CHANNEL, 0), "batch_norm_backward cudnn miopen"),
    {NULL},
};
