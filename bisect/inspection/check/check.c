/* A recording alone: see lastbit/check.h. */
#include "check/check_step.h"
#include "check/digits.h"

#include "parts/parts_each.h"

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

/* One unit of work. */
typedef struct check_run {
    lb_capture *capture;
    const lb_check_options *options;
    lb_check_report *report; /* the unit's own */
    uint32_t parts, limit;
} check_run;

/* One step of one rank, or of all. */
typedef struct ranks_step {
    lb_program_view *views;
    lb_check_step *steps;
    uint32_t n;
} ranks_step;

static lb_status open_step(const check_run *run, const lb_program *program, ranks_step *s, lb_err *err)
{
    lb_check_step *step = &s->steps[s->n];
    *step = (lb_check_step){.report = run->report, .path = lb_capture_path(run->capture), .limit = run->limit};
    LB_TRY(lb_program_view_init_recorded(run->capture, program, &s->views[s->n], err));
    lb_status status = lb_moved_run_open(&s->views[s->n], &step->run, err);
    step->run.progress = run->options->progress;
    if (status == LB_OK) status = lb_trained_list(&step->run, &step->trained, err);
    s->n++;
    return status;
}

static void close_steps(check_run *run, ranks_step *step)
{
    for (uint32_t i = 0; i < step->n; i++) {
        run->report->replays += step->steps[i].run.runs + (step->steps[i].run.begun > 0);
        lb_optimizer_step_release(&step->steps[i].updates);
        lb_trained_release(&step->steps[i].trained);
        lb_moved_run_close(&step->steps[i].run);
        lb_program_view_release(&step->views[i]);
    }
    free(step->views), free(step->steps);
}

static bool has_all_ranks(const ranks_step *step)
{
    return step->n > 0 && (int32_t)step->n == step->steps[0].run.program->world;
}

/* The runs of all ranks go together, that of rank `first` before the others. */
static lb_status join(const ranks_step *step, uint32_t first, lb_err *err)
{
    lb_moved_run *lead = &step->steps[first].run, **runs = malloc(((size_t)step->n + 1) * sizeof *runs);
    if (!runs) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", step->n);
    uint32_t n = 0;
    runs[n++] = lead;
    for (uint32_t i = 0; i < step->n; i++)
        if (i != first) runs[n++] = &step->steps[i].run;
    lead->together = runs, lead->n_together = n;
    return LB_OK;
}

/* Each by itself again. */
static void part(const ranks_step *step, uint32_t first)
{
    lb_moved_run *lead = &step->steps[first].run;
    free((void *)lead->together);
    lead->together = NULL, lead->n_together = 0;
}

static lb_status check_gradients(const ranks_step *step, uint32_t parts, lb_err *err)
{
    if (step->n > 1 && has_all_ranks(step)) {
        LB_TRY(join(step, 0, err));
        const lb_status status = lb_check_step_of_ranks(step->steps, step->n, parts, err);
        part(step, 0);
        return status;
    }
    for (uint32_t i = 0; i < step->n; i++) LB_TRY(lb_check_step_run(&step->steps[i], parts, err));
    return LB_OK;
}

/* The first exact run of a step whose gradients did not ask for one. */
static lb_status measure(const ranks_step *step, lb_err *err)
{
    LB_TRY(join(step, 0, err));
    const lb_status status = lb_moved_run_measure(&step->steps[0].run, err);
    part(step, 0);
    return status;
}

static lb_status check_relations(const ranks_step *step, uint32_t rank, bool *tried, lb_err *err)
{
    const bool together = step->n > 1 && has_all_ranks(step);
    if (together) LB_TRY(join(step, rank, err));
    const lb_status status = lb_check_step_relations(&step->steps[rank], tried, err);
    if (together) part(step, rank);
    return status;
}

static lb_status check_updates(const ranks_step *step, lb_err *err)
{
    bool asked = false;
    for (uint32_t i = 0; i < step->n; i++) asked |= step->steps[i].updates.n && !step->steps[i].run.measured;
    if (asked && has_all_ranks(step)) LB_TRY(measure(step, err));
    for (uint32_t i = 0; i < step->n; i++) LB_TRY(lb_check_step_updates(&step->steps[i], err));
    return LB_OK;
}

/* Ranks whose messages are not matched cannot run together, which is no failure of the check: `*apart`. What was said
 * of the step already is the cause. */
static lb_status settle(const ranks_step *step, lb_status status, const lb_err *why, bool *apart, lb_err *err)
{
    char what[80];
    *apart = status == LB_ERR_UNSUPPORTED;
    if (!*apart) return status == LB_OK ? LB_OK : lb_fail(err, status, "%s", why->message);
    snprintf(what, sizeof what, "step %lld of %u ranks", (long long)step->steps[0].run.program->step, step->n);
    if (lb_proof_list_has_left(step->steps[0].report, what)) return LB_OK;
    return lb_proof_list_leave(step->steps[0].report, what, "they cannot run together: %s", why->message)
               ? LB_OK
               : lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
}

/* Each rank by itself, and then what they do together. `tried`: relations are tried in the first rank whose loss scores
 * tokens; NULL: in none. */
static lb_status check_parts(check_run *run, ranks_step *step, bool *tried, lb_err *err)
{
    const uint32_t gradients = run->parts & (LB_CHECK_PART_GRADIENT | LB_CHECK_PART_STEP);
    const bool updates = run->parts & LB_CHECK_PART_STEP;
    lb_err why = LB_ERR_INIT;
    bool apart = false;
    for (uint32_t i = 0; i < step->n; i++) {
        if (tried && !*tried && !apart) LB_TRY(settle(step, check_relations(step, i, tried, &why), &why, &apart, err));
        if (!(run->parts & LB_CHECK_PART_MEMORY)) continue;
        bool poisoned;
        if (!lb_check_step_unwritten(&step->steps[i], &poisoned))
            return lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
        if (!poisoned) LB_TRY(lb_check_step_dropped(&step->steps[i], err));
    }
    lb_capture_unload(run->capture); /* what was read for NaN is the whole recording */
    for (uint32_t i = 0; updates && i < step->n; i++)
        if (!lb_check_step_watch_updates(&step->steps[i]))
            return lb_fail(err, LB_ERR_NOMEM, "out of memory for updates");
    if (gradients && step->n && !apart) LB_TRY(settle(step, check_gradients(step, gradients, &why), &why, &apart, err));
    return updates && !apart ? settle(step, check_updates(step, &why), &why, &apart, err) : LB_OK;
}

static lb_status open_ranks(const check_run *run, int64_t number, ranks_step *step, lb_err *err)
{
    const int32_t *ranks;
    const uint32_t n = lb_capture_ranks(run->capture, &ranks);
    *step = (ranks_step){calloc((size_t)n + 1, sizeof *step->views), calloc((size_t)n + 1, sizeof *step->steps), 0};
    if (!step->views || !step->steps) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", n);
    for (uint32_t r = 0; r < n; r++) {
        const lb_program *program;
        if (lb_capture_program(run->capture, ranks[r], number, &program, NULL) == LB_OK)
            LB_TRY(open_step(run, program, step, err));
    }
    return LB_OK;
}

/* What was read of the step goes with it, for a caller who uses it for nothing else. */
static void drop_step(const check_run *run, int64_t number)
{
    const int32_t *ranks;
    const uint32_t n = lb_capture_ranks(run->capture, &ranks);
    for (uint32_t r = 0; r < n && run->options->alone; r++) lb_capture_drop_program(run->capture, ranks[r], number);
    if (run->options->alone) lb_capture_unload(run->capture);
}

static lb_status check_step(check_run *run, int64_t number, bool *tried, uint32_t *seen, lb_err *err)
{
    ranks_step step;
    lb_status status = open_ranks(run, number, &step, err);
    *seen += step.n;
    if (status == LB_OK) status = check_parts(run, &step, tried, err);
    close_steps(run, &step);
    run->report->left |= lb_proof_list_left(run->report) > 0;
    return status;
}

/* Would relations be tried in that step? */
static lb_status look_for_tokens(check_run *run, int64_t number, bool *tried, lb_err *err)
{
    ranks_step step;
    lb_err why = LB_ERR_INIT;
    lb_status status = open_ranks(run, number, &step, err);
    const bool together = step.n > 1 && has_all_ranks(&step);
    for (uint32_t i = 0; i < step.n && status == LB_OK && !*tried; i++) {
        if (together && (status = join(&step, i, err)) != LB_OK) break;
        const lb_status found = lb_check_step_scores(&step.steps[i], tried, &why);
        if (together) part(&step, i);
        if (found == LB_ERR_UNSUPPORTED) break;
        if (found != LB_OK) status = lb_fail(err, found, "%s", why.message);
    }
    close_steps(run, &step);
    drop_step(run, number);
    return status;
}

/* ---- units of work ----------------------------------------------------------------------------------------------- */

/* A step is a unit with a budget of its own, which its sections share: what it finds does not depend on other steps.
 * Steps behind the first in which something was found are not told of, their digits excepted. */
typedef struct unit_list {
    lb_capture *capture;
    const lb_check_options *options;
    lb_check_report *report; /* of all units */
    lb_check_report *digits; /* the same, told behind it */
    const int64_t *steps;    /* those that were asked for */
    uint32_t parts, n_steps, n_ranks, seen;
    int64_t until;             /* the step of the first finding */
    lb_update_window *windows; /* per rank */
    uint32_t without;          /* so many steps are known to have no loss of tokens... */
    bool have_tokens;          /* ...and the next one to have one */
} unit_list;

/* Relations are tried once: in the first step that has a loss of tokens. */
static lb_status are_tried_before(unit_list *list, uint32_t step, bool *before, lb_err *err)
{
    while (list->without < step && !list->have_tokens) {
        lb_check_report none = {0};
        check_run run = {list->capture, list->options, &none, list->parts, 0};
        const lb_status status = look_for_tokens(&run, list->steps[list->without], &list->have_tokens, err);
        lb_proof_list_release(&none);
        LB_TRY(status);
        list->without += !list->have_tokens;
    }
    *before = list->without < step;
    return LB_OK;
}

static lb_status check_sections(unit_list *list, uint32_t step, lb_check_report *report, uint32_t *seen, lb_err *err)
{
    check_run run = {list->capture, list->options, report, list->parts,
                     list->options->replays ? list->options->replays : 20};
    const bool relations = list->parts & LB_CHECK_PART_RELATIONS;
    bool tried = false;
    if (relations) LB_TRY(are_tried_before(list, step, &tried, err));
    const bool first = relations && !tried;
    LB_TRY(check_step(&run, list->steps[step], first ? &tried : NULL, seen, err));
    if (first && list->without == step) list->have_tokens = tried, list->without += !tried;
    return LB_OK;
}

static lb_status check_digits(const unit_list *list, uint32_t step, uint32_t used, lb_check_report *report,
                              lb_update_window *windows, lb_err *err)
{
    const uint32_t limit = list->options->replays ? list->options->replays : 20, rest = limit > used ? limit - used : 0;
    return list->parts & LB_CHECK_PART_DIGITS
               ? lb_digits_of_step(list->capture, list->options, list->steps[step], rest, windows, report, err)
               : LB_OK;
}

static void release_report(lb_check_report *report)
{
    lb_proof_list_release(report);
    lb_digit_list_release(report);
}

static void release_windows(lb_update_window *windows, uint32_t n)
{
    for (uint32_t r = 0; windows && r < n; r++) lb_update_window_release(&windows[r]);
    free(windows);
}

static lb_status work_step(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    unit_list *list = context;
    const uint32_t step = (uint32_t)unit;
    const check_run run = {.capture = list->capture, .options = list->options};
    lb_check_report report = {0}, digits = {0};
    uint32_t seen = 0;
    lb_update_window *windows = calloc((size_t)list->n_ranks + 1, sizeof *windows);
    lb_status status = windows ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", list->n_ranks);
    if (status == LB_OK && list->steps[step] <= list->until) status = check_sections(list, step, &report, &seen, err);
    /* what is left of the budget is asked for in the first step alone, whose sections were looked at */
    if (status == LB_OK) status = check_digits(list, step, report.replays, &digits, windows, err);
    if (status == LB_OK) status = lb_capture_refusal(list->capture, err);
    drop_step(&run, list->steps[step]);
    if (status == LB_OK) {
        lb_part_record_u32(record, &seen);
        lb_proof_list_record(record, &report), lb_proof_list_record(record, &digits);
        for (uint32_t r = 0; r < list->n_ranks; r++) lb_update_window_record(record, &windows[r]);
    }
    release_windows(windows, list->n_ranks);
    release_report(&report), release_report(&digits);
    return status;
}

static lb_status fold_updates(unit_list *list, lb_part_record *record, lb_err *err)
{
    for (uint32_t r = 0; r < list->n_ranks && record->status == LB_OK; r++) {
        lb_update_window step = {0};
        lb_update_window_record(record, &step);
        const bool room = record->status != LB_OK || lb_update_window_add(&list->windows[r], &step);
        lb_update_window_release(&step);
        if (!room) return lb_fail(err, LB_ERR_NOMEM, "out of memory for updates");
    }
    return record->status;
}

static lb_status fold_step(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    unit_list *list = context;
    const int64_t step = list->steps[unit];
    lb_check_report report = {0}, digits = {0};
    uint32_t seen = 0;
    lb_part_record_u32(record, &seen);
    lb_proof_list_record(record, &report), lb_proof_list_record(record, &digits);
    lb_status status = fold_updates(list, record, err);
    if (status == LB_OK && step <= list->until) {
        list->seen += seen;
        if (report.n_findings) list->until = step;
        if (!lb_proof_list_join(list->report, &report))
            status = lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
    }
    if (status == LB_OK && !lb_digits_join(list->digits, &digits))
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory for rows");
    release_report(&report), release_report(&digits);
    return status;
}

static lb_status check_all(unit_list *list, lb_err *err)
{
    const lb_parts_loop loop = {"check", list->n_steps, work_step, fold_step, list};
    lb_check_report digits = {0};
    list->windows = calloc((size_t)list->n_ranks + 1, sizeof *list->windows), list->digits = &digits;
    lb_status status = list->windows ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", list->n_ranks);
    if (status == LB_OK) status = lb_parts_each(list->options->work, &loop, err);
    if (status == LB_OK && !lb_proof_list_join(list->report, &digits))
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory for rows");
    if (status == LB_OK && list->seen && list->parts & LB_CHECK_PART_DIGITS)
        status = lb_digits_tell_updates(list->capture, list->options, list->windows, list->report, err);
    release_windows(list->windows, list->n_ranks);
    release_report(&digits);
    return status;
}

lb_status lb_check_run(lb_capture *capture, const lb_check_options *options, lb_check_report **out, lb_err *err)
{
    lb_check_report *report = calloc(1, sizeof *report);
    const int32_t *ranks;
    unit_list list = {.capture = capture,
                      .options = options,
                      .report = report,
                      .parts = options->parts ? options->parts : UINT32_MAX,
                      .n_ranks = lb_capture_ranks(capture, &ranks),
                      .until = INT64_MAX};
    uint32_t n = lb_capture_steps(capture, &list.steps);
    *out = NULL;
    if (!report) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a report");
    while (n && list.steps[0] < options->first_step) list.steps++, n--;
    while (list.n_steps < n && list.steps[list.n_steps] <= options->last_step) list.n_steps++;
    lb_status status = check_all(&list, err);
    if (status == LB_OK) status = lb_capture_refusal(capture, err);
    if (status == LB_OK && !list.seen)
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
    release_report(report);
    free(report);
}
