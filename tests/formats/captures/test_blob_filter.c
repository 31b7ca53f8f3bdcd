#include "cmocka_first.h"
#include "captures/blob_filter.h"

enum { HELD = 100000, FOREIGN = 200000 };

static lb_digest digest_of(uint32_t number)
{
    return lb_digest_bytes(&number, sizeof number);
}

static void what_was_added_is_held_and_little_else(void **state)
{
    (void)state;
    lb_blob_filter *filter = lb_blob_filter_new(HELD);
    assert_non_null(filter);
    assert_false(lb_blob_filter_may_hold(filter, digest_of(0)));
    for (uint32_t i = 0; i < HELD; i++) lb_blob_filter_add(filter, digest_of(i));
    for (uint32_t i = 0; i < HELD; i++) assert_true(lb_blob_filter_may_hold(filter, digest_of(i)));
    uint32_t taken = 0;
    for (uint32_t i = HELD; i < HELD + FOREIGN; i++) taken += lb_blob_filter_may_hold(filter, digest_of(i));
    assert_true(taken < FOREIGN / 500);
    lb_blob_filter_free(filter);
}

static void one_for_nothing_holds_nothing(void **state)
{
    (void)state;
    lb_blob_filter *filter = lb_blob_filter_new(0);
    assert_non_null(filter);
    assert_false(lb_blob_filter_may_hold(filter, digest_of(1)));
    lb_blob_filter_add(filter, digest_of(1));
    assert_true(lb_blob_filter_may_hold(filter, digest_of(1)));
    lb_blob_filter_free(filter);
    assert_null(lb_blob_filter_new(UINT64_MAX));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_added_is_held_and_little_else),
        cmocka_unit_test(one_for_nothing_holds_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
