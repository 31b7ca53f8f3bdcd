/* One side of a diff at one step. It holds the programs of all ranks and the single program that they are merged into.
 * lb_diff_half_compare compares two such sides, unless steps of the same number do different work on them. */
#ifndef LB_BISECT_DIFF_HALF_H
#define LB_BISECT_DIFF_HALF_H

#include "diff/diff_step.h"
#include "rank_pairs/rank_plan.h"

/* The programs of one side, and what they become. */
typedef struct lb_diff_half {
    lb_capture *capture;
    const int32_t *ranks;
    uint32_t n_ranks;
    const lb_program **programs; /* of the step at hand, in the order in which they are put together */
    lb_program_view side;
} lb_diff_half;

/* Reads the side's programs of that step. False: the side has no such step; lb_diff_half_close is to be called even
 * then. */
bool lb_diff_half_load(lb_diff_half *half, int64_t step);
/* Puts the programs of each side together. The first step that both sides have decides, for all steps, which ranks are
 * compared with each other. */
lb_status lb_diff_half_open_both(lb_diff_half *first, lb_diff_half *second, lb_rank_plan *plan, lb_err *err);
void lb_diff_half_close(lb_diff_half *half);
/* Compares the step at which both halves are open. */
lb_status lb_diff_half_compare(lb_diff_session *session, lb_diff_half *first, lb_diff_half *second,
                               lb_diff_walk_past *past, lb_err *err);

#endif
