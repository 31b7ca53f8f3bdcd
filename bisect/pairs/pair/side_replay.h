/* One side of a comparison replayed: of its capture the very programs that it holds. */
#ifndef LB_BISECT_SIDE_REPLAY_H
#define LB_BISECT_SIDE_REPLAY_H

#include "pair/program_view.h"

#include <lastbit/replay.h>

/* Replays what the side holds (all its ranks and steps) under `plan`, whose window is set here. */
lb_status lb_side_replay(const lb_program_view *side, lb_plan plan, const lb_observer *observer,
                         lb_replay_summary *summary, lb_err *err);

#endif
