#include "cmocka_first.h"
#include "capture_sample.h"
#include "scratch_folder.h"

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
    };
    return cmocka_run_group_tests(tests, make_scratch, drop_scratch);
}
