/* Replays one side of a comparison: exactly the programs (ranks and steps) that the side is made of, and no others of
 * its capture. */
#ifndef LB_BISECT_SIDE_REPLAY_H
#define LB_BISECT_SIDE_REPLAY_H

#include "pair/program_view.h"

#include <lastbit/replay.h>

/* Runs all ranks and steps of the side under `plan`. The plan's window and ranks are set here. */
lb_status lb_side_replay(const lb_program_view *side, lb_plan plan, const lb_observer *observer,
                         lb_replay_summary *summary, lb_err *err);

#endif
