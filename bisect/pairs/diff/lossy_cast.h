/* Finds casts that only one side makes and whose target type cannot represent the numbers that it is given, so that
 * they are lost (underflow, for example). In exact arithmetic a cast is the identity, so the shadows show no
 * difference.
 *
 *      entered ──▶ ops of one side alone, a cast among them ──▶ left
 *
 * `entered` and `left` are the same quantities on both sides in exact arithmetic, so that a distance of their recorded
 * bits is rounding and nothing else. Whatever differs before it, the cast is named as the place of a pair that is
 * `rounding` if
 *   - it loses more than the unit roundoff of its type, which is all that a cast within the type's range can lose, and
 *   - its loss and the difference of what leaves are both larger than the difference of what entered: the cast made
 *   most of it.
 *
 * All are L2 norms of differences, relative to the values'. What becomes of the loss behind the first quantity that
 * both sides share again is not asked. Where bytes to measure are lacking, nothing is said. Private to diff*.c. */
#ifndef LB_BISECT_LOSSY_CAST_H
#define LB_BISECT_LOSSY_CAST_H

#include "diff/diff_walk.h"

/* Reports rows for such casts that lead to that pair, whose results agree in exact arithmetic; a cast is named once. */
void lb_lossy_casts_before(lb_diff_walk *walk, uint32_t op_a);
/* The same for two values that agree, given by these ops of the two sides. */
void lb_lossy_casts_of(lb_diff_walk *walk, const uint32_t ops[2], const uint32_t values[2]);

#endif
