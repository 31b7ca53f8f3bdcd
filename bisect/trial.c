/* Trials: see trial.h. */
#define _GNU_SOURCE /* open_memstream */
#include "trial.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void lb_say(const lb_inquiry *q, const char *format, ...)
{
    char line[1024];
    va_list args;
    if (!q->options->say) return;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    q->options->say(q->options->context, line);
}

const lb_program *lb_inquiry_program(const lb_inquiry *q, int32_t rank, int64_t step)
{
    const lb_program *p;
    return lb_capture_program(q->capture, rank, step, &p, NULL) == LB_OK ? p : NULL;
}

void lb_escape(const char *path, char *pattern, size_t size)
{
    size_t n = 0;
    for (; *path && n + 3 < size; path++) {
        if (strchr("\\^$.[|()?*+{}&", *path)) pattern[n++] = '\\';
        pattern[n++] = *path;
    }
    pattern[n] = '\0';
}

/* ---- sites ------------------------------------------------------------------------------------------------------ */

lb_status lb_sites_add(lb_sites *sites, const lb_site_form *form, const char *body, lb_err *err)
{
    if (sites->n == sites->room) {
        uint32_t room = sites->room ? 2 * sites->room : 16;
        lb_site *more = realloc(sites->rows, room * sizeof *more);
        if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
        sites->rows = more;
        sites->room = room;
    }
    lb_site *s = &sites->rows[sites->n++];
    *s = (lb_site){form->kind, form->argument, strdup(form->before), strdup(body), strdup(form->after),
                   form->join, LB_NONE};
    return s->before && s->body && s->after ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}

lb_status lb_sites_add_all(lb_sites *sites, lb_swap_kind kind, const char *argument, lb_err *err)
{
    lb_site_form form = {kind, argument, "", "", ','};
    return lb_sites_add(sites, &form, "", err);
}

void lb_sites_release(lb_sites *sites)
{
    for (uint32_t i = 0; i < sites->n; i++) {
        free(sites->rows[i].before);
        free(sites->rows[i].body);
        free(sites->rows[i].after);
    }
    free(sites->rows);
    *sites = (lb_sites){0};
}

static bool chosen(const uint64_t *set, uint32_t i)
{
    return !set || lb_site_in(set, i);
}

static bool same_form(const lb_site *a, const lb_site *b)
{
    return a->kind == b->kind && a->join == b->join && !strcmp(a->argument, b->argument) &&
           !strcmp(a->before, b->before) && !strcmp(a->after, b->after);
}

/* The swaps of a set: sites of one form are one swap. Selectors are malloc'ed. */
static lb_status make_swaps(const lb_sites *sites, const uint64_t *set, lb_swap *swaps, uint32_t *n,
                            lb_err *err)
{
    bool *done = calloc(sites->n + 1, sizeof *done);
    lb_status status = done ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    *n = 0;
    for (uint32_t i = 0; i < sites->n && status == LB_OK; i++) {
        const lb_site *s = &sites->rows[i];
        if (!chosen(set, i) || done[i]) continue;
        char *text = NULL;
        size_t size = 0;
        FILE *out = open_memstream(&text, &size);
        if (!out) {
            status = lb_fail(err, LB_ERR_NOMEM, "out of memory");
            break;
        }
        fprintf(out, "%s%s", s->before, s->body);
        for (uint32_t k = i + 1; k < sites->n; k++)
            if (chosen(set, k) && !done[k] && same_form(s, &sites->rows[k])) {
                fprintf(out, "%c%s", s->join, sites->rows[k].body);
                done[k] = true;
            }
        fputs(s->after, out);
        fclose(out);
        swaps[(*n)++] = (lb_swap){s->kind, text, s->argument};
    }
    free(done);
    return status;
}

static void free_swaps(lb_swap *swaps, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) free((char *)swaps[i].selector);
    free(swaps);
}

static const char *option_of(lb_swap_kind kind)
{
    switch (kind) {
    case LB_SWAP_PRECISION: return "--precision";
    case LB_SWAP_KERNEL: return "--kernel";
    case LB_SWAP_ORDER: return "--order";
    case LB_SWAP_ROUNDING: return "--rounding";
    case LB_SWAP_SKIP: return "--skip";
    case LB_SWAP_MUON: return "--muon";
    default: return "--contribution";
    }
}

char *lb_change_text(const lb_sites *sites, const uint64_t *set)
{
    char *text = NULL;
    size_t size = 0;
    uint32_t n = 0;
    lb_swap *swaps = malloc((sites->n + 1) * sizeof *swaps);
    if (!swaps || make_swaps(sites, set, swaps, &n, NULL) != LB_OK) return NULL;
    FILE *out = open_memstream(&text, &size);
    for (uint32_t i = 0; out && i < n; i++)
        fprintf(out, "%s%s '%s%s%s'", i ? " " : "", option_of(swaps[i].kind), swaps[i].selector,
                *swaps[i].selector && *swaps[i].argument ? "=" : "", swaps[i].argument);
    if (out) fclose(out);
    free_swaps(swaps, n);
    return text;
}

/* ---- stages ----------------------------------------------------------------------------------------------------- */

lb_status lb_stage_begin(lb_inquiry *q, const char *name, lb_err *err)
{
    lb_bisection *b = q->out;
    lb_stage *more = realloc(b->stages, (b->n_stages + 1) * sizeof *more);
    if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    b->stages = more;
    b->stages[b->n_stages++] = (lb_stage){.name = name};
    return LB_OK;
}

void lb_stage_end(lb_inquiry *q, const char *outcome, const char *note, ...)
{
    lb_stage *s = &q->out->stages[q->out->n_stages - 1];
    va_list args;
    snprintf(s->outcome, sizeof s->outcome, "%s", outcome);
    va_start(args, note);
    vsnprintf(s->note, sizeof s->note, note, args);
    va_end(args);
    lb_say(q, "%-9s %s%s%s", s->name, s->outcome, *s->note ? ": " : "", s->note);
}

/* ---- one trial -------------------------------------------------------------------------------------------------- */

static bool watch_op(void *context, const lb_event *event)
{
    return lb_monitor_op(context, event);
}

static void watch_step(void *context, int32_t rank, int64_t step)
{
    lb_monitor_step_end(context, rank, step);
}

static lb_outcome judge(const lb_inquiry *q, lb_status status, const lb_replay_summary *summary,
                        const lb_err *err, char *what, size_t size)
{
    const lb_failure *f = lb_monitor_failure(q->monitor);
    if (status != LB_OK) {
        snprintf(what, size, "%s", err->message);
        return LB_OUTCOME_INVALID;
    }
    if (f->kind != LB_FAILURE_NONE) {
        snprintf(what, size, "step %" PRId64 "%s%.60s: %.100s", f->step, *f->layer ? " " : "", f->layer,
                 f->what);
        return f->step == q->failure.step ? LB_OUTCOME_SAME : LB_OUTCOME_OTHER;
    }
    if (summary->undecided) {
        snprintf(what, size, "%s", summary->undecided_at);
        return LB_OUTCOME_INVALID;
    }
    what[0] = '\0';
    return LB_OUTCOME_CURED;
}

static lb_status run_window(lb_inquiry *q, const lb_sites *sites, const uint64_t *set, lb_outcome *outcome,
                            char *what, size_t size, lb_err *err)
{
    lb_swap *swaps = malloc((sites->n + 1) * sizeof *swaps);
    bool *excluded = calloc(q->n_ranks + 1, sizeof *excluded);
    uint32_t n_swaps = 0;
    lb_status status = swaps && excluded ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK) {
        lb_plan plan = LB_PLAN_INIT;
        for (uint32_t i = 0; i < sites->n; i++)
            if (chosen(set, i) && sites->rows[i].rank_row != LB_NONE) excluded[sites->rows[i].rank_row] = true;
        status = make_swaps(sites, set, swaps, &plan.n_swaps, err);
        n_swaps = plan.n_swaps;
        if (status != LB_OK) goto out;
        plan.mode = LB_REPLAY_CHAINED;
        plan.first_step = q->steps[0], plan.last_step = q->steps[q->n_steps - 1];
        plan.swaps = swaps;
        plan.threads = q->options->threads;
        plan.memory_bytes = q->options->memory_bytes;
        plan.compare = false;
        plan.force_decisions = true;
        lb_monitor_reset(q->monitor, q->mode, excluded);
        lb_observer observer = {.context = q->monitor, .op = watch_op, .step_end = watch_step};
        lb_replay_summary summary = {0};
        lb_err why = LB_ERR_INIT;
        lb_status ran = lb_replay_run(q->replay, &plan, &observer, &summary, &why);
        if (ran == LB_ERR_NOMEM || ran == LB_ERR_IO || ran == LB_ERR_CORRUPT || ran == LB_ERR_LIMIT)
            status = lb_fail(err, ran, "%s", why.message);
        else
            *outcome = judge(q, ran, &summary, &why, what, size);
    }
out:
    free_swaps(swaps, swaps ? n_swaps : 0);
    free(excluded);
    return status;
}

static void say_trial(const lb_inquiry *q, const lb_sites *sites, const uint64_t *set, const lb_trial *t)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < sites->n; i++) n += chosen(set, i);
    char shown[64];
    if (strlen(t->change) < 56)
        snprintf(shown, sizeof shown, "%s", t->change);
    else
        snprintf(shown, sizeof shown, "%.40s… (%u)", t->change, n);
    lb_say(q, "  %-56s %-11s %5.2f s  %s", shown, t->outcome, t->seconds, t->what);
}

lb_status lb_try(lb_inquiry *q, const lb_sites *sites, const uint64_t *set, const char *purpose,
                 lb_outcome *outcome, lb_err *err)
{
    lb_bisection *b = q->out;
    double begin = now();
    lb_trial *more = realloc(b->trials, (b->n_trials + 1) * sizeof *more);
    if (more) b->trials = more;
    char *text = more ? lb_change_text(sites, set) : NULL;
    if (!text) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    lb_trial *t = &b->trials[b->n_trials];
    *t = (lb_trial){.stage = b->n_stages - 1, .change = text};
    snprintf(t->purpose, sizeof t->purpose, "%s", purpose);
    const char *known;
    lb_status status = LB_OK;
    if (lb_journal_find(q->journal, text, outcome, &known)) {
        snprintf(t->what, sizeof t->what, "%s", known);
    } else {
        status = run_window(q, sites, set, outcome, t->what, sizeof t->what, err);
        t->seconds = now() - begin;
        if (status == LB_OK) status = lb_journal_add(q->journal, text, *outcome, t->what, t->seconds, err);
    }
    if (status != LB_OK) {
        free(text);
        return status;
    }
    snprintf(t->outcome, sizeof t->outcome, "%s", lb_outcome_name(*outcome));
    b->n_trials++;
    b->stages[b->n_stages - 1].trials++;
    say_trial(q, sites, set, t);
    return LB_OK;
}

lb_status lb_narrow(lb_inquiry *q, const lb_sites *sites, uint32_t **found, uint32_t *n, lb_err *err)
{
    lb_search_options options = LB_SEARCH_OPTIONS_INIT;
    lb_search *search;
    options.sites = sites->n;
    options.max_trials = q->options->max_trials;
    *found = NULL, *n = 0;
    if (!sites->n) return LB_OK;
    LB_TRY(lb_search_new(&options, &search, err));
    lb_search_step step;
    lb_search_trial trial;
    lb_status status;
    while ((status = lb_search_next(search, &step, &trial, err)) == LB_OK && step == LB_SEARCH_TRIAL) {
        lb_outcome outcome;
        status = lb_try(q, sites, trial.sites, lb_purpose_name(trial.purpose), &outcome, err);
        if (status == LB_OK) status = lb_search_tell(search, trial.sites, outcome, err);
        if (status != LB_OK) break;
    }
    lb_search_verdict verdict = {0};
    if (status == LB_OK) status = lb_search_verdict_get(search, &verdict, err);
    if (status == LB_OK && verdict.n_culprits) {
        *found = malloc(verdict.n_culprits * sizeof **found);
        if (*found) {
            memcpy(*found, verdict.culprits, verdict.n_culprits * sizeof **found);
            *n = verdict.n_culprits;
        } else
            status = lb_fail(err, LB_ERR_NOMEM, "out of memory");
    }
    lb_search_free(search);
    return status;
}
