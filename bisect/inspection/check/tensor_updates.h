/* The update of whole tensors beside the rule of the optimizer that their group names. */
#ifndef LB_BISECT_TENSOR_UPDATES_H
#define LB_BISECT_TENSOR_UPDATES_H

#include "check/check_step.h"
#include "moved/optimizer_step.h"

/* Of one group: findings, what is proven and what is left, in the step's report. False when out of memory. */
bool lb_tensor_updates_judge(lb_check_step *step, const lb_optimizer_step *updates, uint32_t group,
                             const lb_tensor_rule *rule, bool *found);
/* What keeps parameters of a group from being judged, whichever kind its rule is: numbers and counts that were not
 * recorded. False when out of memory. */
bool lb_tensor_updates_leave(lb_check_report *report, const char *what, uint32_t unseen, uint32_t uncounted);

#endif
