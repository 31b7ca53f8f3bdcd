/* Sources as the cause: bytes that no recorded op wrote, and data that the program cannot digest. See stages.h.
 *
 *   unseen writes   part of stage 0: undone, one set after another, the chain going on with what the program itself
 *                   computed
 *   other sources   last of all: those of the failing step take what the same source held in the step before, and 0
 *                   stands for what is not finite in them
 */
#include "stages/stages.h"

#include "program/source_twin.h"

#include "base/array.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct source_row {
    int32_t rank;
    int64_t step;
    uint32_t op;
} source_row;

typedef struct source_list {
    source_row *rows; /* site k is rows[k] */
    lb_sites sites;
} source_list;

static const lb_value *value_of(const lb_program *program, uint32_t op)
{
    return &program->values[lb_op_results(program, &program->ops[op])[0]];
}

static lb_status add_source(source_list *list, int32_t rank, int64_t step, uint32_t op, const char *argument,
                            lb_err *err)
{
    char before[80], body[16];
    source_row *more = lb_array_grow(list->rows, list->sites.n, sizeof *more);
    if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    list->rows = more;
    list->rows[list->sites.n] = (source_row){rank, step, op};
    snprintf(before, sizeof before, "step=%" PRId64 "&rank=%d&index=", step, rank);
    snprintf(body, sizeof body, "%u", op);
    lb_site_form form = {LB_SWAP_SOURCE, argument, before, "", ','};
    return lb_sites_add(&list->sites, &form, body, err);
}

static void release(source_list *list)
{
    lb_sites_release(&list->sites);
    free(list->rows);
}

static const char *kind_name(const lb_program *program, const lb_value *value)
{
    if (value->name != LB_NONE && *lb_program_text(program, value->name)) return lb_program_text(program, value->name);
    switch ((lb_source_kind)value->source) {
    case LB_SOURCE_BATCH: return "a tensor of the batch";
    case LB_SOURCE_STATE: return "optimizer state";
    case LB_SOURCE_PARAMETER: return "a parameter";
    default: return "a tensor from outside";
    }
}

static bool writes(const lb_program *program, uint32_t op, int64_t storage)
{
    const lb_op *o = &program->ops[op];
    for (uint32_t r = 0; r < o->results + o->written && !(o->flags & LB_OP_VIEW); r++) {
        uint32_t v = lb_op_outcome(program, o, r);
        if (v != LB_NONE && program->values[v].storage == storage) return true;
    }
    return false;
}

/* The last op of the window before that source which left something in its storage. */
static lb_remedy last_write(const lb_bisect_session *session, const source_row *row)
{
    int64_t storage = value_of(lb_trial_program(session, row->rank, row->step), row->op)->storage;
    for (uint32_t s = session->n_steps; s-- > 0;) {
        const lb_program *program = lb_trial_program(session, row->rank, session->steps[s]);
        if (!program || session->steps[s] > row->step) continue;
        for (uint32_t i = session->steps[s] == row->step ? row->op : program->n_ops; i-- > 0;)
            if (writes(program, i, storage)) return (lb_remedy){row->rank, session->steps[s], storage, i};
    }
    return (lb_remedy){.op = LB_NONE};
}

/* Which of the sources must be other than they are; *found when changing them cures. */
static lb_status narrow_sources(lb_bisect_session *session, const source_list *list, uint32_t **guilty, uint32_t *n,
                                bool *found, lb_err *err)
{
    LB_TRY(lb_trial_narrow(session, &list->sites, false, guilty, n, err));
    *found = *n > 0;
    return *found ? lb_stage_cure_set(session, &list->sites, *guilty, *n, err) : LB_OK;
}

/* ---- unseen writes ----------------------------------------------------------------------------------------------- */

static lb_status list_unseen(lb_bisect_session *session, source_list *list, lb_err *err)
{
    for (uint32_t s = 0; s < lb_stage_steps_until_failure(session); s++)
        for (uint32_t r = 0; r < session->n_ranks; r++) {
            const lb_program *program = lb_trial_program(session, session->ranks[r], session->steps[s]);
            for (uint32_t i = 0; program && i < program->n_ops; i++)
                if (lb_op_is_source(program, &program->ops[i]) && value_of(program, i)->source == LB_SOURCE_UNSEEN)
                    LB_TRY(add_source(list, session->ranks[r], session->steps[s], i, "own", err));
        }
    lb_sites_name(&list->sites, "unseen writes undone");
    return LB_OK;
}

lb_status lb_stage_unseen(lb_bisect_session *session, uint32_t *count, bool *found, lb_err *err)
{
    source_list list = {0};
    uint32_t *guilty = NULL, n = 0;
    lb_culprit *culprit;
    lb_status status = list_unseen(session, &list, err);
    *count = list.sites.n;
    if (status == LB_OK && list.sites.n) status = narrow_sources(session, &list, &guilty, &n, found, err);
    for (uint32_t i = 0; i < n && status == LB_OK; i++) {
        const source_row *row = &list.rows[guilty[i]];
        const lb_program *program = lb_trial_program(session, row->rank, row->step);
        status = lb_stage_culprit_add(session, LB_AXIS_SOURCE, (lb_stage_place){row->rank, row->step, row->op},
                                      &culprit, err);
        if (status != LB_OK) break;
        snprintf(culprit->why, sizeof culprit->why,
                 "The bytes of %s changed and no recorded op wrote them. With what the program itself had left there, "
                 "and nothing else changed, the window ends without the failure.",
                 *culprit->parameter ? culprit->parameter : kind_name(program, value_of(program, row->op)));
        if (!i) session->remedy = last_write(session, row);
    }
    release(&list);
    free(guilty);
    return status;
}

/* ---- data -------------------------------------------------------------------------------------------------------- */

static lb_statistics statistics_of(const lb_bisect_session *session, const lb_program *program, const lb_value *value)
{
    lb_tensor tensor;
    if (value->statistics != LB_NONE) return program->statistics[value->statistics];
    if (lb_capture_value(session->capture, program, (uint32_t)(value - program->values), &tensor, NULL) == LB_OK)
        return lb_statistics_of(&tensor);
    return (lb_statistics){0};
}

/* What comes from outside, not from the step before or from a random generator. */
static bool from_outside(const lb_value *value)
{
    return value->source == LB_SOURCE_BATCH || value->source == LB_SOURCE_OTHER ||
           value->source == LB_SOURCE_PARAMETER || value->source == LB_SOURCE_STATE;
}

/* -inf alone may be a mask. */
static bool spoilt(const lb_bisect_session *session, const lb_program *program, uint32_t op, bool masks_too)
{
    const lb_value *value = value_of(program, op);
    if (!lb_dtype_is_float(value->dtype)) return false;
    lb_statistics statistics = statistics_of(session, program, value);
    return statistics.nan || statistics.pos_inf || (masks_too && statistics.neg_inf);
}

lb_status lb_stage_hidden(lb_bisect_session *session, bool *found, lb_err *err)
{
    lb_culprit *culprit;
    *found = false;
    for (uint32_t s = 0; s < session->n_steps; s++)
        for (uint32_t r = 0; r < session->n_ranks; r++) {
            const lb_program *program = lb_trial_program(session, session->ranks[r], session->steps[s]);
            for (uint32_t i = 0; program && i < program->n_ops; i++) {
                if (!lb_op_is_source(program, &program->ops[i]) ||
                    !(value_of(program, i)->flags & LB_VALUE_PARAMETER) || !spoilt(session, program, i, false))
                    continue;
                LB_TRY(lb_stage_culprit_add(session, LB_AXIS_SOURCE, (lb_stage_place){program->rank, program->step, i},
                                            &culprit, err));
                lb_failure *failure = &session->out->failure;
                *failure =
                    (lb_failure){.kind = LB_FAILURE_PARAMETER, .step = program->step, .rank = program->rank, .op = i};
                snprintf(failure->layer, sizeof failure->layer, "%s", culprit->layer);
                snprintf(failure->name, sizeof failure->name, "%s", culprit->op);
                snprintf(failure->what, sizeof failure->what,
                         "a parameter holds numbers that are NaN or infinite: %.120s", culprit->parameter);
                snprintf(
                    culprit->why, sizeof culprit->why,
                    "%s holds numbers that are NaN or infinite when step %lld begins, and what reads it hides them: "
                    "no loss, gradient or output is anything but finite.",
                    *culprit->parameter ? culprit->parameter : "a parameter", (long long)program->step);
                *found = true;
                return LB_OK;
            }
        }
    return LB_OK;
}

static lb_status list_spoilt(lb_bisect_session *session, bool masks_too, source_list *list, lb_err *err)
{
    for (uint32_t s = 0; s < lb_stage_steps_until_failure(session); s++)
        for (uint32_t r = 0; r < session->n_ranks; r++) {
            const lb_program *program = lb_trial_program(session, session->ranks[r], session->steps[s]);
            for (uint32_t i = 0; program && i < program->n_ops; i++)
                if (lb_op_is_source(program, &program->ops[i]) && from_outside(value_of(program, i)) &&
                    spoilt(session, program, i, masks_too))
                    LB_TRY(add_source(list, program->rank, program->step, i, "finite", err));
        }
    lb_sites_name(&list->sites, "sources with 0 for what is not finite");
    return LB_OK;
}

/* What may be data: no parameter, no state, no random draw, no other rank's; also what ops outside the model made of
 * it. Scalars that are kept (a loss, a scale) are none. */
static bool is_data(const lb_value *value)
{
    bool kind =
        value->source == LB_SOURCE_BATCH || value->source == LB_SOURCE_OTHER || value->source == LB_SOURCE_CARRIED;
    return kind && value->layout.ndim > 0 &&
           !(value->flags & (LB_VALUE_PARAMETER | LB_VALUE_STATE | LB_VALUE_GRADIENT));
}

/* The source of the window's first step that a swap by "step:N" takes; LB_NONE when there is none. */
static uint32_t twin_of(const lb_bisect_session *session, const lb_program *program, uint32_t op)
{
    const lb_program *first = lb_trial_program(session, program->rank, session->steps[0]);
    return first ? lb_source_twin(program, lb_op_results(program, &program->ops[op])[0], first) : LB_NONE;
}

/* Every step's batch is that of the first step of the window. */
static lb_status list_batches(lb_bisect_session *session, source_list *list, lb_err *err)
{
    char argument[40];
    snprintf(argument, sizeof argument, "step:%" PRId64, session->steps[0]);
    for (uint32_t s = 1; s < lb_stage_steps_until_failure(session); s++) {
        const lb_program *program = lb_trial_program(session, session->failure.rank, session->steps[s]);
        for (uint32_t i = 0; program && i < program->n_ops; i++)
            if (lb_op_is_source(program, &program->ops[i]) && is_data(value_of(program, i)) &&
                twin_of(session, program, i) != LB_NONE)
                LB_TRY(add_source(list, program->rank, program->step, i, argument, err));
    }
    lb_sites_name(&list->sites, "sources as they were in step %" PRId64, session->steps[0]);
    return LB_OK;
}

/* Steps end where the next forward begins: what prepares its data comes after the optimizer of the step before. */
static bool after_optimizer(const lb_program *program, uint32_t op)
{
    for (uint32_t i = program->n_ops; i-- > op;)
        if (program->ops[i].phase == LB_PHASE_OPTIMIZER) return false;
    for (uint32_t i = 0; i < op; i++)
        if (program->ops[i].phase == LB_PHASE_OPTIMIZER) return true;
    return false;
}

static void say_what(const lb_bisect_session *session, const source_row *row, bool finite, lb_culprit *culprit)
{
    const lb_program *program = lb_trial_program(session, row->rank, row->step);
    const lb_value *value = value_of(program, row->op);
    lb_statistics statistics = statistics_of(session, program, value);
    int64_t bad = lb_dtype_is_float(value->dtype) ? lb_statistics_nonfinite(&statistics) : 0;
    char holds[120] = "", when[80], into[200] = "";
    const bool written = *culprit->parameter && strcmp(culprit->parameter, lb_program_text(program, value->name)) != 0;
    bool late = culprit->between || after_optimizer(program, row->op);
    if (written) snprintf(into, sizeof into, " that is written to %s", culprit->parameter);
    snprintf(when, sizeof when, late ? "read after step %" PRId64 "'s optimizer, so for the next" : "of step %" PRId64,
             row->step);
    if (bad)
        snprintf(holds, sizeof holds, "%" PRId64 " of %" PRId64 " elements of it are not finite. ", bad,
                 statistics.elements);
    else if (statistics.elements)
        snprintf(holds, sizeof holds, "It lies between %.4g and %.4g. ", statistics.min, statistics.max);
    snprintf(culprit->why, sizeof culprit->why,
             "What fails is fed by %s%s, %s. %sWith %s, %s, the window ends without the failure.",
             kind_name(program, value), into, when, holds,
             finite ? "0 in their place" : "what the same source had before in its place", lb_stage_besides(session));
}

/* Ranks that hold the same source, spoilt alike, are one culprit. */
static bool join_rank(lb_bisect_session *session, const source_row *row, lb_err *err)
{
    const lb_program *program = lb_trial_program(session, row->rank, row->step);
    for (uint32_t i = 0; i < session->out->n_culprits; i++) {
        lb_culprit *culprit = &session->out->culprits[i];
        const lb_program *first = lb_trial_program(session, culprit->ranks[0], culprit->step);
        if (culprit->axis != LB_AXIS_SOURCE || culprit->step != row->step || culprit->ranks[0] == row->rank ||
            !lb_source_alike(program, value_of(program, row->op), first, value_of(first, culprit->row)))
            continue;
        int32_t *more = lb_array_grow(culprit->ranks, culprit->n_ranks, sizeof *more);
        if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory"), false;
        culprit->ranks = more;
        culprit->ranks[culprit->n_ranks++] = row->rank;
        return true;
    }
    return false;
}

/* Is a source unlike its twin in the window's first step? Not finite, a hundred times as large or small, all the
 * same number, or whole numbers out of the range. Any data cure what only some data meet: then what met them is the
 * cause. */
static bool stands_out(const lb_bisect_session *session, const source_row *row)
{
    const lb_program *program = lb_trial_program(session, row->rank, row->step);
    const lb_program *first = lb_trial_program(session, row->rank, session->steps[0]);
    const uint32_t twin = twin_of(session, program, row->op);
    const lb_statistics statistics = statistics_of(session, program, value_of(program, row->op));
    const lb_statistics b = statistics_of(session, first, value_of(first, twin));
    const double large = fmax(fabs(statistics.min), fabs(statistics.max)), before = fmax(fabs(b.min), fabs(b.max));
    if (statistics.nan != b.nan || statistics.pos_inf != b.pos_inf || statistics.neg_inf != b.neg_inf) return true;
    if ((statistics.min == statistics.max) != (b.min == b.max)) return true;
    if (!lb_dtype_is_float(value_of(program, row->op)->dtype))
        return large > 2 * before || (statistics.min < 0 && b.min >= 0);
    return large > 100 * before || before > 100 * large;
}

static lb_status try_sources(lb_bisect_session *session, source_list *list, bool finite, bool *found, lb_err *err)
{
    uint32_t *guilty = NULL, n = 0;
    lb_status status = list->sites.n ? narrow_sources(session, list, &guilty, &n, found, err) : LB_OK;
    bool odd = finite || session->any_data;
    for (uint32_t i = 0; i < n && !odd; i++) odd = stands_out(session, &list->rows[guilty[i]]);
    if (status == LB_OK && n && !odd) { /* only if nothing else cures */
        session->usual_data = true, *found = false, n = 0;
        lb_sites_release(&session->cure);
    }
    for (uint32_t i = 0; i < n && status == LB_OK; i++) {
        if (join_rank(session, &list->rows[guilty[i]], err)) continue;
        const source_row *row = &list->rows[guilty[i]];
        lb_culprit *culprit;
        status = lb_stage_culprit_add(session, LB_AXIS_SOURCE, (lb_stage_place){row->rank, row->step, row->op},
                                      &culprit, err);
        if (status != LB_OK) break;
        if (*culprit->parameter)
            lb_stage_culprit_between_steps(session, culprit); /* what is written over; a batch is its step's */
        say_what(session, row, finite, culprit);
    }
    if (status == LB_OK && n && !finite) {
        const source_row *row = &list->rows[guilty[0]];
        const lb_program *program = lb_trial_program(session, row->rank, row->step);
        const lb_program *first = lb_trial_program(session, row->rank, session->steps[0]);
        uint32_t twin = twin_of(session, program, row->op);
        session->remedy = (lb_remedy){row->rank, session->steps[0], value_of(first, twin)->storage, twin};
    }
    free(guilty);
    return status;
}

lb_status lb_stage_spoilt(lb_bisect_session *session, bool *found, lb_err *err)
{
    source_list bad = {0};
    lb_status status = list_spoilt(session, false, &bad, err);
    if (status == LB_OK && bad.sites.n) {
        status = lb_trial_stage_begin(session, "source", err);
        if (status == LB_OK) status = try_sources(session, &bad, true, found, err);
        if (status == LB_OK)
            lb_trial_stage_end(session, *found ? "cured" : "cleared",
                               *found ? "with 0 for what is not finite in it"
                                      : "fails with 0 for what is not finite in its sources, too");
    }
    release(&bad);
    return status;
}

lb_status lb_stage_source(lb_bisect_session *session, bool *found, lb_err *err)
{
    source_list bad = {0}, batches = {0};
    LB_TRY(lb_trial_stage_begin(session, "source", err));
    lb_status status = list_spoilt(session, true, &bad, err);
    if (status == LB_OK) status = list_batches(session, &batches, err);
    if (status == LB_OK) status = try_sources(session, &bad, true, found, err);
    if (status == LB_OK && !*found) status = try_sources(session, &batches, false, found, err);
    if (status == LB_OK)
        lb_trial_stage_end(session,
                           *found                          ? "cured"
                           : bad.sites.n + batches.sites.n ? "cleared"
                                                           : "none",
                           *found                ? "by other data"
                           : session->usual_data ? "other data cure, but what failed is not unlike what went before"
                           : bad.sites.n + batches.sites.n
                               ? "fails with the data of an earlier step too"
                               : "every source of the window is finite, and no earlier step has others");
    release(&bad);
    release(&batches);
    return status;
}
