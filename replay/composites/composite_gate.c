/* Recognises gated activations, act(gate) up: the activation as an op of torch or written out, or all as one op; and
 * with them the two products that made gate and up from the same x. */
#include "composites/recogniser.h"

#include "kernel/ops.h"
#include "composites/gate_pattern.h"

#include <string.h>

static bool activation(const lb_recogniser *recogniser, uint32_t op, double *act)
{
    if (op == LB_NONE) return false;
    if (lb_recogniser_is(recogniser, op, "silu")) {
        *act = LB_GATE_SILU;
        return true;
    }
    if (!lb_recogniser_is(recogniser, op, "gelu")) return false;
    const lb_op *row = &recogniser->program->ops[op];
    const lb_arg *how = row->args > 1 ? &lb_op_args(recogniser->program, row)[1] : NULL;
    *act = how && how->tag == LB_ARG_STRING && !strcmp(lb_program_text(recogniser->program, how->u.string), "tanh")
               ? LB_GATE_GELU_TANH
               : LB_GATE_GELU;
    return true;
}

/* gate and up by `mm` from the same x, seen in the shape of the product or another. */
static lb_status with_products(lb_recogniser *recogniser, const lb_composite *gated, const lb_gate_pattern *written)
{
    const uint32_t gate = lb_recogniser_maker(recogniser, written->gate),
                   up = lb_recogniser_maker(recogniser, written->up);
    if (gate == LB_NONE || up == LB_NONE || gate == up || !lb_recogniser_is(recogniser, gate, "mm") ||
        !lb_recogniser_is(recogniser, up, "mm"))
        return LB_OK;
    const lb_reading x = lb_recogniser_arg(recogniser, gate, 0), other = lb_recogniser_arg(recogniser, up, 0);
    if (!lb_recogniser_same(recogniser, x, other)) return LB_OK;
    const lb_layout *read = &lb_recogniser_value(recogniser, written->gate.value)->layout,
                    *made = &lb_recogniser_value(recogniser, lb_recogniser_result(recogniser, gate))->layout;
    if (!lb_layout_is_contiguous(read) || !lb_layout_is_contiguous(made) ||
        lb_layout_numel(read) != lb_layout_numel(made))
        return LB_OK;
    lb_composite composite = *gated;
    composite.kind = LB_COMPOSITE_GATE_UP;
    composite.inputs[LB_GATE_X] = x.value;
    composite.inputs[LB_GATE_U] = lb_recogniser_arg(recogniser, gate, 1).value,
    composite.inputs[LB_GATE_W] = lb_recogniser_arg(recogniser, up, 1).value;
    uint32_t all[LB_GATE_PATTERN_OPS + 2] = {gate, up};
    memcpy(all + 2, written->ops, written->n_ops * sizeof *all);
    return lb_recogniser_add(recogniser, &composite, all, written->n_ops + 2);
}

/* act(gate) up, with the activation as an op of torch. */
static bool by_an_op(const lb_recogniser *recogniser, uint32_t mul, uint32_t operand, lb_gate_pattern *written)
{
    const lb_reading a = lb_recogniser_arg(recogniser, mul, operand);
    const uint32_t act = a.op == LB_NONE ? LB_NONE : lb_recogniser_maker(recogniser, a);
    double which = 0;
    written->up = lb_recogniser_arg(recogniser, mul, 1 - operand);
    if (!lb_recogniser_is(recogniser, mul, "mul") || written->up.op == LB_NONE || !activation(recogniser, act, &which))
        return false;
    written->act = (lb_gate_act)which, written->gate = lb_recogniser_arg(recogniser, act, 0);
    written->ops[0] = mul, written->ops[1] = act, written->n_ops = 2;
    return true;
}

static bool fits(const lb_recogniser *recogniser, uint32_t mul, const lb_gate_pattern *written)
{
    const lb_value *gate = lb_recogniser_value(recogniser, written->gate.value),
                   *up = lb_recogniser_value(recogniser, written->up.value),
                   *value = lb_recogniser_value(recogniser, lb_recogniser_result(recogniser, mul));
    return lb_layout_same_shape(&gate->layout, &up->layout) && lb_layout_same_shape(&gate->layout, &value->layout) &&
           gate->dtype == up->dtype;
}

static lb_status written_out(lb_recogniser *recogniser, uint32_t mul)
{
    lb_gate_pattern written;
    if (!(by_an_op(recogniser, mul, 0, &written) && fits(recogniser, mul, &written)) &&
        !(by_an_op(recogniser, mul, 1, &written) && fits(recogniser, mul, &written)) &&
        !(lb_gate_pattern_read(recogniser, mul, &written) && fits(recogniser, mul, &written)))
        return LB_OK;
    lb_composite composite = lb_recogniser_composite(recogniser, LB_COMPOSITE_SWIGLU);
    composite.numbers[LB_GATE_ACT] = written.act;
    composite.inputs[LB_GATE_X] = written.gate.value, composite.inputs[LB_GATE_U] = written.up.value,
    composite.outputs[LB_GATE_Y] = lb_recogniser_result(recogniser, mul);
    LB_TRY(lb_recogniser_add(recogniser, &composite, written.ops, written.n_ops));
    return with_products(recogniser, &composite, &written);
}

static lb_status single(lb_recogniser *recogniser, uint32_t op)
{
    static const struct {
        const char *name;
        lb_gate_act act;
    } names[] = {
        {"silu_and_mul", LB_GATE_SILU}, {"gelu_and_mul", LB_GATE_GELU}, {"gelu_tanh_and_mul", LB_GATE_GELU_TANH}};
    const char *name = lb_op_name(recogniser->program, &recogniser->program->ops[op]);
    const size_t length = strlen(name);
    uint32_t at;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const size_t n = strlen(names[i].name);
        if (length < n || strcmp(name + length - n, names[i].name) || !strncmp(name, "aten::", 6)) continue;
        if ((!lb_recogniser_position(recogniser, op, "input", &at) &&
             !lb_recogniser_position(recogniser, op, "x", &at)) ||
            lb_recogniser_arg(recogniser, op, at).op == LB_NONE)
            continue;
        lb_composite composite = lb_recogniser_composite(recogniser, LB_COMPOSITE_SWIGLU);
        composite.inputs[LB_GATE_X] = lb_recogniser_arg(recogniser, op, at).value;
        composite.outputs[LB_GATE_Y] = lb_recogniser_result(recogniser, op);
        composite.numbers[LB_GATE_ACT] = names[i].act;
        return lb_recogniser_add(recogniser, &composite, &op, 1);
    }
    return LB_OK;
}

lb_status lb_recogniser_gates(lb_recogniser *recogniser)
{
    for (uint32_t i = 0; i < recogniser->program->n_ops; i++) {
        if (!lb_recogniser_forward(recogniser, i)) continue;
        LB_TRY(written_out(recogniser, i));
        LB_TRY(single(recogniser, i));
    }
    return LB_OK;
}
