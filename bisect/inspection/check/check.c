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

static lb_status open_step(const check_run *c, const lb_program *program, ranks_step *s, lb_err *err)
{
    lb_check_step *step = &s->steps[s->n];
    *step = (lb_check_step){.report = c->report, .path = lb_capture_path(c->capture), .limit = c->limit};
    LB_TRY(lb_program_view_init_recorded(c->capture, program, &s->views[s->n], err));
    lb_status status = lb_moved_run_open(&s->views[s->n], &step->run, err);
    step->run.progress = c->options->progress;
    if (status == LB_OK) status = lb_trained_list(&step->run, &step->trained, err);
    s->n++;
    return status;
}

static void close_steps(check_run *c, ranks_step *s)
{
    for (uint32_t i = 0; i < s->n; i++) {
        c->report->replays += s->steps[i].run.runs + (s->steps[i].run.begun > 0);
        lb_optimizer_step_release(&s->steps[i].updates);
        lb_trained_release(&s->steps[i].trained);
        lb_moved_run_close(&s->steps[i].run);
        lb_program_view_release(&s->views[i]);
    }
    free(s->views), free(s->steps);
}

static bool has_all_ranks(const ranks_step *s)
{
    return s->n > 0 && (int32_t)s->n == s->steps[0].run.program->world;
}

/* The runs of all ranks go together, that of rank `first` before the others. */
static lb_status join(const ranks_step *s, uint32_t first, lb_err *err)
{
    lb_moved_run *lead = &s->steps[first].run, **runs = malloc(((size_t)s->n + 1) * sizeof *runs);
    if (!runs) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", s->n);
    uint32_t n = 0;
    runs[n++] = lead;
    for (uint32_t i = 0; i < s->n; i++)
        if (i != first) runs[n++] = &s->steps[i].run;
    lead->together = runs, lead->n_together = n;
    return LB_OK;
}

/* Each by itself again. */
static void part(const ranks_step *s, uint32_t first)
{
    lb_moved_run *lead = &s->steps[first].run;
    free((void *)lead->together);
    lead->together = NULL, lead->n_together = 0;
}

static lb_status check_gradients(const ranks_step *s, uint32_t parts, lb_err *err)
{
    if (s->n > 1 && has_all_ranks(s)) {
        LB_TRY(join(s, 0, err));
        const lb_status status = lb_check_step_of_ranks(s->steps, s->n, parts, err);
        part(s, 0);
        return status;
    }
    for (uint32_t i = 0; i < s->n; i++) LB_TRY(lb_check_step_run(&s->steps[i], parts, err));
    return LB_OK;
}

/* The first exact run of a step whose gradients did not ask for one. */
static lb_status measure(const ranks_step *s, lb_err *err)
{
    LB_TRY(join(s, 0, err));
    const lb_status status = lb_moved_run_measure(&s->steps[0].run, err);
    part(s, 0);
    return status;
}

static lb_status check_relations(const ranks_step *s, uint32_t rank, bool *tried, lb_err *err)
{
    const bool together = s->n > 1 && has_all_ranks(s);
    if (together) LB_TRY(join(s, rank, err));
    const lb_status status = lb_check_step_relations(&s->steps[rank], tried, err);
    if (together) part(s, rank);
    return status;
}

static lb_status check_updates(const ranks_step *s, lb_err *err)
{
    bool asked = false;
    for (uint32_t i = 0; i < s->n; i++) asked |= s->steps[i].updates.n && !s->steps[i].run.measured;
    if (asked && has_all_ranks(s)) LB_TRY(measure(s, err));
    for (uint32_t i = 0; i < s->n; i++) LB_TRY(lb_check_step_updates(&s->steps[i], err));
    return LB_OK;
}

/* Ranks whose messages are not matched cannot run together, which is no failure of the check: `*apart`. What was said
 * of the step already is the cause. */
static lb_status settle(const ranks_step *s, lb_status status, const lb_err *why, bool *apart, lb_err *err)
{
    char what[80];
    *apart = status == LB_ERR_UNSUPPORTED;
    if (!*apart) return status == LB_OK ? LB_OK : lb_fail(err, status, "%s", why->message);
    snprintf(what, sizeof what, "step %lld of %u ranks", (long long)s->steps[0].run.program->step, s->n);
    if (lb_proof_list_has_left(s->steps[0].report, what)) return LB_OK;
    return lb_proof_list_leave(s->steps[0].report, what, "they cannot run together: %s", why->message)
               ? LB_OK
               : lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
}

/* Each rank by itself, and then what they do together. `tried`: relations are tried in the first rank whose loss scores
 * tokens; NULL: in none. */
static lb_status check_parts(check_run *c, ranks_step *s, bool *tried, lb_err *err)
{
    const uint32_t gradients = c->parts & (LB_CHECK_PART_GRADIENT | LB_CHECK_PART_STEP);
    const bool updates = c->parts & LB_CHECK_PART_STEP;
    lb_err why = LB_ERR_INIT;
    bool apart = false;
    for (uint32_t i = 0; i < s->n; i++) {
        if (tried && !*tried && !apart) LB_TRY(settle(s, check_relations(s, i, tried, &why), &why, &apart, err));
        if (!(c->parts & LB_CHECK_PART_MEMORY)) continue;
        bool poisoned;
        if (!lb_check_step_unwritten(&s->steps[i], &poisoned))
            return lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
        if (!poisoned) LB_TRY(lb_check_step_dropped(&s->steps[i], err));
    }
    lb_capture_unload(c->capture); /* what was read for NaN is the whole recording */
    for (uint32_t i = 0; updates && i < s->n; i++)
        if (!lb_check_step_watch_updates(&s->steps[i])) return lb_fail(err, LB_ERR_NOMEM, "out of memory for updates");
    if (gradients && s->n && !apart) LB_TRY(settle(s, check_gradients(s, gradients, &why), &why, &apart, err));
    return updates && !apart ? settle(s, check_updates(s, &why), &why, &apart, err) : LB_OK;
}

static lb_status open_ranks(const check_run *c, int64_t number, ranks_step *s, lb_err *err)
{
    const int32_t *ranks;
    const uint32_t n = lb_capture_ranks(c->capture, &ranks);
    *s = (ranks_step){calloc((size_t)n + 1, sizeof *s->views), calloc((size_t)n + 1, sizeof *s->steps), 0};
    if (!s->views || !s->steps) return lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", n);
    for (uint32_t r = 0; r < n; r++) {
        const lb_program *program;
        if (lb_capture_program(c->capture, ranks[r], number, &program, NULL) == LB_OK)
            LB_TRY(open_step(c, program, s, err));
    }
    return LB_OK;
}

/* What was read of the step goes with it, for a caller who uses it for nothing else. */
static void drop_step(const check_run *c, int64_t number)
{
    const int32_t *ranks;
    const uint32_t n = lb_capture_ranks(c->capture, &ranks);
    for (uint32_t r = 0; r < n && c->options->alone; r++) lb_capture_drop_program(c->capture, ranks[r], number);
    if (c->options->alone) lb_capture_unload(c->capture);
}

static lb_status check_step(check_run *c, int64_t number, bool *tried, uint32_t *seen, lb_err *err)
{
    ranks_step s;
    lb_status status = open_ranks(c, number, &s, err);
    *seen += s.n;
    if (status == LB_OK) status = check_parts(c, &s, tried, err);
    close_steps(c, &s);
    c->report->left |= lb_proof_list_left(c->report) > 0;
    return status;
}

/* Would relations be tried in that step? */
static lb_status look_for_tokens(check_run *c, int64_t number, bool *tried, lb_err *err)
{
    ranks_step s;
    lb_err why = LB_ERR_INIT;
    lb_status status = open_ranks(c, number, &s, err);
    const bool together = s.n > 1 && has_all_ranks(&s);
    for (uint32_t i = 0; i < s.n && status == LB_OK && !*tried; i++) {
        if (together && (status = join(&s, i, err)) != LB_OK) break;
        const lb_status found = lb_check_step_scores(&s.steps[i], tried, &why);
        if (together) part(&s, i);
        if (found == LB_ERR_UNSUPPORTED) break;
        if (found != LB_OK) status = lb_fail(err, found, "%s", why.message);
    }
    close_steps(c, &s);
    drop_step(c, number);
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
static lb_status are_tried_before(unit_list *u, uint32_t step, bool *before, lb_err *err)
{
    while (u->without < step && !u->have_tokens) {
        lb_check_report none = {0};
        check_run c = {u->capture, u->options, &none, u->parts, 0};
        const lb_status status = look_for_tokens(&c, u->steps[u->without], &u->have_tokens, err);
        lb_proof_list_release(&none);
        LB_TRY(status);
        u->without += !u->have_tokens;
    }
    *before = u->without < step;
    return LB_OK;
}

static lb_status check_sections(unit_list *u, uint32_t step, lb_check_report *report, uint32_t *seen, lb_err *err)
{
    check_run c = {u->capture, u->options, report, u->parts, u->options->replays ? u->options->replays : 20};
    const bool relations = u->parts & LB_CHECK_PART_RELATIONS;
    bool tried = false;
    if (relations) LB_TRY(are_tried_before(u, step, &tried, err));
    const bool first = relations && !tried;
    LB_TRY(check_step(&c, u->steps[step], first ? &tried : NULL, seen, err));
    if (first && u->without == step) u->have_tokens = tried, u->without += !tried;
    return LB_OK;
}

static lb_status check_digits(const unit_list *u, uint32_t step, uint32_t used, lb_check_report *report,
                              lb_update_window *windows, lb_err *err)
{
    const uint32_t limit = u->options->replays ? u->options->replays : 20, rest = limit > used ? limit - used : 0;
    return u->parts & LB_CHECK_PART_DIGITS
               ? lb_digits_of_step(u->capture, u->options, u->steps[step], rest, windows, report, err)
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
    unit_list *u = context;
    const uint32_t step = (uint32_t)unit;
    const check_run c = {.capture = u->capture, .options = u->options};
    lb_check_report report = {0}, digits = {0};
    uint32_t seen = 0;
    lb_update_window *windows = calloc((size_t)u->n_ranks + 1, sizeof *windows);
    lb_status status = windows ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", u->n_ranks);
    if (status == LB_OK && u->steps[step] <= u->until) status = check_sections(u, step, &report, &seen, err);
    /* what is left of the budget is asked for in the first step alone, whose sections were looked at */
    if (status == LB_OK) status = check_digits(u, step, report.replays, &digits, windows, err);
    if (status == LB_OK) status = lb_capture_refusal(u->capture, err);
    drop_step(&c, u->steps[step]);
    if (status == LB_OK) {
        lb_part_record_u32(record, &seen);
        lb_proof_list_record(record, &report), lb_proof_list_record(record, &digits);
        for (uint32_t r = 0; r < u->n_ranks; r++) lb_update_window_record(record, &windows[r]);
    }
    release_windows(windows, u->n_ranks);
    release_report(&report), release_report(&digits);
    return status;
}

static lb_status fold_updates(unit_list *u, lb_part_record *record, lb_err *err)
{
    for (uint32_t r = 0; r < u->n_ranks && record->status == LB_OK; r++) {
        lb_update_window step = {0};
        lb_update_window_record(record, &step);
        const bool room = record->status != LB_OK || lb_update_window_add(&u->windows[r], &step);
        lb_update_window_release(&step);
        if (!room) return lb_fail(err, LB_ERR_NOMEM, "out of memory for updates");
    }
    return record->status;
}

static lb_status fold_step(void *context, uint64_t unit, lb_part_record *record, lb_err *err)
{
    unit_list *u = context;
    const int64_t step = u->steps[unit];
    lb_check_report report = {0}, digits = {0};
    uint32_t seen = 0;
    lb_part_record_u32(record, &seen);
    lb_proof_list_record(record, &report), lb_proof_list_record(record, &digits);
    lb_status status = fold_updates(u, record, err);
    if (status == LB_OK && step <= u->until) {
        u->seen += seen;
        if (report.n_findings) u->until = step;
        if (!lb_proof_list_join(u->report, &report)) status = lb_fail(err, LB_ERR_NOMEM, "out of memory for findings");
    }
    if (status == LB_OK && !lb_digits_join(u->digits, &digits))
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory for rows");
    release_report(&report), release_report(&digits);
    return status;
}

static lb_status check_all(unit_list *u, lb_err *err)
{
    const lb_parts_loop loop = {"check", u->n_steps, work_step, fold_step, u};
    lb_check_report digits = {0};
    u->windows = calloc((size_t)u->n_ranks + 1, sizeof *u->windows), u->digits = &digits;
    lb_status status = u->windows ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory for %u ranks", u->n_ranks);
    if (status == LB_OK) status = lb_parts_each(u->options->work, &loop, err);
    if (status == LB_OK && !lb_proof_list_join(u->report, &digits))
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory for rows");
    if (status == LB_OK && u->seen && u->parts & LB_CHECK_PART_DIGITS)
        status = lb_digits_tell_updates(u->capture, u->options, u->windows, u->report, err);
    release_windows(u->windows, u->n_ranks);
    release_report(&digits);
    return status;
}

lb_status lb_check_run(lb_capture *capture, const lb_check_options *options, lb_check_report **out, lb_err *err)
{
    lb_check_report *report = calloc(1, sizeof *report);
    const int32_t *ranks;
    unit_list u = {.capture = capture,
                   .options = options,
                   .report = report,
                   .parts = options->parts ? options->parts : UINT32_MAX,
                   .n_ranks = lb_capture_ranks(capture, &ranks),
                   .until = INT64_MAX};
    uint32_t n = lb_capture_steps(capture, &u.steps);
    *out = NULL;
    if (!report) return lb_fail(err, LB_ERR_NOMEM, "out of memory for a report");
    while (n && u.steps[0] < options->first_step) u.steps++, n--;
    while (u.n_steps < n && u.steps[u.n_steps] <= options->last_step) u.n_steps++;
    lb_status status = check_all(&u, err);
    if (status == LB_OK) status = lb_capture_refusal(capture, err);
    if (status == LB_OK && !u.seen)
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
