/* Bisecting a difference: see against.h.
 *
 * diff.c says what differs, where each difference was made and whether it is rounding. This only reads it: the culprit
 * is the first difference of the worst verdict that was made where it stands. What was led to is none, and rounding is
 * none while something diverged. Of rounding it is the first of all, unless a cast loses more than what came in to it.
 * What cannot be told of a later step takes nothing back of an earlier one, in which all is decided: there the runs
 * part.
 */
#include "stages/against.h"
#include "stages/against_end.h"
#include "stages/against_set.h"

#include "program/slice.h"
#include "stages/stages.h"
#include "pair/op_kind.h"

#include "base/array.h"
#include "program/state_name.h"
#include <lastbit/diff.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_source(const lb_diff_row *row)
{
    return row->op && !strcmp(row->op, "lb::source");
}

/* The first difference of the worst verdict; of rounding alone, the lossy cast, or else the first of all. */
static const lb_diff_row *cause_of(const lb_diff_report *report)
{
    if (report->verdict == LB_VERDICT_DIVERGED || !report->has_earliest || report->first.lossy)
        return report->has_first ? &report->first : NULL;
    return &report->earliest;
}

/* What stands on one side only in the cause's layer and phase; NULL: nothing. */
static const lb_diff_structure *structure_at(const lb_diff_report *report, const lb_diff_row *cause)
{
    for (uint32_t i = 0; i < report->n_structures; i++) {
        const lb_diff_structure *structure = &report->structures[i];
        if (structure->step == cause->step && structure->rank == cause->rank && structure->phase == cause->phase &&
            !strcmp(structure->layer, cause->layer))
            return structure;
    }
    return NULL;
}

static uint32_t count_casts(const char *list)
{
    uint32_t n = 0;
    for (const char *at = list; (at = strstr(at, "aten::_to_copy")); at++) n++;
    return n;
}

/* Other casts, or nothing but the same ones, which stand at another place: what lies between is rounded otherwise. */
static bool is_of_precision(const lb_diff_structure *structure)
{
    const bool casts_alone = !strcmp(structure->ops_a, "aten::_to_copy") && !strcmp(structure->ops_b, "aten::_to_copy");
    return casts_alone || count_casts(structure->ops_a) != count_casts(structure->ops_b);
}

/* ---- learning rates and their kin ---- */

static bool same_options(const lb_program *p, const lb_group *g, const lb_program *q, const lb_group *h)
{
    if (g->options != h->options) return false;
    for (uint32_t i = 0; i < g->options; i++) {
        const lb_scalar *x = &p->scalars[g->first_option + i], *y = &q->scalars[h->first_option + i];
        if (strcmp(lb_program_text(p, x->name), lb_program_text(q, y->name)) || x->number != y->number) return false;
    }
    return true;
}

/* Do the optimizers of this step have other learning rates, weight decays, …? They come from outside as a batch
 * does. */
static bool groups_differ(lb_bisect_session *session, const lb_diff_row *cause)
{
    const lb_program *program = lb_trial_program(session, cause->rank, cause->step), *other;
    if (!program || lb_capture_program(session->options->against, cause->rank, cause->step, &other, NULL) != LB_OK)
        return false;
    if (program->n_groups != other->n_groups) return true;
    for (uint32_t i = 0; i < program->n_groups; i++)
        if (!same_options(program, &program->groups[i], other, &other->groups[i])) return true;
    return false;
}

static bool is_draw(lb_bisect_session *session, const lb_diff_row *cause)
{
    const lb_program *program = lb_trial_program(session, cause->rank, cause->step);
    return program && cause->index != LB_NONE && cause->index < program->n_ops &&
           program->ops[cause->index].flags & LB_OP_RANDOM;
}

/* ---- axes ---- */

/* The program, of the run or of the reference, in which the cause is an op of that name, and its row there. */
static const lb_program *program_of_cause(lb_bisect_session *session, const lb_diff_row *cause, uint32_t *row)
{
    const lb_program *program = lb_trial_program(session, cause->rank, cause->step), *other;
    *row = cause->index;
    if (program && *row < program->n_ops && cause->op && !strcmp(lb_op_name(program, &program->ops[*row]), cause->op))
        return program;
    *row = cause->other;
    if (lb_capture_program(session->options->against, cause->other_rank, cause->step, &other, NULL) != LB_OK ||
        *row >= other->n_ops)
        return NULL;
    return other;
}

static bool is_in_group(const lb_program *program, uint32_t row)
{
    for (uint32_t i = 0; i < program->n_groups; i++)
        if (row >= program->groups[i].first_op && row - program->groups[i].first_op < program->groups[i].ops)
            return true;
    return false;
}

/* Does the op put something in the place of what was there, made of no gradient? No update does that, by whatever
 * optimizer. */
static bool replaces(const lb_program *program, uint32_t row)
{
    static const char *const writes[] = {"aten::copy_", "aten::fill_",          "aten::zero_",
                                         "aten::set_",  "aten::_foreach_copy_", "aten::_foreach_zero_"};
    lb_slice_flow *flow = NULL;
    uint8_t *reached = calloc(program->n_ops + 1, 1);
    bool gradient =
        !reached || lb_op_name_among(program, &program->ops[row], writes, sizeof writes / sizeof *writes) < 0;
    if (!gradient && lb_slice_flow_new(program, &flow, NULL) == LB_OK) {
        reached[row] = 1;
        for (uint32_t i = row + 1; i-- > 0;) {
            if (!reached[i]) continue;
            gradient |= program->ops[i].phase == LB_PHASE_BACKWARD;
            for (uint32_t k = flow->first_def[i]; k < flow->first_def[i + 1]; k++) reached[flow->defs[k]] = 1;
        }
    }
    free(reached), lb_slice_flow_free(flow);
    return flow && !gradient;
}

/* A parameter or state that was written by an op that was seen, but by no optimizer: outside module, backward and the
 * ops of its step. */
static bool is_overwritten(lb_bisect_session *session, const lb_diff_row *cause)
{
    uint32_t row;
    const lb_program *program = program_of_cause(session, cause, &row);
    if (!program || cause->phase == LB_PHASE_FORWARD || cause->phase == LB_PHASE_BACKWARD ||
        (!cause->parameter && !cause->value))
        return false;
    if (!cause->value && !lb_op_writes_flagged(program, &program->ops[row], LB_VALUE_PARAMETER | LB_VALUE_STATE))
        return false;
    return cause->phase == LB_PHASE_OTHER || (program->n_groups && !is_in_group(program, row)) ||
           replaces(program, row);
}

/* Does no op of the optimizer phase write that parameter? */
static bool is_idle(const lb_program *program, const char *parameter)
{
    for (uint32_t i = 0; i < program->n_ops; i++)
        for (uint32_t w = 0; program->ops[i].phase == LB_PHASE_OPTIMIZER && w < program->ops[i].written; w++) {
            const uint32_t v = lb_op_written(program, &program->ops[i])[w];
            if (v != LB_NONE && program->values[v].flags & LB_VALUE_PARAMETER &&
                !strcmp(lb_program_text(program, program->values[v].name), parameter))
                return false;
        }
    return true;
}

/* A parameter that one side's optimizer passes over: it got no gradient, or is in no group. */
static bool is_passed_over(lb_bisect_session *session, const lb_diff_row *cause)
{
    const lb_program *program = lb_trial_program(session, cause->rank, cause->step), *other;
    const char *parameter = cause->parameter ? cause->parameter : cause->value ? cause->layer : NULL;
    if (cause->phase != LB_PHASE_OPTIMIZER || !parameter || !program) return false;
    if (lb_capture_program(session->options->against, cause->other_rank, cause->step, &other, NULL) != LB_OK)
        return false;
    return is_idle(program, parameter) != is_idle(other, parameter);
}

static lb_bisect_axis axis_of(lb_bisect_session *session, const lb_diff_report *report, const lb_diff_row *cause,
                              uint32_t ranks)
{
    if (session->n_ranks > 1 && ranks < session->n_ranks && cause->verdict == LB_VERDICT_DIVERGED) return LB_AXIS_RANK;
    if (cause->verdict == LB_VERDICT_DIVERGED) {
        if (cause->tensor || is_source(cause) || is_draw(session, cause)) return LB_AXIS_SOURCE;
        if (is_overwritten(session, cause) || is_passed_over(session, cause)) return LB_AXIS_SOURCE;
        return cause->phase == LB_PHASE_OPTIMIZER && groups_differ(session, cause) ? LB_AXIS_SOURCE : LB_AXIS_BLOCK;
    }
    if (cause->lossy) return LB_AXIS_PRECISION;
    const lb_diff_structure *structure = structure_at(report, cause);
    if (structure) return is_of_precision(structure) ? LB_AXIS_PRECISION : LB_AXIS_ORDER;
    if (is_source(cause)) return LB_AXIS_PRECISION; /* the same numbers in a narrower type */
    return report->verdict == LB_VERDICT_REORDERED ? LB_AXIS_ORDER : LB_AXIS_KERNEL;
}

/* Ranks on which that layer differs by itself as badly. */
static lb_status name_ranks(const lb_diff_report *report, const lb_diff_row *cause, lb_culprit *culprit, lb_err *err)
{
    int32_t *ranks = lb_array_reserve(NULL, 0, report->n_layers, sizeof *ranks);
    uint32_t n = 0;
    if (!ranks) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    ranks[n++] = cause->rank;
    for (uint32_t i = 0; i < report->n_layers; i++) {
        const lb_diff_row *row = &report->layers[i];
        bool here = !strcmp(row->layer, cause->layer) && row->local == cause->local;
        for (uint32_t k = 0; k < n; k++) here &= ranks[k] != row->rank;
        if (here) ranks[n++] = row->rank;
    }
    free(culprit->ranks);
    culprit->ranks = ranks, culprit->n_ranks = n;
    return LB_OK;
}

/* The row of that op in the run's program, so that block and phase can be read off it. */
static uint32_t find_row(const lb_program *program, const lb_diff_row *cause)
{
    if (cause->index != LB_NONE) return cause->index;
    for (uint32_t i = 0; program && i < program->n_ops; i++)
        if (program->ops[i].phase == cause->phase && !strcmp(lb_op_layer(program, &program->ops[i]), cause->layer))
            return i;
    return LB_NONE;
}

/* A parameter's row is called by its name: its layer is what owns it. */
static void name_layer(const lb_diff_row *cause, char *layer, size_t size)
{
    const char *dot = cause->value ? strrchr(cause->layer, '.') : NULL;
    const char *text = cause->value && !dot && strchr(cause->layer, ':') ? "" : cause->layer;
    if (cause->value) text = lb_state_name_parameter(text);
    snprintf(layer, size, "%.*s", dot ? (int)(dot - text) : (int)strlen(text), text);
}

static bool is_undecided(lb_verdict verdict)
{
    return verdict == LB_VERDICT_MISSING || verdict == LB_VERDICT_OPAQUE;
}

/* Were all differences decided in the steps up to one that has some? */
static bool begins_decided(const lb_diff_report *report)
{
    return report->has_earliest && report->has_undecided && !report->n_missing &&
           report->earliest.step < report->undecided_step;
}

/* What the culprit's sentence ends in. */
static void print_certainty(const lb_diff_report *report, const lb_diff_row *cause, char *text, size_t size)
{
    *text = '\0';
    if (cause->verdict == LB_VERDICT_DIVERGED) return;
    const int n = snprintf(text, size, "; in exact arithmetic nothing differs, only the rounding");
    if (is_undecided(report->verdict))
        snprintf(text + n, size - (size_t)n, ", up to step %" PRId64 ", of which not all can be told",
                 report->undecided_step);
}

/* " (weight_decay 0.1 / 0; weight decay: …)": what the op was called with, the run first and then the reference; what
 * it is for. */
static void print_called(const lb_diff_row *cause, char *text, size_t size)
{
    size_t used = 0;
    *text = '\0';
    for (uint32_t i = 0; i < cause->n_arguments && used < size; i++) {
        const lb_diff_argument *argument = &cause->arguments[i];
        used += (size_t)snprintf(text + used, size - used, "%s%s %s / %s%s%s%s", i ? ", " : " (", argument->name,
                                 argument->first, argument->second, *argument->group ? " in group " : "",
                                 argument->group, "");
    }
    if (cause->means && used < size)
        used += (size_t)snprintf(text + used, size - used, "%s%s", used ? "; " : " (", cause->means);
    if (used && used < size) snprintf(text + used, size - used, ")");
}

/* `effect`: how far what leaves the step moves when this place alone is the reference's; NaN: not measured. */
static lb_status add_culprit(lb_bisect_session *session, const lb_diff_report *report, const lb_diff_row *cause,
                             double effect, uint32_t *found, lb_err *err)
{
    const lb_program *program = lb_trial_program(session, cause->rank, cause->step);
    const uint32_t row = find_row(program, cause);
    lb_culprit *culprit;
    LB_TRY(
        lb_stage_culprit_add(session, LB_AXIS_BLOCK, (lb_stage_place){cause->rank, cause->step, row}, &culprit, err));
    LB_TRY(name_ranks(report, cause, culprit, err));
    culprit->axis = axis_of(session, report, cause, culprit->n_ranks);
    culprit->phase = cause->phase;
    culprit->lines[1] = lb_code_line_copy(&cause->lines[1]);
    name_layer(cause, culprit->layer, sizeof culprit->layer);
    snprintf(culprit->op, sizeof culprit->op, "%s", cause->op ? cause->op : "");
    const char *named = cause->parameter ? cause->parameter : cause->value ? cause->layer : "";
    char certainty[160], called[240];
    print_certainty(report, cause, certainty, sizeof certainty);
    print_called(cause, called, sizeof called);
    culprit->effect = effect == effect ? effect : 0;
    snprintf(culprit->why, sizeof culprit->why, "%s%s%s%s%s%s%s.",
             cause->lossy       ? "The place that loses most"
             : effect == effect ? "A place that differs by itself"
                                : "The earliest place that differs by itself",
             *named || *cause->why ? ": " : "", named, *named && *cause->why ? ", " : "", cause->why, called,
             certainty);
    *found = row;
    return LB_OK;
}

static lb_status report_cause(lb_bisect_session *session, const lb_diff_report *report, const lb_diff_row *cause,
                              lb_err *err)
{
    cause = lb_against_set_first(report, cause);
    const lb_diff_difference *place = lb_against_set_place(report, cause);
    uint32_t row, other;
    LB_TRY(add_culprit(session, report, cause, place ? place->effect : NAN, &row, err));
    for (uint32_t i = 0; i < report->n_differences; i++) {
        const lb_diff_difference *d = &report->differences[i];
        if ((report->implementations || report->set.asked) && lb_against_set_has(report, d, cause))
            LB_TRY(add_culprit(session, report, &d->row, d->effect, &other, err));
    }
    LB_TRY(lb_against_set_read(session, report, err));
    lb_failure *failure = &session->out->failure;
    *failure = (lb_failure){LB_FAILURE_DIFFERENCE, cause->step, cause->rank, row, "", "", ""};
    snprintf(failure->layer, sizeof failure->layer, "%s", cause->layer);
    snprintf(failure->name, sizeof failure->name, "%s", cause->op ? cause->op : "");
    snprintf(failure->what, sizeof failure->what, "the run departs from the reference: %s",
             lb_verdict_name(is_undecided(report->verdict) ? cause->verdict : report->verdict));
    return LB_OK;
}

/* Why nothing can be said; the sentence is taken over. */
static void stay_undecided(lb_bisect_session *session, char *reason)
{
    session->out->reason = reason;
    lb_trial_stage_end(session, "undecided", "%.230s", reason);
}

static lb_status read_report(lb_bisect_session *session, const lb_diff_report *report, lb_err *err)
{
    const lb_diff_row *cause = cause_of(report);
    char *ended;
    LB_TRY(lb_against_end_tell(session, &ended, err));
    if (report->verdict == LB_VERDICT_IDENTICAL && report->ops) {
        session->out->outcome = LB_BISECT_CLEAN, session->out->compared = report->ops;
        lb_trial_stage_end(session, "clean", "%" PRIu64 " aligned ops, the same bits everywhere", report->ops);
    } else if (report->verdict == LB_VERDICT_IDENTICAL) {
        if (!ended) ended = strdup("no op of one side lines up with one of the other: nothing was judged");
        if (!ended) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
        stay_undecided(session, ended), ended = NULL;
    } else if (!cause || (is_undecided(report->verdict) && !begins_decided(report))) {
        if (ended)
            stay_undecided(session, ended), ended = NULL;
        else
            lb_trial_stage_end(session, "undecided", "%s",
                               report->n_missing      ? report->missing[0]
                               : cause && *cause->why ? cause->why
                                                      : lb_verdict_name(report->verdict));
    } else {
        const lb_status status = report_cause(session, report, cause, err);
        if (status != LB_OK) free(ended);
        LB_TRY(status);
        lb_trial_stage_end(session, "found", "%" PRIu64 " aligned ops, %" PRIu64 " identical: %s", report->ops,
                           report->identical, lb_verdict_name(report->verdict));
    }
    session->out->note = ended; /* beside what was found; NULL: both are whole */
    return LB_OK;
}

/* A reproducer fails by itself; a difference needs both sides. */
static lb_status tell_why_none(lb_bisect_session *session, lb_err *err)
{
    char text[300], steps[64] = "";
    const int64_t step = session->out->failure.step;
    if (session->out->outcome == LB_BISECT_FOUND)
        snprintf(steps, sizeof steps, "; `lastbit diff --steps %" PRId64 "` of the two shows it", step);
    snprintf(text, sizeof text, "%s was not written: %s%s.", session->options->reproducer,
             session->out->outcome == LB_BISECT_CLEAN ? "nothing differs"
                                                      : "a reproducer fails by itself, and a difference has two sides",
             steps);
    free(session->out->note);
    session->out->note = strdup(text);
    return session->out->note ? LB_OK : lb_fail(err, LB_ERR_NOMEM, "out of memory");
}

lb_status lb_against_run(lb_bisect_session *session, lb_err *err)
{
    lb_diff_options options = LB_DIFF_OPTIONS_INIT;
    lb_diff_report *report = NULL;
    LB_TRY(lb_trial_stage_begin(session, "against", err));
    options.first_step = session->options->first_step, options.last_step = session->options->last_step;
    options.memory_bytes = session->options->memory_bytes, options.table = session->options->table;
    options.smallest = true;
    LB_TRY(lb_diff_run(session->capture, session->options->against, &options, &report, err));
    lb_status status = read_report(session, report, err);
    lb_diff_report_free(report);
    if (status == LB_OK && session->options->reproducer) status = tell_why_none(session, err);
    return status;
}
