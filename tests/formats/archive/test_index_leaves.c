/* The closing index is checked leaf by leaf, where it is read: whatever is damaged in it, no blob is wrong or lost. */
#define _GNU_SOURCE /* memmem */
#include "cmocka_first.h"
#include "program_sample.h"
#include "scratch_folder.h"

#include "archive/archive_reader.h"
#include <lastbit/archive.h>
#include <lastbit/maintenance.h>

enum { BLOBS = 12000, ELSEWHERE = BLOBS + 1000, ROW_BYTES = 46 };

static const float sample[6] = {1, 2, 3, 4, 5, 6};
static const char *path;

/* Blobs that are 8 bytes, told from their number; one is large enough to lie by itself. */
static void write_blobs(void)
{
    static char large[20000];
    lb_writer *w;
    path = in_scratch("rank-00000.tar");
    OK(lb_writer_open(path, NULL, &w, &err));
    for (uint64_t k = 0; k < BLOBS; k++)
        OK(lb_writer_blob(w, lb_digest_bytes(&k, sizeof k), LB_U8, &k, sizeof k, &err));
    OK(lb_writer_blob(w, lb_digest_bytes(large, sizeof large), LB_U8, large, sizeof large, &err));
    lb_program *p = sample_program(3, 0, sample);
    OK(lb_writer_program(w, p, &err));
    lb_program_free(p);
    OK(lb_writer_close(w, &err));
}

static lb_archive *open_it(void)
{
    lb_archive *a;
    OK(lb_archive_open(path, &a, &err));
    return a;
}

static void check_blob(lb_archive *a, uint64_t k)
{
    const void *at;
    size_t size;
    const lb_status status = lb_archive_blob(a, lb_digest_bytes(&k, sizeof k), &at, &size, NULL);
    assert_int_equal(status, k < BLOBS ? LB_OK : LB_ERR_NOT_CAPTURED);
    if (k >= BLOBS) return;
    assert_int_equal(size, sizeof k);
    assert_memory_equal(at, &k, sizeof k);
}

static uint64_t leaves_seen(const lb_archive *a)
{
    uint64_t n = 0;
    for (uint64_t i = 0; i < a->index.leaves.n; i++) n += atomic_load(&a->index.leaves.seen[i]);
    return n;
}

static void flip(uint64_t offset)
{
    FILE *file = fopen(path, "r+b");
    int byte;
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)offset, SEEK_SET), 0);
    byte = fgetc(file);
    assert_int_equal(fseek(file, (long)offset, SEEK_SET), 0);
    assert_int_not_equal(fputc(byte ^ 1 << offset % 8, file), EOF);
    fclose(file);
}

static void opening_reads_few_leaves_and_each_is_read_once(void **state)
{
    (void)state;
    write_blobs();
    lb_archive *a = open_it();
    const uint64_t all = a->index.leaves.n;
    assert_int_equal(all, (uint64_t)BLOBS * ROW_BYTES / LB_DIGEST_LEAF);
    const uint64_t opened = leaves_seen(a);
    assert_true(opened < all);
    for (uint64_t k = 0; k < ELSEWHERE; k++) check_blob(a, k);
    assert_int_equal(leaves_seen(a), all);
    assert_null(atomic_load(&a->rescue));
    lb_archive_close(a);
}

/* A bit anywhere in the index: it is not used from there on, and every blob is found by reading the archive. */
static void a_flipped_bit_anywhere_in_the_index_loses_nothing(void **state)
{
    (void)state;
    write_blobs();
    lb_archive *a = open_it();
    const uint64_t from = a->index_at, size = a->index.leaves.n * LB_DIGEST_LEAF;
    lb_archive_close(a);
    uint32_t later = 0, at_once = 0;
    for (uint64_t i = 0; i < 64; i++) {
        const uint64_t at = from + (size / 64 * i + 40503 * i % (size / 64));
        flip(at);
        a = open_it();
        const bool closed = a->closed;
        for (uint64_t k = i; k < ELSEWHERE; k += 7) check_blob(a, k);
        for (uint64_t k = 0; i % 16 == 0 && k < ELSEWHERE; k++) check_blob(a, k);
        at_once += !closed, later += closed && atomic_load(&a->rescue);
        lb_archive_close(a);
        if (i % 8 == 0) {
            lb_verification v;
            OK(lb_capture_verify(path, NULL, NULL, &v, &err));
            assert_int_equal(v.damages, 2); /* the record, and that the index cannot be used */
            assert_int_equal(v.closed, 0);
            assert_int_equal(v.blobs, BLOBS + 1);
        }
        flip(at);
    }
    assert_true(later > 0 && at_once > 0);
}

/* The index as it is, but for its list of leaves. */
static void encode_with(const lb_index *index, const char *key, int64_t change, byte_buffer *bytes)
{
    OK(lb_index_encode(index, bytes, &err));
    char *found = memmem(bytes->bytes, bytes->size, "\xa6leaves", 7);
    assert_non_null(found);
    memcpy(found + 1, key, 6);
    if (change >= 0) found[7 + 2 + change] ^= 1; /* behind the head of a short BIN */
}

static void leaves_that_are_unknown_or_lie_are_not_needed(void **state)
{
    (void)state;
    write_blobs();
    lb_archive *a = open_it();
    byte_buffer bytes = {0};
    lb_index index;
    uint64_t k = 77;
    const lb_digest wanted = lb_digest_bytes(&k, sizeof k);
    /* A reader that knows nothing of the key hashes all. */
    encode_with(&a->index, "others", -1, &bytes);
    OK(lb_index_decode(bytes.bytes, bytes.size, "index", 0, &index, &err));
    assert_int_equal(index.leaves.n, 0);
    assert_int_equal(lb_index_check(&index, bytes.bytes, bytes.size, lb_digest_bytes(bytes.bytes, bytes.size)), LB_OK);
    assert_int_equal(lb_index_find(&index, wanted), lb_index_find(&a->index, wanted));
    lb_index_release(&index);
    /* A list whose hashes are none of the leaves' is not the one of this digest. */
    for (int64_t byte = 0; byte < (int64_t)a->index.leaves.n * 8; byte++) {
        encode_with(&a->index, "leaves", byte, &bytes);
        OK(lb_index_decode(bytes.bytes, bytes.size, "index", 0, &index, &err));
        assert_int_equal(lb_index_check(&index, bytes.bytes, bytes.size, lb_digest_bytes(bytes.bytes, bytes.size)),
                         LB_ERR_CORRUPT);
        lb_index_release(&index);
    }
    buffer_release(&bytes);
    lb_archive_close(a);
}

/* Hashes that are wrong, under a digest that is made of them. */
static void hashes_under_a_digest_of_their_own_are_found_out_where_they_are_read(void **state)
{
    (void)state;
    write_blobs();
    lb_archive *a = open_it();
    byte_buffer bytes = {0};
    lb_index index;
    OK(lb_index_encode(&a->index, &bytes, &err));
    const uint64_t n = a->index.leaves.n, all = (bytes.size + LB_DIGEST_LEAF - 1) / LB_DIGEST_LEAF;
    assert_true(n >= 3);
    uint64_t *hashes = malloc(all * sizeof *hashes);
    char *list = memmem(bytes.bytes, bytes.size, "\xa6leaves", 7);
    list += 7 + 2;
    hashes[1] = 12345; /* the second leaf lies in the digests */
    memcpy(list + 8, &hashes[1], 8);
    for (uint64_t i = 0; i < all; i++) {
        const size_t left = bytes.size - i * LB_DIGEST_LEAF;
        if (i != 1)
            hashes[i] =
                lb_digest_leaf(bytes.bytes + i * LB_DIGEST_LEAF, left < LB_DIGEST_LEAF ? left : LB_DIGEST_LEAF, i);
    }
    const lb_digest digest = lb_digest_of_byte_leaves(hashes, all, bytes.size);
    OK(lb_index_decode(bytes.bytes, bytes.size, "index", 0, &index, &err));
    assert_int_equal(lb_index_check(&index, bytes.bytes, bytes.size, digest), LB_OK);
    assert_false(lb_index_holds_all(&index));
    uint64_t found = 0, damaged = 0;
    for (uint64_t k = 0; k < BLOBS; k++) {
        const uint64_t row = lb_index_find(&index, lb_digest_bytes(&k, sizeof k));
        assert_int_not_equal(row, LB_NO_ROW); /* never "not kept" */
        damaged += row == LB_DAMAGED_ROW, found += row < index.blobs.rows;
    }
    assert_true(found > 0 && damaged > 0);
    lb_index_release(&index);
    free(hashes);
    buffer_release(&bytes);
    lb_archive_close(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(opening_reads_few_leaves_and_each_is_read_once, make_scratch, drop_scratch),
        cmocka_unit_test_setup_teardown(a_flipped_bit_anywhere_in_the_index_loses_nothing, make_scratch, drop_scratch),
        cmocka_unit_test_setup_teardown(leaves_that_are_unknown_or_lie_are_not_needed, make_scratch, drop_scratch),
        cmocka_unit_test_setup_teardown(hashes_under_a_digest_of_their_own_are_found_out_where_they_are_read,
                                        make_scratch, drop_scratch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
