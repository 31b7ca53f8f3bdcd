/* Finds and pairs what leaves a step besides its parameters: results of outermost module calls; inputs of ops whose
 * results the shadows take from a recording (decisions, collectives with missing members, opaque ops; cross_feed.h);
 * the loss, which is the one number that forward ends with, read or not; and values that the step creates and the next
 * step reads, such as the moments of an optimizer's first step.
 *
 * Ops are aligned by where they stand and what they are; a result is aligned by what it is for. So it is judged even
 * where only one side runs the ops that made it: a soft cap behind the last layer, a fused head. */
#ifndef LB_STEP_OUTPUTS_H
#define LB_STEP_OUTPUTS_H

#include "pair/collective_match.h"
#include "shadow/shadow_pair.h"

/* Two sides, how their ops are aligned, and the collectives of each. */
typedef struct lb_aligned_views {
    const lb_program_view *a, *b;
    const lb_alignment *alignment;
    const lb_collective_matches *collective_matches; /* of A and of B */
} lb_aligned_views;

/* Finds the results of outermost calls that both sides have, matched by the module's path, its call and the place among
 * the results, and inputs of aligned ops of the kinds above. `rules` map the paths of A and of B. Sides with different
 * numbers of parts have none. `lone`: a result that only one side has, in words, or "". LB_ERR_NOMEM is the only
 * failure. */
lb_status lb_step_outputs_find(const lb_aligned_views *views, const lb_layer_names_map *const rules[2],
                               lb_step_outputs *exits, char lone[300], lb_err *err);
void lb_step_outputs_release(lb_step_outputs *exits);

#endif
