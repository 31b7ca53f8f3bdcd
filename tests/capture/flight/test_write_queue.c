/* Records that are written while the host goes on: all of them arrive, in order, whatever the host does to its
 * bytes. */
#include "cmocka_first.h"
#include "scratch_folder.h"
#include "flight/write_queue.h"

#include <lastbit/maintenance.h>

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#if defined(__SANITIZE_THREAD__)
__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "die_after_fork=0";
}
#endif

enum { BLOBS = 300, ROOM = 100000, MOST = 120000 };

static lb_writer *open_writer(void)
{
    lb_writer_options options = LB_WRITER_OPTIONS_INIT;
    lb_writer *writer = NULL;
    lb_err err = LB_ERR_INIT;
    if (lb_writer_open(in_scratch("rank-00000.tar"), &options, &writer, &err) != LB_OK) fail_msg("%s", err.message);
    return writer;
}

static size_t fill(unsigned char *bytes, int i)
{
    const size_t size = 1 + (size_t)(i * 7919) % MOST; /* some are larger than the ring */
    for (size_t k = 0; k < size; k++) bytes[k] = (unsigned char)((k * 31 + (size_t)i * 7) >> 2);
    return size;
}

static void count(void *context, const lb_damage *damage)
{
    (void)damage;
    ++*(unsigned *)context;
}

static void every_blob_arrives_though_its_bytes_are_overwritten_at_once(void **state)
{
    (void)state;
    static unsigned char bytes[MOST];
    lb_digest digests[BLOBS];
    lb_writer *writer = open_writer();
    lb_write_queue *spool = lb_write_queue_new(writer, ROOM);
    assert_non_null(spool);
    for (int i = 0; i < BLOBS; i++) {
        const size_t size = fill(bytes, i);
        digests[i] = lb_digest_bytes(bytes, size);
        assert_false(lb_write_queue_has(spool, digests[i]));
        assert_int_equal(lb_write_queue_blob(spool, digests[i], LB_U8, bytes, size, NULL), LB_OK);
        assert_int_equal(lb_write_queue_blob(spool, digests[i], LB_U8, bytes, size, NULL), LB_OK);
        assert_true(lb_write_queue_has(spool, digests[i]));
        if (i % 50 == 49) assert_int_equal(lb_write_queue_drain(spool, NULL), LB_OK);
    }
    assert_int_equal(lb_write_queue_drain(spool, NULL), LB_OK);
    assert_true(lb_write_queue_free(spool));
    for (int i = 0; i < BLOBS; i++) assert_true(lb_writer_has_blob(writer, digests[i]));
    assert_int_equal(lb_writer_close(writer, NULL), LB_OK);
    unsigned damaged = 0;
    lb_verification result;
    assert_int_equal(lb_capture_verify(in_scratch("rank-00000.tar"), count, &damaged, &result, NULL), LB_OK);
    assert_int_equal(damaged, 0);
    assert_int_equal(result.blobs, BLOBS);
}

static void steps_arrive_in_order_and_whole(void **state)
{
    (void)state;
    enum { STEPS = 20 };
    static unsigned char bytes[MOST];
    lb_writer *writer = open_writer();
    lb_write_queue *spool = lb_write_queue_new(writer, ROOM);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 10 * step; i < 10 * step + 10; i++) {
            const size_t size = fill(bytes, i);
            assert_int_equal(lb_write_queue_blob(spool, lb_digest_bytes(bytes, size), LB_U8, bytes, size, NULL), LB_OK);
        }
        lb_program *program = lb_program_new();
        program->step = step;
        char json[40];
        snprintf(json, sizeof json, "{\"steps\": %d}", step + 1);
        assert_int_equal(lb_write_queue_program(spool, program, NULL), LB_OK);
        assert_int_equal(lb_write_queue_table(spool, "coverage", json, NULL), LB_OK);
        memset(json, 0, sizeof json);
        assert_int_equal(lb_write_queue_commit(spool, NULL), LB_OK);
    }
    assert_int_equal(lb_write_queue_drain(spool, NULL), LB_OK);

    /* Before the closing record: what is committed is what a reader has. */
    lb_capture *capture = NULL;
    assert_int_equal(lb_capture_open(in_scratch("rank-00000.tar"), &capture, NULL), LB_OK);
    const int64_t *steps = NULL;
    assert_int_equal(lb_capture_steps(capture, &steps), STEPS);
    for (int step = 0; step < STEPS; step++) assert_int_equal(steps[step], step);
    assert_string_equal(lb_capture_table(capture, 0, "coverage"), "{\"steps\":20}");
    lb_capture_close(capture);
    assert_true(lb_write_queue_free(spool));
    assert_int_equal(lb_writer_close(writer, NULL), LB_OK);
}

static void a_full_disk_is_reported_and_nothing_waits_for_ever(void **state)
{
    (void)state;
    static unsigned char bytes[MOST];
    const struct rlimit small = {300000, RLIM_INFINITY}, none = {RLIM_INFINITY, RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    lb_writer *writer = open_writer();
    lb_write_queue *spool = lb_write_queue_new(writer, ROOM);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    lb_status status = LB_OK;
    lb_err err = LB_ERR_INIT;
    for (int i = 0; i < BLOBS && status == LB_OK; i++) {
        const size_t size = fill(bytes, i);
        status = lb_write_queue_blob(spool, lb_digest_bytes(bytes, size), LB_U8, bytes, size, &err);
    }
    if (status == LB_OK) status = lb_write_queue_drain(spool, &err);
    assert_int_equal(status, LB_ERR_IO);
    assert_true(strlen(err.message) > 0);
    assert_int_equal(lb_write_queue_drain(spool, NULL), LB_ERR_IO);
    assert_int_equal(lb_write_queue_program(spool, lb_program_new(), NULL), LB_ERR_IO);
    assert_int_equal(lb_write_queue_table(spool, "coverage", "{}", NULL), LB_ERR_IO);
    assert_int_equal(lb_write_queue_commit(spool, NULL), LB_ERR_IO);
    assert_true(lb_write_queue_free(spool));
    setrlimit(RLIMIT_FSIZE, &none);
    lb_writer_abandon(writer);
}

static void a_forked_child_touches_nothing(void **state)
{
    (void)state;
    static unsigned char bytes[MOST];
    lb_writer *writer = open_writer();
    lb_write_queue *spool = lb_write_queue_new(writer, ROOM);
    const size_t size = fill(bytes, 3);
    assert_int_equal(lb_write_queue_blob(spool, lb_digest_bytes(bytes, size), LB_U8, bytes, size, NULL), LB_OK);
    pid_t child = fork();
    if (child == 0) _exit(lb_write_queue_free(spool) ? 1 : 0);
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(lb_write_queue_free(spool));
    assert_true(lb_writer_has_blob(writer, lb_digest_bytes(bytes, size)));
    assert_int_equal(lb_writer_close(writer, NULL), LB_OK);
    assert_true(lb_write_queue_free(NULL));
    assert_int_equal(lb_write_queue_drain(NULL, NULL), LB_OK);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_scratch, drop_scratch)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_blob_arrives_though_its_bytes_are_overwritten_at_once),
        TEST(steps_arrive_in_order_and_whole),
        TEST(a_full_disk_is_reported_and_nothing_waits_for_ever),
        TEST(a_forked_child_touches_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
