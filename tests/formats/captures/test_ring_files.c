#define _GNU_SOURCE
#include "cmocka_first.h"
#include "capture_sample.h"
#include "scratch_folder.h"

#include <lastbit/maintenance.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

/* What opening or mapping the nth ring file fails with; 0: nothing fails. */
static int open_error, map_error, nth_failing, ring_descriptor;

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    const int mode = flags & O_CREAT ? va_arg(args, int) : 0;
    va_end(args);
    const bool ring = strstr(path, "/ring-") && !strstr(path, ".draft");
    const bool chosen = ring && (open_error || map_error) && nth_failing-- == 0;
    if (chosen && open_error) return errno = open_error, -1;
    const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    if (chosen) ring_descriptor = fd;
    return fd;
}

void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
    if (map_error && fd >= 0 && fd == ring_descriptor) return errno = map_error, MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, n, protection, flags, fd, offset);
}

/* A file of two steps, not closed, as a killed process leaves it. */
static void write_ring_file(const char *folder, uint32_t generation, int64_t first)
{
    char *path = lb_ring_file_path(folder, 0, generation);
    lb_writer *writer;
    OK(lb_writer_open(path, NULL, &writer, &err));
    for (int64_t step = first; step < first + 2; step++) OK(sample_step(writer, 0, step, &err));
    lb_writer_abandon(writer);
    free(path);
}

static const char *ring_folder(void)
{
    open_error = map_error = 0;
    const char *folder = in_scratch("run.lb");
    char command[200];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
    mkdir(folder, 0700);
    write_ring_file(folder, 4, 8);
    write_ring_file(folder, 5, 10);
    return folder;
}

static int names(const char *folder, const char *beginning)
{
    DIR *dir = opendir(folder);
    int n = 0;
    for (struct dirent *entry; (entry = readdir(dir));) n += strncmp(entry->d_name, beginning, strlen(beginning)) == 0;
    closedir(dir);
    return n;
}

static void what_was_read_whole_may_go(void **state)
{
    (void)state;
    const char *folder = ring_folder();
    uint32_t steps;
    bool whole;
    OK(lb_ring_files_assemble(folder, folder, "why", &steps, &whole, &err));
    assert_true(whole);
    assert_int_equal(steps, 4);
    assert_int_equal(names(folder, "ring-"), 2); /* that is the caller's to do */
    lb_ring_files_remove(folder, 0);
    assert_int_equal(names(folder, "ring-"), 0);
    assert_int_equal(names(folder, ""), 2 + 1);
}

static void a_file_that_cannot_be_read_now_is_a_failure_that_changes_nothing(void **state)
{
    (void)state;
    static const struct {
        int open, map;
    } errors[] = {{EMFILE, 0}, {ENFILE, 0}, {EIO, 0}, {ENOMEM, 0}, {EACCES, 0}, {0, ENOMEM}, {0, EAGAIN}};
    for (size_t e = 0; e < sizeof errors / sizeof *errors; e++)
        for (int nth = 0; nth < 2; nth++) {
            const char *folder = ring_folder();
            char *old = lb_capture_archive_path(folder, 0);
            write_whole(old, "precious", 8);
            uint32_t steps = 7;
            bool whole = true;
            lb_err err = LB_ERR_INIT;
            open_error = errors[e].open, map_error = errors[e].map, nth_failing = nth;
            const lb_status status = lb_ring_files_assemble(folder, folder, "why", &steps, &whole, &err);
            open_error = map_error = 0;
            assert_true(status == LB_ERR_IO || status == LB_ERR_NOMEM);
            assert_false(whole);
            assert_int_equal(steps, 0);
            assert_non_null(strstr(err.message, "ring-"));
            size_t n = 0;
            char *bytes = read_whole(old, &n);
            assert_int_equal(n, 8);
            free(bytes), free(old);
            assert_int_equal(names(folder, "ring-"), 2);
            assert_int_equal(names(folder, ""), 2 + 3);
        }
}

/* Assembles and takes the archive; NULL where no step was whole. */
static char *assembled(const char *folder, size_t *n, bool *whole)
{
    uint32_t steps;
    char *path = lb_capture_archive_path(folder, 0);
    unlink(path);
    OK(lb_ring_files_assemble(folder, folder, "why", &steps, whole, &err));
    char *bytes = steps ? read_whole(path, n) : NULL;
    free(path);
    return bytes;
}

static void of_a_damaged_file_the_rest_is_taken_and_it_is_not_called_whole(void **state)
{
    (void)state;
    size_t n = 0, size = 0;
    bool whole;
    const char *folder = ring_folder();
    char *sound = assembled(folder, &n, &whole), *path = lb_ring_file_path(folder, 0, 4),
         *file = read_whole(path, &size);
    int told = 0;
    for (int i = 0; i <= 40; i++) {
        const size_t place = (size_t)i * (size - 1) / 40;
        size_t n_now = 0;
        if (i < 40)
            file[place] ^= 1;
        else
            memset(file, 0, size);
        write_whole(path, file, size);
        char *now = assembled(folder, &n_now, &whole);
        told += !whole;
        if (whole && (n_now != n || memcmp(now, sound, n) != 0)) fail_msg("byte %zu is lost in silence", place);
        if (i < 40) file[place] ^= 1;
        free(now);
    }
    assert_true(told > 10); /* others hit what nothing is written in */
    assert_false(whole);
    free(sound), free(file), free(path);
}

/* What a kill cut was never committed. */
static void the_tail_of_a_killed_writer_is_no_reason_to_keep_a_file(void **state)
{
    (void)state;
    const char *folder = ring_folder();
    char *path = lb_ring_file_path(folder, 0, 5);
    FILE *file = fopen(path, "ab");
    for (int i = 0; i < 700; i++) fputc('x', file);
    fclose(file);
    uint32_t steps;
    bool whole;
    OK(lb_ring_files_assemble(folder, folder, "why", &steps, &whole, &err));
    assert_true(whole);
    assert_int_equal(steps, 4);
    free(path);
}

/* A rescue was cut off between its move and the end of its files, and the power cut took some of these: what the
 * archive holds stays. */
static void what_the_archive_holds_already_stays(void **state)
{
    (void)state;
    const char *folder = ring_folder();
    uint32_t steps;
    lb_recovery r;
    OK(lb_ring_files_assemble(folder, folder, "why", &steps, NULL, &err));
    char *newest = lb_ring_file_path(folder, 0, 5);
    assert_int_equal(truncate(newest, 5000), 0);
    OK(lb_ring_files_assemble(folder, folder, "again", &steps, NULL, &err));
    OK(lb_capture_recover(folder, in_scratch("whole.lb"), &r, &err));
    for (int i = 0; i < 2; i++) {
        lb_capture *capture;
        const int64_t *numbers;
        OK(lb_capture_open(i ? in_scratch("whole.lb") : folder, &capture, &err));
        assert_int_equal(lb_capture_steps(capture, &numbers), 4);
        for (int k = 0; k < 4; k++) assert_int_equal(numbers[k], 8 + k);
        lb_capture_close(capture);
    }
    free(newest);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_scratch, drop_scratch)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_was_read_whole_may_go),
        TEST(a_file_that_cannot_be_read_now_is_a_failure_that_changes_nothing),
        TEST(of_a_damaged_file_the_rest_is_taken_and_it_is_not_called_whole),
        TEST(the_tail_of_a_killed_writer_is_no_reason_to_keep_a_file),
        TEST(what_the_archive_holds_already_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
