/* Def-use: through views, partial writes and in-place ops. */
#include "program/slice.h"
#include "small_program.h"

static void a_read_through_a_view_sees_the_write(void **state)
{
    (void)state;
    small s = {.p = lb_program_new()};
    uint32_t x = small_value(&s, 1, 0, LB_F32, 4, 4), y = small_value(&s, 2, 0, LB_F32, 4, 4);
    uint32_t t = small_transposed(&s, y), z = small_value(&s, 3, 0, LB_F32, 4, 4);
    uint32_t source = small_source(&s, x), mul = small_op(&s, "aten::mul.Tensor", y, NO, x, x);
    small_view(&s, "aten::t", t, y);
    uint32_t mm = small_op(&s, "aten::mm", z, NO, y, t);
    lb_slice_flow *flow;
    assert_int_equal(lb_slice_flow_new(s.p, &flow, NULL), LB_OK);
    uint32_t defs[4];
    assert_int_equal(lb_slice_flow_defs_of(flow, mm, t, defs, 4), 1);
    assert_int_equal(defs[0], mul);
    assert_int_equal(flow->first_def[mm + 1] - flow->first_def[mm], 1);
    assert_int_equal(flow->uses[flow->first_use[source]], mul);
    lb_slice_flow_free(flow);
    lb_program_free(s.p);
}

/* Rows 0 and 1 of a 4 x 4 matrix are written anew; the rest stays from before. */
static void a_partial_write_hides_only_what_it_covers(void **state)
{
    (void)state;
    small s = {.p = lb_program_new()};
    uint32_t whole = small_value(&s, 1, 0, LB_F32, 4, 4), top = small_value(&s, 1, 1, LB_F32, 2, 4);
    uint32_t after = small_value(&s, 1, 1, LB_F32, 4, 4), out = small_value(&s, 2, 0, LB_F32, 4, 4);
    lb_value low = s.p->values[top];
    low.layout.offset = 8;
    uint32_t bottom = lb_program_add_value(s.p, &low), out2 = small_value(&s, 3, 0, LB_F32, 2, 4);
    uint32_t zeros = small_op(&s, "aten::zeros", whole, NO, NO, NO),
             fill = small_op(&s, "aten::fill_.Scalar", top, top, top, NO);
    uint32_t all = small_op(&s, "aten::neg", out, NO, after, NO),
             rest = small_op(&s, "aten::neg", out2, NO, bottom, NO);
    lb_slice_flow *flow;
    assert_int_equal(lb_slice_flow_new(s.p, &flow, NULL), LB_OK);
    uint32_t defs[4];
    assert_int_equal(lb_slice_flow_defs_of(flow, all, after, defs, 4), 2);
    assert_int_equal(defs[0], fill);
    assert_int_equal(defs[1], zeros);
    assert_int_equal(lb_slice_flow_defs_of(flow, rest, bottom, defs, 4), 1);
    assert_int_equal(defs[0], zeros);
    lb_slice_flow_free(flow);
    lb_program_free(s.p);
}

static void slices_grow_both_ways_and_stop_where_told(void **state)
{
    (void)state;
    small s = {.p = lb_program_new()};
    uint32_t v[6];
    for (int i = 0; i < 6; i++) v[i] = small_value(&s, i + 1, 0, LB_F32, 2, 2);
    small_source(&s, v[0]);
    s.phase = LB_PHASE_BACKWARD;
    uint32_t a = small_op(&s, "aten::neg", v[1], NO, v[0], NO), b = small_op(&s, "aten::exp", v[2], NO, v[1], NO);
    s.phase = LB_PHASE_OPTIMIZER;
    uint32_t c = small_op(&s, "aten::neg", v[3], NO, v[2], NO), d = small_op(&s, "aten::neg", v[4], NO, v[0], NO);
    lb_slice_flow *flow;
    assert_int_equal(lb_slice_flow_new(s.p, &flow, NULL), LB_OK);
    uint8_t marks[8] = {0}, stop[8] = {0};
    marks[c] = 1;
    lb_slice_grow(flow, true, 0, NULL, marks);
    assert_memory_equal(marks, ((uint8_t[]){1, 1, 1, 1, 0}), 5);
    memset(marks, 0, sizeof marks);
    marks[c] = 1;
    lb_slice_grow(flow, true, 1u << LB_PHASE_OPTIMIZER, NULL, marks);
    assert_int_equal(marks[b], 0);
    memset(marks, 0, sizeof marks);
    marks[0] = 1, stop[b] = 1;
    lb_slice_grow(flow, false, 0, stop, marks);
    assert_int_equal(marks[a], 1);
    assert_int_equal(marks[b], 0);
    assert_int_equal(marks[c], 0);
    assert_int_equal(marks[d], 1);
    lb_slice_flow_free(flow);
    lb_program_free(s.p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_read_through_a_view_sees_the_write),
        cmocka_unit_test(a_partial_write_hides_only_what_it_covers),
        cmocka_unit_test(slices_grow_both_ways_and_stop_where_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
