/* Skip on a step written by hand: two residual layers, their backward and a foreach update. */
#include "program/block.h"
#include "program/passes.h"
#include "small_program.h"

enum { N = 4 };

typedef struct step {
    small s;
    uint32_t layer[2], mlp[2];
    uint32_t x[3]; /* stream before, between and after the layers */
    uint32_t add[2], mm[2];
    uint32_t g[3];    /* gradient of x */
    uint32_t join[2]; /* op: g[i] = g[i + 1] + what mlp gave back */
    uint32_t w[2], dw[2], new_w[2];
    uint32_t norm, update; /* ops */
} step;

static uint32_t matrix(step *step)
{
    return small_value(&step->s, (int64_t)step->s.p->n_values + 1, 0, LB_F32, N, N);
}

static void forward_layer(step *step, int i)
{
    small *s = &step->s;
    uint32_t y = matrix(step);
    s->scope = step->layer[i];
    small_boundary(s, step->layer[i], false, step->x[i]);
    s->scope = step->mlp[i];
    small_boundary(s, step->mlp[i], false, step->x[i]);
    step->mm[i] = small_op(s, "aten::mm", y, NO, step->x[i], step->w[i]);
    small_boundary(s, step->mlp[i], true, y);
    s->scope = step->layer[i];
    step->add[i] = small_op(s, "aten::add.Tensor", step->x[i + 1], NO, step->x[i], y);
    small_boundary(s, step->layer[i], true, step->x[i + 1]);
}

static void backward_layer(step *step, int i)
{
    small *s = &step->s;
    uint32_t wt = small_transposed(s, step->w[i]), xt = small_transposed(s, step->x[i]), back = matrix(step);
    s->scope = step->mlp[i];
    small_view(s, "aten::t", xt, step->x[i]);
    small_op(s, "aten::mm", step->dw[i], NO, xt, step->g[i + 1]);
    s->p->values[step->dw[i]].flags |= LB_VALUE_GRADIENT;
    small_view(s, "aten::t", wt, step->w[i]);
    small_op(s, "aten::mm", back, NO, step->g[i + 1], wt);
    step->join[i] = small_op(s, "aten::add.Tensor", step->g[i], NO, step->g[i + 1], back);
}

static lb_arg list(small *s, const uint32_t *values, uint32_t n)
{
    lb_arg args[4];
    for (uint32_t i = 0; i < n; i++) args[i] = (lb_arg){.tag = LB_ARG_VALUE, .u.value = values[i]};
    return (lb_arg){.tag = LB_ARG_LIST, .count = n, .u.first = lb_program_add_args(s->p, args, n)};
}

static step build(void)
{
    step step = {.s = {.p = lb_program_new()}};
    small *s = &step.s;
    static const char *const layers[] = {"layers.0", "layers.1"}, *const mlps[] = {"layers.0.mlp", "layers.1.mlp"};
    static const char *const names[] = {"layers.0.mlp.weight", "layers.1.mlp.weight"};
    uint32_t model = lb_program_scope(s->p, "layers", "Stack", 0), lost = matrix(&step);
    for (int i = 0; i < 2; i++) {
        step.layer[i] = lb_program_scope(s->p, layers[i], "Block", model);
        step.mlp[i] = lb_program_scope(s->p, mlps[i], i ? "FancyMLP" : "Thing", step.layer[i]);
        step.w[i] = matrix(&step), step.dw[i] = matrix(&step);
        step.new_w[i] = small_value(s, s->p->values[step.w[i]].storage, 1, LB_F32, N, N);
        s->p->values[step.w[i]].flags = s->p->values[step.new_w[i]].flags = LB_VALUE_PARAMETER;
        s->p->values[step.w[i]].name = s->p->values[step.new_w[i]].name = lb_program_string(s->p, names[i]);
        small_source(s, step.w[i]);
    }
    for (int i = 0; i < 3; i++) step.x[i] = matrix(&step), step.g[i] = matrix(&step);
    small_source(s, step.x[0]);
    small_boundary(s, model, false, step.x[0]);
    for (int i = 0; i < 2; i++) forward_layer(&step, i);
    s->scope = model;
    small_boundary(s, model, true, step.x[2]);
    s->scope = 0;
    small_op(s, "aten::exp", lost, NO, step.x[2], NO);
    s->phase = LB_PHASE_BACKWARD;
    small_op(s, "aten::mul.Tensor", step.g[2], NO, lost, lost);
    for (int i = 1; i >= 0; i--) backward_layer(&step, i);
    s->scope = 0;
    uint32_t used = matrix(&step);
    small_op(s, "aten::neg", used, NO, step.g[0], NO); /* what lies before the layers */
    s->phase = LB_PHASE_OPTIMIZER;
    lb_arg args[3] = {list(s, step.w, 2), list(s, step.dw, 2), {.tag = LB_ARG_FLOAT, .u.f = -0.1}};
    step.update = small_op_args(s, "aten::_foreach_add_.List", NO, NO, args, 3);
    lb_op *update = &s->p->ops[step.update];
    update->written = 2, update->first_written = lb_program_add_refs(s->p, step.new_w, 2),
    update->flags |= LB_OP_MUTABLE;
    assert_int_equal(lb_program_validate(s->p, NULL), LB_OK);
    return step;
}

static void layers_that_add_their_own_branch_are_the_blocks(void **state)
{
    (void)state;
    step step = build();
    lb_slice_flow *flow;
    lb_blocks blocks;
    assert_int_equal(lb_slice_flow_new(step.s.p, &flow, NULL), LB_OK);
    assert_int_equal(lb_blocks_find(step.s.p, flow, &blocks, NULL), LB_OK);
    assert_int_equal(blocks.n, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(blocks.rows[i].scope, step.layer[i]);
        assert_true(blocks.rows[i].own_residual);
        assert_int_equal(blocks.rows[i].letter, 'D');
        assert_int_equal(blocks.letters[step.mlp[i]], 'D');
    }
    assert_true(blocks.rows[0].by_structure);  /* "Thing" says nothing */
    assert_false(blocks.rows[1].by_structure); /* "FancyMLP" does */
    assert_int_equal(blocks.letters[0], 0);
    lb_blocks_release(&blocks);
    lb_slice_flow_free(flow);
    lb_program_free(step.s.p);
}

static lb_program *skipped(const step *step, uint32_t scope, uint32_t **origin)
{
    lb_program *out;
    lb_err err = LB_ERR_INIT;
    assert_int_equal(lb_pass_skip(step->s.p, &scope, 1, &out, origin, &err), LB_OK);
    return out;
}

static void a_layer_with_its_own_residual_becomes_the_identity(void **state)
{
    (void)state;
    step step = build();
    uint32_t *origin;
    lb_program *out = skipped(&step, step.layer[0], &origin);
    uint32_t copy = small_maker(out, step.x[1]);
    assert_string_equal(lb_op_name(out, &out->ops[copy]), "lb::copy");
    assert_int_equal(lb_op_args(out, &out->ops[copy])[0].u.value, step.x[0]);
    assert_int_equal(origin[copy], step.add[0]);
    uint32_t join = small_maker(out, step.g[0]);
    assert_string_equal(lb_op_name(out, &out->ops[join]), "lb::copy");
    assert_int_equal(lb_op_args(out, &out->ops[join])[0].u.value, step.g[1]);
    assert_int_equal(origin[join], step.join[0]);
    uint32_t gradient = small_maker(out, step.dw[0]);
    assert_string_equal(lb_op_name(out, &out->ops[gradient]), "lb::zero");
    for (uint32_t i = 0; i < out->n_ops; i++) assert_int_not_equal(origin[i], step.mm[0]);
    /* The other layer is untouched. */
    assert_int_equal(origin[small_maker(out, step.x[2])], step.add[1]);
    assert_string_equal(lb_op_name(out, &out->ops[small_maker(out, step.dw[1])]), "aten::mm");
    free(origin);
    lb_program_free(out);
    lb_program_free(step.s.p);
}

static void a_branch_that_its_parent_adds_gives_zero(void **state)
{
    (void)state;
    step step = build();
    uint32_t *origin;
    lb_program *out = skipped(&step, step.mlp[1], &origin);
    const lb_op *zero = &out->ops[small_maker(out, lb_op_results(step.s.p, &step.s.p->ops[step.mm[1]])[0])];
    assert_string_equal(lb_op_name(out, zero), "lb::zero");
    assert_string_equal(lb_op_name(out, &out->ops[small_maker(out, step.x[2])]), "aten::add.Tensor");
    assert_string_equal(lb_op_name(out, &out->ops[small_maker(out, step.g[1])]), "lb::copy");
    free(origin);
    lb_program_free(out);
    lb_program_free(step.s.p);
}

static void a_list_update_loses_the_frozen_parameter_only(void **state)
{
    (void)state;
    step step = build();
    uint32_t *origin;
    lb_program *out = skipped(&step, step.layer[0], &origin);
    uint32_t update = small_find(out, "aten::_foreach_add_.List", 0);
    const lb_op *op = &out->ops[update];
    const lb_arg *params = &lb_op_args(out, op)[0];
    assert_int_equal(params->count, 1);
    assert_int_equal(out->args[params->u.first].u.value, step.w[1]);
    assert_int_equal(out->args[lb_op_args(out, op)[1].u.first].u.value, step.dw[1]);
    assert_int_equal(op->written, 1);
    assert_int_equal(lb_op_written(out, op)[0], step.new_w[1]);
    assert_int_equal(origin[update], step.update);
    free(origin);
    lb_program_free(out);
    lb_program_free(step.s.p);
}

static void skipping_everything_leaves_no_update_at_all(void **state)
{
    (void)state;
    step step = build();
    uint32_t *origin;
    lb_program *out = skipped(&step, step.s.p->scopes[step.layer[0]].parent, &origin);
    assert_int_equal(small_find(out, "aten::_foreach_add_.List", 0), LB_NONE);
    assert_int_equal(small_find(out, "aten::mm", 0), LB_NONE);
    assert_int_not_equal(small_find(out, "aten::exp", 0), LB_NONE);
    free(origin);
    lb_program_free(out);
    lb_program_free(step.s.p);
}

static void selectors_name_modules_and_blocks(void **state)
{
    (void)state;
    step step = build();
    lb_passed out;
    static const struct {
        const char *selector;
        uint32_t touched;
    } cases[] = {{"layer=layers.0", 1}, {"block=D", 2}, {"block=E", 0}, {"class=FancyMLP", 1}, {"layer=layers", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lb_swap swap = {LB_SWAP_SKIP, cases[i].selector, ""};
        assert_int_equal(lb_pass_apply(step.s.p, NULL, &swap, &out, NULL), LB_OK);
        assert_int_equal(out.touched, cases[i].touched);
        free(out.origin);
        lb_program_free(out.program);
    }
    lb_err err = LB_ERR_INIT;
    lb_swap bad = {LB_SWAP_SKIP, "layer=(", ""}, other = {LB_SWAP_ORDER, "", "ring"};
    assert_int_equal(lb_pass_apply(step.s.p, NULL, &bad, &out, &err), LB_ERR_INVALID);
    assert_int_equal(lb_pass_apply(step.s.p, NULL, &other, &out, NULL), LB_ERR_INVALID);
    lb_program_free(step.s.p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_that_add_their_own_branch_are_the_blocks),
        cmocka_unit_test(a_layer_with_its_own_residual_becomes_the_identity),
        cmocka_unit_test(a_branch_that_its_parent_adds_gives_zero),
        cmocka_unit_test(a_list_update_loses_the_frozen_parameter_only),
        cmocka_unit_test(skipping_everything_leaves_no_update_at_all),
        cmocka_unit_test(selectors_name_modules_and_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
