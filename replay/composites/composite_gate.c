/* Recognises gated activations, act(gate) up: the activation as an op of torch or written out, or all as one op; and
 * with them the two products that made gate and up from the same x. */
#include "composites/recogniser.h"

#include "kernel/ops.h"
#include "composites/gate_pattern.h"

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
static lb_status with_products(lb_recogniser *t, const lb_composite *gated, const lb_gate_pattern *w)
{
    const uint32_t g = lb_recogniser_maker(t, w->gate), u = lb_recogniser_maker(t, w->up);
    if (g == LB_NONE || u == LB_NONE || g == u || !lb_recogniser_is(t, g, "mm") || !lb_recogniser_is(t, u, "mm"))
        return LB_OK;
    const lb_reading x = lb_recogniser_arg(t, g, 0), other = lb_recogniser_arg(t, u, 0);
    if (!lb_recogniser_same(t, x, other)) return LB_OK;
    const lb_layout *read = &lb_recogniser_value(t, w->gate.value)->layout,
                    *made = &lb_recogniser_value(t, lb_recogniser_result(t, g))->layout;
    if (!lb_layout_is_contiguous(read) || !lb_layout_is_contiguous(made) ||
        lb_layout_numel(read) != lb_layout_numel(made))
        return LB_OK;
    lb_composite c = *gated;
    c.kind = LB_COMPOSITE_GATE_UP;
    c.inputs[LB_GATE_X] = x.value;
    c.inputs[LB_GATE_U] = lb_recogniser_arg(t, g, 1).value, c.inputs[LB_GATE_W] = lb_recogniser_arg(t, u, 1).value;
    uint32_t all[LB_GATE_PATTERN_OPS + 2] = {g, u};
    memcpy(all + 2, w->ops, w->n_ops * sizeof *all);
    return lb_recogniser_add(t, &c, all, w->n_ops + 2);
}

/* act(gate) up, with the activation as an op of torch. */
static bool by_an_op(const lb_recogniser *t, uint32_t mul, uint32_t operand, lb_gate_pattern *w)
{
    const lb_reading a = lb_recogniser_arg(t, mul, operand);
    const uint32_t act = a.op == LB_NONE ? LB_NONE : lb_recogniser_maker(t, a);
    double which = 0;
    w->up = lb_recogniser_arg(t, mul, 1 - operand);
    if (!lb_recogniser_is(t, mul, "mul") || w->up.op == LB_NONE || !activation(t, act, &which)) return false;
    w->act = (lb_gate_act)which, w->gate = lb_recogniser_arg(t, act, 0);
    w->ops[0] = mul, w->ops[1] = act, w->n_ops = 2;
    return true;
}

static bool fits(const lb_recogniser *t, uint32_t mul, const lb_gate_pattern *w)
{
    const lb_value *gate = lb_recogniser_value(t, w->gate.value), *up = lb_recogniser_value(t, w->up.value),
                   *y = lb_recogniser_value(t, lb_recogniser_result(t, mul));
    return lb_layout_same_shape(&gate->layout, &up->layout) && lb_layout_same_shape(&gate->layout, &y->layout) &&
           gate->dtype == up->dtype;
}

static lb_status written_out(lb_recogniser *t, uint32_t mul)
{
    lb_gate_pattern w;
    if (!(by_an_op(t, mul, 0, &w) && fits(t, mul, &w)) && !(by_an_op(t, mul, 1, &w) && fits(t, mul, &w)) &&
        !(lb_gate_pattern_read(t, mul, &w) && fits(t, mul, &w)))
        return LB_OK;
    lb_composite c = lb_recogniser_composite(t, LB_COMPOSITE_SWIGLU);
    c.numbers[LB_GATE_ACT] = w.act;
    c.inputs[LB_GATE_X] = w.gate.value, c.inputs[LB_GATE_U] = w.up.value,
    c.outputs[LB_GATE_Y] = lb_recogniser_result(t, mul);
    LB_TRY(lb_recogniser_add(t, &c, w.ops, w.n_ops));
    return with_products(t, &c, &w);
}

static lb_status single(lb_recogniser *t, uint32_t op)
{
    static const struct {
        const char *name;
        lb_gate_act act;
    } names[] = {
        {"silu_and_mul", LB_GATE_SILU}, {"gelu_and_mul", LB_GATE_GELU}, {"gelu_tanh_and_mul", LB_GATE_GELU_TANH}};
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
