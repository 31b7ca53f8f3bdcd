/* `lastbit replay --routing-report`: what routing has to do with a gap, and which choices of experts would change. */
#ifndef LB_REPLAY_CMD_ROUTING_H
#define LB_REPLAY_CMD_ROUTING_H

#include <lastbit/replay.h>

/* Runs the report over the plan's window and prints it. `most`: flips that are listed. `*differs`: some router has
 * changed itself. */
lb_status lb_routing_print(lb_capture *capture, lb_replay *replay, const lb_plan *plan, uint32_t most, bool json,
                           bool *differs, lb_err *err);

#endif
