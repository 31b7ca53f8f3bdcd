/* What one step leaves for the next on both sides, whatever it is called there: states of optimizers with other names
 * (`previous_grad` and `neg_pre_grad`, `m` and `exp_avg`), states that no optimizer holds, caches.
 *
 *      step t      A  v ──▶ left: digest 7f…       met: v and w are one quantity, element by element
 *                  B  w ──▶ left: digest c2…
 *      step t + 1  A begins with 7f…, B with c2…   so the two sources stand beside each other
 *
 * Both sides have rounded differently, so that the numbers themselves do not meet when step t + 1 begins; but each
 * side's source has the bytes that its own step left: lb_step_sources_match looks them up. */
#ifndef LB_BISECT_LEFT_VALUES_H
#define LB_BISECT_LEFT_VALUES_H

#include "exact/exact_side.h"
#include "counterparts/counterparts.h"
#include "sources/step_sources.h"

/* Behind the runs of a step: what stands beside each other at its end, element by element, and values that meet (`met`:
 * per value of B the one of A; lb_regions_meet), by the digests that each side recorded. False when out of memory. */
bool lb_left_values_learn(lb_source_memory *memory, const lb_exact_side *const sides[2],
                          const lb_counterparts *counterparts, const uint32_t *met);
/* A parameter that was given other memory (`p.data = …`), which no op tells, begins the next step with what some op of
 * this one gave: where that is not what its memory was left with, it stands in the place of that. */
void lb_left_values_follow(const lb_source_memory *memory, const lb_exact_side *const sides[2],
                           lb_counterparts *counterparts);
/* Behind runs in which all that leaves agrees. States that each side keeps of a parameter, and whose numbers do not
 * agree: a second moment with another rate, whose first update its correction hides.
 *
 *      A  g ─▶ v = 0.05 g g ─▶ next step            w' of both sides agree, v and u are nothing of the other side's:
 *      B  g ─▶ u = 0.01 g g ─▶ next step            of the gradient of one parameter one is left on either side
 *
 * They become counterparts, where there is one on each side that follows from the gradient of one parameter, that the
 * next step begins with, and that has no like on the other (`met`: lb_regions_meet of both). `*any`: some did.
 * LB_ERR_NOMEM is the only failure. */
lb_status lb_left_values_pair(const lb_source_memory *memory, const lb_exact_side *const sides[2],
                              uint32_t *const met[2], lb_counterparts *counterparts, bool *any, lb_err *err);

#endif
