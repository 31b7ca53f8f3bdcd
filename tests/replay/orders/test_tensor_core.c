/* Tensor cores on sums whose result is known by hand; tests/replay/orders/test_tensor_core.py has the model in big
 * integers. */
#include "orders/tensor_core.h"
#include "orders/schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

static lb_tensor_core unit(const char *arch, lb_dtype input, lb_dtype accumulate)
{
    lb_tensor_core core;
    assert_int_equal(
        lb_tensor_core_find(lb_tensor_core_arch(arch, strlen(arch)), input, input, accumulate, &core, NULL), LB_OK);
    return core;
}

/* c + first, then terms a * b. */
typedef struct terms {
    double c, first, a, b;
} terms;

/* k terms as one row of equal columns. */
static uint32_t sum_of(const char *arch, lb_dtype input, terms t, size_t k, int64_t promote)
{
    enum { COLUMNS = 19 };
    float x[512], y[512][COLUMNS], out[COLUMNS];
    assert_true(k <= 512);
    for (size_t p = 0; p < k; p++) {
        x[p] = (float)(p || t.first == 0 ? t.a : t.first);
        for (size_t j = 0; j < COLUMNS; j++) y[p][j] = (float)(p || t.first == 0 ? t.b : 1);
    }
    for (size_t j = 0; j < COLUMNS; j++) out[j] = (float)t.c;
    const lb_tensor_core core = unit(arch, input, LB_NO_DTYPE);
    const lb_matrix ma = {x, LB_F32, (ptrdiff_t)k, 1}, mb = {y, LB_F32, COLUMNS, 1};
    const lb_tensor_core_shape shape = {1, COLUMNS, k, promote, true};
    assert_int_equal(lb_tensor_core_product(&core, &shape, &ma, &mb, out), LB_OK);
    for (size_t j = 1; j < COLUMNS; j++) assert_memory_equal(out, out + j, sizeof *out);
    uint32_t bits;
    memcpy(&bits, out, 4);
    return bits;
}

static void small_terms_beside_one_survive_as_far_as_the_unit_aligns(void **state)
{
    (void)state;
    assert_int_equal(sum_of("v100", LB_F16, (terms){1, 0, 0x1p-12, 0x1p-13}, 16, 0), 0x3f800000);
    assert_int_equal(sum_of("a100", LB_F16, (terms){1, 0, 0x1p-12, 0x1p-13}, 16, 0), 0x3f800000);
    assert_int_equal(sum_of("h100", LB_F16, (terms){1, 0, 0x1p-12, 0x1p-13}, 16, 0), 0x3f800004);
    assert_int_equal(sum_of("v100", LB_F16, (terms){1, 0, 0x1p-12, 0x1p-12}, 16, 0), 0x3f800000);
    assert_int_equal(sum_of("a100", LB_F16, (terms){1, 0, 0x1p-12, 0x1p-12}, 16, 0), 0x3f800008);
    assert_int_equal(sum_of("h100", LB_F16, (terms){1, 0, 0x1p-12, 0x1p-12}, 16, 0), 0x3f800008);
    assert_int_equal(sum_of("v100", LB_F16, (terms){0, 1, -0x1p-12, 0x1p-13}, 16, 0), 0x3f800000);
    assert_int_equal(sum_of("a100", LB_F16, (terms){0, 1, -0x1p-12, 0x1p-13}, 16, 0), 0x3f800000);
    assert_int_equal(sum_of("h100", LB_F16, (terms){0, 1, -0x1p-12, 0x1p-13}, 16, 0), 0x3f7ffff8);
}

static void eight_bit_sums_keep_thirteen_bits_on_hopper_and_all_on_blackwell(void **state)
{
    (void)state;
    const char *const hopper[] = {"h100-fp8", "h100"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(sum_of(hopper[i], LB_E4M3FN, (terms){0, 1, 0x1p-7, 0x1p-7}, 32, 0), 0x3f800000);
        assert_int_equal(sum_of(hopper[i], LB_E4M3FN, (terms){0, 1, 0x1p-7, 0x1p-6}, 32, 0), 0x3f807c00);
    }
    assert_int_equal(sum_of("b200", LB_E4M3FN, (terms){0, 1, 0x1p-7, 0x1p-7}, 32, 0), 0x3f803e00);
}

static void chains_longer_than_a_block_go_on(void **state)
{
    (void)state;
    /* 1 + 496 * 2^-24 in groups of 8: each adds 2^-21 exactly, the first one 7 * 2^-24, which is truncated to 3 *
     * 2^-23 */
    assert_int_equal(sum_of("a100", LB_F16, (terms){0, 1, 0x1p-12, 0x1p-12}, 496, 0), 0x3f800000 + 61 * 4 + 3);
    /* a new chain every 128 terms, its sum rounded to nearest as it is added: 1 + 15 * 2^-21 + 7 * 2^-24, then 2^-17 */
    assert_int_equal(sum_of("a100", LB_F16, (terms){0, 1, 0x1p-12, 0x1p-12}, 384, 128),
                     0x3f800000 + 15 * 4 + 3 + 2 * 64);
}

static void product_of_two(const lb_tensor_core *core, const float *x, const float *y, float *out)
{
    const lb_matrix a = {x, LB_F32, 2, 1}, b = {y, LB_F32, 1, 1};
    assert_int_equal(lb_tensor_core_product(core, &(lb_tensor_core_shape){1, 1, 2, 0, false}, &a, &b, out), LB_OK);
}

static void infinities_and_nans_follow_the_sum(void **state)
{
    (void)state;
    assert_int_equal(sum_of("h100", LB_BF16, (terms){INFINITY, 0, 1, 1}, 16, 0), 0x7f800000);
    assert_int_equal(sum_of("h100", LB_BF16, (terms){-INFINITY, 0, 1, 1}, 16, 0), 0xff800000);
    assert_int_equal(sum_of("h100", LB_BF16, (terms){INFINITY, 0, -INFINITY, 1}, 16, 0), 0x7fffffff);
    assert_int_equal(sum_of("h100", LB_BF16, (terms){0, 0, INFINITY, 0}, 16, 0), 0x7fffffff);
    assert_int_equal(sum_of("h100", LB_BF16, (terms){NAN, 0, 1, 1}, 16, 0), 0x7fffffff);
    assert_int_equal(sum_of("h100", LB_BF16, (terms){0, 0, 0x1p100, 0x1p100}, 16, 0), 0x7f800000);
    assert_int_equal(sum_of("h100", LB_BF16, (terms){-0.0, 0, -0.0, 1}, 16, 0), 0);
    /* the largest f32 and a little: truncation does not overflow */
    assert_int_equal(sum_of("h100", LB_BF16, (terms){0x1.fffffep127, 0, 0x1p50, 0x1p50}, 1, 0), 0x7f7fffff);
    /* products that overflow f32 but cancel */
    float x[4] = {0x1p127f, 0x1p127f, 3, 0}, y[4] = {0x1p100f, -0x1p100f, 1, 0}, out;
    const lb_tensor_core core = unit("b200", LB_BF16, LB_NO_DTYPE);
    product_of_two(&core, x, y, &out);
    assert_float_equal(out, 0, 0);
}

static void f16_sums_are_rounded_to_nearest_once(void **state)
{
    (void)state;
    float x[2] = {1, 0x1p-11f}, y[2] = {1, 1}, out = 0;
    const lb_tensor_core core = unit("h100", LB_F16, LB_F16);
    product_of_two(&core, x, y, &out);
    assert_float_equal(out, 1, 0); /* a tie, to even */
    y[1] = 1.0009765625f;          /* just above the tie */
    product_of_two(&core, x, y, &out);
    assert_float_equal(out, 1.0009765625f, 0);
    x[0] = 65504, x[1] = 32, y[1] = 1;
    product_of_two(&core, x, y, &out);
    assert_true(isinf(out));
}

static void a_unit_refuses_what_it_cannot_multiply(void **state)
{
    (void)state;
    lb_tensor_core core;
    lb_err err = LB_ERR_INIT;
    assert_int_equal(lb_tensor_core_find(0, LB_BF16, LB_BF16, LB_NO_DTYPE, &core, &err), LB_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "v100"));
    assert_int_equal(lb_tensor_core_find(1, LB_E4M3FN, LB_E5M2, LB_NO_DTYPE, &core, NULL), LB_ERR_UNSUPPORTED);
    assert_int_equal(lb_tensor_core_find(4, LB_F16, LB_F16, LB_NO_DTYPE, &core, NULL), LB_ERR_UNSUPPORTED);
    assert_int_equal(lb_tensor_core_find(5, LB_E4M3FN, LB_E5M2, LB_NO_DTYPE, &core, NULL), LB_OK);
    assert_int_equal(lb_tensor_core_arch("p100", 4), -1);
}

static void texts_come_back(void **state)
{
    (void)state;
    const char *const texts[] = {"tensorcore:v100", "tensorcore:h100-fp8", "tensorcore:h100-fp8:128"};
    char text[48];
    lb_schedule schedule;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(lb_schedule_parse(texts[i], &schedule, NULL), LB_OK);
        assert_string_equal(lb_schedule_print(&schedule, text), texts[i]);
    }
    const char *const wrong[] = {"tensorcore",       "tensorcore:",       "tensorcore:p100",
                                 "tensorcore:a100:", "tensorcore:a100:0", "tensorcore:a100:8x2"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(lb_schedule_parse(wrong[i], &schedule, NULL), LB_ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_terms_beside_one_survive_as_far_as_the_unit_aligns),
        cmocka_unit_test(eight_bit_sums_keep_thirteen_bits_on_hopper_and_all_on_blackwell),
        cmocka_unit_test(chains_longer_than_a_block_go_on),
        cmocka_unit_test(infinities_and_nans_follow_the_sum),
        cmocka_unit_test(f16_sums_are_rounded_to_nearest_once),
        cmocka_unit_test(a_unit_refuses_what_it_cannot_multiply),
        cmocka_unit_test(texts_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
