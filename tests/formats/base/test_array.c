#include "cmocka_first.h"

#include "base/array.h"

static void appended_rows_stay_as_they_were(void **state)
{
    (void)state;
    uint32_t *rows = NULL;
    for (uint32_t n = 0; n < 5000; n++) {
        uint32_t *grown = lb_array_grow(rows, n, sizeof *grown);
        assert_non_null(grown);
        rows = grown;
        rows[n] = 3 * n;
    }
    for (uint32_t n = 0; n < 5000; n++) assert_int_equal(rows[n], 3 * n);
    free(rows);
}

static void only_a_power_of_two_grows(void **state)
{
    (void)state;
    uint32_t *rows = lb_array_reserve(NULL, 0, 5, sizeof *rows);
    assert_non_null(rows);
    for (uint32_t n = 5; n < 8; n++) assert_ptr_equal(lb_array_grow(rows, n, sizeof *rows), rows);
    assert_ptr_equal(lb_array_reserve(rows, 5, 3, sizeof *rows), rows);
    assert_ptr_equal(lb_array_reserve(rows, 8, 0, sizeof *rows), rows);
    for (uint32_t n = 0; n < 8; n++) rows[n] = n;
    rows = lb_array_reserve(rows, 8, 25, sizeof *rows);
    assert_non_null(rows);
    for (uint32_t n = 8; n < 64; n++) rows[n] = n;
    for (uint32_t n = 33; n < 64; n++) assert_ptr_equal(lb_array_grow(rows, n, sizeof *rows), rows);
    for (uint32_t n = 0; n < 64; n++) assert_int_equal(rows[n], n);
    free(rows);
}

static void an_array_with_a_known_room_keeps_it(void **state)
{
    (void)state;
    uint64_t *rows = NULL;
    uint32_t room = 0;
    assert_null(lb_array_fit(rows, &room, 0, sizeof *rows));
    for (size_t round = 0; round < 3; round++)
        for (size_t n = 0; n < 100; n++) {
            uint64_t *grown = lb_array_fit(rows, &room, n + 1, sizeof *grown);
            assert_non_null(grown);
            if (round) assert_ptr_equal(grown, rows);
            rows = grown;
            rows[n] = n;
        }
    assert_int_equal(room, 128);
    free(rows);
}

static void what_no_memory_can_hold_is_refused(void **state)
{
    (void)state;
    char row = 1;
    uint32_t room = 1;
    assert_null(lb_array_grow(&row, (size_t)1 << 60, 64));
    assert_null(lb_array_reserve(&row, 1, SIZE_MAX - 1, 1));
    assert_null(lb_array_reserve(&row, 1, (size_t)1 << 60, 64));
    assert_null(lb_array_fit(&row, &room, (size_t)UINT32_MAX + 2, 1));
    assert_null(lb_array_fit(&row, &room, 2, SIZE_MAX));
    assert_int_equal(room, 1);
    assert_int_equal(row, 1);
}

static void first_of_sorted_rows_is_the_one_that_a_walk_finds(void **state)
{
    (void)state;
    struct row {
        uint64_t key;
        int other;
    } rows[40];
    for (uint32_t n = 0; n <= 40; n++) {
        for (uint32_t i = 0; i < n; i++) rows[i] = (struct row){i / 3 * 2, (int)i}; /* keys thrice, odd ones missing */
        for (uint64_t wanted = 0; wanted < 30; wanted++) {
            size_t walked = 0;
            while (walked < n && rows[walked].key < wanted) walked++;
            assert_int_equal(lb_array_first(rows, n, sizeof rows[0], &wanted, lb_by_u64), walked);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(appended_rows_stay_as_they_were),
        cmocka_unit_test(only_a_power_of_two_grows),
        cmocka_unit_test(an_array_with_a_known_room_keeps_it),
        cmocka_unit_test(what_no_memory_can_hold_is_refused),
        cmocka_unit_test(first_of_sorted_rows_is_the_one_that_a_walk_finds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
