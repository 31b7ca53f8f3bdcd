/* Flow along storages: see diff_flow.h and taint.h. */
#include "diff/diff_flow.h"
#include "pair/collective_match.h"

#include "diff/diff_values.h"

#include <string.h>

static void add_flow(lb_diff_flow_source *in, const lb_diff_flow_source *more)
{
    in->verdict = lb_verdict_worse(in->verdict, more->verdict);
    in->carried = lb_verdict_worse(in->carried, more->carried);
    in->differ |= more->differ;
    if (more->met > in->met) in->met = more->met;
    for (int side = 0; side < 2; side++)
        if (more->lone[side] < in->lone[side]) in->lone[side] = more->lone[side];
}

static bool values_differ(const lb_diff_walk *walk, int side, uint32_t mine, uint32_t theirs)
{
    return side ? lb_diff_walk_value_differs(walk, theirs, mine) : lb_diff_walk_value_differs(walk, mine, theirs);
}

/* Equal bits bring nothing, whatever wrote the rest of their storage. Views have no digest: what is known of their
 * storage counts. */
static void note_input(lb_diff_walk *walk, int side, lb_diff_flow_source *in, uint32_t mine, uint32_t theirs)
{
    if (mine == LB_NONE) return;
    const lb_value *value = &lb_diff_walk_side(walk, side)->values[mine];
    const bool unknown = theirs == LB_NONE || lb_digest_is_none(value->logical) ||
                         lb_digest_is_none(lb_diff_walk_side(walk, !side)->values[theirs].logical);
    if (!unknown && !values_differ(walk, side, mine, theirs)) return;
    const lb_taint *taint = lb_taint_of(&walk->storages[side], value->storage);
    add_flow(
        in,
        &(lb_diff_flow_source){
            taint->verdict, taint->carried, !unknown || taint->differs, {taint->lone[0], taint->lone[1]}, taint->met});
}

typedef struct args {
    const lb_arg *list;
    uint32_t n;
} args;

static args elements_of(const lb_program *program, const lb_arg *list)
{
    return list ? (args){program->args + list->u.first, list->count} : (args){NULL, 0};
}

static args one_of(args all, uint32_t i)
{
    return i < all.n ? (args){all.list + i, 1} : (args){NULL, 0};
}

static void note_args(lb_diff_walk *walk, int side, lb_diff_flow_source *in, args mine, args theirs, int element)
{
    for (uint32_t i = 0; i < mine.n; i++) {
        const lb_arg *arg = &mine.list[i],
                     *other = i < theirs.n && theirs.list[i].tag == arg->tag ? &theirs.list[i] : NULL;
        if (arg->tag == LB_ARG_VALUE) note_input(walk, side, in, arg->u.value, other ? other->u.value : LB_NONE);
        if (arg->tag != LB_ARG_LIST) continue;
        args list = elements_of(lb_diff_walk_side(walk, side), arg),
             others = elements_of(lb_diff_walk_side(walk, !side), other);
        if (element != LB_ALL_ELEMENTS)
            list = one_of(list, (uint32_t)element), others = one_of(others, (uint32_t)element);
        note_args(walk, side, in, list, others, LB_ALL_ELEMENTS);
    }
}

void lb_flow_in(lb_diff_walk *walk, int side, uint32_t op, uint32_t other, int element, lb_diff_flow_source *in)
{
    const lb_program *mine = lb_diff_walk_side(walk, side), *theirs = lb_diff_walk_side(walk, !side);
    const lb_op *a = &mine->ops[op], *b = other == LB_NONE ? NULL : &theirs->ops[other];
    note_args(walk, side, in, (args){lb_op_args(mine, a), a->args},
              b ? (args){lb_op_args(theirs, b), b->args} : (args){NULL, 0}, element);
}

/* Elements of the storage that any value of the program reaches. */
static bool covers(const lb_diff_walk *walk, int side, const lb_value *value)
{
    int64_t first, last;
    if (lb_layout_dense_range(&value->layout, &first, &last, NULL) != LB_OK) return false;
    if (first != 0 || last - first != lb_layout_numel(&value->layout)) return false;
    const uint32_t storage = lb_slice_flow_storage(walk->merged.flows[side], value->storage);
    return storage != LB_NONE && last >= walk->extents[side][storage];
}

void lb_flow_out(lb_diff_walk *walk, int side, uint32_t op, uint32_t i, const lb_diff_flow_source *left)
{
    const lb_program *program = lb_diff_walk_side(walk, side);
    const uint32_t value = lb_op_outcome(program, &program->ops[op], i);
    if (value == LB_NONE) return;
    const lb_value *v = &program->values[value];
    lb_taint *taint = lb_taint_of(&walk->storages[side], v->storage);
    if (covers(walk, side, v)) *taint = LB_TAINT_CLEAN(taint->storage);
    taint->verdict = lb_verdict_worse(taint->verdict, left->verdict);
    taint->carried = lb_verdict_worse(taint->carried, left->carried);
    taint->differs |= left->differ;
    if (left->met > taint->met) taint->met = left->met;
    for (int k = 0; k < 2; k++)
        if (left->lone[k] < taint->lone[k]) taint->lone[k] = left->lone[k];
}

lb_diff_flow_source lb_flow_in_all(lb_diff_walk *walk, uint32_t ia, int element)
{
    lb_diff_flow_source in = LB_INFLOW_NONE;
    const lb_alignment *al = &walk->alignment;
    const uint32_t b = al->b_of_a[ia];
    if (walk->collective_matches[0].of_op && walk->collective_matches[0].of_op[ia] != LB_NONE) return walk->brought;
    lb_flow_in(walk, 0, ia, b, element, &in);
    if (b != LB_NONE) lb_flow_in(walk, 1, b, ia, element, &in);
    if (al->join_of_a[ia] == LB_NONE) return in;
    const lb_reassembly *join = &al->joins.list[al->join_of_a[ia]];
    for (uint32_t k = 0; k < join->parts; k++)
        lb_flow_in(walk, 1, al->joins.part_ops[join->first + k], LB_NONE, element, &in);
    return in;
}

void lb_flow_meet(lb_diff_walk *walk, const lb_collective_match *exchange)
{
    walk->brought = LB_INFLOW_NONE;
    for (uint32_t k = 0; k < exchange->n; k++) {
        const uint32_t member = walk->collective_matches[0].ops[exchange->first + k],
                       b = walk->alignment.b_of_a[member];
        lb_flow_in(walk, 0, member, b, LB_ALL_ELEMENTS, &walk->brought);
        if (b != LB_NONE) lb_flow_in(walk, 1, b, member, LB_ALL_ELEMENTS, &walk->brought);
    }
}

void lb_flow_out_all(lb_diff_walk *walk, int side, uint32_t op, const lb_diff_flow_source *left)
{
    const lb_program *p = lb_diff_walk_side(walk, side);
    for (uint32_t i = 0; i < lb_op_outcomes(&p->ops[op]); i++) lb_flow_out(walk, side, op, i, left);
}

void lb_flow_out_pair(lb_diff_walk *walk, uint32_t ia, const lb_diff_flow_source *left)
{
    const lb_alignment *al = &walk->alignment;
    const lb_op *a = &walk->pa->ops[ia];
    const uint32_t ib = al->b_of_a[ia];
    const lb_diff_flow_source clean = LB_INFLOW_NONE;
    for (uint32_t i = 0; ib != LB_NONE && i < lb_op_outcomes(a); i++) {
        const uint32_t va = lb_op_outcome(walk->pa, a, i), vb = i < lb_op_outcomes(&walk->pb->ops[ib])
                                                                    ? lb_op_outcome(walk->pb, &walk->pb->ops[ib], i)
                                                                    : LB_NONE;
        const bool same = va != LB_NONE && vb != LB_NONE && !lb_digest_is_none(walk->pa->values[va].logical) &&
                          !lb_diff_walk_value_differs(walk, va, vb);
        lb_flow_out(walk, 0, ia, i, same ? &clean : left);
        if (vb != LB_NONE) lb_flow_out(walk, 1, ib, i, same ? &clean : left);
    }
    if (ib != LB_NONE) return;
    lb_flow_out_all(walk, 0, ia, left);
    if (al->join_of_a[ia] == LB_NONE) return;
    const lb_reassembly *join = &al->joins.list[al->join_of_a[ia]];
    for (uint32_t k = 0; k < join->parts; k++) lb_flow_out_all(walk, 1, al->joins.part_ops[join->first + k], left);
}
