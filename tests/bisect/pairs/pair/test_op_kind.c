/* What an op is: names, shapes and the arguments that change a number. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "pair/op_kind.h"

/* An op of one argument, over a tensor of `n` elements. */
static uint32_t add_op(lb_program *p, const char *name, int64_t n, lb_arg arg)
{
    const lb_value v = {.storage = p->n_values + 1,
                        .layout = lb_layout_contiguous(1, &n),
                        .dtype = LB_F32,
                        .name = LB_NONE,
                        .statistics = LB_NONE};
    const uint32_t value = lb_program_add_value(p, &v);
    const lb_op op = {.name = lb_program_string(p, name),
                      .first_arg = lb_program_add_args(p, &arg, 1),
                      .args = 1,
                      .first_result = lb_program_add_refs(p, &value, 1),
                      .results = 1,
                      .node_name = LB_NONE,
                      .node = -1};
    return lb_program_add_op(p, &op);
}

static lb_arg integer(int64_t i)
{
    return (lb_arg){.tag = LB_ARG_INT, .u.i = i};
}

static lb_arg text(lb_program *p, const char *word)
{
    return (lb_arg){.tag = LB_ARG_STRING, .u.string = lb_program_string(p, word)};
}

static bool same_args(const lb_program *p, uint32_t a, uint32_t b, uint32_t parts)
{
    return lb_op_same_args(p, &p->ops[a], p, &p->ops[b], parts);
}

static uint64_t kind(const lb_program *p, uint32_t op)
{
    return lb_op_kind(p, &p->ops[op], 0);
}

static void a_kind_is_name_and_shapes(void **state)
{
    (void)state;
    lb_program *p = lb_program_new();
    const uint32_t exp4 = add_op(p, "aten::exp", 4, integer(0)), again = add_op(p, "aten::exp", 4, integer(1)),
                   exp5 = add_op(p, "aten::exp", 5, integer(0)), log4 = add_op(p, "aten::log", 4, integer(0));
    assert_true(kind(p, exp4) == kind(p, again));
    assert_true(kind(p, exp4) != kind(p, exp5));
    assert_true(kind(p, exp4) != kind(p, log4));
    assert_true(lb_op_name_kind(p, &p->ops[exp4], 0) == lb_op_name_kind(p, &p->ops[exp5], 0));
    assert_true(lb_op_kind(p, &p->ops[exp4], 1) != kind(p, exp4));
    lb_program_free(p);
}

static void a_comparison_is_of_the_number_that_it_asks_for(void **state)
{
    (void)state;
    lb_program *p = lb_program_new();
    const uint32_t two = add_op(p, "aten::eq.Scalar", 4, integer(2)),
                   three = add_op(p, "aten::eq.Scalar", 4, integer(3));
    assert_true(kind(p, two) != kind(p, three));
    lb_program_free(p);
}

static void sizes_may_differ_between_a_whole_and_its_parts(void **state)
{
    (void)state;
    lb_program *p = lb_program_new();
    const uint32_t whole = add_op(p, "aten::view", 4, integer(4)), part = add_op(p, "aten::view", 4, integer(2));
    assert_false(same_args(p, whole, part, 0));
    assert_true(same_args(p, whole, part, 2));
    lb_program_free(p);
}

static void a_device_changes_no_number_and_a_reduction_does(void **state)
{
    (void)state;
    lb_program *p = lb_program_new();
    const uint32_t host = add_op(p, "aten::empty", 4, text(p, "cpu")),
                   device = add_op(p, "aten::empty", 4, text(p, "cuda:0")),
                   sum = add_op(p, "aten::loss", 4, text(p, "sum")), mean = add_op(p, "aten::loss", 4, text(p, "mean"));
    assert_true(same_args(p, host, device, 0));
    assert_false(same_args(p, sum, mean, 0));
    lb_program_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kind_is_name_and_shapes),
        cmocka_unit_test(a_comparison_is_of_the_number_that_it_asks_for),
        cmocka_unit_test(sizes_may_differ_between_a_whole_and_its_parts),
        cmocka_unit_test(a_device_changes_no_number_and_a_reduction_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
