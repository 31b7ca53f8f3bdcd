/* Trials: see trial.h. */
#include "trials/trial.h"

#include "trials/rerun.h"

#include <lastbit/clock.h>
#include <lastbit/text_stream.h>
#include "base/array.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void lb_trial_say(const lb_bisect_session *session, const char *format, ...)
{
    char line[1024];
    va_list args;
    if (!session->options->say) return;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    session->options->say(session->options->context, line);
}

const lb_program *lb_trial_program(const lb_bisect_session *session, int32_t rank, int64_t step)
{
    const lb_program *program;
    return lb_capture_program(session->capture, rank, step, &program, NULL) == LB_OK ? program : NULL;
}

char *lb_trial_change_text(const lb_bisect_session *session, const lb_sites *sites, const uint64_t *set)
{
    lb_swap *swaps;
    uint32_t n;
    lb_status status = lb_rerun_swaps(session, sites, set, &swaps, &n, NULL);
    char *text = status == LB_OK ? lb_sites_swaps_text(swaps, n) : NULL;
    lb_sites_swaps_free(swaps, n);
    return text;
}

/* ---- stages ----------------------------------------------------------------------------------------------------- */

lb_status lb_trial_stage_begin(lb_bisect_session *session, const char *name, lb_err *err)
{
    lb_bisection *bisection = session->out;
    lb_bisect_stage *more = lb_array_grow(bisection->stages, bisection->n_stages, sizeof *more);
    if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    bisection->stages = more;
    bisection->stages[bisection->n_stages++] = (lb_bisect_stage){.name = name};
    return LB_OK;
}

static void end_stage(lb_bisect_session *session, lb_bisect_stage *stage, const char *outcome, const char *note,
                      va_list args)
{
    snprintf(stage->outcome, sizeof stage->outcome, "%s", outcome);
    vsnprintf(stage->note, sizeof stage->note, note, args);
    if (*session->search_note) {
        size_t used = strlen(stage->note);
        snprintf(stage->note + used, sizeof stage->note - used, "; %s", session->search_note);
        session->search_note[0] = '\0';
    }
    lb_trial_say(session, "%-10s %s%s%s", stage->name, stage->outcome, *stage->note ? ": " : "", stage->note);
}

void lb_trial_stage_end(lb_bisect_session *session, const char *outcome, const char *note, ...)
{
    va_list args;
    va_start(args, note);
    end_stage(session, &session->out->stages[session->out->n_stages - 1], outcome, note, args);
    va_end(args);
}

void lb_trial_stage_end_row(lb_bisect_session *session, uint32_t row, const char *outcome, const char *note, ...)
{
    va_list args;
    va_start(args, note);
    end_stage(session, &session->out->stages[row], outcome, note, args);
    va_end(args);
}

/* ---- one trial -------------------------------------------------------------------------------------------------- */

/* The same change gives the same bits, and is judged alike. */
static bool tried_before(const lb_bisection *bisection, const char *text, lb_search_outcome *outcome)
{
    for (uint32_t i = bisection->n_trials; i-- > 0;)
        if (!strcmp(bisection->trials[i].change, text))
            return lb_search_outcome_parse(bisection->trials[i].outcome, outcome);
    return false;
}

lb_status lb_trial_run(lb_bisect_session *session, const lb_sites *sites, const uint64_t *set, const char *purpose,
                       lb_search_outcome *outcome, lb_err *err)
{
    lb_bisection *bisection = session->out;
    double begin = lb_clock_seconds();
    lb_trial *more = lb_array_grow(bisection->trials, bisection->n_trials, sizeof *more);
    if (more) bisection->trials = more;
    char *text = more ? lb_trial_change_text(session, sites, set) : NULL;
    if (!text) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (session->changed) lb_trace_clear(session->changed);
    if (tried_before(bisection, text, outcome)) {
        free(text);
        return LB_OK;
    }
    lb_trial *trial = &bisection->trials[bisection->n_trials];
    *trial = (lb_trial){.stage = bisection->n_stages - 1, .change = text};
    snprintf(trial->purpose, sizeof trial->purpose, "%s", purpose);
    lb_sites_describe(sites, set, trial->description, sizeof trial->description);
    const char *known;
    lb_status status = LB_OK;
    if (lb_journal_find(session->journal, text, outcome, &known)) {
        snprintf(trial->what, sizeof trial->what, "%s", known);
    } else {
        status = lb_rerun(session, sites, set, outcome, trial->what, sizeof trial->what, err);
        trial->seconds = lb_clock_seconds() - begin;
        if (status == LB_OK)
            status = lb_journal_add(session->journal, text, *outcome, trial->what, trial->seconds, err);
    }
    if (status != LB_OK) {
        free(text);
        return status;
    }
    snprintf(trial->outcome, sizeof trial->outcome, "%s", lb_search_outcome_name(*outcome));
    bisection->n_trials++;
    bisection->stages[bisection->n_stages - 1].trials++;
    lb_trial_say(session, "  %-11s %-64s %6.2f s  %s", trial->outcome, trial->description, trial->seconds, trial->what);
    return LB_OK;
}

/* What a search says about its assumption stays until the stage ends. */
static void note_search(lb_bisect_session *session, const lb_search_verdict *verdict)
{
    const char *note = *verdict->note || verdict->monotone ? verdict->note : "in some trial changing more undid a cure";
    if (*note) snprintf(session->search_note, sizeof session->search_note, "%s", note);
}

/* One culprit among a million sites takes 40 trials. A search that takes more has found many, and each of them costs as
 * much: what it has then cures and is small enough to be read. */
enum { ENOUGH = 400 };

/* Changing everything is known to cure: no trial is needed to say so. */
static lb_status tell_whole(lb_search *search, uint32_t n, lb_err *err)
{
    uint64_t *all = calloc(LB_SITE_WORDS(n) + 1, sizeof *all);
    if (!all) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < n; i++) all[i / 64] |= (uint64_t)1 << (i % 64);
    lb_status status = lb_search_tell(search, all, LB_OUTCOME_CURED, err);
    free(all);
    return status;
}

lb_status lb_trial_narrow(lb_bisect_session *session, const lb_sites *sites, bool cures, uint32_t **found, uint32_t *n,
                          lb_err *err)
{
    lb_search_options options = LB_SEARCH_OPTIONS_INIT;
    lb_search *search;
    options.sites = sites->n;
    options.max_trials = session->options->max_trials ? session->options->max_trials : ENOUGH;
    *found = NULL, *n = 0;
    if (!sites->n) return LB_OK;
    LB_TRY(lb_search_new(&options, &search, err));
    lb_search_step step;
    lb_search_trial trial;
    lb_status status = cures ? tell_whole(search, sites->n, err) : LB_OK;
    while (status == LB_OK && (status = lb_search_next(search, &step, &trial, err)) == LB_OK &&
           step == LB_SEARCH_TRIAL) {
        lb_search_outcome outcome;
        status = lb_trial_run(session, sites, trial.sites, lb_search_purpose_name(trial.purpose), &outcome, err);
        if (status == LB_OK) status = lb_search_tell(search, trial.sites, outcome, err);
        if (status != LB_OK) break;
    }
    lb_search_verdict verdict = {0};
    if (status == LB_OK) status = lb_search_verdict_get(search, &verdict, err);
    if (status == LB_OK) note_search(session, &verdict);
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

/* Changes rows [from, to) alone. */
static lb_status try_range(lb_bisect_session *session, const lb_sites *sites, uint32_t from, uint32_t to,
                           lb_search_outcome *outcome, lb_sites *copy, lb_err *err)
{
    uint64_t *set = calloc(LB_SITE_WORDS(sites->n) + 1, sizeof *set);
    if (!set) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = from; i < to; i++) set[i / 64] |= (uint64_t)1 << (i % 64);
    lb_status status = lb_trial_run(session, sites, set, "narrow", outcome, err);
    if (status == LB_OK && copy) status = lb_sites_append(copy, sites, set, err);
    free(set);
    return status;
}

lb_status lb_trial_narrow_late_steps(lb_bisect_session *session, const lb_sites *sites, uint32_t **found, uint32_t *n,
                                     bool *late, lb_err *err)
{
    uint32_t failing = 0;
    while (failing + 1 < session->n_steps && session->steps[failing] < session->failure.step) failing++;
    lb_sites after = {0};
    lb_search_outcome then = LB_OUTCOME_SAME, earlier = LB_OUTCOME_INVALID;
    *found = NULL, *n = 0, *late = false;
    if (!failing) return LB_OK;
    lb_status status = try_range(session, sites, failing, sites->n, &then, &after, err);
    if (status == LB_OK && then == LB_OUTCOME_CURED)
        status = try_range(session, sites, 0, failing, &earlier, NULL, err);
    *late = status == LB_OK && then == LB_OUTCOME_CURED && (earlier == LB_OUTCOME_SAME || earlier == LB_OUTCOME_OTHER);
    lb_sites_name(&after, "of these %s", sites->noun);
    if (*late) status = lb_trial_narrow(session, &after, true, found, n, err);
    for (uint32_t i = 0; i < *n; i++) (*found)[i] += failing;
    lb_sites_release(&after);
    return status;
}

lb_status lb_trial_narrow_steps(lb_bisect_session *session, const lb_sites *sites, bool cures, uint32_t **found,
                                uint32_t *n, lb_err *err)
{
    bool late;
    LB_TRY(lb_trial_narrow_late_steps(session, sites, found, n, &late, err));
    return late ? LB_OK : lb_trial_narrow(session, sites, cures, found, n, err);
}
