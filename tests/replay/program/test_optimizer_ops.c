/* Which ops of the optimizer phase are an optimizer's: in a recorded step, beside it, by hand. */
#include "program/optimizer_ops.h"
#include "small_program.h"

typedef struct step {
    small s;
    uint32_t w, g, state;
    int versions;
} step;

static step begin(void)
{
    step t = {.s = {.p = lb_program_new(), .phase = LB_PHASE_OPTIMIZER}};
    t.w = small_value(&t.s, 1, 0, LB_F32, 2, 2);
    t.g = small_value(&t.s, 2, 0, LB_F32, 2, 2);
    t.state = small_value(&t.s, 3, 0, LB_F32, 2, 2);
    t.s.p->values[t.w].flags = LB_VALUE_PARAMETER;
    t.s.p->values[t.g].flags = LB_VALUE_GRADIENT;
    t.s.p->values[t.state].flags = LB_VALUE_STATE;
    small_source(&t.s, t.w), small_source(&t.s, t.g), small_source(&t.s, t.state);
    return t;
}

/* Writes what `value` names in place, from itself and `other`; `value` becomes what it is afterwards. */
static uint32_t write(step *t, uint32_t *value, uint32_t other)
{
    lb_value after = t->s.p->values[*value];
    after.version = (uint32_t)++t->versions;
    const uint32_t row = lb_program_add_value(t->s.p, &after);
    const uint32_t op = small_op(&t->s, "aten::mul_.Tensor", row, row, *value, other);
    *value = row;
    return op;
}

static void recorded_step(step *t, uint32_t first_op)
{
    lb_program *program = t->s.p;
    lb_group_param row = {lb_program_string(program, "w"), program->values[t->w].storage,
                          program->values[t->g].storage};
    lb_group group = {.optimizer = lb_program_string(program, "AdamW"),
                      .first_op = first_op,
                      .ops = program->n_ops - first_op,
                      .first_param = lb_program_add_group_param(program, &row),
                      .params = 1};
    lb_program_add_group(program, &group);
}

static uint8_t *end(step *t)
{
    lb_slice_flow *flow;
    assert_int_equal(lb_slice_flow_new(t->s.p, &flow, NULL), LB_OK);
    uint8_t *marks = lb_optimizer_ops(flow);
    assert_non_null(marks);
    lb_slice_flow_free(flow);
    lb_program_free(t->s.p);
    return marks;
}

static void what_is_written_over_behind_a_recorded_step_is_no_optimizers(void **state)
{
    (void)state;
    step t = begin();
    const uint32_t before = write(&t, &t.w, NO), decay = write(&t, &t.w, NO), momentum = write(&t, &t.state, t.g);
    const uint32_t update = write(&t, &t.w, t.state);
    recorded_step(&t, decay);
    const uint32_t weight = write(&t, &t.w, NO), reset = write(&t, &t.state, NO), extra = write(&t, &t.w, t.g);
    uint8_t *marks = end(&t);
    assert_true(marks[decay] && marks[momentum] && marks[update]);
    assert_false(marks[before] || marks[weight] || marks[reset]);
    assert_true(marks[extra]); /* a gradient enters it */
    free(marks);
}

static void decay_and_momentum_belong_to_an_update_by_hand(void **state)
{
    (void)state;
    step t = begin();
    uint32_t buffer = small_value(&t.s, 9, 0, LB_F32, 2, 2);
    small_source(&t.s, buffer);
    const uint32_t decay = write(&t, &t.w, NO), fade = write(&t, &t.state, NO), momentum = write(&t, &t.state, t.g);
    const uint32_t update = write(&t, &t.w, t.state), filled = write(&t, &buffer, NO),
                   average = write(&t, &buffer, t.w);
    uint8_t *marks = end(&t);
    assert_true(marks[decay] && marks[fade] && marks[momentum] && marks[update]);
    assert_false(marks[filled] || marks[average]); /* no gradient: what a parameter holds is a parameter */
    free(marks);
}

static void ops_of_other_phases_are_none(void **state)
{
    (void)state;
    step t = begin();
    t.s.phase = LB_PHASE_OTHER;
    const uint32_t other = write(&t, &t.w, t.g);
    uint8_t *marks = end(&t);
    assert_false(marks[other]);
    free(marks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_over_behind_a_recorded_step_is_no_optimizers),
        cmocka_unit_test(decay_and_momentum_belong_to_an_update_by_hand),
        cmocka_unit_test(ops_of_other_phases_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
