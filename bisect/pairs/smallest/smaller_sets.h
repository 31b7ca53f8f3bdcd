/* Differences that cancel each other: A with all of these of B leaves what A leaves.
 *
 * Subsets are gone through in the order in which their regions are computed, so that those with a common beginning
 * share its runs:
 *
 *      A from its own numbers ── B's region 0 put into A ─┬─ B from that A: its region 1 ── put into A, too
 *                                                         └─ … its region 2 ── put into A, too
 */
#ifndef LB_BISECT_SMALLER_SETS_H
#define LB_BISECT_SMALLER_SETS_H

#include "smallest/smallest_set.h"

/* Of up to MOST_TRIED regions that are not spared the largest subset, smaller than all, that moves nothing: a bit each
 * in `*cancel`, 0: none. `*tried`: all of them could be. */
lb_status lb_smaller_sets_find(lb_implementations *x, const uint8_t *spared, uint32_t *cancel, bool *tried,
                               lb_err *err);

#endif
