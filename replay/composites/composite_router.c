/* Recognises routers: a softmax over experts and the best of it, perhaps divided by their sum; or the best logits and a
 * softmax over them. */
#include "composites/recogniser.h"

static lb_status one(lb_recogniser *t, uint32_t topk)
{
    lb_composite c = lb_recogniser_composite(t, LB_COMPOSITE_ROUTER);
    uint32_t ops[12] = {topk}, n = 1, users[8];
    const lb_op *row = &t->program->ops[topk];
    lb_reading scores = lb_recogniser_arg(t, topk, 0);
    if (row->results < 2 || scores.op == LB_NONE || lb_op_results(t->program, row)[1] == LB_NONE) return LB_OK;
    const uint32_t values = lb_op_results(t->program, row)[0];
    const lb_layout *l = &lb_recogniser_value(t, values)->layout;
    if (l->ndim != 2 || !lb_recogniser_number(t, topk, 1, &c.numbers[LB_ROUTER_K])) return LB_OK;
    c.outputs[LB_ROUTER_IDS] = lb_op_results(t->program, row)[1];
    c.outputs[LB_ROUTER_WEIGHTS] = values;
    const uint32_t before = lb_recogniser_maker(t, scores), n_users = lb_recogniser_users(t, topk, users, 8);
    uint32_t last = topk;
    if (before != LB_NONE && lb_recogniser_is(t, before, "softmax"))
        ops[n++] = before;
    else if (before != LB_NONE && (lb_recogniser_is(t, before, "_softmax")))
        ops[n++] = before;
    if (n > 1) {
        scores = lb_recogniser_arg(t, before, 0);
        for (uint32_t u = 0; u < n_users && u < 8; u++) {
            const uint32_t sum = lb_recogniser_is(t, users[u], "div")
                                     ? lb_recogniser_maker(t, lb_recogniser_arg(t, users[u], 1))
                                     : LB_NONE;
            if (sum == LB_NONE || !lb_recogniser_is(t, sum, "sum") ||
                lb_recogniser_maker(t, lb_recogniser_arg(t, sum, 0)) != topk)
                continue;
            ops[n++] = last = users[u], ops[n++] = sum;
            c.flags |= LB_ROUTER_NORMALISED;
        }
    } else {
        for (uint32_t u = 0; u < n_users && u < 8; u++)
            if (lb_recogniser_is(t, users[u], "_softmax")) ops[n++] = last = users[u], c.flags |= LB_ROUTER_NORMALISED;
        if (last == topk) return LB_OK;
    }
    uint32_t cast;
    while (lb_recogniser_users(t, last, &cast, 1) == 1 && lb_recogniser_is(t, cast, "_to_copy") &&
           lb_recogniser_same_call(t, last, cast) && n < 10)
        ops[n++] = last = cast;
    uint32_t own;
    while ((own = lb_recogniser_cast(t, scores)) != LB_NONE && lb_recogniser_same_call(t, own, topk) && n < 12)
        ops[n++] = own, scores = lb_recogniser_arg(t, own, 0);
    c.inputs[LB_ROUTER_LOGITS] = scores.value;
    c.outputs[LB_ROUTER_WEIGHTS] = lb_recogniser_result(t, last);
    return lb_recogniser_add(t, &c, ops, n);
}

lb_status lb_recogniser_routers(lb_recogniser *t)
{
    for (uint32_t i = 0; i < t->program->n_ops; i++)
        if (lb_recogniser_forward(t, i) && lb_recogniser_is(t, i, "topk")) LB_TRY(one(t, i));
    return LB_OK;
}
