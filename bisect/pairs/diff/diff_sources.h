/* What enters a step with other numbers on the two sides. Private to diff*.c. */
#ifndef LB_BISECT_DIFF_SOURCES_H
#define LB_BISECT_DIFF_SOURCES_H

#include "diff/diff_walk.h"

/* The row of a source of A: what the step before left differently is inherited, the same numbers in a narrower type are
 * rounding, and everything else is a difference of its own. What a part of the run that was not compared may have left
 * is `missing`. */
void lb_diff_walk_source(lb_diff_walk *walk, uint32_t ia);

#endif
