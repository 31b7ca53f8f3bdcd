/* Fingerprints: the formula word for word, the invariant over generated partitions, what changes them, and the same
 * bits at every level of instructions. */
#include "cmocka_first.h"
#include <lastbit/fingerprint.h>
#include <lastbit/processor.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t seed = 1;
static uint64_t draw(void)
{
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return seed;
}

static uint64_t mixed(uint64_t x, uint64_t p, uint64_t q)
{
    x ^= x >> 32;
    x *= p;
    x ^= x >> 29;
    x *= q;
    x ^= x >> 32;
    return x;
}

/* The header's definition of one element. */
static lb_fingerprint by_definition(uint64_t w, uint64_t i, uint64_t tag)
{
    const uint64_t p1 = 0x9E3779B185EBCA87u, p2 = 0xC2B2AE3D27D4EB4Fu, p3 = 0x165667B19E3779F9u;
    return (lb_fingerprint){mixed(w ^ ((i + 1) * p1 + tag * p2), 0x9E3779B1u, 0x85EBCA77u),
                            mixed(w ^ ((i + 1) * p2 + tag * p3), 0xC2B2AE3Du, 0x165667B1u)};
}

static void assert_same(lb_fingerprint a, lb_fingerprint b)
{
    assert_true(a.a == b.a && a.b == b.b);
}

static void assert_both_differ(lb_fingerprint a, lb_fingerprint b)
{
    assert_true(a.a != b.a && a.b != b.b);
}

static lb_fingerprint of(lb_fingerprint_form form, const lb_tensor *t)
{
    lb_fingerprint f;
    assert_int_equal(lb_fingerprint_tensor(form, t, &f, NULL), LB_OK);
    return f;
}

static void elements_add_up_as_the_header_says(void **state)
{
    (void)state;
    enum { N = 1003 };
    static const lb_dtype dtypes[] = {LB_U8, LB_BF16, LB_F16, LB_F32, LB_F64, LB_I64, LB_E4M3FN, LB_I32, LB_BOOL};
    unsigned char bytes[8 * N];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(draw() >> 24);
    for (size_t d = 0; d < sizeof dtypes; d++) {
        const size_t width = lb_dtype_bits(dtypes[d]) / 8;
        lb_fingerprint raw = LB_FINGERPRINT_INIT, numbers = LB_FINGERPRINT_INIT, r = raw, s = raw;
        for (size_t i = 0; i < N; i++) {
            uint64_t w = 0;
            double x = lb_to_f64(dtypes[d], bytes + i * width);
            memcpy(&w, bytes + i * width, width);
            raw = lb_fingerprint_add(raw, by_definition(w, 77 + i, dtypes[d]));
            memcpy(&w, &x, 8);
            w = x != x ? 0x7FF8000000000000u : x == 0 ? 0 : w;
            numbers = lb_fingerprint_add(numbers, by_definition(w, 77 + i, 0));
        }
        for (int level = LB_ISA_SCALAR; level <= (int)lb_processor_best(); level++) {
            lb_processor_limit((lb_isa)level);
            r = s = (lb_fingerprint)LB_FINGERPRINT_INIT;
            lb_fingerprint_add_run(LB_FINGERPRINT_RAW, dtypes[d], bytes, N, 77, &r);
            lb_fingerprint_add_run(LB_FINGERPRINT_NUMBERS, dtypes[d], bytes, N, 77, &s);
            assert_same(r, raw), assert_same(s, numbers);
        }
        lb_processor_limit(LB_ISA_AVX512);
    }
}

static void complex_elements_and_nibbles_are_taken_apart(void **state)
{
    (void)state;
    const float parts[] = {1, -2, 0.5f, NAN};
    const lb_tensor z = {(void *)parts, LB_C64, lb_layout_contiguous(1, (int64_t[]){2})};
    const lb_tensor x = {(void *)parts, LB_F32, lb_layout_contiguous(1, (int64_t[]){4})};
    assert_same(of(LB_FINGERPRINT_NUMBERS, &z), of(LB_FINGERPRINT_NUMBERS, &x));
    assert_both_differ(of(LB_FINGERPRINT_RAW, &z), of(LB_FINGERPRINT_RAW, &x));
    const unsigned char packed[] = {0x21, 0x43, 0x05}, apart[] = {1, 2, 3, 4, 5};
    const lb_tensor narrow = {(void *)packed, LB_E2M1, lb_layout_contiguous(1, (int64_t[]){5})};
    lb_fingerprint by_hand = LB_FINGERPRINT_INIT;
    for (uint64_t i = 0; i < 5; i++) by_hand = lb_fingerprint_add(by_hand, by_definition(apart[i], i, LB_E2M1));
    assert_same(of(LB_FINGERPRINT_RAW, &narrow), by_hand);
}

static void numbers_agree_across_dtypes_with_one_nan_and_one_zero(void **state)
{
    (void)state;
    enum { N = 4099 };
    static float wide[N];
    static double wider[N];
    static uint16_t narrow[N];
    for (size_t i = 0; i < N; i++) narrow[i] = (uint16_t)draw(); /* NaN, infinities and subnormals among them */
    narrow[0] = 0x7FC1, narrow[1] = 0xFFC0, narrow[2] = 0x8000, narrow[3] = 1;
    for (int f16 = 0; f16 < 2; f16++) {
        const lb_dtype dtype = f16 ? LB_F16 : LB_BF16;
        const lb_layout layout = lb_layout_contiguous(1, (int64_t[]){N});
        lb_convert(LB_F32, wide, dtype, narrow, N, NULL), lb_convert(LB_F64, wider, dtype, narrow, N, NULL);
        const lb_tensor a = {narrow, dtype, layout}, b = {wide, LB_F32, layout}, c = {wider, LB_F64, layout};
        assert_same(of(LB_FINGERPRINT_NUMBERS, &a), of(LB_FINGERPRINT_NUMBERS, &b));
        assert_same(of(LB_FINGERPRINT_NUMBERS, &a), of(LB_FINGERPRINT_NUMBERS, &c));
        assert_both_differ(of(LB_FINGERPRINT_RAW, &a), of(LB_FINGERPRINT_RAW, &b));
    }
    const float zeros[] = {0.0f, -0.0f};
    const lb_tensor plus = {(void *)zeros, LB_F32, lb_layout_contiguous(0, NULL)};
    const lb_tensor minus = {(void *)(zeros + 1), LB_F32, plus.layout};
    assert_same(of(LB_FINGERPRINT_NUMBERS, &plus), of(LB_FINGERPRINT_NUMBERS, &minus));
    assert_both_differ(of(LB_FINGERPRINT_RAW, &plus), of(LB_FINGERPRINT_RAW, &minus));
}

/* ---- partitions -------------------------------------------------------------------------------------------------- */

/* Cuts the block at a random place along a random dimension, and its parts again; each part is copied as a rank would
 * hold it, or left as a view. */
static void add_parts(const lb_tensor *whole, const int64_t *start, const int64_t *size, int depth,
                      lb_fingerprint_form form, lb_fingerprint *sum)
{
    const int n = whole->layout.ndim, d = n ? (int)(draw() % (unsigned)n) : 0;
    if (n && depth && size[d] > 1) {
        int64_t left[LB_MAX_DIMS], right[LB_MAX_DIMS], at[LB_MAX_DIMS];
        memcpy(left, size, sizeof left), memcpy(right, size, sizeof right), memcpy(at, start, sizeof at);
        left[d] = (int64_t)(draw() % (uint64_t)(size[d] + 1)); /* a part may be empty */
        right[d] -= left[d], at[d] += left[d];
        add_parts(whole, start, left, depth - 1, form, sum), add_parts(whole, at, right, depth - 1, form, sum);
        return;
    }
    const int64_t width = (int64_t)lb_dtype_bits(whole->dtype) / 8;
    lb_tensor part = *whole;
    int64_t offset = 0;
    for (int k = 0; k < n; k++) part.layout.shape[k] = size[k], offset += start[k] * whole->layout.stride[k];
    part.data = (char *)whole->data + offset * width;
    void *copy = NULL;
    if (draw() % 2) {
        copy = malloc((size_t)(lb_layout_numel(&part.layout) * width) + 1);
        assert_int_equal(lb_tensor_gather(&part, copy, NULL), LB_OK);
        part = (lb_tensor){copy, whole->dtype, lb_layout_contiguous(n, size)};
    }
    assert_int_equal(lb_fingerprint_block(form, &part, whole->layout.shape, start, sum, NULL), LB_OK);
    free(copy);
}

static void any_partition_adds_up_to_the_whole(void **state)
{
    (void)state;
    static const lb_dtype dtypes[] = {LB_BF16, LB_F32, LB_F64, LB_I8, LB_C128, LB_E5M2, LB_I64};
    static unsigned char bytes[16 * 30000];
    static const int64_t nowhere[LB_MAX_DIMS];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(draw() >> 24);
    for (int round = 0; round < 400; round++) {
        int64_t shape[LB_MAX_DIMS] = {0};
        const int n = (int)(draw() % 5);
        for (int64_t d = 0, room = 30000; d < n; d++) {
            shape[d] = 1 + (int64_t)(draw() % (uint64_t)(room < 150 ? room : 150));
            room /= shape[d];
        }
        const lb_tensor whole = {bytes, dtypes[draw() % sizeof dtypes], lb_layout_contiguous(n, shape)};
        for (int form = 0; form < 2; form++) {
            lb_fingerprint sum = LB_FINGERPRINT_INIT, flat = sum;
            add_parts(&whole, nowhere, shape, (int)(draw() % 6), (lb_fingerprint_form)form, &sum);
            assert_same(sum, of((lb_fingerprint_form)form, &whole));
            lb_fingerprint_add_run((lb_fingerprint_form)form, whole.dtype, bytes,
                                   (size_t)lb_layout_numel(&whole.layout), 0, &flat); /* FSDP1's flat parameter */
            assert_same(flat, sum);
        }
    }
}

static void what_moves_or_changes_is_seen(void **state)
{
    (void)state;
    enum { ROWS = 37, COLUMNS = 53, N = ROWS * COLUMNS };
    static float x[N];
    for (size_t i = 0; i < N; i++) x[i] = (float)((double)(int64_t)draw() / 1e18);
    const lb_tensor t = {x, LB_F32, lb_layout_contiguous(2, (int64_t[]){ROWS, COLUMNS})};
    for (int form = 0; form < 2; form++) {
        const lb_fingerprint before = of((lb_fingerprint_form)form, &t);
        for (int round = 0; round < 300; round++) {
            const size_t i = draw() % N, k = (i + 1 + draw() % (N - 1)) % N;
            const float a = x[i], b = x[k];
            uint32_t bits;
            memcpy(&bits, &a, 4), bits ^= 1u << draw() % 32, memcpy(&x[i], &bits, 4); /* one bit */
            assert_both_differ(of((lb_fingerprint_form)form, &t), before);
            x[i] = b, x[k] = a; /* two exchanged */
            assert_both_differ(of((lb_fingerprint_form)form, &t), before);
            x[i] = -a, x[k] = -b; /* two signs, which a linear checksum may cancel */
            assert_both_differ(of((lb_fingerprint_form)form, &t), before);
            x[i] = 0, x[k] = a; /* one moved */
            assert_both_differ(of((lb_fingerprint_form)form, &t), before);
            x[i] = a, x[k] = b;
            assert_same(of((lb_fingerprint_form)form, &t), before);
        }
        lb_tensor turned = t;
        turned.layout.shape[0] = COLUMNS, turned.layout.shape[1] = ROWS;
        turned.layout.stride[0] = 1, turned.layout.stride[1] = COLUMNS;
        assert_both_differ(of((lb_fingerprint_form)form, &turned), before);
    }
}

/* Each bit of an element and of its index turns about half of the bits of both hashes: of 64 between 29.5 and 34.5 on
 * average, over 1000 elements of 16 bits, of 64, and of 64 whose lower ones are zero as in the f64 of a bf16. */
static void a_bit_turns_half_of_the_hash(void **state)
{
    (void)state;
    enum { TRIALS = 1000 };
    for (int kind = 0; kind < 3; kind++)
        for (int bit = 0; bit < (kind == 0 ? 16 : 64) + 32; bit++) {
            double turned[2] = {0, 0};
            for (int trial = 0; trial < TRIALS; trial++) {
                const uint64_t w = kind == 0 ? draw() & 0xFFFF : kind == 1 ? draw() : draw() & 0xFFFF000000000000u;
                const int in_value = kind == 0 ? 16 : 64;
                const uint64_t i = draw() % 1000000, v = bit < in_value ? w ^ 1ull << bit : w;
                const uint64_t k = bit < in_value ? i : i ^ 1ull << (bit - in_value);
                const lb_fingerprint x = by_definition(w, i, 3), y = by_definition(v, k, 3);
                turned[0] += __builtin_popcountll(x.a ^ y.a), turned[1] += __builtin_popcountll(x.b ^ y.b);
            }
            for (int h = 0; h < 2; h++) assert_true(fabs(turned[h] / TRIALS - 32) < 2.5);
        }
}

static void blocks_that_leave_the_whole_are_refused(void **state)
{
    (void)state;
    float x[6] = {0};
    lb_err err = LB_ERR_INIT;
    lb_fingerprint sum = {5, 6};
    const lb_tensor block = {x, LB_F32, lb_layout_contiguous(2, (int64_t[]){2, 3})};
    const int64_t whole[] = {4, 3}, outside[] = {3, 0}, before[] = {-1, 0}, huge[] = {INT64_MAX, INT64_MAX};
    assert_int_equal(lb_fingerprint_block(LB_FINGERPRINT_RAW, &block, whole, outside, &sum, &err), LB_ERR_INVALID);
    assert_int_equal(lb_fingerprint_block(LB_FINGERPRINT_RAW, &block, whole, before, &sum, &err), LB_ERR_INVALID);
    assert_int_equal(lb_fingerprint_block(LB_FINGERPRINT_RAW, &block, huge, outside, &sum, &err), LB_ERR_INVALID);
    const lb_tensor odd = {x, LB_E2M1, lb_layout_contiguous(2, (int64_t[]){2, 3})};
    assert_int_equal(lb_fingerprint_block(LB_FINGERPRINT_RAW, &odd, (int64_t[]){2, 6}, (int64_t[]){0, 3}, &sum, NULL),
                     LB_ERR_UNSUPPORTED);
    assert_true(sum.a == 5 && sum.b == 6);
}

static void texts_go_both_ways(void **state)
{
    (void)state;
    const lb_fingerprint f = {0x0123456789abcdefu, 0xfedcba9876543210u};
    lb_fingerprint back;
    char text[33];
    lb_fingerprint_format(f, text);
    assert_string_equal(text, "0123456789abcdeffedcba9876543210");
    assert_int_equal(lb_fingerprint_parse(text, &back, NULL), LB_OK);
    assert_same(f, back);
    assert_int_equal(lb_fingerprint_parse("0123", &back, NULL), LB_ERR_INVALID);
    assert_both_differ(lb_fingerprint_named(f, "a"), lb_fingerprint_named(f, "b"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_add_up_as_the_header_says),
        cmocka_unit_test(complex_elements_and_nibbles_are_taken_apart),
        cmocka_unit_test(numbers_agree_across_dtypes_with_one_nan_and_one_zero),
        cmocka_unit_test(any_partition_adds_up_to_the_whole),
        cmocka_unit_test(what_moves_or_changes_is_seen),
        cmocka_unit_test(a_bit_turns_half_of_the_hash),
        cmocka_unit_test(blocks_that_leave_the_whole_are_refused),
        cmocka_unit_test(texts_go_both_ways),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
