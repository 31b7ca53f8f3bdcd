/* Recognises cross-entropy: a log-softmax over classes and its negative log likelihood. */
#include "recogniser.h"

lb_status lb_recogniser_losses(lb_recogniser *t)
{
    for (uint32_t i = 0; i < t->program->n_ops; i++) {
        if (!lb_recogniser_forward(t, i) || !lb_recogniser_is(t, i, "nll_loss_forward")) continue;
        const uint32_t softmax = lb_recogniser_maker(t, lb_recogniser_arg(t, i, 0));
        double reduction = 0, ignored = -100;
        const lb_reading target = lb_recogniser_arg(t, i, 1);
        if (softmax == LB_NONE || !lb_recogniser_is(t, softmax, "_log_softmax") || target.op == LB_NONE ||
            lb_recogniser_arg(t, i, 2).op != LB_NONE)
            continue;
        if (!lb_recogniser_number(t, i, 3, &reduction) || reduction < 1) continue;
        const lb_reading logits = lb_recogniser_arg(t, softmax, 0);
        const lb_layout *l = &lb_recogniser_value(t, logits.value)->layout;
        if (l->ndim != 2 || !lb_recogniser_last_dim(t, softmax, 1, 2)) continue;
        lb_composite c = lb_recogniser_composite(t, LB_COMPOSITE_CROSS_ENTROPY);
        lb_recogniser_number(t, i, 4, &ignored);
        c.numbers[LB_LOSS_IGNORED] = ignored;
        if (reduction == 2) c.flags |= LB_LOSS_SUM;
        c.inputs[LB_LOSS_LOGITS] = logits.value, c.inputs[LB_LOSS_TARGET] = target.value;
        c.outputs[LB_LOSS_Y] = lb_recogniser_result(t, i);
        const uint32_t ops[] = {i, softmax};
        LB_TRY(lb_recogniser_add(t, &c, ops, 2));
    }
    return LB_OK;
}
