/* Recognises rotary embedding as Hugging Face writes it: x cos + cat(-x2, x1) sin, x1 and x2 the halves of the last
 * dimension. */
#include "composites/recogniser.h"

#include <string.h>

typedef struct rotated {
    lb_reading x;
    uint32_t cat, neg;
} rotated;

/* Half `which` of the last dimension of a value: what it is a part of is told by storage and offset. */
static bool is_half(const lb_value *part, const lb_value *whole, int which)
{
    const lb_layout *p = &part->layout, *w = &whole->layout;
    const int d = w->ndim - 1;
    if (part->storage != whole->storage || p->ndim != w->ndim || d < 0 || w->shape[d] % 2 ||
        p->shape[d] * 2 != w->shape[d])
        return false;
    for (int k = 0; k <= d; k++)
        if (p->stride[k] != w->stride[k] && p->shape[k] > 1) return false;
    return p->offset == w->offset + which * p->shape[d] * w->stride[d];
}

static bool is_rotated(const lb_recogniser *t, lb_reading r, lb_reading x, rotated *out)
{
    out->cat = lb_recogniser_maker(t, r);
    if (out->cat == LB_NONE || !lb_recogniser_is(t, out->cat, "cat")) return false;
    const lb_reading first = lb_recogniser_item(t, out->cat, 0, 0), second = lb_recogniser_item(t, out->cat, 0, 1);
    if (first.op == LB_NONE || second.op == LB_NONE) return false;
    out->neg = lb_recogniser_maker(t, first);
    if (out->neg == LB_NONE || !lb_recogniser_is(t, out->neg, "neg")) return false;
    const lb_reading upper = lb_recogniser_arg(t, out->neg, 0);
    const lb_value *whole = lb_recogniser_value(t, x.value);
    return is_half(lb_recogniser_value(t, upper.value), whole, 1) &&
           is_half(lb_recogniser_value(t, second.value), whole, 0);
}

lb_status lb_recogniser_ropes(lb_recogniser *t)
{
    for (uint32_t i = 0; i < t->program->n_ops; i++) {
        if (!lb_recogniser_forward(t, i) || !lb_recogniser_is(t, i, "add")) continue;
        const uint32_t straight = lb_recogniser_maker(t, lb_recogniser_arg(t, i, 0)),
                       turned = lb_recogniser_maker(t, lb_recogniser_arg(t, i, 1));
        if (straight == LB_NONE || turned == LB_NONE || !lb_recogniser_is(t, straight, "mul") ||
            !lb_recogniser_is(t, turned, "mul"))
            continue;
        const lb_reading x = lb_recogniser_arg(t, straight, 0), cosine = lb_recogniser_arg(t, straight, 1);
        const lb_reading r = lb_recogniser_arg(t, turned, 0), sine = lb_recogniser_arg(t, turned, 1);
        rotated found;
        if (x.op == LB_NONE || cosine.op == LB_NONE || r.op == LB_NONE || sine.op == LB_NONE ||
            !is_rotated(t, r, x, &found))
            continue;
        lb_composite c = lb_recogniser_composite(t, LB_COMPOSITE_ROPE);
        c.inputs[LB_ROPE_X] = x.value, c.inputs[LB_ROPE_COS] = cosine.value, c.inputs[LB_ROPE_SIN] = sine.value;
        c.outputs[LB_ROPE_Y] = lb_recogniser_result(t, i);
        const uint32_t ops[] = {i, straight, turned, found.cat, found.neg};
        LB_TRY(lb_recogniser_add(t, &c, ops, 5));
    }
    return LB_OK;
}
