/* Reports the sources (parameters, batches, random draws, unseen writes) that enter a step with different numbers on
 * the two sides, each with its verdict. Private to diff*.c. */
#ifndef LB_BISECT_DIFF_SOURCES_H
#define LB_BISECT_DIFF_SOURCES_H

#include "diff/diff_walk.h"

/* Reports the row of a source of A. What the step before left different is inherited; the same numbers in a narrower
 * type are rounding; every other difference is the source's own. What an uncompared part of the run may have left is
 * `missing`. */
void lb_diff_walk_source(lb_diff_walk *walk, uint32_t ia);

#endif
