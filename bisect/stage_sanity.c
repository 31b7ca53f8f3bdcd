/* Stage 0, before anything is changed: see stages.h.
 *
 *   recording   does it show a failure at all (from its statistics)?
 *   A/A         does every op, from its recorded inputs, give its recorded result?
 *   chained     does the unchanged replay fail as the recording did? Its trace serves all later stages.
 *   unseen      did bytes change that no recorded op wrote, and does the failure go away without that?
 */
#include "stages.h"

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
    double ratio;
} suspicion;

static bool note_diverged(void *context, const lb_event *event)
{
    suspicion *s = context;
    if (event->verdict != LB_VERDICT_DIVERGED) return true;
    if (!s->count++ || event->step < s->step) {
        uint32_t count = s->count;
        *s = (suspicion){event->step, event->rank, event->op, count, event->bound_ratio};
    }
    return true;
}

static void plan_window(const lb_inquiry *q, lb_plan *plan)
{
    plan->first_step = q->steps[0], plan->last_step = q->steps[q->n_steps - 1];
    plan->threads = q->options->threads;
    plan->memory_bytes = q->options->memory_bytes;
}

static lb_status run_isolated(lb_inquiry *q, suspicion *s, lb_replay_summary *summary, lb_err *err)
{
    lb_plan plan = LB_PLAN_INIT;
    lb_observer observer = {.context = s, .op = note_diverged};
    plan_window(q, &plan);
    *s = (suspicion){.op = LB_NONE};
    return lb_replay_run(q->replay, &plan, &observer, summary, err);
}

/* ---- the unchanged replay ----------------------------------------------------------------------------------------- */

static bool watch_op(void *context, const lb_event *event)
{
    lb_inquiry *q = context;
    lb_trace_op(q->trace, event);
    return lb_monitor_op(q->monitor, event);
}

static void watch_step(void *context, int32_t rank, int64_t step)
{
    lb_inquiry *q = context;
    lb_monitor_step_end(q->monitor, rank, step);
}

static lb_status run_chained(lb_inquiry *q, lb_replay_summary *summary, lb_err *err)
{
    lb_plan plan = LB_PLAN_INIT;
    lb_observer observer = {.context = q, .op = watch_op, .step_end = watch_step};
    plan_window(q, &plan);
    plan.mode = LB_REPLAY_CHAINED;
    plan.compare = false;
    plan.force_decisions = true;
    lb_monitor_reset(q->monitor, q->mode, NULL);
    lb_monitor_collect(q->monitor, true);
    LB_TRY(lb_replay_run(q->replay, &plan, &observer, summary, err));
    q->failure = *lb_monitor_failure(q->monitor);
    return LB_OK;
}

/* ---- unseen writes -------------------------------------------------------------------------------------------------- */

/* What the run itself left in the storages that somebody wrote unseen. */
typedef struct kept {
    int32_t rank;
    int64_t storage;
    lb_value value; /* window of `bytes` */
    char *bytes;    /* row-major */
} kept;

typedef struct own_bytes {
    lb_inquiry *q;
    kept *rows;
    uint32_t n;
    int64_t first_step; /* of the first unseen write, and its reader */
    int32_t rank;
    uint32_t op;
} own_bytes;

static kept *find_kept(const own_bytes *o, int32_t rank, int64_t storage)
{
    for (uint32_t i = 0; i < o->n; i++)
        if (o->rows[i].rank == rank && o->rows[i].storage == storage) return &o->rows[i];
    return NULL;
}

static void keep(kept *k, const lb_tensor *tensor)
{
    size_t size = lb_dtype_bytes(tensor->dtype, (size_t)lb_layout_numel(&tensor->layout));
    char *bytes = realloc(k->bytes, size + 1);
    if (!bytes) return;
    k->bytes = bytes;
    k->value.dtype = tensor->dtype, k->value.layout = tensor->layout;
    if (lb_tensor_gather(tensor, bytes, NULL) != LB_OK) k->value.dtype = LB_NO_DTYPE;
}

static bool keep_own(void *context, const lb_event *event)
{
    own_bytes *o = context;
    for (uint32_t i = 0; i < event->n_results; i++) {
        if (event->values[i] == LB_NONE || event->values[i] >= event->program->n_values ||
            !event->computed[i].data)
            continue;
        kept *k = find_kept(o, event->rank, event->program->values[event->values[i]].storage);
        if (k) keep(k, &event->computed[i]);
    }
    return lb_monitor_op(o->q->monitor, event);
}

static void own_step(void *context, int32_t rank, int64_t step)
{
    own_bytes *o = context;
    lb_monitor_step_end(o->q->monitor, rank, step);
}

/* An unseen source gets what the run itself had there; any other source of such a storage is remembered. */
static bool give_own(void *context, int32_t rank, int64_t step, uint32_t value, lb_tensor *tensor)
{
    own_bytes *o = context;
    const lb_program *p = lb_inquiry_program(o->q, rank, step);
    kept *k = p ? find_kept(o, rank, p->values[value].storage) : NULL;
    if (!k) return false;
    if (p->values[value].source != LB_SOURCE_UNSEEN) {
        if (tensor->data) keep(k, tensor);
        return false;
    }
    if (!k->bytes || k->value.dtype != tensor->dtype ||
        !lb_layout_same_shape(&k->value.layout, &tensor->layout) || !lb_layout_is_contiguous(&tensor->layout))
        return false;
    tensor->data = k->bytes;
    return true;
}

static lb_status list_unseen(lb_inquiry *q, own_bytes *o, lb_err *err)
{
    *o = (own_bytes){.q = q, .op = LB_NONE};
    for (uint32_t s = 0; s < q->n_steps; s++)
        for (uint32_t r = 0; r < q->n_ranks; r++) {
            const lb_program *p = lb_inquiry_program(q, q->ranks[r], q->steps[s]);
            for (uint32_t i = 0; p && i < p->n_ops; i++) {
                if (strcmp(lb_op_name(p, &p->ops[i]), "lb::source")) continue;
                const lb_value *v = &p->values[lb_op_results(p, &p->ops[i])[0]];
                if (v->source != LB_SOURCE_UNSEEN) continue;
                if (o->op == LB_NONE) o->first_step = q->steps[s], o->rank = q->ranks[r], o->op = i;
                if (find_kept(o, q->ranks[r], v->storage)) continue;
                kept *more = realloc(o->rows, (o->n + 1) * sizeof *more);
                if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
                o->rows = more;
                o->rows[o->n++] = (kept){.rank = q->ranks[r], .storage = v->storage};
            }
        }
    return LB_OK;
}

/* Runs the window with what the program itself computed in place of every unseen write. */
static lb_status try_without_unseen(lb_inquiry *q, own_bytes *o, bool *cured, lb_err *err)
{
    lb_plan plan = LB_PLAN_INIT;
    lb_replay_summary summary = {0};
    lb_observer observer = {.context = o, .op = keep_own, .step_end = own_step, .source = give_own};
    plan_window(q, &plan);
    plan.mode = LB_REPLAY_CHAINED;
    plan.compare = false;
    plan.force_decisions = true;
    lb_monitor_reset(q->monitor, q->mode, NULL);
    LB_TRY(lb_replay_run(q->replay, &plan, &observer, &summary, err));
    *cured = lb_monitor_failure(q->monitor)->kind == LB_FAILURE_NONE && !summary.undecided;
    lb_say(q, "  %-52s %-11s", "without what was written unseen", *cured ? "cured" : "fails");
    return LB_OK;
}

static lb_status weigh_unseen(lb_inquiry *q, own_bytes *o, bool *found, lb_err *err)
{
    bool cured = false;
    lb_culprit *c;
    LB_TRY(try_without_unseen(q, o, &cured, err));
    if (!cured) return LB_OK;
    const lb_program *p = lb_inquiry_program(q, o->rank, o->first_step);
    const lb_value *v = &p->values[lb_op_results(p, &p->ops[o->op])[0]];
    LB_TRY(lb_culprit_add(q, LB_AXIS_SOURCE, o->rank, o->first_step, o->op, &c, err));
    snprintf(c->why, sizeof c->why,
             "The bytes of %s changed and no recorded op wrote them. With what the program itself had left "
             "there the window ends "
             "without the failure.",
             v->name != LB_NONE ? lb_program_text(p, v->name) : "a tensor");
    q->out->cure = strdup("what the program itself computed, in place of what was written unseen");
    *found = true;
    return LB_OK;
}

/* ---- the stage ------------------------------------------------------------------------------------------------------ */

static lb_status found_by_replay(lb_inquiry *q, const lb_failure *recorded, const suspicion *s, lb_err *err)
{
    lb_culprit *c;
    if (!s->count) {
        q->out->outcome = LB_BISECT_NOT_REPRODUCED;
        lb_stage_end(q, "undecided", "the recording fails in step %" PRId64 " (%s), its replay does not",
                     recorded->step, recorded->what);
        return LB_OK;
    }
    LB_TRY(lb_culprit_add(q, LB_AXIS_KERNEL, s->rank, s->step, s->op, &c, err));
    snprintf(c->why, sizeof c->why,
             "Its recorded result is not what its recorded inputs give (error %.3g times its bound), and the "
             "replay, which computes "
             "it anew, does not fail.",
             s->ratio);
    q->failure = *recorded;
    q->out->failure = *recorded;
    q->out->cure = strdup("computing the op again");
    lb_stage_end(q, "found", "%u ops whose recorded results are not what their inputs give", s->count);
    return LB_OK;
}

/* The first failure in the recording: not finite before gross. */
static lb_status recorded_failure(lb_inquiry *q, lb_failure *failure, lb_err *err)
{
    q->mode = q->options->predicate ? LB_MONITOR_PREDICATE : LB_MONITOR_NONFINITE;
    LB_TRY(lb_monitor_recording(q->monitor, q->mode, err));
    if (lb_monitor_failure(q->monitor)->kind == LB_FAILURE_NONE && q->mode == LB_MONITOR_NONFINITE) {
        LB_TRY(lb_monitor_recording(q->monitor, LB_MONITOR_GROSS, err));
        if (lb_monitor_failure(q->monitor)->kind != LB_FAILURE_NONE) q->mode = LB_MONITOR_GROSS;
    }
    *failure = *lb_monitor_failure(q->monitor);
    if (*lb_monitor_warning(q->monitor)) q->out->note = strdup(lb_monitor_warning(q->monitor));
    return LB_OK;
}

static lb_status judge_sanity(lb_inquiry *q, const lb_failure *recorded, const suspicion *aa,
                              const lb_replay_summary *isolated, bool *found, lb_err *err)
{
    own_bytes unseen = {0};
    lb_status status = LB_OK;
    if (q->failure.kind == LB_FAILURE_NONE) {
        *found = true;
        if (recorded->kind != LB_FAILURE_NONE) return found_by_replay(q, recorded, aa, err);
        q->out->outcome = aa->count ? LB_BISECT_UNDECIDED : LB_BISECT_CLEAN;
        lb_stage_end(q, "clean",
                     "%" PRIu64 " of %" PRIu64 " ops bit-equal, no failure in the recording or its replay",
                     isolated->bitwise, isolated->compared);
        return LB_OK;
    }
    q->out->failure = q->failure;
    status = list_unseen(q, &unseen, err);
    if (status == LB_OK && unseen.n) status = weigh_unseen(q, &unseen, found, err);
    if (status == LB_OK)
        lb_stage_end(q, *found ? "found" : "clean",
                     "%" PRIu64 " of %" PRIu64 " ops bit-equal, %u outside their bound, %" PRIu64
                     " opaque, %u unseen %s; fails when replayed",
                     isolated->bitwise, isolated->compared, aa->count, isolated->opaque, unseen.n,
                     unseen.n == 1 ? "write" : "writes");
    for (uint32_t i = 0; i < unseen.n; i++) free(unseen.rows[i].bytes);
    free(unseen.rows);
    return status;
}

lb_status lb_stage_sanity(lb_inquiry *q, bool *found, lb_err *err)
{
    lb_failure recorded;
    suspicion aa;
    lb_replay_summary isolated = {0}, chained = {0};
    LB_TRY(lb_stage_begin(q, "sanity", err));
    LB_TRY(recorded_failure(q, &recorded, err));
    if (recorded.kind != LB_FAILURE_NONE)
        lb_say(q, "recorded  step %" PRId64 " rank %d %s: %s", recorded.step, recorded.rank, recorded.layer,
               recorded.what);
    LB_TRY(run_isolated(q, &aa, &isolated, err));
    LB_TRY(run_chained(q, &chained, err));
    if (chained.undecided && q->failure.kind == LB_FAILURE_NONE) {
        *found = true;
        q->out->outcome = LB_BISECT_UNDECIDED;
        lb_stage_end(q, "undecided", "%s", chained.undecided_at);
        return LB_OK;
    }
    return judge_sanity(q, &recorded, &aa, &isolated, found, err);
}
