/* The bisection as a whole: stages in order, until one finds the culprit. See lastbit/bisect.h. */
#include "stages/against.h"
#include "trials/basis.h"
#include "trials/origin.h"
#include "reproduce/reproducer.h"
#include "trials/rerun.h"
#include "shell/shell_word.h"
#include "reproduce/reduce.h"
#include "stages/stages.h"

#include <lastbit/clock.h>
#include <lastbit/text_stream.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static lb_status find_window(lb_bisect_session *session, lb_err *err)
{
    const int64_t *steps;
    uint32_t n = lb_capture_steps(session->capture, &steps), first = 0, last = n;
    while (first < n && steps[first] < session->options->first_step) first++;
    while (last > first && steps[last - 1] > session->options->last_step) last--;
    session->steps = steps + first, session->n_steps = last - first;
    session->n_ranks = lb_capture_ranks(session->capture, &session->ranks);
    if (session->n_steps && session->n_ranks) return LB_OK;
    return lb_capture_lacks(session->capture, session->options->first_step, session->options->last_step, err);
}

static lb_status open_journal(lb_bisect_session *session, lb_err *err)
{
    char about[600];
    if (!session->options->journal) return LB_OK;
    snprintf(about, sizeof about, "%s steps %" PRId64 "-%" PRId64 " predicate %s", lb_capture_path(session->capture),
             session->steps[0], session->steps[session->n_steps - 1],
             session->options->predicate ? session->options->predicate : "-");
    return lb_journal_open(session->options->journal, about, session->options->resume, &session->journal, err);
}

static bool was_cured(const lb_bisection *bisection, const char *change)
{
    for (uint32_t i = 0; i < bisection->n_trials; i++)
        if (!strcmp(bisection->trials[i].change, change) && !strcmp(bisection->trials[i].outcome, "cured")) return true;
    return false;
}

/* The last change that is known to cure, where the one put together from narrowed parts does not. */
static const char *last_cured(const lb_bisection *bisection)
{
    for (uint32_t i = bisection->n_trials; i-- > 0;)
        if (!strcmp(bisection->trials[i].outcome, "cured") && strcmp(bisection->trials[i].purpose, "note"))
            return bisection->trials[i].change;
    return "";
}

/* The cure as text; it has been seen to cure. */
static lb_status confirm_cure(lb_bisect_session *session, lb_err *err)
{
    lb_search_outcome outcome = LB_OUTCOME_CURED;
    if (!session->cure.n) return LB_OK;
    char *text = lb_trial_change_text(session, &session->cure, NULL);
    if (!text) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    lb_sites_name(&session->cure, "the cure by itself");
    lb_status status =
        was_cured(session->out, text) ? LB_OK : lb_trial_run(session, &session->cure, NULL, "confirm", &outcome, err);
    session->out->cure = outcome == LB_OUTCOME_CURED ? strdup(text) : strdup(last_cured(session->out));
    free(text);
    return status;
}

static lb_status run_stages(lb_bisect_session *session, lb_err *err)
{
    static lb_status (*const stages[])(lb_bisect_session *, bool *, lb_err *) = {
        lb_stage_sanity, lb_stage_muon,   lb_stage_precision, lb_stage_rank,         lb_stage_spoilt,
        lb_stage_mask,   lb_stage_update, lb_stage_own_op,    lb_stage_cancellation, lb_stage_block,
        lb_stage_source, lb_stage_order,  lb_stage_several,   lb_stage_op,           lb_stage_loaded};
    bool found = false;
    for (size_t i = 0; i < sizeof stages / sizeof *stages && !found; i++) {
        LB_TRY(stages[i](session, &found, err));
        if (i == 0) lb_origin_find(session); /* the trace is that of the unchanged replay */
    }
    session->any_data = session->usual_data;
    if (!found && session->any_data) LB_TRY(lb_stage_source(session, &found, err));
    if (!found) session->out->outcome = LB_BISECT_UNDECIDED;
    return confirm_cure(session, err);
}

static lb_status bisect_failure(lb_bisect_session *session, lb_err *err)
{
    LB_TRY(open_journal(session, err));
    LB_TRY(lb_replay_open(session->capture, &session->replay, err));
    LB_TRY(lb_failure_monitor_new(session->capture, session->steps[0], session->steps[session->n_steps - 1],
                                  session->options->predicate, &session->monitor, err));
    LB_TRY(
        lb_trace_new(session->capture, session->steps[0], session->steps[session->n_steps - 1], &session->trace, err));
    return session->options->check ? lb_stage_check(session, err) : run_stages(session, err);
}

/* What a command must say again so that it looks for the same failure in the same window. */
static char *asked_text(const lb_bisect_options *options)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = lb_text_stream_open(&text, &size);
    if (!out) return NULL;
    if (options->first_step != INT64_MIN)
        fprintf(out, "--steps %" PRId64 "-%" PRId64, options->first_step, options->last_step);
    if (options->predicate) {
        fprintf(out, "%s--predicate ", ftell(out) ? " " : "");
        lb_shell_word(out, options->predicate);
    }
    fclose(out);
    return text;
}

static lb_code_line line_at(lb_capture *capture, int32_t rank, int64_t step, uint32_t op)
{
    const lb_program *program;
    lb_code_line line = {0, "", "", ""};
    if (op == LB_NONE || lb_capture_program(capture, rank, step, &program, NULL) != LB_OK || op >= program->n_ops)
        return line;
    line = lb_op_line(program, &program->ops[op]);
    return lb_code_line_copy(&line);
}

/* The lines of code that the answer speaks of. */
static void note_lines(lb_bisect_session *session)
{
    for (uint32_t i = 0; i < session->out->n_culprits; i++) {
        lb_culprit *culprit = &session->out->culprits[i];
        if (culprit->n_ranks)
            culprit->lines[0] = line_at(session->capture, culprit->ranks[0], culprit->step, culprit->row);
    }
    lb_origin *origin = &session->out->origin;
    lb_failure *failure = &session->out->failure;
    origin->line = line_at(session->capture, origin->rank, origin->step, origin->op);
    failure->line = failure->kind == LB_FAILURE_NONE || failure->rank < 0
                        ? (lb_code_line){0, "", "", ""}
                        : line_at(session->capture, failure->rank, failure->step, failure->op);
}

/* Asked before the search, which may take hours. */
static lb_status can_write(const lb_bisect_session *session, lb_err *err)
{
    lb_output_folder *folder = NULL;
    if (!session->options->reproducer || session->options->against) return LB_OK;
    LB_TRY(lb_reproducer_open(session, &folder, err));
    lb_output_folder_abandon(folder);
    return LB_OK;
}

/* Of a capture that is bisected alone lb_basis_settle has told what is damaged. */
static lb_status refusal_of(lb_bisect_session *session, lb_err *err)
{
    lb_err own = LB_ERR_INIT;
    const bool told = lb_capture_refusal(session->capture, &own) == LB_ERR_CORRUPT && !session->options->against;
    if (own.status != LB_OK && !told) return lb_fail(err, own.status, "%s", own.message);
    return lb_capture_refusal(session->options->against, err);
}

lb_status lb_bisect(lb_capture *capture, const lb_bisect_options *given, lb_bisection **bisection, lb_err *err)
{
    lb_bisect_options options = LB_BISECT_OPTIONS_INIT;
    memcpy(&options, given, given->size < sizeof options ? given->size : sizeof options);
    lb_bisect_session session = {.capture = capture, .options = &options, .remedy = {.op = LB_NONE}};
    const double begin = lb_clock_seconds();
    *bisection = NULL;
    session.out = calloc(1, sizeof *session.out);
    if (!session.out) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    session.out->failure.op = session.out->origin.op = LB_NONE;
    session.out->outcome = LB_BISECT_UNDECIDED;
    session.out->asked = asked_text(&options);
    if (options.against) session.out->reference = strdup(lb_capture_path(options.against));
    const bool named = session.out->asked && (!options.against || session.out->reference);
    lb_status status = named ? can_write(&session, err) : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK) status = find_window(&session, err);
    if (status == LB_OK && !(session.left_out = calloc(session.n_ranks + 1, sizeof *session.left_out)))
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK && options.against) status = lb_against_run(&session, err);
    if (status == LB_OK && !options.against && lb_basis_has_steps(&session)) status = bisect_failure(&session, err);
    if (!options.against && session.steps) status = lb_basis_settle(&session, status, err);
    session.bisect = lb_bisect;
    if (status == LB_OK) note_lines(&session);
    if (status == LB_OK) status = refusal_of(&session, err);
    if (status == LB_OK && options.reproducer && !options.against && session.out->outcome == LB_BISECT_FOUND)
        status = lb_reduce_reproducer(&session, err);
    lb_rerun_release(&session);
    lb_decisions_release(&session.decisions);
    lb_trace_free(session.trace);
    lb_failure_monitor_free(session.monitor);
    lb_replay_close(session.replay);
    lb_status closed = lb_journal_close(session.journal, status == LB_OK ? err : NULL);
    if (status == LB_OK) status = closed;
    lb_sites_release(&session.background);
    free(session.left_out);
    lb_sites_release(&session.cure);
    session.out->seconds = lb_clock_seconds() - begin;
    if (status == LB_OK)
        *bisection = session.out;
    else
        lb_bisection_free(session.out);
    return status;
}
