/* A rank without the fault beside the one that has it: the same ops of another rank, so that a rank's fault can be told
 * from one of all. */
#include "reproduce/dependency_slice.h"

#include "pair/op_kind.h"

#include <string.h>

/* The op of `other` in the same place: the k-th of its name in its layer and phase.
 * Counting is a scan of both programs for each op that is kept, and what is kept is small by then. */
static uint32_t twin_of(const lb_program *program, uint32_t op, const lb_program *other)
{
    uint32_t place = 0;
    for (uint32_t i = 0; i < op; i++) place += lb_op_same_place(program, op, program, i);
    for (uint32_t i = 0; i < other->n_ops; i++)
        if (lb_op_same_place(program, op, other, i) && place-- == 0) return i;
    return LB_NONE;
}

static bool copy_fates(const lb_dependency_slice_part *from, lb_dependency_slice_part *to)
{
    for (uint32_t i = 0; i < from->program->n_ops; i++) {
        if (from->fates[i] == LB_PROGRAM_SUBSET_DROP) continue;
        uint32_t twin = twin_of(from->program, i, to->program);
        /* A peer with a hole in it would differ from the guilty rank by more than the fault. */
        if (twin == LB_NONE) return false;
        to->fates[twin] = from->fates[i];
        to->pass[twin] = from->pass[i];
    }
    to->used = true;
    return true;
}

bool lb_dependency_slice_add_peer(lb_dependency_slice *slice, const lb_culprit *culprit)
{
    int32_t peer = -1;
    /* Any rank without the fault will do, and the first is taken: a rank's fault is told from one
     * of all by having one healthy rank beside it. */
    bool any = false;
    for (uint32_t r = 0; r < slice->session->n_ranks && peer < 0; r++) {
        bool guilty = false;
        for (uint32_t k = 0; k < culprit->n_ranks; k++) guilty |= culprit->ranks[k] == slice->session->ranks[r];
        if (!guilty) peer = slice->session->ranks[r];
    }
    for (uint32_t k = 0; k < slice->n; k++)
        if (slice->parts[k].used && slice->parts[k].program->rank == peer) return true; /* a collective brought it */
    for (uint32_t k = 0; k < slice->n; k++)
        for (uint32_t j = 0; j < slice->n && slice->parts[k].used; j++) {
            lb_dependency_slice_part *other = &slice->parts[j];
            if (other->program->rank != peer || other->program->step != slice->parts[k].program->step || other->used)
                continue;
            if (!copy_fates(&slice->parts[k], other)) return false;
            any = true;
        }
    return any;
}
