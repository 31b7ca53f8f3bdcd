/* Captures and checkpoints of every format on a system that refuses: each call of each kind in turn, alone and with all
 * after it. What is read then is what is read otherwise, or LB_ERR_IO somewhere on the way; nothing is taken for
 * missing, for damage or for the end of a file. An output is whole, or neither it nor its draft is there. */
#define _GNU_SOURCE /* RTLD_NEXT, renameat2 */
#include "cmocka_first.h"
#include "readings.h"

#include <lastbit/input.h>

#include <dlfcn.h>
#include <errno.h>
#include <sys/mman.h>
#include <sys/uio.h>

typedef enum call_kind {
    CALL_OPEN,
    CALL_LOOK,
    CALL_MAP,
    CALL_READ,
    CALL_LIST,
    CALL_WRITE,
    CALL_SYNC,
    CALL_CLOSE,
    CALL_RENAME,
    CALL_FOLDER,
    CALL_KINDS
} call_kind;
enum { FOR_GOOD = 1 << 30 };

static struct {
    call_kind kind;
    int calls, first, last; /* first 0: none is refused */
} refusing;

static void refuse(call_kind kind, int first, int last)
{
    refusing.kind = kind, refusing.calls = 0, refusing.first = first, refusing.last = last;
}

/* Ends it; whether a call has been refused since. */
static bool was_refused(void)
{
    const bool refused = refusing.first && refusing.calls >= refusing.first;
    refusing.first = 0;
    return refused;
}

static inline bool is_refused(call_kind kind)
{
    if (!refusing.first || kind != refusing.kind) return false;
    const int call = ++refusing.calls;
    if (call < refusing.first || call > refusing.last) return false;
    errno = EIO;
    return true;
}

/* A sanitizer has calls of its own in this place. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { refusing_calls = false };
#else
enum { refusing_calls = true };

/* A call of this program, in front of the C library's. */
#define REFUSABLE(kind, refusal, type, name, parameters, arguments)                                                    \
    type name parameters                                                                                               \
    {                                                                                                                  \
        static type(*real) parameters;                                                                                 \
        if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name);                                                          \
        return is_refused(kind) ? refusal : real arguments;                                                            \
    }
#define OPENS(name, parameters, head)                                                                                  \
    int name parameters                                                                                                \
    {                                                                                                                  \
        static int(*real) parameters;                                                                                  \
        va_list list;                                                                                                  \
        va_start(list, flags);                                                                                         \
        const mode_t mode = flags & O_CREAT ? va_arg(list, mode_t) : 0;                                                \
        va_end(list);                                                                                                  \
        if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name);                                                          \
        return is_refused(CALL_OPEN) ? -1 : real head;                                                                 \
    }
/* clang-format off */
OPENS(open, (const char *path, int flags, ...), (path, flags, mode))
OPENS(openat, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))
REFUSABLE(CALL_OPEN, NULL, FILE *, fopen, (const char *path, const char *how), (path, how))
REFUSABLE(CALL_LOOK, -1, int, stat, (const char *path, struct stat *found), (path, found))
REFUSABLE(CALL_LOOK, -1, int, lstat, (const char *path, struct stat *found), (path, found))
REFUSABLE(CALL_LOOK, -1, int, fstat, (int fd, struct stat *found), (fd, found))
REFUSABLE(CALL_LOOK, -1, int, fstatat, (int folder, const char *path, struct stat *found, int how), (folder, path, found, how))
REFUSABLE(CALL_MAP, MAP_FAILED, void *, mmap, (void *at, size_t n, int how, int flags, int fd, off_t from), (at, n, how, flags, fd, from))
REFUSABLE(CALL_READ, -1, ssize_t, read, (int fd, void *to, size_t n), (fd, to, n))
REFUSABLE(CALL_READ, -1, ssize_t, pread, (int fd, void *to, size_t n, off_t from), (fd, to, n, from))
REFUSABLE(CALL_LIST, NULL, DIR *, opendir, (const char *path), (path))
REFUSABLE(CALL_LIST, NULL, DIR *, fdopendir, (int fd), (fd))
REFUSABLE(CALL_LIST, NULL, struct dirent *, readdir, (DIR *folder), (folder))
REFUSABLE(CALL_WRITE, -1, ssize_t, write, (int fd, const void *from, size_t n), (fd, from, n))
REFUSABLE(CALL_WRITE, -1, ssize_t, writev, (int fd, const struct iovec *from, int n), (fd, from, n))
REFUSABLE(CALL_WRITE, -1, ssize_t, pwrite, (int fd, const void *from, size_t n, off_t to), (fd, from, n, to))
REFUSABLE(CALL_WRITE, -1, int, ftruncate, (int fd, off_t n), (fd, n))
REFUSABLE(CALL_SYNC, -1, int, fsync, (int fd), (fd))
REFUSABLE(CALL_SYNC, -1, int, fdatasync, (int fd), (fd))
REFUSABLE(CALL_RENAME, -1, int, renameat, (int of, const char *from, int in, const char *to), (of, from, in, to))
REFUSABLE(CALL_RENAME, -1, int, renameat2, (int of, const char *from, int in, const char *to, unsigned how), (of, from, in, to, how))
REFUSABLE(CALL_FOLDER, -1, int, mkdir, (const char *path, mode_t mode), (path, mode))
REFUSABLE(CALL_FOLDER, -1, int, mkdirat, (int folder, const char *path, mode_t mode), (folder, path, mode))
/* clang-format on */

/* One that failed has closed all the same. */
int close(int fd)
{
    static int (*real)(int);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "close");
    const bool refused = is_refused(CALL_CLOSE);
    const int result = real(fd);
    return refused ? (errno = EIO, -1) : result;
}

#endif

static const char *const kinds[] = {"open",  "look", "map",   "read",   "list",
                                    "write", "sync", "close", "rename", "folder"};

static void print_case(const char *of, call_kind kind, int n, bool for_good, lb_status status, const lb_err *err)
{
    print_error("%s: %s %d%s: %s: %s\n", of, kinds[kind], n, for_good ? " and all after it" : "",
                lb_status_name(status), err->message);
}

static int runs;

static void is_refused_in_turn(const char *path, reader read)
{
    reading whole = {.status = LB_OK};
    read(path, &whole);
    assert_false(whole.refused);
    for (call_kind kind = 0; kind <= CALL_LIST; kind++) {
        bool refused = true;
        for (int n = 1; refused; n++) {
            for (int for_good = 0; for_good < 2; for_good++) {
                reading now = {.status = LB_OK};
                refuse(kind, n, for_good ? FOR_GOOD : n);
                read(path, &now);
                refused = was_refused();
                runs += refused;
                const bool same = now.status == whole.status && lb_digest_equal(now.seen, whole.seen);
                const bool told = now.status == LB_ERR_IO ? now.err.message[0] != 0 : now.refused;
                if (!same && !told) print_case(path, kind, n, for_good, now.status, &now.err);
                assert_true(same || (told && refused));
            }
        }
    }
}

static void captures_are_whole_or_refused(void **state)
{
    (void)state;
    if (!refusing_calls) skip();
    lb_err err = LB_ERR_INIT;
    lb_pack_options options = LB_PACK_OPTIONS_INIT;
    lb_packing packed;
    write_capture(in_scratch("run.lb"), 2);
    assert_int_equal(lb_capture_pack(in_scratch("run.lb"), in_scratch("run.lbz"), &options, &packed, &err), LB_OK);
    static const reader readers[] = {read_capture, verify_capture};
    for (size_t i = 0; i < 2; i++) {
        is_refused_in_turn(in_scratch("run.lb"), readers[i]);
        is_refused_in_turn(in_scratch("run.lbz"), readers[i]);
    }
    assert_true(runs > 40);
}

static void checkpoints_are_whole_or_refused(void **state)
{
    (void)state;
    if (!refusing_calls) skip();
    static const char *const formats[][2] = {
        {"safetensors", "x.safetensors"}, {"gguf", "x.gguf"}, {"npy", "x.npy"}, {"npz", "x.npz"}, {"torch", "x.pt"}};
    for (size_t k = 0; k < sizeof formats / sizeof *formats; k++) {
        char folder[400], path[700];
        snprintf(folder, sizeof folder, "%s/tests/fuzz/corpus/%s", LB_SOURCE_DIR, formats[k][0]);
        DIR *inputs = opendir(folder);
        assert_non_null(inputs);
        for (const struct dirent *entry; (entry = readdir(inputs));) {
            if (entry->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "%s/%s", formats[k][0], entry->d_name);
            copy_kept(path, formats[k][1]);
            is_refused_in_turn(in_scratch(formats[k][1]), read_capture);
            is_refused_in_turn(in_scratch(formats[k][1]), read_checkpoint);
        }
        closedir(inputs);
    }
}

static void checkpoints_of_several_files_are_whole_or_refused(void **state)
{
    (void)state;
    if (!refusing_calls) skip();
    assert_int_equal(mkdir(in_scratch("ck"), 0700), 0);
    copy_kept("parts.distcp", "ck/__0_0.distcp");
    static const char *const distributed[] = {"distributed/whole", "distributed/joined"};
    for (size_t i = 0; i < 2; i++) {
        copy_kept(distributed[i], "ck/.metadata");
        is_refused_in_turn(in_scratch("ck"), read_capture);
        is_refused_in_turn(in_scratch("ck"), read_checkpoint);
    }
    write_shard("a"), write_shard("b");
    copy_kept("shards/index", "x.safetensors.index.json");
    is_refused_in_turn(in_scratch("x.safetensors.index.json"), read_capture);
    is_refused_in_turn(in_scratch("x.safetensors.index.json"), read_checkpoint);
}

static void outputs_are_whole_or_not_there(void **state)
{
    (void)state;
    if (!refusing_calls) skip();
    lb_status (*const writers[])(const char *out, lb_err *err) = {pack, strip, recover, gather};
    write_capture(in_scratch("run.lb"), 2);
    const int names = count_names();
    for (size_t i = 0; i < sizeof writers / sizeof *writers; i++) {
        reading whole = {.status = LB_OK};
        char out[160], command[200];
        snprintf(out, sizeof out, "%s", i < 2 ? in_scratch("out.lbz") : in_scratch("out.lb"));
        snprintf(command, sizeof command, "rm -rf '%s'", out);
        for (call_kind kind = 0; kind < CALL_KINDS; kind++) {
            bool refused = true;
            for (int n = 1; refused; n++) {
                lb_err err = LB_ERR_INIT;
                refuse(kind, n, n);
                const lb_status status = writers[i](out, &err);
                refused = was_refused();
                const bool right = status == LB_OK || (refused && status == LB_ERR_IO && err.message[0]);
                if (!right) print_case(out, kind, n, false, status, &err);
                assert_true(right);
                if (status == LB_OK) {
                    reading now = {.status = LB_OK};
                    read_capture(out, &now);
                    if (lb_digest_is_none(whole.seen)) whole = now;
                    assert_true(lb_digest_equal(now.seen, whole.seen));
                }
                assert_int_equal(system(command), 0);
                assert_int_equal(count_names(), names);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(captures_are_whole_or_refused, make_scratch, drop_scratch),
        cmocka_unit_test_setup_teardown(checkpoints_are_whole_or_refused, make_scratch, drop_scratch),
        cmocka_unit_test_setup_teardown(checkpoints_of_several_files_are_whole_or_refused, make_scratch, drop_scratch),
        cmocka_unit_test_setup_teardown(outputs_are_whole_or_not_there, make_scratch, drop_scratch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
