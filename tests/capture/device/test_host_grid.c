/* The runner of kernels finds what would go wrong on a device by chance: a barrier that is missing. */
#include "cmocka_first.h"
#include "forgetful_kernel.h"

#define ORDERS 20

/* How many of the orders gave something else. */
static int wrong(bool forgets_warp, bool forgets_block)
{
    uint32_t in[64], out[128];
    for (uint32_t i = 0; i < 64; i++) in[i] = 100 + i;
    int n = 0;
    for (uint64_t seed = 0; seed < ORDERS; seed++) {
        forgetful_kernel kernel = {in, out, forgets_warp, forgets_block};
        forgetful_kernel_run(&kernel, seed);
        bool right = true;
        for (uint32_t i = 0; i < 64; i++) {
            right &= out[i] == in[i / 32 * 32 + (i + 1) % 32];
            right &= out[64 + i] == in[(i / 32 * 32 + 32) % 64 + (i + 1) % 32];
        }
        n += !right;
    }
    return n;
}

static void nothing_forgotten(void **state)
{
    (void)state;
    assert_int_equal(wrong(false, false), 0);
}

static void a_missing_barrier_of_a_warp_shows(void **state)
{
    (void)state;
    assert_int_equal(wrong(true, false), ORDERS);
}

/* One of the warps ends first, and reads what the other one has not written yet. */
static void a_missing_barrier_of_a_block_shows(void **state)
{
    (void)state;
    assert_int_equal(wrong(false, true), ORDERS);
}

/* What has been written in front of a fence is seen without what comes behind it, in some orders and not in all. */
static void a_thread_may_stand_at_a_fence(void **state)
{
    (void)state;
    int n = 0;
    for (uint64_t seed = 0; seed < ORDERS; seed++) {
        uint32_t seen[32];
        fenced_kernel_run(seen, seed);
        for (int t = 0; t < 32; t++) n += seen[t] != 0;
    }
    assert_in_range(n, 1, 32 * ORDERS - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_forgotten),
        cmocka_unit_test(a_missing_barrier_of_a_warp_shows),
        cmocka_unit_test(a_missing_barrier_of_a_block_shows),
        cmocka_unit_test(a_thread_may_stand_at_a_fence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
