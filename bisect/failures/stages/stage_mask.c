/* The mask stage: a row of attention that is -inf throughout makes NaN in every layer that reads the mask. The layers
 * are no culprits: what wrote the mask is. See stages.h.
 *
 * Asked only where the numbers went bad in a softmax that reads -inf (origin.h). From it back along what holds -inf,
 * over steps, to what no layer computes: each such op, or source, the nearest first, with 0 for what is not finite in
 * it.
 */
#include "stages/stages.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CANDIDATES = 12 };

/* What may be changed, and what is named then: the op of an earlier step that wrote what a source shows. */
typedef struct place {
    const lb_trace_row *row, *writer_row;
    uint32_t op, writer;
} place;

typedef struct path {
    place rows[MAX_CANDIDATES];
    uint32_t n;
} path;

/* Holds -inf and nothing worse. */
static bool holds_mask(const lb_trace_row *row, uint32_t op)
{
    return lb_trace_nonfinite(row, op) && !(row->sums[op].nan || row->sums[op].inf > row->sums[op].masked);
}

static bool outside(const lb_trace_row *row, uint32_t op, const char *layer)
{
    const char *mine = lb_op_layer(row->program, &row->program->ops[op]);
    const size_t n = strlen(layer);
    return !n || strncmp(mine, layer, n) || (mine[n] && mine[n] != '.');
}

/* The last op of the step that leaves -inf in the storage. */
static uint32_t last_writer(const lb_trace_row *row, int64_t storage)
{
    const lb_program *program = row->program;
    for (uint32_t i = program->n_ops; i-- > 0;) {
        const lb_op *op = &program->ops[i];
        for (uint32_t r = 0; r < op->results + op->written && !(op->flags & LB_OP_VIEW); r++) {
            const uint32_t v = lb_op_outcome(program, op, r);
            if (v != LB_NONE && program->values[v].storage == storage && holds_mask(row, i)) return i;
        }
    }
    return LB_NONE;
}

static void add_place(path *found, const lb_trace_row *row, uint32_t op)
{
    if (found->n < MAX_CANDIDATES) found->rows[found->n++] = (place){row, row, op, op};
}

static int64_t storage_of_source(const lb_program *program, uint32_t op)
{
    return program->values[lb_op_results(program, &program->ops[op])[0]].storage;
}

/* Everything in that step before `last` that holds -inf and leads to it; a source that an earlier step wrote is where
 * the walk goes on (`*carried`), or is named by who wrote it where the replay takes its recorded bytes. */
static void walk_step(const lb_trace_row *row, const lb_trace_row *before, uint8_t *marks, uint32_t last,
                      const char *layer, path *found, uint32_t *carried)
{
    const lb_program *program = row->program;
    const lb_slice_flow *flow = row->flow;
    for (uint32_t i = last + 1; i-- > 0;) {
        if (!marks[i]) continue;
        for (uint32_t e = flow->first_def[i]; e < flow->first_def[i + 1]; e++)
            if (holds_mask(row, flow->defs[e])) marks[flow->defs[e]] = 1;
        const bool source = lb_op_is_source(program, &program->ops[i]); /* also a buffer of the layer that reads it */
        if (i == last || program->ops[i].flags & LB_OP_VIEW || (!source && !outside(row, i, layer))) continue;
        const uint32_t writer = source && before ? last_writer(before, storage_of_source(program, i)) : LB_NONE;
        if (writer != LB_NONE &&
            program->values[lb_op_results(program, &program->ops[i])[0]].source == LB_SOURCE_CARRIED) {
            *carried = writer;
            continue;
        }
        add_place(found, row, i);
        if (writer != LB_NONE && found->rows[found->n - 1].op == i)
            found->rows[found->n - 1].writer_row = before, found->rows[found->n - 1].writer = writer;
    }
}

static lb_status find_path(const lb_bisect_session *session, const lb_trace_row *row, uint32_t softmax, path *found,
                           lb_err *err)
{
    char layer[160];
    uint32_t last = softmax;
    snprintf(layer, sizeof layer, "%s", lb_op_layer(row->program, &row->program->ops[softmax]));
    while (row && last != LB_NONE) {
        const lb_trace_row *before = NULL;
        for (uint32_t s = 0; s < session->n_steps && session->steps[s] < row->program->step; s++)
            before = lb_trace_find(session->trace, row->program->rank, session->steps[s]);
        uint8_t *marks = calloc((size_t)row->program->n_ops + 1, 1);
        uint32_t carried = LB_NONE;
        if (!marks) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
        marks[last] = 1;
        if (last != softmax) add_place(found, row, last);
        walk_step(row, before, marks, last, layer, found, &carried);
        free(marks);
        row = before, last = carried;
    }
    return LB_OK;
}

static lb_status blame(lb_bisect_session *session, const place *at, lb_err *err)
{
    const lb_program *program = at->writer_row->program;
    lb_culprit *culprit;
    LB_TRY(lb_stage_culprit_add(session, LB_AXIS_SOURCE, (lb_stage_place){program->rank, program->step, at->writer},
                                &culprit, err));
    LB_TRY(lb_stage_culprit_all_ranks(session, culprit, err));
    snprintf(culprit->why, sizeof culprit->why,
             "A mask leaves a row no key: every softmax that reads it gives NaN there. This %s -inf into it. "
             "With 0 in its place, %s, the window ends without the failure.",
             lb_op_is_source(program, &program->ops[at->writer]) ? "brings" : "writes", lb_stage_besides(session));
    return LB_OK;
}

static lb_status try_place(lb_bisect_session *session, const place *at, bool *found, lb_err *err)
{
    const lb_program *program = at->row->program;
    lb_sites site = {0};
    lb_search_outcome outcome = LB_OUTCOME_SAME;
    char before[80], body[16];
    snprintf(before, sizeof before, "step=%" PRId64 "&index=", program->step);
    snprintf(body, sizeof body, "%u", at->op);
    lb_site_form form = {lb_op_is_source(program, &program->ops[at->op]) ? LB_SWAP_SOURCE : LB_SWAP_KERNEL, "finite",
                         before, "", ','};
    lb_status status = lb_sites_add(&site, &form, body, err);
    lb_sites_name(&site, "0 for -inf in what %s of step %" PRId64 " gives", lb_op_name(program, &program->ops[at->op]),
                  program->step);
    if (status == LB_OK) status = lb_trial_run(session, &site, NULL, "whole", &outcome, err);
    *found = status == LB_OK && outcome == LB_OUTCOME_CURED;
    if (*found) status = lb_stage_cure_set(session, &site, NULL, 0, err);
    if (*found && status == LB_OK) status = blame(session, at, err);
    lb_sites_release(&site);
    return status;
}

lb_status lb_stage_mask(lb_bisect_session *session, bool *found, lb_err *err)
{
    const lb_origin *origin = &session->out->origin;
    const lb_trace_row *row = origin->op == LB_NONE ? NULL : lb_trace_find(session->trace, origin->rank, origin->step);
    path back = {.n = 0};
    if (!row || !strstr(origin->name, "softmax") || strstr(origin->name, "backward") || !row->sums[origin->op].nan)
        return LB_OK;
    LB_TRY(find_path(session, row, origin->op, &back, err));
    if (!back.n) return LB_OK;
    LB_TRY(lb_trial_stage_begin(session, "mask", err));
    for (uint32_t i = 0; i < back.n && !*found; i++) LB_TRY(try_place(session, &back.rows[i], found, err));
    lb_trial_stage_end(session, *found ? "cured" : "cleared",
                       *found ? "with 0 for -inf in it" : "fails with 0 for -inf in what no layer computes, too");
    return LB_OK;
}
