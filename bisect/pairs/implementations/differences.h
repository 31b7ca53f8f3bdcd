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
/* Behind free runs that agree but for slack (slack.h): is nothing apart from place to place either? `x->same` and
 * `x->judged` say that. */
lb_status lb_differences_prove(lb_implementations *x, lb_err *err);
/* A's numbers at every counterpart for B's next run, and taken away again. */
void lb_differences_force(lb_implementations *x);
void lb_differences_unforce(lb_implementations *x);
/* Which values of the last runs are the same quantity. */
lb_status lb_differences_meet(lb_implementations *x, lb_err *err);
/* Does the counterpart leave the step? */
bool lb_differences_leave(const lb_counterpart *counterpart);

#endif
