/* Are two captures two implementations of one model, to be compared by values alone? */
#ifndef LB_BISECT_STRANGERS_H
#define LB_BISECT_STRANGERS_H

#include "pair/program_view.h"

/* All ranks of each run, with ops; of one rank each, forward passes in one order. */
bool lb_strangers_may_be_compared(lb_capture *a, lb_capture *b);
/* And one rank each, without collectives. */
bool lb_strangers_run_alone(lb_capture *a, lb_capture *b);
/* And hardly a parameter of one has its name on the other: what lines up by names is chance. */
bool lb_strangers_are(lb_capture *a, lb_capture *b);
/* Has a parameter of one name its dimensions in another order on the other side? Then names do not say what is what. */
bool lb_strangers_hold_turned(lb_capture *a, lb_capture *b);
/* Or one side's adapters are in the other side's weights (merged_adapters.h): a tensor that both call base_layer.weight
 * is no pair then. */
bool lb_strangers_hold_merged(lb_capture *a, lb_capture *b);

/* Two runs of a model that learns nothing, and that are given the same input in other steps: a server's prefill and
 * decode steps beside one forward, a sequence a call beside a batch, a prefill in chunks. All steps of either side are
 * one program then (bisect/pairs/joined/joined_steps.h). */
enum { LB_STRANGERS_MOST_STEPS = 64 };

/* Of one rank on each side, whose steps in the window are `LB_STRANGERS_MOST_STEPS` at most. */
bool lb_strangers_are_cut(lb_capture *a, lb_capture *b, int64_t first, int64_t last);
/* The steps of the window, ascending; malloc'ed, NULL: out of memory, or one cannot be read. */
const lb_program **lb_strangers_steps(lb_capture *capture, int64_t first, int64_t last, uint32_t *n);

#endif
