/* Sizes and hashes of rows and columns against plain loops, and which blocks are noise. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "audit/profile.h"

#include <math.h>
#include <stdlib.h>

static uint64_t seed = 1;
static float uniform(void)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (float)((double)(int64_t)(seed >> 11) / 0x1p53 * 2 - 1);
}

static float *drawn(int64_t n)
{
    float *x = malloc((size_t)n * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++) x[i] = uniform();
    return x;
}

static double size_of(const float *x, int64_t start, int64_t stride, int64_t n)
{
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += (double)x[start + i * stride] * (double)x[start + i * stride];
    return sqrt(squares / (double)n);
}

static lb_profile profile_of(float *x, int ndim, const int64_t *shape, int64_t head, bool experts)
{
    const lb_tensor tensor = {x, LB_F32, lb_layout_contiguous(ndim, shape)};
    lb_profile profile;
    assert_true(lb_profile_init(&profile, &tensor, head, experts));
    return profile;
}

static void rows_and_columns_have_their_sizes(void **state)
{
    (void)state;
    enum { ROWS = 7, COLUMNS = 5000 }; /* a row is longer than a portion */
    const int64_t shape[] = {ROWS, COLUMNS};
    float *x = drawn(ROWS * COLUMNS);
    lb_profile profile = profile_of(x, 2, shape, 0, false);
    assert_int_equal(profile.axes[0].n, ROWS);
    assert_int_equal(profile.axes[1].n, 0);
    assert_int_equal(profile.axes[2].n, COLUMNS);
    for (int64_t i = 0; i < ROWS; i++)
        assert_float_equal(profile.axes[0].sizes[i], size_of(x, i * COLUMNS, 1, COLUMNS), 1e-6);
    for (int64_t i = 0; i < COLUMNS; i++)
        assert_float_equal(profile.axes[2].sizes[i], size_of(x, i, COLUMNS, ROWS), 1e-6);
    lb_profile_release(&profile);
    free(x);
}

static void hashes_are_equal_where_numbers_are(void **state)
{
    (void)state;
    const int64_t shape[] = {6, 64};
    float *x = drawn(6 * 64);
    for (int i = 0; i < 64; i++) x[4 * 64 + i] = x[1 * 64 + i];
    for (int i = 0; i < 6; i++) x[i * 64 + 9] = x[i * 64 + 3];
    lb_profile profile = profile_of(x, 2, shape, 0, false);
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < i; k++)
            assert_int_equal(profile.axes[0].hashes[i] == profile.axes[0].hashes[k], i == 4 && k == 1);
    for (int i = 0; i < 64; i++)
        for (int k = 0; k < i; k++)
            assert_int_equal(profile.axes[2].hashes[i] == profile.axes[2].hashes[k], i == 9 && k == 3);
    lb_profile_release(&profile);
    free(x);
}

static void three_dimensions_have_three_axes(void **state)
{
    (void)state;
    const int64_t shape[] = {4, 6, 32};
    float *x = drawn(4 * 6 * 32);
    lb_profile profile = profile_of(x, 3, shape, 0, true);
    assert_int_equal(profile.axes[0].n, 4);
    assert_int_equal(profile.axes[1].n, 6);
    assert_int_equal(profile.axes[2].n, 32);
    assert_float_equal(profile.axes[0].sizes[2], size_of(x, 2 * 6 * 32, 1, 6 * 32), 1e-6);
    assert_int_equal(profile.sides[0].n, 4); /* a block is an expert */
    assert_int_equal(profile.sides[0].width, 6);
    lb_profile_release(&profile);
    free(x);
}

static void a_block_of_noise_is_told_from_one_with_structure(void **state)
{
    (void)state;
    enum { HEADS = 6, HEAD = 32, WIDE = 256 };
    const int64_t shape[] = {HEADS * HEAD, WIDE};
    float *x = drawn(HEADS * HEAD * WIDE);
    for (int64_t row = 0; row < HEADS * HEAD; row++)
        for (int64_t i = 0; row / HEAD != 4 && i < WIDE; i++)
            x[row * WIDE + i] *= 1 + (float)(row % 7) + (float)(i % 5);
    lb_profile profile = profile_of(x, 2, shape, HEAD, false);
    assert_int_equal(profile.sides[0].n, HEADS);
    for (int i = 0; i < HEADS; i++) {
        if (i == 4)
            assert_true(profile.sides[0].list[i].unlikeness < 4);
        else
            assert_true(profile.sides[0].list[i].unlikeness > 10);
    }
    assert_float_equal(profile.sides[0].list[4].size, sqrt(1.0 / 3), 0.01);
    lb_profile_release(&profile);
    free(x);
}

static void a_view_is_read_as_it_lies(void **state)
{
    (void)state;
    const int64_t shape[] = {8, 16};
    float *x = drawn(8 * 16);
    lb_tensor tensor = {x, LB_F32, lb_layout_contiguous(2, shape)};
    tensor.layout.stride[0] = 1, tensor.layout.stride[1] = 8;
    lb_profile profile;
    assert_true(lb_profile_init(&profile, &tensor, 0, false));
    for (int64_t i = 0; i < 8; i++) assert_float_equal(profile.axes[0].sizes[i], size_of(x, i, 8, 16), 1e-6);
    lb_profile_release(&profile);
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_and_columns_have_their_sizes),
        cmocka_unit_test(hashes_are_equal_where_numbers_are),
        cmocka_unit_test(three_dimensions_have_three_axes),
        cmocka_unit_test(a_block_of_noise_is_told_from_one_with_structure),
        cmocka_unit_test(a_view_is_read_as_it_lies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
