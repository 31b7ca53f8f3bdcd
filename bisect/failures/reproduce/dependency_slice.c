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

static lb_status list_writers(lb_dependency_slice_part *part, lb_err *err)
{
    const lb_program *program = part->program;
    for (uint32_t i = 0; i < program->n_ops; i++) {
        const lb_op *op = &program->ops[i];
        if (op->flags & LB_OP_VIEW) continue;
        for (uint32_t r = 0; r < op->results + op->written; r++) {
            uint32_t v = lb_op_outcome(program, op, r);
            if (v == LB_NONE) continue;
            lb_dependency_slice_writer *more = lb_array_grow(part->writers, part->n_writers, sizeof *more);
            if (!more) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
            part->writers = more;
            part->writers[part->n_writers++] = (lb_dependency_slice_writer){program->values[v].storage, i};
        }
    }
    if (part->n_writers) qsort(part->writers, part->n_writers, sizeof *part->writers, by_storage);
    return LB_OK;
}

lb_status lb_dependency_slice_init(lb_dependency_slice *slice, lb_bisect_session *session, int64_t first_step,
                                   lb_err *err)
{
    *slice = (lb_dependency_slice){.session = session};
    slice->parts = calloc((size_t)session->n_steps * session->n_ranks + 1, sizeof *slice->parts);
    if (!slice->parts) return lb_fail(err, LB_ERR_NOMEM, "out of memory");
    for (uint32_t s = 0; s < session->n_steps; s++)
        for (uint32_t r = 0; r < session->n_ranks; r++) {
            const lb_program *program = lb_trial_program(session, session->ranks[r], session->steps[s]);
            /* Steps behind the failure cannot have led to it. */
            if (!program || session->steps[s] < first_step || session->steps[s] > session->failure.step) continue;
            lb_dependency_slice_part *part = &slice->parts[slice->n++];
            part->program = program;
            part->wanted = -1;
            part->anchor = LB_NONE;
            part->seeded = calloc((size_t)program->n_ops + 1, 1);
            part->reached = calloc((size_t)program->n_ops + 1, 1);
            part->pass = calloc((size_t)program->n_ops + 1, 1);
            part->fates = calloc((size_t)program->n_ops + 1, 1);
            if (!part->seeded || !part->reached || !part->pass || !part->fates)
                return lb_fail(err, LB_ERR_NOMEM, "out of memory");
            LB_TRY(lb_slice_flow_new(program, &part->flow, err));
            LB_TRY(list_writers(part, err));
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

const lb_value *lb_dependency_slice_source(const lb_program *program, uint32_t op)
{
    return &program->values[lb_op_results(program, &program->ops[op])[0]];
}

uint32_t lb_dependency_slice_writers_of(const lb_dependency_slice_part *part, int64_t storage, uint32_t *last)
{
    const uint32_t low =
        (uint32_t)lb_array_first(part->writers, part->n_writers, sizeof part->writers[0], &storage, lb_by_i64);
    for (*last = low; *last < part->n_writers && part->writers[*last].storage == storage; ++*last) continue;
    return low;
}

const lb_collective *lb_dependency_slice_collective(const lb_program *program, uint32_t op)
{
    for (uint32_t i = 0; i < program->n_collectives; i++)
        if (program->collectives[i].op == op) return &program->collectives[i];
    return NULL;
}

uint32_t lb_dependency_slice_partner(const lb_program *program, const lb_collective *collective,
                                     const lb_program *other)
{
    for (uint32_t i = 0; i < other->n_collectives; i++)
        /* A group counts its collectives in one order on all members; names of ops and places in
         * the program differ between ranks. */
        if (other->collectives[i].sequence == collective->sequence &&
            !strcmp(lb_program_text(other, other->collectives[i].group), lb_program_text(program, collective->group)))
            return other->collectives[i].op;
    return LB_NONE;
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

bool lb_dependency_layer_is_within(const char *path, const char *layer)
{
    return *layer && lb_program_name_extends(path, layer);
}

lb_status lb_dependency_slice_block_around(const lb_dependency_slice_part *part, const char *layer, char *path,
                                           size_t size, lb_err *err)
{
    lb_blocks blocks;
    snprintf(path, size, "%s", layer);
    LB_TRY(lb_blocks_find(part->program, part->flow, &blocks, err));
    for (uint32_t i = 0; i < blocks.n; i++) {
        const char *block = lb_program_text(part->program, part->program->scopes[blocks.rows[i].scope].path);
        if (lb_dependency_layer_is_within(layer, block)) snprintf(path, size, "%s", block);
    }
    lb_blocks_release(&blocks);
    return LB_OK;
}
