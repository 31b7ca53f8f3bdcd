/* Fused routers: scores, choice and weights of experts in one kernel.
 *
 *      softmax-topk   softmax over all experts in f32, the k best, divided by their sum where the model does so
 *      topk-softmax   the k best logits, a softmax over these alone: the same numbers when they are normalised,
 *                     otherwise rounded
 *
 * Of equal scores the expert of the lower number comes first. */
#include "functions/elementary.h"
#include "kernel/expert_choice.h"
#include "fused/fused.h"
#include "orders/schedule.h"

#include <math.h>
#include <string.h>

typedef struct kernel {
    bool chosen_only, scores_t, has_sum;
    lb_schedule sum;
} kernel;

static const lb_composite_kernel kernels[] = {
    {"eager", "eager", "the recorded ops"},
    {"softmax-topk", "softmax-topk",
     "softmax over all experts in f32, then the best: vLLM's and SGLang's topk_softmax"},
    {"topk-softmax", "topk-softmax", "the best logits, then a softmax over them"},
    {NULL, NULL, NULL}};
#define OPTIONS                                                                                                        \
    "sum:ORDER (of the softmax), scores:f32|t (t: chosen scores rounded to the type of the logits before "             \
    "they are normalised)"

static bool read_kernel(const lb_fused_text *text, void *out)
{
    kernel *k = out;
    *k = (kernel){.chosen_only = !strcmp(text->name, "topk-softmax")};
    const int scores = lb_fused_text_choice(text, "scores", "f32|t", 0);
    k->scores_t = scores == 1;
    const bool known = (k->chosen_only || !strcmp(text->name, "softmax-topk")) && !*text->parameters && scores >= 0;
    return known && lb_fused_text_keys(text, "sum scores") && lb_fused_text_order(text, "sum", &k->sum, &k->has_sum);
}
static void softmax_f32(const kernel *kernel, const float *x, int64_t n, float *p)
{
    float top = -INFINITY;
    for (int64_t i = 0; i < n; i++) top = x[i] > top ? x[i] : top;
    for (int64_t i = 0; i < n; i++) p[i] = x[i] - top;
    lb_exp_f32(p, p, (size_t)n);
    const float sum = lb_schedule_sum_f32(kernel->has_sum ? &kernel->sum : NULL, p, n, LB_NO_DTYPE);
    for (int64_t i = 0; i < n; i++) p[i] /= sum;
}

typedef struct work {
    kernel kernel;
    lb_dtype narrow;
    int64_t experts, k;
    bool normalised;
    float *p, *chosen;
    double *score;
} work;

static void token_f32(const work *work, const float *x, float *weights, int64_t *ids)
{
    if (!work->kernel.chosen_only) softmax_f32(&work->kernel, x, work->experts, work->p);
    for (int64_t e = 0; e < work->experts; e++) work->score[e] = work->kernel.chosen_only ? x[e] : work->p[e];
    lb_first_best(work->score, work->experts, work->k, ids);
    for (int64_t j = 0; j < work->k; j++) work->chosen[j] = (float)work->score[ids[j]];
    if (work->kernel.chosen_only)
        softmax_f32(&work->kernel, work->chosen, work->k, weights);
    else
        memcpy(weights, work->chosen, (size_t)work->k * sizeof *weights);
    if (work->kernel.scores_t) lb_fused_round(weights, work->k, work->narrow);
    if (!work->normalised || work->kernel.chosen_only) return;
    const float sum = lb_schedule_sum_f32(NULL, weights, work->k, LB_NO_DTYPE);
    for (int64_t j = 0; j < work->k; j++) weights[j] /= sum;
}

static void token_f64(const work *work, const double *x, double *weights, int64_t *ids, bool twin, double scale)
{
    double top = -INFINITY, all = 0, chosen = 0;
    lb_first_best(x, work->experts, work->k, ids);
    for (int64_t e = 0; e < work->experts; e++) top = x[e] > top ? x[e] : top;
    for (int64_t e = 0; e < work->experts; e++) all += lb_exp(x[e] - top);
    for (int64_t j = 0; j < work->k; j++) chosen += lb_exp(x[ids[j]] - top);
    for (int64_t j = 0; j < work->k; j++)
        weights[j] = lb_exp(x[ids[j]] - top) / (work->normalised || work->kernel.chosen_only ? chosen : all) *
                     (twin ? scale + fabs(x[ids[j]] - top) : 1);
}

static lb_status run(lb_call *call, lb_composite_kind kind, bool twin)
{
    lb_frame frame = lb_frame_begin(call);
    work work = {0};
    LB_TRY(lb_fused_kernel_of(call, kind, &work.kernel));
    const lb_tensor *in = lb_fused_input(call, LB_ROUTER_LOGITS);
    work.k = (int64_t)lb_fused_number(call, LB_ROUTER_K), work.normalised = lb_fused_flags(call) & LB_ROUTER_NORMALISED;
    work.experts = in->layout.ndim ? in->layout.shape[in->layout.ndim - 1] : 0;
    const int64_t tokens = work.experts ? lb_tensor_numel(in) / work.experts : 0;
    if (work.k < 1 || work.k > work.experts || lb_tensor_numel(&call->results[0]) != tokens * work.k)
        lb_frame_fail(&frame, LB_ERR_INVALID, "logits and weights do not match");
    work.narrow = lb_fused_narrow(&frame, in);
    const char *x = lb_frame_tensor(&frame, in);
    char *weights = lb_frame_output(&frame, LB_ROUTER_WEIGHTS, tokens * work.k);
    int64_t *ids = lb_fused_wants(call, LB_ROUTER_IDS)
                       ? lb_frame_output_integers(&frame, LB_ROUTER_IDS, tokens * work.k)
                       : lb_frame_scratch(&frame, (size_t)(tokens * work.k + 1) * sizeof *ids);
    work.p = lb_frame_scratch(&frame, (size_t)(work.experts + 1) * sizeof *work.p),
    work.chosen = lb_frame_scratch(&frame, (size_t)(work.k + 1) * sizeof *work.chosen);
    work.score = lb_frame_scratch(&frame, (size_t)(work.experts + 1) * sizeof *work.score);
    const double scale = 16 + 2 * (double)work.experts + 4 * lb_frame_twin_scale(call, LB_FUSED_INPUTS);
    for (int64_t i = 0; lb_frame_ok(&frame) && i < tokens; i++) {
        if (frame.wide)
            token_f64(&work, (const double *)x + i * work.experts, (double *)weights + i * work.k, ids + i * work.k,
                      twin, scale);
        else
            token_f32(&work, (const float *)x + i * work.experts, (float *)weights + i * work.k, ids + i * work.k);
    }
    return lb_frame_end(&frame);
}
static uint32_t candidates(const lb_composite *composite, char (*texts)[LB_COMPOSITE_TEXT], uint32_t room)
{
    uint32_t n = lb_fused_candidate_add_all(texts, room, 0, "eager softmax-topk");
    if (composite->flags & LB_ROUTER_NORMALISED) n = lb_fused_candidate_add(texts, room, n, "topk-softmax");
    return lb_fused_candidate_add_all(
        texts, room, n, "softmax-topk,sum:sequential softmax-topk,sum:butterfly:32 softmax-topk,scores:t");
}

const lb_fused_kind lb_fused_router = {
    .row = "fused::router",
    .kernels = kernels,
    .options = OPTIONS,
    .usual = "softmax-topk",
    .run = run,
    .read = read_kernel,
    .kernel_size = sizeof(kernel),
    .candidates = candidates,
};
