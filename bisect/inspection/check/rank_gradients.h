/* Gradients of ranks that run together, parameter by parameter: between rank_gradients.c, which asks for all of them at
 * once, rank_reads.c and rank_parameters.c. */
#ifndef LB_BISECT_RANK_GRADIENTS_H
#define LB_BISECT_RANK_GRADIENTS_H

#include "check/rank_copies.h"

/* See check_step.c. */
#define LB_RANK_LEAST 1e-4

/* Its gradients are known on all ranks that hold it, and follow from these losses, a bit each, or another rank's. */
bool lb_rank_gradients_follow(const lb_rank_copies *copies, lb_check_step *steps, uint32_t group, uint64_t roots);
/* What each optimizer read beside what backward gave; false when out of memory. */
bool lb_rank_reads_judge(const lb_rank_copies *copies, lb_check_step *steps);
/* The gradients of ranks that hold parts of a model are not the derivative of their losses: which parameters' are not,
 * in one rank's hands or in all. */
lb_status lb_rank_parameters_locate(const lb_rank_copies *copies, lb_check_step *steps, uint64_t roots, lb_err *err);
/* Parameters that got no gradient on any rank, though autograd was to follow them, and that the losses depend on. */
lb_status lb_rank_parameters_detached(const lb_rank_copies *copies, lb_check_step *steps, uint64_t roots, lb_err *err);

#endif
