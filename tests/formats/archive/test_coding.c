/* Coded bytes decoded piece by piece: the same bytes and the same digest as at once, for every coding and any size, and
 * no less refused. */
#include "cmocka_first.h"

#include "archive/coding.h"

#include <stdlib.h>
#include <string.h>

static const lb_coding CODINGS[] = {1, 2, 4, 8, 16};

/* Bytes that compress, and are no period of any width. */
static unsigned char *sample(size_t size)
{
    unsigned char *bytes = malloc(size + 1);
    for (size_t i = 0; i < size; i++) bytes[i] = (unsigned char)(i / 37 * 11 + (i % 4 == 3 ? i / 4096 : 0));
    return bytes;
}

static void pieces_give_the_same_bytes(void **state)
{
    (void)state;
    const size_t sizes[] = {64, 65, 79, 65535, 65536, 65537, 200003, 1 << 20, (1 << 20) + 15};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        unsigned char *bytes = sample(sizes[s]), *again = malloc(sizes[s]);
        for (size_t c = 0; c < sizeof CODINGS / sizeof *CODINGS; c++) {
            lb_coding coding = CODINGS[c];
            void *stored;
            size_t n;
            assert_int_equal(lb_coding_encode(bytes, sizes[s], 3, &coding, &stored, &n, NULL), LB_OK);
            if (coding == 0) continue; /* too small to be worth it */
            const lb_coded coded = {coding, stored, n, sizes[s], "x"};
            lb_digest digest;
            assert_int_equal(lb_coding_digest(&coded, &digest, NULL), LB_OK);
            assert_true(lb_digest_equal(digest, lb_digest_bytes(bytes, sizes[s])));
            memset(again, 0xee, sizes[s]);
            assert_int_equal(lb_coding_decode_pieces(&coded, again, NULL), LB_OK);
            assert_memory_equal(again, bytes, sizes[s]);
            free(stored);
        }
        free(bytes), free(again);
    }
}

static void damaged_pieces_are_refused(void **state)
{
    (void)state;
    enum { SIZE = 300000 };
    unsigned char *bytes = sample(SIZE);
    const lb_digest right = lb_digest_bytes(bytes, SIZE);
    lb_coding coding = 4;
    void *stored;
    size_t n;
    unsigned refused = 0, other = 0;
    assert_int_equal(lb_coding_encode(bytes, SIZE, 3, &coding, &stored, &n, NULL), LB_OK);
    for (size_t at = 0; at < n; at += 1 + n / 200) {
        lb_digest digest;
        lb_err err = LB_ERR_INIT;
        ((unsigned char *)stored)[at] ^= 0x55;
        const lb_status status = lb_coding_digest(&(lb_coded){coding, stored, n, SIZE, "x"}, &digest, &err);
        refused += status != LB_OK && err.message[0];
        other += status == LB_OK && !lb_digest_equal(digest, right);
        ((unsigned char *)stored)[at] ^= 0x55;
        if (status == LB_OK &&
            lb_digest_equal(digest, right)) /* a byte of the frame's header that says nothing of contents */
            assert_true(at < 18);
    }
    assert_true(refused > 0 && other + refused > 100);
    for (size_t cut = 0; cut < n; cut += 1 + n / 50) {
        lb_digest digest;
        assert_int_equal(lb_coding_digest(&(lb_coded){coding, stored, cut, SIZE, "x"}, &digest, NULL), LB_ERR_CORRUPT);
    }
    free(stored), free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_give_the_same_bytes),
        cmocka_unit_test(damaged_pieces_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
