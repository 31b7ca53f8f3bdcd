/* Where digits go: the steps in their order. See digits.h. */
#include "check/digits.h"

#include "moved/cotangents.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* All steps of a capture. */
typedef struct walk {
    lb_capture *capture;
    const lb_check_options *options;
    lb_check_report *report;
    const int32_t *ranks;
    uint32_t n_ranks, limit, used;
    lb_update_window *windows; /* per rank */
    const lb_program **last;   /* per rank: the last step that was looked at; NULL */
    bool tried;                /* the table of the first step */
} walk;

/* ---- one rank ---- */

static lb_status open_rank(const walk *walk, const lb_program *program, lb_digits *digits, lb_err *err)
{
    LB_TRY(lb_program_view_init_recorded(walk->capture, program, &digits->view, err));
    LB_TRY(lb_moved_run_open(&digits->view, &digits->run, err));
    digits->run.progress = walk->options->progress;
    LB_TRY(lb_trained_list(&digits->run, &digits->trained, err));
    return lb_rounding_log_open(&digits->run, &digits->log, err);
}

static void close_rank(lb_digits *digits)
{
    lb_rounding_runs_close(&digits->runs);
    lb_rounding_log_release(&digits->log);
    lb_trained_release(&digits->trained);
    lb_moved_run_close(&digits->run);
    lb_program_view_release(&digits->view);
}

static lb_status prepare_rank(lb_digits *digits, lb_update_log *updates, bool table, lb_err *err)
{
    if (table) {
        LB_TRY(lb_cotangents_add(&digits->run, &digits->trained, err));
        LB_TRY(lb_rounding_runs_open(&digits->run, &digits->trained, &digits->log, &digits->runs, err));
        digits->log.last = digits->runs.last + 1;
    }
    if (!lb_update_log_open(&digits->run, updates)) return lb_fail(err, LB_ERR_NOMEM, "out of memory for parameters");
    digits->log.note = lb_update_log_note, digits->log.context = updates;
    for (uint32_t i = 0; i < digits->run.n_roots; i++) lb_rounding_log_want(&digits->log, digits->run.roots[i].value);
    lb_digits_want_ranges(digits);
    lb_digits_want_routers(digits);
    return LB_OK;
}

/* ---- one step ---- */

static lb_status open_step(walk *walk, int64_t number, lb_digits_step *step, bool *first, lb_err *err)
{
    for (uint32_t r = 0; r < walk->n_ranks; r++) {
        const lb_program *program;
        if (lb_capture_program(walk->capture, walk->ranks[r], number, &program, NULL) != LB_OK) continue;
        lb_digits *digits = &step->ranks[step->n];
        *digits = (lb_digits){.capture = walk->capture,
                              .report = walk->report,
                              .path = lb_capture_path(walk->capture),
                              .window = &walk->windows[r]};
        first[step->n++] = !walk->last[r];
        walk->last[r] = program;
        LB_TRY(open_rank(walk, program, digits, err));
    }
    return LB_OK;
}

/* What numbers that were recorded tell, each op by itself. */
static lb_status look_at_numbers(lb_digits_step *step, bool table, lb_err *err)
{
    lb_update_log *updates = calloc((size_t)step->n + 1, sizeof *updates);
    lb_rounding_log **logs = malloc(((size_t)step->n + 1) * sizeof *logs);
    lb_status status = updates && logs ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", step->n);
    for (uint32_t k = 0; k < step->n && status == LB_OK; k++) {
        logs[k] = &step->ranks[k].log;
        status = prepare_rank(&step->ranks[k], &updates[k], table, err);
    }
    step->ranks[0].run.runs++; /* each rank once, which is one replay of the step */
    if (status == LB_OK) status = lb_rounding_log_make(step->ranks[0].capture, logs, step->n, err);
    for (uint32_t k = 0; updates && k < step->n; k++) lb_update_log_close(&updates[k], step->ranks[k].window);
    free(updates), free(logs);
    return status;
}

/* What ranks bring to a collective is exact where all of them run. */
static lb_status judge_step(walk *walk, lb_digits_step *step, const bool *first, lb_err *err)
{
    const lb_program *program = step->n ? step->ranks[0].run.program : NULL;
    const bool all = program && (int64_t)step->n == (program->world > 1 ? program->world : 1),
               table = all && !walk->tried;
    char what[160];
    if (!program) return LB_OK;
    LB_TRY(look_at_numbers(step, table, err));
    for (uint32_t k = 0; k < step->n; k++)
        if (!lb_digits_ranges(&step->ranks[k]) || (first[k] && !lb_digits_routers(&step->ranks[k])))
            return lb_fail(err, LB_ERR_NOMEM, "out of memory for rows");
    if (walk->tried) return LB_OK;
    walk->tried = true;
    if (table) return lb_digits_table(step, err);
    snprintf(what, sizeof what, "where the digits of step %lld go", (long long)program->step);
    lb_proof_list_leave(walk->report, what, "it is one of several ranks, and not all of them were recorded");
    return LB_OK;
}

static lb_status judge(walk *walk, int64_t number, uint32_t reserved, lb_err *err)
{
    lb_digits_step step = {.ranks = calloc((size_t)walk->n_ranks + 1, sizeof *step.ranks),
                           .limit = walk->limit,
                           .used = walk->used,
                           .reserved = reserved};
    bool *first = calloc((size_t)walk->n_ranks + 1, sizeof *first);
    const uint32_t before = walk->report->n_unjudged;
    lb_status status =
        step.ranks && first ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", walk->n_ranks);
    if (status == LB_OK) status = open_step(walk, number, &step, first, err);
    if (status == LB_OK) status = judge_step(walk, &step, first, err);
    for (uint32_t k = 0; k < step.n; k++) {
        walk->used += step.ranks[k].run.runs;
        close_rank(&step.ranks[k]);
    }
    walk->report->left |= walk->report->n_unjudged > before;
    free(step.ranks), free(first);
    return status;
}

/* ---- all steps ---- */

static bool is_asked_for(const walk *walk, int64_t step)
{
    return step >= walk->options->first_step && step <= walk->options->last_step;
}

static lb_status judge_steps(walk *walk, lb_err *err)
{
    const int64_t *steps;
    const uint32_t n = lb_capture_steps(walk->capture, &steps);
    uint32_t later = 0;
    for (uint32_t s = 0; s < n; s++) later += is_asked_for(walk, steps[s]);
    for (uint32_t s = 0; s < n; s++) {
        if (!is_asked_for(walk, steps[s])) continue;
        if (walk->used >= walk->limit) {
            lb_proof_list_leave(walk->report, "where digits go", "the replays of --budget are used up at step %lld",
                                (long long)steps[s]);
            return LB_OK;
        }
        const uint32_t rest = (walk->limit - walk->used) / 2;
        LB_TRY(judge(walk, steps[s], later - 1 < rest ? later - 1 : rest, err));
    }
    return LB_OK;
}

static bool is_same_row(const lb_update_row *a, const lb_update_row *b)
{
    return !strcmp(a->name, b->name) && !strcmp(a->group, b->group) && a->dtype == b->dtype && a->step == b->step &&
           a->updates == b->updates && a->absorbed == b->absorbed && a->last_updates == b->last_updates &&
           a->last_absorbed == b->last_absorbed && a->decays == b->decays && a->absorbed_decays == b->absorbed_decays;
}

/* Ranks that hold copies have the same updates, which are told once. */
static bool is_told(const walk *walk, uint32_t rank)
{
    const lb_update_window *own = &walk->windows[rank];
    bool told = false;
    for (uint32_t r = 0; r < rank && !told; r++) {
        const lb_update_window *other = &walk->windows[r];
        told = other->n == own->n && other->lost == own->lost && other->carried == own->carried;
        for (uint32_t i = 0; told && i < own->n; i++) told = is_same_row(&own->rows[i], &other->rows[i]);
    }
    return told;
}

/* Updates are counted over all steps; the ranges of each step are rows of their own. */
static lb_status tell_updates(const walk *walk, uint32_t rank, lb_err *err)
{
    const lb_update_window *window = &walk->windows[rank];
    if (window->failed) return lb_fail(err, LB_ERR_NOMEM, "out of memory for updates");
    if (is_told(walk, rank)) return LB_OK;
    if (window->lost)
        lb_proof_list_leave(walk->report, "whether updates were absorbed",
                            "the numbers that %u parameters began a step with were not kept", window->lost);
    walk->report->left |= window->lost > 0;
    if (!walk->last[rank] ||
        lb_update_window_tell(window, walk->last[rank], lb_capture_path(walk->capture), walk->report))
        return LB_OK;
    return lb_fail(err, LB_ERR_NOMEM, "out of memory for rows");
}

lb_status lb_digits_run(lb_capture *capture, const lb_check_options *options, lb_check_report *report, lb_err *err)
{
    walk walk = {.capture = capture,
                 .options = options,
                 .report = report,
                 .limit = options->replays ? options->replays : 20,
                 .used = report->replays};
    walk.n_ranks = lb_capture_ranks(capture, &walk.ranks);
    walk.windows = calloc((size_t)walk.n_ranks + 1, sizeof *walk.windows);
    walk.last = calloc((size_t)walk.n_ranks + 1, sizeof *walk.last);
    lb_status status =
        walk.windows && walk.last ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", walk.n_ranks);
    if (status == LB_OK) status = judge_steps(&walk, err);
    for (uint32_t r = 0; r < walk.n_ranks && status == LB_OK; r++) status = tell_updates(&walk, r, err);
    for (uint32_t r = 0; walk.windows && r < walk.n_ranks; r++) lb_update_window_release(&walk.windows[r]);
    free(walk.windows), free(walk.last);
    report->replays = walk.used;
    lb_digit_list_sort(report);
    return status;
}
