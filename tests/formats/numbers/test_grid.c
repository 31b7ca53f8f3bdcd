/* The fast roundings against their definition, float_encode_f32, which has no float operation in it: same bits for
 * every type, rounding, overflow and instruction set, on every bf16 pattern, plain or with a few low bits beside it,
 * and on random bits. */
#include "cmocka_first.h"

#include <lastbit/dtype.h>
#include <lastbit/processor.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "numbers/float_format.h"

static const lb_dtype grids[] = {LB_BF16, LB_TF32, LB_F16, LB_E4M3FN, LB_E5M2, LB_E4M3FNUZ, LB_E5M2FNUZ, LB_E2M1};
#define N_GRIDS (sizeof grids / sizeof *grids)

/* Two of the low halves (around 0, half of a last bit, the ends) for each upper one; then random bits, half of them
 * where fp8 lives. */
static float *samples(size_t *n)
{
    static const uint16_t low[] = {0, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xefff, 0xf001, 0xffff};
    const size_t n_low = sizeof low / sizeof *low, random = 30003;
    float *x = malloc((65536 * 2 + random) * sizeof *x);
    *n = 0;
    for (uint32_t high = 0; high < 65536; high++)
        for (size_t k = 0; k < 2; k++) x[(*n)++] = f32_of_bits(high << 16 | low[(2 * high + k) % n_low]);
    for (size_t i = 0; i < random; i++) {
        uint32_t words[4];
        lb_philox(1, i, 0, words);
        x[(*n)++] = i % 2 ? (float)ldexp((int32_t)words[1] >> (words[2] % 25), (int)(words[3] % 40) - 40)
                          : f32_of_bits(words[0]);
    }
    return x;
}

static lb_cast variant_cast(int variant)
{
    return (lb_cast){.rounding = (lb_rounding)(variant % 4),
                     .overflow = (lb_overflow)(variant / 4 % 3),
                     .flush_subnormals = variant / 12,
                     .seed = 77,
                     .counter = 5};
}

/* One element by the definition: its code, and the value of that. */
static uint32_t defined_code(float x, lb_dtype dtype, const lb_cast *cast, size_t i)
{
    const float_target target = float_target_of(float_format_of(dtype), cast);
    uint32_t words[4];
    lb_philox(cast->seed, (cast->counter + i) / 4, 0, words);
    return float_encode_f32(x, &target, cast->rounding, words[(cast->counter + i) % 4]);
}

static void check(const float *x, size_t n, lb_dtype dtype, const lb_cast *cast, const uint32_t *defined, float *grid,
                  void *codes)
{
    const float_format *format = float_format_of(dtype);
    memcpy(grid, x, n * sizeof *grid);
    lb_round_to_grid_f32(grid, n, dtype, cast);
    if (lb_dtype_valid(dtype)) lb_store_f32(dtype, codes, x, n, cast);
    const size_t bits = lb_dtype_bits(dtype);
    for (size_t i = 0; i < n; i++) {
        const uint32_t want = bits_of_f32(float_decode(defined[i], format));
        if (bits_of_f32(grid[i]) != want) assert_int_equal(bits_of_f32(grid[i]), want);
        const uint32_t code = bits == 16  ? ((uint16_t *)codes)[i]
                              : bits == 8 ? ((uint8_t *)codes)[i]
                              : bits == 4 ? (uint32_t)((uint8_t *)codes)[i / 2] >> (i % 2 * 4) & 15u
                                          : defined[i];
        if (code != defined[i]) assert_int_equal(code, defined[i]);
    }
}

static void rounding_is_what_its_definition_says(void **state)
{
    (void)state;
    size_t n;
    float *x = samples(&n), *grid = malloc(n * sizeof *grid);
    uint32_t *defined = malloc(n * sizeof *defined);
    uint16_t *codes = calloc(n, sizeof *codes);
    for (size_t t = 0; t < N_GRIDS; t++)
        for (int variant = 0; variant < 24; variant++) {
            /* Every rounding with every overflow and flush once; most of them under one instruction set each. */
            const lb_cast cast = variant_cast(variant);
            for (size_t i = 0; i < n; i++) defined[i] = defined_code(x[i], grids[t], &cast, i);
            for (int isa = LB_ISA_SCALAR; isa <= LB_ISA_AVX512; isa++) {
                if (variant >= 4 && isa != (variant + (int)t) % 3) continue;
                lb_processor_limit((lb_isa)isa);
                check(x, n, grids[t], &cast, defined, grid, codes);
            }
        }
    lb_processor_limit(LB_ISA_AVX512);
    free(x), free(grid), free(defined), free(codes);
}

static void tf32_rounds_an_f64_once_or_through_f32(void **state)
{
    (void)state;
    /* Just above a tie of tf32 by less than f32 can hold. */
    const double x = 1 + 0x1p-11 + 0x1p-40;
    double once = x, twice = x;
    lb_round_to_grid_f64(&once, 1, LB_TF32, &(lb_cast){.exact = true});
    lb_round_to_grid_f64(&twice, 1, LB_TF32, NULL);
    assert_true(once == 1 + 0x1p-10);
    assert_true(twice == 1);
}

static void grids_parse(void **state)
{
    (void)state;
    assert_int_equal(lb_dtype_grid_parse("tf32"), LB_TF32);
    assert_int_equal(lb_dtype_grid_parse("bfloat16"), LB_BF16);
    assert_int_equal(lb_dtype_grid_parse("e8m0"), LB_E8M0);
    assert_int_equal(lb_dtype_grid_parse("e2m1"), LB_E2M1);
    assert_int_equal(lb_dtype_grid_parse("i32"), LB_NO_DTYPE);
    assert_int_equal(lb_dtype_grid_parse("c64"), LB_NO_DTYPE);
    assert_int_equal(lb_dtype_parse("tf32"), LB_NO_DTYPE);
    assert_false(lb_dtype_valid(LB_TF32));
    assert_string_equal(lb_dtype_name(LB_TF32), "tf32");
    assert_int_equal(lb_dtype_precision(LB_TF32), 11);
    assert_true(lb_dtype_max_finite(LB_TF32) == 0x1.ffcp127);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounding_is_what_its_definition_says),
        cmocka_unit_test(tf32_rounds_an_f64_once_or_through_f32),
        cmocka_unit_test(grids_parse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
