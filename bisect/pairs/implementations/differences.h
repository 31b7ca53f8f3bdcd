/* Every difference of two implementations that lies in a place of its own, and what each one does.
 *
 *   1. B goes on from A's numbers at every counterpart: what is apart is apart by itself (regions.h). Values that
 *   regions share become counterparts.
 *   2. Each region that can be (exchange.h) is put right in B, and the search goes on: what it hid shows. Arguments
 *   that were exchanged for
 *      nothing are not what differs there.
 *   3. The effect of each: how far what leaves A moves when that region alone is B's. */
#ifndef LB_BISECT_DIFFERENCES_H
#define LB_BISECT_DIFFERENCES_H

#include "implementations/implementations.h"

/* Behind a free run of both sides that are not the same. Fills the regions. */
lb_status lb_differences_find(lb_implementations *x, lb_err *err);
/* Anew, without a look behind what was found: several that lie between the same two places where the sides meet are one
 * region. */
lb_status lb_differences_find_whole(lb_implementations *x, lb_err *err);
/* Behind free runs that agree but for slack (slack.h): is nothing apart from place to place either? `x->same` and
 * `x->judged` say that. */
lb_status lb_differences_prove(lb_implementations *x, lb_err *err);
/* A's numbers at every counterpart for B's next run, and taken away again. */
void lb_differences_force(lb_implementations *x);
void lb_differences_unforce(lb_implementations *x);
/* Which values of the last runs are the same quantity. */
lb_status lb_differences_meet(lb_implementations *x, lb_err *err);
/* What is apart in the last run of B, as it was compared and met. */
lb_status lb_differences_regions(const lb_implementations *x, lb_regions *out, lb_err *err);
/* Makes regions of one difference one row (lb_regions_join_alike). False when out of memory. */
bool lb_differences_join(const lb_implementations *x, lb_regions *regions);
/* Numbers of B's at a counterpart in the place of A's own for A's next run, and taken away again. False: A has them in
 * a window, where nothing can be put. */
bool lb_differences_put_into_first(lb_implementations *x, const lb_counterpart *counterpart, const double *numbers);
void lb_differences_take_back(lb_implementations *x, const lb_counterpart *counterpart);
/* How far what leaves A has moved, at most, in numbers that lb_exact_side_run_aside kept. */
double lb_differences_of_exits(const lb_implementations *x, double *const *moved);
/* Does the counterpart leave the step? */
bool lb_differences_leave(const lb_counterpart *counterpart);

#endif
