/* Identical, a cast, a rounding, different: two values whose answer is known by construction. */
#include "cmocka_first.h"

#include "audit/value_match.h"

#include <math.h>
#include <string.h>

enum { N = 3000 }; /* more than a piece of the walk, and no multiple of it */

static float wide[N], other[N];
static uint16_t narrow[N];

static lb_value_match match(lb_dtype a_dtype, void *a, lb_dtype b_dtype, void *b)
{
    const int64_t shape[] = {N / 3, 3};
    lb_tensor x = {a, a_dtype, lb_layout_contiguous(2, shape)}, y = {b, b_dtype, lb_layout_contiguous(2, shape)};
    lb_value_match match;
    assert_int_equal(lb_value_match_of(&x, &y, &match, NULL), LB_OK);
    return match;
}

static void fill(void)
{
    for (int i = 0; i < N; i++) wide[i] = other[i] = (float)(i - N / 2) / 977;
    lb_store_f32(LB_BF16, narrow, wide, N, NULL);
}

static void the_same_bits_are_identical(void **state)
{
    (void)state;
    fill();
    assert_int_equal(match(LB_F32, wide, LB_F32, other).match, LB_AUDIT_IS_IDENTICAL);
}

static void a_conversion_is_a_cast_both_ways(void **state)
{
    (void)state;
    fill();
    assert_int_equal(match(LB_F32, wide, LB_BF16, narrow).match, LB_AUDIT_IS_CAST);
    assert_int_equal(match(LB_BF16, narrow, LB_F32, wide).match, LB_AUDIT_IS_CAST);
    narrow[2999] ^= 4;
    lb_value_match m = match(LB_F32, wide, LB_BF16, narrow);
    assert_int_equal(m.match, LB_AUDIT_IS_DIFFERENT);
    assert_int_equal(m.worst, 2999);
}

/* Of numbers down to f16's least, where its steps are wider than bf16's. */
static void two_roundings_of_one_number_are_a_rounding(void **state)
{
    (void)state;
    uint16_t halves[N];
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < N; i++) wide[i] = ldexpf((float)(i - N / 2) / 977, -(i % 25));
        lb_store_f32(LB_BF16, narrow, wide, N, NULL);
        lb_store_f32(LB_F16, halves, wide, N, NULL);
        if (k) narrow[2000] += 2;
        const lb_audit_match expected = k ? LB_AUDIT_IS_DIFFERENT : LB_AUDIT_IS_ROUNDING;
        assert_int_equal(match(LB_F16, halves, LB_BF16, narrow).match, expected);
        assert_int_equal(match(LB_BF16, narrow, LB_F16, halves).match, expected);
    }
}

static void rounding_names_its_dtype(void **state)
{
    (void)state;
    static const lb_dtype dtypes[] = {LB_BF16, LB_F16, LB_E4M3FN, LB_E5M2};
    for (size_t k = 0; k < 4; k++) {
        fill();
        lb_round_to_grid_f32(other, N, dtypes[k], NULL);
        lb_value_match m = match(LB_F32, wide, LB_F32, other);
        assert_int_equal(m.match, LB_AUDIT_IS_ROUNDING);
        assert_int_equal(m.rounded, dtypes[k]);
    }
}

static void one_unit_in_the_last_place_is_rounding_and_two_are_not(void **state)
{
    (void)state;
    fill();
    for (int i = 0; i < N; i++) other[i] = nextafterf(other[i], 9);
    lb_value_match m = match(LB_F32, wide, LB_F32, other);
    assert_int_equal(m.match, LB_AUDIT_IS_ROUNDING);
    assert_int_equal(m.rounded, LB_NO_DTYPE);
    other[1234] = nextafterf(other[1234], 9);
    assert_int_equal(match(LB_F32, wide, LB_F32, other).match, LB_AUDIT_IS_DIFFERENT);
}

static void a_number_against_none_differs(void **state)
{
    (void)state;
    fill();
    other[17] = NAN;
    lb_value_match m = match(LB_F32, wide, LB_F32, other);
    assert_int_equal(m.match, LB_AUDIT_IS_DIFFERENT);
    assert_int_equal(m.worst, 17);
    wide[17] = NAN;
    assert_int_equal(match(LB_F32, wide, LB_F32, other).match, LB_AUDIT_IS_IDENTICAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_bits_are_identical),
        cmocka_unit_test(a_conversion_is_a_cast_both_ways),
        cmocka_unit_test(two_roundings_of_one_number_are_a_rounding),
        cmocka_unit_test(rounding_names_its_dtype),
        cmocka_unit_test(one_unit_in_the_last_place_is_rounding_and_two_are_not),
        cmocka_unit_test(a_number_against_none_differs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
