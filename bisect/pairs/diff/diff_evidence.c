/* Evidence on a pair: see diff_evidence.h. */
#include "diff/diff_evidence.h"

#include "diff/diff_place.h"
#include "diff/diff_rows.h"
#include "diff/diff_values.h"

/* Is an outcome that differs an integer or a bool? */
static bool decides(const lb_diff_walk *w, uint32_t ia)
{
    const lb_op *a = &w->pa->ops[ia];
    const uint32_t ib = w->alignment.b_of_a[ia];
    for (uint32_t i = 0; i < lb_op_outcomes(a); i++) {
        const uint32_t va = lb_op_outcome(w->pa, a, i);
        if (va == LB_NONE || !lb_dtype_is_integer(lb_dtype_part(w->pa->values[va].dtype))) continue;
        if (ib == LB_NONE || i >= lb_op_outcomes(&w->pb->ops[ib])) return true;
        if (lb_diff_walk_value_differs(w, va, lb_op_outcome(w->pb, &w->pb->ops[ib], i))) return true;
    }
    return false;
}

static uint32_t node_of(const lb_diff_walk *w, uint32_t ia)
{
    return w->merged.node_of[0] ? w->merged.node_of[0][ia] : LB_NONE;
}

bool lb_diff_evidence_reaches_output(const lb_diff_walk *w, uint32_t ia)
{
    const uint32_t node = node_of(w, ia);
    return node != LB_NONE && w->divergences.leads && w->divergences.leads[node];
}

const lb_divergence *lb_diff_evidence_of_divergence(const lb_diff_walk *w, uint32_t ia)
{
    const uint32_t node = node_of(w, ia);
    if (node == LB_NONE || !w->divergence_of || w->divergence_of[node] == LB_NONE) return NULL;
    return &w->divergences.list[w->divergence_of[node]];
}

lb_evidence lb_diff_walk_evidence(const lb_diff_walk *w, uint32_t ia, const lb_diff_flow_source *in)
{
    const uint32_t ib = lb_diff_rows_partner(w, ia), join = w->alignment.join_of_a[ia];
    const lb_op *a = &w->pa->ops[ia], *b = &w->pb->ops[ib];
    lb_evidence e = {.inputs_differ = in->differ, .replayed = w->have_shadows};
    e.same_args = lb_op_same_args(w->pa, a, w->pb, b, join == LB_NONE ? 0 : w->alignment.joins.list[join].parts);
    e.args_follow = !e.same_args && lb_place_args_follow(w, ia, ib);
    e.irregular = w->alignment.irregular[ia];
    e.swapped = w->swapped;
    e.random = a->flags & LB_OP_RANDOM;
    e.decides = decides(w, ia);
    e.inputs_apart = lb_diff_evidence_reaches_output(w, ia) && !lb_diff_evidence_of_divergence(w, ia);
    e.leads = lb_diff_evidence_reaches_output(w, ia);
    if (!w->have_shadows) return e;
    const lb_shadow_row *row = &w->shadows.rows[ia];
    e.agreement = w->shadows.meets[0] && w->shadows.meets[0][ia] != LB_NONE ? LB_SHADOW_AGREES : row->agreement;
    e.own[0] = row->own[0], e.own[1] = row->own[1];
    e.order[0] = row->order[0], e.order[1] = row->order[1];
    /* Both shadows went on from A's result: that they agree behind it says nothing about the op. */
    if (e.own[0] == LB_VERDICT_OPAQUE || e.own[1] == LB_VERDICT_OPAQUE) e.agreement = LB_SHADOW_UNKNOWN;
    return e;
}
