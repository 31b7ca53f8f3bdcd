/* Finds, for each value of B, in how many interleaved blocks its parts are concatenated. Parts interleave where the
 * batch is not the first dimension and is flattened together with the tokens before it, and where one projection holds
 * queries, keys and values and each rank has a shard of all three.
 *
 *      whole [t, b]   t0b0 t0b1 | t1b0 t1b1      two parts, in two blocks:  t0b0, t1b0 and t0b1, t1b1
 *
 * The number of blocks does not follow from the shapes. For a source it is found from its bits. From there views hand
 * it on, and so do ops that compute along the same dimension. */
#ifndef LB_BISECT_CUT_BLOCKS_H
#define LB_BISECT_CUT_BLOCKS_H

#include "pair/align.h"

/* Fills `b->blocks`. The alignment has to be complete. LB_ERR_NOMEM is the only failure. */
lb_status lb_cut_blocks_find(const lb_program_view *a, const lb_program_view *b, const lb_alignment *alignment,
                             lb_err *err);

#endif
