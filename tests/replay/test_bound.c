/* The underflow term of running error bounds: what a processor may flush to zero, and what it may not. */
#include "bound.h"

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
    lb_operand args[2] = {
        {.tag = LB_OPERAND_TENSOR, .tensor = {bytes[0], dtype, lb_layout_contiguous(2, row)}},
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
    lb_call call = {.row = lb_op_find("aten::mm", NULL),
                    .args = args,
                    .n_args = 2,
                    .results = &y,
                    .n_results = 1,
                    .err = &err};
    assert_non_null(memory);
    assert_int_equal(lb_bound_init(&bound, memory, &call, &err), LB_OK);
    const double ratio = lb_bound_ratio(&bound, 0, &y);
    lb_bound_release(&bound);
    lb_memory_free(memory);
    return ratio;
}

static void sums_of_bf16_products_may_be_flushed(void **state)
{
    (void)state;
    assert_true(ratio_of(LB_BF16, 0x1p-70, 0x1p-60, 0x1p-128) == 0);
    assert_true(ratio_of(LB_BF16, 0x1p-70, 0x1p-60, 0) <= 1);
    assert_true(ratio_of(LB_BF16, 0x1p-60, 0x1p-40, 0) > 1); /* 2^-98 is nothing that anybody flushes */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_bf16_products_may_be_flushed),
        cmocka_unit_test(subnormal_factors_of_bf16_may_be_taken_for_zero),
        cmocka_unit_test(products_of_f32_and_f16_keep_subnormals),
        cmocka_unit_test(factors_that_are_not_finite_excuse_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
