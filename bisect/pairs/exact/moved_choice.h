/* Choices that a run makes anew. An exact run takes comparisons and maxima as they were recorded, so that rounding at a
 * tie flips none of them. A run that goes on from different numbers has nothing recorded that would fit:
 *
 *      recorded   q ─▶ max over places ─▶ place 3          the step's own numbers
 *      from A's   q'─▶ max over places ─▶ place 3 ?        q' is none of these: the run chooses by itself
 *
 * Only choices that no shape and no step of Python depends on: masks, places of maxima, the best of a router, as long
 * as ops alone read what is made of them, and none that gives as many results as they say (nonzero, a mask as an
 * index). */
#ifndef LB_BISECT_MOVED_CHOICE_H
#define LB_BISECT_MOVED_CHOICE_H

#include "exact/exact_side.h"

/* Does the side's running run compute this op of its program by itself? `kept` of the side is what ran before it.
 * `anew`, per value: a bool or whole numbers that were so computed; filled on the way. */
bool lb_moved_choice_is_made(const lb_exact_side *side, uint8_t *anew, uint32_t op);

#endif
