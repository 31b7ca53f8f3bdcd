/* Parameters of a program that makes new ones in every step, as programs of functions do, and writes none in its place.
 *
 *      w ─▶ forward ─▶ backward ─▶ g          in place      w -= lr * u           the memory of w holds what it ends as
 *      └───────────────────────┐   └▶ u       anew          n  = w - lr * u       the next step begins with n
 *                              └─▶ n
 */
#ifndef LB_BISECT_GIVEN_ANEW_H
#define LB_BISECT_GIVEN_ANEW_H

#include "exact/exact_side.h"

/* The last value of the source's shape that an op behind backward gives from it, and that nothing reads; LB_NONE: there
 * is none, as in a step without backward. */
uint32_t lb_given_anew(const lb_exact_side *side, uint32_t source);
/* The one value of backward of its shape that the new parameter follows from, element by element: its gradient;
 * LB_NONE: there is none, or several. */
uint32_t lb_given_anew_from(const lb_exact_side *side, uint32_t source);

#endif
