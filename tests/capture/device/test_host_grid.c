/* The runner of kernels finds what would go wrong on a device by chance: a barrier that is missing, a copy that is not
 * waited for. */
#include "cmocka_first.h"
#include "forgetful_kernel.h"

#define ORDERS 20

/* How many of the orders gave something else. */
static int wrong(bool forgets_barrier, bool forgets_copy)
{
    uint32_t in[32], out[32];
    for (uint32_t i = 0; i < 32; i++) in[i] = 100 + i;
    int n = 0;
    for (uint64_t seed = 0; seed < ORDERS; seed++) {
        forgetful_kernel kernel = {in, out, forgets_barrier, forgets_copy};
        forgetful_kernel_run(&kernel, seed);
        bool right = true;
        for (uint32_t i = 0; i < 32; i++) right &= out[i] == in[(i + 1) % 32];
        n += !right;
    }
    return n;
}

static void nothing_forgotten(void **state)
{
    (void)state;
    assert_int_equal(wrong(false, false), 0);
}

static void a_missing_barrier_shows(void **state)
{
    (void)state;
    assert_int_equal(wrong(true, false), ORDERS);
}

static void a_copy_that_is_not_waited_for_shows(void **state)
{
    (void)state;
    assert_int_equal(wrong(false, true), ORDERS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_forgotten),
        cmocka_unit_test(a_missing_barrier_shows),
        cmocka_unit_test(a_copy_that_is_not_waited_for_shows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
