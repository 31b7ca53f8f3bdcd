/* Metrics against plain loops, whatever the layout, the dtype and the instruction set. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <lastbit/compare.h>
#include <lastbit/processor.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <omp.h>
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

static int64_t ordered(float x)
{
    int32_t i;
    memcpy(&i, &x, 4);
    return i < 0 ? -(int64_t)(i & INT32_MAX) : i;
}

static void metrics_equal_plain_loops(void **state)
{
    (void)state;
    static float a[N], b[N];
    fill(a, b);
    for (int i = 0; i < N; i += 7) b[i] = (float)(b[i] + 1e-3 * uniform());
    double max_abs = 0, max_rel = 0, dd = 0, aa = 0, bb = 0, ab = 0;
    int64_t differing = 0, first = -1, max_ulp = 0;
    for (int i = 0; i < N; i++) {
        double x = a[i], y = b[i];
        aa += x * x, bb += y * y, ab += x * y, dd += (x - y) * (x - y);
        if (a[i] == b[i]) continue;
        if (first < 0) first = i;
        differing++;
        max_abs = fmax(max_abs, fabs(x - y)), max_rel = fmax(max_rel, fabs(x - y) / fabs(x));
        int64_t ulp = llabs(ordered(a[i]) - ordered(b[i]));
        max_ulp = ulp > max_ulp ? ulp : max_ulp;
    }
    lb_difference d = compare(a, b);
    assert_int_equal(d.differing, differing);
    assert_int_equal(d.first, first);
    assert_int_equal(d.elements, N);
    assert_true(d.max_abs == max_abs && fabs(d.max_rel - max_rel) <= 0x1p-50 * max_rel);
    assert_true(d.max_ulp == (double)max_ulp);
    assert_true(fabs(d.rel_l2 - sqrt(dd / aa)) < 1e-12 * d.rel_l2);
    assert_true(fabs(d.cosine - ab / sqrt(aa * bb)) < 1e-14);
}

/* Near, far and not finite; added to what is there; the same however the values lie. */
static void elements_are_counted_by_their_distance(void **state)
{
    (void)state;
    static float a[N], b[N], turned[N];
    int64_t wanted[LB_ULP_BUCKETS] = {0}, found[LB_ULP_BUCKETS] = {0};
    lb_difference d;
    fill(a, b);
    for (int i = 0; i < N; i += 3) {
        uint32_t bits;
        memcpy(&bits, &a[i], sizeof bits);
        bits = i % 5 ? bits + (1u << i % 22) - 1 : bits ^ 1u << 31;
        memcpy(&b[i], &bits, sizeof bits);
    }
    b[30] = INFINITY, b[31] = NAN;
    for (int i = 0; i < N; i++) {
        const int64_t ulp = llabs(ordered(a[i]) - ordered(b[i]));
        int bucket = 0;
        while (ulp >> bucket) bucket++;
        wanted[isfinite(b[i]) ? bucket : LB_ULP_BUCKETS - 1]++;
        turned[i % COLS * ROWS + i / COLS] = b[i];
    }
    lb_tensor ta = view(a), tb = view(b),
              strided = {turned, LB_F32, {.ndim = 2, .shape = {ROWS, COLS}, .stride = {1, ROWS}}};
    assert_int_equal(lb_compare_counted(&ta, &tb, &d, found, NULL), LB_OK);
    assert_memory_equal(found, wanted, sizeof found);
    assert_int_equal(lb_compare_counted(&ta, &strided, &d, found, NULL), LB_OK);
    assert_int_equal(lb_compare_counted(&ta, &ta, &d, found, NULL), LB_OK);
    wanted[0] *= 2;
    for (int i = 1; i < LB_ULP_BUCKETS; i++) wanted[i] *= 2;
    wanted[0] += N;
    assert_memory_equal(found, wanted, sizeof found);
}

static void outcome_does_not_depend_on_the_instruction_set(void **state)
{
    (void)state;
    static float a[N], b[N];
    fill(a, b);
    for (int i = 3; i < N; i += 5) b[i] *= 1.0001f;
    b[11] = NAN, a[12] = INFINITY;
    lb_difference all[3];
    for (int isa = 0; isa < 3; isa++) {
        lb_processor_limit((lb_isa)isa);
        all[isa] = compare(a, b);
    }
    lb_processor_limit(LB_ISA_AVX512);
    assert_memory_equal(&all[0], &all[1], offsetof(lb_difference, pattern));
    assert_memory_equal(&all[0], &all[2], offsetof(lb_difference, pattern));
    assert_int_equal(all[0].nonfinite, 2);
}

/* Several chunks of the pass, whose threads add up by themselves; numbers of every size, so that what screens the
 * largest differences is put to the test: subnormals, overflow of f32 differences, zeros on one side, a largest that
 * grows all the time. */
static void many_chunks_give_the_same_bits_whoever_computes_them(void **state)
{
    (void)state;
    enum { MANY = 3 * 256 * 1024 + 777 };
    static const char *const kinds[] = {"ordinary", "every size", "growing", "subnormal", "constant ratio"};
    float *a = malloc(MANY * sizeof *a), *b = malloc(MANY * sizeof *b), *apart = malloc(2 * MANY * sizeof *apart);
    assert_true(a && b && apart);
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        double max_abs = 0, max_rel = 0;
        for (int i = 0; i < MANY; i++) {
            const double x = uniform(), e = kind == 1 ? exp2(60 * uniform()) : kind == 3 ? 0x1p-140 : 1;
            a[i] = (float)(x * e), b[i] = (float)(a[i] * (1 + 1e-3 * uniform()));
            if (kind == 2) b[i] = (float)(a[i] + 1e-6 * i);
            if (kind == 4) a[i] = (float)(i % 1009) - 500.5f, b[i] = a[i] * 1.0001f;
            if (kind == 1 && i % 1000 == 3) a[i] = FLT_MAX, b[i] = i % 2000 == 3 ? -FLT_MAX : 1;
            if (i % 17 == 0) b[i] = a[i];
            if (i % 97 == 0) a[i] = 0;
            const double d = fabs((double)a[i] - b[i]), m = fabs((double)a[i]);
            max_abs = d > max_abs ? d : max_abs, max_rel = m > 0 && d / m > max_rel ? d / m : max_rel;
            apart[2 * i] = a[i];
        }
        const int64_t shape[] = {MANY};
        lb_tensor ta = {a, LB_F32, lb_layout_contiguous(1, shape)}, tb = {b, LB_F32, ta.layout},
                  strided = {apart, LB_F32, ta.layout};
        strided.layout.stride[0] = 2;
        lb_difference first, other;
        assert_int_equal(lb_compare_numbers(&ta, &tb, &first, NULL), LB_OK);
        assert_true(first.max_abs == max_abs);
        assert_true(fabs(first.max_rel - max_rel) <= 1e-15 * max_rel);
        for (int isa = 0; isa < 3; isa++)
            for (int threads = 1; threads < 4; threads++) {
                lb_processor_limit((lb_isa)isa);
                omp_set_num_threads(threads);
                assert_int_equal(lb_compare_numbers(threads == 3 ? &strided : &ta, &tb, &other, NULL), LB_OK);
                assert_memory_equal(&first, &other, offsetof(lb_difference, pattern));
            }
        lb_processor_limit(LB_ISA_AVX512);
        omp_set_num_threads(1);
    }
    free(a), free(b), free(apart);
}

/* 0: no more than a hundredth differ; else the least power of two that no more than a hundredth of the distances
 * reach. */
static double plain_p99(const int64_t *distances, int64_t n)
{
    int64_t differ = 0;
    for (int64_t i = 0; i < n; i++) differ += distances[i] >= 0;
    if (differ <= n / 100) return 0;
    for (double p = 2;; p *= 2) {
        int64_t reach = 0;
        for (int64_t i = 0; i < n; i++) reach += (double)distances[i] >= p;
        if (reach <= n / 100) return p == 2 ? 1 : p;
    }
}

/* Distances of every size, in rows so short that the same few lanes of a chunk count them all, and -0 against +0, which
 * differ by no distance. */
static void distances_are_counted_whatever_their_size(void **state)
{
    (void)state;
    enum { PAIRS = 300000, MANY = 2 * PAIRS };
    float *a = malloc(MANY * sizeof *a), *b = malloc(3 * PAIRS * sizeof *b);
    int64_t *distances = malloc(MANY * sizeof *distances);
    assert_true(a && b && distances);
    for (int widest = 0; widest <= 30; widest += 6) {
        int64_t differing = 0, most = 0;
        for (int i = 0; i < MANY; i++) {
            const double size = exp2((uniform() + 2) / 4 * widest);
            const int64_t rank = (int64_t)(uniform() / 4 * size), other = rank + (int64_t)(uniform() / 4 * size);
            const uint32_t x = (uint32_t)llabs(rank) | (rank < 0 ? 0x80000000u : 0),
                           y = (uint32_t)llabs(other) | (other < 0 ? 0x80000000u : 0);
            const bool zeros = i % 5 == 0;
            memcpy(&a[i], zeros ? &(float){0} : (const void *)&x, 4),
                memcpy(&b[i / 2 * 3 + i % 2], zeros ? &(float){-0.f} : (const void *)&y, 4);
            distances[i] = zeros ? 0 : x == y ? -1 : llabs(rank - other);
            differing += distances[i] >= 0, most = distances[i] > most ? distances[i] : most;
        }
        lb_tensor ta = {a, LB_F32, lb_layout_contiguous(2, (int64_t[]){PAIRS, 2})}, tb = {b, LB_F32, ta.layout};
        tb.layout.stride[0] = 3;
        for (int isa = 0; isa < 3; isa++) {
            lb_difference d;
            lb_processor_limit((lb_isa)isa);
            assert_int_equal(lb_compare_numbers(&ta, &tb, &d, NULL), LB_OK);
            assert_int_equal(d.differing, differing);
            assert_true(d.max_ulp == (double)most);
            assert_true(d.p99_ulp == plain_p99(distances, MANY));
        }
        lb_processor_limit(LB_ISA_AVX512);
    }
    free(a), free(b), free(distances);
}

/* f32 and bf16 have a path of their own: the numbers widened to f64 take the other one and give the same bits. */
static void narrow_floats_are_measured_as_their_f64_values_are(void **state)
{
    (void)state;
    static float a[N], b[N];
    static double wide_a[N], wide_b[N];
    static uint16_t narrow_a[N], narrow_b[N];
    fill(a, b);
    for (int i = 0; i < N; i += 3) b[i] = (float)(b[i] * (1 + 1e-2 * uniform()));
    a[0] = 0.0f, b[0] = -0.0f, a[1] = -3, b[1] = 3, a[2] = 0x1p-140f, b[2] = -0x1p-149f, a[3] = 0x1.fffffep127f,
    b[3] = -a[3];
    for (int narrow = 0; narrow < 2; narrow++) {
        lb_tensor ta = view(a), tb = view(b), wa = view(a), wb = view(b);
        if (narrow) {
            for (int i = 0; i < N; i++)
                memcpy(&narrow_a[i], (char *)&a[i] + 2, 2), memcpy(&narrow_b[i], (char *)&b[i] + 2, 2);
            ta.data = narrow_a, tb.data = narrow_b, ta.dtype = tb.dtype = LB_BF16;
        }
        lb_convert(LB_F64, wide_a, ta.dtype, ta.data, N, NULL), lb_convert(LB_F64, wide_b, tb.dtype, tb.data, N, NULL);
        wa.data = wide_a, wb.data = wide_b, wa.dtype = wb.dtype = LB_F64;
        lb_difference d, wide, mixed;
        assert_int_equal(lb_compare_numbers(&ta, &tb, &d, NULL), LB_OK);
        assert_int_equal(lb_compare_numbers(&wa, &wb, &wide, NULL), LB_OK);
        assert_int_equal(lb_compare_numbers(&wa, &tb, &mixed, NULL), LB_OK); /* its ulps are those of the narrower */
        assert_true(d.max_abs == wide.max_abs && d.max_rel == wide.max_rel && d.rel_l2 == wide.rel_l2);
        assert_true(d.cosine == wide.cosine && d.differing == wide.differing && d.first == wide.first);
        assert_true(d.max_ulp == mixed.max_ulp && d.p99_ulp == mixed.p99_ulp && d.differing == mixed.differing);
        assert_true(d.max_ulp == 2 * (double)(narrow ? 0x7F7F : 0x7F7FFFFF) && d.first == 0);
    }
}

static uint32_t random_bits(void)
{
    seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(seed >> 32);
}

static float of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* One pair of the i-th kind: near and far, of either sign, subnormal, zero, infinite, NaN. False: there is no such
 * kind. */
static bool generate(int kind, float step, float *a, float *b)
{
    const uint32_t r = random_bits(), other = random_bits(), finite = r & 0xBF7FFFFF;
    const float u = (float)(uniform() / 2);
    *a = *b = u;
    switch (kind) {
    case 0: *b = u + step * (float)uniform(); return true;     /* noise */
    case 1: *b = u * (1 + step); return true;                  /* one ratio */
    case 2: *a = of_bits(r), *b = of_bits(other); return true; /* anything, NaN and infinities, too */
    case 3: *a = of_bits(finite), *b = of_bits(other & 0xBF7FFFFF); return true;
    case 4: *a = of_bits(r & 0x807FFFFF), *b = of_bits(other & 0x807FFFFF); return true; /* subnormal */
    case 5: *a = of_bits(finite), *b = of_bits(finite + other % 3); return true;         /* ulps */
    case 6: *a = of_bits(r >> 1 & 0x3FFFFFFF), *b = of_bits((r >> 1 & 0x3FFFFFFF) + 0x7FFFFF + other % 3); return true;
    case 7: *b = r % 100 ? u : u + step; return true; /* few differ */
    case 8: *b = r % 90 == 0 ? NAN : r % 90 == 1 ? INFINITY : u; return true;
    case 9: *a = r % 3 ? 0.0f : -0.0f, *b = other % 3 ? 0.0f : -0.0f; return true;
    case 10: *b = r % 50 ? u : -u; return true;
    case 11: *b = 2 * u; return true; /* the farthest that is near */
    case 12: *a = r % 2 ? FLT_MAX : -FLT_MAX, *b = other % 2 ? FLT_MAX : -FLT_MAX; return true;
    case 13: *a = of_bits((r & 0x80000000u) | r % 3), *b = of_bits((r & 0x80000000u) | other % 3); return true;
    default: return false;
    }
}

/* Lengths around groups and blocks, arrays that begin anywhere: every level of instructions and the f64 path give one
 * bit pattern. */
static void generated_pairs_have_one_outcome(void **state)
{
    (void)state;
    enum { MOST = 2200 };
    static float a[MOST + 16], b[MOST + 16];
    static double wide_a[MOST], wide_b[MOST];
    for (int round = 0; round < 14 * 90; round++) {
        const int kind = round / 90, n = round % 90 <= 70 ? round % 90 : (int)(random_bits() % MOST);
        float *const x = a + random_bits() % 16, *const y = b + random_bits() % 16;
        const float step = ldexpf(1, -(int)(random_bits() % 30));
        int64_t differing = 0, nonfinite = 0, first = -1, most = 0;
        double max_abs = 0;
        for (int i = 0; i < n; i++) {
            assert_true(generate(kind, step, &x[i], &y[i]));
            wide_a[i] = x[i], wide_b[i] = y[i];
            const bool finite = isfinite(x[i]) && isfinite(y[i]);
            if (finite) max_abs = fmax(max_abs, fabs(wide_a[i] - wide_b[i]));
            if (memcmp(&x[i], &y[i], 4) == 0 || (isnan(x[i]) && isnan(y[i]))) continue;
            const int64_t ulp = finite ? llabs(ordered(x[i]) - ordered(y[i])) : INT64_MAX;
            first = differing++ ? first : i, nonfinite += !finite, most = ulp > most ? ulp : most;
        }
        const lb_layout layout = lb_layout_contiguous(1, (int64_t[]){n});
        const lb_tensor ta = {x, LB_F32, layout}, tb = {y, LB_F32, layout}, wa = {wide_a, LB_F64, layout},
                        wb = {wide_b, LB_F64, layout};
        lb_difference all[3], wide;
        for (int isa = 0; isa < 3; isa++) {
            lb_processor_limit((lb_isa)isa);
            assert_int_equal(lb_compare_numbers(&ta, &tb, &all[isa], NULL), LB_OK);
            assert_memory_equal(&all[0], &all[isa], offsetof(lb_difference, pattern));
        }
        assert_int_equal(all[0].differing, differing);
        assert_int_equal(all[0].nonfinite, nonfinite);
        assert_int_equal(all[0].first, first);
        assert_true(all[0].max_abs == max_abs);
        assert_true(most == INT64_MAX ? isinf(all[0].max_ulp) : all[0].max_ulp == (double)most);
        assert_int_equal(lb_compare_numbers(&wa, &wb, &wide, NULL), LB_OK);
        wide.max_ulp = all[0].max_ulp, wide.p99_ulp = all[0].p99_ulp;
        assert_memory_equal(&all[0], &wide, offsetof(lb_difference, pattern));
    }
}

/* y is bf16: of any bits, of x rounded, or of x a value or two away. f64 takes the way of any two numbers, and counts
 * ranks of bf16, too. */
static void f32_against_bf16_is_measured_as_f64_against_bf16_is(void **state)
{
    (void)state;
    enum { MOST = 2200 };
    static float a[MOST + 16];
    static uint16_t b[MOST];
    static double wide[MOST];
    for (int round = 0; round < 14 * 60; round++) {
        const int kind = round / 60, n = round % 60 <= 40 ? round % 60 * 7 : (int)(random_bits() % MOST);
        float *const x = a + random_bits() % 16;
        const float step = ldexpf(1, -(int)(random_bits() % 30));
        for (int i = 0; i < n; i++) {
            float y;
            uint32_t bits;
            assert_true(generate(kind, step, &x[i], &y));
            memcpy(&bits, round % 3 ? &x[i] : &y, sizeof bits);
            if (round % 3 == 2) bits += random_bits() % 3 << 16;
            b[i] = (uint16_t)(bits >> 16);
            if (round % 3 == 1) lb_convert(LB_BF16, &b[i], LB_F32, &x[i], 1, NULL);
            wide[i] = x[i];
        }
        const lb_layout layout = lb_layout_contiguous(1, (int64_t[]){n});
        const lb_tensor tx = {x, LB_F32, layout}, ty = {b, LB_BF16, layout}, tw = {wide, LB_F64, layout};
        lb_difference expected, turned, d;
        assert_int_equal(lb_compare_numbers(&tw, &ty, &expected, NULL), LB_OK);
        assert_int_equal(lb_compare_numbers(&ty, &tw, &turned, NULL), LB_OK);
        for (int isa = 0; isa < 3; isa++) {
            lb_processor_limit((lb_isa)isa);
            assert_int_equal(lb_compare_numbers(&tx, &ty, &d, NULL), LB_OK);
            assert_memory_equal(&d, &expected, offsetof(lb_difference, pattern));
            assert_int_equal(lb_compare_numbers(&ty, &tx, &d, NULL), LB_OK);
            assert_memory_equal(&d, &turned, offsetof(lb_difference, pattern));
        }
        lb_processor_limit(LB_ISA_AVX512);
    }
}

static void equal_bits_and_equal_nans_are_no_difference(void **state)
{
    (void)state;
    static float a[N], b[N];
    fill(a, b);
    a[5] = NAN, b[5] = -NAN;
    lb_difference d = compare(a, b);
    assert_int_equal(d.differing, 0);
    assert_int_equal(d.pattern, LB_PATTERN_NONE);
    assert_true(d.cosine == 1 && d.max_ulp == 0 && d.first == -1);
    a[6] = 0.0f, b[6] = -0.0f;
    d = compare(a, b);
    assert_int_equal(d.differing, 1);
    assert_true(d.max_abs == 0);
}

static void transposed_views_are_compared_by_index(void **state)
{
    (void)state;
    static float a[N], b[N];
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLS; j++) a[i * COLS + j] = b[j * ROWS + i] = (float)uniform();
    lb_tensor ta = view(a), tb = view(b);
    tb.layout.stride[0] = 1, tb.layout.stride[1] = ROWS;
    lb_difference d;
    assert_int_equal(lb_compare(&ta, &tb, &d, NULL), LB_OK);
    assert_int_equal(d.differing, 0);
    b[3 * ROWS + 2] += 1;
    assert_int_equal(lb_compare(&ta, &tb, &d, NULL), LB_OK);
    assert_int_equal(d.differing, 1);
    assert_int_equal(d.first, 2 * COLS + 3);
}

static void other_shapes_are_refused(void **state)
{
    (void)state;
    static float a[N], b[N];
    lb_tensor ta = view(a), tb = view(b);
    tb.layout.shape[0]--;
    lb_difference d;
    lb_err err = LB_ERR_INIT;
    assert_int_equal(lb_compare(&ta, &tb, &d, &err), LB_ERR_INVALID);
    assert_non_null(strstr(err.message, "shape"));
}

/* Of the imaginary parts alone nothing must be lost; strided, as a conjugate's window may be. */
static void complex_numbers_differ_in_either_part(void **state)
{
    (void)state;
    float a[16], b[16];
    const int64_t shape[] = {2, 4};
    for (int i = 0; i < 16; i++) a[i] = b[i] = (float)(i + 1);
    lb_tensor ta = {a, LB_C64, lb_layout_contiguous(2, shape)}, tb = {b, LB_C64, lb_layout_contiguous(2, shape)};
    lb_difference d;
    b[7] = -b[7]; /* the imaginary part of number 3 */
    assert_int_equal(lb_compare(&ta, &tb, &d, NULL), LB_OK);
    assert_int_equal(d.elements, 16);
    assert_int_equal(d.differing, 1);
    assert_int_equal(d.first, 7);
    assert_true(d.max_abs == 16 && d.max_rel == 2);
    assert_int_equal(d.pattern, LB_PATTERN_ONE_BIT);
    ta.layout.stride[0] = tb.layout.stride[0] = 1, ta.layout.stride[1] = tb.layout.stride[1] = 2;
    assert_int_equal(lb_compare(&ta, &tb, &d, NULL), LB_OK);
    assert_int_equal(d.differing, 1);
    assert_int_equal(d.first, 11); /* number 3 stands at (1, 1) of those strides */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metrics_equal_plain_loops),
        cmocka_unit_test(elements_are_counted_by_their_distance),
        cmocka_unit_test(complex_numbers_differ_in_either_part),
        cmocka_unit_test(outcome_does_not_depend_on_the_instruction_set),
        cmocka_unit_test(narrow_floats_are_measured_as_their_f64_values_are),
        cmocka_unit_test(generated_pairs_have_one_outcome),
        cmocka_unit_test(f32_against_bf16_is_measured_as_f64_against_bf16_is),
        cmocka_unit_test(equal_bits_and_equal_nans_are_no_difference),
        cmocka_unit_test(transposed_views_are_compared_by_index),
        cmocka_unit_test(other_shapes_are_refused),
        cmocka_unit_test(many_chunks_give_the_same_bits_whoever_computes_them),
        cmocka_unit_test(distances_are_counted_whatever_their_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
