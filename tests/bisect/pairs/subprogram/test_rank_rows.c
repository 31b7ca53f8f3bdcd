/* Rows that are found by their keys, over generated lists: all of a key, in the order in which they stood. */
#include "cmocka_first.h"

#include "subprogram/rank_rows.h"

#include <stdlib.h>

static uint64_t drawn = 1;

static uint32_t draw(uint32_t below)
{
    drawn = drawn * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(drawn >> 33) % below;
}

static void all_rows_of_a_key_are_found_in_their_order(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 200; n++) {
        const uint32_t keys = 1 + draw(n + 3);
        lb_keyed_rows rows = {0};
        int64_t *of = calloc(n + 1, sizeof *of);
        assert_non_null(of);
        for (uint32_t i = 0; i < n; i++) {
            of[i] = ((int64_t)draw(keys) - (int64_t)keys / 2) * (draw(2) ? 1 : INT64_C(1) << 40);
            assert_true(lb_keyed_rows_add(&rows, of[i], i));
        }
        lb_keyed_rows_sort(&rows);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t found, expected = 0;
            const lb_keyed_row *row = lb_keyed_rows_of(&rows, of[i], &found);
            for (uint32_t k = 0; k < n; k++) {
                if (of[k] != of[i]) continue;
                assert_true(expected < found);
                assert_int_equal(row[expected++].row, k);
            }
            assert_int_equal(found, expected);
        }
        uint32_t none;
        lb_keyed_rows_of(&rows, INT64_MIN, &none);
        assert_int_equal(none, 0);
        free(of), free(rows.list);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_rows_of_a_key_are_found_in_their_order)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
