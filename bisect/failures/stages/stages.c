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

uint32_t lb_stage_steps_until_failure(const lb_bisect_session *q)
{
    uint32_t n = 0;
    while (n < q->n_steps && q->steps[n] <= q->failure.step) n++;
    return n;
}

static bool recorded_bad(const lb_program *p, uint32_t value)
{
    return value != LB_NONE && p->values[value].statistics != LB_NONE &&
           lb_statistics_nonfinite(&p->statistics[p->values[value].statistics]) > 0;
}

/* The element of a list op that shows the failure; of different ops, and where none does, the whole. */
static uint32_t bad_element(const lb_program *p, const lb_owners *owners, uint32_t row)
{
    const lb_op *op = &p->ops[row];
    for (uint32_t r = 0; r < op->results + op->written; r++) {
        const uint32_t v = lb_op_outcome(p, op, r);
        if (recorded_bad(p, v)) return lb_owner_element(owners, row, v);
    }
    return LB_OWNER_WHOLE;
}

/* Where it stands: its module, or that of the parameter which it serves. */
static void place_culprit(const lb_program *p, const lb_owners *owners, lb_culprit *c)
{
    const lb_op *op = &p->ops[c->row];
    const uint32_t element = bad_element(p, owners, c->row);
    const bool source = lb_op_is_source(p, op);
    if (op->scope && !source && op->phase != LB_PHASE_OPTIMIZER) return;
    snprintf(c->parameter, sizeof c->parameter, "%s", lb_owner_of(owners, c->row, element));
    const char *dot = strrchr(c->parameter, '.');
    if (source && dot) /* by name: the first to read a tied weight is not its owner */
        snprintf(c->layer, sizeof c->layer, "%.*s", (int)(dot - c->parameter), c->parameter);
    else if (!source)
        snprintf(c->layer, sizeof c->layer, "%s", lb_owner_module(owners, c->row, element));
}

static uint32_t scope_called(const lb_program *p, const char *path)
{
    for (uint32_t s = 0; s < p->n_scopes; s++)
        if (!strcmp(lb_program_text(p, p->scopes[s].path), path)) return s;
    return 0;
}

lb_status lb_stage_culprit_of_storage(lb_bisect_session *q, lb_culprit *c, int32_t rank, int64_t storage, lb_err *err)
{
    const lb_program *p = lb_trial_program(q, rank, c->step);
    lb_slice_flow *flow;
    lb_owners *owners;
    if (!p) return LB_OK;
    LB_TRY(lb_slice_flow_new(p, &flow, err));
    lb_status status = lb_owners_new(flow, NULL, &owners, err);
    for (uint32_t v = 0; v < p->n_values && status == LB_OK; v++) {
        const char *name = p->values[v].storage == storage ? lb_owner_of_value(owners, v) : "",
                   *dot = strrchr(name, '.');
        if (!*name) continue;
        snprintf(c->parameter, sizeof c->parameter, "%s", name);
        snprintf(c->layer, sizeof c->layer, "%.*s", dot ? (int)(dot - name) : 0, name);
        break;
    }
    if (status == LB_OK) lb_owners_free(owners);
    lb_slice_flow_free(flow);
    return status;
}

static bool stands_behind(const lb_trace_row *row, uint32_t op)
{
    const lb_program *p = row->program;
    bool before = false;
    for (uint32_t i = 0; i < op; i++) before |= row->optimizer[i] || p->ops[i].phase == LB_PHASE_BACKWARD;
    for (uint32_t i = op + 1; i < p->n_ops; i++)
        if (row->optimizer[i] || p->ops[i].phase == LB_PHASE_BACKWARD) return false;
    return before;
}

void lb_stage_culprit_between_steps(const lb_bisect_session *q, lb_culprit *c)
{
    const lb_trace_row *row = c->row == LB_NONE ? NULL : lb_trace_find(q->trace, c->ranks[0], c->step);
    if (!row || !stands_behind(row, c->row)) return;
    for (uint32_t s = 0; s + 1 < q->n_steps; s++)
        if (q->steps[s] == c->step) c->between = true, c->acts = q->steps[s + 1];
}

static void fill_in(const lb_program *p, lb_culprit *c, lb_err *err)
{
    lb_slice_flow *flow;
    lb_blocks blocks;
    lb_owners *owners;
    snprintf(c->layer, sizeof c->layer, "%s", lb_op_layer(p, &p->ops[c->row]));
    snprintf(c->op, sizeof c->op, "%s", lb_op_name(p, &p->ops[c->row]));
    c->phase = (lb_phase)p->ops[c->row].phase;
    if (lb_slice_flow_new(p, &flow, err) != LB_OK) return;
    if (lb_owners_new(flow, NULL, &owners, err) == LB_OK) {
        place_culprit(p, owners, c);
        lb_owners_free(owners);
    }
    if (lb_blocks_find(p, flow, &blocks, err) == LB_OK) {
        c->block = blocks.letters[scope_called(p, c->layer)];
        lb_blocks_release(&blocks);
    }
    lb_slice_flow_free(flow);
}

lb_status lb_stage_culprit_add(lb_bisect_session *q, lb_bisect_axis axis, int32_t rank, int64_t step, uint32_t row,
                               lb_culprit **culprit, lb_err *err)
{
    lb_bisection *b = q->out;
    lb_culprit *more = lb_array_grow(b->culprits, b->n_culprits, sizeof *more);
    if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    b->culprits = more;
    lb_culprit *c = &b->culprits[b->n_culprits];
    *c = (lb_culprit){.axis = axis, .row = row, .step = step};
    c->ranks = malloc(sizeof *c->ranks);
    if (!c->ranks) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    c->ranks[0] = rank, c->n_ranks = 1;
    b->n_culprits++;
    b->outcome = LB_BISECT_FOUND;
    const lb_program *p = lb_trial_program(q, rank, step);
    if (p && row != LB_NONE) fill_in(p, c, err);
    *culprit = c;
    return LB_OK;
}

lb_status lb_stage_cure_set(lb_bisect_session *q, const lb_sites *sites, const uint32_t *found, uint32_t n, lb_err *err)
{
    uint64_t *set = calloc(LB_SITE_WORDS(sites->n) + 1, sizeof *set);
    if (!set) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; i < n; i++) set[found[i] / 64] |= (uint64_t)1 << (found[i] % 64);
    lb_sites_release(&q->cure);
    lb_status status = lb_sites_append(&q->cure, sites, found ? set : NULL, err);
    free(set);
    return status;
}

lb_status lb_stage_sites_add_steps(const lb_bisect_session *q, const lb_site_form *form, uint32_t n, lb_sites *sites,
                                   lb_err *err)
{
    for (uint32_t s = 0; s < n; s++) {
        char body[32];
        snprintf(body, sizeof body, "%" PRId64, q->steps[s]);
        LB_TRY(lb_sites_add(sites, form, body, err));
    }
    return LB_OK;
}

void lb_stage_step_list(const lb_bisect_session *q, const uint32_t *rows, uint32_t n, char *list, size_t size)
{
    list[0] = '\0';
    for (uint32_t i = 0; i < n; i++) {
        size_t used = strlen(list);
        snprintf(list + used, size - used, "%s%" PRId64, i ? "," : "", q->steps[rows[i]]);
    }
}

double lb_stage_value_largest(const lb_bisect_session *q, const lb_program *p, uint32_t value)
{
    lb_tensor tensor;
    lb_statistics s = {0};
    if (p->values[value].statistics != LB_NONE)
        s = p->statistics[p->values[value].statistics];
    else if (lb_capture_value(q->capture, p, value, &tensor, NULL) == LB_OK)
        s = lb_statistics_of(&tensor);
    return s.elements > lb_statistics_nonfinite(&s) ? fmax(fabs(s.min), fabs(s.max)) : 0;
}

lb_status lb_stage_culprit_all_ranks(lb_bisect_session *q, lb_culprit *c, lb_err *err)
{
    int32_t *more = lb_array_reserve(c->ranks, c->n_ranks, q->n_ranks - c->n_ranks, sizeof *more);
    if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    c->ranks = more;
    memcpy(c->ranks, q->ranks, q->n_ranks * sizeof *more);
    c->n_ranks = q->n_ranks;
    return LB_OK;
}
