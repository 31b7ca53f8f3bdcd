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
    suspicion *suspicion = context;
    suspicion->unjudged += event->verdict == LB_VERDICT_MISSING;
    if (event->verdict != LB_VERDICT_DIVERGED) return true;
    if (!suspicion->count++ || event->step < suspicion->step)
        suspicion->step = event->step, suspicion->rank = event->rank, suspicion->op = event->op,
        suspicion->ratio = event->bound_ratio;
    return true;
}

static lb_status run_isolated(lb_bisect_session *session, suspicion *s, lb_replay_summary *summary, lb_err *err)
{
    lb_plan plan = LB_PLAN_INIT;
    lb_observer observer = {.context = s, .op = note_diverged};
    plan.first_step = session->steps[0], plan.last_step = session->steps[session->n_steps - 1];
    plan.threads = session->options->threads;
    plan.memory_bytes = session->options->memory_bytes;
    *s = (suspicion){.op = LB_NONE};
    return lb_replay_run(session->replay, &plan, &observer, summary, err);
}

/* ---- the stage --------------------------------------------------------------------------------------------------- */

/* The replay had not all it needed: what is missing, and how to record it. */
static void lacks_bytes(lb_bisect_session *session, const lb_failure *recorded, const lb_window_lacking *lack)
{
    session->out->outcome = LB_BISECT_UNDECIDED;
    session->out->again = lb_window_record_again(session, recorded->step);
    lb_trial_stage_end(session, "undecided", "%u sources and %u results of unknown ops have no bytes, first %s",
                       lack->sources, lack->opaque, lack->first);
}

static lb_status only_recorded(lb_bisect_session *session, const lb_failure *recorded, const suspicion *suspicion,
                               lb_err *err)
{
    lb_culprit *culprit;
    lb_window_lacking lack = lb_window_lack(session);
    session->failure = *recorded;
    session->out->failure = *recorded;
    if (lack.sources || lack.opaque) {
        lacks_bytes(session, recorded, &lack);
        return LB_OK;
    }
    if (!suspicion->count) {
        session->out->outcome = LB_BISECT_NOT_REPRODUCED;
        lb_trial_stage_end(session, "undecided",
                           "every op gives what was recorded within its bound, and yet the failure is not there");
        return LB_OK;
    }
    LB_TRY(lb_stage_culprit_add(session, LB_AXIS_KERNEL,
                                (lb_stage_place){suspicion->rank, suspicion->step, suspicion->op}, &culprit, err));
    char ratio[48] = ""; /* integers, and what is not finite, have none */
    if (suspicion->ratio == suspicion->ratio)
        snprintf(ratio, sizeof ratio, " (error %.3g times its bound)", suspicion->ratio);
    snprintf(culprit->why, sizeof culprit->why,
             "Its recorded result is not what its recorded inputs give%s, and the replay, which computes it anew, "
             "does not fail.",
             ratio);
    lb_trial_stage_end(session, "found", "%u %s not what the inputs give", suspicion->count,
                       suspicion->count == 1 ? "op's recorded result is" : "ops' recorded results are");
    return LB_OK;
}

/* The replay fails and the recording doesn't: it cannot speak for this window. */
static void only_replayed(lb_bisect_session *session, const suspicion *suspicion)
{
    const lb_program *program = suspicion->count ? lb_trial_program(session, suspicion->rank, suspicion->step) : NULL;
    session->out->outcome = LB_BISECT_UNDECIDED;
    session->out->failure = session->failure;
    if (program)
        lb_trial_stage_end(session, "undecided",
                           "the replay fails and the recording does not: %s in %s of step %" PRId64
                           " is not replayed as it ran",
                           lb_op_name(program, &program->ops[suspicion->op]),
                           lb_op_layer(program, &program->ops[suspicion->op]), suspicion->step);
    else
        lb_trial_stage_end(session, "undecided", "the replay fails and the recording does not");
}

/* The first failure in the recording: not finite before gross. */
static lb_status recorded_failure(lb_bisect_session *session, lb_failure *failure, lb_err *err)
{
    session->mode = session->options->predicate ? LB_MONITOR_PREDICATE : LB_MONITOR_NONFINITE;
    LB_TRY(lb_failure_monitor_recording(session->monitor, session->mode, err));
    if (*lb_failure_monitor_warning(session->monitor))
        session->out->note = strdup(lb_failure_monitor_warning(session->monitor));
    if (lb_failure_monitor_failure(session->monitor)->kind == LB_FAILURE_NONE &&
        session->mode == LB_MONITOR_NONFINITE) {
        LB_TRY(lb_failure_monitor_recording(session->monitor, LB_MONITOR_GROSS, err));
        session->mode = lb_failure_monitor_failure(session->monitor)->kind != LB_FAILURE_NONE ? LB_MONITOR_GROSS
                                                                                              : LB_MONITOR_NONFINITE;
    }
    *failure = *lb_failure_monitor_failure(session->monitor);
    session->unrecorded = lb_failure_monitor_blind(session->monitor, INT64_MAX);
    session->judged = lb_failure_monitor_judged(session->monitor);
    return LB_OK;
}

/* Neither the recording nor its replay fails: was enough of them seen to say so? */
static bool judged_enough(lb_bisect_session *session, const suspicion *aa, const lb_replay_summary *isolated)
{
    const bool nothing = !isolated->compared, unseen = session->blind && session->unrecorded;
    if (!nothing && !unseen && (session->judged || !session->options->predicate)) return true;
    const lb_window_lacking lack = lb_window_lack(session);
    session->out->outcome = LB_BISECT_UNDECIDED;
    if (!nothing && !unseen)
        lb_basis_lacks(session,
                       "the predicate was asked of nothing: no op of this window is selected by it, or gives floats");
    else if (nothing && !lack.sources && !lack.opaque)
        lb_basis_lacks(session, "no op of this window computes anything that could be compared");
    else {
        session->out->again = lb_window_record_again(session, session->steps[session->n_steps - 1]);
        lb_basis_lacks(session, "%s: the bytes of %u sources%s were not kept, first %s%s",
                       nothing ? "no op could be run again" : "what a failure would show in could not be computed",
                       lack.sources, lack.opaque ? " and of results of unknown ops" : "", lack.first,
                       session->unrecorded ? "" : "; the recorded statistics show no failure");
    }
    lb_trial_stage_end(session, "undecided", "%" PRIu64 " of %" PRIu64 " ops bit-equal, %u could not be judged",
                       isolated->bitwise, isolated->compared, aa->unjudged);
    return false;
}

static lb_status judge_sanity(lb_bisect_session *session, const lb_failure *recorded, const suspicion *aa,
                              const lb_replay_summary *isolated, bool *found, lb_err *err)
{
    uint32_t unseen = 0;
    bool replayed = session->failure.kind != LB_FAILURE_NONE, in_recording = recorded->kind != LB_FAILURE_NONE;
    *found = true;
    if (in_recording && !replayed) return only_recorded(session, recorded, aa, err);
    if (replayed && !in_recording) {
        only_replayed(session, aa);
        return LB_OK;
    }
    if (!replayed && !judged_enough(session, aa, isolated)) return LB_OK;
    if (!replayed) {
        char besides[60] = "", opaque[60] = "";
        bool hidden = false;
        if (!session->options->predicate) LB_TRY(lb_stage_hidden(session, &hidden, err));
        if (!session->options->predicate && !hidden) LB_TRY(lb_stage_disagree(session, &hidden, err));
        if (hidden) {
            lb_trial_stage_end(session, "found", "no failure in the recording or its replay, but %s",
                               session->out->failure.what);
            return LB_OK;
        }
        if (aa->unjudged) snprintf(besides, sizeof besides, "%u could not be judged, ", aa->unjudged);
        if (isolated->opaque) snprintf(opaque, sizeof opaque, ", %" PRIu64 " opaque", isolated->opaque);
        session->out->outcome = aa->count ? LB_BISECT_UNDECIDED : LB_BISECT_CLEAN;
        session->out->compared = isolated->compared, session->out->unjudged = aa->unjudged,
        session->out->opaque = isolated->opaque;
        lb_trial_stage_end(session, aa->count ? "undecided" : "clean",
                           "%" PRIu64 " of %" PRIu64
                           " ops bit-equal, %s%u outside their bound%s; no failure in the recording or its replay",
                           isolated->bitwise, isolated->compared, besides, aa->count, opaque);
        return LB_OK;
    }
    session->out->failure = session->failure;
    *found = false;
    LB_TRY(lb_stage_unseen(session, &unseen, found, err));
    lb_trial_stage_end(session, *found ? "found" : "clean",
                       "%" PRIu64 " of %" PRIu64 " ops bit-equal, %u outside their bound, %" PRIu64
                       " opaque, %u unseen %s; fails when replayed",
                       isolated->bitwise, isolated->compared, aa->count, isolated->opaque, unseen,
                       unseen == 1 ? "write" : "writes");
    return LB_OK;
}

lb_status lb_stage_sanity(lb_bisect_session *session, bool *found, lb_err *err)
{
    lb_failure recorded;
    suspicion aa;
    lb_replay_summary isolated = {0}, chained = {0};
    LB_TRY(lb_trial_stage_begin(session, "sanity", err));
    LB_TRY(recorded_failure(session, &recorded, err));
    if (recorded.kind != LB_FAILURE_NONE)
        lb_trial_say(session, "recorded   step %" PRId64 " rank %d%s%s: %s", recorded.step, recorded.rank,
                     *recorded.layer ? " " : "", recorded.layer, recorded.what);
    LB_TRY(run_isolated(session, &aa, &isolated, err));
    LB_TRY(lb_rerun_retrace(session, &chained, err));
    if (chained.undecided && session->failure.kind == LB_FAILURE_NONE) {
        *found = true;
        session->out->outcome = LB_BISECT_UNDECIDED;
        session->out->failure = recorded;
        lb_trial_stage_end(session, "undecided", "%s", chained.undecided_at);
        return LB_OK;
    }
    return judge_sanity(session, &recorded, &aa, &isolated, found, err);
}

/* ---- one look ---------------------------------------------------------------------------------------------------- */

/* The changes given become the background; a rank that they leave out is not judged. */
static lb_status take_changes(lb_bisect_session *session, lb_err *err)
{
    lb_sites_name(&session->background, "the changes given");
    for (uint32_t i = 0; i < session->options->n_changes; i++) {
        const lb_swap *swap = &session->options->changes[i];
        lb_site_form form = {swap->kind, swap->argument, "", "", 0};
        lb_selector *selector;
        LB_TRY(lb_sites_add(&session->background, &form, swap->selector, err));
        if (swap->kind != LB_SWAP_RANK || strcmp(swap->argument, "exclude")) continue;
        LB_TRY(lb_selector_new(swap->selector, &selector, err));
        lb_status status = LB_OK;
        for (uint32_t r = 0; r < session->n_ranks && status == LB_OK; r++) {
            const lb_program *program =
                lb_trial_program(session, session->ranks[r], session->steps[session->n_steps - 1]);
            bool selected = false;
            if (program) status = lb_selector_scope(selector, program, 0, NULL, &selected, err);
            session->left_out[r] |= selected;
        }
        lb_selector_free(selector);
        LB_TRY(status);
    }
    return LB_OK;
}

lb_status lb_stage_check(lb_bisect_session *session, lb_err *err)
{
    lb_failure recorded;
    lb_replay_summary chained = {0};
    char hidden[400];
    session->out->checked = true;
    LB_TRY(lb_trial_stage_begin(session, "check", err));
    LB_TRY(recorded_failure(session, &recorded, err));
    LB_TRY(take_changes(session, err));
    LB_TRY(lb_rerun_retrace(session, &chained, err));
    session->out->failure = session->failure;
    lb_window_lacking lack =
        session->failure.kind == LB_FAILURE_NONE && session->blind ? lb_window_lack(session) : (lb_window_lacking){0};
    if (session->failure.kind != LB_FAILURE_NONE) {
        session->out->outcome = LB_BISECT_FOUND;
        lb_trial_stage_end(session, "fails", "%s", session->failure.what);
    } else if (chained.undecided || lack.sources || lack.opaque) {
        session->out->outcome = LB_BISECT_UNDECIDED;
        lb_trial_stage_end(session, "undecided", "%s%s",
                           chained.undecided ? chained.undecided_at : "bytes lack, first ",
                           chained.undecided ? "" : lack.first);
    } else if (lb_stand_in_behind_changes(session, hidden, sizeof hidden)) {
        session->out->outcome = LB_BISECT_UNDECIDED;
        lb_basis_lacks(session, "%s", hidden);
        lb_trial_stage_end(session, "undecided", "%s", hidden);
    } else {
        session->out->outcome = LB_BISECT_CLEAN;
        lb_trial_stage_end(session, "clean", "%" PRIu64 " ops replayed", chained.ops);
    }
    return LB_OK;
}
