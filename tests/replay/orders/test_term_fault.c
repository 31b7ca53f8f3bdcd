/* Contributions that went wrong are told by what the sum is: missing, zeros, twice, of an earlier sum; a healthy sum
 * and one element that fits none of them are none. */
#include "cmocka_first.h"

#include "orders/term_fault.h"

#include <string.h>

enum { N = 5, COUNT = 30 };
static float given[N][COUNT], earlier[N][COUNT], zeros[COUNT], out[COUNT];
static uint64_t seed = 3;

static float number(void)
{
    seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (float)((double)(seed >> 33) / (double)(1 << 30) - 1) * (float)(1 << (seed >> 13) % 12);
}

static void make(void)
{
    for (int r = 0; r < N; r++)
        for (int i = 0; i < COUNT; i++) given[r][i] = number(), earlier[r][i] = number();
}

static void reduce(const char *text, const void *const *inputs, uint32_t n)
{
    lb_collective_order order;
    const lb_rank_terms terms = {inputs, n, LB_F32, COUNT};
    assert_int_equal(lb_collective_order_parse(text, &order, NULL), LB_OK);
    assert_int_equal(lb_collective_reduce(&order, LB_REDUCE_SUM, &terms, out, NULL), LB_OK);
}

static bool find(lb_term_fault *fault)
{
    const void *inputs[N], *old[N];
    const lb_term_part parts[] = {{0, COUNT, (const char *)out}, {0, COUNT, (const char *)out}};
    bool found;
    for (int r = 0; r < N; r++) inputs[r] = given[r], old[r] = earlier[r];
    const lb_term_sum sum = {
        .terms = {inputs, N, LB_F32, COUNT}, .reduction = LB_REDUCE_SUM, .parts = parts, .n_parts = 2, .earlier = old};
    assert_int_equal(lb_term_fault_find(&sum, &found, fault, NULL), LB_OK);
    return found;
}

static void each_fault_is_told(void **state)
{
    static const char *const orders[] = {"doubling", "mpi_ring", "linear", "binary"};
    (void)state;
    for (uint32_t who = 0; who < N; who++)
        for (size_t k = 0; k < sizeof orders / sizeof *orders; k++) {
            const void *inputs[N + 1];
            lb_term_fault fault;
            char text[96];
            make();
            for (uint32_t r = 0; r < N; r++) inputs[r] = r == who ? earlier[r] : given[r];
            reduce(orders[k], inputs, N);
            assert_true(find(&fault) && fault.kind == LB_TERM_STALE && fault.who == who);

            for (uint32_t r = 0, n = 0; r < N; r++)
                if (r != who) inputs[n++] = given[r];
            reduce(orders[k], inputs, N - 1);
            assert_true(find(&fault) && fault.kind == LB_TERM_MISSING && fault.who == who);
            lb_term_fault_text(&fault, 7, text, sizeof text);
            assert_string_equal(text, "without the contribution of rank 7");

            for (uint32_t r = 0; r < N; r++) inputs[r] = given[r];
            inputs[N] = given[who];
            reduce(orders[k], inputs, N + 1);
            assert_true(find(&fault) && fault.kind == LB_TERM_TWICE && fault.who == who);
        }
}

/* (x0 + (x1 + x3)) + (0 + x4) is no tree that four ranks have. */
static void zeros_are_told_where_the_others_keep_their_places(void **state)
{
    const void *inputs[N];
    lb_term_fault fault;
    (void)state;
    make();
    for (uint32_t r = 0; r < N; r++) inputs[r] = r == 2 ? zeros : given[r];
    reduce("binary", inputs, N);
    assert_true(find(&fault) && fault.kind == LB_TERM_ZEROS && fault.who == 2);
}

static void other_sums_are_none(void **state)
{
    const void *inputs[N];
    lb_term_fault fault;
    (void)state;
    make();
    for (uint32_t r = 0; r < N; r++) inputs[r] = given[r];
    reduce("doubling", inputs, N - 1);
    out[17] += 1;
    assert_false(find(&fault));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_fault_is_told),
        cmocka_unit_test(zeros_are_told_where_the_others_keep_their_places),
        cmocka_unit_test(other_sums_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
