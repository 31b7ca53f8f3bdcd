/* Where numbers grew too large while they stayed finite. It is told beside the verdict and decides nothing, as origin.h
 * does for numbers that did not stay finite.
 *
 * What outlives a step is looked at first: a parameter that optimizers made more than 8 times as large since the
 * window began; or a parameter, buffer or state that another op outside the modules made a hundred times as large or a
 * million times as small. Of several such writes the earliest is named, and of an update the op that made what it
 * adds. Where there is no such write, the first step is named in which an op gives more than a hundred times what it
 * gave in the step before: the step in which it happened, not the one in which it showed.
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
