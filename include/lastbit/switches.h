/* Switches: what each of several swaps does by itself. A set of fusions, orders or precisions is tried one by one: each
 * alone, and each left out of all of them; how far the outermost output and the loss move tells which of them matter,
 * and whether they add up.
 *
 * Simplest use:
 *
 *     lb_plan plan = LB_PLAN_INIT;                       // with its swaps; plan.touched has room for a count of each
 *     lb_switch_table table;
 *     lb_replay *replay;
 *     LB_TRY(lb_replay_open(capture, &replay, err));
 *     lb_status status = lb_switch_table_make(capture, replay, &plan, &table, err);
 *     lb_switch_table_release(&table);
 *     lb_replay_close(replay);
 *     return status;
 */
#ifndef LASTBIT_SWITCHES_H
#define LASTBIT_SWITCHES_H

#include <lastbit/replay.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Relative Euclidean distances from the same replay without any swap; NaN where the chain ended before. */
typedef struct lb_switch_move {
    double output, loss;
} lb_switch_move;

/* At the end of one step of one rank. */
typedef struct lb_switch_step_end {
    int64_t step;
    int32_t rank;
    char *output; /* the last module that gave more than one number; "": the outermost itself, or none */
    lb_switch_move all;
    lb_switch_move *alone;   /* per swap */
    lb_switch_move *without; /* per swap: all of them but this one */
} lb_switch_step_end;

typedef struct lb_switch_table {
    uint32_t n_swaps;
    lb_switch_step_end *endings; /* by rank and step */
    uint32_t n_endings;
    bool *undecided; /* per swap: alone, its chain ended */
} lb_switch_table;

/* Replays the plan's window (chained) 2 + 2 n times for n swaps, 3 times for one. plan->touched is filled. The table is
 * to be released also after a failure. */
LB_API lb_status lb_switch_table_make(lb_capture *capture, lb_replay *replay, const lb_plan *plan,
                                      lb_switch_table *table, lb_err *err);
LB_API void lb_switch_table_release(lb_switch_table *table);

#ifdef __cplusplus
}
#endif
#endif
