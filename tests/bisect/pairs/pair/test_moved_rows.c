/* Rows in other places, and what is none: moved_rows.h. */
#include "pair/moved_rows.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

enum { ROWS = 40, WIDTH = 12 };

static float base[ROWS * WIDTH], other[ROWS * WIDTH];

static lb_tensor tensor_of(float *data)
{
    const int64_t shape[] = {ROWS, WIDTH};
    return (lb_tensor){data, LB_F32, lb_layout_contiguous(2, shape)};
}

static bool moved(void)
{
    const lb_tensor a = tensor_of(base), b = tensor_of(other);
    return lb_rows_moved(&a, &b, 0.1);
}

static int fill(void **state)
{
    (void)state;
    srand(3);
    for (int i = 0; i < ROWS * WIDTH; i++) base[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    return 0;
}

static void put(int to, int from, float scale)
{
    for (int k = 0; k < WIDTH; k++) other[to * WIDTH + k] = base[from * WIDTH + k] * scale;
}

static void rows_in_another_order_have_moved(void **state)
{
    (void)state;
    for (int i = 0; i < ROWS; i++) put(i, (i * 7 + 3) % ROWS, 1);
    assert_true(moved());
}

static void a_few_roundings_between_them_do_not_matter(void **state)
{
    (void)state;
    for (int i = 0; i < ROWS; i++) put(i, (i * 7 + 3) % ROWS, i % 2 ? 1.004f : 0.997f);
    assert_true(moved());
}

static void rows_that_stand_where_they_were_have_not(void **state)
{
    (void)state;
    for (int i = 0; i < ROWS; i++) put(i, i, 1.001f);
    assert_false(moved());
}

static void one_row_instead_of_another_has_not(void **state)
{
    (void)state;
    for (int i = 0; i < ROWS; i++) put(i, i == 5 ? 6 : (i * 7 + 3) % ROWS, 1);
    assert_false(moved());
}

/* The first `n` rows of `other`, among those of `base`. */
static bool among(int64_t n)
{
    const int64_t shape[] = {n, WIDTH};
    const lb_tensor few = {other, LB_F32, lb_layout_contiguous(2, shape)}, many = tensor_of(base);
    return lb_rows_among(&few, &many, 0.1);
}

static void rows_are_found_among_more(void **state)
{
    (void)state;
    for (int i = 0; i < 9; i++) put(i, (i * 5 + 2) % ROWS, i % 2 ? 1.004f : 0.997f);
    assert_true(among(9));
    put(3, 7, 0.125f); /* a gradient of a mean over fewer rows */
    assert_true(among(9));
    put(3, 7, -1);
    assert_false(among(9));
    put(3, 7, 1);
    other[3 * WIDTH + 5] += 0.5f;
    assert_false(among(9));
}

static void integers_are_the_same_or_not(void **state)
{
    (void)state;
    int64_t few[] = {0, 3, 3, 9}, many[] = {9, 1, 3, 4, 0, 8};
    const int64_t n = 4, m = 6;
    const lb_tensor a = {few, LB_I64, lb_layout_contiguous(1, &n)}, b = {many, LB_I64, lb_layout_contiguous(1, &m)};
    assert_true(lb_rows_among(&a, &b, 0.1));
    few[1] = 2;
    assert_false(lb_rows_among(&a, &b, 0.1));
}

static void other_numbers_are_no_moved_rows(void **state)
{
    (void)state;
    for (int i = 0; i < ROWS * WIDTH; i++) other[i] = base[(i * 31 + 7) % (ROWS * WIDTH)];
    assert_false(moved());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(rows_in_another_order_have_moved, fill),
        cmocka_unit_test_setup(a_few_roundings_between_them_do_not_matter, fill),
        cmocka_unit_test_setup(rows_that_stand_where_they_were_have_not, fill),
        cmocka_unit_test_setup(one_row_instead_of_another_has_not, fill),
        cmocka_unit_test_setup(rows_are_found_among_more, fill),
        cmocka_unit_test_setup(integers_are_the_same_or_not, fill),
        cmocka_unit_test_setup(other_numbers_are_no_moved_rows, fill),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
