/* States without a common name: the moments that a hand-written optimizer keeps in a dict, against those of the library's.
 *
 *      step n     A: exp_avg.lerp_(g, 0.1)  ─┐ the same in exact arithmetic (exact_match.h): one quantity
 *                 B: m.mul_(0.9).add_(g, …) ─┘
 *      step n+1   A reads optimizer.exp_avg:w, B reads a tensor without a name: the storages have met, so these are partners
 *
 * Only numbers that rounding does not make can have met: the moments of a key's bias, whose gradient is zero in exact arithmetic, agree
 * with those of any other key. They are partners because of what they are to their parameter: A's exp_avg and the first that B keeps of
 * it, as with the parameters whose moments met.
 *
 * Private to diff*.c. */
#ifndef LB_BISECT_MET_STORAGES_H
#define LB_BISECT_MET_STORAGES_H

#include "merged_steps.h"

/* Storages of the first and of the second side that held one quantity at the end of the last step. */
typedef struct lb_met_storages {
    int64_t (*list)[2];
    uint32_t n;
} lb_met_storages;

/* Takes what has met in a step in place of what had met before. `swapped`: A is the second side. LB_ERR_NOMEM is the only failure. */
lb_status lb_met_storages_note(lb_met_storages *met, const lb_program_view *a, const lb_program_view *b,
                               const lb_merged_steps *steps, bool swapped, lb_err *err);
/* Pairs carried sources that have no partner, when their storages met, or when they are to partner parameters what others are that met.
 * LB_ERR_NOMEM is the only failure. */
lb_status lb_met_storages_pair(const lb_met_storages *met, const lb_program_view *a, const lb_program_view *b,
                               bool swapped, lb_alignment *alignment, lb_err *err);
void lb_met_storages_release(lb_met_storages *met);

#endif
