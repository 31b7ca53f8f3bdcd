#define _GNU_SOURCE
#include "output_tests.h"

#include <sys/stat.h>
#include <sys/wait.h>

static bool is_part(const char *name)
{
    return strncmp(name, "part-", 5) == 0;
}

/* Everything below the scratch folder, in order, one line for each name with what is in it. */
static void assert_tree(const char *expected)
{
    char command[200], found[2000] = "";
    snprintf(
        command, sizeof command,
        "cd '%s' && find . -type f -printf '%%P=' -exec cat {} \\; -printf ' ' | tr ' ' '\\n' | sort | tr '\\n' ' '",
        scratch);
    FILE *pipe = popen(command, "r");
    found[fread(found, 1, sizeof found - 1, pipe)] = '\0';
    pclose(pipe);
    char *at = found;
    while (*at == ' ') at++;
    assert_string_equal(at, expected);
}

static void old_folder(void)
{
    mkdir(in_scratch("f"), 0700);
    write_whole(in_scratch("f/part-1"), "old", 3);
    write_whole(in_scratch("f/part-2"), "old", 3);
}

static lb_status write_folder(bool replace)
{
    lb_output_folder *folder = NULL;
    lb_output_options how = LB_OUTPUT_OPTIONS_INIT;
    char path[300];
    how.replace = replace;
    LB_TRY(lb_output_folder_open(in_scratch("f/"), &how, is_part, &folder, &err));
    snprintf(path, sizeof path, "%s/part-1", lb_output_folder_path(folder));
    lb_status status = lb_output_save(path, NULL, "new", 3, &err);
    if (status == LB_OK) return lb_output_folder_close(folder, &err);
    lb_output_folder_abandon(folder);
    return status;
}

static void a_folder_is_there_when_it_is_closed_and_not_before(void **state)
{
    (void)state;
    lb_output_folder *folder = NULL;
    struct stat st;
    OK(lb_output_folder_open(in_scratch("f"), NULL, NULL, &folder, &err));
    assert_int_not_equal(stat(in_scratch("f"), &st), 0);
    OK(lb_output_folder_close(folder, &err));
    assert_int_equal(stat(in_scratch("f"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
}

static void the_old_folder_goes_in_one_moment(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        failing.no_renameat2 = i == 1;
        old_folder();
        OK(write_folder(true));
        assert_tree("f/part-1=new ");
    }
}

static void a_folder_that_may_not_be_replaced_stays(void **state)
{
    (void)state;
    old_folder();
    assert_int_equal(write_folder(false), LB_ERR_EXISTS);
    assert_tree("f/part-1=old f/part-2=old ");
    write_whole(in_scratch("f/notes"), "mine", 4);
    err = (lb_err)LB_ERR_INIT;
    assert_int_equal(write_folder(true), LB_ERR_EXISTS);
    assert_non_null(strstr(err.message, "notes"));
    assert_tree("f/notes=mine f/part-1=old f/part-2=old ");
}

static void an_input_is_not_replaced_by_whatever_path(void **state)
{
    (void)state;
    old_folder();
    symlink("f", in_scratch("way"));
    static const char *const names[] = {"f", "f/", "./f", "way", "f/../f"};
    for (int i = 0; i < 5; i++) {
        lb_output_folder *folder = NULL;
        const char *inputs[] = {in_scratch(i & 1 ? "way" : "f"), NULL};
        lb_output_options how = LB_OUTPUT_OPTIONS_INIT;
        how.replace = true, how.inputs = inputs;
        assert_int_equal(lb_output_folder_open(in_scratch(names[i]), &how, is_part, &folder, NULL), LB_ERR_EXISTS);
    }
    lb_output_folder *folder = NULL;
    const char *inputs[] = {in_scratch("way/part-2"), NULL};
    lb_output_options how = LB_OUTPUT_OPTIONS_INIT;
    how.replace = true, how.inputs = inputs;
    assert_int_equal(lb_output_folder_open(in_scratch("f"), &how, is_part, &folder, NULL), LB_ERR_EXISTS);
    assert_tree("f/part-1=old f/part-2=old ");
}

static void whatever_fails_one_folder_is_whole_and_no_draft_is_left(void **state)
{
    (void)state;
    static const struct {
        counted_call call;
        int error;
    } kinds[] = {
        {CALL_MKDIR, ENOSPC}, {CALL_OPENAT, EMFILE}, {CALL_WRITEV, ENOSPC}, {CALL_FSYNC, EIO}, {CALL_RENAME, EIO}};
    int told = 0;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int nth = 1; nth < 8; nth++) {
            char command[128];
            snprintf(command, sizeof command, "rm -rf '%s/f'", scratch);
            assert_int_equal(system(command), 0);
            old_folder();
            no_failures();
            err = (lb_err)LB_ERR_INIT;
            fail_call(kinds[k].call, nth, kinds[k].error);
            const lb_status status = write_folder(true);
            told += status != LB_OK;
            no_failures();
            size_t n;
            char *bytes = read_whole(in_scratch("f/part-1"), &n);
            const bool is_new = bytes && memcmp(bytes, "new", 3) == 0;
            free(bytes);
            if (status == LB_OK) assert_true(is_new);
            /* Where the old one could not be listed it lies on beside, under the name of a draft. */
            snprintf(command, sizeof command, "rm -rf '%s'/f.*.draft", scratch);
            if (is_new) assert_int_equal(system(command), 0);
            assert_tree(is_new ? "f/part-1=new " : "f/part-1=old f/part-2=old ");
        }
    assert_true(told >= 8);
}

/* A process that runs out of memory ends at once: what it was writing is not left behind, and what stood there
 * stays. */
static void drafts_go_with_a_process_that_ends_at_once(void **state)
{
    (void)state;
    old_folder();
    write_whole(in_scratch("whole"), "old", 3);
    lb_output *file = NULL, *closed = NULL;
    lb_output_folder *folder = NULL;
    lb_output_options how = LB_OUTPUT_OPTIONS_INIT;
    char path[300];
    how.replace = true;
    OK(lb_output_open(in_scratch("gone"), &how, &closed, &err));
    OK(lb_output_open(in_scratch("whole"), &how, &file, &err));
    OK(lb_output_folder_open(in_scratch("f"), &how, is_part, &folder, &err));
    for (int i = 0; i < 300; i++) { /* more than one look at the folder lists */
        snprintf(path, sizeof path, "%s/part-%d", lb_output_folder_path(folder), i);
        write_whole(path, "new", 3);
    }
    lb_output_write(file, "new", 3);
    lb_output_abandon(closed);
    const pid_t child = fork();
    if (child == 0) { /* the drafts are its parent's */
        lb_output_remove_drafts();
        _exit(access(lb_output_folder_path(folder), F_OK) == 0 ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    lb_output_remove_drafts();
    assert_tree("f/part-1=old f/part-2=old whole=old ");
    assert_int_equal(access(lb_output_folder_path(folder), F_OK), -1);
    lb_output_abandon(file);
    lb_output_folder_abandon(folder);
    lb_output_remove_drafts();
    assert_tree("f/part-1=old f/part-2=old whole=old ");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, drop_scratch)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_folder_is_there_when_it_is_closed_and_not_before),
        TEST(the_old_folder_goes_in_one_moment),
        TEST(a_folder_that_may_not_be_replaced_stays),
        TEST(an_input_is_not_replaced_by_whatever_path),
        TEST(whatever_fails_one_folder_is_whole_and_no_draft_is_left),
        TEST(drafts_go_with_a_process_that_ends_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
