/* Parts that do not follow each other: a batch that is no first dimension any more and flattened with the tokens before
 * it, a projection in which queries, keys and values lie behind each other and ranks have some of each.
 *
 *      whole [t, b]   t0b0 t0b1 | t1b0 t1b1      two parts, in two blocks:  t0b0, t1b0 and t0b1, t1b1
 *
 * Shapes do not tell the blocks. Of a source its bits do; from there on views hand them on, and so does what is
 * computed along the same dimension. */
#ifndef LB_BISECT_CUT_BLOCKS_H
#define LB_BISECT_CUT_BLOCKS_H

#include "pair/align.h"

/* Fills `blocks` of B, of an alignment that is complete. LB_ERR_NOMEM is the only failure. */
lb_status lb_cut_blocks_find(const lb_program_view *a, const lb_program_view *b, const lb_alignment *alignment,
                             lb_err *err);

#endif
