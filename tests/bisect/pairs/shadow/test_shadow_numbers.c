/* Numbers of shadows: what is taken out is put back, in any dtype and layout, and nothing beside it is touched; how far
 * two rows of them are apart; projections. */
#include "shadow/shadow_numbers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void numbers_are_put_back_in_every_dtype(void **state)
{
    (void)state;
    static const lb_dtype dtypes[] = {LB_F64, LB_F32, LB_BF16, LB_F16, LB_I64, LB_I32, LB_I16, LB_I8, LB_U8, LB_BOOL};
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
        const size_t width = lb_dtype_bits(dtypes[d]) / 8;
        unsigned char bytes[40 * 8], before[40 * 8];
        double in[12], out[12];
        memset(bytes, 0x5a, sizeof bytes);
        memcpy(before, bytes, sizeof bytes);
        lb_layout layout = {.ndim = 2, .shape = {4, 3}, .stride = {8, 2}}; /* every other element of rows of eight */
        const lb_tensor t = {bytes, dtypes[d], layout};
        for (int i = 0; i < 12; i++) in[i] = i % 2;
        lb_shadow_put(&t, in);
        assert_int_equal(lb_shadow_numbers(&t, out), 12);
        assert_memory_equal(in, out, sizeof in);
        for (size_t e = 0; e < 40; e++) {
            const bool of_it = e < 32 && e % 8 < 6 && e % 2 == 0;
            if (!of_it) assert_memory_equal(bytes + e * width, before + e * width, width);
        }
    }
}

/* Ordinary numbers, and now and then what no arithmetic or a mask gives. */
static double drawn(void)
{
    static const double odd[] = {0, -0.0, INFINITY, -INFINITY, NAN, -3.4e38, 3.4e38, 0x1p96, -0x1p96, 1e300};
    if (rand() % 12 == 0) return odd[rand() % (int)(sizeof odd / sizeof *odd)];
    return (double)(rand() % 2001 - 1000) * 0x1p-6;
}

/* Both hold the lowest number of a dtype, or nearly: a mask. */
static bool is_mask(double x, double s)
{
    return fabs(x) >= 0x1p96 && fabs(s) >= 0x1p96 && (x < 0) == (s < 0) && fabs(x - s) <= 0x1p-7 * fabs(s);
}

static double error_of(const double *x, const double *s, int n, bool finite_alone)
{
    double worst = 0;
    for (int i = 0; i < n; i++) {
        if (x[i] == s[i] || (isnan(x[i]) && isnan(s[i])) || is_mask(x[i], s[i])) continue;
        const double d = fabs(x[i] - s[i]);
        if (isfinite(d))
            worst = d > worst ? d : worst;
        else if (!finite_alone)
            return INFINITY;
    }
    return worst;
}

static void rows_of_any_length_are_as_far_apart_as_their_elements(void **state)
{
    (void)state;
    double x[40], s[40];
    srand(7);
    for (int round = 0; round < 20000; round++) {
        const int n = rand() % 40;
        const bool alike = rand() % 3;
        double largest = 0;
        for (int i = 0; i < n; i++) {
            x[i] = drawn(), s[i] = alike && rand() % 8 ? x[i] : drawn();
            if (fabs(x[i]) < 0x1p96) largest = fmax(largest, fabs(x[i]));
        }
        const double error = error_of(x, s, n, false), noise = error_of(x, s, n, true);
        assert_true(lb_shadow_noise(x, s, n) == noise);
        const double room = fmax(0, error - 0x1p-40 * largest) / 32;
        if (isfinite(error)) assert_true(lb_shadow_numbers_agree(x, s, n, room * (1 + 1e-9)));
        if (error > 0x1p-39 * largest)
            assert_false(lb_shadow_numbers_agree(x, s, n, isfinite(error) ? room * 0.99 : 1));
        if (largest > 0) assert_true(lb_shadow_numbers_tell(x, n, 0) && !lb_shadow_numbers_tell(x, n, largest));
    }
}

static lb_shadow_projection projection_of(double *x, int64_t n)
{
    return lb_shadow_projection_of(&(lb_tensor){x, LB_F64, lb_layout_contiguous(1, &n)});
}

/* An element of a matrix is one wherever it lies in memory, and no two may be exchanged. */
static void projections_tell_orders_and_not_layouts(void **state)
{
    (void)state;
    enum { ROWS = 37, COLUMNS = 53, ALL = ROWS * COLUMNS };
    double x[ALL], turned[ALL];
    srand(11);
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < ALL; i++) x[i] = (double)rand() / RAND_MAX - 0.5;
        for (int i = 0; i < ALL; i++) turned[i % COLUMNS * ROWS + i / COLUMNS] = x[i];
        const lb_layout across = {.ndim = 2, .shape = {ROWS, COLUMNS}, .stride = {1, ROWS}};
        const lb_shadow_projection p = projection_of(x, ALL),
                                   q = lb_shadow_projection_of(&(lb_tensor){turned, LB_F64, across});
        assert_true(lb_shadow_projections_agree(&p, &q));
        assert_true(fabs(p.norm - q.norm) <= 1e-12 * p.norm);
        const int i = rand() % ALL, j = rand() % 2 ? (i + 512 * (1 + rand() % 3)) % ALL : rand() % ALL;
        const double kept = x[i];
        x[i] = x[j], x[j] = kept;
        const lb_shadow_projection exchanged = projection_of(x, ALL);
        if (x[i] != x[j]) assert_false(lb_shadow_projections_agree(&p, &exchanged));
    }
}

/* A change of any one element moves some sum by a share of it, whatever turn the element is in. */
static void every_element_counts_in_some_sum(void **state)
{
    (void)state;
    enum { ALL = 5000 };
    double x[ALL] = {0};
    for (int i = 0; i < ALL; i++) {
        x[i] = 1;
        const lb_shadow_projection p = projection_of(x, ALL);
        double most = 0;
        for (int k = 0; k < 4; k++) most = fmax(most, fabs(p.sums[k]));
        assert_true(most > 0.05 && most < 1.5);
        x[i] = 0;
    }
}

static void projections_count_masks_by_place_and_sign(void **state)
{
    (void)state;
    double x[600], y[600];
    for (int i = 0; i < 600; i++) x[i] = y[i] = (double)i;
    x[5] = -INFINITY, y[5] = -3.4e38, x[530] = NAN, y[530] = INFINITY;
    lb_shadow_projection p = projection_of(x, 600), q = projection_of(y, 600);
    assert_true(lb_shadow_projections_agree(&p, &q));
    y[5] = 3.4e38;
    q = projection_of(y, 600);
    assert_false(lb_shadow_projections_agree(&p, &q));
    y[5] = 5, y[6] = -3.4e38;
    q = projection_of(y, 600);
    assert_false(lb_shadow_projections_agree(&p, &q));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_put_back_in_every_dtype),
        cmocka_unit_test(rows_of_any_length_are_as_far_apart_as_their_elements),
        cmocka_unit_test(projections_tell_orders_and_not_layouts),
        cmocka_unit_test(every_element_counts_in_some_sum),
        cmocka_unit_test(projections_count_masks_by_place_and_sign),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
