/* What goes from masters back to the parameters that forward reads, once their optimizer has updated them: the same
 * numbers, rounded. */
#ifndef LB_BISECT_MASTER_COPIES_H
#define LB_BISECT_MASTER_COPIES_H

#include "check/check_step.h"

/* Findings, what is proven and what is left, in the step's report. False when out of memory. */
bool lb_master_copies_judge(lb_check_step *step);

#endif
