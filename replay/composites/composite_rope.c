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

static bool is_rotated(const lb_recogniser *recogniser, lb_reading reading, lb_reading x, rotated *out)
{
    out->cat = lb_recogniser_maker(recogniser, reading);
    if (out->cat == LB_NONE || !lb_recogniser_is(recogniser, out->cat, "cat")) return false;
    const lb_reading first = lb_recogniser_item(recogniser, out->cat, 0, 0),
                     second = lb_recogniser_item(recogniser, out->cat, 0, 1);
    if (first.op == LB_NONE || second.op == LB_NONE) return false;
    out->neg = lb_recogniser_maker(recogniser, first);
    if (out->neg == LB_NONE || !lb_recogniser_is(recogniser, out->neg, "neg")) return false;
    const lb_reading upper = lb_recogniser_arg(recogniser, out->neg, 0);
    const lb_value *whole = lb_recogniser_value(recogniser, x.value);
    return is_half(lb_recogniser_value(recogniser, upper.value), whole, 1) &&
           is_half(lb_recogniser_value(recogniser, second.value), whole, 0);
}

lb_status lb_recogniser_ropes(lb_recogniser *recogniser)
{
    for (uint32_t i = 0; i < recogniser->program->n_ops; i++) {
        if (!lb_recogniser_forward(recogniser, i) || !lb_recogniser_is(recogniser, i, "add")) continue;
        const uint32_t straight = lb_recogniser_maker(recogniser, lb_recogniser_arg(recogniser, i, 0)),
                       turned = lb_recogniser_maker(recogniser, lb_recogniser_arg(recogniser, i, 1));
        if (straight == LB_NONE || turned == LB_NONE || !lb_recogniser_is(recogniser, straight, "mul") ||
            !lb_recogniser_is(recogniser, turned, "mul"))
            continue;
        const lb_reading x = lb_recogniser_arg(recogniser, straight, 0),
                         cosine = lb_recogniser_arg(recogniser, straight, 1);
        const lb_reading reading = lb_recogniser_arg(recogniser, turned, 0),
                         sine = lb_recogniser_arg(recogniser, turned, 1);
        rotated found;
        if (x.op == LB_NONE || cosine.op == LB_NONE || reading.op == LB_NONE || sine.op == LB_NONE ||
            !is_rotated(recogniser, reading, x, &found))
            continue;
        lb_composite composite = lb_recogniser_composite(recogniser, LB_COMPOSITE_ROPE);
        composite.inputs[LB_ROPE_X] = x.value, composite.inputs[LB_ROPE_COS] = cosine.value,
        composite.inputs[LB_ROPE_SIN] = sine.value;
        composite.outputs[LB_ROPE_Y] = lb_recogniser_result(recogniser, i);
        const uint32_t ops[] = {i, straight, turned, found.cat, found.neg};
        LB_TRY(lb_recogniser_add(recogniser, &composite, ops, 5));
    }
    return LB_OK;
}
