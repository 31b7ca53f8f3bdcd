/* A recording alone: see lastbit/check.h. */
#include "check/check_step.h"
#include "check/digits.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- words ---- */

const char *lb_check_kind_name(lb_check_kind kind)
{
    static const char *const names[] = {
#define LB_CHECK_KIND_TEXT(name, text) text,
        LB_CHECK_KINDS(LB_CHECK_KIND_TEXT)
#undef LB_CHECK_KIND_TEXT
    };
    return names[kind];
}

const char *lb_check_verdict_name(lb_check_verdict verdict)
{
    static const char *const names[] = {"clean", "found", "undecided"};
    return names[verdict];
}

/* ---- steps ---- */

/* What is tried once: relations, in the first step that has a loss of tokens. */
typedef struct check_run {
    lb_capture *capture;
    const lb_check_options *options;
    lb_check_report *report;
    uint32_t parts, limit;
    bool tried;
} check_run;

/* One step of one rank, or of all. */
typedef struct ranks_step {
    lb_program_view *views;
    lb_check_step *steps;
    uint32_t n;
} ranks_step;

static lb_status open_step(const check_run *check_run, const lb_program *program, ranks_step *ranks_step, lb_err *err)
{
    lb_check_step *step = &ranks_step->steps[ranks_step->n];
    *step = (lb_check_step){
        .report = check_run->report, .path = lb_capture_path(check_run->capture), .limit = check_run->limit};
    LB_TRY(lb_program_view_init_recorded(check_run->capture, program, &ranks_step->views[ranks_step->n], err));
    lb_status status = lb_moved_run_open(&ranks_step->views[ranks_step->n], &step->run, err);
    step->run.progress = check_run->options->progress;
    if (status == LB_OK) status = lb_trained_list(&step->run, &step->trained, err);
    ranks_step->n++;
    return status;
}

static void close_steps(check_run *check_run, ranks_step *ranks_step)
{
    for (uint32_t i = 0; i < ranks_step->n; i++) {
        check_run->report->replays += ranks_step->steps[i].run.runs + (ranks_step->steps[i].run.begun > 0);
        lb_optimizer_step_release(&ranks_step->steps[i].updates);
        lb_trained_release(&ranks_step->steps[i].trained);
        lb_moved_run_close(&ranks_step->steps[i].run);
        lb_program_view_release(&ranks_step->views[i]);
    }
    free(ranks_step->views), free(ranks_step->steps);
}

static bool has_all_ranks(const ranks_step *ranks_step)
{
    return ranks_step->n > 0 && (int32_t)ranks_step->n == ranks_step->steps[0].run.program->world;
}

/* The runs of all ranks go together, that of rank `first` before the others. */
static lb_status join(const ranks_step *ranks_step, uint32_t first, lb_err *err)
{
    lb_moved_run *lead = &ranks_step->steps[first].run, **runs = malloc(((size_t)ranks_step->n + 1) * sizeof *runs);
    if (!runs) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", ranks_step->n);
    uint32_t n = 0;
    runs[n++] = lead;
    for (uint32_t i = 0; i < ranks_step->n; i++)
        if (i != first) runs[n++] = &ranks_step->steps[i].run;
    lead->together = runs, lead->n_together = n;
    return LB_OK;
}

/* Each by itself again. */
static void part(const ranks_step *ranks_step, uint32_t first)
{
    lb_moved_run *lead = &ranks_step->steps[first].run;
    free((void *)lead->together);
    lead->together = NULL, lead->n_together = 0;
}

static lb_status check_gradients(const ranks_step *ranks_step, uint32_t parts, lb_err *err)
{
    if (ranks_step->n > 1 && has_all_ranks(ranks_step)) {
        LB_TRY(join(ranks_step, 0, err));
        const lb_status status = lb_check_step_of_ranks(ranks_step->steps, ranks_step->n, parts, err);
        part(ranks_step, 0);
        return status;
    }
    for (uint32_t i = 0; i < ranks_step->n; i++) LB_TRY(lb_check_step_run(&ranks_step->steps[i], parts, err));
    return LB_OK;
}

/* The first exact run of a step whose gradients did not ask for one. */
static lb_status measure(const ranks_step *ranks_step, lb_err *err)
{
    LB_TRY(join(ranks_step, 0, err));
    const lb_status status = lb_moved_run_measure(&ranks_step->steps[0].run, err);
    part(ranks_step, 0);
    return status;
}

static lb_status check_relations(check_run *check_run, const ranks_step *ranks_step, uint32_t rank, lb_err *err)
{
    const bool together = ranks_step->n > 1 && has_all_ranks(ranks_step);
    if (together) LB_TRY(join(ranks_step, rank, err));
    const lb_status status = lb_check_step_relations(&ranks_step->steps[rank], &check_run->tried, err);
    if (together) part(ranks_step, rank);
    return status;
}

static lb_status check_updates(const ranks_step *ranks_step, lb_err *err)
{
    bool asked = false;
    for (uint32_t i = 0; i < ranks_step->n; i++)
        asked |= ranks_step->steps[i].updates.n && !ranks_step->steps[i].run.measured;
    if (asked && has_all_ranks(ranks_step)) LB_TRY(measure(ranks_step, err));
    for (uint32_t i = 0; i < ranks_step->n; i++) LB_TRY(lb_check_step_updates(&ranks_step->steps[i], err));
    return LB_OK;
}

/* Ranks whose messages are not matched cannot run together, which is no failure of the check: `*apart`. What was said
 * of the step already is the cause. */
static lb_status settle(const ranks_step *ranks_step, lb_status status, const lb_err *why, bool *apart, lb_err *err)
{
    char what[80];
    *apart = status == LB_ERR_UNSUPPORTED;
    if (!*apart) return status == LB_OK ? LB_OK : lb_fail(err, status, "%s", why->message);
    snprintf(what, sizeof what, "step %lld of %u ranks", (long long)ranks_step->steps[0].run.program->step,
             ranks_step->n);
    if (lb_proof_list_has_left(ranks_step->steps[0].report, what)) return LB_OK;
    return lb_proof_list_leave(ranks_step->steps[0].report, what, "they cannot run together: %s", why->message)
               ? LB_OK
               : lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
}

/* Each rank by itself, and then what they do together. */
static lb_status check_parts(check_run *check_run, ranks_step *ranks_step, lb_err *err)
{
    const uint32_t gradients = check_run->parts & (LB_CHECK_PART_GRADIENT | LB_CHECK_PART_STEP);
    const bool updates = check_run->parts & LB_CHECK_PART_STEP;
    lb_err why = LB_ERR_INIT;
    bool apart = false;
    for (uint32_t i = 0; i < ranks_step->n; i++) {
        if (check_run->parts & LB_CHECK_PART_RELATIONS && !check_run->tried && !apart)
            LB_TRY(settle(ranks_step, check_relations(check_run, ranks_step, i, &why), &why, &apart, err));
        if (!(check_run->parts & LB_CHECK_PART_MEMORY)) continue;
        bool poisoned;
        if (!lb_check_step_unwritten(&ranks_step->steps[i], &poisoned))
            return lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
        if (!poisoned) LB_TRY(lb_check_step_dropped(&ranks_step->steps[i], err));
    }
    lb_capture_unload(check_run->capture); /* what was read for NaN is the whole recording */
    for (uint32_t i = 0; updates && i < ranks_step->n; i++)
        if (!lb_check_step_watch_updates(&ranks_step->steps[i]))
            return lb_fail(err, LB_ERR_NOMEM, "out of memory for updates");
    if (gradients && ranks_step->n && !apart)
        LB_TRY(settle(ranks_step, check_gradients(ranks_step, gradients, &why), &why, &apart, err));
    return updates && !apart ? settle(ranks_step, check_updates(ranks_step, &why), &why, &apart, err) : LB_OK;
}

static lb_status check_step(check_run *check_run, int64_t number, uint32_t *seen, lb_err *err)
{
    const int32_t *ranks;
    const uint32_t n = lb_capture_ranks(check_run->capture, &ranks);
    ranks_step ranks_step = {calloc((size_t)n + 1, sizeof *ranks_step.views),
                             calloc((size_t)n + 1, sizeof *ranks_step.steps), 0};
    lb_status status =
        ranks_step.views && ranks_step.steps ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", n);
    for (uint32_t r = 0; r < n && status == LB_OK; r++) {
        const lb_program *program;
        if (lb_capture_program(check_run->capture, ranks[r], number, &program, NULL) == LB_OK)
            status = open_step(check_run, program, &ranks_step, err);
    }
    *seen += ranks_step.n;
    if (status == LB_OK) status = check_parts(check_run, &ranks_step, err);
    close_steps(check_run, &ranks_step);
    return status;
}

/* Steps in their order, until replays are used up. */
static lb_status check_all(check_run *check_run, uint32_t *seen, lb_err *err)
{
    const int64_t *steps;
    const uint32_t n_steps = lb_capture_steps(check_run->capture, &steps);
    for (uint32_t s = 0; s < n_steps && !check_run->report->n_findings; s++) {
        if (steps[s] < check_run->options->first_step || steps[s] > check_run->options->last_step) continue;
        if (check_run->report->replays && check_run->report->replays + 7 > check_run->limit) {
            lb_proof_list_leave(check_run->report, "later steps", "the replays of --budget are used up at step %lld",
                                (long long)steps[s]);
            return LB_OK;
        }
        const uint32_t before = lb_proof_list_left(check_run->report);
        LB_TRY(check_step(check_run, steps[s], seen, err));
        check_run->report->left |= lb_proof_list_left(check_run->report) > before;
    }
    return LB_OK;
}

lb_status lb_check_run(lb_capture *capture, const lb_check_options *options, lb_check_report **out, lb_err *err)
{
    lb_check_report *report = calloc(1, sizeof *report);
    uint32_t seen = 0;
    *out = NULL;
    if (!report) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a report");
    const uint32_t parts = options->parts ? options->parts : UINT32_MAX;
    check_run check_run = {capture, options, report, parts, options->replays ? options->replays : 20, false};
    lb_status status = check_all(&check_run, &seen, err);
    if (status == LB_OK && seen && parts & LB_CHECK_PART_DIGITS) status = lb_digits_run(capture, options, report, err);
    if (status == LB_OK) status = lb_capture_refusal(capture, err);
    if (status == LB_OK && !seen)
        status =
            lb_fail(err, LB_ERR_NOT_FOUND, "%s: no step was recorded that could be checked", lb_capture_path(capture));
    if (status != LB_OK) {
        lb_check_report_free(report);
        return status;
    }
    lb_proof_list_sort(report);
    const bool clean = report->n_proven && !report->left;
    report->verdict = report->n_findings ? LB_CHECK_FOUND : clean ? LB_CHECK_CLEAN : LB_CHECK_UNDECIDED;
    *out = report;
    return LB_OK;
}

void lb_check_report_free(lb_check_report *report)
{
    if (!report) return;
    lb_proof_list_release(report);
    lb_digit_list_release(report);
    free(report);
}
