/* Running the window again: unchanged, which gives the trace that the stages read, or with one change, which gives an
 * outcome.
 *
 * The unchanged run keeps a checkpoint at the beginning of each of its steps. A changed run begins at the latest
 * checkpoint before which its change concerns no op: the steps before it would be computed and judged as they were.
 * Under `--memory` checkpoints may take what the replay itself leaves.
 */
#ifndef LB_BISECT_RERUN_H
#define LB_BISECT_RERUN_H

#include "trials/trial.h"

/* `what`: what was seen, "" when the change cures. */
lb_status lb_rerun(lb_bisect_session *session, const lb_sites *sites, const uint64_t *set, lb_search_outcome *outcome,
                   char *what, size_t size, lb_err *err);
/* The background's swaps and those of `set` (NULL: all); the caller frees them. */
lb_status lb_rerun_swaps(const lb_bisect_session *session, const lb_sites *sites, const uint64_t *set, lb_swap **swaps,
                         uint32_t *n, lb_err *err);
/* Chained over the window, nothing compared; swaps are still to be set. */
void lb_rerun_plan(const lb_bisect_session *session, lb_plan *plan);
/* Lets the plan begin where the checkpoints allow, when what the last unchanged run had as background is the plan's
 * first swaps. */
void lb_rerun_resume(const lb_bisect_session *session, lb_plan *plan);
void lb_rerun_release(lb_bisect_session *session);

#endif
