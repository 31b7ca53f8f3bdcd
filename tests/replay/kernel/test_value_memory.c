/* Memory of a run: buffers that one run leaves and the next one takes. */
#include "cmocka_first.h"

#include "kernel/value_memory.h"

#include <string.h>

enum { BYTES = 1 << 20 };

/* A run that fills a buffer with ones. */
static char *leave_ones(lb_memory *spare)
{
    lb_err err = LB_ERR_INIT;
    lb_memory *memory = lb_memory_new(0);
    lb_memory_share(memory, spare);
    char *ones = lb_memory_scratch(memory, BYTES, &err);
    assert_non_null(ones);
    memset(ones, 1, BYTES);
    lb_memory_scratch_free(memory, ones);
    lb_memory_free(memory);
    return ones;
}

static void a_run_takes_the_buffers_of_the_one_before_it(void **state)
{
    (void)state;
    lb_err err = LB_ERR_INIT;
    lb_memory *spare = lb_memory_new(0), *next = lb_memory_new(0);
    const char *left = leave_ones(spare);
    lb_memory_share(next, spare);
    char *first = lb_memory_scratch(next, BYTES, &err), *second = lb_memory_scratch(next, BYTES, &err);
    assert_ptr_equal(first, left);
    assert_ptr_not_equal(second, left);
    assert_true(lb_memory_peak(next) >= 2 * BYTES);
    lb_memory_scratch_free(next, first), lb_memory_scratch_free(next, second);
    lb_memory_free(next), lb_memory_free(spare);
}

static void a_storage_of_zeros_is_zero_in_a_buffer_that_held_others(void **state)
{
    (void)state;
    lb_err err = LB_ERR_INIT;
    lb_memory *spare = lb_memory_new(0), *next = lb_memory_new(0);
    leave_ones(spare);
    lb_memory_share(next, spare);
    lb_memory_storage *storage = lb_memory_declare(next, 7, LB_U8, 0, BYTES, 0);
    assert_non_null(storage);
    assert_int_equal(lb_memory_storage_allocate(next, storage, LB_U8, true, &err), LB_OK);
    for (int i = 0; i < BYTES; i++)
        if (((char *)storage->base)[i]) fail_msg("byte %d is not zero", i);
    lb_memory_free(next), lb_memory_free(spare);
}

static void a_limit_counts_what_others_left(void **state)
{
    (void)state;
    lb_err err = LB_ERR_INIT;
    lb_memory *spare = lb_memory_new(0), *small = lb_memory_new(BYTES / 2);
    leave_ones(spare);
    lb_memory_share(small, spare);
    assert_null(lb_memory_scratch(small, BYTES, &err));
    assert_int_equal(err.status, LB_ERR_LIMIT);
    lb_memory_free(small), lb_memory_free(spare);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_takes_the_buffers_of_the_one_before_it),
        cmocka_unit_test(a_storage_of_zeros_is_zero_in_a_buffer_that_held_others),
        cmocka_unit_test(a_limit_counts_what_others_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
