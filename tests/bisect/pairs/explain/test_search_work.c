/* What a search may spend, on programs written down by hand; and what it remembers of searches in vain. */
#include "cmocka_first.h"

#include "explain/attribution_memory.h"
#include "program_sample.h"
#include "explain/search_work.h"

#include <stdio.h>

static const float DATA[64 * 64];

/* Two products of one shape on their own values, and one of another. */
static lb_program *products(void)
{
    static const int64_t sizes[3] = {64, 64, 16};
    lb_program *p = lb_program_new();
    for (int i = 0; i < 3; i++) {
        const uint32_t x = sample_value(p, LB_F32, NULL, DATA, 8, sizes[i]),
                       y = sample_value(p, LB_F32, NULL, DATA, sizes[i], 8),
                       product = sample_value(p, LB_F32, NULL, DATA, 8, 8);
        const lb_arg args[] = {{.tag = LB_ARG_VALUE, .u.value = x}, {.tag = LB_ARG_VALUE, .u.value = y}};
        sample_layer_op(p, "aten::mm", "layer", args, 2, product);
    }
    return p;
}

static void twins_have_one_key_and_other_shapes_another(void **state)
{
    (void)state;
    lb_program *p = products();
    const uint64_t first = lb_work_key(p, (const uint32_t[]){0}, 1);
    assert_true(first == lb_work_key(p, (const uint32_t[]){1}, 1));
    assert_true(first != lb_work_key(p, (const uint32_t[]){2}, 1));
    assert_true(first != lb_work_key(p, (const uint32_t[]){0, 1}, 2));
    lb_program_free(p);
}

static void work_adds_up_and_grows_with_the_terms(void **state)
{
    (void)state;
    lb_program *p = products();
    const double work[] = {lb_work_of_op(p, &p->ops[0]), lb_work_of_op(p, &p->ops[1]), lb_work_of_op(p, &p->ops[2])};
    assert_true(work[0] == work[1] && work[0] > work[2] && work[2] > 0);
    assert_true(lb_work_of_ops(p, NULL, 0) == work[0] + work[1] + work[2]);
    assert_true(lb_work_of_ops(p, (const uint32_t[]){2}, 1) == work[2]);
    lb_program_free(p);
}

static void an_order_costs_more_than_what_the_op_does_by_itself(void **state)
{
    (void)state;
    lb_candidate own = {0}, order = {.n_swaps = 1, .swaps = {{.kind = LB_SWAP_ORDER}}};
    snprintf(order.arguments[0], sizeof order.arguments[0], "butterfly:32");
    assert_true(lb_work_slowness(&own) == 1 && lb_work_slowness(&order) > 1);
}

/* One place may be a fault: what it excludes is tried at the next. */
static void a_search_in_vain_counts_from_the_second_place_on(void **state)
{
    (void)state;
    lb_attribution_memory *m = calloc(1, sizeof *m);
    assert_non_null(m);
    lb_attribution_memory_note_exhausted(m, 7, "pairwise", 40);
    assert_null(lb_attribution_memory_exhausted(m, 7));
    lb_attribution_memory_note_exhausted(m, 8, "torch:2", 40);
    assert_null(lb_attribution_memory_exhausted(m, 7));
    lb_attribution_memory_note_exhausted(m, 7, "torch:4", 40);
    const lb_exhausted_search *twins = lb_attribution_memory_exhausted(m, 7);
    assert_non_null(twins);
    assert_string_equal(twins->nearest, "pairwise");
    assert_int_equal(twins->tried, 40);
    lb_attribution_memory_release(m);
    free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(twins_have_one_key_and_other_shapes_another),
        cmocka_unit_test(work_adds_up_and_grows_with_the_terms),
        cmocka_unit_test(an_order_costs_more_than_what_the_op_does_by_itself),
        cmocka_unit_test(a_search_in_vain_counts_from_the_second_place_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
