/* What `lastbit replay` was asked for: its options as popt left them, and the plan that they make. */
#ifndef LB_REPLAY_CMD_PLAN_H
#define LB_REPLAY_CMD_PLAN_H

#include "command/command_line.h"

typedef struct lb_cmd_plan_request {
    char *mode, *steps, *ranks, *memory, *write, *select, *backend, *python;
    char **imports;
    int threads, coverage, kernels, worst, digest, force, table, routing, each;
    lb_command_swaps swaps;
} lb_cmd_plan_request;

/* The plan borrows from the request, and its ranks live until the next call. LB_ERR_INVALID names the option that is
 * wrong, or those that do not go together. */
lb_status lb_cmd_plan_make(const lb_cmd_plan_request *request, lb_plan *plan, lb_err *err);
/* The plan's swaps with what each of them touched, as every report of `replay --json` has them. */
json_t *lb_plan_swaps_json(const lb_plan *plan);
/* PyTorch is to run some ops, or all that are not known. */
bool lb_cmd_plan_request_wants_torch(const lb_cmd_plan_request *request);
void lb_cmd_plan_request_release(lb_cmd_plan_request *request);

#endif
