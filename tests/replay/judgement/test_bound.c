/* The underflow term of running error bounds: what a processor may flush to zero, and what it may not. */
#include "judgement/bound.h"

#include <lastbit/dtype.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { K = 4 };

/* How far `value` is from a row of K times a column of K, all of the same number each, in units of the bound. */
static double ratio_of(lb_dtype dtype, double left, double right, double value)
{
    char bytes[2][8 * K], result[8];
    const int64_t row[] = {1, K}, column[] = {K, 1}, one[] = {1, 1};
    lb_operand args[2] = {{.tag = LB_OPERAND_TENSOR, .tensor = {bytes[0], dtype, lb_layout_contiguous(2, row)}},
                          {.tag = LB_OPERAND_TENSOR, .tensor = {bytes[1], dtype, lb_layout_contiguous(2, column)}}};
    lb_tensor y = {result, dtype, lb_layout_contiguous(2, one)};
    const size_t size = lb_dtype_bits(dtype) / 8;
    for (size_t k = 0; k < K; k++) {
        lb_convert(dtype, bytes[0] + k * size, LB_F64, &left, 1, NULL);
        lb_convert(dtype, bytes[1] + k * size, LB_F64, &right, 1, NULL);
    }
    lb_convert(dtype, result, LB_F64, &value, 1, NULL);
    lb_err err = LB_ERR_INIT;
    lb_memory *memory = lb_memory_new(0);
    lb_bound bound;
    lb_call call = {
        .row = lb_op_find("aten::mm", NULL), .args = args, .n_args = 2, .results = &y, .n_results = 1, .err = &err};
    assert_non_null(memory);
    assert_int_equal(lb_bound_init(&bound, memory, &call, &err), LB_OK);
    const double ratio = lb_bound_ratio(&bound, 0, &y);
    lb_bound_release(&bound);
    lb_memory_free(memory);
    return ratio;
}

/* The step of a dtype at a number, by its definition. */
static void steps_are_those_of_the_dtype(void **state)
{
    static const lb_dtype types[] = {LB_F64, LB_F32, LB_BF16, LB_F16, LB_E4M3FN};
    (void)state;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (int e = -1074; e < 1023; e++)
            for (int k = 0; k < 3; k++) {
                const double x = ldexp(k == 0   ? 1
                                       : k == 1 ? -1.4142
                                                : 1 - 0x1p-53,
                                       e),
                             tiny = lb_dtype_min_subnormal(types[t]);
                int power;
                frexp(fabs(x), &power);
                const double step = ldexp(1, power - lb_dtype_precision(types[t]));
                assert_true(lb_bound_ulp(types[t], x) == (fabs(x) > tiny && step > tiny ? step : tiny));
            }
}

static void sums_of_bf16_products_may_be_flushed(void **state)
{
    (void)state;
    assert_true(ratio_of(LB_BF16, 0x1p-70, 0x1p-60, 0x1p-128) == 0);
    assert_true(ratio_of(LB_BF16, 0x1p-70, 0x1p-60, 0) <= 1);
    assert_true(ratio_of(LB_BF16, 0x1p-60, 0x1p-40, 0) > 1); /* 2^-98 is flushed nowhere */
}

static void subnormal_factors_of_bf16_may_be_taken_for_zero(void **state)
{
    (void)state;
    assert_true(ratio_of(LB_BF16, 0x1p-128, 0x1p20, 0) <= 1);
    assert_true(ratio_of(LB_BF16, 0x1p-120, 0x1p20, 0) > 1);
}

static void products_of_f32_and_f16_keep_subnormals(void **state)
{
    (void)state;
    assert_true(ratio_of(LB_F32, 0x1p-70, 0x1p-60, 0) > 1);
    assert_true(ratio_of(LB_F16, 0x1p-10, 0x1p-10, 0) > 1);
}

static void factors_that_are_not_finite_excuse_nothing(void **state)
{
    (void)state;
    assert_true(isinf(ratio_of(LB_BF16, INFINITY, 1, 0)));
}

/* The norms of two rows of K, all of the first `large` and all of the second 1: how far `first` and `second` are from
 * them. */
static void ratios_of_norms(float large, float first, float second, double ratio[2])
{
    float x[2 * K], y[2] = {first, second};
    for (int i = 0; i < 2 * K; i++) x[i] = i < K ? large : 1;
    const int64_t shape[] = {2, K}, two[] = {2}, one[] = {1}, last[] = {1};
    lb_operand args[] = {{.tag = LB_OPERAND_TENSOR, .tensor = {x, LB_F32, lb_layout_contiguous(2, shape)}},
                         {.tag = LB_OPERAND_FLOAT, .f = 2, .i = 2},
                         {.tag = LB_OPERAND_NUMBERS, .count = 1, .ints = last},
                         {.tag = LB_OPERAND_BOOL},
                         {.tag = LB_OPERAND_NONE}};
    lb_tensor norms = {y, LB_F32, lb_layout_contiguous(1, two)};
    lb_err err = LB_ERR_INIT;
    lb_memory *memory = lb_memory_new(0);
    lb_bound bound;
    lb_call call = {.row = lb_op_find("aten::linalg_vector_norm", NULL),
                    .args = args,
                    .n_args = 5,
                    .results = &norms,
                    .n_results = 1,
                    .err = &err};
    assert_int_equal(lb_bound_init(&bound, memory, &call, &err), LB_OK);
    for (int i = 0; i < 2; i++) {
        lb_tensor exact = {(double *)bound.exact[0].data + i, LB_F64, lb_layout_contiguous(1, one)};
        lb_tensor twin = {bound.twin[0].data ? (double *)bound.twin[0].data + i : NULL, LB_F64,
                          lb_layout_contiguous(1, one)};
        lb_bound single = bound;
        single.n_results = 1, single.exact = &exact, single.twin = &twin;
        ratio[i] = lb_bound_ratio(&single, 0, &(lb_tensor){y + i, LB_F32, lb_layout_contiguous(1, one)});
    }
    lb_bound_release(&bound);
    lb_memory_free(memory);
}

static void squares_that_overflow_silence_the_elements_that_they_reach(void **state)
{
    (void)state;
    double ratio[2];
    ratios_of_norms(1e30f, INFINITY, 2, ratio);
    assert_true(ratio[0] == 0 && ratio[1] == 0);
    ratios_of_norms(1e30f, 2e30f, 2.001f, ratio);
    assert_true(ratio[0] == 0 && ratio[1] > 1); /* the other row keeps its bound */
    ratios_of_norms(1e15f, INFINITY, 2, ratio);
    assert_true(ratio[0] > 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_those_of_the_dtype),
        cmocka_unit_test(sums_of_bf16_products_may_be_flushed),
        cmocka_unit_test(subnormal_factors_of_bf16_may_be_taken_for_zero),
        cmocka_unit_test(products_of_f32_and_f16_keep_subnormals),
        cmocka_unit_test(squares_that_overflow_silence_the_elements_that_they_reach),
        cmocka_unit_test(factors_that_are_not_finite_excuse_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
