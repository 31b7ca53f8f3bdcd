/* Steps and ranks of two implementations, and the answer: see diff_implementations.h. */
#include "runs/diff_implementations.h"
#include "runs/difference_steps.h"
#include "runs/implementation_report.h"

#include "exact/kept_table.h"
#include "implementations/implementations.h"
#include "joined/additional_passes.h"
#include "joined/joined_calls.h"
#include "joined/joined_ranks.h"
#include "joined/joined_steps.h"
#include "joined/spelled_out.h"
#include "smallest/smallest_set.h"
#include "sources/strangers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A cache that an earlier step left, and that the other side does not hold in the same numbers: the rounding of that
 * step is in it, and exact arithmetic of this step cannot tell it from another one. */
static bool begins_with_carried(const lb_implementations *x, lb_capture *const captures[2])
{
    bool found = false;
    for (int side = 0; side < 2 && !found; side++) {
        uint8_t *held = lb_step_sources_held(&x->contents, side, x->sources[side].n, true);
        found = !held;
        for (uint32_t i = 0; i < x->sources[side].n && !found; i++) {
            const lb_value *v = &x->sides[side].program->values[x->sources[side].list[i].value];
            const lb_program *program = x->sides[side].program;
            found = lb_joined_steps_is_cache(v) && !held[i] &&
                    !lb_kept_table(captures[side], program->rank, program->step, v);
        }
        free(held);
    }
    return found;
}

/* All ranks of both sides in one step, or all steps of one rank. */
typedef struct step_pair {
    lb_capture *captures[2];
    const lb_program **programs[2];
    uint32_t n[2];
    int64_t step;
    bool of_steps;
    const lb_diff_row *place; /* that is asked about; NULL */
    lb_exact_progress progress;
    bool smallest;               /* lb_diff_options */
    lb_additional_passes passes; /* of one program on each side */
} step_pair;

static bool has_place(const lb_implementations *x)
{
    bool place = false;
    for (uint32_t i = 0; i < x->regions.n; i++) place |= !x->regions.list[i].vague;
    return place;
}

static lb_status open_side(const step_pair *pair, int side, lb_program_view *view, lb_err *err)
{
    if (!pair->of_steps && pair->n[0] == 1 && pair->n[1] == 1)
        return lb_spelled_out_view(pair->captures[side], pair->programs[side][0], pair->programs[!side][0],
                                   pair->passes.left_out[side], view, err);
    return pair->of_steps ? lb_joined_steps_view(pair->captures[side], pair->programs[side], pair->n[side], view, err)
                          : lb_joined_ranks_view(pair->captures[side], pair->programs[side], pair->n[side], view, err);
}

static void count_runs(const lb_exact_side *s, lb_diff_report *report)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < s->program->n_ops; i++) n += lb_op_computes(s->program, &s->program->ops[i]);
    report->cost.runs += s->runs, report->cost.ops += s->ops_run;
    report->exact_runs += s->runs, report->recorded_ops += n;
}

/* The step of a side's only rank behind this one; NULL: none was recorded. */
static const lb_program *step_after(const step_pair *pair, int side)
{
    const int64_t *steps;
    const uint32_t n = lb_capture_steps(pair->captures[side], &steps);
    const lb_program *after;
    if (pair->of_steps || pair->n[side] != 1) return NULL;
    for (uint32_t i = 0; i + 1 < n; i++)
        if (steps[i] == pair->step && lb_capture_program(pair->captures[side], pair->programs[side][0]->rank,
                                                         steps[i + 1], &after, NULL) == LB_OK)
            return after;
    return NULL;
}

static const char *why_not_judged(const lb_implementations *x, bool placed, bool carried, bool flipped)
{
    if (*x->missing) return x->missing;
    if (x->regions.n && !placed)
        return "what leaves the step differs in exact arithmetic, but hardly any value in between is the same on both "
               "sides, so that no place can be named";
    if (x->same && x->left_apart)
        return "memory that an earlier step made (an average of weights) holds other numbers on the two sides";
    if (carried)
        return "memory that an earlier step left (states of an optimizer, a cache) holds other numbers on the two "
               "sides, and what follows from it was not judged";
    if (flipped)
        return "a choice of experts fell differently on the two sides from the same numbers, and what follows from it "
               "was not judged";
    return "what leaves the step differs, and no place was found";
}

/* What one step proves of the set, beside what the steps before it did. */
static void join_set(lb_diff_report *report, const lb_smallest_set *set, const lb_run_cost *cost)
{
    lb_diff_set *to = &report->set;
    const bool first = !to->asked;
    to->asked = true;
    to->whole = (first || to->whole) && set->whole, to->each = (first || to->each) && set->each;
    to->smallest = (first || to->smallest) && set->smallest;
    to->runs += cost->runs, to->ops += cost->ops;
    if (!to->why || !*to->why) to->why = lb_report_keep(report, set->why);
}

/* Are its differences the smallest set? */
static lb_status find_set(const step_pair *pair, lb_implementations *x, bool first, lb_diff_report *report,
                          lb_smallest_set *set, lb_err *err)
{
    lb_run_cost cost = {0};
    if (!pair->smallest || !x->regions.n) return LB_OK;
    for (int k = 0; k < 2; k++) cost.runs -= x->sides[k].runs, cost.ops -= x->sides[k].ops_run;
    LB_TRY(lb_smallest_set_find(x, first, set, err));
    for (int k = 0; k < 2; k++) cost.runs += x->sides[k].runs, cost.ops += x->sides[k].ops_run;
    join_set(report, set, &cost);
    return LB_OK;
}

/* `why`: the sentence on what was not judged. */
static lb_status judge_views(const step_pair *pair, const lb_program_view views[2], lb_source_memory *memory,
                             lb_diff_report *report, bool first, lb_diff_implementations_answer *answer, char why[400],
                             lb_err *err)
{
    lb_implementations x;
    for (int k = 0; k < 2; k++) memory->after[k] = step_after(pair, k);
    LB_TRY(lb_implementations_judge(&views[0], &views[1], memory, pair->progress, &x, err));
    const bool flipped = x.regions.n && x.regions.list[0].chosen, placed = has_place(&x);
    /* Equal but for what the rounding of tensors may do that one side alone holds: of a cache in 16 bits that is no
     * proof. */
    const bool same = x.same && !x.left_apart, proven = same && !x.alone;
    const bool told = x.judged && (same || (placed && !flipped)),
               carried = told && !proven && begins_with_carried(&x, pair->captures);
    answer->judged = proven || (told && !carried), answer->proven = proven;
    if (answer->judged) report->untold |= !x.tokens;
    answer->padded |= x.tokens && pair->n[0] == 1 && pair->n[1] == 1;
    lb_smallest_set set = {0};
    lb_status status = answer->judged ? find_set(pair, &x, first, report, &set, err) : LB_OK;
    if (status == LB_OK && answer->judged)
        status = lb_implementation_report_step(
            &(lb_implementation_report_of){.x = &x, .spared = set.spared, .place = pair->place, .first = first}, report,
            &answer->cleared, err);
    lb_smallest_set_release(&set);
    for (int k = 0; k < 2; k++) count_runs(&x.sides[k], report);
    snprintf(why, 400, "step %lld: %s", (long long)pair->step, why_not_judged(&x, placed, carried, flipped));
    lb_implementations_release(&x);
    return status;
}

/* An evaluation that one side runs besides is told, and left out. */
static lb_status leave_out_passes(step_pair *pair, lb_diff_report *report, lb_err *err)
{
    lb_program_view views[2] = {{0}, {0}};
    lb_status status = LB_OK;
    for (int k = 0; k < 2 && status == LB_OK; k++)
        status = lb_program_view_init(pair->captures[k], pair->programs[k], 1, &views[k], err);
    if (status == LB_OK) status = lb_additional_passes_find(&views[0], &views[1], &pair->passes, err);
    for (int k = 0; k < 2; k++) lb_program_view_release(&views[k]);
    for (uint32_t i = 0; i < pair->passes.n_sentences && status == LB_OK; i++) {
        const char *what = strstr(pair->passes.sentences[i], ": ");
        bool known = false; /* of an earlier step */
        for (uint32_t k = 0; k < report->n_findings && !known; k++) known = what && strstr(report->findings[k], what);
        if (!known) lb_report_finding(report, pair->passes.sentences[i]);
    }
    return status;
}

/* First by the calls of the model, where the sides cut what they are given into different ones. */
static lb_status judge_opened(const step_pair *pair, lb_source_memory *memory, lb_diff_report *report, bool first,
                              lb_diff_implementations_answer *answer, lb_err *err)
{
    lb_status status = LB_OK;
    bool by_calls = !pair->of_steps && pair->n[0] == 1 && pair->n[1] == 1, again;
    char why[400];
    do {
        lb_program_view views[2] = {{0}, {0}}, *const both[] = {&views[0], &views[1]};
        for (int k = 0; k < 2 && status == LB_OK; k++) status = open_side(pair, k, &views[k], err);
        if (status == LB_OK && by_calls) status = lb_joined_calls_cut(both, &by_calls, err);
        if (status == LB_OK) status = judge_views(pair, views, memory, report, first, answer, why, err);
        for (int k = 0; k < 2; k++) lb_program_view_release(&views[k]);
        again = status == LB_OK && by_calls && !answer->judged, by_calls = false;
    } while (again);
    if (status == LB_OK && !answer->judged) lb_report_missing(report, why);
    return status;
}

static lb_status judge_step(step_pair *pair, lb_source_memory *memory, lb_diff_report *report, bool first,
                            lb_diff_implementations_answer *answer, lb_err *err)
{
    const bool of_one = !pair->of_steps && pair->n[0] == 1 && pair->n[1] == 1;
    lb_status status = of_one ? leave_out_passes(pair, report, err) : LB_OK;
    if (status == LB_OK) status = judge_opened(pair, memory, report, first, answer, err);
    lb_additional_passes_release(&pair->passes);
    return status;
}

/* Not `*there`: a rank has no such step. */
static lb_status load_ranks(step_pair *pair, int side, bool *there, lb_err *err)
{
    lb_err why = LB_ERR_INIT;
    const int32_t *ranks;
    const uint32_t n = lb_capture_ranks(pair->captures[side], &ranks);
    pair->programs[side] = calloc(n + 1, sizeof *pair->programs[side]), pair->n[side] = n;
    lb_status status = LB_OK;
    if (!pair->programs[side]) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", n);
    for (uint32_t i = 0; i < n && status == LB_OK; i++)
        status = lb_capture_program(pair->captures[side], ranks[i], pair->step, &pair->programs[side][i], &why);
    *there = status == LB_OK;
    return lb_is_refusal(status) ? lb_fail(err, status, "%s", why.message) : LB_OK;
}

/* All steps of either side are one program. */
static lb_status judge_all_steps(const lb_diff_implementations_question *question, lb_source_memory *memory,
                                 lb_diff_report *report, lb_diff_implementations_answer *answer, lb_err *err)
{
    const lb_diff_options *options = question->options;
    step_pair pair = {.captures = {question->captures[0], question->captures[1]},
                      .of_steps = true,
                      .progress = options->progress,
                      .smallest = options->smallest};
    lb_status status = LB_OK;
    for (int k = 0; k < 2 && status == LB_OK; k++)
        status = lb_strangers_steps(pair.captures[k], options->first_step, options->last_step, &pair.programs[k],
                                    &pair.n[k], err);
    if (status == LB_OK && pair.programs[0] && pair.programs[1]) {
        pair.step = pair.programs[0][0]->step;
        if (options->progress) options->progress("comparing implementations", 0, 1);
        status = judge_step(&pair, memory, report, true, answer, err);
    }
    free(pair.programs[0]), free(pair.programs[1]);
    return status;
}

/* Sides that only infer, of which a step begins with a cache that the step before left in different bits or in another
 * layout: where steps one by one say nothing. */
static lb_status judge_steps_as_one(const lb_diff_implementations_question *question, lb_source_memory *memory,
                                    lb_diff_report *report, lb_diff_implementations_answer *answer, lb_err *err)
{
    lb_diff_implementations_answer of_one = {.judged = false};
    lb_diff_report *as_one = calloc(1, sizeof *as_one);
    if (!as_one) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    const lb_status status = judge_all_steps(question, memory, as_one, &of_one, err);
    lb_diff_report_share_cost(report, as_one), report->out_of_memory |= as_one->out_of_memory;
    if (status == LB_OK && of_one.judged && (of_one.proven || as_one->n_differences)) {
        const lb_diff_report alone = *report;
        *report = *as_one, *as_one = alone, *answer = of_one;
    }
    lb_diff_report_free(as_one);
    return status;
}

/* Step by step, with all ranks of either side. */
static lb_status judge_steps(const lb_diff_implementations_question *question, lb_source_memory *memory,
                             lb_diff_report *report, lb_diff_implementations_answer *answer, lb_err *err)
{
    const int64_t *steps;
    const uint32_t n = lb_capture_steps(question->captures[0], &steps);
    lb_status status = LB_OK;
    bool any = false, all = true;
    for (uint32_t i = 0; i < n && status == LB_OK && all; i++) {
        step_pair pair = {.captures = {question->captures[0], question->captures[1]},
                          .step = steps[i],
                          .place = question->place,
                          .progress = question->options->progress,
                          .smallest = question->options->smallest};
        if (steps[i] < question->options->first_step || steps[i] > question->options->last_step) continue;
        if (question->options->progress) question->options->progress("comparing implementations", i, n);
        status = load_ranks(&pair, 0, &all, err);
        if (status == LB_OK && all) status = load_ranks(&pair, 1, &all, err);
        if (status == LB_OK && all)
            status = judge_step(&pair, memory, report, !any, answer, err), any = true, all = answer->judged;
        free(pair.programs[0]), free(pair.programs[1]);
    }
    answer->judged = any && all;
    return status;
}

lb_status lb_diff_implementations(const lb_diff_implementations_question *question, lb_diff_report *report,
                                  lb_diff_implementations_answer *answer, lb_err *err)
{
    lb_source_memory memory = {.map = question->map};
    *answer = (lb_diff_implementations_answer){.judged = false};
    lb_status status = question->cut ? judge_all_steps(question, &memory, report, answer, err)
                                     : judge_steps(question, &memory, report, answer, err);
    if (status == LB_OK && question->as_one && !question->cut && !answer->judged && !report->n_differences)
        status = judge_steps_as_one(question, &memory, report, answer, err);
    for (uint32_t i = 0; i < memory.n_said; i++) lb_report_finding(report, memory.said[i]);
    lb_source_memory_release(&memory);
    /* A place that differs stands, whatever a later step says. */
    answer->judged |= report->n_differences > 0;
    report->implementations = true;
    lb_difference_steps_join(report);
    /* Rows are told where no part of the step differs by itself; that bits differ is so in any case. */
    if (report->verdict == LB_VERDICT_IDENTICAL && report->identical < report->ops)
        report->verdict = LB_VERDICT_ROUNDING;
    if (report->n_differences) report->verdict = LB_VERDICT_DIVERGED;
    return status;
}
