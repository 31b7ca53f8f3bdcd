/* Rows of a batch: along which dimension two values of batches of other sizes hold theirs. What rows are found is
 * tested on recordings (test_explain_rows.py). */
#include "pair/batch_rows.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static int dim_of(const lb_batch_rows *rows, int ndim, const int64_t *few, const int64_t *many)
{
    const lb_layout a = lb_layout_contiguous(ndim, few), b = lb_layout_contiguous(ndim, many);
    return lb_batch_rows_dim(rows, &a, &b);
}

/* Sizes in pairs: the smaller side's and the larger's. */
static int dim_in_pairs(const lb_batch_rows *rows, const int64_t (*sizes)[2], int ndim)
{
    int64_t few[LB_MAX_DIMS], many[LB_MAX_DIMS];
    for (int d = 0; d < ndim; d++) few[d] = sizes[d][0], many[d] = sizes[d][1];
    return dim_of(rows, ndim, few, many);
}
#define DIM(...)                                                                                                       \
    dim_in_pairs(&rows, (const int64_t[][2]){__VA_ARGS__}, sizeof((int64_t[][2]){__VA_ARGS__}) / sizeof(int64_t[2]))

static void rows_are_found_along_the_one_dimension_that_differs(void **state)
{
    (void)state;
    const lb_batch_rows rows = {.few = 2, .many = 8};
    assert_int_equal(DIM({2, 8}, {5, 5}), 0);                        /* [n, t] */
    assert_int_equal(DIM({10, 40}, {256, 256}), 0);                  /* [n*t, d] */
    assert_int_equal(DIM({8, 32}, {5, 5}, {32, 32}), 0);             /* [n*h, t, d] */
    assert_int_equal(DIM({256, 256}, {10, 40}), 1);                  /* [d, n*t] */
    assert_int_equal(DIM({5, 5}, {2, 8}, {256, 256}), 1);            /* [t, n, d] */
    assert_int_equal(DIM({256, 256}, {64, 64}), LB_REASSEMBLY_SAME); /* a weight */
}

static void values_of_another_ratio_carry_no_rows(void **state)
{
    (void)state;
    const lb_batch_rows rows = {.few = 2, .many = 8};
    assert_int_equal(DIM({2, 6}, {5, 5}), LB_REASSEMBLY_NONE);
    assert_int_equal(DIM({2, 8}, {5, 9}), LB_REASSEMBLY_NONE);  /* other lengths besides */
    assert_int_equal(DIM({2, 8}, {2, 8}), LB_REASSEMBLY_NONE);  /* each row against each */
    assert_int_equal(DIM({3, 12}, {5, 5}), LB_REASSEMBLY_NONE); /* the ratio, but no whole number of elements a row */
    assert_int_equal(DIM({2, 8}), 0);
    const int64_t few[] = {2, 5}, many[] = {8, 5, 1};
    const lb_layout a = lb_layout_contiguous(2, few), b = lb_layout_contiguous(3, many);
    assert_int_equal(lb_batch_rows_dim(&rows, &a, &b), LB_REASSEMBLY_NONE);
}

static void pieces_of_a_larger_batch_stand_in_the_order_of_the_smaller(void **state)
{
    (void)state;
    int64_t places[] = {6, 1};
    const lb_batch_rows rows = {.few = 2, .many = 8, .places = places};
    const int64_t few[] = {6, 2}, many[] = {24, 2}; /* three elements of the flattened dimension are a row */
    const lb_layout whole = lb_layout_contiguous(2, few), part = lb_layout_contiguous(2, many);
    uint32_t n;
    lb_reassembly_piece *pieces = lb_reassembly_pieces(&rows, &whole, 0, NULL, NULL, 1, &n);
    int32_t from[48], to[12];
    for (int i = 0; i < 48; i++) from[i] = i;
    assert_int_equal(n, 2);
    for (uint32_t i = 0; i < n; i++) lb_reassembly_place(&whole, 0, &pieces[i], &part, sizeof *from, from, to);
    for (int i = 0; i < 6; i++) assert_int_equal(to[i], 36 + i);    /* row 6: 6 * 3 * 2 */
    for (int i = 0; i < 6; i++) assert_int_equal(to[6 + i], 6 + i); /* row 1 */
    free(pieces);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_found_along_the_one_dimension_that_differs),
        cmocka_unit_test(values_of_another_ratio_carry_no_rows),
        cmocka_unit_test(pieces_of_a_larger_batch_stand_in_the_order_of_the_smaller),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
