/* Which ranks of the run with more of them stand for a rank of the other: by the axes of their meshes
 * (lastbit/shard.h), where these have names in common, else in order.
 *
 *      tp = 2            rank 0, rank 1
 *      dp = 2, tp = 2    rank 0 is dp 0 tp 0, rank 1 dp 0 tp 1, rank 2 dp 1 tp 0, rank 3 dp 1 tp 1: 0 and 2 stand for
 *                        0, 1 and 3 for 1
 *
 * Private to diff*.c. */
#ifndef LB_BISECT_RANK_ORDER_H
#define LB_BISECT_RANK_ORDER_H

#include <lastbit/program.h>

/* Programs of all ranks, in order, of the run with fewer and of that with more; a multiple. The latter are put in
 * order, where meshes told it; false when out of memory. */
bool lb_rank_order(const lb_program *const *few, uint32_t n_few, const lb_program **many, uint32_t n_many, bool *told);

#endif
