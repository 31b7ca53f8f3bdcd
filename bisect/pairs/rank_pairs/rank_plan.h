/* Which ranks of two runs stand against each other, settled once for all steps.
 *
 * Of n and m·n ranks m of the one stand against each of the other, by their meshes (rank_order.h), else by the tensors
 * that they hold alike, else in order. Where one run shares out its weights and the other its batch, ranks with one
 * batch have the same activations between their layers: one of them stands for all, and what other batches it is made
 * of is put together.
 *
 *      tp = 2    rank 0 [ batch x, y ]   rank 1 [ batch x, y ]        rank 0 stands against both of the others, rank 1
 *                against none
 *      dp = 2    rank 0 [ batch x ]      rank 1 [ batch y ]
 *
 * Private to diff*.c. */
#ifndef LB_BISECT_RANK_PLAN_H
#define LB_BISECT_RANK_PLAN_H

#include "pair/program_view.h"

/* Index 0 is the first side. */
typedef struct lb_rank_plan {
    uint32_t n[2];
    uint32_t *order[2]; /* rows of the programs that it was made of, in the order in which they are put together */
    uint32_t *group[2], *copy_of[2]; /* in that order, as in lb_program_view; NULL */
    /* per side: the grid of the ranks that are put together, where no mesh tells it; 0: none */
    uint32_t outer[2], inner[2];
    int coarse; /* where there are groups: the side that is to be A */
} lb_rank_plan;

/* Of a step's programs, rank by rank. LB_ERR_NOMEM is the only failure. */
lb_status lb_rank_plan_make(const lb_program *const *const programs[2], const uint32_t n[2], lb_rank_plan *plan,
                            lb_err *err);
/* The programs of a side in order. */
bool lb_rank_plan_sort(const lb_rank_plan *plan, int side, const lb_program **programs);
lb_status lb_rank_plan_apply(const lb_rank_plan *plan, int side, lb_program_view *view, lb_err *err);
void lb_rank_plan_release(lb_rank_plan *plan);

#endif
