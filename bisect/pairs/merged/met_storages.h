/* Pairs optimizer states, and other memory kept from step to step, where the two sides have no common name for them.
 * For example, it pairs the moments that a hand-written optimizer keeps in a dict with those of the library's
 * optimizer.
 *
 *      step n     A: exp_avg.lerp_(g, 0.1)  ─┐ the same in exact arithmetic (exact_match.h): one quantity
 *                 B: m.mul_(0.9).add_(g, …) ─┘
 *      step n+1   A reads optimizer.exp_avg:w, B reads a tensor without a name: their storages have met, so that they
 *                 are partners
 *
 * The same holds for anything else that an op left and the next step reads: caches, log-probabilities of an older
 * policy.
 *
 * Storages meet only by numbers that are more than rounding noise. The gradient of a key's bias is zero in exact
 * arithmetic, so that its moments agree with those of any other key. Such states are paired by their parameter: A's
 * exp_avg with the first state that B keeps of it, as with those parameters whose moments met.
 *
 * Private to diff*.c. */
#ifndef LB_BISECT_MET_STORAGES_H
#define LB_BISECT_MET_STORAGES_H

#include "merged/merged_steps.h"

/* Storages of the first and of the second side that held one quantity at the end of the last step. */
typedef struct lb_met_storages {
    int64_t (*list)[2];
    uint32_t n;
    /* storages that one pair of ops left, whether or not their numbers tell anything, and those that were paired here
     */
    int64_t (*shared)[2];
    uint32_t n_shared;
} lb_met_storages;

/* Replaces what had met before by what met in this step, and by the `exits` that agree. `swapped`: A is the second
 * side. LB_ERR_NOMEM is the only failure. */
lb_status lb_met_storages_note(lb_met_storages *met, const lb_program_view *a, const lb_program_view *b,
                               const lb_merged_steps *steps, const lb_step_outputs *exits, bool swapped, lb_err *err);
/* Pairs carried sources without a partner where their storages met, or where they are to partner parameters what other
 * paired states are to theirs. LB_ERR_NOMEM is the only failure. */
lb_status lb_met_storages_pair(lb_met_storages *met, const lb_program_view *a, const lb_program_view *b, bool swapped,
                               lb_alignment *alignment, lb_err *err);
/* Are two carried sources without a name known to hold one quantity? It is not enough that ops in one place read both:
 * one side may keep it with another scale, or of an earlier step. */
bool lb_met_storages_shared(const lb_met_storages *met, int64_t a, int64_t b, bool swapped);
void lb_met_storages_release(lb_met_storages *met);

#endif
