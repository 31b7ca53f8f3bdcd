/* Shrinking: see reduce.h.
 *
 * A candidate counts when bisecting it gives the same failure and the same culprit. They are tried from small to large:
 *
 *      dependency slice of the first culprit, residual branches beyond it left out    if not all of them can go, the search finds which
 *      dependency slice of the first culprit
 *      dependency slice of the block it lies in
 *      dependency slice of all culprits
 *      dependency slice of the first culprit, though its residual block is no longer seen to be one
 *      whole steps
 *      whole steps from that on in which the numbers went bad: a window that begins behind it may have another culprit
 */
#include "reproduce/reduce.h"

#include "reproduce/reproducer.h"

#include <lastbit/clock.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct shrinking {
    lb_bisect_session *session;
    lb_dependency_slice slice;
    const lb_culprit *culprit; /* to be found again */
    int64_t first_step;
    bool written; /* the folder holds a candidate that counts */
    bool loose;   /* the culprit's block may be gone: the op itself is found again */
    bool nearly;  /* some candidate would have counted then: in the first dependency slice, the `nearly_try`th */
    uint32_t tries, nearly_try;
    double begin; /* seconds on the clock */
    lb_err *err;
} shrinking;

/* Of a large step each candidate takes as long as the bisection did: then whole steps will do. */
static bool late(const shrinking *shrinking)
{
    enum { PATIENCE_S = 60 };
    return lb_clock_seconds() - shrinking->begin > PATIENCE_S;
}

/* ---- does it count? ---------------------------------------------------------------------------------------------- */

static bool same_place(const lb_culprit *a, const lb_culprit *b)
{
    return a->axis == b->axis && a->step == b->step && a->phase == b->phase && !strcmp(a->layer, b->layer) &&
           !strcmp(a->op, b->op);
}

/* Of several culprits any may be the one that the candidate shows: alone it is enough to fail. */
static bool is_culprit(shrinking *shrinking, const lb_culprit *culprit)
{
    const lb_bisection *bisection = shrinking->session->out;
    for (uint32_t i = 0; i < bisection->n_culprits; i++) {
        if (!same_place(culprit, &bisection->culprits[i])) continue;
        if (culprit->block == bisection->culprits[i].block) return true;
        if (!culprit->block && !shrinking->nearly) shrinking->nearly = true, shrinking->nearly_try = shrinking->tries;
    }
    return false;
}

static void say_candidate(const shrinking *shrinking, const lb_bisection *again, bool same)
{
    uint64_t ops, bytes;
    char found[300] = "cannot be bisected";
    if (lb_reproducer_size(shrinking->session->draft, &ops, &bytes, NULL) != LB_OK) return;
    if (again && again->n_culprits)
        snprintf(found, sizeof found, "%s %s %s", lb_bisect_axis_name(again->culprits[0].axis),
                 again->culprits[0].layer, again->culprits[0].op);
    else if (again)
        snprintf(found, sizeof found, "%s", lb_bisect_outcome_name(again->outcome));
    lb_trial_say(shrinking->session, "  %-11s %6" PRIu64 " ops, %8.1f KB: %s", same ? "reproduces" : "other", ops,
                 (double)bytes / 1e3, found);
}

/* Opens what was written and bisects it. A candidate that cannot be bisected does not count; a host that failed says
 * nothing of it. */
static lb_status judge_candidate(shrinking *shrinking)
{
    lb_err why = LB_ERR_INIT;
    const lb_bisect_session *session = shrinking->session;
    lb_capture *capture = NULL;
    lb_bisection *again = NULL;
    lb_bisect_options options = LB_BISECT_OPTIONS_INIT;
    options.predicate = session->options->predicate;
    options.threads = session->options->threads;
    options.memory_bytes = session->options->memory_bytes;
    options.from_start = session->options->from_start;
    lb_status status = lb_capture_open(session->draft, &capture, &why);
    if (status == LB_OK) status = session->bisect(capture, &options, &again, &why);
    bool same = status == LB_OK && again->n_culprits;
    same = same && again->failure.kind == session->failure.kind && again->failure.step == session->failure.step &&
           is_culprit(shrinking, &again->culprits[0]);
    if (!lb_is_refusal(status)) say_candidate(shrinking, again, same);
    lb_bisection_free(again);
    lb_capture_close(capture);
    shrinking->written = same;
    return lb_is_refusal(status) ? lb_fail(shrinking->err, status, "%s", why.message) : LB_OK;
}

/* Bytes that were not kept are no failure: another candidate may do without them. */
static lb_status write_and_count(shrinking *shrinking)
{
    lb_err why = LB_ERR_INIT;
    shrinking->written = false;
    shrinking->tries++;
    if (shrinking->loose && shrinking->tries < shrinking->nearly_try) return LB_OK; /* it is what it was */
    if (shrinking->culprit->axis == LB_AXIS_RANK &&
        !lb_dependency_slice_add_peer(&shrinking->slice, shrinking->culprit))
        return LB_OK;
    lb_status status = lb_reproducer_write(&shrinking->slice, &why);
    if (lb_is_refusal(status)) return lb_fail(shrinking->err, status, "%s", why.message);
    shrinking->written = status == LB_OK && shrinking->loose;
    return status == LB_OK && !shrinking->loose ? judge_candidate(shrinking) : LB_OK;
}

/* ---- passing branches -------------------------------------------------------------------------------------------- */

static void set_passes(shrinking *shrinking, const lb_dependency_slice_add *adds, uint32_t n, const uint64_t *kept)
{
    for (uint32_t i = 0; i < n; i++)
        shrinking->slice.parts[adds[i].part].pass[adds[i].op] = kept && lb_site_in(kept, i) ? 0 : adds[i].pass;
}

static lb_status try_passes(shrinking *shrinking, const lb_dependency_slice_add *adds, uint32_t n, const uint64_t *kept)
{
    set_passes(shrinking, adds, n, kept);
    if (!lb_dependency_slice_select(&shrinking->slice)) return LB_OK;
    return write_and_count(shrinking);
}

/* Which branches must stay: the fewest adds that are not passed. */
static lb_status search_passes(shrinking *shrinking, const lb_dependency_slice_add *adds, uint32_t n)
{
    lb_search_options options = LB_SEARCH_OPTIONS_INIT;
    lb_search *search;
    lb_search_step step;
    lb_search_trial trial;
    lb_search_verdict verdict = {0};
    options.sites = n, options.max_trials = 60;
    LB_TRY(lb_search_new(&options, &search, shrinking->err));
    lb_status status;
    while ((status = lb_search_next(search, &step, &trial, shrinking->err)) == LB_OK && step == LB_SEARCH_TRIAL &&
           !late(shrinking)) {
        shrinking->written = false;
        status = try_passes(shrinking, adds, n, trial.sites);
        lb_search_outcome outcome = shrinking->written ? LB_OUTCOME_CURED : LB_OUTCOME_SAME;
        if (status == LB_OK) status = lb_search_tell(search, trial.sites, outcome, shrinking->err);
        if (status != LB_OK) break;
    }
    if (status == LB_OK) status = lb_search_verdict_get(search, &verdict, shrinking->err);
    uint64_t *kept = calloc(LB_SITE_WORDS(n) + 1, sizeof *kept);
    for (uint32_t i = 0; kept && i < verdict.n_culprits; i++)
        kept[verdict.culprits[i] / 64] |= (uint64_t)1 << (verdict.culprits[i] % 64);
    shrinking->written = false;
    if (status == LB_OK && kept && verdict.n_culprits) status = try_passes(shrinking, adds, n, kept);
    free(kept);
    lb_search_free(search);
    return status;
}

/* The dependency slice, with as few of the branches beyond the culprit as it takes. */
static lb_status try_slice(shrinking *shrinking, uint32_t culprits, bool whole_block)
{
    lb_dependency_slice_add *adds = NULL;
    uint32_t n = 0;
    for (uint32_t k = 0; k < shrinking->slice.n; k++)
        memset(shrinking->slice.parts[k].pass, 0, shrinking->slice.parts[k].program->n_ops);
    LB_TRY(lb_dependency_slice_reach(&shrinking->slice, shrinking->session->out->culprits, culprits, whole_block,
                                     shrinking->err));
    if (!lb_dependency_slice_select(&shrinking->slice)) return LB_OK;
    lb_status status = lb_dependency_slice_adds(&shrinking->slice, shrinking->culprit, &adds, &n, shrinking->err);
    if (status == LB_OK && n) status = try_passes(shrinking, adds, n, NULL);
    if (status == LB_OK && n && !shrinking->written) status = search_passes(shrinking, adds, n);
    if (status == LB_OK && !n) status = write_and_count(shrinking);
    free(adds);
    return status;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static lb_status try_steps(shrinking *shrinking)
{
    lb_err why = LB_ERR_INIT;
    lb_status status = lb_reproducer_write_steps(shrinking->session, shrinking->first_step, &why);
    if (lb_is_refusal(status)) return lb_fail(shrinking->err, status, "%s", why.message);
    shrinking->written = false;
    return status == LB_OK ? judge_candidate(shrinking) : LB_OK;
}

static void add_note(lb_bisection *bisection, const char *text)
{
    size_t size = strlen(text) + (bisection->note ? strlen(bisection->note) : 0) + 3;
    char *note = malloc(size);
    if (!note) return;
    snprintf(note, size, "%s%s%s", bisection->note ? bisection->note : "", bisection->note ? "; " : "", text);
    free(bisection->note);
    bisection->note = note;
}

static uint64_t ops_of_window(const lb_bisect_session *session)
{
    uint64_t ops = 0;
    for (uint32_t s = 0; s < session->n_steps; s++)
        for (uint32_t r = 0; r < session->n_ranks; r++) {
            const lb_program *program = lb_trial_program(session, session->ranks[r], session->steps[s]);
            for (uint32_t i = 0; program && i < program->n_ops; i++)
                ops +=
                    !(program->ops[i].flags & LB_OP_VIEW) && strncmp(lb_op_name(program, &program->ops[i]), "lb::", 4);
        }
    return ops;
}

/* Puts the folder in place, if a candidate failed as it should; the draft is gone whatever the status. */
static lb_status report(shrinking *shrinking, lb_output_folder *folder)
{
    lb_bisection *bisection = shrinking->session->out;
    if (!shrinking->written) {
        add_note(bisection, "no smaller capture fails in the same way by itself: the capture is its own reproducer");
        lb_output_folder_abandon(folder);
        return LB_OK;
    }
    LB_TRY(lb_output_folder_close(folder, shrinking->err));
    bisection->reproducer = strdup(shrinking->session->options->reproducer);
    bisection->window_ops = ops_of_window(shrinking->session);
    LB_TRY(lb_reproducer_size(bisection->reproducer, &bisection->reproducer_ops, &bisection->reproducer_bytes,
                              shrinking->err));
    lb_trial_say(shrinking->session, "reproducer %s: %" PRIu64 " of %" PRIu64 " ops, %.1f KB", bisection->reproducer,
                 bisection->reproducer_ops, bisection->window_ops, (double)bisection->reproducer_bytes / 1e3);
    return LB_OK;
}

lb_status lb_reduce_reproducer(lb_bisect_session *session, lb_err *err)
{
    shrinking shrinking = {.session = session,
                           .culprit = &session->out->culprits[0],
                           .first_step = session->failure.step,
                           .err = err,
                           .begin = lb_clock_seconds()};
    for (uint32_t i = 0; i < session->out->n_culprits; i++)
        if (session->out->culprits[i].step < shrinking.first_step)
            shrinking.first_step = session->out->culprits[i].step;
    if (session->remedy.op != LB_NONE && session->remedy.step < shrinking.first_step)
        shrinking.first_step = session->remedy.step;
    lb_output_folder *folder;
    LB_TRY(lb_reproducer_open(session, &folder, err));
    session->draft = lb_output_folder_path(folder);
    lb_status status = lb_dependency_slice_init(&shrinking.slice, session, shrinking.first_step, err);
    if (status == LB_OK) status = try_slice(&shrinking, 1, false);
    const uint32_t in_first = shrinking.tries;
    if (status == LB_OK && !shrinking.written && !late(&shrinking)) status = try_slice(&shrinking, 1, true);
    if (status == LB_OK && !shrinking.written && session->out->n_culprits > 1 && !late(&shrinking))
        status = try_slice(&shrinking, session->out->n_culprits, false);
    shrinking.loose = shrinking.nearly && shrinking.nearly_try <= in_first;
    shrinking.tries = 0;
    if (status == LB_OK && !shrinking.written && shrinking.loose) status = try_slice(&shrinking, 1, false);
    shrinking.loose = false;
    if (status == LB_OK && !shrinking.written) status = try_steps(&shrinking);
    if (status == LB_OK && !shrinking.written && session->out->origin.op != LB_NONE &&
        session->out->origin.step < shrinking.first_step) {
        shrinking.first_step = session->out->origin.step;
        status = try_steps(&shrinking);
    }
    if (status == LB_OK)
        status = report(&shrinking, folder);
    else
        lb_output_folder_abandon(folder); /* half a reproducer is none */
    session->draft = NULL;
    lb_dependency_slice_release(&shrinking.slice);
    return status;
}
