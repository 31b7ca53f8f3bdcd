/* States without a common name: the moments that a hand-written optimizer keeps in a dict, against those of the
 * library's.
 *
 *      step n     A: exp_avg.lerp_(g, 0.1)  ─┐ the same in exact arithmetic (exact_match.h): one quantity
 *                 B: m.mul_(0.9).add_(g, …) ─┘
 *      step n+1   A reads optimizer.exp_avg:w, B reads a tensor without a name: the storages have met, so these are
 *                 partners
 *
 * The same holds for what any other op left, and a next step reads: caches, log-probabilities of an older policy.
 *
 * Only numbers that rounding does not make can have met: the moments of a key's bias, whose gradient is zero in exact
 * arithmetic, agree with those of any other key. They are partners because of what they are to their parameter: A's
 * exp_avg and the first that B keeps of it, as with the parameters whose moments met.
 *
 * Private to diff*.c. */
#ifndef LB_BISECT_MET_STORAGES_H
#define LB_BISECT_MET_STORAGES_H

#include "merged/merged_steps.h"

/* Storages of the first and of the second side that held one quantity at the end of the last step. */
typedef struct lb_met_storages {
    int64_t (*list)[2];
    uint32_t n;
    /* Those that one pair of ops left, whether or not numbers tell, and those that were paired here. */
    int64_t (*shared)[2];
    uint32_t n_shared;
} lb_met_storages;

/* Takes what has met in a step, and `exits` that agree, in place of what had met before. `swapped`: A is the second
 * side. LB_ERR_NOMEM is the only failure. */
lb_status lb_met_storages_note(lb_met_storages *met, const lb_program_view *a, const lb_program_view *b,
                               const lb_merged_steps *steps, const lb_step_outputs *exits, bool swapped, lb_err *err);
/* Pairs carried sources that have no partner, when their storages met, or when they are to partner parameters what
 * others are that met. LB_ERR_NOMEM is the only failure. */
lb_status lb_met_storages_pair(lb_met_storages *met, const lb_program_view *a, const lb_program_view *b, bool swapped,
                               lb_alignment *alignment, lb_err *err);
/* Is what two carried sources without a name hold known to be one quantity? That ops in one place read them does not
 * say so: what one side keeps may be scaled once more, or be of an earlier step. */
bool lb_met_storages_shared(const lb_met_storages *met, int64_t a, int64_t b, bool swapped);
void lb_met_storages_release(lb_met_storages *met);

#endif
