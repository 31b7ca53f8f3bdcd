/* Where digits go: the steps in their order. See digits.h. */
#include "check/digits.h"

#include "moved/cotangents.h"

#include <stdio.h>
#include <stdlib.h>

static lb_status open_step(lb_digits *d, const lb_program_view *view, const lb_check_options *o, lb_err *err)
{
    LB_TRY(lb_moved_run_open(view, &d->run, err));
    d->run.progress = o->progress;
    return lb_trained_list(&d->run, &d->trained, err);
}

static void close_step(lb_digits *d)
{
    lb_rounding_runs_close(&d->runs);
    lb_rounding_log_release(&d->log);
    lb_trained_release(&d->trained);
    lb_moved_run_close(&d->run);
}

/* What numbers that were recorded tell, each op by itself. */
static lb_status look_at_numbers(lb_digits *d, lb_err *err)
{
    lb_update_log updates;
    if (!lb_update_log_open(&d->run, &updates)) {
        lb_update_log_close(&updates, d->window);
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for parameters");
    }
    d->log.note = lb_update_log_note, d->log.context = &updates;
    d->run.runs++;
    for (uint32_t i = 0; i < d->run.n_roots; i++) lb_rounding_log_want(&d->log, d->run.roots[i].value);
    lb_digits_want_ranges(d);
    lb_digits_want_routers(d);
    const lb_status status = lb_rounding_log_make(d->capture, &d->log, err);
    lb_update_log_close(&updates, d->window);
    return status;
}

static lb_status judge_step(lb_digits *d, bool first, lb_err *err)
{
    const bool table = first && d->run.program->world == 1;
    LB_TRY(lb_rounding_log_open(&d->run, &d->log, err));
    if (table) {
        LB_TRY(lb_cotangents_add(&d->run, &d->trained, err));
        LB_TRY(lb_rounding_runs_open(&d->run, &d->trained, &d->runs, err));
        d->log.last = d->runs.last + 1;
    }
    LB_TRY(look_at_numbers(d, err));
    if (!lb_digits_ranges(d) || (first && !lb_digits_routers(d)))
        return lb_fail(err, LB_ERR_NOMEM, "out of memory for rows");
    if (table) return lb_digits_table(d, err);
    char what[160];
    snprintf(what, sizeof what, "where the digits of the loss of rank %d go", (int)d->run.program->rank);
    if (first)
        lb_proof_list_leave(d->report, what, "the step is one of several ranks, whose sums are not followed yet");
    return LB_OK;
}

static lb_status judge_program(lb_digits *d, const lb_program *program, const lb_check_options *o, bool first,
                               lb_err *err)
{
    lb_program_view view;
    const uint32_t before = d->report->n_unjudged;
    LB_TRY(lb_program_view_init_recorded(d->capture, program, &view, err));
    lb_status status = open_step(d, &view, o, err);
    if (status == LB_OK) status = judge_step(d, first, err);
    d->used += d->run.runs;
    close_step(d);
    lb_program_view_release(&view);
    d->report->left |= d->report->n_unjudged > before;
    return status;
}

static uint32_t steps_of(const lb_digits *d, int32_t rank, const lb_check_options *o)
{
    const int64_t *steps;
    const uint32_t n = lb_capture_steps(d->capture, &steps);
    uint32_t found = 0;
    for (uint32_t s = 0; s < n; s++) {
        const lb_program *program;
        if (steps[s] < o->first_step || steps[s] > o->last_step) continue;
        found += lb_capture_program(d->capture, rank, steps[s], &program, NULL) == LB_OK;
    }
    return found;
}

/* Updates are counted over all steps; the ranges of each step are rows of their own. */
static lb_status judge_rank(lb_digits *d, int32_t rank, const lb_check_options *o, lb_err *err)
{
    const int64_t *steps;
    const uint32_t n = lb_capture_steps(d->capture, &steps);
    lb_update_window window = {0};
    const lb_program *last = NULL;
    const uint32_t later = steps_of(d, rank, o), rest = d->limit > d->used ? (d->limit - d->used) / 2 : 0;
    lb_status status = LB_OK;
    d->window = &window;
    for (uint32_t s = 0; s < n && status == LB_OK; s++) {
        const lb_program *program;
        if (steps[s] < o->first_step || steps[s] > o->last_step) continue;
        if (lb_capture_program(d->capture, rank, steps[s], &program, NULL) != LB_OK) continue;
        if (d->used >= d->limit) {
            lb_proof_list_leave(d->report, "where digits go", "the replays of --budget are used up at step %lld",
                                (long long)steps[s]);
            break;
        }
        d->reserved = !later ? 0 : later - 1 < rest ? later - 1 : rest;
        status = judge_program(d, program, o, !last, err);
        last = program;
    }
    if (status == LB_OK && window.failed) status = lb_fail(err, LB_ERR_NOMEM, "out of memory for updates");
    if (status == LB_OK && window.lost)
        lb_proof_list_leave(d->report, "whether updates were absorbed",
                            "the numbers that %u parameters began a step with were not kept", window.lost);
    d->report->left |= window.lost > 0;
    if (status == LB_OK && last && !lb_update_window_tell(&window, last, d->path, d->report))
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory for rows");
    lb_update_window_release(&window);
    return status;
}

lb_status lb_digits_run(lb_capture *capture, const lb_check_options *o, lb_check_report *report, lb_err *err)
{
    const int32_t *ranks;
    const uint32_t n = lb_capture_ranks(capture, &ranks);
    lb_digits d = {.capture = capture,
                   .report = report,
                   .path = lb_capture_path(capture),
                   .limit = o->replays ? o->replays : 20,
                   .used = report->replays};
    for (uint32_t r = 0; r < n; r++) {
        const uint32_t used = d.used;
        LB_TRY(judge_rank(&d, ranks[r], o, err));
        report->replays += d.used - used;
    }
    lb_digit_list_sort(report);
    return LB_OK;
}
