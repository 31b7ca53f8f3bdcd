#define _GNU_SOURCE
#include "output_tests.h"

#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

static void assert_holds(const char *name, const char *text)
{
    size_t n = 0;
    char *bytes = read_whole(in_scratch(name), &n);
    if (!bytes) fail_msg("%s is not there", name);
    assert_int_equal(n, strlen(text));
    assert_memory_equal(bytes, text, n);
    free(bytes);
}

static void put(const char *name, const char *text)
{
    write_whole(in_scratch(name), text, strlen(text));
}

static bool is_there(const char *name)
{
    struct stat st;
    return lstat(in_scratch(name), &st) == 0;
}

/* Names in the scratch folder. */
static int names(void)
{
    DIR *dir = opendir(scratch);
    int n = -2;
    while (readdir(dir)) n++;
    closedir(dir);
    return n;
}

static lb_output *opened(const char *name, lb_output_way way, lb_output_sync sync, bool replace)
{
    lb_output *out = NULL;
    lb_output_options how = LB_OUTPUT_OPTIONS_INIT;
    how.way = way, how.sync = sync, how.replace = replace;
    OK(lb_output_open(in_scratch(name), &how, &out, &err));
    return out;
}

static lb_output *whole(const char *name, bool replace)
{
    return opened(name, LB_OUTPUT_WHOLE, LB_OUTPUT_SYNC_CLOSE, replace);
}

/* ---- whole files ------------------------------------------------------------------------------------------------- */

static void a_whole_file_is_there_when_it_is_closed_and_not_before(void **state)
{
    (void)state;
    static char large[700000];
    memset(large, 'l', sizeof large);
    lb_output *out = whole("a", false);
    assert_true(lb_output_write(out, "small,", 6));
    assert_true(lb_output_write(out, large, sizeof large));
    fprintf(lb_output_stream(out), "and %d\n", 12);
    assert_false(is_there("a"));
    OK(lb_output_close(out, &err));
    size_t n = 0;
    char *bytes = read_whole(in_scratch("a"), &n);
    assert_int_equal(n, 6 + sizeof large + 7);
    assert_memory_equal(bytes, "small,l", 7);
    assert_memory_equal(bytes + n - 8, "land 12\n", 8);
    free(bytes);
    assert_int_equal(names(), 1);
    struct stat st;
    assert_int_equal(stat(in_scratch("a"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
}

static void short_writes_lose_nothing(void **state)
{
    (void)state;
    failing.most_written = 1000;
    char text[5001];
    for (int i = 0; i < 5000; i++) text[i] = (char)('a' + i % 26);
    text[5000] = '\0';
    lb_output *out = whole("a", false);
    lb_output_write(out, text, 5000);
    OK(lb_output_close(out, &err));
    assert_true(failing.calls[CALL_WRITEV] >= 5);
    assert_holds("a", text);
}

/* Writes "new" over "old" while the nth call of a kind fails. */
static lb_status write_while_failing(counted_call call, int nth, int error, bool replace)
{
    lb_output *out = NULL;
    lb_output_options how = LB_OUTPUT_OPTIONS_INIT;
    how.replace = replace;
    no_failures();
    err = (lb_err)LB_ERR_INIT;
    fail_call(call, nth, error);
    lb_status status = lb_output_open(in_scratch("a"), &how, &out, &err);
    if (status != LB_OK) return status;
    lb_output_write(out, "new", 3);
    return lb_output_close(out, &err);
}

static void whatever_fails_the_old_file_stays_whole_and_no_draft_is_left(void **state)
{
    (void)state;
    static const struct {
        counted_call call;
        int error;
    } kinds[] = {
        {CALL_OPENAT, EMFILE}, {CALL_WRITEV, ENOSPC}, {CALL_FSYNC, EIO}, {CALL_CLOSE, EDQUOT}, {CALL_RENAME, EIO}};
    int failures = 0;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int nth = 1; nth < 4; nth++) {
            put("a", "old");
            const lb_status status = write_while_failing(kinds[k].call, nth, kinds[k].error, true);
            const bool reached = failing.left[kinds[k].call] == 0;
            /* The folder's fsync comes after the rename, and closing the folder says nothing of the file. */
            const bool renamed = kinds[k].call == CALL_FSYNC && nth == 2,
                       folder = kinds[k].call == CALL_CLOSE && nth == 2;
            failures += reached;
            assert_int_equal(status, reached && !folder ? LB_ERR_IO : LB_OK);
            if (status != LB_OK) assert_non_null(strstr(err.message, strerror(kinds[k].error)));
            assert_holds("a", reached && !renamed && !folder ? "old" : "new");
            assert_int_equal(names(), 1);
        }
    assert_int_equal(failures, 7);
}

static void a_full_disk_is_told_as_one_and_leaves_nothing(void **state)
{
    (void)state;
    assert_int_equal(write_while_failing(CALL_WRITEV, 1, ENOSPC, false), LB_ERR_IO);
    assert_true(lb_error_is_full_disk(err.message));
    assert_int_equal(names(), 0);
}

static void what_a_stream_could_not_write_is_told_at_close(void **state)
{
    (void)state;
    lb_output *out = whole("a", false);
    fail_call(CALL_WRITEV, 1, ENOSPC);
    for (int i = 0; i < 100000; i++) fprintf(lb_output_stream(out), "line %d\n", i);
    assert_int_equal(lb_output_error(out), ENOSPC);
    assert_int_equal(lb_output_close(out, &err), LB_ERR_IO);
    assert_int_equal(names(), 0);
}

static void a_limit_on_the_size_of_files_is_a_failure_and_no_signal(void **state)
{
    (void)state;
    put("a", "old");
    const pid_t child = fork();
    if (child == 0) {
        static char bytes[100000];
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){65536, 65536});
        lb_output_options how = LB_OUTPUT_OPTIONS_INIT;
        how.replace = true;
        const lb_status status = lb_output_save(in_scratch("a"), &how, bytes, sizeof bytes, &err);
        _exit(status == LB_ERR_IO && lb_error_is_full_disk(err.message) ? 0 : 1);
    }
    int result;
    waitpid(child, &result, 0);
    assert_true(WIFEXITED(result) && WEXITSTATUS(result) == 0);
    assert_holds("a", "old");
    assert_int_equal(names(), 1);
}

static void a_file_that_may_not_be_replaced_is_not_even_when_it_comes_meanwhile(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        no_failures();
        failing.no_renameat2 = i & 1;
        lb_output *out = NULL;
        put("a", "old");
        assert_int_equal(lb_output_open(in_scratch("a"), NULL, &out, NULL), LB_ERR_EXISTS);
        unlink(in_scratch("a"));
        out = whole("a", false);
        lb_output_write(out, "new", 3);
        if (i & 2) put("a", "of another");
        err = (lb_err)LB_ERR_INIT;
        assert_int_equal(lb_output_close(out, &err), i & 2 ? LB_ERR_EXISTS : LB_OK);
        assert_holds("a", i & 2 ? "of another" : "new");
        assert_int_equal(names(), 1);
        unlink(in_scratch("a"));
        err = (lb_err)LB_ERR_INIT;
    }
}

static void an_abandoned_file_leaves_what_was_there(void **state)
{
    (void)state;
    put("a", "old");
    lb_output *out = whole("a", true);
    lb_output_write(out, "new", 3);
    fprintf(lb_output_stream(out), "and more");
    lb_output_abandon(out);
    lb_output_abandon(NULL);
    assert_holds("a", "old");
    assert_int_equal(names(), 1);
}

static void a_forked_child_leaves_the_draft_of_its_parent(void **state)
{
    (void)state;
    lb_output *out = whole("a", false);
    lb_output_write(out, "new", 3);
    const pid_t child = fork();
    if (child == 0) {
        lb_output_abandon(out);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    OK(lb_output_close(out, &err));
    assert_holds("a", "new");
}

static void a_kill_at_any_time_leaves_the_old_file_or_the_new_one(void **state)
{
    (void)state;
    static char old[300000], new[300000];
    memset(old, 'o', sizeof old), memset(new, 'n', sizeof new);
    srand(7);
    int kept = 0;
    for (int i = 0; i < 40; i++) {
        write_whole(in_scratch("a"), old, sizeof old);
        const pid_t child = fork();
        if (child == 0) {
            lb_output_options how = LB_OUTPUT_OPTIONS_INIT;
            how.replace = true;
            for (;;) lb_output_save(in_scratch("a"), &how, new, sizeof new, NULL);
        }
        usleep((useconds_t)(rand() % 3000));
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        size_t n = 0;
        char *bytes = read_whole(in_scratch("a"), &n);
        assert_int_equal(n, sizeof old);
        assert_true(memcmp(bytes, old, n) == 0 || memcmp(bytes, new, n) == 0);
        kept += *bytes == 'o';
        free(bytes);
    }
    assert_true(kept < 40); /* some were replaced: the loop is no idle one */
}

/* ---- links ------------------------------------------------------------------------------------------------------- */

static void a_link_at_the_drafts_name_is_not_followed(void **state)
{
    (void)state;
    put("victim", "precious");
    failing.same_numbers = true; /* somebody knows every name but the one after next */
    lb_output *out = whole("a", false);
    DIR *dir = opendir(scratch);
    char seen[256] = "", planted[64], next[64];
    for (struct dirent *entry; (entry = readdir(dir));)
        if (lb_output_is_draft(entry->d_name)) strcpy(seen, entry->d_name);
    closedir(dir);
    lb_output_abandon(out);
    unsigned long long number;
    assert_int_equal(sscanf(seen, "a.%16llx.draft", &number), 1);
    for (unsigned long long i = 1; i < 4; i++) {
        snprintf(planted, sizeof planted, "a.%016llx.draft", number + i);
        assert_int_equal(symlink(in_scratch("victim"), in_scratch(planted)), 0);
    }
    out = whole("a", false);
    snprintf(next, sizeof next, "a.%016llx.draft", number + 4);
    assert_true(is_there(next));
    lb_output_write(out, "new", 3);
    OK(lb_output_close(out, &err));
    assert_holds("victim", "precious");
    assert_holds("a", "new");
}

static void a_link_at_the_place_is_replaced_and_not_written_through(void **state)
{
    (void)state;
    put("victim", "precious");
    symlink(in_scratch("victim"), in_scratch("a"));
    lb_output *out = NULL;
    assert_int_equal(lb_output_open(in_scratch("a"), NULL, &out, NULL), LB_ERR_EXISTS);
    symlink(in_scratch("nothing"), in_scratch("dangling"));
    assert_int_equal(lb_output_open(in_scratch("dangling"), NULL, &out, NULL), LB_ERR_EXISTS);
    out = whole("a", true);
    lb_output_write(out, "new", 3);
    OK(lb_output_close(out, &err));
    struct stat st;
    assert_int_equal(lstat(in_scratch("a"), &st), 0);
    assert_true(S_ISREG(st.st_mode));
    assert_holds("a", "new");
    assert_holds("victim", "precious");
    assert_false(is_there("nothing"));
}

static void an_output_that_is_an_input_is_refused_by_whatever_name(void **state)
{
    (void)state;
    put("in", "input");
    mkdir(in_scratch("folder"), 0700), mkdir(in_scratch("folder/deep"), 0700), mkdir(in_scratch("blobs"), 0700);
    put("folder/part", "p"), put("folder/deep/part", "d"), put("blobs/blob", "b"), put("index.index.json", "{}");
    put("shard", "s");
    link(in_scratch("in"), in_scratch("hard")), symlink("in", in_scratch("soft"));
    symlink("../blobs/blob", in_scratch("folder/linked")), symlink("folder", in_scratch("way"));
    link(in_scratch("folder/part"), in_scratch("elsewhere"));
    static const char *const pairs[][2] = {{"in", "in"},
                                           {"./in", "in"},
                                           {"folder/../in", "in"},
                                           {"hard", "in"},
                                           {"soft", "in"},
                                           {"in", "hard"},
                                           {"in", "soft"},
                                           {"folder/part", "folder"},
                                           {"way/part", "folder"},
                                           {"folder/part", "way/"},
                                           {"folder/deep/part", "folder"},
                                           {"blobs/blob", "folder"},
                                           {"elsewhere", "folder"},
                                           {"shard", "index.index.json"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        for (int way = LB_OUTPUT_WHOLE; way <= LB_OUTPUT_APPENDED; way++) {
            char path[160], input[160];
            strcpy(path, in_scratch(pairs[i][0])), strcpy(input, in_scratch(pairs[i][1]));
            const char *inputs[] = {in_scratch("not there"), input, NULL};
            lb_output_options how = LB_OUTPUT_OPTIONS_INIT;
            how.way = (lb_output_way)way, how.replace = true, how.inputs = inputs;
            lb_output *out = NULL;
            err = (lb_err)LB_ERR_INIT;
            const lb_status status = lb_output_open(path, &how, &out, &err);
            lb_output_abandon(out);
            if (status != LB_ERR_EXISTS) fail_msg("%s is written over %s", pairs[i][0], pairs[i][1]);
            assert_non_null(strstr(err.message, input));
        }
    assert_holds("in", "input");
    /* Beside an input there is room. */
    const char *inputs[] = {in_scratch("folder"), in_scratch("in"), NULL};
    put("other", "old");
    OK(lb_output_inputs_refuse(in_scratch("other"), inputs, &err));
    OK(lb_output_inputs_refuse(in_scratch("folder/new"), inputs, &err));
    OK(lb_output_inputs_refuse("/dev/null", (const char *[]){"/dev/null", NULL}, &err));
}

/* ---- growing files ----------------------------------------------------------------------------------------------- */

static void a_growing_file_has_its_name_from_its_first_commit_on(void **state)
{
    (void)state;
    put("a", "old");
    lb_output *out = opened("a", LB_OUTPUT_GROWING, LB_OUTPUT_SYNC_CLOSE, true);
    lb_output_write(out, "head,", 5);
    assert_holds("a", "old");
    OK(lb_output_commit(out, &err));
    assert_holds("a", "head,");
    lb_output_write(out, "one,", 4);
    OK(lb_output_commit(out, &err));
    assert_holds("a", "head,one,");
    lb_output_write(out, "two", 3);
    lb_output_abandon(out);
    assert_holds("a", "head,one,");
    assert_int_equal(names(), 1);
}

static void a_growing_file_without_a_commit_leaves_the_old_one(void **state)
{
    (void)state;
    put("a", "old");
    lb_output *out = opened("a", LB_OUTPUT_GROWING, LB_OUTPUT_SYNC_CLOSE, true);
    fail_call(CALL_WRITEV, 1, ENOSPC);
    lb_output_write(out, "head", 4);
    assert_int_equal(lb_output_commit(out, NULL), LB_ERR_IO);
    assert_int_equal(lb_output_close(out, &err), LB_ERR_IO);
    assert_holds("a", "old");
    assert_int_equal(names(), 1);
}

static void what_a_failed_commit_wrote_is_taken_back_and_the_file_can_go_on(void **state)
{
    (void)state;
    static char large[400000];
    lb_output *out = opened("a", LB_OUTPUT_GROWING, LB_OUTPUT_SYNC_STEP, false);
    lb_output_write(out, "head,", 5);
    OK(lb_output_commit(out, &err));
    fail_call(CALL_WRITEV, 2, ENOSPC);
    lb_output_write(out, large, sizeof large);
    lb_output_write(out, "tail", 4);
    assert_int_equal(lb_output_commit(out, NULL), LB_ERR_IO);
    assert_int_equal(lb_output_commit(out, NULL), LB_ERR_IO); /* it stays failed … */
    assert_holds("a", "head,");
    assert_true(lb_output_cut(out, 5)); /* … until it is told what to do */
    lb_output_write(out, "why", 3);
    OK(lb_output_close(out, &err));
    assert_holds("a", "head,why");
}

static void sync_says_how_often_the_disk_is_waited_for(void **state)
{
    (void)state;
    static const int at_commit[] = {0, 1, 0}, at_close[] = {1, 1, 0};
    for (int sync = LB_OUTPUT_SYNC_CLOSE; sync <= LB_OUTPUT_SYNC_NEVER; sync++) {
        no_failures();
        lb_output *out = opened("a", LB_OUTPUT_GROWING, (lb_output_sync)sync, true);
        lb_output_write(out, "one", 3);
        OK(lb_output_commit(out, &err));
        assert_int_equal(failing.calls[CALL_FDATASYNC], at_commit[sync]);
        assert_int_equal(failing.calls[CALL_FSYNC], at_commit[sync]); /* of the folder, with the first */
        OK(lb_output_close(out, &err));
        assert_int_equal(failing.calls[CALL_FDATASYNC], at_close[sync]);
        assert_int_equal(failing.calls[CALL_FSYNC], sync != LB_OUTPUT_SYNC_NEVER);
    }
    no_failures();
    OK(lb_output_save(in_scratch("b"), NULL, "b", 1, &err));
    assert_int_equal(failing.calls[CALL_FSYNC], 2);
}

static void a_sync_that_fails_is_told(void **state)
{
    (void)state;
    lb_output *out = opened("a", LB_OUTPUT_GROWING, LB_OUTPUT_SYNC_STEP, false);
    lb_output_write(out, "one,", 4);
    OK(lb_output_commit(out, &err));
    fail_call(CALL_FDATASYNC, 1, EIO);
    lb_output_write(out, "two,", 4);
    assert_int_equal(lb_output_commit(out, NULL), LB_ERR_IO);
    assert_int_equal(lb_output_close(out, NULL), LB_ERR_IO);
    assert_holds("a", "one,");
    out = opened("b", LB_OUTPUT_GROWING, LB_OUTPUT_SYNC_CLOSE, false);
    lb_output_write(out, "one,", 4);
    OK(lb_output_commit(out, &err));
    fail_call(CALL_CLOSE, 1, EIO);
    assert_int_equal(lb_output_close(out, &err), LB_ERR_IO);
    assert_non_null(strstr(err.message, "close"));
    assert_holds("b", "one,");
}

/* ---- appended lines ---------------------------------------------------------------------------------------------- */

static void lines_are_appended_whole(void **state)
{
    (void)state;
    put("a", "before\n");
    lb_output *out = NULL;
    lb_output_options how = LB_OUTPUT_OPTIONS_INIT;
    how.way = LB_OUTPUT_APPENDED;
    assert_int_equal(lb_output_open(in_scratch("a"), &how, &out, NULL), LB_ERR_EXISTS);
    out = opened("a", LB_OUTPUT_APPENDED, LB_OUTPUT_SYNC_CLOSE, true);
    for (int i = 0; i < 3; i++) {
        fprintf(lb_output_stream(out), "line");
        fprintf(lb_output_stream(out), " %d\n", i);
        OK(lb_output_commit(out, &err));
    }
    assert_int_equal(failing.calls[CALL_WRITEV], 3); /* each in one piece */
    failing.most_written = 3;
    fail_call(CALL_WRITEV, 2, ENOSPC);
    fprintf(lb_output_stream(out), "half a line\n");
    assert_int_equal(lb_output_commit(out, NULL), LB_ERR_IO);
    assert_holds("a", "before\nline 0\nline 1\nline 2\n");
    assert_int_equal(lb_output_close(out, NULL), LB_ERR_IO);
    assert_holds("a", "before\nline 0\nline 1\nline 2\n");
}

static void the_lines_of_another_are_not_taken_back(void **state)
{
    (void)state;
    lb_output *out = opened("a", LB_OUTPUT_APPENDED, LB_OUTPUT_SYNC_CLOSE, true);
    lb_output_write(out, "mine\n", 5);
    OK(lb_output_commit(out, &err));
    put("a", "mine\nof another\n");
    failing.most_written = 3;
    fail_call(CALL_WRITEV, 2, ENOSPC);
    lb_output_write(out, "half\n", 5);
    assert_int_equal(lb_output_commit(out, NULL), LB_ERR_IO);
    lb_output_abandon(out);
    assert_holds("a", "mine\nof another\nhal");
}

static void a_list_that_could_not_be_begun_is_not_there(void **state)
{
    (void)state;
    lb_output *out = opened("a", LB_OUTPUT_APPENDED, LB_OUTPUT_SYNC_CLOSE, false);
    fail_call(CALL_WRITEV, 1, ENOSPC);
    lb_output_write(out, "head\n", 5);
    assert_int_equal(lb_output_close(out, NULL), LB_ERR_IO);
    assert_int_equal(names(), 0);
}

/* ---- what is no file --------------------------------------------------------------------------------------------- */

static void devices_pipes_and_descriptors_are_written_as_they_are(void **state)
{
    (void)state;
    struct stat before, after;
    stat("/dev/null", &before);
    OK(lb_output_save("/dev/null", NULL, "x", 1, &err));
    stat("/dev/null", &after);
    assert_true(S_ISCHR(after.st_mode) && before.st_ino == after.st_ino);
    assert_int_equal(mkfifo(in_scratch("fifo"), 0600), 0);
    const int reader = open(in_scratch("fifo"), O_RDONLY | O_NONBLOCK);
    char bytes[8] = "";
    OK(lb_output_save(in_scratch("fifo"), NULL, "pipe", 4, &err));
    assert_int_equal(read(reader, bytes, 8), 4);
    assert_memory_equal(bytes, "pipe", 4);
    close(reader);
    /* A shell's `> file`: what was written before stays, what follows goes behind. */
    const int file = open(in_scratch("file"), O_WRONLY | O_CREAT, 0600);
    char path[40];
    snprintf(path, sizeof path, "/dev/fd/%d", file);
    assert_int_equal(write(file, "one,", 4), 4);
    OK(lb_output_save(path, NULL, "two,", 4, &err));
    assert_int_equal(write(file, "three", 5), 5);
    close(file);
    assert_holds("file", "one,two,three");
    assert_int_equal(lb_output_save("/dev/fd/987", NULL, "x", 1, NULL), LB_ERR_IO);
    assert_int_equal(lb_output_save("/dev/full", NULL, "x", 1, &err), LB_ERR_IO);
    assert_true(lb_error_is_full_disk(err.message));
}

static void names_that_cannot_be_files_are_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = {"", ".", "..", "folder/", "folder", "folder/.", "folder/.."};
    lb_output_options how = LB_OUTPUT_OPTIONS_INIT;
    how.replace = true;
    mkdir(in_scratch("folder"), 0700);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(lb_output_save(in_scratch(wrong[i]), &how, "x", 1, NULL),
                         strcmp(wrong[i], "folder") == 0 ? LB_ERR_EXISTS : LB_ERR_INVALID);
    assert_int_equal(lb_output_save(in_scratch("no/such/folder"), &how, "x", 1, &err), LB_ERR_IO);
    assert_non_null(strstr(err.message, "no/such/folder"));
    char longest[256];
    for (int i = 0; i < 254; i += 2) memcpy(longest + i, "\xc3\xa4", 2);
    longest[254] = '\0';
    OK(lb_output_save(in_scratch("x"), &how, "x", 1, NULL));
    char path[400];
    snprintf(path, sizeof path, "%s/%s", scratch, longest);
    OK(lb_output_save(path, &how, "x", 1, &err));
}

static void a_draft_is_told_by_its_name(void **state)
{
    (void)state;
    assert_true(lb_output_is_draft("rank-00000.tar.0123456789abcdef.draft"));
    assert_false(lb_output_is_draft("0123456789abcdef.draft"));
    assert_false(lb_output_is_draft(".0123456789abcdef.draft"));
    assert_false(lb_output_is_draft("a.0123456789abcdeg.draft"));
    assert_false(lb_output_is_draft("a.123456789abcdef.draft"));
    assert_false(lb_output_is_draft("my.draft"));
    assert_false(lb_output_is_draft(""));
}

static void a_scratch_file_has_no_name(void **state)
{
    (void)state;
    FILE *file = lb_output_scratch(in_scratch("a"), &err);
    assert_non_null(file);
    assert_int_equal(names(), 0);
    char back[4] = "";
    assert_true(fputs("abc", file) >= 0 && fseek(file, 0, SEEK_SET) == 0 && fread(back, 1, 3, file) == 3);
    assert_string_equal(back, "abc");
    fclose(file);
    file = lb_output_scratch("/dev/full", &err); /* not on the device */
    assert_true(file && fputs("abc", file) >= 0 && fflush(file) == 0);
    fclose(file);
}

/* A mode that the umask decides. */
static void a_shared_file_is_readable_as_the_umask_says(void **state)
{
    (void)state;
    struct stat st;
    lb_output_options how = LB_OUTPUT_OPTIONS_INIT;
    how.shared = true;
    const mode_t mask = umask(027);
    OK(lb_output_save(in_scratch("a"), &how, "x", 1, &err));
    umask(mask);
    stat(in_scratch("a"), &st);
    assert_int_equal(st.st_mode & 0777, 0640);
}

static void a_refused_output_closes_nothing_of_its_caller(void **state)
{
    (void)state;
    struct stat st;
    put("a", "old");
    if (fstat(STDIN_FILENO, &st) != 0) assert_int_equal(open("/dev/null", O_RDONLY), STDIN_FILENO);
    const char *inputs[] = {in_scratch("a"), NULL};
    lb_output_options how = LB_OUTPUT_OPTIONS_INIT;
    how.inputs = inputs, how.replace = true;
    lb_output *out;
    assert_int_equal(lb_output_open(in_scratch("a"), &how, &out, NULL), LB_ERR_EXISTS);
    assert_int_equal(fstat(STDIN_FILENO, &st), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, drop_scratch)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_whole_file_is_there_when_it_is_closed_and_not_before),
        TEST(short_writes_lose_nothing),
        TEST(whatever_fails_the_old_file_stays_whole_and_no_draft_is_left),
        TEST(a_full_disk_is_told_as_one_and_leaves_nothing),
        TEST(what_a_stream_could_not_write_is_told_at_close),
        TEST(a_limit_on_the_size_of_files_is_a_failure_and_no_signal),
        TEST(a_file_that_may_not_be_replaced_is_not_even_when_it_comes_meanwhile),
        TEST(an_abandoned_file_leaves_what_was_there),
        TEST(a_forked_child_leaves_the_draft_of_its_parent),
        TEST(a_kill_at_any_time_leaves_the_old_file_or_the_new_one),
        TEST(a_link_at_the_drafts_name_is_not_followed),
        TEST(a_link_at_the_place_is_replaced_and_not_written_through),
        TEST(an_output_that_is_an_input_is_refused_by_whatever_name),
        TEST(a_growing_file_has_its_name_from_its_first_commit_on),
        TEST(a_growing_file_without_a_commit_leaves_the_old_one),
        TEST(what_a_failed_commit_wrote_is_taken_back_and_the_file_can_go_on),
        TEST(sync_says_how_often_the_disk_is_waited_for),
        TEST(a_sync_that_fails_is_told),
        TEST(lines_are_appended_whole),
        TEST(the_lines_of_another_are_not_taken_back),
        TEST(a_list_that_could_not_be_begun_is_not_there),
        TEST(devices_pipes_and_descriptors_are_written_as_they_are),
        TEST(names_that_cannot_be_files_are_refused),
        TEST(a_draft_is_told_by_its_name),
        TEST(a_scratch_file_has_no_name),
        TEST(a_shared_file_is_readable_as_the_umask_says),
        TEST(a_refused_output_closes_nothing_of_its_caller),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
