/* Files that lie on purpose, their digests right: sizes, offsets, counts, versions. Each is refused where it lies, by
 * file, offset and field, and no lie makes the reader ask for memory: at most 64 MiB are ever held. */
#include "cmocka_first.h"
#include "archive/coding.h"
#include "crafted_archive.h"
#include "held_memory.h"
#include "program_sample.h"
#include "scratch_folder.h"

#include <lastbit/maintenance.h>

static const float data[6] = {1, 2, 3, 4, 5, 6};

/* ---- reading all of a file --------------------------------------------------------------------------------------- */

typedef struct refusal {
    lb_status status;
    lb_err err; /* of the first thing that was refused */
} refusal;

static void note(refusal *r, lb_status status, const lb_err *err)
{
    if (status == LB_OK || r->status != LB_OK) return;
    r->status = status;
    r->err = *err;
}

/* Opens, reads every blob, program and table. */
static refusal read_all(const char *path)
{
    refusal r = {LB_OK, LB_ERR_INIT};
    lb_archive *a;
    lb_err err = LB_ERR_INIT;
    forget_memory();
    lb_status status = lb_archive_open(path, &a, &err);
    note(&r, status, &err);
    if (status == LB_OK) {
        for (uint64_t k = 0; k < 8; k++) {
            const void *bytes;
            size_t size;
            lb_err_clear(&err);
            status = lb_archive_blob(a, (lb_digest){k + 1, k + 1}, &bytes, &size, &err);
            if (status != LB_ERR_NOT_CAPTURED) note(&r, status, &err);
        }
        for (uint32_t i = 0; i < lb_archive_programs(a); i++) {
            const lb_program *p;
            lb_err_clear(&err);
            note(&r, lb_archive_program(a, i, &p, &err), &err);
        }
        lb_archive_table(a, "t");
        lb_archive_close(a);
    }
    lb_verification v;
    lb_capture_verify(path, NULL, NULL, &v, NULL);
    if (memory_used() > MEMORY_LIMIT) fail_msg("%s: %ld bytes were held", path, memory_used());
    return r;
}

static void assert_refused(const refusal *r, const char *path, lb_status status, const char *says)
{
    if (r->status != status)
        fail_msg("%s gave %s '%s', not %s", says, lb_status_name(r->status), r->err.message, lb_status_name(status));
    assert_non_null(strstr(r->err.message, path));
    if (status == LB_ERR_CORRUPT) assert_non_null(strstr(r->err.message, "offset"));
    if (!strstr(r->err.message, says)) fail_msg("'%s' does not say '%s'", r->err.message, says);
}

static void check_one(const crafted *record, lb_status status, const char *says)
{
    crafting c;
    const char *path = in_scratch("crafted.tar");
    craft_begin(&c, 1);
    craft_record(&c, record);
    craft_commit(&c);
    craft_end(&c, path);
    refusal r = read_all(path);
    assert_refused(&r, path, status, says);
}

/* ---- programs ---------------------------------------------------------------------------------------------------- */

static void programs_that_claim_more_than_they_hold_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t size;
        const char *says;
    } bombs[] = {
        {"\xdf\xff\xff\xff\xff", 5, "program: claims"},
        {"\x81\xa7strings\xdd\xff\xff\xff\xff", 14, "strings: claims"},
        {"\x81\xa3ops\x81\xa4rows\xce\x10\x00\x00\x00", 16, "ops.name"},
        {"\x81\xa6values\x82\xa4rows\xce\x0f\xff\xff\xff\xa7storage\xc6\xff\xff\xff\xff", 32, "claims"},
        {"\x81\xa3ops\x81\xa4rows\xcf\xff\xff\xff\xff\xff\xff\xff\xff", 20, "too large"},
        {"\x81\xa1k\xdc\xff\xff\xdc\xff\xff\xdc\xff\xff", 12, "claim"},
        {"\x80", 1, "strings[0]"},
        {"\xc1", 1, "invalid"},
    };
    for (size_t i = 0; i < sizeof bombs / sizeof *bombs; i++)
        check_one(
            &(crafted){
                {.kind = LB_RECORD_PROGRAM, .size = bombs[i].size}, bombs[i].bytes, bombs[i].size, NULL, 0, false},
            LB_ERR_CORRUPT, bombs[i].says);
    check_one(&(crafted){{.kind = LB_RECORD_PROGRAM, .size = 99}, "\x80", 1, NULL, 0, false}, LB_ERR_CORRUPT,
              "size says 99");
    lb_program *p = sample_program(0, 0, data);
    void *bytes;
    size_t size;
    p->values[1].layout.shape[0] = INT64_MAX / 2; /* the product overflows */
    lb_program_encode(p, &bytes, &size, NULL);
    check_one(&(crafted){{.kind = LB_RECORD_PROGRAM, .size = size}, bytes, size, NULL, 0, false}, LB_ERR_CORRUPT,
              "values[1]");
    free(bytes);
    lb_program_free(p);
}

static void coded_payloads_that_claim_gigabytes_are_refused(void **state)
{
    (void)state;
    char raw[4096] = {0}, lie[64];
    void *stored;
    size_t n;
    lb_coding coding = 1;
    lb_coding_encode(raw, sizeof raw, 3, &coding, &stored, &n, NULL);
    static const uint64_t claims[] = {0, 1, 4095, 4097, 1u << 30, 1ull << 62};
    for (size_t i = 0; i < sizeof claims / sizeof *claims; i++) {
        check_one(&(crafted){{.kind = LB_RECORD_PROGRAM, .coding = 1, .size = claims[i]}, stored, n, NULL, 0, false},
                  LB_ERR_CORRUPT, "size says");
        check_one(
            &(crafted){
                {.kind = LB_RECORD_BLOB, .digest = {1, 1}, .coding = 4, .size = claims[i]}, stored, n, NULL, 0, false},
            LB_ERR_CORRUPT, "size says");
    }
    free(stored);
    /* The frame header itself lies: magic, a single segment of 2^40 bytes, one raw block of 3. */
    memcpy(lie,
           "\x28\xb5\x2f\xfd\xe0\x00\x00\x00\x00\x00\x01\x00\x00\x19\x00\x00"
           "abc",
           19);
    check_one(
        &(crafted){
            {.kind = LB_RECORD_BLOB, .digest = {1, 1}, .coding = 1, .size = 1ull << 40}, lie, 19, NULL, 0, false},
        LB_ERR_CORRUPT, "at most");
    check_one(
        &(crafted){
            {.kind = LB_RECORD_BLOB, .digest = {1, 1}, .coding = 2, .size = 64}, "not zstd at all", 15, NULL, 0, false},
        LB_ERR_CORRUPT, "no zstd");
    check_one(&(crafted){{.kind = LB_RECORD_BLOB, .digest = {1, 1}, .coding = 77, .size = 64}, raw, 64, NULL, 0, false},
              LB_ERR_VERSION, "coding 77");
}

/* ---- blobs and packs --------------------------------------------------------------------------------------------- */

static void blobs_that_are_not_their_digest_are_refused(void **state)
{
    (void)state;
    check_one(&(crafted){{.kind = LB_RECORD_BLOB, .digest = {1, 1}, .size = 8}, "8 bytes.", 8, NULL, 0, false},
              LB_ERR_CORRUPT, "damaged there");
    check_one(&(crafted){{.kind = LB_RECORD_BLOB, .digest = {1, 1}, .size = 9}, "8 bytes.", 8, NULL, 0, false},
              LB_ERR_CORRUPT, "size says 9");
    crafting c;
    craft_begin(&c, 1);
    craft_record(&c, &(crafted){{.kind = LB_RECORD_PROGRAM, .size = 1}, "\x80", 1, NULL, 0, true});
    craft_commit(&c);
    craft_end(&c, in_scratch("wrong.tar"));
    lb_archive *a;
    lb_verification v;
    assert_int_equal(lb_archive_open(in_scratch("wrong.tar"), &a, NULL), LB_OK);
    assert_int_equal(lb_archive_programs(a), 0);
    assert_false(lb_archive_complete(a));
    lb_archive_close(a);
    assert_int_equal(lb_capture_verify(in_scratch("wrong.tar"), NULL, NULL, &v, NULL), LB_OK);
    assert_true(v.damages > 0);
}

/* A pack of one blob {1,1} said to be at `offset`, `size` bytes, in an area of 64. */
static void craft_pack(uint64_t offset, uint64_t size, lb_coding coding, uint64_t area, refusal *r)
{
    byte_buffer b = {0};
    char bytes[64] = {0};
    lb_blob_row row = {.digest = {1, 1}, .offset = offset, .size = size};
    buffer_add(&b, bytes, sizeof bytes);
    lb_index_directory_encode(&row, 1, &b);
    crafting c;
    craft_begin(&c, 1);
    craft_record(&c, &(crafted){{.kind = LB_RECORD_PACK,
                                 .digest = lb_digest_bytes(b.bytes + 64, b.size - 64),
                                 .coding = coding,
                                 .size = area,
                                 .directory = 64},
                                b.bytes,
                                b.size,
                                NULL,
                                0,
                                false});
    craft_commit(&c);
    craft_end(&c, in_scratch("pack.tar"));
    *r = read_all(in_scratch("pack.tar"));
    buffer_release(&b);
}

static void packs_whose_blobs_leave_them_are_left_out(void **state)
{
    (void)state;
    static const struct {
        uint64_t offset, size;
    } lies[] = {{60, 8}, {UINT64_MAX, 2}, {64, 1}, {0, UINT64_MAX}, {1ull << 63, 1ull << 63}};
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        refusal r;
        craft_pack(lies[i].offset, lies[i].size, 0, 64, &r);
        lb_archive *a;
        const void *bytes;
        size_t size;
        assert_int_equal(lb_archive_open(in_scratch("pack.tar"), &a, NULL), LB_OK);
        assert_int_equal(lb_archive_blob(a, (lb_digest){1, 1}, &bytes, &size, NULL), LB_ERR_NOT_CAPTURED);
        assert_false(lb_archive_complete(a));
        lb_archive_close(a);
        lb_verification v;
        assert_int_equal(lb_capture_verify(in_scratch("pack.tar"), NULL, NULL, &v, NULL), LB_OK);
    }
    refusal r;
    craft_pack(0, 8, 1, 1ull << 40, &r); /* a decoded area of a terabyte */
    assert_refused(&r, in_scratch("pack.tar"), LB_ERR_CORRUPT, "after its pack");
}

/* ---- index and locator ------------------------------------------------------------------------------------------- */

static lb_blob_row row_to_lie_in = {.digest = {1, 1}, .offset = 512, .stored = 8, .size = 8, .pack = LB_NO_PACK};

static refusal craft_indexed(const lb_blob_row *row, const lb_segment_row *program)
{
    lb_index_rows rows = {0};
    lb_index index;
    byte_buffer b = {0};
    lb_index_add_blob(&rows, row);
    if (program) lb_index_add_program(&rows, program);
    lb_index_build(&rows, &index, NULL);
    lb_index_encode(&index, &b, NULL);
    crafting c;
    craft_begin(&c, 1);
    craft_commit(&c);
    craft_close(&c, b.bytes, b.size, NULL);
    craft_end(&c, in_scratch("indexed.tar"));
    lb_index_release(&index);
    buffer_release(&b);
    return read_all(in_scratch("indexed.tar"));
}

static void an_index_that_lies_is_found_out_at_the_bytes(void **state)
{
    (void)state;
    const char *path = in_scratch("indexed.tar");
    refusal r = craft_indexed(&row_to_lie_in, NULL);
    assert_refused(&r, path, LB_ERR_CORRUPT, "damaged there");
    lb_blob_row lie = row_to_lie_in;
    lie.offset = UINT64_MAX - 3;
    r = craft_indexed(&lie, NULL);
    assert_refused(&r, path, LB_ERR_CORRUPT, "end after the file");
    lie = row_to_lie_in;
    lie.stored = lie.size = 1ull << 62;
    r = craft_indexed(&lie, NULL);
    assert_refused(&r, path, LB_ERR_CORRUPT, "end after the file");
    lie = row_to_lie_in;
    lie.size = 1ull << 40;
    r = craft_indexed(&lie, NULL);
    assert_refused(&r, path, LB_ERR_CORRUPT, "size says");
    lie = row_to_lie_in;
    lie.pack = 7;
    r = craft_indexed(&lie, NULL);
    assert_int_equal(r.status, LB_ERR_CORRUPT);
    lie = row_to_lie_in;
    lie.coding = 3;
    r = craft_indexed(&lie, NULL);
    assert_refused(&r, path, LB_ERR_VERSION, "coding 3");
    lb_segment_row program = {.offset = 600, .stored = 1ull << 50, .size = 1ull << 50};
    lie = row_to_lie_in;
    lie.digest = (lb_digest){99, 99};
    r = craft_indexed(&lie, &program);
    assert_refused(&r, path, LB_ERR_CORRUPT, "end after the file");
    program.stored = program.size = 64;
    r = craft_indexed(&lie, &program);
    assert_refused(&r, path, LB_ERR_CORRUPT, "contradict its digest");
}

static void index_bytes_that_are_no_index_are_not_used(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t size;
    } wrong[] = {{"\xdf\xff\xff\xff\xff", 5},
                 {"\x81\xa5"
                  "blobs\x81\xa4rows\xce\xff\xff\xff\xff",
                  17},
                 {"\x81\xa5"
                  "packs\xdd\xff\xff\xff\xff",
                  12},
                 {"\xc0", 1}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        crafting c;
        craft_begin(&c, 1);
        craft_record(
            &c, &(crafted){
                    {.kind = LB_RECORD_TABLE, .rank = LB_NO_RANK, .size = 1, .name = "t"}, "\x07", 1, NULL, 0, false});
        craft_commit(&c);
        craft_close(&c, wrong[i].bytes, wrong[i].size, NULL);
        craft_end(&c, in_scratch("noindex.tar"));
        refusal r = read_all(in_scratch("noindex.tar"));
        assert_int_equal(r.status, LB_OK);
        lb_archive *a;
        assert_int_equal(lb_archive_open(in_scratch("noindex.tar"), &a, NULL), LB_OK);
        assert_string_equal(lb_archive_table(a, "t"), "7"); /* found by scanning */
        lb_archive_close(a);
    }
}

static void lie_offset(lb_locator *l)
{
    l->index_data = UINT64_MAX - 100;
}
static void lie_size(lb_locator *l)
{
    l->index_size = 1ull << 60;
}
static void lie_file(lb_locator *l)
{
    l->file_bytes += 512;
}
static void lie_digest(lb_locator *l)
{
    l->index_digest.hi ^= 1;
}
static void lie_major(lb_locator *l)
{
    l->major = 2;
}

static void a_locator_that_lies_is_not_used(void **state)
{
    (void)state;
    void (*lies[])(lb_locator *) = {lie_offset, lie_size, lie_file, lie_digest, lie_major};
    for (int i = 0; i < 5; i++) {
        crafting c;
        craft_begin(&c, 1);
        craft_commit(&c);
        craft_close(&c, "\x80", 1, lies[i]);
        craft_end(&c, in_scratch("locator.tar"));
        refusal r = read_all(in_scratch("locator.tar"));
        if (i == 4)
            assert_refused(&r, in_scratch("locator.tar"), LB_ERR_VERSION, "newer lastbit");
        else
            assert_int_equal(r.status, LB_OK);
    }
    crafting c;
    craft_begin(&c, 2);
    craft_commit(&c);
    craft_end(&c, in_scratch("head.tar"));
    refusal r = read_all(in_scratch("head.tar"));
    assert_refused(&r, in_scratch("head.tar"), LB_ERR_VERSION, "format 2.0");
}

/* ---- tables, descriptors, the tar itself ------------------------------------------------------------------------- */

/* An archive with this table alone. */
static lb_archive *open_table(const char *bytes, size_t size)
{
    crafting c;
    lb_archive *a;
    craft_begin(&c, 1);
    craft_record(
        &c, &(crafted){
                {.kind = LB_RECORD_TABLE, .rank = LB_NO_RANK, .size = size, .name = "t"}, bytes, size, NULL, 0, false});
    craft_commit(&c);
    craft_end(&c, in_scratch("table.tar"));
    read_all(in_scratch("table.tar"));
    assert_int_equal(lb_archive_open(in_scratch("table.tar"), &a, NULL), LB_OK);
    return a;
}

static void texts_of_tables_that_are_no_utf8_are_spelt(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t size;
        const char *json;
    } rows[] = {{"\xa2\xff\xfe", 3, "\"\\\\xff\\\\xfe\""},
                {"\x82\xa1\xff\x01\xa2\0b\x02", 8, "{\"\\\\xff\":1,\"\\\\x00b\":2}"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lb_archive *a = open_table(rows[i].bytes, rows[i].size);
        assert_string_equal(lb_archive_table(a, "t"), rows[i].json);
        lb_archive_close(a);
    }
}

static void tables_that_cannot_be_are_absent(void **state)
{
    (void)state;
    char deep[2000];
    memset(deep, 0x91, sizeof deep);
    deep[sizeof deep - 1] = 0x01;
    static const struct {
        const char *bytes;
        size_t size;
    } wrong[] = {{"\xdd\xff\xff\xff\xff", 5}, {"\x81\x01\x02", 3}, {"\xcf\xff\xff\xff\xff\xff\xff\xff\xff", 9}};
    for (int i = 0; i < 4; i++) {
        lb_archive *a = open_table(i < 3 ? wrong[i].bytes : deep, i < 3 ? wrong[i].size : sizeof deep);
        assert_null(lb_archive_table(a, "t"));
        lb_archive_close(a);
        lb_verification v;
        assert_int_equal(lb_capture_verify(in_scratch("table.tar"), NULL, NULL, &v, NULL), LB_OK);
        assert_int_equal(v.damages, 1);
    }
}

static void entries_with_wrong_descriptors_are_no_records(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t size;
    } wrong[] = {{"\xdf\xff\xff\xff\xff", 5},
                 {"\x81\xa4kind\xa4nope", 11},
                 {"\x80", 1},
                 {"\x81\xa6"
                  "digest\xc4\x02"
                  "ab",
                  12},
                 {"", 1},
                 {"\x82\xa4kind\xa5table\xa4name\xda\xff\xff", 20}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        crafting c;
        craft_begin(&c, 1);
        craft_record(&c, &(crafted){{.kind = LB_RECORD_TABLE}, "\x01", 1, wrong[i].bytes, wrong[i].size, false});
        craft_record(
            &c, &(crafted){
                    {.kind = LB_RECORD_TABLE, .rank = LB_NO_RANK, .size = 1, .name = "t"}, "\x07", 1, NULL, 0, false});
        c.n = 0;
        craft_commit(&c);
        craft_end(&c, in_scratch("foreign.tar"));
        refusal r = read_all(in_scratch("foreign.tar"));
        assert_int_equal(r.status, LB_OK);
    }
}

/* The size field of a header says 2^60, in base 256, with the checksum put right. */
static void tar_headers_that_claim_exabytes_end_the_scan(void **state)
{
    (void)state;
    for (int which = 0; which < 2; which++) {
        crafting c;
        craft_begin(&c, 1);
        craft_commit(&c);
        craft_record(&c,
                     &(crafted){{.kind = LB_RECORD_BLOB, .digest = {1, 1}, .size = 8}, "8 bytes.", 8, NULL, 0, false});
        unsigned char *header =
            (unsigned char *)c.file.bytes + c.entries[2].header + (which ? 1024 : 0); /* the x header, or the file's */
        memset(header + 124, 0, 12);
        header[124] = 0x80;
        header[128] = 0x10;
        unsigned sum = 0;
        memset(header + 148, ' ', 8);
        for (int i = 0; i < 512; i++) sum += header[i];
        snprintf((char *)header + 148, 8, "%06o", sum);
        craft_commit(&c);
        craft_end(&c, in_scratch("exabyte.tar"));
        refusal r = read_all(in_scratch("exabyte.tar"));
        if (r.status != LB_OK) assert_non_null(strstr(r.err.message, "exabyte.tar"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_of_tables_that_are_no_utf8_are_spelt),
        cmocka_unit_test(programs_that_claim_more_than_they_hold_are_refused),
        cmocka_unit_test(coded_payloads_that_claim_gigabytes_are_refused),
        cmocka_unit_test(blobs_that_are_not_their_digest_are_refused),
        cmocka_unit_test(packs_whose_blobs_leave_them_are_left_out),
        cmocka_unit_test(an_index_that_lies_is_found_out_at_the_bytes),
        cmocka_unit_test(index_bytes_that_are_no_index_are_not_used),
        cmocka_unit_test(a_locator_that_lies_is_not_used),
        cmocka_unit_test(tables_that_cannot_be_are_absent),
        cmocka_unit_test(entries_with_wrong_descriptors_are_no_records),
        cmocka_unit_test(tar_headers_that_claim_exabytes_end_the_scan),
    };
    return cmocka_run_group_tests(tests, make_scratch, drop_scratch);
}
