/* What leaves a step by other ways than its parameters: the results of outermost module calls, and what goes into ops behind which both
 * exact shadows go on from one side's numbers (cross_feed.h): decisions, collectives whose members are not here, ops that nobody can run;
 * and what the step made anew and the next one takes up, as the moments of an optimizer's first step.
 *
 * Ops are aligned by where they stand and what they are; a result is aligned by what it is for. So it is judged even where the ops that
 * made it stand on one side only: a soft cap behind the last layer, a fused head.
 */
#ifndef LB_BISECT_EXITS_H
#define LB_BISECT_EXITS_H

#include "collective_match.h"
#include "shadow_pair.h"

/* The results of outermost calls that both sides have, matched by the module's path, its call and the place among the results, and inputs
 * of aligned ops of that kind; `meetings`: of A and of B, as in collective_match.h. Of sides of as many parts each; others have none. LB_ERR_NOMEM is the only failure. `*lone`: a result that one side alone has, in words, or "". */
lb_status lb_exits_find(const lb_program_view *a, const lb_program_view *b, const lb_map_rules *rules_a,
                        const lb_map_rules *rules_b, const lb_alignment *alignment,
                        const lb_collective_matches meetings[2], lb_exits *exits, char *lone, size_t lone_size,
                        lb_err *err);
void lb_exits_release(lb_exits *exits);

#endif
