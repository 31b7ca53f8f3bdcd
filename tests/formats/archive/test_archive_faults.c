/* What kills, full disks and damage do to an archive: every committed blob reads, and never wrongly.
 *
 * This program has its own writev(2), so that it can be short, interrupted or out of space at any byte. */
#include "cmocka_first.h"
#include "capture_sample.h"
#include "scratch_folder.h"

#include <errno.h>
#include <lastbit/decode_limit.h>
#include <lastbit/maintenance.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>

/* ---- a writev(2) that fails -------------------------------------------------------------------------------------- */

static struct {
    bool on, short_writes;
    uint64_t room; /* bytes until ENOSPC */
    unsigned calls;
} disk;

ssize_t writev(int fd, const struct iovec *pieces, int n)
{
    if (!disk.on) return syscall(SYS_writev, fd, pieces, n);
    size_t size = pieces[0].iov_len;
    if (disk.short_writes && ++disk.calls % 3 == 0) return errno = EINTR, -1;
    if (disk.short_writes && disk.calls % 2)
        return syscall(SYS_writev, fd, pieces, 1); /* all of the first, none of the second */
    if (disk.short_writes && size > 1) size = 1 + size * (disk.calls % 7) / 8;
    if (disk.room == 0) return errno = ENOSPC, -1;
    if (size > disk.room) size = (size_t)disk.room;
    disk.room -= size;
    return syscall(SYS_write, fd, pieces[0].iov_base, size);
}

/* ---- blobs that can be told from their number -------------------------------------------------------------------- */

static size_t blob_size(unsigned k)
{
    static const size_t sizes[] = {24, 700, 16383, 16384, 40000, 8, 131072, 64};
    return sizes[k % 8];
}

static void fill_blob(unsigned k, unsigned char *bytes)
{
    size_t n = blob_size(k);
    for (size_t i = 0; i < n; i++) bytes[i] = (unsigned char)(i * 7 + k + (i >> 8) * 3);
    memcpy(bytes, &k, sizeof k);
}

static unsigned char scratch_bytes[131072];

static lb_status write_blob(lb_writer *w, unsigned k, lb_err *err)
{
    fill_blob(k, scratch_bytes);
    return lb_writer_blob(w, lb_digest_bytes(scratch_bytes, blob_size(k)), LB_U8, scratch_bytes, blob_size(k), err);
}

/* Blobs 0 … `committed`-1 must be there, others may; none may be wrong. */
static void check_blobs(const char *path, unsigned committed, unsigned attempted)
{
    lb_archive *a;
    lb_err err = LB_ERR_INIT;
    if (lb_archive_open(path, &a, &err) != LB_OK) fail_msg("%s", err.message);
    for (unsigned k = 0; k < attempted; k++) {
        const void *bytes;
        size_t size;
        fill_blob(k, scratch_bytes);
        lb_err_clear(&err);
        lb_status status = lb_archive_blob(a, lb_digest_bytes(scratch_bytes, blob_size(k)), &bytes, &size, &err);
        if (status == LB_ERR_NOT_CAPTURED && k >= committed) continue;
        if (status != LB_OK) fail_msg("blob %u of %u committed: %s", k, committed, err.message);
        assert_int_equal(size, blob_size(k));
        assert_memory_equal(bytes, scratch_bytes, size);
    }
    lb_archive_close(a);
}

/* ---- SIGKILL ----------------------------------------------------------------------------------------------------- */

typedef struct progress {
    volatile unsigned opened, attempted, committed, commits;
} progress;

static void write_until_killed(const char *path, progress *p)
{
    lb_writer *w;
    if (lb_writer_open(path, NULL, &w, NULL) != LB_OK) _exit(1);
    p->opened = 1;
    for (unsigned k = 0;; k++) {
        p->attempted = k + 1;
        if (write_blob(w, k, NULL) != LB_OK) _exit(2);
        if (k % 5 != 4) continue;
        if (lb_writer_commit(w, NULL) != LB_OK) _exit(3);
        p->committed = k + 1;
        p->commits++;
    }
}

/* Plain tar lists at least what was committed; a cut entry at the end may make it complain. */
static void check_tar_lists(const char *path, unsigned commits)
{
    char command[256], line[256];
    unsigned listed = 0;
    snprintf(command, sizeof command, "tar -tf '%s' 2>/dev/null", path);
    FILE *tar = popen(command, "r");
    while (fgets(line, sizeof line, tar)) listed += strncmp(line, "commit/", 7) == 0;
    pclose(tar);
    assert_true(listed >= commits + 1); /* and the one of the head */
}

static void a_writer_killed_at_any_moment_leaves_every_committed_blob(void **state)
{
    (void)state;
    const char *kills_text = getenv("LASTBIT_KILLS");
    unsigned kills = kills_text ? (unsigned)atoi(kills_text) : 300;
    progress *p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    unsigned total = 0;
    srand(11);
    for (unsigned round = 0; round < kills; round++) {
        const char *path = in_scratch("killed.tar");
        unlink(path);
        memset((void *)p, 0, sizeof *p);
        pid_t child = fork();
        if (child == 0) write_until_killed(path, p);
        while (!p->opened && waitpid(child, NULL, WNOHANG) == 0) sched_yield();
        nanosleep(&(struct timespec){0, rand() % 4000000}, NULL);
        kill(child, SIGKILL);
        int status;
        waitpid(child, &status, 0);
        assert_true(WIFSIGNALED(status));
        total += p->committed;
        check_blobs(path, p->committed, p->attempted);
        if (round % 10 == 0) check_tar_lists(path, p->commits);
    }
    munmap((void *)p, sizeof *p);
    assert_true(total > kills); /* otherwise nothing was tested */
}

static void what_a_kill_left_is_recovered_with_more_than_the_commits(void **state)
{
    (void)state;
    lb_writer *w;
    OK(lb_writer_open(in_scratch("left.tar"), NULL, &w, &err));
    for (unsigned k = 0; k < 8; k++) OK(write_blob(w, k, &err));
    OK(lb_writer_commit(w, &err));
    OK(write_blob(w, 14, &err)); /* 128 KiB: an entry of its own, written at once */
    OK(write_blob(w, 11, &err)); /* writes the end of the one before */
    size_t n = 0;
    char *bytes = read_whole(in_scratch("left.tar"), &n);
    write_whole(in_scratch("left2.tar"), bytes, n);
    free(bytes);
    lb_writer_abandon(w);
    lb_recovery r;
    OK(lb_capture_recover(in_scratch("left2.tar"), in_scratch("found.tar"), &r, &err));
    assert_true(r.blobs >= 9); /* 14, and 11 if its bytes were written with its header */
    assert_int_equal(r.salvaged, r.blobs - 8);
    assert_int_equal(r.lost_blobs, 0);
    check_blobs(in_scratch("found.tar"), 8, 8);
    lb_verification v;
    OK(lb_capture_verify(in_scratch("found.tar"), NULL, NULL, &v, &err));
    assert_true(v.closed == 1 && v.damages == 0 && v.blobs == r.blobs);
    assert_int_equal(lb_capture_recover(in_scratch("left2.tar"), in_scratch("found.tar"), &r, NULL), LB_ERR_EXISTS);
}

/* ---- disks ------------------------------------------------------------------------------------------------------- */

/* Writes `blobs`, committing every third, until something fails. The archive must be whole up to the last good
 * commit. */
static bool write_until_full(const char *path, unsigned blobs, unsigned *committed)
{
    lb_writer *w;
    lb_err err = LB_ERR_INIT;
    *committed = 0;
    if (lb_writer_open(path, NULL, &w, &err) != LB_OK) {
        assert_int_equal(err.status, LB_ERR_IO);
        assert_int_not_equal(access(path, F_OK), 0); /* no head: no file */
        return false;
    }
    lb_status status = LB_OK;
    for (unsigned k = 0; k < blobs && status == LB_OK; k++) {
        status = write_blob(w, k, &err);
        if (k % 3 != 2 || status != LB_OK) continue;
        status = lb_writer_commit(w, &err);
        if (status == LB_OK) *committed = k + 1;
    }
    if (status != LB_OK) {
        assert_int_equal(status, LB_ERR_IO);
        assert_non_null(strstr(err.message, path));
        assert_int_equal(lb_writer_table(w, "late", "{}", NULL), LB_ERR_IO); /* dead stays dead */
    }
    lb_status closed = lb_writer_close(w, NULL);
    if (status == LB_OK && closed == LB_OK) *committed = blobs;
    return true;
}

static void a_disk_that_is_full_at_any_byte_leaves_a_whole_archive(void **state)
{
    (void)state;
    unsigned committed, complete = 0;
    for (uint64_t room = 0; room < 520000; room += room < 9000 ? 97 : 2713) {
        unlink(in_scratch("full.tar"));
        disk.on = true;
        disk.room = room;
        bool opened = write_until_full(in_scratch("full.tar"), 12, &committed);
        disk.on = false;
        if (!opened) continue;
        check_blobs(in_scratch("full.tar"), committed, 12);
        complete += committed == 12;
        char command[200]; /* cut back to its last commit: tar has nothing to complain about */
        snprintf(command, sizeof command, "tar -tf '%s' > /dev/null 2>&1", in_scratch("full.tar"));
        if (room % 3 == 0) assert_int_equal(system(command), 0);
    }
    assert_true(complete > 0); /* the last rounds had room enough */
}

static void short_and_interrupted_writes_change_nothing(void **state)
{
    (void)state;
    unsigned committed;
    write_until_full(in_scratch("plain.tar"), 30, &committed);
    disk.on = disk.short_writes = true;
    disk.room = UINT64_MAX;
    write_until_full(in_scratch("short.tar"), 30, &committed);
    disk.on = disk.short_writes = false;
    assert_int_equal(committed, 30);
    size_t n = 0, m = 0;
    char *x = read_whole(in_scratch("plain.tar"), &n), *y = read_whole(in_scratch("short.tar"), &m);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x), free(y);
}

static void a_file_size_limit_is_an_error_and_no_signal(void **state)
{
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        struct rlimit limit = {200000, 200000};
        setrlimit(RLIMIT_FSIZE, &limit);
        unsigned committed;
        bool opened = write_until_full(in_scratch("limited.tar"), 100, &committed);
        _exit(opened && committed > 0 && committed < 100 ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status)); /* SIGXFSZ would have killed it */
    assert_int_equal(WEXITSTATUS(status), 0);
    check_blobs(in_scratch("limited.tar"), 3, 100);
}

/* ---- fork -------------------------------------------------------------------------------------------------------- */

static void a_forked_child_that_abandons_its_copy_writes_nothing(void **state)
{
    (void)state;
    lb_writer *w;
    OK(lb_writer_open(in_scratch("forked.tar"), NULL, &w, &err));
    for (unsigned k = 0; k < 6; k++) OK(write_blob(w, k, &err)); /* some wait in memory */
    pid_t child = fork();
    if (child == 0) {
        lb_writer_abandon(w);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    for (unsigned k = 6; k < 12; k++) OK(write_blob(w, k, &err));
    OK(lb_writer_close(w, &err));
    check_blobs(in_scratch("forked.tar"), 12, 12);
    lb_verification v;
    OK(lb_capture_verify(in_scratch("forked.tar"), NULL, NULL, &v, &err));
    assert_int_equal(v.damages, 0);
}

/* ---- damage ------------------------------------------------------------------------------------------------------ */

/* Reads whatever is there; false results are failures, errors are fine but must say where. */
static void survive(const char *path)
{
    lb_archive *a;
    lb_err err = LB_ERR_INIT;
    if (lb_archive_open(path, &a, &err) != LB_OK) {
        assert_non_null(strstr(err.message, path));
        assert_true(strstr(err.message, "offset") || err.status == LB_ERR_VERSION);
        return;
    }
    for (unsigned k = 0; k < 12; k++) {
        const void *bytes;
        size_t size;
        fill_blob(k, scratch_bytes);
        lb_err_clear(&err);
        lb_status status = lb_archive_blob(a, lb_digest_bytes(scratch_bytes, blob_size(k)), &bytes, &size, &err);
        if (status == LB_OK) {
            assert_int_equal(size, blob_size(k));
            assert_memory_equal(bytes, scratch_bytes, size);
        } else {
            assert_non_null(strstr(err.message, path));
        }
    }
    for (uint32_t i = 0; i < lb_archive_programs(a); i++) {
        const lb_program *p;
        lb_err_clear(&err);
        if (lb_archive_program(a, i, &p, &err) == LB_OK)
            assert_int_equal(lb_program_validate(p, NULL), LB_OK);
        else
            assert_non_null(strstr(err.message, "offset"));
    }
    lb_archive_table(a, "receipt");
    lb_archive_close(a);
}

static char *damaged_sample(size_t *n)
{
    lb_writer *w;
    unlink(in_scratch("sample.tar"));
    OK(lb_writer_open(in_scratch("sample.tar"), NULL, &w, &err));
    for (unsigned k = 0; k < 12; k++) OK(write_blob(w, k, &err));
    OK(lb_writer_commit(w, &err));
    OK(sample_step(w, 0, 0, &err));
    OK(lb_writer_table(w, "receipt", "{\"a\":[1,2,3]}", &err));
    OK(lb_writer_close(w, &err));
    return read_whole(in_scratch("sample.tar"), n);
}

static void count_damage(void *context, const lb_damage *damage)
{
    assert_non_null(strstr(damage->message, damage->file));
    ++*(unsigned *)context;
}

static void a_file_cut_anywhere_reads_what_is_left(void **state)
{
    (void)state;
    size_t n = 0;
    char *bytes = damaged_sample(&n);
    srand(5);
    for (int round = 0; round < 400; round++) {
        size_t cut = round < 40 ? n - (size_t)round * 128 - 1 : (size_t)rand() % n;
        write_whole(in_scratch("cut.tar"), bytes, cut);
        survive(in_scratch("cut.tar"));
    }
    free(bytes);
}

static void what_was_in_flight_when_the_writer_died_is_no_damage(void **state)
{
    (void)state;
    lb_writer *w;
    size_t first = 0, n = 0;
    OK(lb_writer_open(in_scratch("flight.tar"), NULL, &w, &err));
    for (unsigned k = 0; k < 12; k++) {
        OK(write_blob(w, k, &err));
        OK(sample_step(w, 0, k, &err));
        OK(lb_writer_commit(w, &err));
        if (k == 0) free(read_whole(in_scratch("flight.tar"), &first));
    }
    char *bytes = read_whole(in_scratch("flight.tar"), &n);
    srand(7);
    for (int round = 0; round < 500; round++) {
        const size_t cut = first + (size_t)rand() % (n - first);
        lb_verification v;
        unsigned found = 0;
        write_whole(in_scratch("cut.tar"), bytes, cut);
        OK(lb_capture_verify(in_scratch("cut.tar"), count_damage, &found, &v, &err));
        if (found || !v.programs)
            fail_msg("cut at %zu of %zu bytes: %u damages, %u programs", cut, n, found, (unsigned)v.programs);
    }
    free(bytes);
    OK(lb_writer_close(w, &err));
}

static void a_flipped_bit_is_never_believed(void **state)
{
    (void)state;
    size_t n = 0;
    char *bytes = damaged_sample(&n);
    srand(6);
    unsigned seen = 0, flips = 600;
    for (unsigned round = 0; round < flips; round++) {
        /* Payload bytes dwarf the rest: a third of the flips goes to the last 20 KB, where index and locator are. */
        size_t at = round % 3 == 0 ? n - 1 - (size_t)rand() % 20000 : (size_t)rand() % n;
        bytes[at] ^= (char)(1 << rand() % 8);
        write_whole(in_scratch("flip.tar"), bytes, n);
        survive(in_scratch("flip.tar"));
        lb_verification v;
        lb_err err = LB_ERR_INIT;
        unsigned found = 0;
        lb_status status = lb_capture_verify(in_scratch("flip.tar"), count_damage, &found, &v, &err);
        seen += status != LB_OK || found > 0;
        char *again = read_whole(in_scratch("sample.tar"), &n);
        free(bytes);
        bytes = again;
    }
    /* Flips in padding, zero blocks and unused header fields change nothing; the rest is found. */
    if (seen < flips * 8 / 10) fail_msg("only %u of %u flips were found", seen, flips);
    free(bytes);
}

/* A table that could not be read for want of memory or by a limit is not one that is not there. */
static void a_table_that_is_refused_ends_the_opening(void **state)
{
    (void)state;
    enum { SIZE = 1 << 20 };
    char *text = malloc(SIZE + 3);
    lb_writer *w;
    lb_archive *a;
    lb_packing packed;
    lb_err why = LB_ERR_INIT;
    assert_non_null(text);
    text[0] = '"', memset(text + 1, 'x', SIZE), memcpy(text + 1 + SIZE, "\"", 2);
    unlink(in_scratch("table.tar")), unlink(in_scratch("table.lbz"));
    OK(lb_writer_open(in_scratch("table.tar"), NULL, &w, &err));
    OK(sample_step(w, 0, 0, &err));
    OK(lb_writer_table(w, "receipt", text, &err));
    OK(lb_writer_close(w, &err));
    OK(lb_capture_pack(in_scratch("table.tar"), in_scratch("table.lbz"), NULL, &packed, &err));
    OK(lb_archive_open(in_scratch("table.lbz"), &a, &err));
    assert_non_null(lb_archive_table(a, "pack"));
    assert_null(lb_archive_table(a, "no such"));
    lb_archive_close(a);
    lb_decode_limit_set(1000, 1);
    assert_int_equal(lb_archive_open(in_scratch("table.lbz"), &a, &why), LB_ERR_LIMIT);
    assert_non_null(strstr(why.message, "table 'receipt'"));
    lb_decode_limit_set(LB_DECODE_LIMIT_ROOM, LB_DECODE_LIMIT_RATIO);
    free(text);
}

static void a_destroyed_region_costs_only_itself(void **state)
{
    (void)state;
    size_t n = 0;
    char *bytes = damaged_sample(&n);
    memset(bytes + 60000, 0xa5, 9000); /* headers and payloads in the middle */
    write_whole(in_scratch("hole.tar"), bytes, n);
    free(bytes);
    survive(in_scratch("hole.tar"));
    lb_verification v;
    unsigned found = 0;
    OK(lb_capture_verify(in_scratch("hole.tar"), count_damage, &found, &v, &err));
    assert_true(found > 0 && v.damages == found);
    lb_recovery r;
    OK(lb_capture_recover(in_scratch("hole.tar"), in_scratch("rest.tar"), &r, &err));
    assert_true(r.blobs > 20 && r.programs == 1 && r.tables == 1);
    assert_true(r.lost_blobs + r.places > 0);
    OK(lb_capture_verify(in_scratch("rest.tar"), NULL, NULL, &v, &err));
    assert_int_equal(v.damages, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_writer_killed_at_any_moment_leaves_every_committed_blob),
        cmocka_unit_test(what_a_kill_left_is_recovered_with_more_than_the_commits),
        cmocka_unit_test(a_disk_that_is_full_at_any_byte_leaves_a_whole_archive),
        cmocka_unit_test(short_and_interrupted_writes_change_nothing),
        cmocka_unit_test(a_file_size_limit_is_an_error_and_no_signal),
        cmocka_unit_test(a_forked_child_that_abandons_its_copy_writes_nothing),
        cmocka_unit_test(a_file_cut_anywhere_reads_what_is_left),
        cmocka_unit_test(what_was_in_flight_when_the_writer_died_is_no_damage),
        cmocka_unit_test(a_flipped_bit_is_never_believed),
        cmocka_unit_test(a_table_that_is_refused_ends_the_opening),
        cmocka_unit_test(a_destroyed_region_costs_only_itself),
    };
    return cmocka_run_group_tests(tests, make_scratch, drop_scratch);
}
