/* Labels and weights: see scored_labels.h. */
#include "check/scored_labels.h"

#include <math.h>
#include <stdio.h>

/* ---- which token is scored ---- */

/* A head that predicts several tokens ahead stands beside one that predicts the next. */
static bool predicts_next(const lb_scored_step *scored, uint32_t ids)
{
    for (uint32_t i = 0; i < scored->n_losses; i++)
        if (scored->losses[i].ids == ids && scored->losses[i].shift == 1) return true;
    return false;
}

static bool judge_target(lb_check_step *step, const lb_scored_step *scored, uint32_t number)
{
    const lb_scored_rows *loss = &scored->losses[number];
    if (!loss->certain || loss->shift < 2 || predicts_next(scored, loss->ids)) return true;
    lb_check_finding *finding = lb_proof_list_add(step->report, LB_CHECK_TARGET, step->run.program);
    if (!finding) return false;
    lb_proof_list_place(finding, step->run.program, loss->op, LB_NONE, step->path);
    finding->effect = (double)(loss->shift - 1);
    snprintf(finding->message, sizeof finding->message,
             "each row is scored against the token %lld places on, and none against the next: "
             "labels that were shifted are shifted again",
             (long long)loss->shift);
    return true;
}

/* Tokens that weigh something in the loss, as ranges: "3-7, 9". */
static void list_scored(const lb_scored_rows *loss, int64_t sequence, char *text, size_t size)
{
    size_t used = 0;
    int64_t from = -1;
    *text = 0;
    for (int64_t i = 0; i <= loss->per_row && used + 24 < size; i++) {
        const int64_t row = sequence * loss->per_row + i, target = i + loss->first + loss->shift;
        bool counts = i < loss->per_row && loss->targets[row] >= 0 && loss->targets[row] < loss->classes;
        if (counts && loss->weights) counts = loss->weights[row] != 0;
        if (counts && from < 0) from = target;
        if (counts || from < 0) continue;
        used += (size_t)snprintf(text + used, size - used, "%s%lld", used ? ", " : "", (long long)from);
        if (target - 1 > from) used += (size_t)snprintf(text + used, size - used, "-%lld", (long long)target - 1);
        from = -1;
    }
}

static bool say_scored(lb_check_step *step, const lb_scored_step *scored)
{
    const lb_scored_rows *loss = &scored->losses[0];
    char text[120], whom[48] = "its own token";
    for (uint32_t i = 0; i < scored->n_losses && loss->shift != 1; i++)
        if (scored->losses[i].shift == 1) loss = &scored->losses[i];
    list_scored(loss, 0, text, sizeof text);
    if (loss->shift == 1) snprintf(whom, sizeof whom, "the next token");
    if (loss->shift > 1) snprintf(whom, sizeof whom, "the token %lld places on", (long long)loss->shift);
    return lb_proof_list_prove(step->report, "step %lld: each row is scored against %s; of sequence 0 tokens %s count",
                               (long long)step->run.program->step, whom, *text ? text : "(none)");
}

/* ---- means of means ---- */

/* The one weight that all scored tokens of a loss have; NaN: they differ, or are not known. */
static double even_weight(const lb_check_step *step, const lb_scored_step *scored, uint32_t number, int64_t *count)
{
    const lb_scored_rows *loss = &scored->losses[number];
    const int64_t n = lb_layout_numel(&step->run.program->values[loss->labels].layout);
    double weight = NAN;
    *count = 0;
    for (int64_t i = 0; loss->weights && i < n; i++) {
        if (loss->weights[i] == 0) continue;
        if (*count && fabs(loss->weights[i] - weight) > 1e-9 * fabs(weight)) return NAN;
        weight = loss->weights[i], ++*count;
    }
    return weight;
}

/* What the scored tokens of the micro-batches weigh, if the tokens of each weigh alike and one line gave all losses. */
typedef struct weighing {
    int64_t least, most; /* scored tokens of a micro-batch */
    double each;         /* what all tokens of a micro-batch weigh together; NaN: it is not one number */
    double sum;          /* of all micro-batches */
} weighing;

static bool weigh(const lb_check_step *step, const lb_scored_step *scored, weighing *weighed)
{
    const lb_program *program = step->run.program;
    *weighed = (weighing){.least = INT64_MAX};
    for (uint32_t i = 0; i < scored->n_losses; i++) {
        int64_t count;
        const double weight = even_weight(step, scored, i, &count);
        for (uint32_t k = 0; k < i; k++)
            if (scored->losses[k].ids == scored->losses[i].ids)
                return false; /* several heads, or chunks of one sequence */
        if (isnan(weight) || program->ops[scored->losses[i].op].line != program->ops[scored->losses[0].op].line)
            return false;
        const double all = weight * (double)count;
        weighed->sum += all;
        weighed->each = !i || fabs(all - weighed->each) <= 1e-6 * fabs(weighed->each) ? all : NAN;
        weighed->least = count < weighed->least ? count : weighed->least,
        weighed->most = count > weighed->most ? count : weighed->most;
    }
    return scored->n_losses > 0;
}

/* Micro-batches that were each divided by their own number of tokens. */
static bool judge_means(lb_check_step *step, const lb_scored_step *scored, const weighing *weighing)
{
    if (weighing->least == weighing->most || isnan(weighing->each)) return true;
    lb_check_finding *finding = lb_proof_list_add(step->report, LB_CHECK_MEANS, step->run.program);
    if (!finding) return false;
    lb_proof_list_place(finding, step->run.program, scored->losses[0].op, LB_NONE, step->path);
    finding->factor = (double)weighing->most / (double)weighing->least, finding->effect = finding->factor - 1;
    snprintf(finding->message, sizeof finding->message,
             "%u micro-batches of %lld to %lld scored tokens were each divided by their own number: "
             "a token of the shortest weighs %.3g times one of the longest",
             scored->n_losses, (long long)weighing->least, (long long)weighing->most, finding->factor);
    return true;
}

static bool is_near(double x, double y)
{
    return fabs(x - y) <= 1e-6 * fabs(y);
}

/* A mean over the window gives all its tokens a weight of 1 together: by as many micro-batches as there are, they were
 * divided once too often where it is the inverse of that number. A sum of means is what some programs want. */
static bool judge_sum(lb_check_step *check, const lb_scored_step *scored, const weighing *weighing)
{
    const double n = scored->n_losses;
    const long long step = (long long)check->run.program->step;
    if (scored->n_losses < 2 || !(is_near(weighing->sum * n, 1) || is_near(weighing->sum, n))) return true;
    if (is_near(weighing->sum, n))
        return lb_proof_list_prove(check->report,
                                   "step %lld: gradients are the sum, and not the mean, of %u micro-batches: "
                                   "all scored tokens weigh %.6g together",
                                   step, scored->n_losses, weighing->sum);
    lb_check_finding *finding = lb_proof_list_add(check->report, LB_CHECK_WEIGHTS, check->run.program);
    if (!finding) return false;
    lb_proof_list_place(finding, check->run.program, scored->losses[0].op, LB_NONE, check->path);
    finding->factor = weighing->sum, finding->effect = 1 - weighing->sum;
    snprintf(finding->message, sizeof finding->message,
             "all scored tokens of %u micro-batches weigh %.6g together in the losses that were differentiated, "
             "where a mean over them weighs 1: they were divided by %u once more than that",
             scored->n_losses, weighing->sum, scored->n_losses);
    return true;
}

bool lb_scored_labels_judge(lb_check_step *step, const lb_scored_step *scored)
{
    weighing weighing;
    for (uint32_t i = 0; i < scored->n_losses; i++)
        if (!judge_target(step, scored, i)) return false;
    if (weigh(step, scored, &weighing) && !(judge_means(step, scored, &weighing) && judge_sum(step, scored, &weighing)))
        return false;
    return say_scored(step, scored);
}
