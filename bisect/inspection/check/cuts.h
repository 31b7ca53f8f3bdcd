/* Where the derivative of a loss is a matter of intent: an op between parameters and a loss whose result has no
 * derivative, or none that autograd was to follow. */
#ifndef LB_BISECT_CUTS_H
#define LB_BISECT_CUTS_H

#include "check/check_step.h"

/* The first such op of forward from `from` on, and why; LB_NONE: there is none. */
uint32_t lb_cuts_next(const lb_check_step *step, uint32_t from, const char **why);
/* The first one that matters. What was run without a gradient and changes no loss whose bit `roots` has (a metric, the
 * shift of a softmax) does not: that is asked by exact runs, of `lead`, the first of ranks that run together. */
lb_status lb_cuts_find(lb_check_step *step, lb_moved_run *lead, uint64_t roots, uint32_t *op, const char **why,
                       lb_err *err);
/* Says that `what` is not judged for it; false when out of memory. */
bool lb_cuts_leave(lb_check_step *step, const char *what, uint32_t op, const char *why);

#endif
