#include "cmocka_first.h"
#include "capture_sample.h"
#include "scratch_folder.h"
#include "captures/capture_reader.h"

#include <pthread.h>

static uint32_t find_name(const lb_program *p, const char *name)
{
    for (uint32_t i = 0; i < p->n_values; i++)
        if (strcmp(lb_program_text(p, p->values[i].name), name) == 0) return i;
    return LB_NONE;
}

static void check_step(lb_capture *c, int32_t rank, int64_t step)
{
    const lb_program *p;
    OK(lb_capture_program(c, rank, step, &p, &err));
    assert_int_equal(p->rank, rank);
    assert_int_equal(p->step, step);
    for (lb_dtype dtype = 1; dtype < LB_DTYPE_COUNT; dtype++) {
        char name[40];
        snprintf(name, sizeof name, "source.%s", lb_dtype_name(dtype));
        uint32_t v = find_name(p, name);
        assert_true(lb_capture_has_value(c, p, v));
        lb_tensor t;
        OK(lb_capture_value(c, p, v, &t, &err));
        unsigned seed = dtype % 2 ? dtype : (unsigned)(dtype + 100 * rank + 1000 * step);
        size_t size = lb_dtype_bytes(dtype, (size_t)lb_layout_numel(&t.layout));
        for (size_t i = 0; i < size; i++) {
            unsigned char expected = dtype == LB_BOOL ? sample_byte(seed, i) & 1 : sample_byte(seed, i);
            if (((unsigned char *)t.data)[i] != expected) fail_msg("%s: byte %zu", name, i);
        }
    }
}

static void a_folder_has_ranks_steps_values_and_tables(void **state)
{
    (void)state;
    const char *path = in_scratch("run.lb/");
    OK(sample_capture(path, 3, 2, true, &err));
    lb_capture *c;
    OK(lb_capture_open(path, &c, &err));
    const int32_t *ranks;
    const int64_t *steps;
    assert_int_equal(lb_capture_ranks(c, &ranks), 3);
    assert_int_equal(lb_capture_steps(c, &steps), 2);
    assert_true(ranks[0] == 0 && ranks[2] == 2 && steps[0] == 0 && steps[1] == 1);
    for (int32_t rank = 0; rank < 3; rank++)
        for (int64_t step = 0; step < 2; step++) check_step(c, rank, step);
    assert_string_equal(lb_capture_table(c, 1, "receipt"), "{\"rank\":1,\"levels\":[\"stats\",null,2.5]}");
    assert_null(lb_capture_table(c, 7, "receipt"));
    assert_null(lb_capture_table(c, 1, "no such"));
    const lb_program *p;
    lb_err err = LB_ERR_INIT;
    assert_int_equal(lb_capture_program(c, 1, 9, &p, &err), LB_ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, "step 9"));
    lb_capture_close(c);
}

static void what_was_given_can_be_read_after_pages_were_given_back(void **state)
{
    (void)state;
    const char *path = in_scratch("unloaded.lb/");
    OK(sample_capture(path, 1, 1, true, &err));
    lb_capture *c;
    const lb_program *p;
    lb_tensor t;
    OK(lb_capture_open(path, &c, &err));
    OK(lb_capture_program(c, 0, 0, &p, &err));
    const uint32_t v = find_name(p, "source.f32");
    OK(lb_capture_value(c, p, v, &t, &err));
    const lb_digest before = lb_digest_tensor(&t);
    lb_capture_unload(c);
    assert_true(lb_digest_equal(before, lb_digest_tensor(&t)));
    check_step(c, 0, 0);
    lb_capture_close(c);
}

static void a_program_that_was_dropped_can_be_had_again(void **state)
{
    (void)state;
    const char *path = in_scratch("dropped.lb/");
    OK(sample_capture(path, 2, 2, true, &err));
    lb_capture *c;
    OK(lb_capture_open(path, &c, &err));
    for (int round = 0; round < 2; round++)
        for (int32_t rank = 0; rank < 2; rank++) {
            check_step(c, rank, 1); /* finds slices, for which an index of the program is made */
            lb_capture_drop_program(c, rank, 1);
        }
    lb_capture_drop_program(c, 0, 0); /* one that nobody asked for, and one that is not there */
    lb_capture_drop_program(c, 7, 0);
    check_step(c, 0, 0);
    lb_capture_close(c);
}

static void a_single_archive_opens_as_a_capture(void **state)
{
    (void)state;
    OK(sample_capture(in_scratch("one.lb"), 2, 1, true, &err));
    lb_capture *c;
    OK(lb_capture_open(in_scratch("one.lb/rank-00001.tar"), &c, &err));
    check_step(c, 1, 0);
    const int32_t *ranks;
    assert_int_equal(lb_capture_ranks(c, &ranks), 1);
    lb_capture_close(c);
    char command[400]; /* a name that says nothing: the rank is taken from the program */
    snprintf(command, sizeof command, "cp %s/one.lb/rank-00001.tar %s/renamed", scratch, scratch);
    assert_int_equal(system(command), 0);
    OK(lb_capture_open(in_scratch("renamed"), &c, &err));
    check_step(c, 1, 0);
    assert_non_null(lb_capture_table(c, 1, "receipt"));
    lb_capture_close(c);
}

static void bytes_that_one_rank_lacks_are_found_at_another(void **state)
{
    (void)state;
    float data[6] = {1, 2, 3, 4, 5, 6};
    mkdir(in_scratch("shared.lb"), 0700);
    lb_writer *w;
    OK(lb_writer_open(in_scratch("shared.lb/rank-00000.tar"), NULL, &w, &err));
    OK(lb_writer_blob(w, lb_digest_bytes(data, 24), LB_F32, data, 24, &err));
    OK(lb_writer_close(w, &err));
    OK(lb_writer_open(in_scratch("shared.lb/rank-00001.tar"), NULL, &w, &err));
    lb_program *p = sample_program(0, 1, data);
    OK(lb_writer_program(w, p, &err));
    lb_program_free(p);
    OK(lb_writer_close(w, &err));
    lb_capture *c;
    OK(lb_capture_open(in_scratch("shared.lb"), &c, &err));
    const lb_program *q;
    lb_tensor t;
    OK(lb_capture_program(c, 1, 0, &q, &err));
    OK(lb_capture_value(c, q, 0, &t, &err));
    assert_memory_equal(t.data, data, 24);
    lb_err err = LB_ERR_INIT;
    assert_false(lb_capture_has_value(c, q, 2));
    assert_int_equal(lb_capture_value(c, q, 2, &t, &err), LB_ERR_NOT_CAPTURED);
    lb_capture_close(c);
}

static void a_strided_value_is_a_window_on_its_dense_range(void **state)
{
    (void)state;
    float data[40];
    for (int i = 0; i < 40; i++) data[i] = (float)i;
    lb_program *p = lb_program_new();
    lb_value v = {.dtype = LB_F32, .name = LB_NONE, .statistics = LB_NONE, .flags = LB_VALUE_KEPT};
    v.layout = (lb_layout){.ndim = 2, .offset = 7, .shape = {3, 2}, .stride = {10, 2}};
    v.blob = lb_digest_bytes(data + 7, 23 * 4); /* elements 7 … 29 */
    lb_program_add_value(p, &v);
    v.layout.shape[0] = 0; /* an empty one needs no bytes */
    v.blob = (lb_digest){0, 0};
    lb_program_add_value(p, &v);
    v.layout = (lb_layout){.ndim = 1, .offset = 0, .shape = {30}, .stride = {1}};
    v.blob = lb_digest_bytes(data + 7, 23 * 4); /* a lie: 30 elements in 92 bytes */
    lb_program_add_value(p, &v);
    mkdir(in_scratch("strided.lb"), 0700);
    lb_writer *w;
    OK(lb_writer_open(in_scratch("strided.lb/rank-00000.tar"), NULL, &w, &err));
    OK(lb_writer_blob(w, lb_digest_bytes(data + 7, 92), LB_F32, data + 7, 92, &err));
    OK(lb_writer_program(w, p, &err));
    OK(lb_writer_close(w, &err));
    lb_program_free(p);
    lb_capture *c;
    const lb_program *q;
    lb_tensor t;
    float out[6];
    OK(lb_capture_open(in_scratch("strided.lb"), &c, &err));
    OK(lb_capture_program(c, 0, 0, &q, &err));
    OK(lb_capture_value(c, q, 0, &t, &err));
    OK(lb_tensor_gather(&t, out, &err));
    float expected[6] = {7, 9, 17, 19, 27, 29};
    assert_memory_equal(out, expected, sizeof out);
    OK(lb_capture_value(c, q, 1, &t, &err));
    assert_int_equal(lb_layout_numel(&t.layout), 0);
    lb_err err = LB_ERR_INIT;
    assert_int_equal(lb_capture_value(c, q, 2, &t, &err), LB_ERR_CORRUPT);
    assert_non_null(strstr(err.message, "needs 120"));
    lb_capture_close(c);
}

static void *read_everything(void *context)
{
    lb_capture *c = context;
    for (int round = 0; round < 3; round++)
        for (int32_t rank = 0; rank < 2; rank++)
            for (int64_t step = 0; step < 2; step++) {
                const lb_program *p;
                if (lb_capture_program(c, rank, step, &p, NULL) != LB_OK) return "program";
                for (uint32_t v = 0; v < p->n_values; v++) {
                    lb_tensor t;
                    if (lb_capture_value(c, p, v, &t, NULL) != LB_OK) return "value";
                }
                if (!lb_capture_table(c, rank, "receipt")) return "table";
            }
    return NULL;
}

static void many_threads_read_at_once(void **state)
{
    (void)state;
    OK(sample_capture(in_scratch("threads.lb"), 2, 2, true, &err));
    lb_capture *c;
    OK(lb_capture_open(in_scratch("threads.lb"), &c, &err));
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) assert_int_equal(pthread_create(&threads[i], NULL, read_everything, c), 0);
    for (int i = 0; i < 8; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        if (failed) fail_msg("thread %d: %s", i, (char *)failed);
    }
    lb_capture_close(c);
}

static void what_is_no_capture_says_so(void **state)
{
    (void)state;
    lb_capture *c;
    lb_err err = LB_ERR_INIT;
    assert_int_equal(lb_capture_open(in_scratch("nothing here"), &c, &err), LB_ERR_NOT_FOUND);
    lb_err_clear(&err);
    mkdir(in_scratch("empty.lb"), 0700);
    assert_int_equal(lb_capture_open(in_scratch("empty.lb"), &c, &err), LB_ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, "rank-NNNNN.tar"));
    lb_err_clear(&err);
    write_whole(in_scratch("text"), "hello", 5);
    assert_int_equal(lb_capture_open(in_scratch("text"), &c, &err), LB_ERR_CORRUPT);
    assert_non_null(strstr(err.message, "is not a lastbit archive"));
    lb_err_clear(&err);
    write_whole(in_scratch("none"), "", 0);
    assert_int_equal(lb_capture_open(in_scratch("none"), &c, &err), LB_ERR_CORRUPT);
    char *path = lb_capture_archive_path("a/b.lb//", 12);
    assert_string_equal(path, "a/b.lb/rank-00012.tar");
    free(path);
}

/* What was asked for, and what there is instead. */
static void a_step_that_was_not_recorded_is_answered_by_those_that_were(void **state)
{
    (void)state;
    static const struct {
        int32_t ranks;
        int64_t steps, first, last;
        const char *said; /* behind the path; NULL: that nothing was recorded */
    } cases[] = {
        {1, 1, 5, 5, ": no step 5 was recorded; it has step 0 of 1 rank"},
        {2, 1, 5, 5, ": no step 5 was recorded; it has step 0 of 2 ranks"},
        {2, 3, 5, 7, ": no step from 5 to 7 was recorded; it has steps 0 to 2 of 2 ranks"},
        {1, 2, 5, INT64_MAX, ": no step from 5 on was recorded; it has steps 0 to 1 of 1 rank"},
        {1, 2, INT64_MIN, -1, ": no step up to -1 was recorded; it has steps 0 to 1 of 1 rank"},
        {1, 2, INT64_MIN, INT64_MAX, ": no step of the ranks asked for was recorded; it has steps 0 to 1 of 1 rank"},
        {1, 0, 5, 5, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[40], expected[300];
        lb_capture *c;
        lb_err err = LB_ERR_INIT;
        snprintf(name, sizeof name, "lacking-%zu.lb", i);
        OK(sample_capture(in_scratch(name), cases[i].ranks, cases[i].steps, true, &err));
        OK(lb_capture_open(in_scratch(name), &c, &err));
        const lb_status status = lb_capture_lacks(c, cases[i].first, cases[i].last, &err);
        assert_int_equal(status, cases[i].said ? LB_ERR_NOT_FOUND : LB_ERR_NOT_CAPTURED);
        snprintf(expected, sizeof expected, "%s%s", in_scratch(name), cases[i].said ? cases[i].said : ": no step was");
        if (cases[i].said)
            assert_string_equal(err.message, expected);
        else
            assert_memory_equal(err.message, expected, strlen(expected));
        lb_capture_close(c);
    }
}

/* Of the files in a folder those are archives whose names are ranks, with parts or without. */
static void names_of_archives_are_ranks_and_parts(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool is_one;
        int32_t rank;
        int64_t part;
    } names[] = {
        {"rank-00000.tar", true, 0, -1},
        {"rank-7.tar", true, 7, -1},
        {"rank-2147483647.tar", true, INT32_MAX, -1},
        {"rank-00003-00002.tar", true, 3, 2},
        {"rank-00003-4294967295.tar", true, 3, UINT32_MAX},
        {"rank-2147483648.tar", false, 0, 0},
        {"rank-99999999999999999999.tar", false, 0, 0},
        {"rank-00003-4294967296.tar", false, 0, 0},
        {"rank-00003-.tar", false, 0, 0},
        {"rank-00003-x.tar", false, 0, 0},
        {"rank--1.tar", false, 0, 0},
        {"rank-.tar", false, 0, 0},
        {"rank-+1.tar", false, 0, 0},
        {"rank- 1.tar", false, 0, 0},
        {"rank-:.tar", false, 0, 0},
        {"rank-00000.tar.draft", false, 0, 0},
        {"rank-00000.lbz", false, 0, 0},
        {"rank-00000", false, 0, 0},
        {"ring-00000.tar", false, 0, 0},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        lb_archive_name got = {-9, -9};
        const bool is_one = lb_capture_reader_parse_name(names[i].name, &got);
        if (is_one != names[i].is_one) print_error("%s\n", names[i].name);
        assert_int_equal(is_one, names[i].is_one);
        if (is_one) assert_true(got.rank == names[i].rank && got.part == names[i].part);
    }
}

/* Of what a rank wrote in several archives under one name, the last counts, once. */
static void a_table_of_several_archives_is_the_last(void **state)
{
    (void)state;
    const char *folder = in_scratch("tables.lb");
    mkdir(folder, 0700);
    for (uint32_t part = 0; part < 3; part++) {
        char table[40], name[40];
        lb_writer *w;
        char *path = lb_capture_part_path(folder, 4, part);
        OK(lb_writer_open(path, NULL, &w, &err));
        free(path);
        snprintf(table, sizeof table, "{\"part\":%u}", part);
        snprintf(name, sizeof name, "of-%u", part);
        OK(lb_writer_table(w, "receipt", table, &err));
        OK(lb_writer_table(w, name, table, &err));
        OK(lb_writer_commit(w, &err));
        OK(lb_writer_close(w, &err));
    }
    lb_capture *c;
    OK(lb_capture_open(folder, &c, &err));
    assert_string_equal(lb_capture_table(c, 4, "receipt"), "{\"part\":2}");
    assert_string_equal(lb_capture_table(c, 4, "of-0"), "{\"part\":0}");
    assert_null(lb_capture_table(c, 5, "receipt"));
    static const char *const expected[] = {"of-0", "of-1", "receipt", "of-2"};
    for (uint32_t i = 0; i < 4; i++) assert_string_equal(lb_capture_table_name(c, 4, i), expected[i]);
    assert_null(lb_capture_table_name(c, 4, 4));
    assert_null(lb_capture_table_name(c, 5, 0));
    lb_capture_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_folder_has_ranks_steps_values_and_tables),
        cmocka_unit_test(what_was_given_can_be_read_after_pages_were_given_back),
        cmocka_unit_test(a_program_that_was_dropped_can_be_had_again),
        cmocka_unit_test(a_single_archive_opens_as_a_capture),
        cmocka_unit_test(bytes_that_one_rank_lacks_are_found_at_another),
        cmocka_unit_test(a_strided_value_is_a_window_on_its_dense_range),
        cmocka_unit_test(many_threads_read_at_once),
        cmocka_unit_test(what_is_no_capture_says_so),
        cmocka_unit_test(a_step_that_was_not_recorded_is_answered_by_those_that_were),
        cmocka_unit_test(names_of_archives_are_ranks_and_parts),
        cmocka_unit_test(a_table_of_several_archives_is_the_last),
    };
    return cmocka_run_group_tests(tests, make_scratch, drop_scratch);
}
