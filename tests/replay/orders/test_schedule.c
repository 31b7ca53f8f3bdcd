/* Every order of a sum against its definition written naively, rows against columns, texts against structs. */
#include "orders/schedule.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define MOST 700

/* Numbers of very different size, so that another order gives other bits. */
static void fill(float *x, int n, unsigned seed)
{
    for (int i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        float value = (float)(int32_t)(seed & 0xFFFFFF00u);
        x[i] = ldexpf(value, -(int)(seed >> 3 & 31) - 20);
    }
}

/* ---- the definitions --------------------------------------------------------------------------------------------- */

static float in_order(const float *x, int n, int step)
{
    float sum = 0;
    for (int i = 0; i < n; i++) sum += x[i * step];
    return sum;
}

static float tree(const float *x, int n)
{
    if (n == 0) return 0;
    if (n == 1) return x[0] + 0.0f;
    int half = 1;
    while (half * 2 < n) half *= 2;
    return tree(x, half) + tree(x + half, n - half);
}

static float in_blocks(const float *x, int n, int block)
{
    float sum = 0;
    for (int i = 0; i < n; i += block) sum += in_order(x + i, n - i < block ? n - i : block, 1);
    return n <= block ? in_order(x, n, 1) : sum;
}

static float by_lanes(const float *x, int n, int lanes)
{
    float sum = 0;
    for (int l = 0; l < lanes; l++) {
        float lane = l < n ? in_order(x + l, (n - l + lanes - 1) / lanes, lanes) : 0;
        sum = l ? sum + lane : lane;
    }
    return sum;
}

/* All threads at once, as a GPU does it. */
static void exchange(float *value, int threads)
{
    for (int distance = threads / 2; distance; distance /= 2) {
        float before[32];
        memcpy(before, value, (size_t)threads * sizeof *value);
        for (int t = 0; t < threads; t++) value[t] = before[t] + before[t ^ distance];
    }
}

static float by_butterfly(const float *x, int n, int threads, int vector)
{
    static float value[LB_SCHEDULE_MAX_SIZE], warps[32];
    memset(value, 0, sizeof value);
    memset(warps, 0, sizeof warps);
    for (int i = 0; i < n; i++) value[i / vector % threads] += x[i];
    if (threads <= 32) {
        exchange(value, threads);
        return value[0];
    }
    for (int w = 0; w < threads / 32; w++) {
        exchange(value + 32 * w, 32);
        warps[w] = value[32 * w];
    }
    exchange(warps, 32);
    return warps[0];
}

static float by_halves(const float *x, int n)
{
    float lane[8], sum = 0;
    int i = 0;
    if (n > 128) {
        int half = n / 2 - n / 2 % 8;
        return by_halves(x, half) + by_halves(x + half, n - half);
    }
    if (n >= 8) {
        for (int l = 0; l < 8; l++) lane[l] = in_order(x + l, n / 8, 8);
        sum = ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
        i = n / 8 * 8;
    }
    for (; i < n; i++) sum += x[i];
    return sum;
}

static float defined(const lb_schedule *schedule, const float *x, int n)
{
    switch (schedule->kind) {
    case LB_SCHEDULE_SEQUENTIAL: return in_order(x, n, 1);
    case LB_SCHEDULE_PAIRWISE: return tree(x, n);
    case LB_SCHEDULE_BLOCKED: return in_blocks(x, n, (int)schedule->size);
    case LB_SCHEDULE_SPLITK: return in_blocks(x, n, n ? (int)((n + schedule->size - 1) / schedule->size) : 1);
    case LB_SCHEDULE_LANES: return by_lanes(x, n, (int)schedule->size);
    case LB_SCHEDULE_BUTTERFLY: return by_butterfly(x, n, (int)schedule->size, (int)schedule->vector);
    case LB_SCHEDULE_NUMPY: return by_halves(x, n);
    default: return NAN;
    }
}

static const char *const texts[] = {"sequential",      "pairwise",         "blocked:1",     "blocked:7",
                                    "blocked:64",      "splitk:3",         "splitk:8",      "lanes:1",
                                    "lanes:8",         "lanes:100",        "butterfly:8x1", "butterfly:32x4",
                                    "butterfly:128x8", "butterfly:1024x1", "numpy"};
#define TEXTS (sizeof texts / sizeof *texts)

static bool same_bits(float a, float b)
{
    return !memcmp(&a, &b, sizeof a);
}

static void each_order_is_its_definition(void **state)
{
    (void)state;
    static float x[MOST];
    for (size_t t = 0; t < TEXTS; t++) {
        lb_schedule schedule;
        assert_int_equal(lb_schedule_parse(texts[t], &schedule, NULL), LB_OK);
        for (int n = 0; n <= MOST; n += n < 40 ? 1 : 61) {
            fill(x, n, (unsigned)n + 17);
            float got = lb_schedule_sum_f32(&schedule, x, n, 0), expected = defined(&schedule, x, n);
            if (!same_bits(got, expected)) fail_msg("%s of %d: %a, not %a", texts[t], n, got, expected);
        }
    }
}

/* Sums of f32 in f64 have no rounding here, so that every order agrees with itself only if all terms are counted
 * once. */
static void f64_sums_count_every_term_once(void **state)
{
    (void)state;
    static double x[MOST];
    for (size_t t = 0; t < TEXTS; t++) {
        lb_schedule schedule;
        lb_schedule_parse(texts[t], &schedule, NULL);
        for (int n = 0; n <= MOST; n += 23) {
            for (int i = 0; i < n; i++) x[i] = i * 3 + 1;
            assert_true(lb_schedule_sum_f64(&schedule, x, n, 0) == 1.5 * n * (n - 1) + n);
        }
    }
}

static void columns_are_summed_like_rows(void **state)
{
    (void)state;
    enum { ROWS = 75, WIDTH = 133 };
    static float x[ROWS * WIDTH], row[ROWS], out[WIDTH];
    fill(x, ROWS * WIDTH, 5);
    for (size_t t = 0; t < TEXTS; t++) {
        lb_schedule schedule;
        lb_schedule_parse(texts[t], &schedule, NULL);
        lb_schedule_sum_columns_f32(&schedule, x, WIDTH, ROWS, WIDTH, out, 0);
        for (int j = 0; j < WIDTH; j++) {
            for (int i = 0; i < ROWS; i++) row[i] = x[i * WIDTH + j];
            if (!same_bits(out[j], lb_schedule_sum_f32(&schedule, row, ROWS, 0)))
                fail_msg("%s, column %d", texts[t], j);
        }
    }
}

static void narrow_accumulators_round_after_every_addition(void **state)
{
    (void)state;
    float x[300];
    for (int i = 0; i < 300; i++) x[i] = 1;
    lb_schedule sequential = {LB_SCHEDULE_SEQUENTIAL, 0, 0}, pairwise = {LB_SCHEDULE_PAIRWISE, 0, 0};
    assert_true(lb_schedule_sum_f32(&sequential, x, 300, LB_BF16) == 256); /* 256 + 1 rounds to 256 */
    assert_true(lb_schedule_sum_f32(&pairwise, x, 256, LB_BF16) == 256);
    assert_true(lb_schedule_sum_f32(&sequential, x, 300, LB_F16) == 300);
    assert_true(lb_schedule_sum_f32(NULL, x, 300, LB_BF16) < 300.5f);
}

static void the_exact_sum_is_rounded_once(void **state)
{
    (void)state;
    lb_schedule exact = {LB_SCHEDULE_EXACT, 0, 0};
    float cancel[] = {0x1p100f, 1, -0x1p100f, 0x1p-30f};
    assert_true(lb_schedule_sum_f32(&exact, cancel, 4, 0) == 1 + 0x1p-30f);
    double wide[] = {0x1p1000, 0x1p-1074, -0x1p1000, 0x1p-1074};
    assert_true(lb_schedule_sum_f64(&exact, wide, 4, 0) == 0x1p-1073);
    double tie[] = {1, 0x1p-53, 0x1p-105}; /* above the tie between 1 and 1 + 2^-52 */
    assert_true(lb_schedule_sum_f64(&exact, tie, 3, 0) == 1 + 0x1p-52);
    double even[] = {1, 0x1p-53};
    assert_true(lb_schedule_sum_f64(&exact, even, 2, 0) == 1);
    float negative[] = {-1, -0x1p-24f, -0x1p-40f};
    assert_true(lb_schedule_sum_f32(&exact, negative, 3, 0) == -1 - 0x1p-23f);
    float infinite[] = {1, INFINITY, 2}, undefined[] = {INFINITY, -INFINITY};
    assert_true(isinf(lb_schedule_sum_f32(&exact, infinite, 3, 0)));
    assert_true(isnan(lb_schedule_sum_f32(&exact, undefined, 2, 0)));
    float huge[] = {0x1.fffffep127f, 0x1.fffffep127f, -0x1.fffffep127f};
    assert_true(lb_schedule_sum_f32(&exact, huge, 3, 0) == 0x1.fffffep127f);
    assert_true(lb_schedule_sum_f32(&exact, huge, 0, 0) == 0);
#ifdef __SIZEOF_FLOAT128__
    static float x[MOST];
    for (unsigned seed = 0; seed < 200; seed++) {
        int n = 1 + (int)(seed * 37 % MOST);
        fill(x, n, seed);
        __float128 sum = 0; /* 113 bits hold every such sum */
        for (int i = 0; i < n; i++) sum += x[i];
        assert_true(lb_schedule_sum_f32(&exact, x, n, 0) == (float)sum);
    }
#endif
}

static void sums_start_from_plus_zero(void **state)
{
    (void)state;
    const float zero = -0.0f;
    for (size_t t = 0; t < TEXTS; t++) {
        lb_schedule schedule;
        lb_schedule_parse(texts[t], &schedule, NULL);
        assert_false(signbit(lb_schedule_sum_f32(&schedule, &zero, 1, 0)));
    }
    assert_false(signbit(lb_schedule_sum_f32(NULL, &zero, 1, 0)));
}

static void texts_parse_and_print(void **state)
{
    (void)state;
    char text[48];
    for (size_t t = 0; t < TEXTS; t++) {
        lb_schedule schedule;
        assert_int_equal(lb_schedule_parse(texts[t], &schedule, NULL), LB_OK);
        assert_string_equal(lb_schedule_print(&schedule, text), texts[t]);
    }
    lb_schedule schedule;
    assert_int_equal(lb_schedule_parse("cascade", &schedule, NULL), LB_OK);
    assert_string_equal(lb_schedule_print(&schedule, text), "cascade:8");
    assert_int_equal(lb_schedule_parse("butterfly:256", &schedule, NULL), LB_OK);
    assert_int_equal(schedule.vector, 1);
    static const char *const wrong[] = {"",           "blocked",     "blocked:0",     "blocked:-4",   "blocked:7x2",
                                        "lanes:2000", "cascade:7",   "butterfly:48",  "butterfly:12", "sequential:3",
                                        "sequentia",  "sequential ", "blocked:64abc", "butterfly:32x"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        lb_err err = LB_ERR_INIT;
        if (lb_schedule_parse(wrong[i], &schedule, &err) != LB_ERR_INVALID) fail_msg("\"%s\" was accepted", wrong[i]);
        assert_non_null(strstr(err.message, "pairwise")); /* says what there is */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_order_is_its_definition),
        cmocka_unit_test(f64_sums_count_every_term_once),
        cmocka_unit_test(columns_are_summed_like_rows),
        cmocka_unit_test(narrow_accumulators_round_after_every_addition),
        cmocka_unit_test(the_exact_sum_is_rounded_once),
        cmocka_unit_test(sums_start_from_plus_zero),
        cmocka_unit_test(texts_parse_and_print),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
