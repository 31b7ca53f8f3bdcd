/* `lastbit replay --each`: every swap by itself, and left out of all of them. */
#ifndef LB_REPLAY_CMD_SWITCHES_H
#define LB_REPLAY_CMD_SWITCHES_H

#include <lastbit/replay.h>

/* Makes the table over the plan's window and prints it. `*undecided`: some chain ended. */
lb_status lb_switches_print(lb_capture *capture, lb_replay *replay, const lb_plan *plan, bool json, bool *undecided,
                            lb_err *err);

#endif
