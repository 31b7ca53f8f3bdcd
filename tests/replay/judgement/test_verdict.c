/* Local verdicts where numbers are not finite: NaN on both sides is the same whatever its bits, on one side it is
 * not. */
#include "judgement/verdict.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { N = 4 };

/* The verdict on `recorded` for x + y, with `computed` as what replay gave. */
static lb_verdict judged(lb_dtype dtype, const double *x, const double *y, const void *computed, const void *recorded)
{
    char bytes[2][8 * N];
    const int64_t shape[] = {N};
    const lb_layout layout = lb_layout_contiguous(1, shape);
    lb_operand args[3] = {{.tag = LB_OPERAND_TENSOR, .tensor = {bytes[0], dtype, layout}},
                          {.tag = LB_OPERAND_TENSOR, .tensor = {bytes[1], dtype, layout}},
                          {.tag = LB_OPERAND_INT, .i = 1, .f = 1}};
    lb_tensor result = {(void *)(uintptr_t)computed, dtype, layout},
              other = {(void *)(uintptr_t)recorded, dtype, layout};
    lb_convert(dtype, bytes[0], LB_F64, x, N, NULL);
    lb_convert(dtype, bytes[1], LB_F64, y, N, NULL);
    lb_err err = LB_ERR_INIT;
    lb_memory *memory = lb_memory_new(0);
    lb_call call = {.row = lb_op_find("aten::add.Tensor", NULL),
                    .args = args,
                    .n_args = 3,
                    .results = &result,
                    .n_results = 1,
                    .err = &err};
    lb_bound bound;
    lb_judgement judgement;
    assert_non_null(memory);
    assert_int_equal(lb_verdict_judge(memory, &call, &other, false, &bound, &judgement, &err), LB_OK);
    lb_bound_release(&bound);
    lb_memory_free(memory);
    return judgement.verdict;
}

static const lb_dtype dtypes[] = {LB_BF16, LB_F16, LB_F32};

static void put(lb_dtype dtype, void *to, double a, double b, double c, double d)
{
    const double x[N] = {a, b, c, d};
    lb_convert(dtype, to, LB_F64, x, N, NULL);
}

/* The bits of a NaN: quiet, all ones, signalling, each with either sign. */
static void put_nan(lb_dtype dtype, void *to, int kind)
{
    const size_t size = lb_dtype_bits(dtype) / 8;
    uint8_t bits[8];
    lb_from_f64(dtype, bits, INFINITY, NULL);
    if (kind % 3 == 0) lb_from_f64(dtype, bits, NAN, NULL);
    if (kind % 3 == 1) memset(bits, 0xff, size);
    if (kind % 3 == 2) bits[0] |= 1;
    bits[size - 1] = (uint8_t)(kind < 3 ? bits[size - 1] & 0x7f : bits[size - 1] | 0x80);
    memcpy(to, bits, size);
}

static void nan_on_both_sides_is_identical_whatever_its_bits(void **state)
{
    (void)state;
    static const double x[N] = {1, INFINITY, 2, -INFINITY}, y[N] = {1, -INFINITY, 3, INFINITY};
    for (size_t d = 0; d < 3; d++)
        for (int kind = 0; kind < 6; kind++) {
            char computed[8 * N], recorded[8 * N];
            put(dtypes[d], computed, 2, NAN, 5, NAN);
            put(dtypes[d], recorded, 2, NAN, 5, NAN);
            put_nan(dtypes[d], recorded + lb_dtype_bits(dtypes[d]) / 8, kind);
            assert_int_equal(judged(dtypes[d], x, y, computed, recorded), LB_VERDICT_IDENTICAL);
        }
}

static void equal_infinities_are_identical_and_opposite_ones_are_not(void **state)
{
    (void)state;
    static const double x[N] = {INFINITY, -INFINITY, 1, 1}, y[N] = {1, 1, 1, 1};
    for (size_t d = 0; d < 3; d++) {
        char computed[8 * N], recorded[8 * N];
        put(dtypes[d], computed, INFINITY, -INFINITY, 2, 2);
        put(dtypes[d], recorded, INFINITY, -INFINITY, 2, 2);
        assert_int_equal(judged(dtypes[d], x, y, computed, recorded), LB_VERDICT_IDENTICAL);
        put(dtypes[d], recorded, INFINITY, INFINITY, 2, 2);
        assert_int_equal(judged(dtypes[d], x, y, computed, recorded), LB_VERDICT_DIVERGED);
    }
}

static void nan_on_one_side_is_diverged_on_either(void **state)
{
    (void)state;
    static const double finite[N] = {1, 2, 3, 4}, x[N] = {1, INFINITY, 3, 4}, y[N] = {1, -INFINITY, 3, 4};
    for (size_t d = 0; d < 3; d++) {
        char numbers[8 * N], with_nan[8 * N];
        put(dtypes[d], numbers, 2, 4, 6, 8);
        put(dtypes[d], with_nan, 2, NAN, 6, 8);
        assert_int_equal(judged(dtypes[d], finite, finite, numbers, with_nan), LB_VERDICT_DIVERGED);
        assert_int_equal(judged(dtypes[d], x, y, with_nan, numbers), LB_VERDICT_DIVERGED);
    }
}

/* An infinity where rounding may overflow is rounding; where it may not, it is none. */
static void an_infinity_for_a_finite_number_needs_a_reason(void **state)
{
    (void)state;
    for (size_t d = 0; d < 3; d++) {
        const double most = lb_dtype_max_finite(dtypes[d]);
        const double x[N] = {most, 1, 1, 1}, y[N] = {most * lb_dtype_unit_roundoff(dtypes[d]), 1, 1, 1};
        char computed[8 * N], recorded[8 * N];
        put(dtypes[d], computed, most, 2, 2, 2);
        put(dtypes[d], recorded, INFINITY, 2, 2, 2);
        assert_int_equal(judged(dtypes[d], x, y, computed, recorded), LB_VERDICT_ROUNDING);
        put(dtypes[d], recorded, most, INFINITY, 2, 2);
        assert_int_equal(judged(dtypes[d], x, y, computed, recorded), LB_VERDICT_DIVERGED);
    }
}

/* ---- where only a digest was kept -------------------------------------------------------------------------------- */

static void a_digest_is_that_of_the_same_numbers_with_another_nan(void **state)
{
    (void)state;
    const int64_t shape[] = {2, 2};
    for (size_t d = 0; d < 3; d++) {
        char ours[8 * N], theirs[8 * N];
        const size_t size = lb_dtype_bits(dtypes[d]) / 8;
        lb_tensor a = {ours, dtypes[d], lb_layout_contiguous(2, shape)},
                  b = {theirs, dtypes[d], lb_layout_contiguous(2, shape)};
        for (int kind = 0; kind < 6; kind++) {
            put(dtypes[d], ours, 2, NAN, INFINITY, NAN);
            put(dtypes[d], theirs, 2, NAN, INFINITY, NAN);
            put_nan(dtypes[d], theirs + size, kind);
            put_nan(dtypes[d], theirs + 3 * size, kind);
            assert_int_equal(lb_memory_tensor_has_digest(&a, lb_digest_tensor(&b)),
                             kind % 3 != 2); /* no result is signalling */
        }
        put(dtypes[d], theirs, 3, NAN, INFINITY, NAN);
        assert_false(lb_memory_tensor_has_digest(&a, lb_digest_tensor(&b)));
        put(dtypes[d], theirs, 2, 7, INFINITY, NAN);
        assert_false(lb_memory_tensor_has_digest(&a, lb_digest_tensor(&b)));
        put(dtypes[d], theirs, 2, NAN, NAN, NAN);
        assert_false(lb_memory_tensor_has_digest(&a, lb_digest_tensor(&b)));
    }
}

static void parts_of_complex_numbers_are_nan_by_themselves(void **state)
{
    (void)state;
    const int64_t shape[] = {2};
    float x[4] = {1, NAN, 3, 4}, y[4] = {1, -NAN, 3, 4};
    const lb_tensor a = {x, LB_C64, lb_layout_contiguous(1, shape)}, b = {y, LB_C64, lb_layout_contiguous(1, shape)};
    assert_true(lb_memory_tensor_same(&a, &b));
    assert_true(lb_memory_tensor_has_digest(&a, lb_digest_tensor(&b)));
    y[0] = NAN;
    assert_false(lb_memory_tensor_same(&a, &b));
    assert_false(lb_memory_tensor_has_digest(&a, lb_digest_tensor(&b)));
}

/* torch's vectors negate a complex number as 0 - z, its scalar loops as -z: signs of zeros are all that differs. */
static void signs_of_complex_zeros_are_rounding_and_other_numbers_are_not(void **state)
{
    (void)state;
    const int64_t shape[] = {2};
    const lb_layout layout = lb_layout_contiguous(1, shape);
    float z[4] = {1, 0, 0, 2}, ours[4] = {-1, -0.0F, -0.0F, -2}, theirs[4] = {-1, 0, 0, -2};
    lb_operand arg = {.tag = LB_OPERAND_TENSOR, .tensor = {z, LB_C64, layout}};
    lb_tensor result = {ours, LB_C64, layout}, recorded = {theirs, LB_C64, layout};
    lb_err err = LB_ERR_INIT;
    lb_memory *memory = lb_memory_new(0);
    lb_call call = {.row = lb_op_find("aten::neg", NULL),
                    .args = &arg,
                    .n_args = 1,
                    .results = &result,
                    .n_results = 1,
                    .err = &err};
    lb_bound bound;
    lb_judgement judgement;
    assert_non_null(memory);
    assert_int_equal(lb_verdict_judge(memory, &call, &recorded, false, &bound, &judgement, &err), LB_OK);
    lb_bound_release(&bound);
    assert_int_equal(judgement.verdict, LB_VERDICT_ROUNDING);
    theirs[3] = 2;
    assert_int_equal(lb_verdict_judge(memory, &call, &recorded, false, &bound, &judgement, &err), LB_OK);
    lb_bound_release(&bound);
    assert_int_equal(judgement.verdict, LB_VERDICT_DIVERGED);
    lb_memory_free(memory);
}

static void each_verdict_has_a_word_and_a_severity_of_its_own(void **state)
{
    (void)state;
    bool taken[LB_VERDICT_COUNT] = {false};
    for (int i = 0; i < LB_VERDICT_COUNT; i++) {
        const int severity = lb_verdict_severity((lb_verdict)i);
        assert_in_range(severity, 0, LB_VERDICT_COUNT - 1);
        assert_false(taken[severity]);
        taken[severity] = true;
        for (int k = 0; k < i; k++) {
            const lb_verdict worse = severity > lb_verdict_severity((lb_verdict)k) ? (lb_verdict)i : (lb_verdict)k;
            assert_string_not_equal(lb_verdict_name((lb_verdict)i), lb_verdict_name((lb_verdict)k));
            assert_int_equal(lb_verdict_worse((lb_verdict)i, (lb_verdict)k), worse);
            assert_int_equal(lb_verdict_worse((lb_verdict)k, (lb_verdict)i), worse);
        }
    }
    assert_int_equal(lb_verdict_severity(LB_VERDICT_IDENTICAL), 0);
    assert_int_equal(lb_verdict_severity(LB_VERDICT_DIVERGED), LB_VERDICT_COUNT - 1);
    assert_string_equal(lb_verdict_name((lb_verdict)LB_VERDICT_COUNT), "unknown");
}

static void what_was_compared_and_is_right_is_accounted_for(void **state)
{
    (void)state;
    const char *const right[] = {"identical", "reordered", "noise", "rounding"};
    for (int i = 0; i < LB_VERDICT_COUNT; i++) {
        bool listed = false;
        for (size_t k = 0; k < 4; k++) listed |= !strcmp(right[k], lb_verdict_name((lb_verdict)i));
        assert_int_equal(lb_verdict_is_accounted_for((lb_verdict)i), listed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nan_on_both_sides_is_identical_whatever_its_bits),
        cmocka_unit_test(equal_infinities_are_identical_and_opposite_ones_are_not),
        cmocka_unit_test(nan_on_one_side_is_diverged_on_either),
        cmocka_unit_test(an_infinity_for_a_finite_number_needs_a_reason),
        cmocka_unit_test(a_digest_is_that_of_the_same_numbers_with_another_nan),
        cmocka_unit_test(parts_of_complex_numbers_are_nan_by_themselves),
        cmocka_unit_test(signs_of_complex_zeros_are_rounding_and_other_numbers_are_not),
        cmocka_unit_test(each_verdict_has_a_word_and_a_severity_of_its_own),
        cmocka_unit_test(what_was_compared_and_is_right_is_accounted_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
