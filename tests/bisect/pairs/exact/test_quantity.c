/* Quantities: the same in every layout, another as soon as one number is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "exact/quantity.h"

#include <math.h>

enum { N = 240 };

static uint64_t seed = 3;
static double number(void)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(int64_t)(seed >> 11) / 0x1p53 - 0.3;
}

static lb_quantity of(const double *x, int64_t n)
{
    const lb_tensor t = {(void *)x, LB_F64, lb_layout_contiguous(1, &n)};
    return lb_quantity_of(&t);
}

static void order_shape_and_repetition_do_not_matter(void **state)
{
    (void)state;
    double x[N], turned[N], twice[2 * N];
    for (int i = 0; i < N; i++) x[i] = number();
    for (int i = 0; i < N; i++) turned[i] = x[(i * 77 + 5) % N], twice[2 * i] = twice[2 * i + 1] = x[i];
    const lb_quantity a = of(x, N), b = of(turned, N), c = of(twice, 2 * N);
    assert_true(lb_quantities_agree(&a, &b));
    assert_true(lb_quantities_agree(&a, &c));
    const int64_t shape[] = {12, 20};
    lb_tensor across = {x, LB_F64, lb_layout_contiguous(2, shape)};
    across.layout.shape[0] = 20, across.layout.shape[1] = 12, across.layout.stride[0] = 1, across.layout.stride[1] = 20;
    const lb_quantity d = lb_quantity_of(&across);
    assert_true(lb_quantities_agree(&a, &d));
}

static void one_other_number_is_another_quantity(void **state)
{
    (void)state;
    for (int at = 0; at < N; at += 7) {
        double x[N], y[N];
        for (int i = 0; i < N; i++) x[i] = y[i] = number();
        y[at] += 1e-6;
        const lb_quantity a = of(x, N), b = of(y, N);
        assert_false(lb_quantities_agree(&a, &b));
        for (int i = 0; i < N; i++) y[i] = -x[i];
        const lb_quantity c = of(y, N);
        assert_false(lb_quantities_agree(&a, &c));
        for (int i = 0; i < N; i++) y[i] = 1.000001 * x[i];
        const lb_quantity d = of(y, N);
        assert_false(lb_quantities_agree(&a, &d));
    }
}

/* What is looked at eight at once is what one by one gives, whatever the length and wherever masks stand. */
static void each_length_is_measured_as_one_by_one(void **state)
{
    (void)state;
    for (int64_t n = 2; n < 50; n++) {
        double x[50], squares = 0, sum = 0, counted = 0;
        for (int64_t i = 0; i < n; i++) {
            x[i] = i % 11 == n % 11 ? (i % 2 ? NAN : -INFINITY) : number();
            if (isfinite(x[i])) squares += x[i] * x[i], counted++;
        }
        const double r = sqrt(squares / counted);
        for (int64_t i = 0; i < n; i++) sum += isfinite(x[i]) ? 1 / (1 + x[i] / r * (x[i] / r)) : 0;
        const lb_quantity q = of(x, n);
        assert_true(fabs(q.mean[2] - r) <= 1e-13 * r);
        assert_true(fabs(q.mean[5] - sum / counted) <= 1e-13);
        assert_false(q.whole);
        for (int64_t i = 0; i < n; i++) x[i] = isfinite(x[i]) ? floor(8 * x[i]) : x[i];
        assert_true(of(x, n).whole);
        x[n - 1] = 0.5;
        assert_false(of(x, n).whole);
    }
}

static void what_is_one_number_all_over_tells_nothing(void **state)
{
    (void)state;
    double zeros[N] = {0}, ones[N];
    for (int i = 0; i < N; i++) ones[i] = 1;
    const lb_quantity a = of(zeros, N), b = of(ones, N);
    assert_false(lb_quantities_agree(&a, &a));
    assert_false(lb_quantities_agree(&b, &b));
}

static void minus_infinity_and_the_lowest_number_mask_alike(void **state)
{
    (void)state;
    double x[N], y[N];
    for (int i = 0; i < N; i++) x[i] = y[i] = number();
    for (int i = 0; i < N; i += 3) x[i] = -INFINITY, y[i] = -3.4028234663852886e38;
    const lb_quantity a = of(x, N), b = of(y, N);
    assert_true(lb_quantities_agree(&a, &b));
    x[1] = -INFINITY; /* one more */
    const lb_quantity c = of(x, N);
    assert_false(lb_quantities_agree(&c, &b));
}

static void what_rounding_can_give_by_itself_tells_nothing(void **state)
{
    (void)state;
    double x[N], y[N];
    for (int i = 0; i < N; i++) x[i] = number(), y[i] = number();
    lb_quantity a = of(x, N);
    const lb_quantity disturbed = of(y, N); /* the disturbed run gave something else altogether */
    lb_quantity_disturbed(&a, &disturbed);
    assert_false(lb_quantities_agree(&a, &a));
}

/* Of choices (experts, masks of these) the means are the same wherever they fall; a digest tells. A top-k need not
 * sort. */
static void choices_are_told_by_where_they_fall(void **state)
{
    (void)state;
    int64_t chosen[12][2], sorted[12][2], elsewhere[12][2];
    double mask[12][4] = {{0}}, moved[12][4] = {{0}};
    for (int i = 0; i < 12; i++) {
        chosen[i][0] = (i * 5 + 3) % 4, chosen[i][1] = (chosen[i][0] + 1 + i % 3) % 4;
        sorted[i][0] = chosen[i][0] < chosen[i][1] ? chosen[i][0] : chosen[i][1];
        sorted[i][1] = chosen[i][0] + chosen[i][1] - sorted[i][0];
        mask[i][chosen[i][0]] = moved[(i + 1) % 12][chosen[i][0]] = 1;
    }
    for (int i = 0; i < 12; i++) elsewhere[i][0] = chosen[(i + 1) % 12][0], elsewhere[i][1] = chosen[(i + 1) % 12][1];
    const int64_t pairs[] = {12, 2}, wide[] = {12, 4};
    const lb_layout two = lb_layout_contiguous(2, pairs), four = lb_layout_contiguous(2, wide);
    const lb_quantity a = lb_quantity_of(&(lb_tensor){chosen, LB_I64, two}),
                      b = lb_quantity_of(&(lb_tensor){sorted, LB_I64, two}),
                      c = lb_quantity_of(&(lb_tensor){elsewhere, LB_I64, two}),
                      m = lb_quantity_of(&(lb_tensor){mask, LB_F64, four}),
                      n = lb_quantity_of(&(lb_tensor){moved, LB_F64, four});
    assert_true(a.whole && b.whole && c.whole && m.whole && n.whole);
    assert_true(lb_quantities_agree(&a, &c) && lb_quantities_agree(&m, &n)); /* the means do not know */
    assert_true(a.digest == b.digest && a.digest != c.digest && m.digest != n.digest);
    double x[N];
    for (int i = 0; i < N; i++) x[i] = number();
    assert_false(of(x, N).whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_shape_and_repetition_do_not_matter),
        cmocka_unit_test(one_other_number_is_another_quantity),
        cmocka_unit_test(each_length_is_measured_as_one_by_one),
        cmocka_unit_test(what_is_one_number_all_over_tells_nothing),
        cmocka_unit_test(minus_infinity_and_the_lowest_number_mask_alike),
        cmocka_unit_test(what_rounding_can_give_by_itself_tells_nothing),
        cmocka_unit_test(choices_are_told_by_where_they_fall),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
