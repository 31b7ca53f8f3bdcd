/* The precision stage: every float below f32 in f32, then the smallest region that needs it. See stages.h.
 *
 * Two cures are told apart: a wide format (f32), and bf16, which has f32's range and little precision. Where f32 cures
 * what was narrower than bf16, bf16 is tried in the same place: it says whether range or precision was lacking. Where
 * f32 does not cure, bf16 is none either: it has the same range and fewer digits, and coarser rounding only hides what
 * f32 shows. f64 in place of f32 is no fault of a precision that training could have chosen: it is tried last and only
 * noted.
 */
#include "stages/region.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool narrow_value(const lb_program *program, uint32_t v)
{
    return v != LB_NONE && lb_dtype_is_float(program->values[v].dtype) && lb_dtype_bits(program->values[v].dtype) < 32;
}

typedef struct narrow_reader {
    const lb_program *program;
    bool found;
} narrow_reader;

static void note_narrow(void *context, uint32_t value)
{
    narrow_reader *reader = context;
    reader->found |= narrow_value(reader->program, value);
}

static bool gives_narrow(const lb_program *program, const lb_op *op)
{
    for (uint32_t k = 0; k < op->results; k++)
        if (narrow_value(program, lb_op_results(program, op)[k])) return true;
    for (uint32_t k = 0; k < op->written; k++)
        if (narrow_value(program, lb_op_written(program, op)[k])) return true;
    return false;
}

/* Reads or gives a float below f32. */
static bool narrow_op(const lb_program *program, const lb_op *op)
{
    narrow_reader reader = {program, false};
    if (op->flags & LB_OP_VIEW || !strncmp(lb_op_name(program, op), "lb::", 4)) return false;
    if (gives_narrow(program, op)) return true;
    lb_op_each_input(program, op, note_narrow, &reader);
    return reader.found;
}

/* Does the op give a float of less range than bf16: f16 or one of 8 bits and less? */
static bool short_of_range(const lb_program *program, const lb_op *op)
{
    for (uint32_t k = 0; k < op->results; k++) {
        uint32_t v = lb_op_results(program, op)[k];
        if (narrow_value(program, v) && program->values[v].dtype != LB_BF16) return true;
    }
    return false;
}

/* Was a number of the region larger than its type holds? */
static bool overflowed(const lb_bisect_session *session, const lb_program *program, const uint32_t *ops, uint32_t n)
{
    const lb_trace_row *row = lb_trace_find(session->trace, program->rank, program->step);
    for (uint32_t i = 0; row && i < n; i++)
        if (short_of_range(program, &program->ops[ops[i]]) && isinf(lb_trace_size(row, ops[i]))) return true;
    return false;
}

/* The same region in bf16: does range alone cure? */
static lb_status weigh_range(lb_bisect_session *session, const lb_program *program, const uint32_t *ops, uint32_t n,
                             lb_err *err)
{
    lb_sites same = {0};
    lb_search_outcome outcome = LB_OUTCOME_INVALID;
    bool asked = false;
    for (uint32_t i = 0; i < n; i++) asked |= short_of_range(program, &program->ops[ops[i]]);
    if (!asked) return LB_OK;
    lb_status status = lb_sites_append(&same, &session->cure, NULL, err);
    for (uint32_t i = 0; i < same.n && status == LB_OK; i++) {
        free(same.rows[i].argument);
        same.rows[i].argument = strdup("bf16");
        if (!same.rows[i].argument) status = lb_fail(err, LB_ERR_NOMEM, "out of memory");
    }
    lb_sites_name(&same, "the same in bf16: is it range or precision?");
    if (status == LB_OK) status = lb_trial_run(session, &same, NULL, "weigh", &outcome, err);
    for (uint32_t i = 0; i < session->out->n_culprits && status == LB_OK; i++) {
        lb_culprit *culprit = &session->out->culprits[i];
        size_t used = strlen(culprit->why);
        if (culprit->axis == LB_AXIS_PRECISION && outcome != LB_OUTCOME_INVALID)
            snprintf(culprit->why + used, sizeof culprit->why - used, " %s",
                     outcome == LB_OUTCOME_CURED ? "bf16 there cures, too: what lacked is range."
                     : overflowed(session, program, ops, n)
                         ? "What lacked is range, and digits as well: bf16 there does not cure."
                         : "bf16 there does not: what lacked is precision.");
    }
    lb_sites_release(&same);
    return status;
}

static lb_status try_format(lb_bisect_session *session, const char *format, const char *noun, const char *purpose,
                            lb_search_outcome *outcome, lb_err *err)
{
    lb_sites whole = {0};
    lb_status status = lb_sites_add_all(&whole, LB_SWAP_PRECISION, format, err);
    lb_sites_name(&whole, "%s", noun);
    if (status == LB_OK) status = lb_trial_run(session, &whole, NULL, purpose, outcome, err);
    if (status == LB_OK && *outcome == LB_OUTCOME_CURED) status = lb_stage_cure_set(session, &whole, NULL, 0, err);
    lb_sites_release(&whole);
    return status;
}

static lb_status narrow_format(lb_bisect_session *session, const char *format, const char *how, bool weigh, lb_err *err)
{
    lb_stage_region region = {LB_SWAP_PRECISION, format, how, LB_AXIS_PRECISION, narrow_op, gives_narrow};
    int64_t step;
    uint32_t *ops, n;
    lb_status status = lb_region_narrow(session, &region, &step, &ops, &n, err);
    if (status == LB_OK && weigh)
        status = weigh_range(session, lb_trial_program(session, session->failure.rank, step), ops, n, err);
    free(ops);
    return status;
}

/* f64 everywhere is a note, whatever it says. It takes longer than all else: it is asked for when the first op that
 * broke is no answer. */
lb_status lb_stage_precision_note(lb_bisect_session *session, lb_err *err)
{
    lb_search_outcome f64 = LB_OUTCOME_SAME;
    lb_sites before = session->cure;
    uint32_t row = LB_NONE;
    for (uint32_t i = 0; i < session->out->n_stages; i++)
        if (!strcmp(session->out->stages[i].name, "precision")) row = i;
    if (row == LB_NONE || !strcmp(session->out->stages[row].outcome, "cured")) return LB_OK;
    session->cure = (lb_sites){0};
    lb_status status = try_format(session, "f64", "everything in f64 (a note: no axis)", "note", &f64, err);
    lb_sites_release(&session->cure);
    session->cure = before;
    lb_bisect_stage *stage = &session->out->stages[row];
    if (status == LB_OK && f64 == LB_OUTCOME_CURED && !strstr(stage->note, "f64")) {
        const size_t used = strlen(stage->note);
        snprintf(stage->note + used, sizeof stage->note - used, "; f64 in place of f32 would cure");
    }
    return status;
}

static lb_status end_cleared(lb_bisect_session *session, const char *outcome, const char *note, lb_err *err)
{
    (void)err;
    lb_trial_stage_end(session, outcome, "%s", note);
    return LB_OK;
}

static lb_status run_precision(lb_bisect_session *session, bool *found, lb_err *err)
{
    lb_stage_region region = {LB_SWAP_PRECISION, "f32", "in f32", LB_AXIS_PRECISION, narrow_op, gives_narrow};
    lb_search_outcome wide = LB_OUTCOME_SAME, bf16 = LB_OUTCOME_SAME;
    LB_TRY(lb_trial_stage_begin(session, "precision", err));
    if (!lb_region_exists(session, &region))
        return end_cleared(session, "none", "nothing here is narrower than f32", err);
    LB_TRY(try_format(session, "f32", "every float below f32 in f32", "whole", &wide, err));
    if (wide == LB_OUTCOME_CURED) {
        *found = true;
        LB_TRY(narrow_format(session, "f32", "in f32", true, err));
        lb_trial_stage_end(session, "cured", "by f32 in place of every float below it");
        return LB_OK;
    }
    LB_TRY(try_format(session, "bf16", "everything in bf16", "whole", &bf16, err));
    if (bf16 == LB_OUTCOME_CURED && wide != LB_OUTCOME_INVALID) {
        lb_sites_release(&session->cure);
        return end_cleared(
            session, "cleared",
            "fails with f32 in place of every float below it; in bf16 everywhere it does not show, but what f32 lacks, "
            "bf16 does not have",
            err);
    }
    if (bf16 == LB_OUTCOME_CURED) {
        *found = true;
        LB_TRY(narrow_format(session, "bf16", "in bf16", false, err));
        lb_trial_stage_end(session, "cured", "by bf16; f32 could not be tried");
        return LB_OK;
    }
    if (wide == LB_OUTCOME_INVALID)
        return end_cleared(session, "undecided", "could not be run with f32 in place of every float below it", err);
    return end_cleared(session, "cleared", "fails with f32 in place of every float below it, and with bf16 everywhere",
                       err);
}

lb_status lb_stage_precision(lb_bisect_session *session, bool *found, lb_err *err)
{
    lb_status status =
        lb_trace_new(session->capture, session->steps[0], session->steps[session->n_steps - 1], &session->changed, err);
    if (status == LB_OK) status = run_precision(session, found, err);
    lb_trace_free(session->changed);
    session->changed = NULL;
    return status;
}
