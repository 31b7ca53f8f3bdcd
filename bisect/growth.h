/* Where numbers grew too large while they stayed finite: an observation beside the verdict, as origin.h is for what broke.
 *
 * The first step is sought in which an op gives more than a hundred times what it gave in the step before, or in which an
 * optimizer makes a parameter more than thirty times as large: the step in which it happened, not that in which it showed.
 */
#ifndef LB_BISECT_GROWTH_H
#define LB_BISECT_GROWTH_H

#include "trial.h"

/* Fills `origin` from the inquiry's trace; leaves it as it is when nothing grew so much. */
void lb_growth_find(const lb_inquiry *inquiry, lb_origin *origin);
/* What op `broken` of that step made of finite numbers may be the fault of who wrote a parameter that it was computed from:
 * fills `origin` when one of them was made more than 10^4 times as large, in that step or the one before. False: none was. */
bool lb_growth_read(const lb_inquiry *inquiry, const lb_trace_row *row, uint32_t broken, lb_origin *origin);

#endif
