/* The blocked, threaded, vectorised products against three plain loops over fmaf. */
#include "cmocka_first.h"

#include <lastbit/processor.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "orders/matmul.h"

static double uniform(uint64_t i)
{
    i = (i + 1) * 0x9E3779B97F4A7C15u;
    i = (i ^ i >> 29) * 0xBF58476D1CE4E5B9u;
    return (double)(uint32_t)(i >> 32) * 0x1p-32 - 0.5;
}

/* n elements of `dtype`, a few of them special. */
static void *elements(lb_dtype dtype, size_t n, uint64_t seed, bool special)
{
    double *wide = malloc(n * sizeof *wide + 1);
    void *x = malloc(lb_dtype_bytes(dtype, n) + 1);
    for (size_t i = 0; i < n; i++) wide[i] = uniform(seed * 1000003 + i) * (i % 17 ? 2 : 1e-3);
    if (special && n > 40) {
        wide[3] = INFINITY;
        wide[n / 2] = -INFINITY;
        wide[n / 3] = NAN;
        wide[n - 2] = -0.0;
        wide[7] = 1e-40;
    }
    lb_store_f64(dtype, x, wide, n, NULL);
    free(wide);
    return x;
}

static float at_f32(const lb_matrix *x, size_t i, size_t j, const lb_matmul_options *o)
{
    float value;
    const ptrdiff_t offset = (ptrdiff_t)i * x->row_stride + (ptrdiff_t)j * x->col_stride;
    lb_load_f32(&value, x->dtype, (const char *)x->data + offset * (ptrdiff_t)(lb_dtype_bits(x->dtype) / 8), 1);
    if (o->input) lb_round_to_grid_f32(&value, 1, o->input, NULL);
    if (o->tf32)
        lb_round_to_grid_tf32(&value, 1, o->tf32 == LB_TF32_RZ ? LB_RZ : o->tf32 == LB_TF32_RNA ? LB_RNA : LB_RNE);
    return o->absolute ? fabsf(value) : value;
}

/* The definition. */
static float plain_f32(size_t i, size_t j, size_t k, const lb_matrix *a, const lb_matrix *b, float c,
                       const lb_matmul_options *o)
{
    const bool blocked = o->block && (o->block < k || o->add);
    float total = o->add ? c : 0, acc = blocked ? 0 : total;
    for (size_t p = 0; p < k; p++) {
        acc = fmaf(at_f32(a, i, p, o), at_f32(b, p, j, o), acc);
        if (o->accumulate) lb_round_to_grid_f32(&acc, 1, o->accumulate, NULL);
        if (blocked && ((p + 1) % o->block == 0 || p + 1 == k)) {
            total += acc;
            if (o->accumulate) lb_round_to_grid_f32(&total, 1, o->accumulate, NULL);
            acc = 0;
        }
    }
    return blocked ? total : acc;
}

static lb_matrix matrix_of(const void *data, lb_dtype dtype, size_t rows, size_t columns, int layout)
{
    const ptrdiff_t r = (ptrdiff_t)rows, c = (ptrdiff_t)columns;
    switch (layout) {
    case 0: return (lb_matrix){data, dtype, c, 1};
    case 1: return (lb_matrix){data, dtype, 1, r};
    default: return (lb_matrix){data, dtype, 2 * c, 2}; /* needs 2 rows columns elements */
    }
}

static void same_f32(float got, float want)
{
    if (isnan(want))
        assert_true(isnan(got));
    else
        assert_memory_equal(&got, &want, sizeof got);
}

/* A factor's elements, and how they lie (matrix_of). */
typedef struct factor {
    lb_dtype dtype;
    int layout;
} factor;

/* Checks `samples` outputs (0: all) of one product on every instruction set and with one and two threads. */
static void check(size_t m, size_t n, size_t k, factor fa, factor fb, const lb_matmul_options *o, size_t samples)
{
    const ptrdiff_t ldc = (ptrdiff_t)n + 3;
    const size_t size = m * (size_t)ldc;
    void *da = elements(fa.dtype, 2 * m * k, 1, k > 20), *db = elements(fb.dtype, 2 * k * n, 2, false);
    float *c0 = elements(LB_F32, size, 3, false), *first = NULL;
    const lb_matrix a = matrix_of(da, fa.dtype, m, k, fa.layout), b = matrix_of(db, fb.dtype, k, n, fb.layout);
    for (int isa = 0; isa < 3; isa++)
        for (int threads = 1; threads <= 2; threads++) {
            float *c = malloc(size * sizeof *c + 1);
            memcpy(c, c0, size * sizeof *c);
            lb_matmul_options options = *o;
            options.threads = threads;
            lb_processor_limit((lb_isa)isa);
            assert_int_equal(lb_matmul_f32(m, n, k, &a, &b, c, ldc, &options), LB_OK);
            if (first) {
                assert_memory_equal(c, first, size * sizeof *c);
                free(c);
                continue;
            }
            first = c;
            const size_t step = samples && m * n > samples ? m * n / samples : 1;
            for (size_t e = 0; e < m * n; e += step) {
                const size_t at = e / n * (size_t)ldc + e % n;
                same_f32(c[at], plain_f32(e / n, e % n, k, &a, &b, c0[at], &options));
            }
            for (size_t i = 0; i < m; i++) /* nothing beyond the rows */
                assert_memory_equal(c + i * (size_t)ldc + n, c0 + i * (size_t)ldc + n, 3 * sizeof *c);
        }
    lb_processor_limit(LB_ISA_AVX512);
    free(first), free(c0), free(da), free(db);
}

static const lb_matmul_options plain = LB_MATMUL_OPTIONS_INIT;

static void every_shape_and_layout_is_the_plain_chain(void **state)
{
    (void)state;
    static const size_t sizes[][3] = {{1, 1, 1},   {1, 33, 40}, {14, 32, 5},   {15, 31, 17}, {6, 16, 257}, {29, 65, 64},
                                      {7, 1, 300}, {40, 17, 1}, {3, 100, 600}, {64, 48, 33}, {13, 7, 513}, {2, 2, 0}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int layouts = 0; layouts < 9; layouts++)
            check(sizes[s][0], sizes[s][1], sizes[s][2], (factor){LB_F32, layouts % 3}, (factor){LB_F32, layouts / 3},
                  &plain, 40);
}

static void cache_blocks_and_threads_do_not_show(void **state)
{
    (void)state;
    check(530, 40, 270, (factor){LB_F32, 0}, (factor){LB_F32, 0}, &plain, 40);
    check(15, 1100, 260, (factor){LB_F32, 0}, (factor){LB_F32, 1}, &plain, 40);
    check(150, 130, 300, (factor){LB_F32, 1}, (factor){LB_F32, 0}, &plain, 40);
}

static void operands_of_every_dtype_are_widened(void **state)
{
    (void)state;
    for (lb_dtype d = 1; d < LB_DTYPE_COUNT; d++) {
        if (lb_dtype_bits(d) < 8) continue;
        check(20, 37, 50, (factor){d, 0}, (factor){LB_F32, 0}, &plain, 30);
        check(17, 35, 60, (factor){LB_BF16, 1}, (factor){d, 1}, &plain, 30);
        check(5, 1030, 9, (factor){LB_F16, 2}, (factor){d, 0}, &plain, 30);
    }
}

static void options_are_those_of_the_definition(void **state)
{
    (void)state;
    static const lb_matmul_options variants[] = {
        {.block = 32},
        {.block = 100},
        {.block = 520},
        {.block = 7, .add = true},
        {.add = true},
        {.absolute = true},
        {.tf32 = LB_TF32_RZ},
        {.tf32 = LB_TF32_RNA},
        {.tf32 = LB_TF32_RNE},
        {.input = LB_BF16},
        {.input = LB_E4M3FN},
        {.accumulate = LB_BF16},
        {.accumulate = LB_F16},
        {.accumulate = LB_BF16, .block = 64},
        {.accumulate = LB_F16, .block = 600},
        {.block = 600, .add = true},
        {.accumulate = LB_E5M2, .add = true},
        {.input = LB_BF16, .accumulate = LB_BF16, .absolute = true},
        {.block = 4000, .add = true},
    };
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
        check(21, 45, 70, (factor){LB_F32, 0}, (factor){LB_F32, 1}, variants + v, 50);
        check(17, 36, v % 3 ? 610 : 1210, (factor){LB_F32, 0}, (factor){LB_BF16, 0}, variants + v, 5);
        check(3, 5, 0, (factor){LB_F32, 0}, (factor){LB_F32, 0}, variants + v, 0);
    }
}

static void doubles_are_the_plain_chain(void **state)
{
    (void)state;
    static const size_t sizes[][3] = {{1, 1, 1}, {37, 45, 70}, {14, 16, 600}, {60, 70, 300}, {6, 9, 0}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const size_t m = sizes[s][0], n = sizes[s][1], k = sizes[s][2];
        double *a = elements(LB_F64, m * k, 4, k > 20), *b = elements(LB_F64, k * n, 5, false), *c[3];
        for (int layout = 0; layout < 2; layout++) {
            const lb_matrix ma = matrix_of(a, LB_F64, m, k, layout), mb = matrix_of(b, LB_F64, k, n, layout);
            for (int isa = 0; isa < 3; isa++) {
                c[isa] = malloc(m * n * sizeof **c);
                lb_processor_limit((lb_isa)isa);
                assert_int_equal(lb_matmul_f64(m, n, k, &ma, &mb, c[isa], (ptrdiff_t)n, NULL), LB_OK);
            }
            lb_processor_limit(LB_ISA_AVX512);
            assert_memory_equal(c[0], c[1], m * n * sizeof **c);
            assert_memory_equal(c[0], c[2], m * n * sizeof **c);
            for (size_t e = 0; e < m * n; e += 7) {
                double acc = 0;
                for (size_t p = 0; p < k; p++)
                    acc =
                        fma(a[layout ? p * m + e / n : e / n * k + p], b[layout ? e % n * k + p : p * n + e % n], acc);
                if (isnan(acc))
                    assert_true(isnan(c[0][e]));
                else
                    assert_memory_equal(&acc, c[0] + e, sizeof acc);
            }
            for (int isa = 0; isa < 3; isa++) free(c[isa]);
        }
        free(a), free(b);
    }
}

static void a_batch_is_its_products(void **state)
{
    (void)state;
    enum { BATCH = 9, M = 33, N = 70, K = 65 };
    float *a = elements(LB_F32, BATCH * M * K, 6, false), *b = elements(LB_F32, K * N, 7, false);
    static float whole[BATCH][M * N], one[M * N];
    const lb_matrix mb = {b, LB_F32, N, 1};
    lb_matrix ma = {a, LB_F32, K, 1};
    const lb_matmul_options two = {.size = sizeof two, .threads = 2};
    assert_int_equal(
        lb_matmul_batched_f32(&(lb_matmul_batch){BATCH, M * K, 0, M * N}, M, N, K, &ma, &mb, whole[0], N, &two), LB_OK);
    for (int i = 0; i < BATCH; i++) {
        ma.data = a + i * M * K;
        assert_int_equal(lb_matmul_f32(M, N, K, &ma, &mb, one, N, NULL), LB_OK);
        assert_memory_equal(one, whole[i], sizeof one);
    }
    free(a), free(b);
    lb_matmul_release();
    assert_int_equal(lb_matmul_f32(M, N, 0, &ma, &mb, one, N, NULL), LB_OK);
    assert_true(one[5] == 0);
}

static int release(void **state)
{
    (void)state;
    lb_matmul_release();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_and_layout_is_the_plain_chain),
        cmocka_unit_test(cache_blocks_and_threads_do_not_show),
        cmocka_unit_test(operands_of_every_dtype_are_widened),
        cmocka_unit_test(options_are_those_of_the_definition),
        cmocka_unit_test(doubles_are_the_plain_chain),
        cmocka_unit_test(a_batch_is_its_products),
    };
    return cmocka_run_group_tests(tests, NULL, release);
}
