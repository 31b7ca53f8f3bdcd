/* Routing of two runs: which choices of experts differ, and by how little.
 *
 * A flip is an expert that A chose for a token and B did not, paired as in replay/session/expert_flip.h with one that B
 * chose in its place. Its margin is A's router logit of that expert less A's logit of the other. A near tie has a
 * margin of at most 8 u max|logit| of that token, u the unit roundoff of the logits' dtype. A flip is explained when
 * its margin is no more than what the two logits moved by between the sides: then the sides route alike, from inputs
 * that differ.
 */
#ifndef LB_BISECT_ROUTING_DIFF_H
#define LB_BISECT_ROUTING_DIFF_H

#include "pair/align.h"
#include "pair/regenerated.h"

#include <lastbit/diff.h>

/* Adds the layers of one step whose routing was recorded on both sides: of a rank against its partner, or against the
 * ranks that stand for it. Those share out its tokens, or each has all of them. */
lb_status lb_routing_diff_add(const lb_program_view *a, const lb_program_view *b, const lb_layer_names_map *rules,
                              lb_diff_report *report, lb_err *err);

#endif
