/* Recognises where tokens are put in the order of their experts, to be computed expert by expert:
 *
 *   order = argsort(ids.flatten()); y = x[order // slots]
 *
 * as Hugging Face's `grouped_mm` and megablocks-like layers write it. The order goes on to the weights, and to putting
 * things back. */
#include "composites/recogniser.h"

static uint32_t same_elements(const lb_recogniser *t, lb_reading r)
{
    return lb_recogniser_maker(t, lb_recogniser_peel(t, r));
}

static lb_status one(lb_recogniser *t, uint32_t index)
{
    static const char *const picks[] = {"index", "index_select", NULL}, *const sorts[] = {"sort", "argsort", NULL};
    if (!lb_recogniser_is_any(t, index, picks)) return LB_OK;
    const bool select = lb_recogniser_is(t, index, "index_select");
    double dim = 0, slots = 0, sorted_dim = -1;
    const lb_reading x = lb_recogniser_arg(t, index, 0),
                     rows = select ? lb_recogniser_arg(t, index, 2) : lb_recogniser_item(t, index, 1, 0);
    if (x.op == LB_NONE || rows.op == LB_NONE || (select && (!lb_recogniser_number(t, index, 1, &dim) || dim != 0)) ||
        (!select && lb_recogniser_item(t, index, 1, 1).op != LB_NONE))
        return LB_OK;
    const uint32_t divide = same_elements(t, rows);
    if (divide == LB_NONE || !(lb_recogniser_is(t, divide, "floor_divide") || lb_recogniser_is(t, divide, "div")) ||
        !lb_recogniser_number(t, divide, 1, &slots))
        return LB_OK;
    const uint32_t sort = same_elements(t, lb_recogniser_arg(t, divide, 0));
    if (sort == LB_NONE || !lb_recogniser_is_any(t, sort, sorts) || t->program->ops[sort].results < 2) return LB_OK;
    const lb_op *row = &t->program->ops[sort];
    uint32_t at;
    const lb_reading ids = lb_recogniser_arg(t, sort, 0);
    if (ids.op == LB_NONE || (lb_recogniser_position(t, sort, "dim", &at) &&
                              lb_recogniser_number(t, sort, at, &sorted_dim) && sorted_dim != -1 && sorted_dim != 0))
        return LB_OK;
    if (lb_recogniser_position(t, sort, "descending", &at) && at < row->args && lb_op_args(t->program, row)[at].u.i)
        return LB_OK;
    const lb_value *vx = lb_recogniser_value(t, x.value), *vi = lb_recogniser_value(t, ids.value);
    const uint32_t order = lb_op_results(t->program, row)[1], sorted = lb_op_results(t->program, row)[0];
    if (vx->layout.ndim != 2 || vi->layout.ndim != 1 || vi->dtype != LB_I64 || order == LB_NONE || slots < 1 ||
        lb_recogniser_arg(t, divide, 0).value != order || vi->layout.shape[0] != vx->layout.shape[0] * (int64_t)slots)
        return LB_OK;
    lb_composite c = lb_recogniser_composite(t, LB_COMPOSITE_DISPATCH);
    c.inputs[LB_DISPATCH_X] = x.value, c.inputs[LB_DISPATCH_IDS] = ids.value;
    c.outputs[LB_DISPATCH_Y] = lb_recogniser_result(t, index), c.outputs[LB_DISPATCH_SORTED] = sorted,
    c.outputs[LB_DISPATCH_ORDER] = order, c.outputs[LB_DISPATCH_TOKENS] = lb_recogniser_result(t, divide);
    c.numbers[LB_DISPATCH_SLOTS] = slots;
    const uint32_t ops[] = {index, divide, sort};
    return lb_recogniser_add(t, &c, ops, 3);
}

lb_status lb_recogniser_dispatches(lb_recogniser *t)
{
    for (uint32_t i = 0; i < t->program->n_ops; i++)
        if (lb_recogniser_forward(t, i)) LB_TRY(one(t, i));
    return LB_OK;
}
