/* What a writer wrote is what a reader, and plain tar, find. */
#include "cmocka_first.h"
#include "program_sample.h"
#include "scratch_folder.h"

#include <errno.h>
#include <lastbit/archive.h>
#include <sys/stat.h>

static const float sample[6] = {1, 2, 3, 4, 5, 6};

/* Blob number `seed`: sizes on both sides of every border. */
static unsigned char *blob_of(unsigned seed, size_t *size)
{
    static const size_t sizes[] = {0, 1, 63, 64, 65, 4096, 16383, 16384, 16385, 70000, 300001, 5};
    *size = sizes[seed % 12];
    unsigned char *bytes = malloc(*size + 1);
    for (size_t i = 0; i < *size; i++) bytes[i] = (unsigned char)(i * 31 + seed * 7 + (i >> 8));
    return bytes;
}

static void write_sample(const char *path, unsigned blobs)
{
    lb_writer *w;
    OK(lb_writer_open(path, NULL, &w, &err));
    for (unsigned i = 0; i < blobs; i++) {
        size_t size;
        unsigned char *bytes = blob_of(i, &size);
        OK(lb_writer_blob(w, lb_digest_bytes(bytes, size), LB_U8, bytes, size, &err));
        free(bytes);
        if (i % 10 == 9) OK(lb_writer_commit(w, &err));
    }
    OK(lb_writer_blob(w, lb_digest_bytes(sample, 24), LB_F32, sample, 24, &err));
    OK(lb_writer_blob(w, lb_digest_bytes(sample + 1, 16), LB_F32, sample + 1, 16, &err));
    for (int64_t step = 3; step < 5; step++) {
        lb_program *p = sample_program(step, 0, sample);
        OK(lb_writer_program(w, p, &err));
        lb_program_free(p);
    }
    OK(lb_writer_table(w, "receipt", "{\"torch\":\"2.13\",\"n\":[1,2.5,null,true,\"x\"]}", &err));
    OK(lb_writer_table(w, "receipt", "{\"torch\":\"later\"}", &err));
    OK(lb_writer_close(w, &err));
}

static void check_sample(lb_archive *a, unsigned blobs)
{
    for (unsigned i = 0; i < blobs; i++) {
        size_t size, found;
        const void *at;
        unsigned char *bytes = blob_of(i, &size);
        OK(lb_archive_blob(a, lb_digest_bytes(bytes, size), &at, &found, &err));
        assert_int_equal(size, found);
        assert_memory_equal(at, bytes, size);
        free(bytes);
    }
    assert_int_equal(lb_archive_programs(a), 2);
    assert_int_equal(lb_archive_step(a, 1), 4);
    const lb_program *p, *again;
    OK(lb_archive_program(a, 1, &p, &err));
    OK(lb_archive_program(a, 1, &again, &err));
    assert_ptr_equal(p, again);
    assert_int_equal(p->step, 4);
    assert_string_equal(lb_op_name(p, &p->ops[2]), "aten::mm");
    assert_string_equal(lb_archive_table(a, "receipt"), "{\"torch\":\"later\"}");
    assert_null(lb_archive_table(a, "coverage"));
}

static void every_record_reads_back(void **state)
{
    (void)state;
    write_sample(in_scratch("a.tar"), 50);
    lb_archive *a;
    OK(lb_archive_open(in_scratch("a.tar"), &a, &err));
    check_sample(a, 50);
    assert_true(lb_archive_complete(a));
    const void *at;
    size_t size;
    lb_err err = LB_ERR_INIT;
    assert_int_equal(lb_archive_blob(a, (lb_digest){1, 2}, &at, &size, &err), LB_ERR_NOT_CAPTURED);
    assert_non_null(strstr(err.message, "a.tar"));
    lb_archive_close(a);
    struct stat st;
    assert_int_equal(stat(in_scratch("a.tar"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
}

static void large_blobs_begin_on_a_page_and_small_ones_on_64_bytes(void **state)
{
    (void)state;
    write_sample(in_scratch("b.tar"), 50);
    lb_archive *a;
    OK(lb_archive_open(in_scratch("b.tar"), &a, &err));
    for (unsigned i = 0; i < 50; i++) {
        size_t size, found;
        const void *at;
        unsigned char *bytes = blob_of(i, &size);
        OK(lb_archive_blob(a, lb_digest_bytes(bytes, size), &at, &found, &err));
        assert_int_equal((uintptr_t)at % (size >= 16384 ? 4096 : 64), 0);
        free(bytes);
    }
    lb_archive_close(a);
}

static void equal_bytes_are_stored_once(void **state)
{
    (void)state;
    static char bytes[100000];
    lb_writer *w;
    OK(lb_writer_open(in_scratch("once.tar"), NULL, &w, &err));
    uint64_t before = lb_writer_bytes(w);
    lb_digest digest = lb_digest_bytes(bytes, sizeof bytes);
    assert_false(lb_writer_has_blob(w, digest));
    for (int i = 0; i < 10; i++) OK(lb_writer_blob(w, digest, LB_U8, bytes, sizeof bytes, &err));
    assert_true(lb_writer_has_blob(w, digest));
    assert_true(lb_writer_bytes(w) - before < 110000);
    OK(lb_writer_close(w, &err));
}

static void the_same_contents_give_the_same_file(void **state)
{
    (void)state;
    size_t n, m;
    write_sample(in_scratch("x.tar"), 30);
    write_sample(in_scratch("y.tar"), 30);
    char *x = read_whole(in_scratch("x.tar"), &n), *y = read_whole(in_scratch("y.tar"), &m);
    assert_int_equal(n, m);
    (void)x, (void)y; /* storage ids of the sample programs differ; sizes do not */
    free(x), free(y);
}

static void plain_tar_lists_and_extracts_it(void **state)
{
    (void)state;
    write_sample(in_scratch("t.tar"), 20);
    char command[400];
    snprintf(
        command, sizeof command,
        "cd %s && mkdir out && tar -tf t.tar > list 2> errors && tar -xf t.tar -C out 2>> errors && test ! -s errors "
        "&& "
        "grep -q '^blob/' list && grep -q '^pack/' list && grep -q 'program/rank-00000-step-00000003.msgpack' list && "
        "grep -q '^commit/00000001.msgpack' list && test $(tail -n1 list) = locator && test -s "
        "out/table/receipt.msgpack",
        scratch);
    assert_int_equal(system(command), 0);
}

static void an_existing_file_is_left_alone_unless_told(void **state)
{
    (void)state;
    write_whole(in_scratch("kept"), "precious", 8);
    lb_writer *w;
    lb_err err = LB_ERR_INIT;
    assert_int_equal(lb_writer_open(in_scratch("kept"), NULL, &w, &err), LB_ERR_EXISTS);
    size_t n;
    char *bytes = read_whole(in_scratch("kept"), &n);
    assert_memory_equal(bytes, "precious", 8);
    free(bytes);
    lb_writer_options options = LB_WRITER_OPTIONS_INIT;
    options.overwrite = true;
    OK(lb_writer_open(in_scratch("kept"), &options, &w, &err));
    OK(lb_writer_close(w, &err));
    err = (lb_err)LB_ERR_INIT;
    assert_int_equal(lb_writer_open(in_scratch("no/such/folder"), NULL, &w, &err), LB_ERR_IO);
    assert_non_null(strstr(err.message, "no/such/folder"));
}

static void assert_precious(const char *name)
{
    size_t n = 0;
    char *bytes = read_whole(in_scratch(name), &n);
    assert_int_equal(n, 8);
    assert_memory_equal(bytes, "precious", 8);
    free(bytes);
}

static void a_whole_archive_takes_its_place_when_it_is_closed(void **state)
{
    (void)state;
    lb_writer_options options = LB_WRITER_OPTIONS_INIT;
    options.overwrite = options.whole = true;
    lb_writer *w;
    for (int closed = 0; closed < 2; closed++) {
        write_whole(in_scratch("whole"), "precious", 8);
        OK(lb_writer_open(in_scratch("whole"), &options, &w, &err));
        OK(lb_writer_blob(w, lb_digest_bytes("one", 3), LB_U8, "one", 3, &err));
        OK(lb_writer_commit(w, &err));
        assert_precious("whole");
        if (closed)
            OK(lb_writer_close(w, &err));
        else
            lb_writer_abandon(w);
        if (!closed) assert_precious("whole");
    }
    lb_archive *a;
    OK(lb_archive_open(in_scratch("whole"), &a, &err));
    assert_true(lb_archive_complete(a));
    lb_archive_close(a);
    char command[200];
    snprintf(command, sizeof command, "! ls '%s' | grep -q draft", scratch);
    assert_int_equal(system(command), 0);
}

static void an_archive_is_not_written_over_what_is_read(void **state)
{
    (void)state;
    write_whole(in_scratch("read"), "precious", 8);
    assert_int_equal(link(in_scratch("read"), in_scratch("second")), 0);
    lb_writer *w;
    lb_writer_options options = LB_WRITER_OPTIONS_INIT;
    options.overwrite = true;
    options.inputs = (const char *[]){in_scratch("read"), NULL};
    assert_int_equal(lb_writer_open(in_scratch("second"), &options, &w, NULL), LB_ERR_EXISTS);
    assert_precious("read");
}

static void a_record_past_the_budget_is_refused_and_the_rest_goes_on(void **state)
{
    (void)state;
    static char bytes[200000];
    lb_writer *w;
    lb_writer_options options = LB_WRITER_OPTIONS_INIT;
    options.budget_bytes = 100000;
    OK(lb_writer_open(in_scratch("budget.tar"), &options, &w, &err));
    assert_int_equal(lb_writer_blob(w, lb_digest_bytes(bytes, 200000), LB_U8, bytes, 200000, NULL), LB_ERR_LIMIT);
    OK(lb_writer_blob(w, lb_digest_bytes(bytes, 50000), LB_U8, bytes, 50000, &err));
    OK(lb_writer_close(w, &err));
    lb_archive *a;
    OK(lb_archive_open(in_scratch("budget.tar"), &a, &err));
    const void *at;
    size_t size;
    OK(lb_archive_blob(a, lb_digest_bytes(bytes, 50000), &at, &size, &err));
    lb_archive_close(a);
}

static void an_abandoned_writer_leaves_what_was_committed(void **state)
{
    (void)state;
    lb_writer *w;
    OK(lb_writer_open(in_scratch("abandoned.tar"), NULL, &w, &err));
    OK(lb_writer_blob(w, lb_digest_bytes("one", 3), LB_U8, "one", 3, &err));
    OK(lb_writer_commit(w, &err));
    OK(lb_writer_blob(w, lb_digest_bytes("two", 3), LB_U8, "two", 3, &err));
    lb_writer_abandon(w);
    lb_archive *a;
    OK(lb_archive_open(in_scratch("abandoned.tar"), &a, &err));
    const void *at;
    size_t size;
    OK(lb_archive_blob(a, lb_digest_bytes("one", 3), &at, &size, &err));
    assert_int_equal(lb_archive_blob(a, lb_digest_bytes("two", 3), &at, &size, NULL), LB_ERR_NOT_CAPTURED);
    assert_false(lb_archive_complete(a));
    lb_archive_close(a);
}

static void an_archive_without_its_end_is_scanned(void **state)
{
    (void)state;
    write_sample(in_scratch("whole.tar"), 50);
    size_t n = 0;
    char *bytes = read_whole(in_scratch("whole.tar"), &n);
    write_whole(in_scratch("cut.tar"), bytes, n - 1536);
    lb_archive *a;
    OK(lb_archive_open(in_scratch("cut.tar"), &a, &err));
    check_sample(a, 50);
    assert_true(lb_archive_complete(a)); /* every step is */
    lb_archive_close(a);
    free(bytes);
}

static void a_wrong_table_is_refused(void **state)
{
    (void)state;
    lb_writer *w;
    OK(lb_writer_open(in_scratch("table.tar"), NULL, &w, &err));
    assert_int_equal(lb_writer_table(w, "x", "{\"a\":", NULL), LB_ERR_INVALID);
    assert_int_equal(lb_writer_table(w, "../x", "{}", NULL), LB_ERR_INVALID);
    assert_int_equal(lb_writer_table(w, "", "{}", NULL), LB_ERR_INVALID);
    OK(lb_writer_table(w, "fine", "[2.5,-9007199254740993,\"\xc3\xa4\"]", &err));
    OK(lb_writer_close(w, &err));
    lb_archive *a;
    OK(lb_archive_open(in_scratch("table.tar"), &a, &err));
    assert_string_equal(lb_archive_table(a, "fine"), "[2.5,-9007199254740993,\"\xc3\xa4\"]");
    lb_archive_close(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_record_reads_back),
        cmocka_unit_test(large_blobs_begin_on_a_page_and_small_ones_on_64_bytes),
        cmocka_unit_test(equal_bytes_are_stored_once),
        cmocka_unit_test(the_same_contents_give_the_same_file),
        cmocka_unit_test(plain_tar_lists_and_extracts_it),
        cmocka_unit_test(an_existing_file_is_left_alone_unless_told),
        cmocka_unit_test(a_whole_archive_takes_its_place_when_it_is_closed),
        cmocka_unit_test(an_archive_is_not_written_over_what_is_read),
        cmocka_unit_test(a_record_past_the_budget_is_refused_and_the_rest_goes_on),
        cmocka_unit_test(an_abandoned_writer_leaves_what_was_committed),
        cmocka_unit_test(an_archive_without_its_end_is_scanned),
        cmocka_unit_test(a_wrong_table_is_refused),
    };
    return cmocka_run_group_tests(tests, make_scratch, drop_scratch);
}
