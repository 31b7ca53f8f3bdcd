/* Differences of two implementations over several steps: a place that differs in each step, or in each turn of a loop,
 * is one place, and so is an option of the optimizer that several of its ops are called with. */
#ifndef LB_BISECT_DIFFERENCE_STEPS_H
#define LB_BISECT_DIFFERENCE_STEPS_H

#include "diff/diff_report.h"

/* Joins them, counts the steps of each (its effect is that of the first), drops updates of later steps that follow from
 * a forward pass of an earlier one, and sorts: by step, then the largest effect first. */
void lb_difference_steps_join(lb_diff_report *report);

#endif
