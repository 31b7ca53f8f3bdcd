/* A recording alone: see lastbit/check.h. */
#include "check/check_step.h"
#include "check/digits.h"

#include <stdlib.h>

/* Relations are tried in the first step that has a loss of tokens: `*tried`. */
static lb_status check_parts(lb_check_step *step, uint32_t parts, bool *tried, lb_err *err)
{
    if (parts & LB_CHECK_PART_RELATIONS && !*tried) LB_TRY(lb_check_step_relations(step, tried, err));
    if (parts & LB_CHECK_PART_MEMORY && !lb_check_step_unwritten(step))
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
    return parts & (LB_CHECK_PART_GRADIENT | LB_CHECK_PART_STEP) ? lb_check_step_run(step, parts, err) : LB_OK;
}

static lb_status check_program(lb_capture *capture, const lb_program *program, const lb_check_options *o,
                               lb_check_report *report, bool *tried, lb_err *err)
{
    lb_program_view view;
    lb_check_step step = {.report = report, .path = lb_capture_path(capture), .limit = o->replays ? o->replays : 20};
    LB_TRY(lb_program_view_init(capture, &program, 1, &view, err));
    lb_status status = lb_moved_run_open(&view, &step.run, err);
    step.run.progress = o->progress;
    if (status == LB_OK) status = lb_trained_list(&step.run, &step.trained, err);
    const uint32_t parts = (o->parts ? o->parts : UINT32_MAX) & ~(uint32_t)LB_CHECK_PART_DIGITS;
    if (status == LB_OK && parts) status = check_parts(&step, parts, tried, err);
    report->replays += step.run.runs + (step.run.begun > 0);
    lb_trained_release(&step.trained);
    lb_moved_run_close(&step.run);
    lb_program_view_release(&view);
    return status;
}

/* Steps in their order, until replays are used up. */
static lb_status check_all(lb_capture *capture, const lb_check_options *o, lb_check_report *report, uint32_t *seen,
                           lb_err *err)
{
    const int32_t *ranks;
    const int64_t *steps;
    const uint32_t n_ranks = lb_capture_ranks(capture, &ranks), n_steps = lb_capture_steps(capture, &steps);
    bool tried = false;
    for (uint32_t s = 0; s < n_steps; s++)
        for (uint32_t r = 0; r < n_ranks; r++) {
            const lb_program *program;
            if (steps[s] < o->first_step || steps[s] > o->last_step) continue;
            if (lb_capture_program(capture, ranks[r], steps[s], &program, NULL) != LB_OK) continue;
            ++*seen;
            if (report->replays && report->replays + 7 > (o->replays ? o->replays : 20)) {
                lb_proof_list_leave(report, "later steps", "the replays of --budget are used up at step %lld",
                                    (long long)steps[s]);
                return LB_OK;
            }
            const uint32_t before = report->n_unjudged;
            LB_TRY(check_program(capture, program, o, report, &tried, err));
            report->left |= report->n_unjudged > before;
            if (report->n_findings) return LB_OK;
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
    lb_status status = check_all(capture, options, report, &seen, err);
    if (status == LB_OK && seen && parts & LB_CHECK_PART_DIGITS) status = lb_digits_run(capture, options, report, err);
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
