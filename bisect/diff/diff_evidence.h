/* What is known of an aligned pair when it is judged (diff_judge.h): its arguments, the shadows, and what its difference leads to. */
#ifndef LB_BISECT_DIFF_EVIDENCE_H
#define LB_BISECT_DIFF_EVIDENCE_H

#include "diff_judge.h"
#include "diff_walk.h"

lb_evidence lb_walk_evidence(const lb_walk *walk, uint32_t a, const lb_inflow *in);
/* Does the pair's difference lead to what leaves the step? */
bool lb_walk_leads(const lb_walk *walk, uint32_t a);
/* The divergence at the pair; NULL: none. */
const lb_divergence *lb_walk_divergence(const lb_walk *walk, uint32_t a);

#endif
