/* Muon written by hand: momentum, a cast to bf16, two iterations with Gram products, the update; AdamW beside it. */
#include "program/muon.h"
#include "small_program.h"

typedef struct step {
    small s;
    uint32_t owner;
    uint32_t w, g, buffer, new_w;  /* Muon's parameter (3 x 2) */
    uint32_t x0, last;             /* first and last bf16 value of the iteration */
    uint32_t cast, gram[2], write; /* ops */
    uint32_t other, other_write;   /* AdamW's parameter */
    lb_slice_flow *flow;
    lb_muon muon;
} step;

static uint32_t fresh(step *step, lb_dtype dtype, int64_t rows, int64_t columns)
{
    return small_value(&step->s, (int64_t)step->s.p->n_values + 1, 0, dtype, rows, columns);
}

static uint32_t iterate(step *step, uint32_t x, uint32_t *gram_op)
{
    small *s = &step->s;
    uint32_t xt = small_transposed(s, x), gram = fresh(step, LB_BF16, 2, 2), square = fresh(step, LB_BF16, 2, 2);
    uint32_t poly = fresh(step, LB_BF16, 2, 2), px = fresh(step, LB_BF16, 2, 3), ax = fresh(step, LB_BF16, 2, 3),
             y = fresh(step, LB_BF16, 2, 3);
    small_view(s, "aten::t", xt, x);
    *gram_op = small_op(s, "aten::mm", gram, NO, x, xt);
    small_op(s, "aten::mm", square, NO, gram, gram);
    small_op(s, "aten::add.Tensor", poly, NO, gram, square);
    small_op(s, "aten::mm", px, NO, poly, x);
    small_op(s, "aten::mul.Tensor", ax, NO, x, NO);
    small_op(s, "aten::add.Tensor", y, NO, ax, px);
    return y;
}

static uint32_t add_group(step *step, const char *optimizer, uint32_t param, uint32_t gradient, double rate)
{
    lb_program *program = step->s.p;
    lb_group_param row = {program->values[param].name, program->values[param].storage,
                          gradient == NO ? -1 : program->values[gradient].storage};
    lb_scalar lr = {lb_program_string(program, "lr"), 0, rate};
    lb_group group = {.optimizer = lb_program_string(program, optimizer),
                      .first_param = lb_program_add_group_param(program, &row),
                      .params = 1,
                      .first_option = lb_program_add_scalar(program, &lr),
                      .options = 1};
    return lb_program_add_group(program, &group);
}

static step build(bool gram)
{
    step step = {.s = {.p = lb_program_new(), .phase = LB_PHASE_OPTIMIZER}};
    small *s = &step.s;
    lb_program *program = s->p;
    step.owner = lb_program_scope(program, "mlp.down", "Linear", 0);
    step.w = fresh(&step, LB_F32, 3, 2), step.g = fresh(&step, LB_F32, 3, 2), step.buffer = fresh(&step, LB_F32, 3, 2);
    step.other = fresh(&step, LB_F32, 2, 2);
    program->values[step.w].name = lb_program_string(program, "mlp.down.weight");
    program->values[step.other].name = lb_program_string(program, "bias");
    program->values[step.w].flags = program->values[step.other].flags = LB_VALUE_PARAMETER;
    step.new_w = small_value(s, program->values[step.w].storage, 1, LB_F32, 3, 2);
    uint32_t sources[] = {step.w, step.g, step.buffer, step.other};
    for (int i = 0; i < 4; i++) small_source(s, sources[i]);
    uint32_t momentum = small_value(s, program->values[step.buffer].storage, 1, LB_F32, 3, 2),
             tall = fresh(&step, LB_BF16, 3, 2);
    small_op(s, "aten::lerp_.Scalar", momentum, momentum, step.buffer, step.g);
    lb_arg cast[2] = {{.tag = LB_ARG_VALUE, .u.value = momentum}, {.tag = LB_ARG_DTYPE, .u.i = LB_BF16}};
    step.cast = small_op_args(s, "aten::_to_copy", tall, NO, cast, 2);
    step.x0 = small_transposed(s, tall);
    small_view(s, "aten::t", step.x0, tall);
    uint32_t x = step.x0;
    for (int i = 0; i < 2 && gram; i++) x = iterate(&step, x, &step.gram[i]);
    step.last = x;
    uint32_t back = small_transposed(s, x), wide = fresh(&step, LB_F32, 3, 2);
    small_view(s, "aten::t", back, x);
    lb_arg widen[2] = {{.tag = LB_ARG_VALUE, .u.value = back}, {.tag = LB_ARG_DTYPE, .u.i = LB_F32}};
    small_op_args(s, "aten::_to_copy", wide, NO, widen, 2);
    step.write = small_op(s, "aten::add_.Tensor", step.new_w, step.new_w, step.w, wide);
    uint32_t other_after = small_value(s, program->values[step.other].storage, 1, LB_F32, 2, 2);
    step.other_write = small_op(s, "aten::mul_.Tensor", other_after, other_after, step.other, NO);
    add_group(&step, "Muon", step.w, step.g, 0.02);
    add_group(&step, "AdamW", step.other, NO, 0.003);
    assert_int_equal(lb_program_validate(program, NULL), LB_OK);
    return step;
}

static step built(bool gram)
{
    step step = build(gram);
    assert_int_equal(lb_slice_flow_new(step.s.p, &step.flow, NULL), LB_OK);
    assert_int_equal(lb_muon_find(step.s.p, step.flow, &step.muon, NULL), LB_OK);
    return step;
}

static void close_step(step *step)
{
    lb_muon_release(&step->muon);
    lb_slice_flow_free(step->flow);
    lb_program_free(step->s.p);
}

static void chained_gram_products_are_muon(void **state)
{
    (void)state;
    step step = built(true);
    assert_int_equal(step.muon.n, 1);
    const lb_muon_slice *slice = &step.muon.slices[0];
    assert_int_equal(slice->grams, 2);
    assert_int_equal(slice->first_gram, step.gram[0]);
    assert_int_equal(slice->write, step.write);
    assert_int_equal(slice->scope, step.owner);
    assert_int_equal(slice->gradient_value, step.g);
    assert_int_equal(slice->before, step.w);
    assert_true(slice->confirmed);
    for (uint32_t i = 0; i < slice->n_ops; i++) assert_int_not_equal(slice->ops[i], step.other_write);
    uint32_t group;
    assert_true(lb_muon_sibling_rate(step.s.p, &group) == 0.003);
    close_step(&step);
}

static void a_class_name_alone_is_no_muon(void **state)
{
    (void)state;
    step step = built(false);
    assert_int_equal(step.muon.n, 0);
    close_step(&step);
}

static void f32_widens_what_lives_inside_only(void **state)
{
    (void)state;
    step step = built(true);
    lb_passed passed = {0};
    bool chosen = true;
    assert_int_equal(lb_muon_pass_wide(step.s.p, step.flow, &step.muon, &chosen, &passed, NULL), LB_OK);
    lb_program *out = passed.program;
    uint32_t *origin = passed.origin;
    assert_int_equal(out->n_ops, step.s.p->n_ops);
    for (uint32_t v = 0; v < out->n_values; v++) assert_int_equal(out->values[v].dtype, LB_F32);
    assert_int_equal(lb_op_args(out, &out->ops[step.cast])[1].u.i, LB_F32);
    assert_int_equal(lb_op_args(step.s.p, &step.s.p->ops[step.cast])[1].u.i, LB_BF16);
    free(origin);
    lb_program_free(out);
    close_step(&step);
}

static void adamw_takes_the_place_of_the_slice(void **state)
{
    (void)state;
    step step = built(true);
    lb_passed passed = {0};
    bool chosen = true;
    assert_int_equal(lb_muon_pass_adamw(step.s.p, step.flow, &step.muon, &chosen, &passed, NULL), LB_OK);
    lb_program *out = passed.program;
    uint32_t *origin = passed.origin;
    assert_int_equal(small_find(out, "aten::mm", 0), LB_NONE);
    uint32_t adamw = small_maker(out, step.new_w);
    const lb_op *op = &out->ops[adamw];
    assert_string_equal(lb_op_name(out, op), "aten::_fused_adamw_");
    assert_int_equal(origin[adamw], step.write);
    const lb_arg *args = lb_op_args(out, op);
    assert_int_equal(out->args[args[0].u.first].u.value, step.w);
    assert_int_equal(out->args[args[1].u.first].u.value, step.g);
    assert_true(args[6].u.f == 0.003);
    uint32_t state0 = small_find(out, "lb::state", 0);
    assert_int_not_equal(state0, LB_NONE);
    assert_true(out->values[lb_op_results(out, &out->ops[state0])[0]].storage < -1);
    assert_int_not_equal(small_find(out, "aten::mul_.Tensor", 0), LB_NONE); /* the other parameter */
    free(origin);
    lb_program_free(out);
    close_step(&step);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chained_gram_products_are_muon),
        cmocka_unit_test(a_class_name_alone_is_no_muon),
        cmocka_unit_test(f32_widens_what_lives_inside_only),
        cmocka_unit_test(adamw_takes_the_place_of_the_slice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
