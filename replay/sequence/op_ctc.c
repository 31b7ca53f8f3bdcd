/* Connectionist temporal classification: minus the logarithm of the probability that a sequence of distributions spells
 * a target, with blanks between labels and labels repeated, and its gradient.
 *
 *      a_t(s) = log Σ exp a_{t-1}(s'), s' in {s, s-1, s-2}, + log p_t(label of s)      s-2 where its label is no blank and another
 *
 * over the target with blanks around each label (Graves and others 2006, equations 6 to 16, as torch's
 * aten/src/ATen/native/LossCTC.cpp has them). All in f64, rounded once. What log_alpha holds behind the end of an input
 * or of a target nothing writes: that is taken as it was recorded. Twins carry a running error: each sum of
 * exponentials is off by at most its terms' errors and its own roundings. */
#include "functions/elementary.h"
#include "kernel/frame.h"

#include <math.h>
#include <string.h>

/* A logarithm, and what it may be off by, in roundoffs. */
typedef struct logarithm {
    double v, e;
} logarithm;

static const logarithm never = {-INFINITY, 0};

/* log(exp a + exp b + exp c) */
static logarithm sum_of(logarithm a, logarithm b, logarithm c)
{
    double most = a.v > b.v ? a.v : b.v;
    if (c.v > most) most = c.v;
    if (most == -INFINITY) most = 0;
    const double sum = lb_exp(a.v - most) + lb_exp(b.v - most) + lb_exp(c.v - most), v = lb_log(sum) + most;
    double e = a.v > -INFINITY ? a.e : 0;
    if (b.v > -INFINITY) e = fmax(e, b.e);
    if (c.v > -INFINITY) e = fmax(e, c.e);
    return (logarithm){v, e + 8 + fabs(v)};
}

static logarithm product_of(logarithm a, double log_p)
{
    const double v = a.v + log_p;
    return (logarithm){v, a.v > -INFINITY ? a.e + fabs(v) : 0};
}

/* ---- one call ---------------------------------------------------------------------------------------------------- */

typedef struct ctc {
    lb_frame frame;
    /* log_probs is (steps, batch, classes); log_alpha (batch, steps, states) */
    int64_t steps, batch, classes, states, blank;
    const void *log_p;
    const int64_t *targets, *inputs, *lengths; /* labels; of each sample how many distributions and labels */
    int64_t labels, row;   /* how many are there; from one sample's to the next, 0: they follow each other */
    logarithm *at, *spelt; /* room of one sample after the other: steps × states, and classes */
    bool ok;
} ctc;

/* One sample of it. */
typedef struct sample {
    int64_t b, steps, states; /* 2 labels + 1 */
    const int64_t *labels;
    logarithm *at; /* steps × states */
} sample;

static const int64_t *read_lengths(ctc *ctc, uint32_t i)
{
    const lb_call *call = ctc->frame.call;
    const lb_operand *arg = i < call->n_args ? &call->args[i] : NULL;
    if (arg && arg->tag == LB_OPERAND_TENSOR)
        return lb_tensor_numel(&arg->tensor) == ctc->batch ? lb_frame_integers(&ctc->frame, &arg->tensor) : NULL;
    return arg && arg->tag == LB_OPERAND_NUMBERS && arg->count == ctc->batch ? arg->ints : NULL;
}

/* `first`: which argument log_probs is; targets and lengths follow it. `alpha`: the shape of log_alpha. */
static ctc ctc_begin(lb_call *call, uint32_t first, uint32_t blank, const lb_tensor *alpha)
{
    ctc ctc = {.frame = lb_frame_begin(call), .blank = lb_frame_arg_int(call, blank, 0)};
    const lb_tensor *p = lb_frame_arg_tensor(call, first), *targets = lb_frame_arg_tensor(call, first + 1);
    if (p->layout.ndim != 3 || alpha->layout.ndim != 3 || targets->layout.ndim < 1 || targets->layout.ndim > 2) {
        lb_frame_fail(&ctc.frame, LB_ERR_UNSUPPORTED, "shapes that do not fit this loss");
        return ctc;
    }
    ctc.steps = p->layout.shape[0], ctc.batch = p->layout.shape[1], ctc.classes = p->layout.shape[2];
    ctc.states = alpha->layout.shape[2];
    ctc.labels = lb_tensor_numel(targets), ctc.row = targets->layout.ndim == 2 ? targets->layout.shape[1] : 0;
    ctc.inputs = read_lengths(&ctc, first + 2), ctc.lengths = read_lengths(&ctc, first + 3);
    ctc.log_p = lb_frame_input(&ctc.frame, first);
    ctc.targets = lb_frame_integers(&ctc.frame, targets);
    if (!ctc.inputs || !ctc.lengths || alpha->layout.shape[0] != ctc.batch || alpha->layout.shape[1] != ctc.steps ||
        (targets->layout.ndim == 2 && targets->layout.shape[0] != ctc.batch))
        lb_frame_fail(&ctc.frame, LB_ERR_UNSUPPORTED, "lengths or results that do not fit");
    ctc.at = lb_frame_scratch(&ctc.frame, (size_t)(ctc.steps * ctc.states) * sizeof *ctc.at);
    ctc.spelt = lb_frame_scratch(&ctc.frame, (size_t)(ctc.classes + 1) * sizeof *ctc.spelt);
    ctc.ok = lb_frame_ok(&ctc.frame);
    return ctc;
}

/* Sample b; false, and the frame has failed: its lengths or labels are out of range. */
static bool take_sample(ctc *ctc, int64_t b, sample *s)
{
    int64_t before = ctc->row * b;
    for (int64_t i = 0; !ctc->row && i < b; i++) before += ctc->lengths[i] > 0 ? ctc->lengths[i] : 0;
    *s = (sample){.b = b, .steps = ctc->inputs[b], .states = 2 * ctc->lengths[b] + 1, .labels = ctc->targets + before};
    bool fits = s->steps >= 1 && s->steps <= ctc->steps && ctc->lengths[b] >= 0 && s->states <= ctc->states &&
                before + ctc->lengths[b] <= ctc->labels && ctc->blank >= 0 && ctc->blank < ctc->classes;
    for (int64_t i = 0; fits && i < ctc->lengths[b]; i++) fits = s->labels[i] >= 0 && s->labels[i] < ctc->classes;
    if (!fits) lb_frame_fail(&ctc->frame, LB_ERR_UNSUPPORTED, "lengths or labels out of range");
    s->at = ctc->at;
    return lb_frame_ok(&ctc->frame);
}

static int64_t label_of(const ctc *ctc, const sample *sample, int64_t state)
{
    return state % 2 ? sample->labels[state / 2] : ctc->blank;
}

static double log_p_of(const ctc *ctc, const sample *sample, int64_t t, int64_t label)
{
    return lb_frame_get(&ctc->frame, ctc->log_p, (t * ctc->batch + sample->b) * ctc->classes + label);
}

/* Probabilities of what was spelt up to each step; `back`: of what is left from there on. */
static void fill(const ctc *ctc, const sample *sample, bool back)
{
    const int64_t way = back ? 1 : -1, last = back ? sample->states - 1 : 0, first = back ? sample->steps - 1 : 0;
    for (int64_t i = 0; i < sample->states; i++) {
        const bool begins = i == last || i == last - way;
        const double p = begins ? log_p_of(ctc, sample, first, label_of(ctc, sample, i)) : -INFINITY;
        sample->at[first * sample->states + i] = (logarithm){p, 0};
    }
    for (int64_t k = 1; k < sample->steps; k++) {
        const int64_t t = back ? sample->steps - 1 - k : k;
        const logarithm *from = sample->at + (t + way) * sample->states;
        for (int64_t i = 0; i < sample->states; i++) {
            const int64_t label = label_of(ctc, sample, i), one = i + way, two = i + 2 * way;
            const bool second = one >= 0 && one < sample->states,
                       third = two >= 0 && two < sample->states && label_of(ctc, sample, two) != label;
            const logarithm sum = sum_of(from[i], second ? from[one] : never, third ? from[two] : never);
            sample->at[t * sample->states + i] = product_of(sum, log_p_of(ctc, sample, t, label));
        }
    }
}

/* ---- the loss ---------------------------------------------------------------------------------------------------- */

static void set(const ctc *ctc, void *y, int64_t i, logarithm logarithm, bool twin)
{
    lb_frame_set(&ctc->frame, y, i, twin ? (isfinite(logarithm.v) ? fabs(logarithm.v) + logarithm.e : 0) : logarithm.v);
}

/* All of it as it was recorded, then -inf at the first step, where no other state begins. */
static void begin_alpha(ctc *ctc, const lb_tensor *branch, void *alpha)
{
    const int64_t n = ctc->batch * ctc->steps * ctc->states;
    const void *recorded =
        branch && branch->data && lb_tensor_numel(branch) == n ? lb_frame_tensor(&ctc->frame, branch) : NULL;
    for (int64_t i = 0; lb_frame_ok(&ctc->frame) && i < n; i++)
        lb_frame_set(&ctc->frame, alpha, i, recorded ? lb_frame_get(&ctc->frame, recorded, i) : 0);
    for (int64_t b = 0; lb_frame_ok(&ctc->frame) && b < ctc->batch; b++)
        for (int64_t i = 0; i < ctc->states; i++)
            lb_frame_set(&ctc->frame, alpha, b * ctc->steps * ctc->states + i, -INFINITY);
}

/* log_probs, targets, input_lengths, target_lengths, blank, zero_infinity -> the loss of each sample, log_alpha */
static lb_status loss_run(lb_call *call, bool twin)
{
    if (call->n_results < 2) return lb_fail(call->err, LB_ERR_UNSUPPORTED, "%s: other results", call->row->name);
    lb_tensor *alpha = &call->results[1];
    ctc ctc = ctc_begin(call, 0, 4, alpha);
    void *y = ctc.ok ? lb_frame_output(&ctc.frame, 0, ctc.batch) : NULL,
         *a = ctc.ok ? lb_frame_output(&ctc.frame, 1, ctc.batch * ctc.steps * ctc.states) : NULL;
    if (lb_frame_ok(&ctc.frame)) begin_alpha(&ctc, call->branch ? &call->branch[1] : NULL, a);
    for (int64_t b = 0; lb_frame_ok(&ctc.frame) && b < ctc.batch; b++) {
        sample sample;
        if (!take_sample(&ctc, b, &sample)) break;
        fill(&ctc, &sample, false);
        for (int64_t t = 0; t < sample.steps; t++)
            for (int64_t i = 0; i < sample.states; i++)
                set(&ctc, a, (b * ctc.steps + t) * ctc.states + i, sample.at[t * sample.states + i], twin);
        const logarithm *end = sample.at + (sample.steps - 1) * sample.states + sample.states - 1,
                        whole = sample.states > 1 ? sum_of(end[0], end[-1], never) : end[0];
        set(&ctc, y, b, (logarithm){-whole.v, whole.e}, twin);
    }
    return lb_frame_end(&ctc.frame);
}

/* ---- the gradient ------------------------------------------------------------------------------------------------ */

/* What the gradient of a sample follows from besides the sample: log_alpha of all samples, the sample's loss, and the
 * gradient of that loss. */
typedef struct recorded {
    const void *alpha;
    double loss, scale;
} recorded;

/* Of one step: (p - exp(log Σ alpha beta + loss - log p)) times what comes in. */
static void gradient_step(const ctc *ctc, const sample *sample, int64_t t, const recorded *recorded, void *y, bool twin)
{
    const double loss = recorded->loss, scale = recorded->scale;
    logarithm *spelt = ctc->spelt;
    for (int64_t k = 0; k < ctc->classes; k++) spelt[k] = never;
    for (int64_t i = 0; i < sample->states; i++) {
        logarithm *sum = &spelt[label_of(ctc, sample, i)];
        const logarithm beta = sample->at[t * sample->states + i];
        const logarithm both = product_of(
            beta, lb_frame_get(&ctc->frame, recorded->alpha, (sample->b * ctc->steps + t) * ctc->states + i));
        *sum = sum->v == -INFINITY ? both : sum_of(*sum, both, never);
    }
    for (int64_t k = 0; k < ctc->classes; k++) {
        const double log_p = log_p_of(ctc, sample, t, k), p = lb_exp(log_p), share = lb_exp(spelt[k].v + loss - log_p);
        const double off = spelt[k].v > -INFINITY ? spelt[k].e + fabs(spelt[k].v) + fabs(loss) + fabs(log_p) + 4 : 0;
        const double value = twin ? (4 * p + share * off) * fabs(scale) : (p - share) * scale;
        lb_frame_set(&ctc->frame, y, (t * ctc->batch + sample->b) * ctc->classes + k, value);
    }
}

static void gradient_sample(const ctc *ctc, sample *sample, const recorded *recorded, void *y, bool twin)
{
    fill(ctc, sample, true);
    for (int64_t t = 0; t < sample->steps; t++) gradient_step(ctc, sample, t, recorded, y, twin);
}

/* grad, log_probs, targets, input_lengths, target_lengths, neg_log_likelihood, log_alpha, blank, zero_infinity */
static lb_status gradient_run(lb_call *call, bool twin)
{
    ctc ctc = ctc_begin(call, 1, 7, lb_frame_arg_tensor(call, 6));
    const void *scale = ctc.ok ? lb_frame_input(&ctc.frame, 0) : NULL,
               *loss = ctc.ok ? lb_frame_input(&ctc.frame, 5) : NULL,
               *alpha = ctc.ok ? lb_frame_input(&ctc.frame, 6) : NULL;
    const int64_t n = ctc.steps * ctc.batch * ctc.classes;
    void *y = ctc.ok ? lb_frame_output(&ctc.frame, 0, n) : NULL;
    if (ctc.ok && (lb_tensor_numel(lb_frame_arg_tensor(call, 0)) != ctc.batch ||
                   lb_tensor_numel(lb_frame_arg_tensor(call, 5)) != ctc.batch))
        lb_frame_fail(&ctc.frame, LB_ERR_UNSUPPORTED, "gradients or losses that do not fit");
    for (int64_t i = 0; lb_frame_ok(&ctc.frame) && i < n; i++) lb_frame_set(&ctc.frame, y, i, 0);
    for (int64_t b = 0; lb_frame_ok(&ctc.frame) && b < ctc.batch; b++) {
        const double of_sample = lb_frame_get(&ctc.frame, loss, b);
        sample sample;
        if (lb_frame_arg_int(call, 8, 0) && of_sample == INFINITY) continue;
        const recorded recorded = {alpha, of_sample, lb_frame_get(&ctc.frame, scale, b)};
        if (take_sample(&ctc, b, &sample)) gradient_sample(&ctc, &sample, &recorded, y, twin);
    }
    return lb_frame_end(&ctc.frame);
}

LB_WITH_TWIN(loss, loss_run(call, twin))
LB_WITH_TWIN(gradient, gradient_run(call, twin))

/* MARK: "!" where the lengths are tensors, "" where they are lists of numbers. */
#define LOSS(NAME, MARK, SAMPLES)                                                                                      \
    {.name = "aten::" NAME,                                                                                            \
     .args = "log_probs! targets! input_lengths" MARK " target_lengths" MARK " blank zero_infinity",                   \
     LB_COMPUTED_BY(loss),                                                                                             \
     .roundings = 2,                                                                                                   \
     .flags = LB_ROW_COMPLETES,                                                                                        \
     .samples = SAMPLES}
#define GRADIENT(NAME, MARK, SAMPLES)                                                                                  \
    {.name = "aten::" NAME,                                                                                            \
     .args = "grad! log_probs! targets! input_lengths" MARK " target_lengths" MARK                                     \
             " neg_log_likelihood! log_alpha! blank zero_infinity",                                                    \
     LB_COMPUTED_BY(gradient),                                                                                         \
     .roundings = 2,                                                                                                   \
     .samples = SAMPLES}

const lb_op_row lb_rows_ctc[] = {
    LOSS("_ctc_loss", "", "ctc lists"),
    LOSS("_ctc_loss.Tensor", "!", "ctc"),
    GRADIENT("_ctc_loss_backward", "", "ctc lists gradient"),
    GRADIENT("_ctc_loss_backward.Tensor", "!", "ctc gradient"),
    {NULL},
};
