/* What is known of an aligned pair when it is judged (diff_verdict.h): its arguments, the shadows, and what its
 * difference leads to. */
#ifndef LB_BISECT_DIFF_EVIDENCE_H
#define LB_BISECT_DIFF_EVIDENCE_H

#include "diff/diff_verdict.h"
#include "diff/diff_walk.h"

lb_evidence lb_diff_walk_evidence(const lb_diff_walk *walk, uint32_t a, const lb_diff_flow_source *in);
/* Does the pair's difference lead to what leaves the step? */
bool lb_diff_evidence_reaches_output(const lb_diff_walk *walk, uint32_t a);
/* The divergence at the pair; NULL: none. */
const lb_divergence *lb_diff_evidence_of_divergence(const lb_diff_walk *walk, uint32_t a);

#endif
