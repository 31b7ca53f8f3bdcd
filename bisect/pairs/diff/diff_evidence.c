/* Evidence on a pair: see diff_evidence.h. */
#include "diff/diff_evidence.h"

#include "diff/diff_place.h"
#include "diff/diff_rows.h"
#include "diff/diff_values.h"

/* Is an outcome that differs an integer or a bool? */
static bool decides(const lb_diff_walk *walk, uint32_t ia)
{
    const lb_op *op = &walk->pa->ops[ia];
    const uint32_t ib = walk->alignment.b_of_a[ia];
    for (uint32_t i = 0; i < lb_op_outcomes(op); i++) {
        const uint32_t va = lb_op_outcome(walk->pa, op, i);
        if (va == LB_NONE || !lb_dtype_is_integer(lb_dtype_part(walk->pa->values[va].dtype))) continue;
        if (ib == LB_NONE || i >= lb_op_outcomes(&walk->pb->ops[ib])) return true;
        if (lb_diff_walk_value_differs(walk, va, lb_op_outcome(walk->pb, &walk->pb->ops[ib], i))) return true;
    }
    return false;
}

static uint32_t node_of(const lb_diff_walk *walk, uint32_t ia)
{
    return walk->merged.node_of[0] ? walk->merged.node_of[0][ia] : LB_NONE;
}

bool lb_diff_evidence_reaches_output(const lb_diff_walk *walk, uint32_t a)
{
    const uint32_t node = node_of(walk, a);
    return node != LB_NONE && walk->divergences.leads && walk->divergences.leads[node];
}

const lb_divergence *lb_diff_evidence_of_divergence(const lb_diff_walk *walk, uint32_t a)
{
    const uint32_t node = node_of(walk, a);
    if (node == LB_NONE || !walk->divergence_of || walk->divergence_of[node] == LB_NONE) return NULL;
    return &walk->divergences.list[walk->divergence_of[node]];
}

lb_evidence lb_diff_walk_evidence(const lb_diff_walk *walk, uint32_t ia, const lb_diff_flow_source *in)
{
    const uint32_t ib = lb_diff_rows_partner(walk, ia), join = walk->alignment.join_of_a[ia];
    const lb_op *a = &walk->pa->ops[ia], *b = &walk->pb->ops[ib];
    lb_evidence evidence = {.inputs_differ = in->differ, .replayed = walk->have_shadows};
    evidence.same_args =
        lb_op_same_args(walk->pa, a, walk->pb, b, join == LB_NONE ? 0 : walk->alignment.joins.list[join].parts);
    evidence.args_follow = !evidence.same_args && lb_place_args_follow(walk, ia, ib);
    evidence.irregular = walk->alignment.irregular[ia];
    evidence.swapped = walk->swapped;
    evidence.random = a->flags & LB_OP_RANDOM;
    evidence.decides = decides(walk, ia);
    evidence.inputs_apart = lb_diff_evidence_reaches_output(walk, ia) && !lb_diff_evidence_of_divergence(walk, ia);
    evidence.leads = lb_diff_evidence_reaches_output(walk, ia);
    if (!walk->have_shadows) return evidence;
    const lb_shadow_row *row = &walk->shadows.rows[ia];
    evidence.agreement =
        walk->shadows.meets[0] && walk->shadows.meets[0][ia] != LB_NONE ? LB_SHADOW_AGREES : row->agreement;
    evidence.own[0] = row->own[0], evidence.own[1] = row->own[1];
    evidence.order[0] = row->order[0], evidence.order[1] = row->order[1];
    /* Both shadows went on from A's result: that they agree behind it says nothing about the op. */
    if (evidence.own[0] == LB_VERDICT_OPAQUE || evidence.own[1] == LB_VERDICT_OPAQUE)
        evidence.agreement = LB_SHADOW_UNKNOWN;
    return evidence;
}
