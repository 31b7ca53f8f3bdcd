/* Cones: see dependency_slice.h.
 * What lies between a culprit and a failure is the intersection of a forward slice from the one
 * with a backward slice from the other: a chop (Jackson and Rollins 1994), over recorded executions
 * of several steps and ranks at once.
 *
 *      culprit ─▶ forward: reached[] ──┐
 *                                      ├─▶ kept; what kept ops read besides becomes a source
 *      failure ─▶ backward ────────────┘
 *
 * A slice alone proves nothing: it holds what may matter, and whether the program subset still fails alike
 * is decided by bisecting it (reduce.c). So a doubt here is settled by keeping less; the larger
 * candidates come after. */
#include "reproduce/dependency_parts.h"

#include "program/block.h"

#include "base/array.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- parts ------------------------------------------------------------------------------------------------------- */

/* Storages outlive steps while values are numbered anew in each: what a step left for the next is
 * found by storage, in a sorted list, since a scan of each earlier step for each source would be
 * quadratic. */
static int by_storage(const void *a, const void *b)
{
    const lb_dependency_slice_writer *x = a, *y = b;
    if (x->storage != y->storage) return x->storage < y->storage ? -1 : 1;
    return x->op < y->op ? -1 : x->op > y->op;
}

static lb_status list_writers(lb_dependency_slice_part *t, lb_err *err)
{
    const lb_program *p = t->program;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const lb_op *op = &p->ops[i];
        if (op->flags & LB_OP_VIEW) continue;
        for (uint32_t r = 0; r < op->results + op->written; r++) {
            uint32_t v = lb_op_outcome(p, op, r);
            if (v == LB_NONE) continue;
            lb_dependency_slice_writer *more = lb_array_grow(t->writers, t->n_writers, sizeof *more);
            if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
            t->writers = more;
            t->writers[t->n_writers++] = (lb_dependency_slice_writer){p->values[v].storage, i};
        }
    }
    if (t->n_writers) qsort(t->writers, t->n_writers, sizeof *t->writers, by_storage);
    return LB_OK;
}

lb_status lb_dependency_slice_init(lb_dependency_slice *slice, lb_bisect_session *q, int64_t first_step, lb_err *err)
{
    *slice = (lb_dependency_slice){.q = q};
    slice->parts = calloc((size_t)q->n_steps * q->n_ranks + 1, sizeof *slice->parts);
    if (!slice->parts) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t s = 0; s < q->n_steps; s++)
        for (uint32_t r = 0; r < q->n_ranks; r++) {
            const lb_program *p = lb_trial_program(q, q->ranks[r], q->steps[s]);
            /* Steps behind the failure cannot have led to it. */
            if (!p || q->steps[s] < first_step || q->steps[s] > q->failure.step) continue;
            lb_dependency_slice_part *t = &slice->parts[slice->n++];
            t->program = p;
            t->wanted = -1;
            t->anchor = LB_NONE;
            t->seeded = calloc((size_t)p->n_ops + 1, 1);
            t->reached = calloc((size_t)p->n_ops + 1, 1);
            t->pass = calloc((size_t)p->n_ops + 1, 1);
            t->fates = calloc((size_t)p->n_ops + 1, 1);
            if (!t->seeded || !t->reached || !t->pass || !t->fates) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
            LB_TRY(lb_slice_flow_new(p, &t->flow, err));
            LB_TRY(list_writers(t, err));
        }
    return LB_OK;
}

void lb_dependency_slice_release(lb_dependency_slice *slice)
{
    for (uint32_t k = 0; k < slice->n; k++) {
        lb_slice_flow_free(slice->parts[k].flow);
        free(slice->parts[k].writers);
        free(slice->parts[k].seeded);
        free(slice->parts[k].reached);
        free(slice->parts[k].pass);
        free(slice->parts[k].fates);
    }
    free(slice->parts);
    *slice = (lb_dependency_slice){0};
}

uint64_t lb_dependency_slice_kept(const lb_dependency_slice *slice)
{
    uint64_t kept = 0;
    for (uint32_t k = 0; k < slice->n; k++)
        for (uint32_t i = 0; i < slice->parts[k].program->n_ops; i++)
            kept += slice->parts[k].fates[i] == LB_PROGRAM_SUBSET_KEEP ||
                    slice->parts[k].fates[i] >= LB_PROGRAM_SUBSET_PASS;
    return kept;
}

/* ---- from part to part ------------------------------------------------------------------------------------------- */

const lb_value *lb_dependency_slice_source(const lb_program *p, uint32_t op)
{
    return &p->values[lb_op_results(p, &p->ops[op])[0]];
}

uint32_t lb_dependency_slice_writers_of(const lb_dependency_slice_part *t, int64_t storage, uint32_t *last)
{
    const uint32_t low = (uint32_t)lb_array_first(t->writers, t->n_writers, sizeof t->writers[0], &storage, lb_by_i64);
    for (*last = low; *last < t->n_writers && t->writers[*last].storage == storage; ++*last) continue;
    return low;
}

const lb_collective *lb_dependency_slice_collective(const lb_program *p, uint32_t op)
{
    for (uint32_t i = 0; i < p->n_collectives; i++)
        if (p->collectives[i].op == op) return &p->collectives[i];
    return NULL;
}

uint32_t lb_dependency_slice_partner(const lb_program *p, const lb_collective *c, const lb_program *other)
{
    for (uint32_t i = 0; i < other->n_collectives; i++)
        /* A group counts its collectives in one order on all members; names of ops and places in
         * the program differ between ranks. */
        if (other->collectives[i].sequence == c->sequence &&
            !strcmp(lb_program_text(other, other->collectives[i].group), lb_program_text(p, c->group)))
            return other->collectives[i].op;
    return LB_NONE;
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

bool lb_dependency_layer_is_within(const char *path, const char *layer)
{
    return *layer && lb_program_name_extends(path, layer);
}

lb_status lb_dependency_slice_block_around(const lb_dependency_slice_part *t, const char *layer, char *path,
                                           size_t size, lb_err *err)
{
    lb_blocks blocks;
    snprintf(path, size, "%s", layer);
    LB_TRY(lb_blocks_find(t->program, t->flow, &blocks, err));
    for (uint32_t i = 0; i < blocks.n; i++) {
        const char *block = lb_program_text(t->program, t->program->scopes[blocks.rows[i].scope].path);
        if (lb_dependency_layer_is_within(layer, block)) snprintf(path, size, "%s", block);
    }
    lb_blocks_release(&blocks);
    return LB_OK;
}
