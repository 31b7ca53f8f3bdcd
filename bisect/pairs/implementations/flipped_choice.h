/* A choice that fell differently on the two sides because of rounding, and not because they compute different things.
 *
 * Exact runs go on from the choices that were recorded (comparisons, the best of a router, places of maxima), so that
 * rounding at a tie moves none of them. Where both sides choose from the same numbers and the choices differ, one of
 * them was moved by the rounding before it, if it is not what the exact numbers say:
 *
 *      recorded   scores ─▶ top-k ─▶ {3, 7}
 *      exact      scores'─▶ top-k ─▶ {3, 5}      the recorded choice is none of these numbers': it has flipped
 *
 * A recorded choice that its exact numbers give was made by what the side computes, and what differs behind it is a
 * difference. */
#ifndef LB_BISECT_FLIPPED_CHOICE_H
#define LB_BISECT_FLIPPED_CHOICE_H

#include "implementations/region_op.h"

/* Is there in the region a choice from numbers that both sides have, without partner on the other side, of which it is
 * not known that the exact numbers give it? With `any` each one counts in a region of which a choice is named: behind a
 * difference it follows from what either side chose before. LB_ERR_NOMEM is the only failure. */
lb_status lb_flipped_choice_in(const lb_region_frontier *frontier, const lb_region *region, bool any, bool *flipped,
                               lb_err *err);

#endif
