/* Flow along storages: see diff_flow.h and taint.h. */
#include "diff/diff_flow.h"

#include "diff/diff_values.h"

#include <string.h>

void lb_diff_flow_add(lb_diff_flow_source *in, const lb_diff_flow_source *more)
{
    in->verdict = lb_verdict_worse(in->verdict, more->verdict);
    in->carried = lb_verdict_worse(in->carried, more->carried);
    in->differ |= more->differ;
    if (more->met > in->met) in->met = more->met;
    for (int side = 0; side < 2; side++)
        if (more->lone[side] < in->lone[side]) in->lone[side] = more->lone[side];
}

static bool values_differ(const lb_diff_walk *w, int side, uint32_t mine, uint32_t theirs)
{
    return side ? lb_diff_walk_value_differs(w, theirs, mine) : lb_diff_walk_value_differs(w, mine, theirs);
}

/* Equal bits bring nothing, whatever wrote the rest of their storage. Views have no digest: what is known of their
 * storage counts. */
static void note_input(lb_diff_walk *w, int side, lb_diff_flow_source *in, uint32_t mine, uint32_t theirs)
{
    if (mine == LB_NONE) return;
    const lb_value *v = &lb_diff_walk_side(w, side)->values[mine];
    const bool unknown = theirs == LB_NONE || lb_digest_is_none(v->logical) ||
                         lb_digest_is_none(lb_diff_walk_side(w, !side)->values[theirs].logical);
    if (!unknown && !values_differ(w, side, mine, theirs)) return;
    const lb_taint *t = lb_taint_of(&w->storages[side], v->storage);
    lb_diff_flow_add(
        in, &(lb_diff_flow_source){t->verdict, t->carried, !unknown || t->differs, {t->lone[0], t->lone[1]}, t->met});
}

typedef struct args {
    const lb_arg *list;
    uint32_t n;
} args;

static args elements_of(const lb_program *p, const lb_arg *list)
{
    return list ? (args){p->args + list->u.first, list->count} : (args){NULL, 0};
}

static args one_of(args all, uint32_t i)
{
    return i < all.n ? (args){all.list + i, 1} : (args){NULL, 0};
}

static void note_args(lb_diff_walk *w, int side, lb_diff_flow_source *in, args mine, args theirs, int element)
{
    for (uint32_t i = 0; i < mine.n; i++) {
        const lb_arg *a = &mine.list[i], *other = i < theirs.n && theirs.list[i].tag == a->tag ? &theirs.list[i] : NULL;
        if (a->tag == LB_ARG_VALUE) note_input(w, side, in, a->u.value, other ? other->u.value : LB_NONE);
        if (a->tag != LB_ARG_LIST) continue;
        args list = elements_of(lb_diff_walk_side(w, side), a),
             others = elements_of(lb_diff_walk_side(w, !side), other);
        if (element != LB_ALL_ELEMENTS)
            list = one_of(list, (uint32_t)element), others = one_of(others, (uint32_t)element);
        note_args(w, side, in, list, others, LB_ALL_ELEMENTS);
    }
}

void lb_flow_in(lb_diff_walk *w, int side, uint32_t op, uint32_t other, int element, lb_diff_flow_source *in)
{
    const lb_program *mine = lb_diff_walk_side(w, side), *theirs = lb_diff_walk_side(w, !side);
    const lb_op *a = &mine->ops[op], *b = other == LB_NONE ? NULL : &theirs->ops[other];
    note_args(w, side, in, (args){lb_op_args(mine, a), a->args},
              b ? (args){lb_op_args(theirs, b), b->args} : (args){NULL, 0}, element);
}

/* Elements of the storage that any value of the program reaches. */
static bool covers(const lb_diff_walk *w, int side, const lb_value *v)
{
    int64_t first, last;
    if (lb_layout_dense_range(&v->layout, &first, &last, NULL) != LB_OK) return false;
    if (first != 0 || last - first != lb_layout_numel(&v->layout)) return false;
    const uint32_t storage = lb_slice_flow_storage(w->merged.flows[side], v->storage);
    return storage != LB_NONE && last >= w->extents[side][storage];
}

void lb_flow_out(lb_diff_walk *w, int side, uint32_t op, uint32_t i, const lb_diff_flow_source *left)
{
    const lb_program *p = lb_diff_walk_side(w, side);
    const uint32_t value = lb_op_outcome(p, &p->ops[op], i);
    if (value == LB_NONE) return;
    const lb_value *v = &p->values[value];
    lb_taint *t = lb_taint_of(&w->storages[side], v->storage);
    if (covers(w, side, v)) *t = LB_TAINT_CLEAN(t->storage);
    t->verdict = lb_verdict_worse(t->verdict, left->verdict);
    t->carried = lb_verdict_worse(t->carried, left->carried);
    t->differs |= left->differ;
    if (left->met > t->met) t->met = left->met;
    for (int k = 0; k < 2; k++)
        if (left->lone[k] < t->lone[k]) t->lone[k] = left->lone[k];
}
