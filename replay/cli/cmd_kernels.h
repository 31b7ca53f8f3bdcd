/* `lastbit replay --kernels`: what could be computed differently in recorded steps, and how. */
#ifndef LB_REPLAY_CMD_KERNELS_H
#define LB_REPLAY_CMD_KERNELS_H

#include <lastbit/replay.h>

/* Prints the composites and ops of the steps and ranks of the plan with the kernels and orders that could take their
 * place. */
lb_status lb_kernels_print(lb_capture *capture, const lb_plan *plan, bool json, lb_err *err);

#endif
