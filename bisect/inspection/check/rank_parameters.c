/* Ranks that hold parts of a model, and gradients that are not the derivative of their losses: which parameters' are
 * not. What one rank holds alone is asked for by itself, and so is what several hold; of those that differ the last one
 * in the order of forward is named, which backward reaches first, or all of them where one factor explains them. */
#include "check/cuts.h"
#include "check/fault_place.h"
#include "check/rank_gradients.h"

#include "base/array.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Parameters of one rank alone, or of several ranks, in the order of forward. */
typedef struct bucket {
    const lb_rank_copies *copies;
    lb_check_step *steps;
    uint32_t *groups, n;
    uint64_t roots;
} bucket;

static uint32_t at_of(const bucket *bucket, uint32_t group)
{
    const uint32_t first = lb_rank_copies_first(bucket->copies, group);
    return lb_rank_copies_site(bucket->copies, bucket->steps, group, first)->at;
}

/* `rank` LB_NONE: of several ranks. */
static bool fill(bucket *bucket, uint32_t rank)
{
    const lb_rank_copies *copies = bucket->copies;
    bucket->groups = malloc(((size_t)copies->n + 1) * sizeof *bucket->groups), bucket->n = 0;
    for (uint32_t g = 0; bucket->groups && g < copies->n; g++) {
        const bool shared = lb_rank_copies_count(copies, g) > 1;
        if (shared != (rank == LB_NONE) || (!shared && lb_rank_copies_first(copies, g) != rank) ||
            !lb_rank_gradients_follow(copies, bucket->steps, g, bucket->roots))
            continue;
        uint32_t at = bucket->n++;
        for (; at > 0 && at_of(bucket, bucket->groups[at - 1]) > at_of(bucket, g); at--)
            bucket->groups[at] = bucket->groups[at - 1];
        bucket->groups[at] = g;
    }
    return bucket->groups != NULL;
}

/* Groups of a bucket, from `first` up to `end`. */
typedef struct span {
    uint32_t first, end;
} span;

/* Some groups of the bucket along a direction. */
static lb_status ask(const bucket *bucket, span span, uint32_t seed, lb_quotient *quotient, bool *differs, lb_err *err)
{
    lb_check_answer answer;
    for (uint32_t k = 0; k < bucket->copies->ranks; k++)
        memset(bucket->steps[k].run.active, 0, bucket->steps[k].run.n_sites);
    for (uint32_t i = span.first; i < span.end; i++)
        for (uint32_t k = 0; k < bucket->copies->ranks; k++) {
            const lb_moved_site *site = lb_rank_copies_site(bucket->copies, bucket->steps, bucket->groups[i], k);
            if (site) bucket->steps[k].run.active[site - bucket->steps[k].run.sites] = 1;
        }
    const lb_check_question question = {seed, bucket->roots, LB_RANK_LEAST};
    LB_TRY(lb_check_step_ask(&bucket->steps[0], &question, quotient, &answer, err));
    *differs = answer == LB_ANSWER_DIFFERS;
    return LB_OK;
}

static double ratio_of(const lb_quotient *quotient)
{
    return quotient->said / quotient->derivative;
}

/* Said by derivative where that is one number along two directions over these groups; NaN. */
static lb_status factor_of(const bucket *bucket, span span, lb_quotient *quotient, double *factor, lb_err *err)
{
    lb_quotient other;
    bool differs;
    LB_TRY(ask(bucket, span, 0, quotient, &differs, err));
    LB_TRY(ask(bucket, span, 1, &other, &differs, err));
    const double a = ratio_of(quotient), c = ratio_of(&other);
    *factor = fabs(a - c) <= LB_RANK_LEAST * fabs(a) ? a : NAN;
    return LB_OK;
}

/* The last group with which the end of the bucket differs. */
static lb_status last_wrong(const bucket *bucket, uint32_t *found, lb_err *err)
{
    uint32_t low = 0, high = bucket->n;
    lb_quotient quotient;
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        bool differs;
        LB_TRY(ask(bucket, (span){middle, bucket->n}, 0, &quotient, &differs, err));
        if (differs)
            low = middle;
        else
            high = middle;
    }
    *found = low;
    return LB_OK;
}

/* ---- words ---- */

/* An op of backward that no op of forward asked for: a hook's, or one of the program's own. */
static uint32_t first_own(const lb_check_step *step)
{
    const lb_program *program = step->run.program;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        if (op->phase != LB_PHASE_BACKWARD || op->flags & LB_OP_VIEW || lb_op_is_source(program, op) || !op->line)
            continue;
        if (op->flags & LB_OP_COLLECTIVE || strcmp(lb_op_name(program, op), "aten::ones_like") == 0) continue;
        const uint32_t forward = step->run.graph.forward[i];
        if (forward == LB_NONE || !program->ops[forward].line || program->ops[forward].line == op->line) continue;
        return i;
    }
    return LB_NONE;
}

/* What is wrong in one bucket. */
typedef struct fault {
    uint32_t rank, group, n; /* n: parameters, all of the bucket or one */
    uint32_t alike;          /* ranks whose parts of the same parameter are wrong likewise */
    lb_quotient quotient;
    double factor;
    bool any;
} fault;

static void say_which(const bucket *bucket, const fault *fault, char *what, size_t size)
{
    const char *name = lb_rank_copies_name(bucket->copies, bucket->steps, fault->group);
    const int rank = (int)bucket->steps[fault->rank].run.program->rank;
    const bool shared = lb_rank_copies_count(bucket->copies, fault->group) > 1;
    char held[80] = "which all ranks hold";
    if (!shared) snprintf(held, sizeof held, "which rank %d holds", rank);
    if (!shared && fault->alike > 1) snprintf(held, sizeof held, "of which %u ranks hold a part", fault->alike);
    if (fault->n > 1)
        snprintf(what, size, "the gradients of all %u parameters %.60s (%.100s is the last) are", fault->n, held, name);
    else
        snprintf(what, size, "the gradient of %.140s, %.60s, is", name, held);
}

/* The next parameter in the order of forward that the rank of the fault holds; "": there is none. */
static const char *next_right(const bucket *bucket, const fault *fault)
{
    uint32_t best = LB_NONE, next = LB_NONE;
    const uint32_t at = at_of(bucket, fault->group);
    for (uint32_t g = 0; g < bucket->copies->n; g++) {
        const lb_moved_site *site = lb_rank_copies_site(bucket->copies, bucket->steps, g, fault->rank);
        if (site && site->at > at && site->at < best && site->gradient != LB_NONE) best = site->at, next = g;
    }
    return next == LB_NONE ? "" : lb_rank_copies_name(bucket->copies, bucket->steps, next);
}

/* Ranks that hold parts of a model mostly have one loss. "; their losses are 3.47 and 3.52" where they do not. */
static void say_losses(const bucket *bucket, char *text, size_t size)
{
    double losses[2];
    uint32_t n = 0;
    *text = '\0';
    for (uint32_t k = 0; k < bucket->copies->ranks && n < 2; k++) {
        const lb_moved_run *run = &bucket->steps[k].run;
        if (run->n_roots && (!n || fabs(run->roots[0].loss - losses[0]) > 1e-9 * fabs(losses[0])))
            losses[n++] = run->roots[0].loss;
    }
    if (n == 2) snprintf(text, size, "; their losses are %.8g and %.8g", losses[0], losses[1]);
}

static bool add_finding(const bucket *bucket, const fault *fault)
{
    lb_check_step *step = &bucket->steps[fault->rank];
    const lb_program *program = step->run.program;
    const lb_moved_site *site = lb_rank_copies_site(bucket->copies, bucket->steps, fault->group, fault->rank);
    const bool none = site->norm == 0;
    lb_check_finding *finding = lb_proof_list_add(step->report,
                                                  none                   ? LB_CHECK_DETACHED
                                                  : isnan(fault->factor) ? LB_CHECK_GRADIENT
                                                                         : LB_CHECK_SCALE,
                                                  program);
    if (!finding) return false;
    const uint32_t own = fault->n > 1 && !isnan(fault->factor) ? first_own(step) : LB_NONE;
    lb_proof_list_place(finding, program, own != LB_NONE ? own : step->run.graph.giver[site->gradient], site->at,
                        step->path);
    finding->factor = none ? 0 : fault->factor,
    finding->effect = fabs(fault->quotient.said - fault->quotient.derivative) / fabs(fault->quotient.derivative);
    char counted[120] = "", what[240], times[60] = "not", right[200] = "", losses[80];
    const char *next = next_right(bucket, fault);
    say_which(bucket, fault, what, sizeof what);
    if (!isnan(fault->factor)) {
        snprintf(times, sizeof times, "%.6g times", fault->factor);
        lb_fault_place_factor_text((uint32_t)__builtin_popcountll(bucket->roots), fault->factor, counted,
                                   sizeof counted);
    }
    say_losses(bucket, losses, sizeof losses);
    if (*next && fault->n == 1) snprintf(right, sizeof right, "; from %.100s on they are right", next);
    snprintf(finding->message, sizeof finding->message,
             "%.220s %.40s the derivative of the mean of the ranks' losses%.60s: %.6g along a random direction, "
             "where a difference quotient gives %.6g +- %.1g%.115s%.50s",
             what, times, counted, fault->quotient.said, fault->quotient.derivative, fault->quotient.error, right,
             losses);
    return true;
}

/* ---- the search ---- */

/* One factor for all of them, over both halves; or the last one that is wrong. */
static lb_status find(const bucket *bucket, fault *fault, lb_err *err)
{
    lb_quotient half;
    double first = NAN;
    uint32_t found = bucket->n - 1;
    fault->n = 1, fault->alike = 1, fault->any = true;
    LB_TRY(factor_of(bucket, (span){0, bucket->n}, &fault->quotient, &fault->factor, err));
    if (bucket->n > 1 && !isnan(fault->factor)) LB_TRY(factor_of(bucket, (span){0, bucket->n / 2}, &half, &first, err));
    if (fabs(first - fault->factor) <= LB_RANK_LEAST * fabs(fault->factor)) {
        fault->n = bucket->n;
    } else {
        LB_TRY(last_wrong(bucket, &found, err));
        LB_TRY(factor_of(bucket, (span){found, found + 1}, &fault->quotient, &fault->factor, err));
    }
    fault->group = bucket->groups[found], fault->rank = lb_rank_copies_first(bucket->copies, fault->group);
    return LB_OK;
}

/* Ranks that run one program: what is wrong furthest back in forward is what backward comes to first, and the rest
 * follows from it. */
static bool run_one_program(const lb_check_step *steps, uint32_t ranks)
{
    for (uint32_t k = 1; k < ranks; k++)
        if (steps[k].run.program->n_ops != steps[0].run.program->n_ops) return false;
    return true;
}

static void keep_last(const bucket *bucket, fault *faults, uint32_t n)
{
    uint32_t last = 0;
    for (uint32_t i = 0; i < n; i++)
        if (faults[i].any && at_of(bucket, faults[i].group) > last) last = at_of(bucket, faults[i].group);
    fault *kept = NULL;
    for (uint32_t i = 0; i < n; i++) {
        if (!faults[i].any) continue;
        const bool is_last = at_of(bucket, faults[i].group) == last;
        if (kept && is_last) kept->alike++;
        faults[i].any = is_last && !kept;
        if (faults[i].any) kept = &faults[i];
    }
}

static lb_status look_in(const bucket *bucket, fault *fault, lb_err *err)
{
    lb_quotient quotient;
    bool differs = false;
    if (bucket->n) LB_TRY(ask(bucket, (span){0, bucket->n}, 0, &quotient, &differs, err));
    return differs ? find(bucket, fault, err) : LB_OK;
}

lb_status lb_rank_parameters_locate(const lb_rank_copies *copies, lb_check_step *steps, uint64_t roots, lb_err *err)
{
    const uint32_t n = copies->ranks + 1;
    bucket bucket = {.copies = copies, .steps = steps, .roots = roots};
    fault *faults = calloc(n, sizeof *faults);
    lb_status status = faults ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for places");
    for (uint32_t k = 0; k < n && status == LB_OK; k++) {
        if (fill(&bucket, k < copies->ranks ? k : LB_NONE))
            status = look_in(&bucket, &faults[k], err);
        else
            status = lb_fail(err, LB_ERR_NOMEM, "out of memory for places");
        free(bucket.groups);
    }
    bool any = false, said = true;
    if (status == LB_OK && run_one_program(steps, copies->ranks)) keep_last(&bucket, faults, n);
    for (uint32_t k = 0; k < n && status == LB_OK && said; k++)
        if (faults[k].any) any = true, said = add_finding(&bucket, &faults[k]);
    if (status == LB_OK && said && !any)
        said = lb_proof_list_leave(steps[0].report, "the gradients of all ranks",
                                   "together they are not the derivative of the mean of the ranks' losses, "
                                   "and those of each rank are");
    free(faults);
    return status != LB_OK || said ? status : lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
}

/* Another rank's part of it is among the groups that were found before. */
static bool is_named(const lb_rank_copies *copies, const lb_check_step *steps, const uint8_t *found, uint32_t group)
{
    const char *name = lb_rank_copies_name(copies, steps, group);
    for (uint32_t g = 0; g < group; g++)
        if (found[g] && strcmp(lb_rank_copies_name(copies, steps, g), name) == 0) return true;
    return false;
}

static bool has_none(const lb_rank_copies *copies, lb_check_step *steps, uint32_t group)
{
    for (uint32_t k = 0; k < copies->ranks; k++) {
        const lb_moved_site *site = lb_rank_copies_site(copies, steps, group, k);
        if (site && (!site->moved || site->gradient != LB_NONE)) return false;
    }
    return true;
}

static lb_status find_detached(const lb_rank_copies *copies, lb_check_step *steps, uint64_t roots, uint8_t *found,
                               lb_err *err)
{
    for (uint32_t group = 0; group < copies->n; group++) {
        const bucket bucket = {.copies = copies, .steps = steps, .groups = &group, .n = 1, .roots = roots};
        const uint32_t rank = lb_rank_copies_first(copies, group);
        lb_check_step *step = &steps[rank];
        lb_quotient quotient;
        bool differs;
        if (!has_none(copies, steps, group) || is_named(copies, steps, found, group)) continue;
        LB_TRY(ask(&bucket, (span){0, 1}, 0, &quotient, &differs, err));
        if (!differs) continue;
        found[group] = 1;
        const lb_moved_site *site = lb_rank_copies_site(copies, steps, group, rank);
        lb_check_finding *finding = lb_proof_list_add(step->report, LB_CHECK_DETACHED, step->run.program);
        if (!finding) return lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
        const char *why;
        const uint32_t cut = lb_cuts_next(step, site->at, &why);
        lb_proof_list_place(finding, step->run.program, cut != LB_NONE ? cut : site->at, LB_NONE, step->path);
        snprintf(finding->layer, sizeof finding->layer, "%s",
                 lb_op_layer(step->run.program, &step->run.program->ops[site->at]));
        finding->factor = 0, finding->effect = 1;
        snprintf(finding->message, sizeof finding->message,
                 "the losses of the ranks depend on %s (derivative %.4g along the direction tried), "
                 "autograd was to follow it, and it has no gradient on any rank that holds it",
                 lb_rank_copies_name(copies, steps, group), quotient.derivative);
    }
    return LB_OK;
}

lb_status lb_rank_parameters_detached(const lb_rank_copies *copies, lb_check_step *steps, uint64_t roots, lb_err *err)
{
    uint8_t *found = calloc((size_t)copies->n + 1, 1);
    if (!found) return lb_fail(err, LB_ERR_NOMEM, "out of memory for parameters");
    const lb_status status = find_detached(copies, steps, roots, found, err);
    free(found);
    return status;
}
