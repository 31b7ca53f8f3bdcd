/* Where the numbers went bad: from the failing result back along what it was computed from, to the op that made a
 * non-finite number of finite ones, or to the source that held one already. It is told beside the verdict and
 * is not the verdict: what is to blame is what the cure needs. Where no single change cures, it is all that the reader
 * gets. */
#ifndef LB_BISECT_ORIGIN_H
#define LB_BISECT_ORIGIN_H

#include "trials/trial.h"

/* Fills bisection->out->origin from the trace of the unchanged replay and the recorded statistics. `step` stays below
 * the window when nothing non-finite leads to the failure (a gross magnitude, a predicate). */
void lb_origin_find(lb_bisect_session *session);

#endif
