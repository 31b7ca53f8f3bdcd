/* What is not there and what the system refuses are two answers, and the first refusal is remembered. */
#define _GNU_SOURCE
#include "cmocka_first.h"

#include "scratch_folder.h"

#include <lastbit/input.h>

#include <errno.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* A refusal is remembered for as long as the process lives: each test has one of its own. */
static void in_a_process(void (*test)(void))
{
    const pid_t child = fork();
    if (child == 0) {
        test();
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
}

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition), _exit(1);                    \
    } while (0)

static void absent(void)
{
    struct stat st;
    lb_err err = LB_ERR_INIT;
    lb_input_names names;
    FILE *stream;
    const char *bytes;
    size_t size;
    int fd;
    CHECK(lb_input_look(in_scratch("none"), &st, &err) == LB_ERR_NOT_FOUND && strstr(err.message, "none"));
    CHECK(lb_input_open(in_scratch("none"), &fd, NULL) == LB_ERR_NOT_FOUND && fd < 0);
    CHECK(lb_input_map(in_scratch("none"), &bytes, &size, NULL) == LB_ERR_NOT_FOUND);
    CHECK(lb_input_stream(in_scratch("none"), &stream, NULL) == LB_ERR_NOT_FOUND && !stream);
    CHECK(lb_input_stream_end(NULL, "none", NULL) == LB_OK);
    CHECK(lb_input_list(in_scratch("none"), &names, NULL) == LB_ERR_NOT_FOUND && names.n == 0);
    write_whole(in_scratch("file"), "abc", 3);
    CHECK(lb_input_look(in_scratch("file/below"), &st, NULL) == LB_ERR_NOT_FOUND);
    CHECK(!lb_input_is_file(in_scratch("none")) && !lb_input_is_folder(in_scratch("file")));
    CHECK(lb_input_is_file(in_scratch("file")) && lb_input_is_folder(scratch));
    write_whole(in_scratch("empty"), "", 0);
    CHECK(lb_input_map(in_scratch("empty"), &bytes, &size, NULL) == LB_ERR_CORRUPT);
    CHECK(lb_input_map(scratch, &bytes, &size, NULL) == LB_ERR_CORRUPT);
    CHECK(lb_input_refusal(NULL) == LB_OK);
}

static void present(void)
{
    lb_input_names names;
    FILE *stream;
    const char *bytes;
    char read[8] = "";
    size_t size;
    write_whole(in_scratch("b"), "abc", 3), write_whole(in_scratch("a"), "", 0), write_whole(in_scratch(".c"), "x", 1);
    CHECK(lb_input_map(in_scratch("b"), &bytes, &size, NULL) == LB_OK && size == 3 && !memcmp(bytes, "abc", 3));
    munmap((void *)(uintptr_t)bytes, size);
    CHECK(lb_input_stream(in_scratch("b"), &stream, NULL) == LB_OK && fread(read, 1, 8, stream) == 3);
    CHECK(lb_input_stream_end(stream, "b", NULL) == LB_OK);
    CHECK(lb_input_list(scratch, &names, NULL) == LB_OK && names.n == 3);
    CHECK(!strcmp(names.rows[0], ".c") && !strcmp(names.rows[1], "a") && !strcmp(names.rows[2], "b"));
    lb_input_names_release(&names);
    CHECK(lb_input_refusal(NULL) == LB_OK);
}

static void refused(void)
{
    struct rlimit none = {0, 0};
    lb_err err = LB_ERR_INIT, again = LB_ERR_INIT;
    int fd;
    struct stat st;
    write_whole(in_scratch("file"), "abc", 3);
    const char *path = strdup(in_scratch("file"));
    setrlimit(RLIMIT_NOFILE, &none); /* no descriptor is left */
    CHECK(lb_input_open(path, &fd, &err) == LB_ERR_IO && strstr(err.message, path));
    CHECK(lb_input_look("none", &st, NULL) == LB_ERR_NOT_FOUND);
    CHECK(lb_input_refusal(&again) == LB_ERR_IO && !strcmp(again.message, err.message));
    lb_input_refuse("other", "read", EIO, NULL); /* the first stays */
    lb_err_clear(&again);
    CHECK(lb_input_refusal(&again) == LB_ERR_IO && strstr(again.message, path));
}

static void unreadable(void)
{
    FILE *stream;
    lb_err err = LB_ERR_INIT;
    char byte;
    CHECK(lb_input_stream(scratch, &stream, NULL) == LB_OK); /* a folder opens, and each read fails */
    CHECK(fread(&byte, 1, 1, stream) == 0);
    CHECK(lb_input_stream_end(stream, scratch, &err) == LB_ERR_IO && strstr(err.message, strerror(EISDIR)));
    CHECK(lb_input_refusal(NULL) == LB_ERR_IO);
}

static void what_is_not_there_is_no_refusal(void **state)
{
    (void)state;
    in_a_process(absent);
}

static void files_and_folders_are_read(void **state)
{
    (void)state;
    in_a_process(present);
}

static void the_first_refusal_is_remembered(void **state)
{
    (void)state;
    in_a_process(refused);
}

static void a_stream_that_cannot_be_read_on_has_not_ended(void **state)
{
    (void)state;
    in_a_process(unreadable);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_scratch, drop_scratch)
int main(void)
{
    const struct CMUnitTest tests[] = {TEST(what_is_not_there_is_no_refusal), TEST(files_and_folders_are_read),
                                       TEST(the_first_refusal_is_remembered),
                                       TEST(a_stream_that_cannot_be_read_on_has_not_ended)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
