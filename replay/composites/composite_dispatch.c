/* Recognises where tokens are put in the order of their experts, to be computed expert by expert:
 *
 *   order = argsort(ids.flatten()); y = x[order // slots]
 *
 * as Hugging Face's `grouped_mm` and megablocks-like layers write it. The order goes on to the weights, and to putting
 * things back. */
#include "composites/recogniser.h"

static uint32_t same_elements(const lb_recogniser *recogniser, lb_reading reading)
{
    return lb_recogniser_maker(recogniser, lb_recogniser_peel(recogniser, reading));
}

static lb_status one(lb_recogniser *recogniser, uint32_t index)
{
    static const char *const picks[] = {"index", "index_select", NULL}, *const sorts[] = {"sort", "argsort", NULL};
    if (!lb_recogniser_is_any(recogniser, index, picks)) return LB_OK;
    const bool select = lb_recogniser_is(recogniser, index, "index_select");
    double dim = 0, slots = 0, sorted_dim = -1;
    const lb_reading x = lb_recogniser_arg(recogniser, index, 0),
                     rows =
                         select ? lb_recogniser_arg(recogniser, index, 2) : lb_recogniser_item(recogniser, index, 1, 0);
    if (x.op == LB_NONE || rows.op == LB_NONE ||
        (select && (!lb_recogniser_number(recogniser, index, 1, &dim) || dim != 0)) ||
        (!select && lb_recogniser_item(recogniser, index, 1, 1).op != LB_NONE))
        return LB_OK;
    const uint32_t divide = same_elements(recogniser, rows);
    if (divide == LB_NONE ||
        !(lb_recogniser_is(recogniser, divide, "floor_divide") || lb_recogniser_is(recogniser, divide, "div")) ||
        !lb_recogniser_number(recogniser, divide, 1, &slots))
        return LB_OK;
    const uint32_t sort = same_elements(recogniser, lb_recogniser_arg(recogniser, divide, 0));
    if (sort == LB_NONE || !lb_recogniser_is_any(recogniser, sort, sorts) || recogniser->program->ops[sort].results < 2)
        return LB_OK;
    const lb_op *row = &recogniser->program->ops[sort];
    uint32_t at;
    const lb_reading ids = lb_recogniser_arg(recogniser, sort, 0);
    if (ids.op == LB_NONE ||
        (lb_recogniser_position(recogniser, sort, "dim", &at) &&
         lb_recogniser_number(recogniser, sort, at, &sorted_dim) && sorted_dim != -1 && sorted_dim != 0))
        return LB_OK;
    if (lb_recogniser_position(recogniser, sort, "descending", &at) && at < row->args &&
        lb_op_args(recogniser->program, row)[at].u.i)
        return LB_OK;
    const lb_value *vx = lb_recogniser_value(recogniser, x.value), *vi = lb_recogniser_value(recogniser, ids.value);
    const uint32_t order = lb_op_results(recogniser->program, row)[1],
                   sorted = lb_op_results(recogniser->program, row)[0];
    if (vx->layout.ndim != 2 || vi->layout.ndim != 1 || vi->dtype != LB_I64 || order == LB_NONE || slots < 1 ||
        lb_recogniser_arg(recogniser, divide, 0).value != order ||
        vi->layout.shape[0] != vx->layout.shape[0] * (int64_t)slots)
        return LB_OK;
    lb_composite composite = lb_recogniser_composite(recogniser, LB_COMPOSITE_DISPATCH);
    composite.inputs[LB_DISPATCH_X] = x.value, composite.inputs[LB_DISPATCH_IDS] = ids.value;
    composite.outputs[LB_DISPATCH_Y] = lb_recogniser_result(recogniser, index),
    composite.outputs[LB_DISPATCH_SORTED] = sorted, composite.outputs[LB_DISPATCH_ORDER] = order,
    composite.outputs[LB_DISPATCH_TOKENS] = lb_recogniser_result(recogniser, divide);
    composite.numbers[LB_DISPATCH_SLOTS] = slots;
    const uint32_t ops[] = {index, divide, sort};
    return lb_recogniser_add(recogniser, &composite, ops, 3);
}

lb_status lb_recogniser_dispatches(lb_recogniser *recogniser)
{
    for (uint32_t i = 0; i < recogniser->program->n_ops; i++)
        if (lb_recogniser_forward(recogniser, i)) LB_TRY(one(recogniser, i));
    return LB_OK;
}
