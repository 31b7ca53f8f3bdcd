/* The steps of a window, one after the other: see diff_steps.h. */
#include "runs/diff_steps.h"

#include <stdio.h>
#include <stdlib.h>

/* Tensors of one moment: that other steps are not there is no gap. */
static bool is_checkpoint(const lb_diff_half *half)
{
    const int64_t *steps;
    const lb_program *program;
    return lb_capture_steps(half->capture, &steps) == 1 &&
           lb_capture_program(half->capture, half->ranks[0], steps[0], &program, NULL) == LB_OK &&
           !lb_diff_step_has_ops(program);
}

/* Steps that the second side alone has: the first side's program ended before them, or they were not recorded there. */
static void list_lone_steps(lb_diff_session *session, lb_diff_half *first, lb_diff_half *second)
{
    const int64_t *steps;
    const uint32_t n = lb_capture_steps(session->b, &steps);
    char text[160];
    for (uint32_t i = 0; i < n; i++) {
        if (steps[i] < session->options->first_step || steps[i] > session->options->last_step) continue;
        if (lb_diff_half_load(second, steps[i]) && !lb_diff_half_load(first, steps[i]) && !is_checkpoint(first)) {
            snprintf(text, sizeof text, "step %lld of rank %d was captured on the second side only",
                     (long long)steps[i], second->ranks[0]);
            lb_report_missing(session->report, text);
        }
        lb_diff_half_close(first), lb_diff_half_close(second);
    }
}

/* A step in which one side's program ended, by an exception: what it did not come to is no difference, and the step is
 * not compared. Of two that ended there, each is what there is. */
static bool is_cut_off(const lb_diff_session *session, const lb_diff_half *first, const lb_diff_half *second)
{
    bool complete[2] = {true, true};
    char text[240];
    for (uint32_t i = 0; i < first->n_ranks; i++) complete[0] &= first->programs[i]->complete != 0;
    for (uint32_t i = 0; i < second->n_ranks; i++) complete[1] &= second->programs[i]->complete != 0;
    if (complete[0] == complete[1]) return false;
    snprintf(text, sizeof text,
             "step %lld of rank %d is incomplete on the %s side: its program, or the recording of it, ended there; "
             "that step is not compared",
             (long long)first->programs[0]->step, first->ranks[0], complete[0] ? "second" : "first");
    if (!session->quiet) lb_report_missing(session->report, text);
    return true;
}

/* A step of the first side, against the second's. */
static lb_status diff_one(lb_diff_session *session, lb_diff_half *first, lb_diff_half *second, int64_t step,
                          lb_diff_walk_past *past, lb_err *err)
{
    char text[160];
    lb_status status = LB_OK;
    if (lb_diff_half_load(first, step)) {
        if (lb_diff_half_load(second, step)) {
            const bool cut_off = is_cut_off(session, first, second);
            if (cut_off) session->shared++;
            if (!cut_off) status = lb_diff_half_open_both(first, second, &past->plan, err);
            if (status == LB_OK && !cut_off) status = lb_diff_half_compare(session, first, second, past, err);
        } else if (!is_checkpoint(second) && !session->quiet) {
            snprintf(text, sizeof text, "step %lld of rank %d was captured on the first side only", (long long)step,
                     first->ranks[0]);
            lb_report_missing(session->report, text);
        }
    }
    lb_diff_half_close(first), lb_diff_half_close(second);
    return status;
}

/* A window that begins in the middle of what both sides recorded: the steps before it say what it begins with. */
static lb_status diff_quietly(lb_diff_session *session, lb_diff_half *first, lb_diff_half *second, int64_t step,
                              lb_diff_walk_past *past, lb_err *err)
{
    session->quiet = calloc(1, sizeof *session->quiet);
    if (!session->quiet) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    lb_status status = diff_one(session, first, second, step, past, err);
    lb_diff_report_free(session->quiet);
    session->quiet = NULL;
    return status;
}

lb_status lb_diff_steps_compare(lb_diff_session *session, lb_diff_half *first, lb_diff_half *second,
                                lb_diff_exchanges *exchanges, lb_err *err)
{
    const int64_t *steps;
    uint32_t n_steps = lb_capture_steps(session->a, &steps);
    lb_diff_walk_past past = {
        .read = {LB_VERDICT_IDENTICAL, 0, false, 0}, /* a parameter hands its verdict on over the steps */
        .exchanges = exchanges};
    lb_status status = LB_OK;
    for (uint32_t i = 0; i < n_steps && status == LB_OK; i++) {
        if (steps[i] > session->options->last_step) continue;
        if (session->options->progress) session->options->progress("comparing steps", i, n_steps);
        status = steps[i] < session->options->first_step && !session->options->digests_only
                     ? diff_quietly(session, first, second, steps[i], &past, err)
                 : steps[i] < session->options->first_step ? LB_OK
                                                           : diff_one(session, first, second, steps[i], &past, err);
    }
    if (status == LB_OK) list_lone_steps(session, first, second);
    lb_taints_release(&past.storages[0]), lb_taints_release(&past.storages[1]);
    lb_fused_sources_release(&past.fused);
    lb_met_storages_release(&past.met);
    lb_rank_plan_release(&past.plan);
    return status;
}
