/* The pieces that SyncBatchNorm is made of on CUDA: statistics of one rank, their union over ranks, and what is
 * elementwise given them.
 *
 *      batch_norm_stats              mean, 1/std of this rank's channels
 *      batch_norm_gather_stats…      the same of all ranks' elements, from the ranks' means, 1/stds and counts; running
 *                                    statistics go on
 *      batch_norm_elemt              y = (x - mean) invstd gamma + beta
 *      batch_norm_backward_reduce    sum dy, sum dy (x - mean), gradients of gamma and beta
 *      batch_norm_backward_elemt     dx = (dy - sum dy / n - (x - mean) invstd^2 sum dy (x - mean) / n) invstd gamma
 *
 * All is computed in f32 of inputs of any dtype (f64 of f64); kernels for other layouts add up in other orders and fold
 * gamma with invstd or not, which the twins allow for. Source: pytorch/pytorch torch/nn/modules/_functions.py,
 * aten/src/ATen/native/cuda/Normalization.cu and Normalization.cuh. */
#include "kernel/channel_moments.h"

#include <math.h>

/* Twin of what an operation leaves undetermined: a finite one of this size says nothing (bound.c). */
#define UNDETERMINED 0x1p128

static double magnitude(double x, bool twin)
{
    return twin ? fabs(x) : x;
}

/* ---- statistics of one rank -------------------------------------------------------------------------------------- */

/* Args: input, eps. Without variance and eps the inverse is 0. */
static lb_status stats_run(lb_call *call, bool twin)
{
    lb_channel_batch batch;
    if (!lb_channel_batch_begin(&batch, call, lb_frame_arg_tensor(call, 0))) return lb_frame_end(&batch.frame);
    lb_frame *frame = &batch.frame;
    const double eps = lb_frame_arg_float(call, 1, 0);
    void *mean = lb_frame_output(frame, 0, batch.channels), *invstd = lb_frame_output(frame, 1, batch.channels);
    for (int64_t c = 0; lb_frame_ok(frame) && c < batch.channels; c++) {
        const lb_channel_moments moments = lb_channel_moments_of(&batch, c, eps);
        const bool still = moments.var + eps == 0;
        const double inverse = still ? 0 : 1 / sqrt(moments.var + eps),
                     size = still ? UNDETERMINED : inverse * (1 + moments.kappa);
        lb_frame_set(frame, mean, c, twin ? moments.e : moments.mean);
        lb_frame_set(frame, invstd, c, twin ? size : inverse);
    }
    return lb_frame_end(frame);
}

LB_WITH_TWIN(stats, stats_run(call, twin))

/* ---- the union of ranks ------------------------------------------------------------------------------------------ */

/* Statistics by rank and channel. */
typedef struct ranked {
    int64_t ranks, channels;
    const void *mean, *invstd;
    const double *count;
    double eps;
} ranked;

/* Moments of the elements of several ranks, and what their running errors are proportional to. */
typedef struct joined {
    double n, mean, squares; /* squares: sum of (x - mean)^2 */
    double size_of_mean, size_of_squares;
} joined;

/* One rank more: its count, mean and variance + eps. The ranks are joined in order, so that the error of each mean that
 * a difference is taken from is known. */
static void join(joined *joined, double count, double mean, double spread, double eps)
{
    const double n = joined->n + count, apart = fabs(joined->mean - mean), weight = joined->n * count / n;
    joined->squares += (spread - eps) * count + apart * apart * weight;
    joined->size_of_squares +=
        (fabs(spread) + eps) * count + apart * (apart + 2 * (joined->size_of_mean + fabs(mean))) * weight;
    joined->mean = (joined->n * joined->mean + count * mean) / n;
    joined->size_of_mean = (joined->n * joined->size_of_mean + count * fabs(mean)) / n;
    joined->n = n;
}

static joined join_ranks(const lb_frame *frame, const ranked *ranked, int64_t c)
{
    joined j = {0};
    for (int64_t r = 0; r < ranked->ranks; r++) {
        const double inverse = lb_frame_get(frame, ranked->invstd, r * ranked->channels + c);
        join(&j, ranked->count[r], lb_frame_get(frame, ranked->mean, r * ranked->channels + c), 1 / (inverse * inverse),
             ranked->eps);
    }
    return j;
}

/* How running statistics go on: results 2 and 3, from args 3 and 4. */
typedef struct running {
    lb_frame *frame;
    const void *before;
    void *after;
    double momentum;
    bool twin;
} running;

static running running_of(lb_frame *frame, uint32_t which, bool twin)
{
    const lb_call *call = frame->call;
    const uint32_t r = 2 + which;
    running s = {.frame = frame, .momentum = lb_frame_arg_float(call, 5, 0.1), .twin = twin};
    if (r < call->n_results && call->results[r].data) {
        s.before = lb_frame_input(frame, 3 + which);
        s.after = lb_frame_output(frame, r, lb_tensor_numel(&call->results[r]));
        if (!s.before) lb_frame_fail(frame, LB_ERR_INVALID, "running statistics that were not there before");
    }
    return s;
}

static void go_on(const running *running, int64_t c, double value)
{
    if (!running->after) return;
    const double before = magnitude(lb_frame_get(running->frame, running->before, c), running->twin),
                 kept = 1 - running->momentum;
    lb_frame_set(running->frame, running->after, c,
                 magnitude(kept, running->twin) * before + magnitude(running->momentum, running->twin) * value);
}

/* The ranks' counts: a tensor, or one number for all, which torch rounds to the dtype of the running mean, else of the
 * input. */
static const double *counts_of(lb_frame *frame, int64_t ranks)
{
    const lb_call *call = frame->call;
    double *counts = lb_frame_scratch(frame, (size_t)ranks * 8);
    const lb_tensor *given = lb_frame_arg_tensor(call, 7), *running_mean = lb_frame_arg_tensor(call, 3);
    const void *x = given ? lb_frame_tensor(frame, given) : NULL;
    double one = lb_frame_arg_float(call, 7, 0);
    if (given && lb_tensor_numel(given) != ranks)
        lb_frame_fail(frame, LB_ERR_INVALID, "another number of counts than ranks");
    if (!given && !call->method.exact)
        lb_round_to_grid_f64(&one, 1, (running_mean ? running_mean : lb_frame_arg_tensor(call, 0))->dtype, NULL);
    for (int64_t r = 0; lb_frame_ok(frame) && r < ranks; r++) counts[r] = given ? lb_frame_get(frame, x, r) : one;
    return counts;
}

/* Args: input, mean, invstd, running_mean, running_var, momentum, eps, count or counts; mean and invstd are (ranks,
 * channels). */
static lb_status gather_run(lb_call *call, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    const lb_tensor *in = lb_frame_arg_tensor(call, 1), *inverse = lb_frame_arg_tensor(call, 2);
    if (in->layout.ndim != 2 || lb_tensor_numel(inverse) != lb_tensor_numel(in))
        lb_frame_fail(&frame, LB_ERR_INVALID, "statistics that are not by rank and channel");
    if (!lb_frame_ok(&frame)) return lb_frame_end(&frame);
    ranked ranked = {
        .ranks = in->layout.shape[0], .channels = in->layout.shape[1], .eps = lb_frame_arg_float(call, 6, 0)};
    ranked.mean = lb_frame_tensor(&frame, in), ranked.invstd = lb_frame_tensor(&frame, inverse),
    ranked.count = counts_of(&frame, ranked.ranks);
    void *mean = lb_frame_output(&frame, 0, ranked.channels), *invstd = lb_frame_output(&frame, 1, ranked.channels);
    const running means = running_of(&frame, 0, twin), variances = running_of(&frame, 1, twin);
    for (int64_t c = 0; lb_frame_ok(&frame) && c < ranked.channels; c++) {
        const joined joined = join_ranks(&frame, &ranked, c);
        const double spread = joined.squares / joined.n + ranked.eps, inv = 1 / sqrt(spread);
        const double off = inv * (1 + (joined.size_of_squares / joined.n + ranked.eps) / spread);
        lb_frame_set(&frame, mean, c, twin ? joined.size_of_mean : joined.mean);
        lb_frame_set(&frame, invstd, c, twin ? off : inv);
        go_on(&means, c, twin ? joined.size_of_mean : joined.mean);
        go_on(&variances, c,
              !twin          ? joined.squares / (joined.n - 1)
              : joined.n > 1 ? joined.size_of_squares / (joined.n - 1)
                             : UNDETERMINED);
    }
    return lb_frame_end(&frame);
}

LB_WITH_TWIN(gather, gather_run(call, twin))

/* ---- given the statistics ---------------------------------------------------------------------------------------- */

/* One number per channel. */
static const void *per_channel(lb_channel_batch *batch, uint32_t arg)
{
    const lb_tensor *tensor = lb_frame_arg_tensor(batch->frame.call, arg);
    if (tensor && lb_tensor_numel(tensor) != batch->channels)
        lb_frame_fail(&batch->frame, LB_ERR_INVALID, "statistics or weights that are not by channel");
    return lb_frame_tensor(&batch->frame, tensor);
}

/* Args: input, weight, bias, mean, invstd, eps, which is not read. */
static lb_status elemt_run(lb_call *call, bool twin)
{
    lb_channel_batch batch;
    if (!lb_channel_batch_begin(&batch, call, lb_frame_arg_tensor(call, 0))) return lb_frame_end(&batch.frame);
    lb_frame *frame = &batch.frame;
    const void *gamma = per_channel(&batch, 1), *beta = per_channel(&batch, 2), *mean = per_channel(&batch, 3),
               *invstd = per_channel(&batch, 4);
    void *y = lb_frame_output(frame, 0, batch.n * batch.channels);
    for (int64_t c = 0; lb_frame_ok(frame) && c < batch.channels; c++) {
        const double m = lb_frame_get(frame, mean, c), r = lb_frame_get(frame, invstd, c),
                     w = gamma ? lb_frame_get(frame, gamma, c) : 1, shift = beta ? lb_frame_get(frame, beta, c) : 0;
        for (int64_t i = 0; i < batch.n; i++) {
            const int64_t at = lb_channel_place(&batch, c, i);
            const double x = lb_frame_get(frame, batch.x, at);
            lb_frame_set(frame, y, at,
                         twin ? (fabs(x) + fabs(m)) * fabs(r * w) + fabs(shift) : (x - m) * r * w + shift);
        }
    }
    return lb_frame_end(frame);
}

LB_WITH_TWIN(elemt, elemt_run(call, twin))

/* Arg `arg`, as many elements as the input has. */
static const void *like_input(lb_channel_batch *batch, uint32_t arg)
{
    const lb_tensor *tensor = lb_frame_arg_tensor(batch->frame.call, arg);
    if (lb_tensor_numel(tensor) != batch->n * batch->channels)
        lb_frame_fail(&batch->frame, LB_ERR_INVALID, "a gradient of another size than the input");
    return lb_frame_tensor(&batch->frame, tensor);
}

/* Result r, if it is wanted. */
static void *wanted(lb_channel_batch *batch, uint32_t r)
{
    const lb_call *call = batch->frame.call;
    return r < call->n_results && call->results[r].data ? lb_frame_output(&batch->frame, r, batch->channels) : NULL;
}

static void put(const lb_frame *frame, void *y, int64_t c, double value)
{
    if (y) lb_frame_set(frame, y, c, value);
}

/* Args: grad_out, input, mean, invstd, weight, input_g, weight_g, bias_g. */
static lb_status reduce_run(lb_call *call, bool twin)
{
    lb_channel_batch batch;
    if (!lb_channel_batch_begin(&batch, call, lb_frame_arg_tensor(call, 1))) return lb_frame_end(&batch.frame);
    lb_frame *frame = &batch.frame;
    const void *dy = like_input(&batch, 0), *mean = per_channel(&batch, 2), *invstd = per_channel(&batch, 3);
    void *sum_dy = wanted(&batch, 0), *sum_dy_xmu = wanted(&batch, 1), *dgamma = wanted(&batch, 2),
         *dbeta = wanted(&batch, 3);
    for (int64_t c = 0; lb_frame_ok(frame) && c < batch.channels; c++) {
        const double m = lb_frame_get(frame, mean, c), r = lb_frame_get(frame, invstd, c);
        double sum = 0, dot = 0;
        for (int64_t i = 0; i < batch.n; i++) {
            const int64_t at = lb_channel_place(&batch, c, i);
            const double d = magnitude(lb_frame_get(frame, dy, at), twin), x = lb_frame_get(frame, batch.x, at);
            sum += d, dot += d * (twin ? fabs(x) + fabs(m) : x - m);
        }
        put(frame, sum_dy, c, sum), put(frame, sum_dy_xmu, c, dot);
        put(frame, dgamma, c, dot * magnitude(r, twin)), put(frame, dbeta, c, sum);
    }
    return lb_frame_end(frame);
}

LB_WITH_TWIN(reduce, reduce_run(call, twin))

/* Args: grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, count. */
static lb_status backward_elemt_run(lb_call *call, bool twin)
{
    lb_channel_batch batch;
    if (!lb_channel_batch_begin(&batch, call, lb_frame_arg_tensor(call, 1))) return lb_frame_end(&batch.frame);
    lb_frame *frame = &batch.frame;
    const void *dy = like_input(&batch, 0), *mean = per_channel(&batch, 2), *invstd = per_channel(&batch, 3),
               *gamma = per_channel(&batch, 4), *sum_dy = per_channel(&batch, 5), *sum_dy_xmu = per_channel(&batch, 6);
    const lb_tensor *counts = lb_frame_arg_tensor(call, 7);
    const int64_t *count = lb_frame_integers(frame, counts);
    void *dx = lb_frame_output(frame, 0, batch.n * batch.channels);
    double n = 0;
    for (int64_t r = 0; lb_frame_ok(frame) && r < lb_tensor_numel(counts); r++) n += (double)count[r];
    for (int64_t c = 0; lb_frame_ok(frame) && c < batch.channels; c++) {
        const double m = lb_frame_get(frame, mean, c), r = lb_frame_get(frame, invstd, c),
                     w = r * (gamma ? lb_frame_get(frame, gamma, c) : 1),
                     center = magnitude(lb_frame_get(frame, sum_dy, c), twin) / n,
                     slope = magnitude(lb_frame_get(frame, sum_dy_xmu, c), twin) * r * r / n;
        for (int64_t i = 0; i < batch.n; i++) {
            const int64_t at = lb_channel_place(&batch, c, i);
            const double d = lb_frame_get(frame, dy, at), x = lb_frame_get(frame, batch.x, at);
            const double size = (fabs(d) + center + (fabs(x) + fabs(m)) * slope) * fabs(w);
            lb_frame_set(frame, dx, at, twin ? size : (d - center - (x - m) * slope) * w);
        }
    }
    return lb_frame_end(frame);
}

LB_WITH_TWIN(backward_elemt, backward_elemt_run(call, twin))

#define RANKS "input! mean! invstd! running_mean running_var momentum eps "
/* A rank that joins costs four roundings of a mean. */
#define GATHER(NAME, COUNT, SAMPLES)                                                                                   \
    {.name = "aten::" NAME,                                                                                            \
     .args = RANKS COUNT,                                                                                              \
     LB_COMPUTED_BY(gather),                                                                                           \
     .roundings = 8,                                                                                                   \
     .roundings_per_term = 4,                                                                                          \
     .terms = LB_TERMS(ROWS, 1),                                                                                       \
     .flags = LB_ROW_REDUCTION,                                                                                        \
     .samples = SAMPLES}
const lb_op_row lb_rows_sync_norm[] = {
    {.name = "aten::batch_norm_stats",
     .args = "input! eps",
     LB_COMPUTED_BY(stats),
     LB_SUMS(8, LB_TERMS(PER_CHANNEL, 0)),
     .flags = LB_ROW_REDUCTION | LB_ROW_SQUARES,
     .samples = "sync_norm stats"},
    GATHER("batch_norm_gather_stats", "count", "sync_norm gather"),
    GATHER("batch_norm_gather_stats_with_counts", "counts!", "sync_norm gather counts"),
    {.name = "aten::batch_norm_elemt",
     .args = "input! weight bias mean! invstd! eps",
     LB_COMPUTED_BY(elemt),
     .roundings = 6,
     .samples = "sync_norm elemt"},
    {.name = "aten::batch_norm_backward_reduce",
     .args = "grad_out! input! mean! invstd! weight input_g weight_g bias_g",
     LB_COMPUTED_BY(reduce),
     LB_SUMS(6, LB_TERMS(PER_CHANNEL, 1)),
     .flags = LB_ROW_REDUCTION,
     .samples = "sync_norm reduce"},
    {.name = "aten::batch_norm_backward_elemt",
     .args = "grad_out! input! mean! invstd! weight sum_dy! sum_dy_xmu! count!",
     LB_COMPUTED_BY(backward_elemt),
     .roundings = 12,
     .samples = "sync_norm backward_elemt"},
    {NULL},
};
