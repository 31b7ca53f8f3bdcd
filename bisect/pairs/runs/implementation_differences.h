/* Places at which two implementations differ by themselves, as differences of a report: the ops, their layers and lines
 * on both sides, and why. */
#ifndef LB_BISECT_IMPLEMENTATION_DIFFERENCES_H
#define LB_BISECT_IMPLEMENTATION_DIFFERENCES_H

#include "runs/implementation_rows.h"

/* One for each region that has a place; a vague one has none. */
void lb_implementation_differences_add(lb_implementation_rows *rows);

#endif
