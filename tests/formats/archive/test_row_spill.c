/* The writer of a run without end: what it forgets and what waits on disk is in the index all the same. */
#include "cmocka_first.h"
#include "program_sample.h"
#include "scratch_folder.h"

#include <lastbit/archive.h>
#include "base/digest_set.h"
#include <lastbit/maintenance.h>
#include <fcntl.h>
#include <sys/resource.h>

static const float sample[6] = {1, 2, 3, 4, 5, 6};

enum {
    BLOBS = 40000,
    A_COMMIT = 1000
}; /* more than four times what a writer remembers, ten times what it holds in memory */

static void put_blob(lb_writer *w, uint32_t k)
{
    OK(lb_writer_blob(w, lb_digest_bytes(&k, sizeof k), LB_U8, &k, sizeof k, &err));
}

static void find_blob(lb_archive *a, uint32_t k)
{
    const void *at;
    size_t size;
    OK(lb_archive_blob(a, lb_digest_bytes(&k, sizeof k), &at, &size, &err));
    assert_int_equal(size, sizeof k);
    assert_memory_equal(at, &k, sizeof k);
}

/* A step and a thousand blobs a commit; blob 0 is asked for in each, blob 1 again at the end. */
static void write_long_run(const char *path)
{
    lb_writer *w;
    OK(lb_writer_open(path, NULL, &w, &err));
    for (uint32_t k = 0; k < BLOBS; k++) {
        put_blob(w, k);
        if (k % A_COMMIT != A_COMMIT - 1) continue;
        put_blob(w, 0);
        lb_program *p = sample_program(k / A_COMMIT, 0, sample);
        OK(lb_writer_program(w, p, &err));
        lb_program_free(p);
        OK(lb_writer_commit(w, &err));
    }
    uint32_t first = 0, second = 1;
    assert_true(lb_writer_has_blob(w, lb_digest_bytes(&first, sizeof first)));
    assert_false(lb_writer_has_blob(w, lb_digest_bytes(&second, sizeof second))); /* so that it is stored twice */
    put_blob(w, 1);
    assert_true(lb_writer_bytes(w) > 48ull * BLOBS);
    OK(lb_writer_close(w, &err));
}

static void check_long_run(const char *path)
{
    lb_verification v;
    OK(lb_capture_verify(path, NULL, NULL, &v, &err));
    assert_int_equal(v.closed, 1);
    assert_int_equal(v.damages, 0); /* the index lists what the records hold */
    assert_int_equal(v.blobs, BLOBS);
    assert_int_equal(v.programs, BLOBS / A_COMMIT);
    lb_archive *a;
    OK(lb_archive_open(path, &a, &err));
    for (uint32_t k = 0; k < BLOBS; k += 37) find_blob(a, k);
    find_blob(a, 1);
    for (uint32_t i = 0; i < BLOBS / A_COMMIT; i++) assert_int_equal(lb_archive_step(a, i), i);
    lb_archive_close(a);
}

static void rows_that_waited_on_disk_are_in_the_index(void **state)
{
    (void)state;
    write_long_run(in_scratch("long.tar"));
    check_long_run(in_scratch("long.tar"));
}

static void they_stay_in_memory_where_no_file_can_be_opened(void **state)
{
    (void)state;
    struct rlimit before, none;
    lb_writer *w;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    OK(lb_writer_open(in_scratch("full.tar"), NULL, &w, &err));
    none = before;
    none.rlim_cur = 3;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    for (uint32_t k = 0; k < 10000; k++) {
        put_blob(w, k);
        if (k % A_COMMIT == A_COMMIT - 1) OK(lb_writer_commit(w, &err));
    }
    OK(lb_writer_close(w, &err));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    lb_verification v;
    OK(lb_capture_verify(in_scratch("full.tar"), NULL, NULL, &v, &err));
    assert_int_equal(v.closed, 1);
    assert_int_equal(v.damages, 0);
    assert_int_equal(v.blobs, 10000);
}

static void what_is_asked_for_is_remembered_and_the_rest_is_not(void **state)
{
    (void)state;
    lb_digest_memory memory = {0};
    for (uint64_t k = 1; k <= 200000; k++) {
        assert_true(lb_digest_memory_add(&memory, (lb_digest){k, k / 3}, k == 7 ? 1 << 20 : 1 << 10));
        assert_true(lb_digest_memory_has(&memory, (lb_digest){1, 0}));
        if (k % 1000 == 0) lb_digest_memory_turn(&memory);
        assert_true(memory.young.by_digest.n + memory.old.by_digest.n <= 2 * (LB_DIGESTS_REMEMBERED + 1001));
    }
    assert_true(lb_digest_memory_has(&memory, (lb_digest){200000, 200000 / 3}));
    assert_false(lb_digest_memory_has(&memory, (lb_digest){2, 0}));
    assert_true(lb_digest_memory_has(&memory, (lb_digest){7, 2})); /* the large one */
    lb_digest_memory_release(&memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_that_waited_on_disk_are_in_the_index),
        cmocka_unit_test(they_stay_in_memory_where_no_file_can_be_opened),
        cmocka_unit_test(what_is_asked_for_is_remembered_and_the_rest_is_not),
    };
    return cmocka_run_group_tests(tests, make_scratch, drop_scratch);
}
