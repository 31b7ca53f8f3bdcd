/* What the stages share: see stages.h. */
#include "stages/stages.h"

#include "program/block.h"
#include "program/owner.h"

#include "base/array.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint32_t lb_stage_steps_until_failure(const lb_bisect_session *session)
{
    uint32_t n = 0;
    while (n < session->n_steps && session->steps[n] <= session->failure.step) n++;
    return n;
}

static bool recorded_bad(const lb_program *program, uint32_t value)
{
    return value != LB_NONE && program->values[value].statistics != LB_NONE &&
           lb_statistics_nonfinite(&program->statistics[program->values[value].statistics]) > 0;
}

/* The element of a list op that shows the failure; of different ops, and where none does, the whole. */
static uint32_t bad_element(const lb_program *program, const lb_owners *owners, uint32_t row)
{
    const lb_op *op = &program->ops[row];
    for (uint32_t r = 0; r < op->results + op->written; r++) {
        const uint32_t v = lb_op_outcome(program, op, r);
        if (recorded_bad(program, v)) return lb_owner_element(owners, row, v);
    }
    return LB_OWNER_WHOLE;
}

/* Where it stands: its module, or that of the parameter which it serves. */
static void place_culprit(const lb_program *program, const lb_owners *owners, lb_culprit *culprit)
{
    const lb_op *op = &program->ops[culprit->row];
    const uint32_t element = bad_element(program, owners, culprit->row);
    const bool source = lb_op_is_source(program, op);
    if (op->scope && !source && op->phase != LB_PHASE_OPTIMIZER) return;
    snprintf(culprit->parameter, sizeof culprit->parameter, "%s", lb_owner_of(owners, culprit->row, element));
    const char *dot = strrchr(culprit->parameter, '.');
    if (source && dot) /* by name: the first to read a tied weight is not its owner */
        snprintf(culprit->layer, sizeof culprit->layer, "%.*s", (int)(dot - culprit->parameter), culprit->parameter);
    else if (!source)
        snprintf(culprit->layer, sizeof culprit->layer, "%s", lb_owner_module(owners, culprit->row, element));
}

static uint32_t scope_called(const lb_program *program, const char *path)
{
    for (uint32_t s = 0; s < program->n_scopes; s++)
        if (!strcmp(lb_program_text(program, program->scopes[s].path), path)) return s;
    return 0;
}

lb_status lb_stage_culprit_of_storage(lb_bisect_session *session, lb_culprit *culprit, int32_t rank, int64_t storage,
                                      lb_err *err)
{
    const lb_program *program = lb_trial_program(session, rank, culprit->step);
    lb_slice_flow *flow;
    lb_owners *owners;
    if (!program) return LB_OK;
    LB_TRY(lb_slice_flow_new(program, &flow, err));
    lb_status status = lb_owners_new(flow, NULL, &owners, err);
    for (uint32_t v = 0; v < program->n_values && status == LB_OK; v++) {
        const char *name = program->values[v].storage == storage ? lb_owner_of_value(owners, v) : "",
                   *dot = strrchr(name, '.');
        if (!*name) continue;
        snprintf(culprit->parameter, sizeof culprit->parameter, "%s", name);
        snprintf(culprit->layer, sizeof culprit->layer, "%.*s", dot ? (int)(dot - name) : 0, name);
        break;
    }
    if (status == LB_OK) lb_owners_free(owners);
    lb_slice_flow_free(flow);
    return status;
}

static bool stands_behind(const lb_trace_row *row, uint32_t op)
{
    const lb_program *program = row->program;
    bool before = false;
    for (uint32_t i = 0; i < op; i++) before |= row->optimizer[i] || program->ops[i].phase == LB_PHASE_BACKWARD;
    for (uint32_t i = op + 1; i < program->n_ops; i++)
        if (row->optimizer[i] || program->ops[i].phase == LB_PHASE_BACKWARD) return false;
    return before;
}

void lb_stage_culprit_between_steps(const lb_bisect_session *session, lb_culprit *culprit)
{
    const lb_trace_row *row =
        culprit->row == LB_NONE ? NULL : lb_trace_find(session->trace, culprit->ranks[0], culprit->step);
    if (!row || !stands_behind(row, culprit->row)) return;
    for (uint32_t s = 0; s + 1 < session->n_steps; s++)
        if (session->steps[s] == culprit->step) culprit->between = true, culprit->acts = session->steps[s + 1];
}

static void fill_in(const lb_program *program, lb_culprit *culprit, lb_err *err)
{
    lb_slice_flow *flow;
    lb_blocks blocks;
    lb_owners *owners;
    snprintf(culprit->layer, sizeof culprit->layer, "%s", lb_op_layer(program, &program->ops[culprit->row]));
    snprintf(culprit->op, sizeof culprit->op, "%s", lb_op_name(program, &program->ops[culprit->row]));
    culprit->phase = (lb_phase)program->ops[culprit->row].phase;
    if (lb_slice_flow_new(program, &flow, err) != LB_OK) return;
    if (lb_owners_new(flow, NULL, &owners, err) == LB_OK) {
        place_culprit(program, owners, culprit);
        lb_owners_free(owners);
    }
    if (lb_blocks_find(program, flow, &blocks, err) == LB_OK) {
        culprit->block = blocks.letters[scope_called(program, culprit->layer)];
        lb_blocks_release(&blocks);
    }
    lb_slice_flow_free(flow);
}

lb_status lb_stage_culprit_add(lb_bisect_session *session, lb_bisect_axis axis, lb_stage_place place,
                               lb_culprit **culprit, lb_err *err)
{
    lb_bisection *bisection = session->out;
    lb_culprit *more = lb_array_grow(bisection->culprits, bisection->n_culprits, sizeof *more);
    if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    bisection->culprits = more;
    lb_culprit *c = &bisection->culprits[bisection->n_culprits];
    *c = (lb_culprit){.axis = axis, .row = place.op, .step = place.step};
    c->ranks = malloc(sizeof *c->ranks);
    if (!c->ranks) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    c->ranks[0] = place.rank, c->n_ranks = 1;
    bisection->n_culprits++;
    bisection->outcome = LB_BISECT_FOUND;
    const lb_program *program = lb_trial_program(session, place.rank, place.step);
    if (program && place.op != LB_NONE) fill_in(program, c, err);
    *culprit = c;
    return LB_OK;
}

lb_status lb_stage_cure_set(lb_bisect_session *session, const lb_sites *sites, const uint32_t *found, uint32_t n,
                            lb_err *err)
{
    uint64_t *set = calloc(LB_SITE_WORDS(sites->n) + 1, sizeof *set);
    if (!set) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < n; i++) set[found[i] / 64] |= (uint64_t)1 << (found[i] % 64);
    lb_sites_release(&session->cure);
    lb_status status = lb_sites_append(&session->cure, sites, found ? set : NULL, err);
    free(set);
    return status;
}

lb_status lb_stage_sites_add_steps(const lb_bisect_session *session, const lb_site_form *form, uint32_t n,
                                   lb_sites *sites, lb_err *err)
{
    for (uint32_t s = 0; s < n; s++) {
        char body[32];
        snprintf(body, sizeof body, "%" PRId64, session->steps[s]);
        LB_TRY(lb_sites_add(sites, form, body, err));
    }
    return LB_OK;
}

void lb_stage_step_list(const lb_bisect_session *session, const uint32_t *rows, uint32_t n, char *list, size_t size)
{
    list[0] = '\0';
    for (uint32_t i = 0; i < n; i++) {
        size_t used = strlen(list);
        snprintf(list + used, size - used, "%s%" PRId64, i ? "," : "", session->steps[rows[i]]);
    }
}

double lb_stage_value_largest(const lb_bisect_session *session, const lb_program *program, uint32_t value)
{
    lb_tensor tensor;
    lb_statistics statistics = {0};
    if (program->values[value].statistics != LB_NONE)
        statistics = program->statistics[program->values[value].statistics];
    else if (lb_capture_value(session->capture, program, value, &tensor, NULL) == LB_OK)
        statistics = lb_statistics_of(&tensor);
    return statistics.elements > lb_statistics_nonfinite(&statistics) ? fmax(fabs(statistics.min), fabs(statistics.max))
                                                                      : 0;
}

lb_status lb_stage_culprit_all_ranks(lb_bisect_session *session, lb_culprit *culprit, lb_err *err)
{
    int32_t *more =
        lb_array_reserve(culprit->ranks, culprit->n_ranks, session->n_ranks - culprit->n_ranks, sizeof *more);
    if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    culprit->ranks = more;
    memcpy(culprit->ranks, session->ranks, session->n_ranks * sizeof *more);
    culprit->n_ranks = session->n_ranks;
    return LB_OK;
}
