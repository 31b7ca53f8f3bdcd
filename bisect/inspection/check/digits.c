/* Where digits go: one step, and the updates of all. See digits.h. */
#include "check/digits.h"

#include "moved/cotangents.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One step, as it is looked at. */
typedef struct walk {
    lb_capture *capture;
    const lb_check_options *options;
    lb_check_report *report;
    lb_update_window *windows; /* per rank */
    bool table;                /* it is the first step: what exact runs tell is told of it */
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

/* Did the rank record none of the steps before it that are asked for? */
static bool is_first(const walk *walk, int32_t rank, int64_t number)
{
    const int64_t *steps;
    const uint32_t n = lb_capture_steps(walk->capture, &steps);
    for (uint32_t s = 0; s < n && steps[s] < number; s++)
        if (steps[s] >= walk->options->first_step && lb_capture_has_program(walk->capture, rank, steps[s]))
            return false;
    return true;
}

static lb_status open_step(walk *walk, int64_t number, lb_digits_step *step, bool *first, lb_err *err)
{
    const int32_t *ranks;
    const uint32_t n = lb_capture_ranks(walk->capture, &ranks);
    for (uint32_t r = 0; r < n; r++) {
        const lb_program *program;
        if (lb_capture_program(walk->capture, ranks[r], number, &program, NULL) != LB_OK) continue;
        lb_digits *digits = &step->ranks[step->n];
        *digits = (lb_digits){.capture = walk->capture,
                              .report = walk->report,
                              .path = lb_capture_path(walk->capture),
                              .window = &walk->windows[r]};
        first[step->n++] = is_first(walk, ranks[r], number);
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
               table = all && walk->table;
    char what[160];
    if (!program) return LB_OK;
    LB_TRY(look_at_numbers(step, table, err));
    for (uint32_t k = 0; k < step->n; k++)
        if (!lb_digits_ranges(&step->ranks[k]) || (first[k] && !lb_digits_routers(&step->ranks[k])))
            return lb_fail(err, LB_ERR_NOMEM, "out of memory for rows");
    if (!walk->table) return LB_OK;
    if (table) return lb_digits_table(step, err);
    snprintf(what, sizeof what, "where the digits of step %lld go", (long long)program->step);
    lb_proof_list_leave(walk->report, what, "it is one of several ranks, and not all of them were recorded");
    return LB_OK;
}

lb_status lb_digits_of_step(lb_capture *capture, const lb_check_options *options, int64_t number, uint32_t limit,
                            lb_update_window *windows, lb_check_report *report, lb_err *err)
{
    const int32_t *ranks;
    const uint32_t n = lb_capture_ranks(capture, &ranks);
    walk walk = {.capture = capture, .options = options, .report = report, .windows = windows};
    lb_digits_step step = {.ranks = calloc((size_t)n + 1, sizeof *step.ranks), .limit = limit};
    bool *first = calloc((size_t)n + 1, sizeof *first);
    lb_status status = step.ranks && first ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", n);
    walk.table = true;
    for (uint32_t r = 0; r < n; r++) walk.table &= is_first(&walk, ranks[r], number);
    if (status == LB_OK) status = open_step(&walk, number, &step, first, err);
    if (status == LB_OK) status = judge_step(&walk, &step, first, err);
    for (uint32_t k = 0; k < step.n; k++) {
        report->replays += step.ranks[k].run.runs;
        close_rank(&step.ranks[k]);
    }
    report->left |= report->n_unjudged > 0;
    free(step.ranks), free(first);
    return status;
}

/* ---- all steps ---- */

static bool is_found(const lb_check_report *whole, const lb_check_finding *x)
{
    bool found = false;
    for (uint32_t i = 0; i < whole->n_findings && !found; i++) {
        const lb_check_finding *finding = &whole->findings[i];
        found = finding->kind == x->kind && finding->line.number == x->line.number && strcmp(finding->op, x->op) == 0;
    }
    return found;
}

bool lb_digits_join(lb_check_report *whole, lb_check_report *step)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < step->n_findings; i++) {
        lb_check_finding *finding = &step->findings[i];
        const bool of_range = finding->kind == LB_CHECK_SATURATED || finding->kind == LB_CHECK_UNDERFLOW;
        if (of_range && is_found(whole, finding))
            lb_code_line_release(&finding->line), lb_code_line_release(&finding->of_forward);
        else
            step->findings[kept++] = *finding;
    }
    step->n_findings = kept;
    return lb_proof_list_join(whole, step);
}

static bool is_same_row(const lb_update_row *a, const lb_update_row *b)
{
    return !strcmp(a->name, b->name) && !strcmp(a->group, b->group) && a->dtype == b->dtype && a->step == b->step &&
           a->updates == b->updates && a->absorbed == b->absorbed && a->last_updates == b->last_updates &&
           a->last_absorbed == b->last_absorbed && a->decays == b->decays && a->absorbed_decays == b->absorbed_decays;
}

/* Ranks that hold copies have the same updates, which are told once. */
static bool is_told(const lb_update_window *windows, uint32_t rank)
{
    const lb_update_window *own = &windows[rank];
    bool told = false;
    for (uint32_t r = 0; r < rank && !told; r++) {
        const lb_update_window *other = &windows[r];
        told = other->n == own->n && other->lost == own->lost && other->carried == own->carried;
        for (uint32_t i = 0; told && i < own->n; i++) told = is_same_row(&own->rows[i], &other->rows[i]);
    }
    return told;
}

/* The last step that was asked for and the rank has; NULL. */
static const lb_program *last_program(lb_capture *capture, const lb_check_options *options, int32_t rank)
{
    const int64_t *steps;
    const lb_program *program;
    for (uint32_t n = lb_capture_steps(capture, &steps); n-- > 0;)
        if (steps[n] >= options->first_step && steps[n] <= options->last_step &&
            lb_capture_program(capture, rank, steps[n], &program, NULL) == LB_OK)
            return program;
    return NULL;
}

/* A part that anyone may have written says which op it was. */
static bool are_of(const lb_update_window *window, const lb_program *program)
{
    bool are = true;
    for (uint32_t i = 0; i < window->n; i++) {
        const lb_update_row *row = &window->rows[i];
        are &= row->step != program->step || row->op == LB_NONE || row->op < program->n_ops;
    }
    return are;
}

/* Updates are counted over all steps; the ranges of each step are rows of their own. */
static lb_status tell_updates(lb_capture *capture, const lb_check_options *options, const lb_update_window *windows,
                              uint32_t rank, lb_check_report *report, lb_err *err)
{
    const lb_update_window *window = &windows[rank];
    const int32_t *ranks;
    (void)lb_capture_ranks(capture, &ranks);
    if (window->failed) return lb_fail(err, LB_ERR_NOMEM, "out of memory for updates");
    if (is_told(windows, rank)) return LB_OK;
    if (window->lost)
        lb_proof_list_leave(report, "whether updates were absorbed",
                            "the numbers that %u parameters began a step with were not kept", window->lost);
    report->left |= window->lost > 0;
    const lb_program *last = last_program(capture, options, ranks[rank]);
    if (last && !are_of(window, last))
        return lb_fail(err, LB_ERR_CORRUPT, "a part's updates are of an op that rank %d does not have", ranks[rank]);
    const bool told = !last || lb_update_window_tell(window, last, lb_capture_path(capture), report);
    if (last && options->alone) lb_capture_drop_program(capture, ranks[rank], last->step);
    return told ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for rows");
}

lb_status lb_digits_tell_updates(lb_capture *capture, const lb_check_options *options, const lb_update_window *windows,
                                 lb_check_report *report, lb_err *err)
{
    const int32_t *ranks;
    const uint32_t n = lb_capture_ranks(capture, &ranks);
    for (uint32_t r = 0; r < n; r++) LB_TRY(tell_updates(capture, options, windows, r, report, err));
    lb_digit_list_sort(report);
    return LB_OK;
}
