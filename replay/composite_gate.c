/* Recognises gated activations, act(gate) up, written out or as one op; and with them the two products that made gate and up from the
 * same x. */
#include "recogniser.h"

#include "ops.h"

#include <string.h>

static bool activation(const lb_recogniser *t, uint32_t op, double *act)
{
    if (op == LB_NONE) return false;
    if (lb_recogniser_is(t, op, "silu")) {
        *act = LB_GATE_SILU;
        return true;
    }
    if (!lb_recogniser_is(t, op, "gelu")) return false;
    const lb_op *row = &t->program->ops[op];
    const lb_arg *how = row->args > 1 ? &lb_op_args(t->program, row)[1] : NULL;
    *act = how && how->tag == LB_ARG_STRING && !strcmp(lb_program_text(t->program, how->u.string), "tanh")
               ? LB_GATE_GELU_TANH
               : LB_GATE_GELU;
    return true;
}

/* gate and up by `mm` from the same x, seen in the shape of the product or another. */
static lb_status with_products(lb_recogniser *t, const lb_composite *gated, const uint32_t *ops,
                               lb_reading gate, lb_reading up)
{
    const uint32_t g = lb_recogniser_maker(t, gate), u = lb_recogniser_maker(t, up);
    if (g == LB_NONE || u == LB_NONE || g == u || !lb_recogniser_is(t, g, "mm") ||
        !lb_recogniser_is(t, u, "mm"))
        return LB_OK;
    const lb_reading x = lb_recogniser_arg(t, g, 0), other = lb_recogniser_arg(t, u, 0);
    if (!lb_recogniser_same(t, x, other)) return LB_OK;
    const lb_layout *read = &lb_recogniser_value(t, gate.value)->layout,
                    *made = &lb_recogniser_value(t, lb_recogniser_result(t, g))->layout;
    if (!lb_layout_is_contiguous(read) || !lb_layout_is_contiguous(made) ||
        lb_layout_numel(read) != lb_layout_numel(made))
        return LB_OK;
    lb_composite c = *gated;
    c.kind = LB_COMPOSITE_GATE_UP;
    c.inputs[LB_GATE_X] = x.value;
    c.inputs[LB_GATE_U] = lb_recogniser_arg(t, g, 1).value,
    c.inputs[LB_GATE_W] = lb_recogniser_arg(t, u, 1).value;
    const uint32_t all[] = {ops[0], ops[1], g, u};
    return lb_recogniser_add(t, &c, all, 4);
}

static lb_status written_out(lb_recogniser *t, uint32_t mul)
{
    if (!lb_recogniser_is(t, mul, "mul")) return LB_OK;
    for (uint32_t i = 0; i < 2; i++) {
        const lb_reading a = lb_recogniser_arg(t, mul, i), up = lb_recogniser_arg(t, mul, 1 - i);
        lb_composite c = lb_recogniser_composite(t, LB_COMPOSITE_SWIGLU);
        const uint32_t act = a.op == LB_NONE ? LB_NONE : lb_recogniser_maker(t, a);
        if (up.op == LB_NONE || !activation(t, act, &c.numbers[LB_GATE_ACT])) continue;
        const lb_reading gate = lb_recogniser_arg(t, act, 0);
        const lb_value *vg = lb_recogniser_value(t, gate.value), *vu = lb_recogniser_value(t, up.value),
                       *y = lb_recogniser_value(t, lb_recogniser_result(t, mul));
        if (!lb_layout_same_shape(&vg->layout, &vu->layout) || !lb_layout_same_shape(&vg->layout, &y->layout) ||
            vg->dtype != vu->dtype)
            continue;
        c.inputs[LB_GATE_X] = gate.value, c.inputs[LB_GATE_U] = up.value,
        c.outputs[LB_GATE_Y] = lb_recogniser_result(t, mul);
        const uint32_t ops[] = {mul, act};
        LB_TRY(lb_recogniser_add(t, &c, ops, 2));
        return with_products(t, &c, ops, gate, up);
    }
    return LB_OK;
}

static lb_status single(lb_recogniser *t, uint32_t op)
{
    static const struct {
        const char *name;
        lb_gate_act act;
    } names[] = {{"silu_and_mul", LB_GATE_SILU},
                 {"gelu_and_mul", LB_GATE_GELU},
                 {"gelu_tanh_and_mul", LB_GATE_GELU_TANH}};
    const char *name = lb_op_name(t->program, &t->program->ops[op]);
    const size_t length = strlen(name);
    uint32_t at;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const size_t n = strlen(names[i].name);
        if (length < n || strcmp(name + length - n, names[i].name) || !strncmp(name, "aten::", 6)) continue;
        if ((!lb_recogniser_position(t, op, "input", &at) && !lb_recogniser_position(t, op, "x", &at)) ||
            lb_recogniser_arg(t, op, at).op == LB_NONE)
            continue;
        lb_composite c = lb_recogniser_composite(t, LB_COMPOSITE_SWIGLU);
        c.inputs[LB_GATE_X] = lb_recogniser_arg(t, op, at).value;
        c.outputs[LB_GATE_Y] = lb_recogniser_result(t, op);
        c.numbers[LB_GATE_ACT] = names[i].act;
        return lb_recogniser_add(t, &c, &op, 1);
    }
    return LB_OK;
}

lb_status lb_recogniser_gates(lb_recogniser *t)
{
    for (uint32_t i = 0; i < t->program->n_ops; i++) {
        if (!lb_recogniser_forward(t, i)) continue;
        LB_TRY(written_out(t, i));
        LB_TRY(single(t, i));
    }
    return LB_OK;
}
