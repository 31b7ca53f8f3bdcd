#include "cmocka_first.h"
#include <lastbit/digest.h>

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static unsigned char *noise(size_t n, unsigned seed)
{
    unsigned char *bytes = malloc(n ? n : 1);
    for (size_t i = 0; i < n; i++) bytes[i] = (unsigned char)(seed = seed * 1103515245 + 12345, seed >> 16);
    return bytes;
}

/* The header's definition, word for word. */
static lb_digest by_definition(const unsigned char *bytes, size_t n, const uint64_t *more, size_t extra)
{
    size_t leaves = (n + LB_DIGEST_LEAF - 1) / LB_DIGEST_LEAF, words = 0;
    uint64_t *sequence = malloc((1 + leaves + extra) * sizeof *sequence);
    sequence[words++] = n;
    for (size_t i = 0; i < leaves; i++) {
        size_t left = n - i * LB_DIGEST_LEAF;
        sequence[words++] =
            XXH3_64bits_withSeed(bytes + i * LB_DIGEST_LEAF, left < LB_DIGEST_LEAF ? left : LB_DIGEST_LEAF, i);
    }
    for (size_t i = 0; i < extra; i++) sequence[words++] = more[i];
    XXH128_hash_t hash = XXH3_128bits(sequence, words * sizeof *sequence);
    free(sequence);
    return (lb_digest){hash.high64, hash.low64};
}

static void blob_digest_is_the_stated_tree(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 7, 65535, 65536, 65537, 200000, 66 * 65536 + 3, 130 * 65536};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned char *bytes = noise(sizes[i], (unsigned)i);
        assert_true(lb_digest_equal(lb_digest_bytes(bytes, sizes[i]), by_definition(bytes, sizes[i], NULL, 0)));
        free(bytes);
    }
}

static void logical_digest_is_equal_across_layouts_only(void **state)
{
    (void)state;
    enum { ROWS = 300, COLUMNS = 500 }; /* 600,000 bytes: leaves end inside rows */
    int64_t shape[] = {ROWS, COLUMNS};
    float *dense = (float *)noise(ROWS * COLUMNS * sizeof(float), 3);
    float *transposed = malloc(ROWS * COLUMNS * sizeof(float)), *padded = calloc(ROWS * (COLUMNS + 9), sizeof(float));
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++)
            transposed[c * ROWS + r] = padded[r * (COLUMNS + 9) + c] = dense[r * COLUMNS + c];
    lb_tensor a = {dense, LB_F32, lb_layout_contiguous(2, shape)}, b = a, c = a;
    b.data = transposed;
    b.layout.stride[0] = 1;
    b.layout.stride[1] = ROWS;
    c.data = padded;
    c.layout.stride[0] = COLUMNS + 9;
    lb_digest expected =
        by_definition((unsigned char *)dense, ROWS * COLUMNS * 4, (uint64_t[]){LB_F32, 2, ROWS, COLUMNS}, 4);
    assert_true(lb_digest_equal(lb_digest_tensor(&a), expected));
    assert_true(lb_digest_equal(lb_digest_tensor(&b), expected));
    assert_true(lb_digest_equal(lb_digest_tensor(&c), expected));
    lb_tensor other_shape = {dense, LB_F32, lb_layout_contiguous(2, (int64_t[]){COLUMNS, ROWS})};
    assert_false(lb_digest_equal(lb_digest_tensor(&other_shape), expected));
    lb_tensor other_dtype = {dense, LB_I32, a.layout};
    assert_false(lb_digest_equal(lb_digest_tensor(&other_dtype), expected));
    free(dense), free(transposed), free(padded);
}

static void any_flipped_bit_and_any_move_of_a_leaf_is_seen(void **state)
{
    (void)state;
    size_t n = 3 * LB_DIGEST_LEAF;
    unsigned char *bytes = noise(n, 9);
    lb_digest before = lb_digest_bytes(bytes, n);
    for (int i = 0; i < 200; i++) {
        size_t bit = (size_t)rand() % (n * 8);
        bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        assert_false(lb_digest_equal(lb_digest_bytes(bytes, n), before));
        bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    unsigned char *swapped = malloc(n);
    memcpy(swapped, bytes + LB_DIGEST_LEAF, LB_DIGEST_LEAF);
    memcpy(swapped + LB_DIGEST_LEAF, bytes, LB_DIGEST_LEAF);
    memcpy(swapped + 2 * LB_DIGEST_LEAF, bytes + 2 * LB_DIGEST_LEAF, LB_DIGEST_LEAF);
    assert_false(lb_digest_equal(lb_digest_bytes(swapped, n), before));
    free(bytes), free(swapped);
}

static void text_goes_out_and_comes_back(void **state)
{
    (void)state;
    lb_digest digest = {0x0123456789abcdef, 0xfedcba9876543210}, back;
    char text[33];
    lb_digest_format(digest, text);
    assert_string_equal(text, "0123456789abcdeffedcba9876543210");
    assert_int_equal(lb_digest_parse(text, &back, NULL), LB_OK);
    assert_true(lb_digest_equal(digest, back));
    assert_int_equal(lb_digest_parse("0123", &back, NULL), LB_ERR_INVALID);
    assert_int_equal(lb_digest_parse("0123456789abcdeffedcba9876543210f", &back, NULL), LB_ERR_INVALID);
    assert_int_equal(lb_digest_parse("0123456789abcdeffedcba987654321x", &back, NULL), LB_ERR_INVALID);
}

static void nonsense_has_no_digest(void **state)
{
    (void)state;
    lb_tensor overflow = {NULL, LB_F32, lb_layout_contiguous(2, (int64_t[]){INT64_MAX, 2})};
    assert_true(lb_digest_is_none(lb_digest_tensor(&overflow)));
    lb_tensor no_dtype = {NULL, LB_NO_DTYPE, lb_layout_contiguous(0, NULL)};
    assert_true(lb_digest_is_none(lb_digest_tensor(&no_dtype)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blob_digest_is_the_stated_tree),
        cmocka_unit_test(logical_digest_is_equal_across_layouts_only),
        cmocka_unit_test(any_flipped_bit_and_any_move_of_a_leaf_is_seen),
        cmocka_unit_test(text_goes_out_and_comes_back),
        cmocka_unit_test(nonsense_has_no_digest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
