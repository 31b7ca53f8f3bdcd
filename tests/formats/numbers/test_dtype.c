/* Element types and conversions. Also, called with a directory, writes tables for test_dtype_reference.py, which
 * compares them with torch and ml_dtypes. */
#include "cmocka_first.h"

#include <lastbit/dtype.h>
#include <lastbit/processor.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "numbers/float_format.h"

static const lb_dtype narrow[] = {LB_BF16, LB_F16, LB_E4M3FN, LB_E5M2, LB_E4M3FNUZ, LB_E5M2FNUZ, LB_E8M0, LB_E2M1};
#define N_NARROW (sizeof narrow / sizeof *narrow)

static float *sample_f32(size_t n, uint64_t seed)
{
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) {
        uint32_t words[4];
        lb_philox(seed, i, 7, words);
        x[i] = f32_of_bits(words[0]);
        /* Half of the samples where the narrow types live; some of them exact ties. */
        if (i % 2) x[i] = (float)ldexp((int32_t)words[1] >> (words[2] % 25), (int)(words[3] % 40) - 40);
    }
    return x;
}

static void names_round_trip(void **state)
{
    (void)state;
    for (lb_dtype d = 1; d < LB_DTYPE_COUNT; d++) {
        assert_true(lb_dtype_valid(d));
        assert_int_equal(lb_dtype_parse(lb_dtype_name(d)), d);
        assert_int_equal(lb_dtype_parse(lb_dtype_torch(d)), d);
        if (*lb_dtype_safetensors(d)) assert_int_equal(lb_dtype_parse(lb_dtype_safetensors(d)), d);
        if (*lb_dtype_numpy(d)) assert_int_equal(lb_dtype_parse(lb_dtype_numpy(d)), d);
    }
    assert_int_equal(lb_dtype_parse("torch.bfloat16"), LB_BF16);
    assert_int_equal(lb_dtype_parse("=f8"), LB_F64);
    assert_int_equal(lb_dtype_parse("<u1"), LB_U8);
    assert_int_equal(lb_dtype_parse("long"), LB_I64);
    assert_int_equal(lb_dtype_parse(">f4"), LB_NO_DTYPE);
    assert_int_equal(lb_dtype_parse("none"), LB_NO_DTYPE);
    assert_int_equal(lb_dtype_parse(""), LB_NO_DTYPE);
    assert_int_equal(lb_dtype_parse(NULL), LB_NO_DTYPE);
    assert_false(lb_dtype_valid(0));
    assert_false(lb_dtype_valid(200));
    assert_string_equal(lb_dtype_name(200), "none");
}

static void codes_are_those_of_the_file_format(void **state)
{
    (void)state;
    assert_int_equal(LB_F64, 1);
    assert_int_equal(LB_E2M1, 10);
    assert_int_equal(LB_BOOL, 22);
    assert_int_equal(lb_dtype_parse("complex32"), 11);
    assert_int_equal(lb_dtype_parse("uint64"), 21);
}

static void properties_are_the_formats(void **state)
{
    (void)state;
    assert_true(lb_dtype_max_finite(LB_E4M3FN) == 448 && lb_dtype_max_finite(LB_E5M2) == 57344);
    assert_true(lb_dtype_max_finite(LB_E4M3FNUZ) == 240 && lb_dtype_max_finite(LB_E2M1) == 6);
    assert_true(lb_dtype_max_finite(LB_F16) == 65504 && lb_dtype_max_finite(LB_I8) == 127);
    assert_true(lb_dtype_max_finite(LB_F32) == 0x1.fffffep127 && lb_dtype_max_finite(LB_BF16) == 0x1.fep127);
    assert_true(lb_dtype_unit_roundoff(LB_F32) == 0x1p-24 && lb_dtype_unit_roundoff(LB_C64) == 0x1p-24);
    assert_true(lb_dtype_unit_roundoff(LB_BF16) == 0x1p-8 && lb_dtype_unit_roundoff(LB_I32) == 0);
    assert_true(lb_dtype_min_normal(LB_F16) == 0x1p-14 && lb_dtype_min_subnormal(LB_E5M2) == 0x1p-16);
    assert_int_equal(lb_dtype_bytes(LB_E2M1, 5), 3);
    assert_int_equal(lb_dtype_bytes(LB_C128, 3), 48);
    assert_true(lb_dtype_bytes(LB_F64, SIZE_MAX / 4) == SIZE_MAX);
    assert_true(lb_dtype_is_float(LB_E2M1) && !lb_dtype_is_float(LB_E8M0) && lb_dtype_is_integer(LB_BOOL));
}

/* Every code of every narrow type comes back from f32 and from f64 (NaN as a class). */
static void every_code_survives_a_round_trip(void **state)
{
    (void)state;
    for (size_t t = 0; t < N_NARROW; t++) {
        const lb_dtype d = narrow[t];
        const size_t bits = lb_dtype_bits(d);
        for (uint32_t code = 0; code < 1u << bits; code++) {
            uint32_t back32 = 0, back64 = 0;
            float x;
            lb_load_f32(&x, d, &code, 1);
            const double wide = lb_to_f64(d, &code);
            lb_store_f32(d, &back32, &x, 1, NULL);
            lb_from_f64(d, &back64, wide, &(lb_cast){.exact = true});
            if (isnan(x)) {
                assert_true(isnan(wide));
                assert_true(isnan(lb_to_f64(d, &back32)) && isnan(lb_to_f64(d, &back64)));
                continue;
            }
            if (d != LB_E4M3FN || !isinf(x)) assert_int_equal(back32, code);
            assert_int_equal(back64, code);
        }
    }
}

/* The vector paths against the scalar one: same bits for every dtype, rounding and overflow. */
static void instruction_sets_agree(void **state)
{
    (void)state;
    const size_t n = 100003;
    float *x = sample_f32(n, 1), *grid[3];
    uint16_t *out[3];
    for (int i = 0; i < 3; i++) out[i] = malloc(n * 2), grid[i] = malloc(n * 4);
    for (size_t t = 0; t < N_NARROW; t++)
        for (int variant = 0; variant < 12; variant++) {
            const lb_cast cast = {.rounding = (lb_rounding)(variant % 4),
                                  .overflow = (lb_overflow)(variant / 4),
                                  .flush_subnormals = variant == 5,
                                  .seed = 99,
                                  .counter = 3};
            for (int isa = 0; isa < 3; isa++) {
                lb_processor_limit((lb_isa)isa);
                memset(out[isa], 0, n * 2);
                lb_store_f32(narrow[t], out[isa], x, n, &cast);
                memcpy(grid[isa], x, n * 4);
                lb_round_to_grid_f32(grid[isa], n, narrow[t], &cast);
            }
            for (int isa = 1; isa < 3; isa++) {
                assert_memory_equal(out[0], out[isa], n * 2);
                assert_memory_equal(grid[0], grid[isa], n * 4);
            }
            lb_load_f32(grid[1], narrow[t], out[0], n);
            assert_memory_equal(grid[0], grid[1], n * 4);
        }
    lb_processor_limit(LB_ISA_AVX512);
    for (int i = 0; i < 3; i++) free(out[i]), free(grid[i]);
    free(x);
}

/* The f32 encoder against the f64 one, which shares no line with it. */
static void one_rounding_from_f32_and_from_f64_agree(void **state)
{
    (void)state;
    const size_t n = 50000;
    float *x = sample_f32(n, 2);
    for (size_t t = 0; t < N_NARROW; t++)
        for (int rounding = LB_RNE; rounding <= LB_STOCHASTIC; rounding++)
            for (size_t i = 0; i < n; i += 97) {
                uint32_t a = 0, b = 0;
                const lb_cast cast = {.rounding = (lb_rounding)rounding, .exact = true, .seed = i};
                lb_store_f32(narrow[t], &a, x + i, 1, &cast);
                lb_from_f64(narrow[t], &b, x[i], &cast);
                assert_int_equal(a, b);
            }
    free(x);
}

static void directed_and_stochastic_rounding_bracket_the_value(void **state)
{
    (void)state;
    const float x = 1.0f + 0x1p-8f * 0.75f; /* between 1 and 1 + 2^-7, at 0.375 of the way */
    const lb_cast rz = {.rounding = LB_RZ};
    uint16_t code;
    lb_store_f32(LB_BF16, &code, &x, 1, &rz);
    assert_int_equal(code, 0x3f80);
    size_t up = 0, n = 40000;
    float *many = malloc(n * sizeof *many);
    for (size_t i = 0; i < n; i++) many[i] = x;
    lb_round_to_grid_f32(many, n, LB_BF16, &(lb_cast){.rounding = LB_STOCHASTIC, .seed = 5});
    for (size_t i = 0; i < n; i++) {
        assert_true(many[i] == 1.0f || many[i] == 1.0f + 0x1p-7f);
        up += many[i] > 1.0f;
    }
    assert_true(fabs((double)up / (double)n - 0.375) < 0.01);
    free(many);
    const float huge = 1e9f;
    lb_store_f32(LB_F16, &code, &huge, 1, &rz);
    assert_int_equal(code, 0x7bff);
    lb_store_f32(LB_F16, &code, &huge, 1, &(lb_cast){.overflow = LB_OVERFLOW_SATURATE});
    assert_int_equal(code, 0x7bff);
}

/* Splitting an array anywhere, or striding it, draws the same numbers. */
static void stochastic_rounding_depends_on_the_element_number_alone(void **state)
{
    (void)state;
    enum { N = 1000 };
    float *x = sample_f32(N, 3);
    uint16_t whole[N], parts[N], spread[3 * N];
    lb_cast cast = {.rounding = LB_STOCHASTIC, .seed = 11, .counter = 2};
    lb_store_f32(LB_BF16, whole, x, N, &cast);
    for (size_t at = 0, step = 1; at < N; at += step, step = step * 2 + 1) {
        if (step > N - at) step = N - at;
        lb_cast rest = cast;
        rest.counter += at;
        lb_store_f32(LB_BF16, parts + at, x + at, step, &rest);
    }
    assert_memory_equal(whole, parts, sizeof whole);
    lb_store_f32_strided(LB_BF16, spread, 3, x, N, &cast);
    for (int i = 0; i < N; i++) assert_int_equal(spread[3 * i], whole[i]);
    free(x);
}

static void strides_gather_and_scatter_every_dtype(void **state)
{
    (void)state;
    enum { N = 300 };
    for (lb_dtype d = 1; d < LB_DTYPE_COUNT; d++) {
        float x[N], back[N], reversed[N];
        for (int i = 0; i < N; i++) x[i] = (float)(i % 2);
        if (d == LB_E8M0)
            for (int i = 0; i < N; i++) x[i] += 1;
        unsigned char store[3 * N * 16];
        memset(store, 0xa5, sizeof store);
        lb_store_f32_strided(d, store, 3, x, N, NULL);
        lb_load_f32_strided(back, d, store, 3, N);
        assert_memory_equal(x, back, sizeof x);
        if (d != LB_E2M1) {
            const size_t last = 3 * (N - 1) * lb_dtype_bits(d) / 8;
            lb_load_f32_strided(reversed, d, store + last, -3, N);
            for (int i = 0; i < N; i++) assert_true(reversed[i] == x[N - 1 - i]);
            double wide[N];
            lb_load_f64_strided(wide, d, store, 0, N);
            assert_true(wide[N - 1] == x[0]);
        }
        /* Dense, from a pointer that no element type would be aligned at. */
        if (lb_dtype_bits(d) >= 8) {
            lb_store_f32(d, store + 1, x, N, NULL);
            lb_load_f32(back, d, store + 1, N);
            assert_memory_equal(x, back, sizeof x);
        }
    }
}

static void any_type_converts_to_any_other(void **state)
{
    (void)state;
    for (lb_dtype from = 1; from < LB_DTYPE_COUNT; from++)
        for (lb_dtype to = 1; to < LB_DTYPE_COUNT; to++) {
            enum { N = 700 };
            static unsigned char a[16 * N], b[16 * N], c[32 * N];
            memset(a, 0, sizeof a);
            memset(b, 0, sizeof b);
            float ones[N], back[N];
            for (int i = 0; i < N; i++) ones[i] = 1;
            lb_store_f32(from, a, ones, N, NULL);
            lb_convert(to, b, from, a, N, NULL);
            lb_load_f32(back, to, b, N);
            assert_memory_equal(back, ones, sizeof ones);
            lb_convert_strided(to, c, 2, from, a, 1, N, NULL);
            lb_load_f32_strided(back, to, c, 2, N);
            assert_memory_equal(back, ones, sizeof ones);
        }
}

static void integers_keep_their_low_bits(void **state)
{
    (void)state;
    const int64_t big = INT64_C(0x123456789abcdef1);
    int32_t low;
    uint8_t byte;
    lb_convert(LB_I32, &low, LB_I64, &big, 1, NULL);
    assert_int_equal(low, (int32_t)0x9abcdef1);
    lb_convert(LB_U8, &byte, LB_I64, &big, 1, NULL);
    assert_int_equal(byte, 0xf1);
    const int8_t minus = -1;
    uint64_t wide;
    lb_convert(LB_U64, &wide, LB_I8, &minus, 1, NULL);
    assert_true(wide == UINT64_MAX);
    const int64_t beyond = (INT64_C(1) << 53) + 1;
    lb_convert(LB_I64, &wide, LB_I64, &beyond, 1, NULL);
    assert_true((int64_t)wide == beyond);
}

static void tf32_keeps_ten_fraction_bits(void **state)
{
    (void)state;
    float x[5] = {1.0f + 0x1p-11f, 1.0f + 0x1p-11f, 1.0f + 0x1p-11f, f32_of_bits(0x7f800001), 1.0f + 0x3p-11f};
    lb_round_to_grid_tf32(x, 1, LB_RNE);
    lb_round_to_grid_tf32(x + 1, 1, LB_RNA);
    lb_round_to_grid_tf32(x + 2, 1, LB_RZ);
    lb_round_to_grid_tf32(x + 3, 2, LB_RNE);
    assert_true(x[0] == 1.0f && x[1] == 1.0f + 0x1p-10f && x[2] == 1.0f && isnan(x[3]) && x[4] == 1.0f + 0x1p-9f);
}

static void cast_options_parse(void **state)
{
    (void)state;
    lb_cast cast = LB_CAST_INIT;
    assert_true(lb_dtype_cast_parse("stochastic:42", &cast) && cast.rounding == LB_STOCHASTIC && cast.seed == 42);
    assert_true(lb_dtype_cast_parse("rz", &cast) && cast.rounding == LB_RZ);
    assert_false(lb_dtype_cast_parse("stochastic:", &cast));
    assert_false(lb_dtype_cast_parse("stochastic:4x", &cast));
    assert_false(lb_dtype_cast_parse("up", &cast));
}

/* --- tables for the reference test ----------------------------------------------------------------------------- */

static void dump(const char *folder, const char *name, const void *bytes, size_t size)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, size, file) != size || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

/* For each narrow type: the value of every code, and the codes of the f32 and f64 read from `inputs.f32`/`.f64`. */
static int dump_tables(const char *folder)
{
    char path[1024], name[64];
    static float x[1 << 20];
    static double y[1 << 20];
    static unsigned char out[1 << 24];
    snprintf(path, sizeof path, "%s/inputs.f32", folder);
    FILE *file = fopen(path, "rb");
    if (!file) return 1;
    const size_t n = fread(x, sizeof *x, 1 << 20, file);
    fclose(file);
    snprintf(path, sizeof path, "%s/inputs.f64", folder);
    if (!(file = fopen(path, "rb"))) return 1;
    const size_t m = fread(y, sizeof *y, 1 << 20, file);
    fclose(file);
    for (lb_dtype d = 1; d < LB_DTYPE_COUNT; d++) {
        if (lb_dtype_bits(d) <= 16) {
            const size_t codes = (size_t)1 << lb_dtype_bits(d);
            static uint16_t list[1 << 16];
            static float values[1 << 16];
            for (size_t i = 0; i < codes; i++) {
                if (lb_dtype_bits(d) == 16)
                    list[i] = (uint16_t)i;
                else
                    ((uint8_t *)list)[i] = (uint8_t)i;
            }
            for (size_t i = 0; i < 16 && d == LB_E2M1; i += 2) ((uint8_t *)list)[i / 2] = (uint8_t)(i | (i + 1) << 4);
            lb_load_f32(values, d, list, codes);
            snprintf(name, sizeof name, "%s.values", lb_dtype_name(d));
            dump(folder, name, values, codes * 4);
        }
        lb_store_f32(d, out, x, n, NULL);
        snprintf(name, sizeof name, "%s.from_f32", lb_dtype_name(d));
        dump(folder, name, out, lb_dtype_bytes(d, n));
        lb_store_f64(d, out, y, m, NULL);
        snprintf(name, sizeof name, "%s.from_f64", lb_dtype_name(d));
        dump(folder, name, out, lb_dtype_bytes(d, m));
        lb_store_f64(d, out, y, m, &(lb_cast){.exact = true, .overflow = LB_OVERFLOW_IEEE});
        snprintf(name, sizeof name, "%s.exact_from_f64", lb_dtype_name(d));
        dump(folder, name, out, lb_dtype_bytes(d, m));
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2) return dump_tables(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_round_trip),
        cmocka_unit_test(codes_are_those_of_the_file_format),
        cmocka_unit_test(properties_are_the_formats),
        cmocka_unit_test(every_code_survives_a_round_trip),
        cmocka_unit_test(instruction_sets_agree),
        cmocka_unit_test(one_rounding_from_f32_and_from_f64_agree),
        cmocka_unit_test(directed_and_stochastic_rounding_bracket_the_value),
        cmocka_unit_test(stochastic_rounding_depends_on_the_element_number_alone),
        cmocka_unit_test(strides_gather_and_scatter_every_dtype),
        cmocka_unit_test(any_type_converts_to_any_other),
        cmocka_unit_test(integers_keep_their_low_bits),
        cmocka_unit_test(tf32_keeps_ten_fraction_bits),
        cmocka_unit_test(cast_options_parse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
