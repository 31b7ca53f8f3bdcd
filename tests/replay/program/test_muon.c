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

static uint32_t fresh(step *t, lb_dtype dtype, int64_t rows, int64_t columns)
{
    return small_value(&t->s, (int64_t)t->s.p->n_values + 1, 0, dtype, rows, columns);
}

static uint32_t iterate(step *t, uint32_t x, uint32_t *gram_op)
{
    small *s = &t->s;
    uint32_t xt = small_transposed(s, x), gram = fresh(t, LB_BF16, 2, 2), square = fresh(t, LB_BF16, 2, 2);
    uint32_t poly = fresh(t, LB_BF16, 2, 2), px = fresh(t, LB_BF16, 2, 3), ax = fresh(t, LB_BF16, 2, 3),
             y = fresh(t, LB_BF16, 2, 3);
    small_view(s, "aten::t", xt, x);
    *gram_op = small_op(s, "aten::mm", gram, NO, x, xt);
    small_op(s, "aten::mm", square, NO, gram, gram);
    small_op(s, "aten::add.Tensor", poly, NO, gram, square);
    small_op(s, "aten::mm", px, NO, poly, x);
    small_op(s, "aten::mul.Tensor", ax, NO, x, NO);
    small_op(s, "aten::add.Tensor", y, NO, ax, px);
    return y;
}

static uint32_t add_group(step *t, const char *optimizer, uint32_t param, uint32_t gradient, double rate)
{
    lb_program *p = t->s.p;
    lb_group_param row = {p->values[param].name, p->values[param].storage,
                          gradient == NO ? -1 : p->values[gradient].storage};
    lb_scalar lr = {lb_program_string(p, "lr"), 0, rate};
    lb_group group = {.optimizer = lb_program_string(p, optimizer),
                      .first_param = lb_program_add_group_param(p, &row),
                      .params = 1,
                      .first_option = lb_program_add_scalar(p, &lr),
                      .options = 1};
    return lb_program_add_group(p, &group);
}

static step build(bool gram)
{
    step t = {.s = {.p = lb_program_new(), .phase = LB_PHASE_OPTIMIZER}};
    small *s = &t.s;
    lb_program *p = s->p;
    t.owner = lb_program_scope(p, "mlp.down", "Linear", 0);
    t.w = fresh(&t, LB_F32, 3, 2), t.g = fresh(&t, LB_F32, 3, 2), t.buffer = fresh(&t, LB_F32, 3, 2);
    t.other = fresh(&t, LB_F32, 2, 2);
    p->values[t.w].name = lb_program_string(p, "mlp.down.weight");
    p->values[t.other].name = lb_program_string(p, "bias");
    p->values[t.w].flags = p->values[t.other].flags = LB_VALUE_PARAMETER;
    t.new_w = small_value(s, p->values[t.w].storage, 1, LB_F32, 3, 2);
    uint32_t sources[] = {t.w, t.g, t.buffer, t.other};
    for (int i = 0; i < 4; i++) small_source(s, sources[i]);
    uint32_t momentum = small_value(s, p->values[t.buffer].storage, 1, LB_F32, 3, 2), tall = fresh(&t, LB_BF16, 3, 2);
    small_op(s, "aten::lerp_.Scalar", momentum, momentum, t.buffer, t.g);
    lb_arg cast[2] = {{.tag = LB_ARG_VALUE, .u.value = momentum}, {.tag = LB_ARG_DTYPE, .u.i = LB_BF16}};
    t.cast = small_op_args(s, "aten::_to_copy", tall, NO, cast, 2);
    t.x0 = small_transposed(s, tall);
    small_view(s, "aten::t", t.x0, tall);
    uint32_t x = t.x0;
    for (int i = 0; i < 2 && gram; i++) x = iterate(&t, x, &t.gram[i]);
    t.last = x;
    uint32_t back = small_transposed(s, x), wide = fresh(&t, LB_F32, 3, 2);
    small_view(s, "aten::t", back, x);
    lb_arg widen[2] = {{.tag = LB_ARG_VALUE, .u.value = back}, {.tag = LB_ARG_DTYPE, .u.i = LB_F32}};
    small_op_args(s, "aten::_to_copy", wide, NO, widen, 2);
    t.write = small_op(s, "aten::add_.Tensor", t.new_w, t.new_w, t.w, wide);
    uint32_t other_after = small_value(s, p->values[t.other].storage, 1, LB_F32, 2, 2);
    t.other_write = small_op(s, "aten::mul_.Tensor", other_after, other_after, t.other, NO);
    add_group(&t, "Muon", t.w, t.g, 0.02);
    add_group(&t, "AdamW", t.other, NO, 0.003);
    assert_int_equal(lb_program_validate(p, NULL), LB_OK);
    return t;
}

static step built(bool gram)
{
    step t = build(gram);
    assert_int_equal(lb_slice_flow_new(t.s.p, &t.flow, NULL), LB_OK);
    assert_int_equal(lb_muon_find(t.s.p, t.flow, &t.muon, NULL), LB_OK);
    return t;
}

static void close_step(step *t)
{
    lb_muon_release(&t->muon);
    lb_slice_flow_free(t->flow);
    lb_program_free(t->s.p);
}

static void chained_gram_products_are_muon(void **state)
{
    (void)state;
    step t = built(true);
    assert_int_equal(t.muon.n, 1);
    const lb_muon_slice *slice = &t.muon.slices[0];
    assert_int_equal(slice->grams, 2);
    assert_int_equal(slice->first_gram, t.gram[0]);
    assert_int_equal(slice->write, t.write);
    assert_int_equal(slice->scope, t.owner);
    assert_int_equal(slice->gradient_value, t.g);
    assert_int_equal(slice->before, t.w);
    assert_true(slice->confirmed);
    for (uint32_t i = 0; i < slice->n_ops; i++) assert_int_not_equal(slice->ops[i], t.other_write);
    uint32_t group;
    assert_true(lb_muon_sibling_rate(t.s.p, &group) == 0.003);
    close_step(&t);
}

static void a_class_name_alone_is_no_muon(void **state)
{
    (void)state;
    step t = built(false);
    assert_int_equal(t.muon.n, 0);
    close_step(&t);
}

static void f32_widens_what_lives_inside_only(void **state)
{
    (void)state;
    step t = built(true);
    lb_program *out;
    uint32_t *origin;
    bool chosen = true;
    assert_int_equal(lb_muon_pass_wide(t.s.p, t.flow, &t.muon, &chosen, &out, &origin, NULL), LB_OK);
    assert_int_equal(out->n_ops, t.s.p->n_ops);
    for (uint32_t v = 0; v < out->n_values; v++) assert_int_equal(out->values[v].dtype, LB_F32);
    assert_int_equal(lb_op_args(out, &out->ops[t.cast])[1].u.i, LB_F32);
    assert_int_equal(lb_op_args(t.s.p, &t.s.p->ops[t.cast])[1].u.i, LB_BF16);
    free(origin);
    lb_program_free(out);
    close_step(&t);
}

static void adamw_takes_the_place_of_the_slice(void **state)
{
    (void)state;
    step t = built(true);
    lb_program *out;
    uint32_t *origin;
    bool chosen = true;
    assert_int_equal(lb_muon_pass_adamw(t.s.p, t.flow, &t.muon, &chosen, &out, &origin, NULL), LB_OK);
    assert_int_equal(small_find(out, "aten::mm", 0), LB_NONE);
    uint32_t adamw = small_maker(out, t.new_w);
    const lb_op *op = &out->ops[adamw];
    assert_string_equal(lb_op_name(out, op), "aten::_fused_adamw_");
    assert_int_equal(origin[adamw], t.write);
    const lb_arg *args = lb_op_args(out, op);
    assert_int_equal(out->args[args[0].u.first].u.value, t.w);
    assert_int_equal(out->args[args[1].u.first].u.value, t.g);
    assert_true(args[6].u.f == 0.003);
    uint32_t state0 = small_find(out, "lb::state", 0);
    assert_int_not_equal(state0, LB_NONE);
    assert_true(out->values[lb_op_results(out, &out->ops[state0])[0]].storage < -1);
    assert_int_not_equal(small_find(out, "aten::mul_.Tensor", 0), LB_NONE); /* the other parameter */
    free(origin);
    lb_program_free(out);
    close_step(&t);
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
