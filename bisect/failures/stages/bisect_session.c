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

static lb_status find_window(lb_bisect_session *q, lb_err *err)
{
    const int64_t *steps;
    uint32_t n = lb_capture_steps(q->capture, &steps), first = 0, last = n;
    while (first < n && steps[first] < q->options->first_step) first++;
    while (last > first && steps[last - 1] > q->options->last_step) last--;
    q->steps = steps + first, q->n_steps = last - first;
    q->n_ranks = lb_capture_ranks(q->capture, &q->ranks);
    if (q->n_steps && q->n_ranks) return LB_OK;
    return lb_capture_lacks(q->capture, q->options->first_step, q->options->last_step, err);
}

static lb_status open_journal(lb_bisect_session *q, lb_err *err)
{
    char about[600];
    if (!q->options->journal) return LB_OK;
    snprintf(about, sizeof about, "%s steps %" PRId64 "-%" PRId64 " predicate %s", lb_capture_path(q->capture),
             q->steps[0], q->steps[q->n_steps - 1], q->options->predicate ? q->options->predicate : "-");
    return lb_journal_open(q->options->journal, about, q->options->resume, &q->journal, err);
}

static bool was_cured(const lb_bisection *b, const char *change)
{
    for (uint32_t i = 0; i < b->n_trials; i++)
        if (!strcmp(b->trials[i].change, change) && !strcmp(b->trials[i].outcome, "cured")) return true;
    return false;
}

/* The last change that is known to cure, where the one put together from narrowed parts does not. */
static const char *last_cured(const lb_bisection *b)
{
    for (uint32_t i = b->n_trials; i-- > 0;)
        if (!strcmp(b->trials[i].outcome, "cured") && strcmp(b->trials[i].purpose, "note")) return b->trials[i].change;
    return "";
}

/* The cure as text; it has been seen to cure. */
static lb_status confirm_cure(lb_bisect_session *q, lb_err *err)
{
    lb_search_outcome outcome = LB_OUTCOME_CURED;
    if (!q->cure.n) return LB_OK;
    char *text = lb_trial_change_text(q, &q->cure, NULL);
    if (!text) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    lb_sites_name(&q->cure, "the cure by itself");
    lb_status status = was_cured(q->out, text) ? LB_OK : lb_trial_run(q, &q->cure, NULL, "confirm", &outcome, err);
    q->out->cure = outcome == LB_OUTCOME_CURED ? strdup(text) : strdup(last_cured(q->out));
    free(text);
    return status;
}

static lb_status run_stages(lb_bisect_session *q, lb_err *err)
{
    static lb_status (*const stages[])(lb_bisect_session *, bool *, lb_err *) = {
        lb_stage_sanity, lb_stage_muon,   lb_stage_precision, lb_stage_rank,         lb_stage_spoilt,
        lb_stage_mask,   lb_stage_update, lb_stage_own_op,    lb_stage_cancellation, lb_stage_block,
        lb_stage_source, lb_stage_order,  lb_stage_several,   lb_stage_op,           lb_stage_loaded};
    bool found = false;
    for (size_t i = 0; i < sizeof stages / sizeof *stages && !found; i++) {
        LB_TRY(stages[i](q, &found, err));
        if (i == 0) lb_origin_find(q); /* the trace is that of the unchanged replay */
    }
    q->any_data = q->usual_data;
    if (!found && q->any_data) LB_TRY(lb_stage_source(q, &found, err));
    if (!found) q->out->outcome = LB_BISECT_UNDECIDED;
    return confirm_cure(q, err);
}

static lb_status bisect_failure(lb_bisect_session *q, lb_err *err)
{
    LB_TRY(open_journal(q, err));
    LB_TRY(lb_replay_open(q->capture, &q->replay, err));
    LB_TRY(lb_failure_monitor_new(q->capture, q->steps[0], q->steps[q->n_steps - 1], q->options->predicate, &q->monitor,
                                  err));
    LB_TRY(lb_trace_new(q->capture, q->steps[0], q->steps[q->n_steps - 1], &q->trace, err));
    return q->options->check ? lb_stage_check(q, err) : run_stages(q, err);
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
    const lb_program *p;
    lb_code_line line = {0, "", "", ""};
    if (op == LB_NONE || lb_capture_program(capture, rank, step, &p, NULL) != LB_OK || op >= p->n_ops) return line;
    line = lb_op_line(p, &p->ops[op]);
    return lb_code_line_copy(&line);
}

/* The lines of code that the answer speaks of. */
static void note_lines(lb_bisect_session *q)
{
    for (uint32_t i = 0; i < q->out->n_culprits; i++) {
        lb_culprit *c = &q->out->culprits[i];
        if (c->n_ranks) c->lines[0] = line_at(q->capture, c->ranks[0], c->step, c->row);
    }
    lb_origin *o = &q->out->origin;
    lb_failure *f = &q->out->failure;
    o->line = line_at(q->capture, o->rank, o->step, o->op);
    f->line = f->kind == LB_FAILURE_NONE || f->rank < 0 ? (lb_code_line){0, "", "", ""}
                                                        : line_at(q->capture, f->rank, f->step, f->op);
}

/* Asked before the search, which may take hours. */
static lb_status can_write(const lb_bisect_session *q, lb_err *err)
{
    lb_output_folder *folder = NULL;
    if (!q->options->reproducer || q->options->against) return LB_OK;
    LB_TRY(lb_reproducer_open(q, &folder, err));
    lb_output_folder_abandon(folder);
    return LB_OK;
}

lb_status lb_bisect(lb_capture *capture, const lb_bisect_options *given, lb_bisection **bisection, lb_err *err)
{
    lb_bisect_options options = LB_BISECT_OPTIONS_INIT;
    memcpy(&options, given, given->size < sizeof options ? given->size : sizeof options);
    lb_bisect_session q = {.capture = capture, .options = &options, .remedy = {.op = LB_NONE}};
    const double begin = lb_clock_seconds();
    *bisection = NULL;
    q.out = calloc(1, sizeof *q.out);
    if (!q.out) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    q.out->failure.op = q.out->origin.op = LB_NONE;
    q.out->outcome = LB_BISECT_UNDECIDED;
    q.out->asked = asked_text(&options);
    if (options.against) q.out->reference = strdup(lb_capture_path(options.against));
    const bool named = q.out->asked && (!options.against || q.out->reference);
    lb_status status = named ? can_write(&q, err) : lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK) status = find_window(&q, err);
    if (status == LB_OK && !(q.left_out = calloc(q.n_ranks + 1, sizeof *q.left_out)))
        status = lb_fail(err, LB_ERR_NOMEM, "out of memory");
    if (status == LB_OK && options.against) status = lb_against_run(&q, err);
    if (status == LB_OK && !options.against && lb_basis_has_steps(&q)) status = bisect_failure(&q, err);
    if (!options.against && q.steps) status = lb_basis_settle(&q, status, err);
    q.bisect = lb_bisect;
    if (status == LB_OK) note_lines(&q);
    if (status == LB_OK) status = lb_capture_refusal(capture, err);
    if (status == LB_OK) status = lb_capture_refusal(options.against, err);
    if (status == LB_OK && options.reproducer && !options.against && q.out->outcome == LB_BISECT_FOUND)
        status = lb_reduce_reproducer(&q, err);
    lb_rerun_release(&q);
    lb_decisions_release(&q.decisions);
    lb_trace_free(q.trace);
    lb_failure_monitor_free(q.monitor);
    lb_replay_close(q.replay);
    lb_status closed = lb_journal_close(q.journal, status == LB_OK ? err : NULL);
    if (status == LB_OK) status = closed;
    lb_sites_release(&q.background);
    free(q.left_out);
    lb_sites_release(&q.cure);
    q.out->seconds = lb_clock_seconds() - begin;
    if (status == LB_OK)
        *bisection = q.out;
    else
        lb_bisection_free(q.out);
    return status;
}
