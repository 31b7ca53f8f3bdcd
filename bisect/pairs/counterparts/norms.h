/* Norms, whatever ops they are made of: what they give, and what they normalise.
 *
 *      A   native_layer_norm(x, w, b)          B   x ─▶ sub(mean of rows) ─▶ div(deviation of rows) ─▶ mul w ─▶ add b
 *          mul(w, mul(x, rsqrt(…)))                x ─▶ mul w ─▶ mul rsqrt(…)        the factor of the rows may come behind the weight's
 *
 * x is the sum that a residual stream carries. Where both sides' norms read one weight, their x stand for the same
 * thing, too: a difference in one block then never reaches the sums of the next one. Invariant: of a pair without a
 * difference each such x is equal on both sides, or none is taken. The numbers of the first one tell: where they agree
 * all are taken; where not (a side that carries the stream at another scale), none. */
#ifndef LB_BISECT_NORMS_H
#define LB_BISECT_NORMS_H

#include "counterparts/counterparts.h"

/* The result with the factor of its rows, where the next op takes that; else the value itself. */
uint32_t lb_norms_result(const lb_exact_side *side, uint32_t value);
/* What was normalised to give it; LB_NONE: it is no norm's result. */
uint32_t lb_norms_input(const lb_exact_side *side, uint32_t result);
/* Behind free runs. Adds an anchor for what each pair of norms normalises. LB_ERR_NOMEM is the only failure. */
lb_status lb_norms_find(const lb_exact_side *a, const lb_exact_side *b, lb_counterparts *counterparts, lb_err *err);

#endif
