/* Casts of one side alone whose type cannot hold what they are given: numbers vanish, though in exact arithmetic
 * nothing differs.
 *
 *      entered ──▶ ops of one side alone, a cast among them ──▶ left
 *
 * `entered` and `left` are the same quantities on both sides in exact arithmetic, so that how far their recorded bits
 * are apart is rounding and nothing else. The cast is the place of a pair that is `rounding`, whatever differs before
 * it, if
 *   - it loses more than the unit roundoff of its type, which is all that a cast within the type's range can lose, and
 *   - both what it loses and what leaves are more than what entered differs by: it, and nothing before it, made most of
 *   the difference.
 * All are L2 norms of differences, relative to the values'. What becomes of the loss behind the first quantity that
 * both sides share again is not asked. Where bytes to measure are lacking, nothing is said. Private to diff*.c.
 */
#ifndef LB_BISECT_LOSSY_CAST_H
#define LB_BISECT_LOSSY_CAST_H

#include "diff/diff_walk.h"

/* Rows for such casts that lead to that pair, whose results agree in exact arithmetic; a cast is named once. */
void lb_lossy_casts_before(lb_diff_walk *walk, uint32_t op_a);
/* The same of two values that agree, given by these ops of either side. */
void lb_lossy_casts_of(lb_diff_walk *walk, const uint32_t ops[2], const uint32_t values[2]);

#endif
