/* Every pattern by the fault that makes it, and generated differences of each. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <lastbit/compare.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 37, COLS = 65, N = ROWS * COLS };

static uint64_t seed = 1;
static double uniform(void)
{
    seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (double)(int64_t)(seed >> 11) / 0x1p53 * 4 - 2;
}

static lb_tensor view(float *data)
{
    int64_t shape[] = {ROWS, COLS};
    return (lb_tensor){data, LB_F32, lb_layout_contiguous(2, shape)};
}

static void fill(float *a, float *b)
{
    for (int i = 0; i < N; i++) a[i] = b[i] = (float)uniform();
}

static lb_difference compare(float *a, float *b)
{
    lb_difference d;
    lb_tensor ta = view(a), tb = view(b);
    assert_int_equal(lb_compare(&ta, &tb, &d, NULL), LB_OK);
    return d;
}

/* Makes the difference, expects the name, restores. */
static float ref[N], bad[N];
static void expect(lb_pattern pattern)
{
    assert_string_equal(lb_compare_pattern_text(compare(ref, bad).pattern), lb_compare_pattern_text(pattern));
    memcpy(bad, ref, sizeof bad);
}

static void each_pattern_is_named_by_its_fault(void **state)
{
    (void)state;
    fill(ref, bad);
    bad[100] = bad[100] * 1.5f + 0.1f;
    expect(LB_PATTERN_ONE_ELEMENT);
    uint32_t bits;
    memcpy(&bits, &bad[100], 4), bits ^= 1u << 20, memcpy(&bad[100], &bits, 4);
    expect(LB_PATTERN_ONE_BIT);
    bad[7] = NAN, bad[900] = INFINITY;
    expect(LB_PATTERN_NONFINITE);
    for (int i = 0; i < N; i++) bad[i] *= 8;
    expect(LB_PATTERN_POWER_OF_TWO);
    for (int j = 0; j < COLS; j++) bad[4 * COLS + j] = ref[9 * COLS + j], bad[9 * COLS + j] = ref[4 * COLS + j];
    expect(LB_PATTERN_SWAPPED);
    for (int i = COLS; i < N; i++) bad[i] = ref[i - COLS];
    expect(LB_PATTERN_SHIFT);
    for (int j = 0; j < COLS; j++) bad[11 * COLS + j] += 1 + (float)uniform() / 8;
    expect(LB_PATTERN_ROWS);
    for (int i = 5; i < N; i += 3) bad[i] += 1 + (float)uniform() / 8;
    expect(LB_PATTERN_STRIDE);
    for (int i = 8; i < 16; i++)
        for (int j = 16; j < 32; j++) bad[i * COLS + j] += 1 + (float)uniform() / 8;
    expect(LB_PATTERN_TILE);
    for (int i = 0; i < N; i++)
        if (uniform() > 1) bad[i] += (float)uniform();
    expect(LB_PATTERN_SCATTERED);
    for (int i = 0; i < N; i++) ref[i] *= 300, bad[i] = fmaxf(-448, fminf(448, ref[i]));
    expect(LB_PATTERN_SATURATION);
}

/* ---- generated differences: whatever the shape, the sentence is right ---- */

enum { TRIALS = 200 };
static float first[64 * 64], second[64 * 64];
static int64_t rows, columns;

static int64_t below(int64_t n)
{
    return (int64_t)((uniform() + 2) / 4 * (double)n);
}

/* A matrix of 8 to 40 rows and columns of distinct numbers that are not zero, the same on both sides. */
static void new_pair(bool square)
{
    rows = 8 + below(33), columns = square ? rows : 8 + below(33);
    for (int64_t i = 0; i < rows * columns; i++) {
        first[i] = (float)uniform();
        if (fabsf(first[i]) < 0.01f) first[i] += 0.05f;
        second[i] = first[i];
    }
}

static lb_difference of_pair(void)
{
    const int64_t shape[] = {rows, columns};
    lb_tensor a = {first, LB_F32, lb_layout_contiguous(2, shape)}, b = {second, LB_F32, lb_layout_contiguous(2, shape)};
    lb_difference d;
    assert_int_equal(lb_compare(&a, &b, &d, NULL), LB_OK);
    return d;
}

static void is_said(lb_pattern pattern, const char *detail)
{
    const lb_difference d = of_pair();
    if (d.pattern != pattern || !strstr(d.detail, detail))
        fail_msg("%lld by %lld: \"%s: %s\", not \"%s: %s\"", (long long)rows, (long long)columns,
                 lb_compare_pattern_text(d.pattern), d.detail, lb_compare_pattern_text(pattern), detail);
}

typedef struct corner {
    int64_t r0, r1, c0, c1;
} corner;

/* A tile of two by two or more that leaves two rows and columns or more. */
static corner new_tile(char *text, size_t size)
{
    corner t;
    const int64_t height = 2 + below(rows - 4), width = 2 + below(columns - 4);
    t.r0 = below(rows - height + 1), t.r1 = t.r0 + height - 1;
    t.c0 = below(columns - width + 1), t.c1 = t.c0 + width - 1;
    snprintf(text, size, "rows %lld to %lld, columns %lld to %lld", (long long)t.r0, (long long)t.r1, (long long)t.c0,
             (long long)t.c1);
    return t;
}

static void a_tile_is_a_tile_whatever_is_done_to_it(void **state)
{
    (void)state;
    for (int trial = 0; trial < TRIALS; trial++) {
        char text[120], scaled[160];
        new_pair(false);
        const corner t = new_tile(text, sizeof text);
        const int exponent = 1 + (int)below(5), how = trial % 3;
        for (int64_t i = t.r0; i <= t.r1; i++)
            for (int64_t j = t.c0; j <= t.c1; j++) {
                float *x = &second[i * columns + j];
                *x = how == 0 ? *x * 1.5f + 0.7f + (float)uniform() / 16 : how == 1 ? -*x : ldexpf(*x, exponent);
            }
        snprintf(scaled, sizeof scaled, "factor 2^%d; %s", exponent, text);
        if (how == 0) is_said(LB_PATTERN_TILE, text);
        if (how == 1) is_said(LB_PATTERN_SIGN, text);
        if (how == 2) is_said(LB_PATTERN_POWER_OF_TWO, scaled);
    }
}

static void flipped_signs_are_no_scale(void **state)
{
    (void)state;
    for (int trial = 0; trial < TRIALS; trial++) {
        char text[60];
        int64_t n = 0;
        new_pair(false);
        first[3] = second[3] = 0;
        for (int64_t i = 0; i < rows * columns; i++)
            if (i == 3 || trial % 2 || uniform() > 1) second[i] = -second[i], n++;
        snprintf(text, sizeof text, "%lld of %lld elements", (long long)n, (long long)(rows * columns));
        is_said(LB_PATTERN_SIGN, text);
    }
}

static void a_power_of_two_is_written_as_one(void **state)
{
    (void)state;
    for (int trial = 0; trial < TRIALS; trial++) {
        char text[60];
        const int exponent = (trial % 2 ? 1 : -1) * (int)(1 + below(9));
        new_pair(false);
        for (int64_t i = 0; i < rows * columns; i++) second[i] = ldexpf(trial % 3 ? second[i] : -second[i], exponent);
        snprintf(text, sizeof text, trial % 3 ? "factor 2^%d" : "factor -(2^%d)", exponent);
        is_said(LB_PATTERN_POWER_OF_TWO, text);
    }
}

static void moved_rows_are_a_permutation(void **state)
{
    (void)state;
    for (int trial = 0; trial < TRIALS; trial++) {
        char text[80];
        int64_t order[64], moved = 0;
        const int dim = trial % 2;
        new_pair(false);
        const int64_t n = dim ? columns : rows, from = 1 + below(n - 6), count = 4 + below(n - from - 4);
        for (int64_t i = 0; i < n; i++) order[i] = i;
        for (int64_t i = count - 1; i > 0; i--) {
            const int64_t k = below(i + 1), x = order[from + i];
            order[from + i] = order[from + k], order[from + k] = x;
        }
        for (int64_t i = 0; i < n; i++) moved += order[i] != i;
        for (int64_t i = 0; i < rows * columns; i++)
            second[i] = dim ? first[i / columns * columns + order[i % columns]]
                            : first[order[i / columns] * columns + i % columns];
        snprintf(text, sizeof text, "dimension %d, %lld of its %lld slices in another order", dim, (long long)moved,
                 (long long)n);
        if (moved > 2) is_said(LB_PATTERN_PERMUTED, text);
    }
}

static void a_transpose_is_named_also_under_the_shape_of_the_original(void **state)
{
    (void)state;
    for (int trial = 0; trial < TRIALS; trial++) {
        new_pair(trial % 2);
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < columns; j++) second[j * rows + i] = first[i * columns + j];
        is_said(LB_PATTERN_TRANSPOSED, rows == columns ? "dimensions 0 and 1" : "under the shape of the other");
    }
}

static void steps_of_a_quantiser_are_measured(void **state)
{
    (void)state;
    for (int trial = 0; trial < TRIALS; trial++) {
        char text[80];
        new_pair(false);
        const float step = (float)(3.0 / (20 + (double)below(107)));
        for (int64_t i = 0; i < rows * columns; i++) {
            second[i] = roundf(second[i] / step) * step;
            if (trial % 2) first[i] = uniform() > 1 ? second[i] + step : second[i];
        }
        for (int64_t i = 0; i < rows * columns && trial % 2; i++) first[i] = roundf(first[i] / step) * step;
        snprintf(text, sizeof text, trial % 2 ? "both lie on steps of %.3g" : "the second lies on steps of %.3g",
                 (double)step);
        text[strlen(text) - 1] = '\0'; /* the last digit may be rounded otherwise */
        is_said(LB_PATTERN_QUANTISED, text);
    }
    for (int trial = 0; trial < TRIALS; trial++) {
        new_pair(false);
        const lb_dtype type = trial % 2 ? LB_BF16 : LB_E4M3FN;
        float *held = trial % 3 ? first : second;
        for (int64_t i = 0; i < rows * columns; i++) {
            unsigned char bytes[4];
            lb_from_f64(type, bytes, (double)held[i], NULL);
            held[i] = (float)lb_to_f64(type, bytes);
        }
        is_said(LB_PATTERN_QUANTISED,
                trial % 3 ? (trial % 2 ? "the first holds values of bf16" : "the first holds values of e4m3fn")
                          : (trial % 2 ? "the second holds values of bf16" : "the second holds values of e4m3fn"));
    }
}

static void noise_is_scattered(void **state)
{
    (void)state;
    for (int trial = 0; trial < TRIALS; trial++) {
        new_pair(trial % 2);
        for (int64_t i = 0; i < rows * columns; i++)
            if (uniform() > -1) second[i] += (float)uniform() / 8;
        is_said(LB_PATTERN_SCATTERED, "elements");
    }
}

static void a_lost_shard_is_named_among_roundings(void **state)
{
    (void)state;
    fill(ref, bad);
    for (int i = 0; i < N; i++) {
        if (i % 3 == 0) bad[i] *= 1 + 0x1p-22f;
        if (i % COLS >= 26 && i % COLS < 39) bad[i] = 0;
    }
    lb_difference d = compare(ref, bad);
    assert_int_equal(d.pattern, LB_PATTERN_ROWS);
    assert_non_null(
        strstr(d.detail, "dimension 1, 26 to 38 of 65 (part 3 of 5); zero on the second side; the rest differs"));
}

static void a_stale_tail_of_a_flat_buffer_is_named(void **state)
{
    (void)state;
    fill(ref, bad);
    int64_t shape[] = {N};
    for (int i = 1000; i < N; i++) bad[i] = (float)uniform();
    lb_tensor ta = {ref, LB_F32, lb_layout_contiguous(1, shape)}, tb = ta;
    tb.data = bad;
    lb_difference d;
    assert_int_equal(lb_compare(&ta, &tb, &d, NULL), LB_OK);
    assert_int_equal(d.pattern, LB_PATTERN_STALE_TAIL);
    assert_int_equal(d.first, 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_pattern_is_named_by_its_fault),
        cmocka_unit_test(a_tile_is_a_tile_whatever_is_done_to_it),
        cmocka_unit_test(flipped_signs_are_no_scale),
        cmocka_unit_test(a_power_of_two_is_written_as_one),
        cmocka_unit_test(moved_rows_are_a_permutation),
        cmocka_unit_test(a_transpose_is_named_also_under_the_shape_of_the_original),
        cmocka_unit_test(steps_of_a_quantiser_are_measured),
        cmocka_unit_test(noise_is_scattered),
        cmocka_unit_test(a_lost_shard_is_named_among_roundings),
        cmocka_unit_test(a_stale_tail_of_a_flat_buffer_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
