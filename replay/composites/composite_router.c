/* Recognises routers: a softmax over experts and the best of it, perhaps divided by their sum; or the best logits and a
 * softmax over them. */
#include "composites/recogniser.h"

static lb_status one(lb_recogniser *recogniser, uint32_t topk)
{
    lb_composite composite = lb_recogniser_composite(recogniser, LB_COMPOSITE_ROUTER);
    uint32_t ops[12] = {topk}, n = 1, users[8];
    const lb_op *row = &recogniser->program->ops[topk];
    lb_reading scores = lb_recogniser_arg(recogniser, topk, 0);
    if (row->results < 2 || scores.op == LB_NONE || lb_op_results(recogniser->program, row)[1] == LB_NONE) return LB_OK;
    const uint32_t values = lb_op_results(recogniser->program, row)[0];
    const lb_layout *layout = &lb_recogniser_value(recogniser, values)->layout;
    if (layout->ndim != 2 || !lb_recogniser_number(recogniser, topk, 1, &composite.numbers[LB_ROUTER_K])) return LB_OK;
    composite.outputs[LB_ROUTER_IDS] = lb_op_results(recogniser->program, row)[1];
    composite.outputs[LB_ROUTER_WEIGHTS] = values;
    const uint32_t before = lb_recogniser_maker(recogniser, scores),
                   n_users = lb_recogniser_users(recogniser, topk, users, 8);
    uint32_t last = topk;
    if (before != LB_NONE && lb_recogniser_is(recogniser, before, "softmax"))
        ops[n++] = before;
    else if (before != LB_NONE && (lb_recogniser_is(recogniser, before, "_softmax")))
        ops[n++] = before;
    if (n > 1) {
        scores = lb_recogniser_arg(recogniser, before, 0);
        for (uint32_t u = 0; u < n_users && u < 8; u++) {
            const uint32_t sum = lb_recogniser_is(recogniser, users[u], "div")
                                     ? lb_recogniser_maker(recogniser, lb_recogniser_arg(recogniser, users[u], 1))
                                     : LB_NONE;
            if (sum == LB_NONE || !lb_recogniser_is(recogniser, sum, "sum") ||
                lb_recogniser_maker(recogniser, lb_recogniser_arg(recogniser, sum, 0)) != topk)
                continue;
            ops[n++] = last = users[u], ops[n++] = sum;
            composite.flags |= LB_ROUTER_NORMALISED;
        }
    } else {
        for (uint32_t u = 0; u < n_users && u < 8; u++)
            if (lb_recogniser_is(recogniser, users[u], "_softmax"))
                ops[n++] = last = users[u], composite.flags |= LB_ROUTER_NORMALISED;
        if (last == topk) return LB_OK;
    }
    uint32_t cast;
    while (lb_recogniser_users(recogniser, last, &cast, 1) == 1 && lb_recogniser_is(recogniser, cast, "_to_copy") &&
           lb_recogniser_same_call(recogniser, last, cast) && n < 10)
        ops[n++] = last = cast;
    uint32_t own;
    while ((own = lb_recogniser_cast(recogniser, scores)) != LB_NONE &&
           lb_recogniser_same_call(recogniser, own, topk) && n < 12)
        ops[n++] = own, scores = lb_recogniser_arg(recogniser, own, 0);
    composite.inputs[LB_ROUTER_LOGITS] = scores.value;
    composite.outputs[LB_ROUTER_WEIGHTS] = lb_recogniser_result(recogniser, last);
    return lb_recogniser_add(recogniser, &composite, ops, n);
}

lb_status lb_recogniser_routers(lb_recogniser *recogniser)
{
    for (uint32_t i = 0; i < recogniser->program->n_ops; i++)
        if (lb_recogniser_forward(recogniser, i) && lb_recogniser_is(recogniser, i, "topk")) LB_TRY(one(recogniser, i));
    return LB_OK;
}
