/* Flow along storages: see diff_flow.h and taint.h. */
#include "diff_flow.h"

#include "diff_values.h"

void lb_inflow_add(lb_inflow *in, const lb_inflow *more)
{
    in->verdict = lb_report_worse(in->verdict, more->verdict);
    in->carried = lb_report_worse(in->carried, more->carried);
    in->differ |= more->differ, in->apart |= more->apart, in->flipped |= more->flipped;
    if (in->suspect == LB_NONE || (more->suspect != LB_NONE && more->suspect < in->suspect))
        in->suspect = more->suspect;
}

/* Equal bits bring nothing, whatever wrote the rest of their storage. */
static void note_input(lb_walk *w, lb_inflow *in, uint32_t va, uint32_t vb)
{
    if (va == LB_NONE) return;
    /* Views have no digest: what is known of their storage counts. */
    bool unknown = lb_digest_is_none(w->pa->values[va].logical) ||
                   (vb != LB_NONE && lb_digest_is_none(w->pb->values[vb].logical));
    if (vb != LB_NONE && !unknown && !lb_walk_value_differs(w, va, vb)) return;
    const lb_taint *t = lb_taint_of(w->storages, w->pa->values[va].storage);
    const bool differs =
        (vb != LB_NONE && !unknown) || t->verdict != LB_VERDICT_IDENTICAL || t->carried != LB_VERDICT_IDENTICAL;
    lb_inflow_add(in, &(lb_inflow){t->verdict, t->carried, differs, t->apart, t->flipped, t->suspect});
}

static void note_args(lb_walk *w, lb_inflow *in, const lb_arg *a, uint32_t na, const lb_arg *b, uint32_t nb)
{
    for (uint32_t i = 0; i < na; i++) {
        const lb_arg *other = b && i < nb && b[i].tag == a[i].tag ? &b[i] : NULL;
        if (a[i].tag == LB_ARG_VALUE) note_input(w, in, a[i].u.value, other ? other->u.value : LB_NONE);
        if (a[i].tag == LB_ARG_LIST)
            note_args(w, in, w->pa->args + a[i].u.first, a[i].count,
                      other ? w->pb->args + other->u.first : NULL, other ? other->count : 0);
    }
}

lb_inflow lb_flow_in(lb_walk *w, const lb_op *a, const lb_op *b)
{
    lb_inflow in = {LB_VERDICT_IDENTICAL, LB_VERDICT_IDENTICAL, false, false, false, LB_NONE};
    note_args(w, &in, lb_op_args(w->pa, a), a->args, b ? lb_op_args(w->pb, b) : NULL, b ? b->args : 0);
    return in;
}

void lb_flow_out(lb_walk *w, const lb_op *op, const lb_taint *from)
{
    for (uint32_t i = 0; i < lb_outcomes(op); i++) {
        uint32_t v = lb_outcome(w->pa, op, i);
        if (v == LB_NONE) continue;
        lb_taint *t = lb_taint_of(w->storages, w->pa->values[v].storage);
        bool whole = w->pa->values[v].layout.offset == 0 && i < op->results && !(op->flags & LB_OP_MUTABLE);
        if (whole) *t = LB_TAINT_CLEAN(t->storage);
        t->verdict = lb_report_worse(t->verdict, from->verdict);
        t->carried = lb_report_worse(t->carried, from->carried);
        t->apart |= from->apart, t->flipped |= from->flipped;
        if (t->suspect == LB_NONE) t->suspect = from->suspect;
    }
}
