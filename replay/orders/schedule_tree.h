/* The tree of additions that a schedule makes of n terms. */
#ifndef LB_REPLAY_SCHEDULE_TREE_H
#define LB_REPLAY_SCHEDULE_TREE_H

#include "orders/schedule.h"
#include "orders/sum_tree.h"

/* `dtype` is that of the terms: a matrix unit's width and torch's lanes depend on it. A column is one of those that
 * torch sums in whole vectors of 4 * lanes. LB_ERR_INVALID for exact, which has no tree; LB_ERR_UNSUPPORTED for a unit
 * without the dtype. */
lb_status lb_schedule_tree(const lb_schedule *schedule, uint32_t n, lb_sum_of of, lb_dtype dtype, lb_sum_tree **tree,
                           lb_err *err);

#endif
