/* Adds rows to the report for what leaves the step: parameters at its end, results of outermost calls, inputs of
 * decisions, and results that no op reads. */
#ifndef LB_BISECT_DIFF_LEAVING_H
#define LB_BISECT_DIFF_LEAVING_H

#include "diff/diff_walk.h"

/* To be called after the walk, which has left its taints. */
void lb_diff_walk_leaving(lb_diff_walk *walk);

#endif
