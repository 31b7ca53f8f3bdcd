/* Running a child: exit codes, the environment it gets, what its shims noted. */
#include "cmocka_first.h"
#include "launch/launch.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int run(const char *script)
{
    const char *argv[] = {"sh", "-c", script, NULL};
    int code = -1;
    lb_err err = LB_ERR_INIT;
    assert_int_equal(lb_launch_run(argv, &code, &err), LB_OK);
    return code;
}

static void exit_code_is_the_childs(void **state)
{
    (void)state;
    assert_int_equal(run("exit 0"), 0);
    assert_int_equal(run("exit 77"), 77);
    assert_int_equal(run("kill -KILL $$"), 128 + SIGKILL);
}

static void missing_program_is_127_and_says_which(void **state)
{
    (void)state;
    const char *argv[] = {"no-such-program", NULL};
    int code = -1;
    lb_err err = LB_ERR_INIT;
    assert_int_equal(lb_launch_run(argv, &code, &err), LB_ERR_IO);
    assert_int_equal(code, 127);
    assert_non_null(strstr(err.message, "no-such-program"));
}

static void signal_handlers_are_as_before(void **state)
{
    (void)state;
    struct sigaction before, after;
    signal(SIGHUP, SIG_IGN);
    sigaction(SIGTERM, NULL, &before);
    /* What is ignored here stays ignored in the child, as under nohup. */
    assert_int_equal(run("kill -HUP $$; exit 5"), 5);
    sigaction(SIGTERM, NULL, &after);
    assert_true(before.sa_handler == after.sa_handler);
    signal(SIGHUP, SIG_DFL);
}

static void shim_comes_first_and_package_last(void **state)
{
    (void)state;
    lb_launch launch = {
        .python = (char *)"/package", .shim = (char *)"/package/lastbit/launch", .library = (char *)"/x.so"};
    lb_err err = LB_ERR_INIT;
    setenv("PYTHONPATH", "/a:/b", 1);
    assert_int_equal(lb_launch_environment(&launch, &err), LB_OK);
    assert_string_equal(getenv("PYTHONPATH"), "/package/lastbit/launch:/a:/b:/package");
    assert_string_equal(getenv("LASTBIT_LIB"), "/x.so");
    unsetenv("PYTHONPATH");
    assert_int_equal(lb_launch_environment(&launch, &err), LB_OK);
    assert_string_equal(getenv("PYTHONPATH"), "/package/lastbit/launch:/package");
}

static void parts_that_are_not_there_are_named(void **state)
{
    (void)state;
    lb_launch launch;
    lb_err err = LB_ERR_INIT;
    assert_int_equal(lb_launch_find("/no/such/folder", &launch, &err), LB_ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, "LASTBIT_PYTHON"));
    lb_launch_release(&launch);
    lb_err_clear(&err);
    setenv("LASTBIT_LIB", "/no/such/library.so", 1);
    assert_int_equal(lb_launch_find(LB_SOURCE_DIR "/capture", &launch, &err), LB_ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, "LASTBIT_LIB"));
    lb_launch_release(&launch);
    lb_err_clear(&err);
    setenv("LASTBIT_LIB", "/proc/self/exe", 1);
    assert_int_equal(lb_launch_find(LB_SOURCE_DIR "/capture", &launch, &err), LB_OK);
    assert_string_equal(launch.shim, LB_SOURCE_DIR "/capture/lastbit/launch");
    lb_launch_release(&launch);
}

static void write_note(const char *folder, const char *name, const char *text)
{
    char path[64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void step_of_a_process_is_no_line_about_communicators(void **state)
{
    (void)state;
    char folder[] = "/tmp/lastbit-test-XXXXXX", path[64];
    static const char *const names[] = {"launch.123.at", "launch.nccl.at"};
    lb_launch_report report;
    assert_non_null(mkdtemp(folder));
    write_note(folder, names[0], "7\n");
    write_note(folder, names[1], "9823417234567890 0 0 0 0\n");
    lb_launch_notes(folder, &report);
    assert_int_equal(report.last_step, 7);
    for (int i = 0; i < 2; i++) {
        assert_true(lb_launch_is_note(names[i]));
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

static void notes_are_counted(void **state)
{
    (void)state;
    char folder[] = "/tmp/lastbit-test-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    lb_launch_report report;
    lb_launch_notes(folder, &report);
    assert_int_equal(report.processes + report.torch, 0);
    snprintf(path, sizeof path, "%s/%s", folder, LB_LAUNCH_NOTES);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("python 10 3.11.7\ntorch 10 \nbare 10 Tanh\nstep 10 0\nlast 10 4\nstep 11 2\nbare 11 ReLU\nlast 11 3\npython "
          "11 3.11.7\nfailed 11 OSError: first\nfailed 12 OSError: second\nnoise\n\nfailed 9",
          file);
    for (int i = 0; i < 2000; i++) fputc('x', file); /* a line longer than any of ours */
    fclose(file);
    lb_launch_notes(folder, &report);
    assert_int_equal(report.processes, 2);
    assert_int_equal(report.torch, 1);
    assert_int_equal(report.stepped, 2);
    assert_int_equal(report.first_step, 0);
    assert_int_equal(report.last_step, 4);
    assert_string_equal(report.bare, "Tanh");
    assert_string_equal(report.failure, "OSError: first");
    unlink(path);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exit_code_is_the_childs),
        cmocka_unit_test(missing_program_is_127_and_says_which),
        cmocka_unit_test(signal_handlers_are_as_before),
        cmocka_unit_test(shim_comes_first_and_package_last),
        cmocka_unit_test(parts_that_are_not_there_are_named),
        cmocka_unit_test(notes_are_counted),
        cmocka_unit_test(step_of_a_process_is_no_line_about_communicators),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
