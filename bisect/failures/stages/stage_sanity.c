/* Stage 0, before anything is changed: see stages.h.
 *
 *   recording   does it show a failure at all (from its statistics)?
 *   A/A         does every op, from its recorded inputs, give its recorded result?
 *   chained     does the unchanged replay fail as the recording did? Its trace serves all later stages.
 *   unseen      did bytes change that no recorded op wrote, and does the failure go away without that?
 */
#include "stages/stages.h"

#include "trials/basis.h"
#include "program/selector.h"
#include "stages/stand_ins.h"
#include "trials/window.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- A/A -------------------------------------------------------------------------------------------------------- */

typedef struct suspicion {
    int64_t step;
    int32_t rank;
    uint32_t op, count;
    uint32_t unjudged; /* ops whose inputs or results have no bytes */
    double ratio;
} suspicion;

static bool note_diverged(void *context, const lb_event *event)
{
    suspicion *s = context;
    s->unjudged += event->verdict == LB_VERDICT_MISSING;
    if (event->verdict != LB_VERDICT_DIVERGED) return true;
    if (!s->count++ || event->step < s->step)
        s->step = event->step, s->rank = event->rank, s->op = event->op, s->ratio = event->bound_ratio;
    return true;
}

static lb_status run_isolated(lb_bisect_session *q, suspicion *s, lb_replay_summary *summary, lb_err *err)
{
    lb_plan plan = LB_PLAN_INIT;
    lb_observer observer = {.context = s, .op = note_diverged};
    plan.first_step = q->steps[0], plan.last_step = q->steps[q->n_steps - 1];
    plan.threads = q->options->threads;
    plan.memory_bytes = q->options->memory_bytes;
    *s = (suspicion){.op = LB_NONE};
    return lb_replay_run(q->replay, &plan, &observer, summary, err);
}

/* ---- the stage --------------------------------------------------------------------------------------------------- */

/* The replay had not all it needed: what is missing, and how to record it. */
static void lacks_bytes(lb_bisect_session *q, const lb_failure *recorded, const lb_window_lacking *lack)
{
    q->out->outcome = LB_BISECT_UNDECIDED;
    q->out->again = lb_window_record_again(q, recorded->step);
    lb_trial_stage_end(q, "undecided", "%u sources and %u results of unknown ops have no bytes, first %s",
                       lack->sources, lack->opaque, lack->first);
}

static lb_status only_recorded(lb_bisect_session *q, const lb_failure *recorded, const suspicion *s, lb_err *err)
{
    lb_culprit *c;
    lb_window_lacking lack = lb_window_lack(q);
    q->failure = *recorded;
    q->out->failure = *recorded;
    if (lack.sources || lack.opaque) {
        lacks_bytes(q, recorded, &lack);
        return LB_OK;
    }
    if (!s->count) {
        q->out->outcome = LB_BISECT_NOT_REPRODUCED;
        lb_trial_stage_end(q, "undecided",
                           "every op gives what was recorded within its bound, and yet the failure is not there");
        return LB_OK;
    }
    LB_TRY(lb_stage_culprit_add(q, LB_AXIS_KERNEL, s->rank, s->step, s->op, &c, err));
    char ratio[48] = ""; /* integers, and what is not finite, have none */
    if (s->ratio == s->ratio) snprintf(ratio, sizeof ratio, " (error %.3g times its bound)", s->ratio);
    snprintf(c->why, sizeof c->why,
             "Its recorded result is not what its recorded inputs give%s, and the replay, which computes it anew, does "
             "not fail.",
             ratio);
    lb_trial_stage_end(q, "found", "%u %s not what the inputs give", s->count,
                       s->count == 1 ? "op's recorded result is" : "ops' recorded results are");
    return LB_OK;
}

/* The replay fails and the recording doesn't: it cannot speak for this window. */
static void only_replayed(lb_bisect_session *q, const suspicion *s)
{
    const lb_program *p = s->count ? lb_trial_program(q, s->rank, s->step) : NULL;
    q->out->outcome = LB_BISECT_UNDECIDED;
    q->out->failure = q->failure;
    if (p)
        lb_trial_stage_end(q, "undecided",
                           "the replay fails and the recording does not: %s in %s of step %" PRId64
                           " is not replayed as it ran",
                           lb_op_name(p, &p->ops[s->op]), lb_op_layer(p, &p->ops[s->op]), s->step);
    else
        lb_trial_stage_end(q, "undecided", "the replay fails and the recording does not");
}

/* The first failure in the recording: not finite before gross. */
static lb_status recorded_failure(lb_bisect_session *q, lb_failure *failure, lb_err *err)
{
    q->mode = q->options->predicate ? LB_MONITOR_PREDICATE : LB_MONITOR_NONFINITE;
    LB_TRY(lb_failure_monitor_recording(q->monitor, q->mode, err));
    if (*lb_failure_monitor_warning(q->monitor)) q->out->note = strdup(lb_failure_monitor_warning(q->monitor));
    if (lb_failure_monitor_failure(q->monitor)->kind == LB_FAILURE_NONE && q->mode == LB_MONITOR_NONFINITE) {
        LB_TRY(lb_failure_monitor_recording(q->monitor, LB_MONITOR_GROSS, err));
        q->mode =
            lb_failure_monitor_failure(q->monitor)->kind != LB_FAILURE_NONE ? LB_MONITOR_GROSS : LB_MONITOR_NONFINITE;
    }
    *failure = *lb_failure_monitor_failure(q->monitor);
    q->unrecorded = lb_failure_monitor_blind(q->monitor, INT64_MAX);
    q->judged = lb_failure_monitor_judged(q->monitor);
    return LB_OK;
}

/* Neither the recording nor its replay fails: was enough of them seen to say so? */
static bool judged_enough(lb_bisect_session *q, const suspicion *aa, const lb_replay_summary *isolated)
{
    const bool nothing = !isolated->compared, unseen = q->blind && q->unrecorded;
    if (!nothing && !unseen && (q->judged || !q->options->predicate)) return true;
    const lb_window_lacking lack = lb_window_lack(q);
    q->out->outcome = LB_BISECT_UNDECIDED;
    if (!nothing && !unseen)
        lb_basis_lacks(q,
                       "the predicate was asked of nothing: no op of this window is selected by it, or gives floats");
    else if (nothing && !lack.sources && !lack.opaque)
        lb_basis_lacks(q, "no op of this window computes anything that could be compared");
    else {
        q->out->again = lb_window_record_again(q, q->steps[q->n_steps - 1]);
        lb_basis_lacks(q, "%s: the bytes of %u sources%s were not kept, first %s%s",
                       nothing ? "no op could be run again" : "what a failure would show in could not be computed",
                       lack.sources, lack.opaque ? " and of results of unknown ops" : "", lack.first,
                       q->unrecorded ? "" : "; the recorded statistics show no failure");
    }
    lb_trial_stage_end(q, "undecided", "%" PRIu64 " of %" PRIu64 " ops bit-equal, %u could not be judged",
                       isolated->bitwise, isolated->compared, aa->unjudged);
    return false;
}

static lb_status judge_sanity(lb_bisect_session *q, const lb_failure *recorded, const suspicion *aa,
                              const lb_replay_summary *isolated, bool *found, lb_err *err)
{
    uint32_t unseen = 0;
    bool replayed = q->failure.kind != LB_FAILURE_NONE, in_recording = recorded->kind != LB_FAILURE_NONE;
    *found = true;
    if (in_recording && !replayed) return only_recorded(q, recorded, aa, err);
    if (replayed && !in_recording) {
        only_replayed(q, aa);
        return LB_OK;
    }
    if (!replayed && !judged_enough(q, aa, isolated)) return LB_OK;
    if (!replayed) {
        char besides[60] = "", opaque[60] = "";
        bool hidden = false;
        if (!q->options->predicate) LB_TRY(lb_stage_hidden(q, &hidden, err));
        if (!q->options->predicate && !hidden) LB_TRY(lb_stage_disagree(q, &hidden, err));
        if (hidden) {
            lb_trial_stage_end(q, "found", "no failure in the recording or its replay, but %s", q->out->failure.what);
            return LB_OK;
        }
        if (aa->unjudged) snprintf(besides, sizeof besides, "%u could not be judged, ", aa->unjudged);
        if (isolated->opaque) snprintf(opaque, sizeof opaque, ", %" PRIu64 " opaque", isolated->opaque);
        q->out->outcome = aa->count ? LB_BISECT_UNDECIDED : LB_BISECT_CLEAN;
        q->out->compared = isolated->compared, q->out->unjudged = aa->unjudged, q->out->opaque = isolated->opaque;
        lb_trial_stage_end(q, aa->count ? "undecided" : "clean",
                           "%" PRIu64 " of %" PRIu64
                           " ops bit-equal, %s%u outside their bound%s; no failure in the recording or its replay",
                           isolated->bitwise, isolated->compared, besides, aa->count, opaque);
        return LB_OK;
    }
    q->out->failure = q->failure;
    *found = false;
    LB_TRY(lb_stage_unseen(q, &unseen, found, err));
    lb_trial_stage_end(q, *found ? "found" : "clean",
                       "%" PRIu64 " of %" PRIu64 " ops bit-equal, %u outside their bound, %" PRIu64
                       " opaque, %u unseen %s; fails when replayed",
                       isolated->bitwise, isolated->compared, aa->count, isolated->opaque, unseen,
                       unseen == 1 ? "write" : "writes");
    return LB_OK;
}

lb_status lb_stage_sanity(lb_bisect_session *q, bool *found, lb_err *err)
{
    lb_failure recorded;
    suspicion aa;
    lb_replay_summary isolated = {0}, chained = {0};
    LB_TRY(lb_trial_stage_begin(q, "sanity", err));
    LB_TRY(recorded_failure(q, &recorded, err));
    if (recorded.kind != LB_FAILURE_NONE)
        lb_trial_say(q, "recorded   step %" PRId64 " rank %d%s%s: %s", recorded.step, recorded.rank,
                     *recorded.layer ? " " : "", recorded.layer, recorded.what);
    LB_TRY(run_isolated(q, &aa, &isolated, err));
    LB_TRY(lb_rerun_retrace(q, &chained, err));
    if (chained.undecided && q->failure.kind == LB_FAILURE_NONE) {
        *found = true;
        q->out->outcome = LB_BISECT_UNDECIDED;
        q->out->failure = recorded;
        lb_trial_stage_end(q, "undecided", "%s", chained.undecided_at);
        return LB_OK;
    }
    return judge_sanity(q, &recorded, &aa, &isolated, found, err);
}

/* ---- one look ---------------------------------------------------------------------------------------------------- */

/* The changes given become the background; a rank that they leave out is not judged. */
static lb_status take_changes(lb_bisect_session *q, lb_err *err)
{
    lb_sites_name(&q->background, "the changes given");
    for (uint32_t i = 0; i < q->options->n_changes; i++) {
        const lb_swap *swap = &q->options->changes[i];
        lb_site_form form = {swap->kind, swap->argument, "", "", 0};
        lb_selector *selector;
        LB_TRY(lb_sites_add(&q->background, &form, swap->selector, err));
        if (swap->kind != LB_SWAP_RANK || strcmp(swap->argument, "exclude")) continue;
        LB_TRY(lb_selector_new(swap->selector, &selector, err));
        for (uint32_t r = 0; r < q->n_ranks; r++) {
            const lb_program *p = lb_trial_program(q, q->ranks[r], q->steps[q->n_steps - 1]);
            q->left_out[r] |= p && lb_selector_scope(selector, p, 0, NULL);
        }
        lb_selector_free(selector);
    }
    return LB_OK;
}

lb_status lb_stage_check(lb_bisect_session *q, lb_err *err)
{
    lb_failure recorded;
    lb_replay_summary chained = {0};
    char hidden[400];
    q->out->checked = true;
    LB_TRY(lb_trial_stage_begin(q, "check", err));
    LB_TRY(recorded_failure(q, &recorded, err));
    LB_TRY(take_changes(q, err));
    LB_TRY(lb_rerun_retrace(q, &chained, err));
    q->out->failure = q->failure;
    lb_window_lacking lack =
        q->failure.kind == LB_FAILURE_NONE && q->blind ? lb_window_lack(q) : (lb_window_lacking){0};
    if (q->failure.kind != LB_FAILURE_NONE) {
        q->out->outcome = LB_BISECT_FOUND;
        lb_trial_stage_end(q, "fails", "%s", q->failure.what);
    } else if (chained.undecided || lack.sources || lack.opaque) {
        q->out->outcome = LB_BISECT_UNDECIDED;
        lb_trial_stage_end(q, "undecided", "%s%s", chained.undecided ? chained.undecided_at : "bytes lack, first ",
                           chained.undecided ? "" : lack.first);
    } else if (lb_stand_in_behind_changes(q, hidden, sizeof hidden)) {
        q->out->outcome = LB_BISECT_UNDECIDED;
        lb_basis_lacks(q, "%s", hidden);
        lb_trial_stage_end(q, "undecided", "%s", hidden);
    } else {
        q->out->outcome = LB_BISECT_CLEAN;
        lb_trial_stage_end(q, "clean", "%" PRIu64 " ops replayed", chained.ops);
    }
    return LB_OK;
}
