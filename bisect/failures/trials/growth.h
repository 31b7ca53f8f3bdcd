/* Where numbers grew too large while they stayed finite: an observation beside the verdict, as origin.h is for what
 * broke.
 *
 * What outlives a step comes first: a parameter that optimizers made more than 8 times as large since the window began,
 * or a parameter, buffer or state that some other op outside the modules made a hundred times as large, or nothing at
 * all. Of several the earliest write counts, and of an update what it was made of. Otherwise the first step is sought
 * in which an op gives more than a hundred times what it gave in the step before: the step in which it happened, not
 * that in which it showed.
 */
#ifndef LB_BISECT_GROWTH_H
#define LB_BISECT_GROWTH_H

#include "trials/trial.h"

/* Fills `origin` from the bisection's trace; leaves it as it is when nothing grew so much. */
void lb_growth_find(const lb_bisect_session *session, lb_origin *origin);
/* What op `broken` of that step made of its numbers may be the fault of an op that wrote what it was computed from, in
 * that step or an earlier one: fills `origin` then. False: it is not, or a gradient that grew explains it. */
bool lb_growth_read(const lb_bisect_session *session, const lb_trace_row *row, uint32_t broken, lb_origin *origin);

#endif
