/* A leaf measured in one pass gives what libxxhash and lb_statistics give of the same bytes, to the last bit. */
#include "cmocka_first.h"
#include "measure/leaf.h"
#include "measure/measure.h"

#include <lastbit/processor.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define MOST 65536

static unsigned char bytes[MOST + 64];

/* A linear congruential generator (Knuth's MMIX constants): tests must not depend on the C library's. */
static uint64_t random_word(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return *state ^ *state >> 29;
}

static void fill(uint64_t seed, bool finite)
{
    for (size_t i = 0; i < sizeof bytes; i += 4) {
        uint32_t word = (uint32_t)random_word(&seed);
        float x = (float)(int32_t)word * 0x1p-28f;
        if (word % 17 == 0) x = word % 2 ? 0.0f : -0.0f;
        if (!finite && word % 1009 == 0) x = word % 3 ? (word % 2 ? INFINITY : -INFINITY) : NAN;
        memcpy(bytes + i, &x, sizeof x);
    }
}

static const size_t sizes[] = {1,    16,   128,  239,  240,  241,  256,  1023,  1024,  1025,
                               1088, 2048, 4095, 4096, 4097, 5120, 8192, 12345, 65535, 65536};
static const lb_isa levels[] = {LB_ISA_SCALAR, LB_ISA_AVX2, LB_ISA_AVX512};

static void hash_is_xxh3(void **state)
{
    (void)state;
    fill(1, true);
    for (size_t l = 0; l < sizeof levels / sizeof *levels; l++) {
        lb_processor_limit(levels[l]);
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            for (uint64_t seed = 0; seed < 40; seed += 13) {
                const unsigned char *at = bytes + seed % 8; /* also where nothing is aligned */
                assert_true(lb_leaf_measure(at, sizes[s], seed, LB_U8, sizes[s], NULL) ==
                            XXH3_64bits_withSeed(at, sizes[s], seed));
            }
        }
    }
    lb_processor_limit(LB_ISA_AVX512);
}

static void assert_same(const lb_statistics_state *a, const lb_statistics_state *b)
{
    lb_statistics x = lb_statistics_end(a), y = lb_statistics_end(b);
    assert_memory_equal(&x, &y, sizeof x);
}

static void statistics_are_those_of_a_pass_of_their_own(void **state)
{
    (void)state;
    static const lb_dtype types[] = {LB_F32, LB_BF16, LB_F16, LB_F64, LB_I64, LB_U8, LB_BOOL, LB_C64};
    for (int finite = 0; finite < 2; finite++) {
        fill(2 + (uint64_t)finite, finite);
        for (size_t l = 0; l < sizeof levels / sizeof *levels; l++) {
            lb_processor_limit(levels[l]);
            for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
                const size_t width = lb_dtype_bits(types[t]) / 8;
                for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
                    const size_t n = sizes[s] / width;
                    lb_statistics_state fused, apart;
                    lb_statistics_begin(&fused);
                    lb_statistics_begin(&apart);
                    uint64_t hash = lb_leaf_measure(bytes, n * width, 7, types[t], n, &fused);
                    lb_statistics_add(&apart, types[t], bytes, n);
                    assert_true(hash == XXH3_64bits_withSeed(bytes, n * width, 7));
                    assert_same(&fused, &apart);
                }
            }
        }
    }
    lb_processor_limit(LB_ISA_AVX512);
}

static void one_odd_element_anywhere_is_found(void **state)
{
    (void)state;
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    fill(5, true);
    for (size_t i = 0; i < MOST / 4; i += 61) {
        float kept;
        memcpy(&kept, bytes + 4 * i, sizeof kept);
        memcpy(bytes + 4 * i, &odd[i % 3], sizeof kept);
        lb_statistics_state s;
        lb_statistics_begin(&s);
        lb_leaf_measure(bytes, MOST, 0, LB_F32, MOST / 4, &s);
        lb_statistics found = lb_statistics_end(&s);
        assert_int_equal(lb_statistics_nonfinite(&found), 1);
        assert_true(isfinite(found.sum) && isfinite(found.min) && isfinite(found.max));
        memcpy(bytes + 4 * i, &kept, sizeof kept);
    }
}

static lb_measured measured(const lb_tensor *t, const void *dense, size_t bytes)
{
    lb_measuring item = {
        .tensor = *t, .dense = dense, .dense_bytes = bytes, .what = LB_MEASURE_STATISTICS | LB_MEASURE_BLOB};
    assert_true(lb_measure(&item, 1));
    return item.out;
}

/* Layouts and lengths as they come: the digests and statistics are those of the public functions. */
static void measured_is_what_the_public_functions_say(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {{1, 1}, {3, 5}, {64, 64}, {257, 129}, {1000, 70}};
    float *data = malloc(1000 * 140 * sizeof *data);
    assert_non_null(data);
    uint64_t seed = 9;
    for (size_t i = 0; i < 1000 * 140; i++) data[i] = (float)(int32_t)random_word(&seed) * 0x1p-20f;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (int kind = 0; kind < 3; kind++) { /* contiguous, transposed, every other column */
            lb_tensor t = {data, LB_F32, lb_layout_contiguous(2, shapes[s])};
            if (kind == 1) t.layout.stride[0] = 1, t.layout.stride[1] = shapes[s][0];
            if (kind == 2) t.layout.stride[0] = 2 * shapes[s][1], t.layout.stride[1] = 2;
            int64_t first, last;
            assert_int_equal(lb_layout_dense_range(&t.layout, &first, &last, NULL), LB_OK);
            lb_measured m = measured(&t, data + first, (size_t)(last - first) * 4);
            lb_statistics apart = lb_statistics_of(&t);
            assert_true(lb_digest_equal(m.logical, lb_digest_tensor(&t)));
            assert_true(lb_digest_equal(m.blob, lb_digest_bytes(data + first, (size_t)(last - first) * 4)));
            assert_memory_equal(&m.statistics, &apart, sizeof apart);
            free(m.leaves);
        }
    }
    free(data);
}

#if LB_HAVE_X86
#include <xmmintrin.h>

static void host_that_flushes_subnormals_is_neither_followed_nor_disturbed(void **state)
{
    (void)state;
    float x[64];
    for (int i = 0; i < 64; i++) x[i] = 1e-40f;
    int64_t n = 64;
    lb_tensor t = {x, LB_F32, lb_layout_contiguous(1, &n)};
    const unsigned before = _mm_getcsr(), flushing = before | 0x8040;
    _mm_setcsr(flushing);
    lb_measured m = measured(&t, x, sizeof x);
    assert_true(_mm_getcsr() == flushing);
    _mm_setcsr(before);
    assert_int_equal(m.statistics.zero, 0);
    assert_true(m.statistics.sum == 64 * (double)1e-40f);
    free(m.leaves);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hash_is_xxh3),
        cmocka_unit_test(statistics_are_those_of_a_pass_of_their_own),
        cmocka_unit_test(one_odd_element_anywhere_is_found),
        cmocka_unit_test(measured_is_what_the_public_functions_say),
#if LB_HAVE_X86
        cmocka_unit_test(host_that_flushes_subnormals_is_neither_followed_nor_disturbed),
#endif
    };
    return cmocka_run_group_tests_name("leaf", tests, NULL, NULL);
}
