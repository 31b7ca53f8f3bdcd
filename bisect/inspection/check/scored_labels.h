/* What the labels of a step and the gradients of its scores say by themselves: which token each row is scored against,
 * and what the tokens weigh in the losses that were differentiated. */
#ifndef LB_BISECT_SCORED_LABELS_H
#define LB_BISECT_SCORED_LABELS_H

#include "check/check_step.h"
#include "tokens/scored_rows.h"

/* False when out of memory. */
bool lb_scored_labels_judge(lb_check_step *step, const lb_scored_step *scored);

#endif
