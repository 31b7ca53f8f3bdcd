/* What the two sides of a step are made of, before any number is looked at: ops without a partner, layer by layer, and
 * parameters that one side lacks or has in another shape or dtype. */
#ifndef LB_BISECT_DIFF_STRUCTURE_H
#define LB_BISECT_DIFF_STRUCTURE_H

#include "diff/diff_walk.h"

/* A row of the report for each layer in which a side has ops of its own. */
void lb_diff_walk_list_structure(lb_diff_walk *walk);
/* A parameter that one side lacks is reported as missing, another shape or dtype as diverged. LB_ERR_NOMEM is the only
 * failure. */
lb_status lb_diff_structure_list_parameters(lb_diff_walk *walk, lb_err *err);

#endif
