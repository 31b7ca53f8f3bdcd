/* Numbers that stop being finite on one side only.
 *
 * A cast to half that overflows is the identity in exact arithmetic, and still more than rounding. Where something that
 * leaves the step is finite on one side and not on the other, the sides have parted at the op that made the first
 * non-finite number from finite ones. Private to diff*.c. */
#ifndef LB_BISECT_DIFF_NONFINITE_H
#define LB_BISECT_DIFF_NONFINITE_H

#include "diff/diff_walk.h"

/* Reports a row for each value that leaves the step like that, at the op where it began. Needs walk->merged, exits and
 * shadows. */
void lb_diff_nonfinite(lb_diff_walk *walk);

#endif
