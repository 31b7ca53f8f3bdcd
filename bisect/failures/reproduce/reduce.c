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
    lb_bisect_session *q;
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
static bool late(const shrinking *s)
{
    enum { PATIENCE_S = 60 };
    return lb_clock_seconds() - s->begin > PATIENCE_S;
}

/* ---- does it count? ---------------------------------------------------------------------------------------------- */

static bool same_place(const lb_culprit *a, const lb_culprit *b)
{
    return a->axis == b->axis && a->step == b->step && a->phase == b->phase && !strcmp(a->layer, b->layer) &&
           !strcmp(a->op, b->op);
}

/* Of several culprits any may be the one that the candidate shows: alone it is enough to fail. */
static bool is_culprit(shrinking *s, const lb_culprit *c)
{
    const lb_bisection *b = s->q->out;
    for (uint32_t i = 0; i < b->n_culprits; i++) {
        if (!same_place(c, &b->culprits[i])) continue;
        if (c->block == b->culprits[i].block) return true;
        if (!c->block && !s->nearly) s->nearly = true, s->nearly_try = s->tries;
    }
    return false;
}

static void say_candidate(const shrinking *s, const lb_bisection *again, bool same)
{
    uint64_t ops, bytes;
    char found[300] = "cannot be bisected";
    if (lb_reproducer_size(s->q->draft, &ops, &bytes, NULL) != LB_OK) return;
    if (again && again->n_culprits)
        snprintf(found, sizeof found, "%s %s %s", lb_bisect_axis_name(again->culprits[0].axis),
                 again->culprits[0].layer, again->culprits[0].op);
    else if (again)
        snprintf(found, sizeof found, "%s", lb_bisect_outcome_name(again->outcome));
    lb_trial_say(s->q, "  %-11s %6" PRIu64 " ops, %8.1f KB: %s", same ? "reproduces" : "other", ops,
                 (double)bytes / 1e3, found);
}

/* Opens what was written and bisects it. A candidate that cannot be bisected does not count; a host that failed says
 * nothing of it. */
static lb_status judge_candidate(shrinking *s)
{
    lb_err why = LB_ERR_INIT;
    const lb_bisect_session *q = s->q;
    lb_capture *capture = NULL;
    lb_bisection *again = NULL;
    lb_bisect_options options = LB_BISECT_OPTIONS_INIT;
    options.predicate = q->options->predicate;
    options.threads = q->options->threads;
    options.memory_bytes = q->options->memory_bytes;
    options.from_start = q->options->from_start;
    lb_status status = lb_capture_open(q->draft, &capture, &why);
    if (status == LB_OK) status = q->bisect(capture, &options, &again, &why);
    bool same = status == LB_OK && again->n_culprits;
    same = same && again->failure.kind == q->failure.kind && again->failure.step == q->failure.step &&
           is_culprit(s, &again->culprits[0]);
    if (!lb_is_refusal(status)) say_candidate(s, again, same);
    lb_bisection_free(again);
    lb_capture_close(capture);
    s->written = same;
    return lb_is_refusal(status) ? lb_fail(s->err, status, "%s", why.message) : LB_OK;
}

/* Bytes that were not kept are no failure: another candidate may do without them. */
static lb_status write_and_count(shrinking *s)
{
    lb_err why = LB_ERR_INIT;
    s->written = false;
    s->tries++;
    if (s->loose && s->tries < s->nearly_try) return LB_OK; /* it is what it was */
    if (s->culprit->axis == LB_AXIS_RANK && !lb_dependency_slice_add_peer(&s->slice, s->culprit)) return LB_OK;
    lb_status status = lb_reproducer_write(&s->slice, &why);
    if (lb_is_refusal(status)) return lb_fail(s->err, status, "%s", why.message);
    s->written = status == LB_OK && s->loose;
    return status == LB_OK && !s->loose ? judge_candidate(s) : LB_OK;
}

/* ---- passing branches -------------------------------------------------------------------------------------------- */

static void set_passes(shrinking *s, const lb_dependency_slice_add *adds, uint32_t n, const uint64_t *kept)
{
    for (uint32_t i = 0; i < n; i++)
        s->slice.parts[adds[i].part].pass[adds[i].op] = kept && lb_site_in(kept, i) ? 0 : adds[i].pass;
}

static lb_status try_passes(shrinking *s, const lb_dependency_slice_add *adds, uint32_t n, const uint64_t *kept)
{
    set_passes(s, adds, n, kept);
    if (!lb_dependency_slice_select(&s->slice)) return LB_OK;
    return write_and_count(s);
}

/* Which branches must stay: the fewest adds that are not passed. */
static lb_status search_passes(shrinking *s, const lb_dependency_slice_add *adds, uint32_t n)
{
    lb_search_options options = LB_SEARCH_OPTIONS_INIT;
    lb_search *search;
    lb_search_step step;
    lb_search_trial trial;
    lb_search_verdict verdict = {0};
    options.sites = n, options.max_trials = 60;
    LB_TRY(lb_search_new(&options, &search, s->err));
    lb_status status;
    while ((status = lb_search_next(search, &step, &trial, s->err)) == LB_OK && step == LB_SEARCH_TRIAL && !late(s)) {
        s->written = false;
        status = try_passes(s, adds, n, trial.sites);
        lb_search_outcome outcome = s->written ? LB_OUTCOME_CURED : LB_OUTCOME_SAME;
        if (status == LB_OK) status = lb_search_tell(search, trial.sites, outcome, s->err);
        if (status != LB_OK) break;
    }
    if (status == LB_OK) status = lb_search_verdict_get(search, &verdict, s->err);
    uint64_t *kept = calloc(LB_SITE_WORDS(n) + 1, sizeof *kept);
    for (uint32_t i = 0; kept && i < verdict.n_culprits; i++)
        kept[verdict.culprits[i] / 64] |= (uint64_t)1 << (verdict.culprits[i] % 64);
    s->written = false;
    if (status == LB_OK && kept && verdict.n_culprits) status = try_passes(s, adds, n, kept);
    free(kept);
    lb_search_free(search);
    return status;
}

/* The dependency slice, with as few of the branches beyond the culprit as it takes. */
static lb_status try_slice(shrinking *s, uint32_t culprits, bool whole_block)
{
    lb_dependency_slice_add *adds = NULL;
    uint32_t n = 0;
    for (uint32_t k = 0; k < s->slice.n; k++) memset(s->slice.parts[k].pass, 0, s->slice.parts[k].program->n_ops);
    LB_TRY(lb_dependency_slice_reach(&s->slice, s->q->out->culprits, culprits, whole_block, s->err));
    if (!lb_dependency_slice_select(&s->slice)) return LB_OK;
    lb_status status = lb_dependency_slice_adds(&s->slice, s->culprit, &adds, &n, s->err);
    if (status == LB_OK && n) status = try_passes(s, adds, n, NULL);
    if (status == LB_OK && n && !s->written) status = search_passes(s, adds, n);
    if (status == LB_OK && !n) status = write_and_count(s);
    free(adds);
    return status;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static lb_status try_steps(shrinking *s)
{
    lb_err why = LB_ERR_INIT;
    lb_status status = lb_reproducer_write_steps(s->q, s->first_step, &why);
    if (lb_is_refusal(status)) return lb_fail(s->err, status, "%s", why.message);
    s->written = false;
    return status == LB_OK ? judge_candidate(s) : LB_OK;
}

static void add_note(lb_bisection *b, const char *text)
{
    size_t size = strlen(text) + (b->note ? strlen(b->note) : 0) + 3;
    char *note = malloc(size);
    if (!note) return;
    snprintf(note, size, "%s%s%s", b->note ? b->note : "", b->note ? "; " : "", text);
    free(b->note);
    b->note = note;
}

static uint64_t ops_of_window(const lb_bisect_session *q)
{
    uint64_t ops = 0;
    for (uint32_t s = 0; s < q->n_steps; s++)
        for (uint32_t r = 0; r < q->n_ranks; r++) {
            const lb_program *p = lb_trial_program(q, q->ranks[r], q->steps[s]);
            for (uint32_t i = 0; p && i < p->n_ops; i++)
                ops += !(p->ops[i].flags & LB_OP_VIEW) && strncmp(lb_op_name(p, &p->ops[i]), "lb::", 4);
        }
    return ops;
}

/* Puts the folder in place, if a candidate failed as it should; the draft is gone whatever the status. */
static lb_status report(shrinking *s, lb_output_folder *folder)
{
    lb_bisection *b = s->q->out;
    if (!s->written) {
        add_note(b, "no smaller capture fails in the same way by itself: the capture is its own reproducer");
        lb_output_folder_abandon(folder);
        return LB_OK;
    }
    LB_TRY(lb_output_folder_close(folder, s->err));
    b->reproducer = strdup(s->q->options->reproducer);
    b->window_ops = ops_of_window(s->q);
    LB_TRY(lb_reproducer_size(b->reproducer, &b->reproducer_ops, &b->reproducer_bytes, s->err));
    lb_trial_say(s->q, "reproducer %s: %" PRIu64 " of %" PRIu64 " ops, %.1f KB", b->reproducer, b->reproducer_ops,
                 b->window_ops, (double)b->reproducer_bytes / 1e3);
    return LB_OK;
}

lb_status lb_reduce_reproducer(lb_bisect_session *q, lb_err *err)
{
    shrinking s = {.q = q,
                   .culprit = &q->out->culprits[0],
                   .first_step = q->failure.step,
                   .err = err,
                   .begin = lb_clock_seconds()};
    for (uint32_t i = 0; i < q->out->n_culprits; i++)
        if (q->out->culprits[i].step < s.first_step) s.first_step = q->out->culprits[i].step;
    if (q->remedy.op != LB_NONE && q->remedy.step < s.first_step) s.first_step = q->remedy.step;
    lb_output_folder *folder;
    LB_TRY(lb_reproducer_open(q, &folder, err));
    q->draft = lb_output_folder_path(folder);
    lb_status status = lb_dependency_slice_init(&s.slice, q, s.first_step, err);
    if (status == LB_OK) status = try_slice(&s, 1, false);
    const uint32_t in_first = s.tries;
    if (status == LB_OK && !s.written && !late(&s)) status = try_slice(&s, 1, true);
    if (status == LB_OK && !s.written && q->out->n_culprits > 1 && !late(&s))
        status = try_slice(&s, q->out->n_culprits, false);
    s.loose = s.nearly && s.nearly_try <= in_first;
    s.tries = 0;
    if (status == LB_OK && !s.written && s.loose) status = try_slice(&s, 1, false);
    s.loose = false;
    if (status == LB_OK && !s.written) status = try_steps(&s);
    if (status == LB_OK && !s.written && q->out->origin.op != LB_NONE && q->out->origin.step < s.first_step) {
        s.first_step = q->out->origin.step;
        status = try_steps(&s);
    }
    if (status == LB_OK)
        status = report(&s, folder);
    else
        lb_output_folder_abandon(folder); /* half a reproducer is none */
    q->draft = NULL;
    lb_dependency_slice_release(&s.slice);
    return status;
}
