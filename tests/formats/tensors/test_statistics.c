#include "cmocka_first.h"
#include <lastbit/processor.h>
#include <lastbit/statistics.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static lb_tensor vector(void *data, lb_dtype dtype, int64_t n)
{
    return (lb_tensor){data, dtype, lb_layout_contiguous(1, &n)};
}

static void counts_and_sums_of_a_small_vector_are_exact(void **state)
{
    (void)state;
    float x[] = {1, -2, 0, -0.0f, NAN, INFINITY, -INFINITY, 4, NAN};
    lb_tensor t = vector(x, LB_F32, 9);
    lb_statistics s = lb_statistics_of(&t);
    assert_int_equal(s.elements, 9);
    assert_int_equal(s.nan, 2);
    assert_int_equal(s.pos_inf, 1);
    assert_int_equal(s.neg_inf, 1);
    assert_int_equal(s.zero, 2);
    assert_true(s.min == -2 && s.max == 4 && s.sum == 3 && s.sum_squares == 21);
    assert_int_equal(lb_statistics_nonfinite(&s), 4);
}

static void no_finite_element_leaves_the_bounds_open(void **state)
{
    (void)state;
    float x[] = {NAN, NAN};
    lb_tensor t = vector(x, LB_F32, 2), empty = vector(x, LB_F32, 0);
    lb_statistics s = lb_statistics_of(&t), e = lb_statistics_of(&empty);
    assert_true(s.min == INFINITY && s.max == -INFINITY && s.sum == 0);
    assert_true(e.min == INFINITY && e.max == -INFINITY && e.elements == 0);
}

static void a_nonfinite_element_in_any_place_is_counted_and_left_out(void **state)
{
    (void)state;
    enum { N = 5000 };
    static float x[N];
    for (int i = 0; i < N; i++) x[i] = (float)(i % 7 - 3);
    for (int place = 0; place < N; place += 37) {
        float kept = x[place];
        x[place] = place % 2 ? INFINITY : NAN;
        lb_tensor t = vector(x, LB_F32, N);
        lb_statistics s = lb_statistics_of(&t);
        double sum = 0, squares = 0;
        for (int i = 0; i < N; i++)
            if (isfinite(x[i])) sum += x[i], squares += (double)x[i] * x[i];
        assert_int_equal(lb_statistics_nonfinite(&s), 1);
        assert_true(s.sum == sum && s.sum_squares == squares); /* small integers: exact in any order */
        x[place] = kept;
    }
}

/* Sums do not depend on layout or instruction set, bit by bit. */
static void bits_are_the_same_for_every_layout_and_instruction_set(void **state)
{
    (void)state;
    enum { ROWS = 71, COLUMNS = 113 };
    double *dense = malloc(ROWS * COLUMNS * 8), *transposed = malloc(ROWS * COLUMNS * 8);
    for (int i = 0; i < ROWS * COLUMNS; i++)
        dense[i] = (rand() - RAND_MAX / 2) * 1e-3 * (i % 13) * (i % 1017 ? 1 : 1e18);
    dense[4000] = NAN;
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++) transposed[c * ROWS + r] = dense[r * COLUMNS + c];
    lb_tensor a = {dense, LB_F64, lb_layout_contiguous(2, (int64_t[]){ROWS, COLUMNS})}, b = a;
    b.data = transposed;
    b.layout.stride[0] = 1;
    b.layout.stride[1] = ROWS;
    lb_statistics sa = lb_statistics_of(&a), sb = lb_statistics_of(&b);
    assert_memory_equal(&sa, &sb, sizeof sa);
    lb_processor_limit(LB_ISA_SCALAR);
    lb_statistics plain = lb_statistics_of(&a);
    lb_processor_limit(LB_ISA_AVX512);
    assert_memory_equal(&sa, &plain, sizeof sa);
    free(dense), free(transposed);
}

/* Random bits, so that NaN, infinities, subnormals and both zeros are in nearly every block. */
static void every_dtype_has_the_same_bits_on_every_instruction_set(void **state)
{
    (void)state;
    static unsigned char bytes[40000];
    for (int round = 0; round < 40; round++) {
        for (size_t i = 0; i < sizeof bytes; i++)
            bytes[i] = (unsigned char)(round % 4 ? rand() : i % 1000 ? 0x3c + rand() % 3 : 0xff);
        for (lb_dtype dtype = 1; dtype < LB_DTYPE_COUNT; dtype++) {
            int64_t n = 997 + round * 31 < (int64_t)(sizeof bytes * 8 / lb_dtype_bits(dtype)) ? 997 + round * 31 : 997;
            lb_tensor t = vector(bytes, dtype, n);
            lb_statistics s[3];
            for (int isa = 0; isa < 3; isa++) {
                lb_processor_limit((lb_isa)isa);
                s[isa] = lb_statistics_of(&t);
            }
            lb_processor_limit(LB_ISA_AVX512);
            assert_memory_equal(&s[0], &s[1], sizeof s[0]);
            assert_memory_equal(&s[0], &s[2], sizeof s[0]);
            double x[4000], low = INFINITY, high = -INFINITY;
            int64_t bad = 0, zero = 0, parts = n * (lb_dtype_is_complex(dtype) ? 2 : 1);
            lb_load_f64(x, lb_dtype_part(dtype), bytes, (size_t)parts > 4000 ? 4000 : (size_t)parts);
            if (parts > 4000) continue;
            for (int64_t i = 0; i < parts; i++) {
                bad += !isfinite(x[i]);
                zero += x[i] == 0;
                if (isfinite(x[i])) low = x[i] < low ? x[i] : low, high = x[i] > high ? x[i] : high;
            }
            assert_true(lb_statistics_nonfinite(&s[0]) == bad && s[0].zero == zero && s[0].elements == parts);
            assert_true(s[0].min == low && s[0].max == high);
        }
    }
}

/* Pairs of neighbours, again and again; what has no partner goes up as it is. */
static double paired(double *x, size_t n)
{
    for (; n > 1; n = (n + 1) / 2)
        for (size_t i = 0; i < (n + 1) / 2; i++) x[i] = 2 * i + 1 < n ? x[2 * i] + x[2 * i + 1] : x[2 * i];
    return x[0];
}

/* As lastbit/statistics.h says it, of numbers one by one. */
static void sums_by_the_words(const double *x, size_t n, size_t bits, double *sum, double *squares)
{
    const size_t lanes = 64 * 8 / bits, per_block = 16 * lanes, blocks = (n + per_block - 1) / per_block;
    double *sums = calloc(2 * blocks, sizeof *sums);
    for (size_t b = 0; b < blocks; b++) {
        double lane[128] = {0}, square[128] = {0};
        for (size_t i = b * per_block; i < n && i < (b + 1) * per_block; i++) {
            lane[i % lanes] += x[i];
            square[i % lanes] += x[i] * x[i];
        }
        sums[b] = paired(lane, lanes);
        sums[blocks + b] = paired(square, lanes);
    }
    *sum = paired(sums, blocks);
    *squares = paired(sums + blocks, blocks);
    free(sums);
}

static void sums_are_made_as_is_said(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 17, 255, 256, 257, 4000, 8191, 8192, 65536, 65537, 131072, 200003, 1000001};
    static const lb_dtype types[] = {LB_F64, LB_F32, LB_BF16, LB_F16, LB_E5M2, LB_I32, LB_U8, LB_E2M1};
    const size_t most = 1000001;
    unsigned char *bytes = malloc(most * 8);
    double *x = malloc(most * sizeof *x);
    for (size_t i = 0; i < most * 8; i++) bytes[i] = (unsigned char)(rand() >> 7) & (i % 2 ? 0xBF : 0x3B); /* finite */
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            lb_tensor tensor = vector(bytes, types[t], sizes[s]);
            double sum, squares;
            lb_load_f64(x, types[t], bytes, (size_t)sizes[s]);
            sums_by_the_words(x, (size_t)sizes[s], lb_dtype_bits(types[t]), &sum, &squares);
            const lb_statistics found = lb_statistics_of(&tensor);
            assert_int_equal(lb_statistics_nonfinite(&found), 0);
            assert_true(found.sum == sum && found.sum_squares == squares);
        }
    }
    free(bytes), free(x);
}

static void pieces_that_are_joined_are_the_whole(void **state)
{
    (void)state;
    const size_t n = 5 * LB_STATISTICS_PIECE + 12345;
    double *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = i % 70001 ? (rand() - RAND_MAX / 2) * 1e-3 : NAN;
    lb_statistics_state all, one;
    lb_statistics_begin(&all);
    for (size_t at = 0; at < n; at += LB_STATISTICS_PIECE) {
        lb_statistics_begin(&one);
        lb_statistics_add(&one, LB_F64, x + at, n - at < LB_STATISTICS_PIECE ? n - at : LB_STATISTICS_PIECE);
        lb_statistics_join(&all, &one);
    }
    lb_tensor t = vector(x, LB_F64, (int64_t)n);
    const lb_statistics whole = lb_statistics_of(&t), joined = lb_statistics_end(&all);
    assert_memory_equal(&whole, &joined, sizeof whole);
    free(x);
}

static void integers_and_parts_of_complex_count_like_floats(void **state)
{
    (void)state;
    int64_t i[] = {-5, 0, 9};
    lb_tensor ti = vector(i, LB_I64, 3);
    lb_statistics s = lb_statistics_of(&ti);
    assert_true(s.min == -5 && s.max == 9 && s.sum == 4 && s.zero == 1);
    float c[] = {1, 2, NAN, -4};
    lb_tensor tc = vector(c, LB_C64, 2);
    s = lb_statistics_of(&tc);
    assert_true(s.elements == 4 && s.nan == 1 && s.min == -4 && s.max == 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_and_sums_of_a_small_vector_are_exact),
        cmocka_unit_test(no_finite_element_leaves_the_bounds_open),
        cmocka_unit_test(a_nonfinite_element_in_any_place_is_counted_and_left_out),
        cmocka_unit_test(bits_are_the_same_for_every_layout_and_instruction_set),
        cmocka_unit_test(every_dtype_has_the_same_bits_on_every_instruction_set),
        cmocka_unit_test(sums_are_made_as_is_said),
        cmocka_unit_test(pieces_that_are_joined_are_the_whole),
        cmocka_unit_test(integers_and_parts_of_complex_count_like_floats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
