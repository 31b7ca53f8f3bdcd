#include "cmocka_first.h"

#include "base/digest_set.h"

enum { N = 20000 };

static uint64_t key_of(uint32_t row)
{
    return 64 * (uint64_t)row; /* as addresses are: the lower bits say nothing */
}

static uint32_t row_of(const lb_hash *table, uint64_t key)
{
    LB_HASH_EACH(row, table, key)
    if (key_of(row) == key) return row;
    return UINT32_MAX;
}

static void every_row_is_found_and_nothing_else(void **state)
{
    (void)state;
    lb_hash table = {0};
    assert_int_equal(row_of(&table, 0), UINT32_MAX);
    for (uint32_t row = 0; row < N; row++) assert_true(lb_hash_add(&table, key_of(row), row));
    for (uint32_t row = 0; row < N; row++) assert_int_equal(row_of(&table, key_of(row)), row);
    for (uint32_t row = N; row < 2 * N; row++) assert_int_equal(row_of(&table, key_of(row)), UINT32_MAX);
    lb_hash_clear(&table);
    assert_int_equal(table.n, 0);
    for (uint32_t row = 0; row < N; row++) assert_int_equal(row_of(&table, key_of(row)), UINT32_MAX);
    lb_hash_release(&table);
}

static void rows_of_one_hash_all_come(void **state)
{
    (void)state;
    lb_hash table = {0};
    for (uint32_t row = 0; row < 100; row++) assert_true(lb_hash_add(&table, row % 2, row));
    uint32_t found = 0;
    LB_HASH_EACH(row, &table, 1)
    found++, assert_int_equal(row % 2, 1);
    assert_int_equal(found, 50);
    lb_hash_release(&table);
}

static void what_is_taken_out_leaves_the_others(void **state)
{
    (void)state;
    lb_hash table = {0};
    static uint8_t there[N];
    uint32_t random = 1, n = 0;
    for (uint32_t round = 0; round < 20 * N; round++) {
        random = random * 1664525u + 1013904223u;
        const uint32_t row = (random >> 8) % N;
        assert_int_equal(row_of(&table, key_of(row)), there[row] ? row : UINT32_MAX);
        if (there[row])
            lb_hash_remove(&table, key_of(row), row), n--;
        else
            assert_true(lb_hash_add(&table, key_of(row), row)), n++;
        there[row] ^= 1;
        assert_int_equal(table.n, n);
    }
    for (uint32_t row = 0; row < N; row++) assert_int_equal(row_of(&table, key_of(row)), there[row] ? row : UINT32_MAX);
    lb_hash_release(&table);
}

static void a_digest_is_in_a_set_once(void **state)
{
    (void)state;
    lb_digest_set set = {0};
    assert_false(lb_digest_set_has(&set, (lb_digest){1, 2}));
    for (uint64_t k = 1; k < 1000; k++)
        for (int twice = 0; twice < 2; twice++) assert_true(lb_digest_set_add(&set, (lb_digest){k, k / 3}));
    assert_int_equal(set.by_digest.n, 999);
    for (uint64_t k = 1; k < 1000; k++) assert_true(lb_digest_set_has(&set, (lb_digest){k, k / 3}));
    assert_false(lb_digest_set_has(&set, (lb_digest){1000, 1}));
    assert_false(lb_digest_set_has(&set, (lb_digest){0, 0}));
    lb_digest_set_release(&set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_is_found_and_nothing_else),
        cmocka_unit_test(rows_of_one_hash_all_come),
        cmocka_unit_test(what_is_taken_out_leaves_the_others),
        cmocka_unit_test(a_digest_is_in_a_set_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
