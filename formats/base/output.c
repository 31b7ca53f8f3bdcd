/* Writing files: see lastbit/output.h.
 *
 * Small pieces are gathered and written in larger ones that end at multiples of their size in the file, as the page
 * cache likes it; large ones go straight from the caller's memory to writev(2). It runs inside other people's
 * processes, too: no signal may reach them, so a limit on the size of files is looked up, not hit (SIGXFSZ would end
 * the process). */
#define _GNU_SOURCE /* fopencookie */
#include "base/output_place.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

enum { GATHERED = 1 << 18, DIRECT = 1 << 17 };

struct lb_output {
    lb_output_options options;
    lb_output_place place;
    int fd;
    bool special;       /* a device, a pipe, a descriptor of ours: no draft, nothing to take back */
    bool created;       /* APPENDED, IN_PLACE: the file is ours */
    bool named;         /* the file has its name, the folder may not be on the disk */
    pid_t owner;        /* who made it: a forked child removes nothing */
    int error;          /* errno of the first failure */
    const char *doing;  /* what failed */
    uint64_t start;     /* APPENDED: bytes that were there */
    uint64_t offset;    /* bytes accepted */
    uint64_t written;   /* bytes handed to the system */
    uint64_t committed; /* of them */
    uint64_t synced;    /* of them */
    size_t used;        /* of `gathered` */
    char *gathered;     /* made when it is needed */
    FILE *stream;
};

/* ---- failing ----------------------------------------------------------------------------------------------------- */

static bool failed(lb_output *out, int error, const char *doing)
{
    if (out->error == 0) out->error = error ? error : EIO, out->doing = doing;
    return false;
}

static lb_status report(const lb_output *out, lb_err *err)
{
    if (out->error == 0) return LB_OK;
    if (out->error == EEXIST) return lb_fail(err, LB_ERR_EXISTS, "%s exists; nothing was overwritten", out->place.path);
    return lb_fail(err, out->error == ENOMEM ? LB_ERR_NOMEM : LB_ERR_IO, "%s: cannot %s it: %s", out->place.path,
                   out->doing, strerror(out->error));
}

int lb_output_error(const lb_output *output)
{
    return output->error;
}

uint64_t lb_output_offset(const lb_output *output)
{
    return output->offset;
}

bool lb_output_sync_parse(const char *text, lb_output_sync *sync)
{
    static const char *const names[] = {"close", "step", "never"};
    for (int i = 0; i < 3; i++)
        if (strcmp(text, names[i]) == 0) return *sync = (lb_output_sync)i, true;
    return false;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* "/dev/stdout", "/dev/fd/3": a copy of that descriptor, which keeps its place in what it writes to. −1: `path` is no
 * such name. */
static int own_descriptor(const char *path)
{
    static const char *const folders[] = {"/dev/fd/", "/proc/self/fd/"};
    int number = strcmp(path, "/dev/stdout") == 0   ? STDOUT_FILENO
                 : strcmp(path, "/dev/stderr") == 0 ? STDERR_FILENO
                                                    : -1;
    for (int i = 0; i < 2 && number < 0; i++) {
        const char *digits = path + strlen(folders[i]);
        if (strncmp(path, folders[i], strlen(folders[i])) == 0 && *digits &&
            strspn(digits, "0123456789") == strlen(digits))
            number = atoi(digits);
    }
    return number;
}

/* What has no contents to save is written as it is. */
static bool open_special(lb_output *out, const char *path)
{
    struct stat st;
    const int number = own_descriptor(path);
    if (number >= 0) {
        fflush(number == STDOUT_FILENO ? stdout : number == STDERR_FILENO ? stderr : NULL);
        out->fd = fcntl(number, F_DUPFD_CLOEXEC, 3);
    } else if (stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) {
        out->fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    } else {
        return false;
    }
    out->special = true;
    if (out->fd < 0) failed(out, errno, "write");
    return true;
}

static lb_status open_appended(lb_output *out, lb_err *err)
{
    const int flags = O_WRONLY | O_APPEND | O_CLOEXEC, mode = out->options.shared ? 0666 : 0600;
    struct stat st;
    out->fd = openat(out->place.folder, out->place.name, flags | O_CREAT | O_EXCL, mode);
    out->created = out->fd >= 0;
    if (out->fd < 0 && errno == EEXIST && out->options.replace)
        out->fd = openat(out->place.folder, out->place.name, flags | O_CREAT,
                         mode); /* a link without its file: that is made */
    out->named = true;
    if (out->fd < 0 || fstat(out->fd, &st) != 0)
        failed(out, errno, "create");
    else
        out->start = (uint64_t)st.st_size;
    return report(out, err);
}

static lb_status open_draft(lb_output *out, lb_err *err)
{
    LB_TRY(lb_output_place_check(&out->place, out->options.replace, false, err));
    out->fd = lb_output_place_draft(&out->place, false, out->options.shared ? 0666 : 0600);
    if (out->fd < 0) failed(out, errno, "create");
    return report(out, err);
}

static lb_status open_in_place(lb_output *out, lb_err *err)
{
    LB_TRY(lb_output_place_check(&out->place, out->options.replace, false, err));
    if (out->options.replace && unlinkat(out->place.folder, out->place.name, 0) != 0 && errno != ENOENT)
        failed(out, errno, "replace");
    if (!out->error)
        out->fd = openat(out->place.folder, out->place.name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                         out->options.shared ? 0666 : 0600);
    out->created = out->named = out->fd >= 0;
    if (out->fd < 0) failed(out, errno, "create");
    return report(out, err);
}

static void discard(lb_output *out)
{
    const bool ours = out->owner == getpid();
    if (out->stream) __fpurge(out->stream), fclose(out->stream);
    if (out->fd >= 0) close(out->fd);
    lb_output_place_drop(&out->place);
    if (ours && out->created && out->error && out->committed == 0) unlinkat(out->place.folder, out->place.name, 0);
    lb_output_place_close(&out->place);
    free(out->gathered);
    free(out);
}

lb_status lb_output_open(const char *path, const lb_output_options *options, lb_output **output, lb_err *err)
{
    *output = NULL;
    lb_output *out = calloc(1, sizeof *out);
    if (!out) return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", path);
    out->options = (lb_output_options)LB_OUTPUT_OPTIONS_INIT;
    if (options) memcpy(&out->options, options, options->size < sizeof *options ? options->size : sizeof *options);
    out->fd = out->place.folder = -1;
    out->owner = getpid();
    lb_status status = lb_output_inputs_refuse(path, out->options.inputs, err);
    if (status == LB_OK) status = lb_output_place_open(&out->place, path, err);
    if (status == LB_OK && open_special(out, path))
        status = report(out, err);
    else if (status == LB_OK)
        status = out->options.way == LB_OUTPUT_APPENDED   ? open_appended(out, err)
                 : out->options.way == LB_OUTPUT_IN_PLACE ? open_in_place(out, err)
                                                          : open_draft(out, err);
    if (status == LB_OK)
        *output = out;
    else
        discard(out);
    return status;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static bool fits_limit(const lb_output *out, uint64_t more)
{
    struct rlimit limit;
    return out->special || getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
           out->start + out->written + more <= limit.rlim_cur;
}

/* What was gathered, then `bytes`, in one call as a rule. EINTR and short writes are no failures. */
static bool write_all(lb_output *out, const char *bytes, size_t n)
{
    struct iovec pieces[2] = {{out->gathered, out->used}, {(void *)(uintptr_t)bytes, n}};
    uint64_t left = (uint64_t)out->used + n;
    out->used = 0;
    if (!fits_limit(out, left)) return failed(out, EFBIG, "write");
    while (left > 0) {
        struct iovec *first = pieces[0].iov_len ? pieces : pieces + 1;
        ssize_t done = writev(out->fd, first, pieces[0].iov_len && n ? 2 : 1);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return failed(out, done < 0 ? errno : ENOSPC, "write");
        left -= (uint64_t)done;
        out->written += (uint64_t)done;
        for (size_t gone = (size_t)done; gone > 0; first++) {
            size_t take = gone < first->iov_len ? gone : first->iov_len;
            first->iov_base = (char *)first->iov_base + take;
            first->iov_len -= take;
            gone -= take;
        }
    }
    return true;
}

bool lb_output_write(lb_output *output, const void *bytes, size_t n)
{
    lb_output *out = output;
    if (out->error) return false;
    const char *at = bytes;
    out->offset += n;
    if (!out->gathered) out->gathered = malloc(GATHERED);
    if (n >= DIRECT || !out->gathered) return write_all(out, at, n);
    while (n > 0) {
        const size_t room = GATHERED - (size_t)((out->start + out->written) % GATHERED) - out->used,
                     take = n < room ? n : room;
        memcpy(out->gathered + out->used, at, take);
        out->used += take;
        at += take;
        n -= take;
        if (take == room && !write_all(out, NULL, 0)) return false;
    }
    return true;
}

static ssize_t write_stream(void *context, const char *bytes, size_t n)
{
    lb_output *out = context;
    if (lb_output_write(out, bytes, n)) return (ssize_t)n;
    errno = out->error;
    return 0;
}

FILE *lb_output_stream(lb_output *output)
{
    const cookie_io_functions_t how = {.write = write_stream};
    if (!output->stream) output->stream = fopencookie(output, "w", how);
    if (!output->stream) failed(output, ENOMEM, "write");
    return output->stream;
}

bool lb_output_flush(lb_output *output)
{
    if (output->stream && (fflush(output->stream) != 0 || ferror(output->stream))) failed(output, errno, "write");
    return !output->error && write_all(output, NULL, 0);
}

/* ---- committing -------------------------------------------------------------------------------------------------- */

static bool sync_now(lb_output *out)
{
    if (out->written && out->synced == out->written) return true;
    const int why = lb_output_place_sync_descriptor(out->fd, out->options.way != LB_OUTPUT_WHOLE);
    out->synced = why ? 0 : out->written;
    return why == 0 || failed(out, why, "flush to the disk");
}

static bool take_name(lb_output *out)
{
    if (!out->place.draft[0]) return true;
    const int why = lb_output_place_rename(&out->place, out->options.replace);
    out->named = why == 0;
    return why == 0 || failed(out, why, "put in place");
}

static bool sync_folder(lb_output *out)
{
    if (!out->named) return true;
    const int why = lb_output_place_sync(&out->place);
    out->named = false;
    return why == 0 || failed(out, why, "flush the folder of");
}

bool lb_output_cut(lb_output *output, uint64_t offset)
{
    lb_output *out = output;
    struct stat st;
    if (offset > out->offset) return false;
    if (out->stream) __fpurge(out->stream);
    if (offset >= out->written) {
        if (offset - out->written > out->used) return false; /* a write that failed has dropped what was gathered */
        out->used = (size_t)(offset - out->written);
    } else {
        out->used = 0;
        if (out->special || fstat(out->fd, &st) != 0) return false;
        if (out->options.way == LB_OUTPUT_APPENDED && (uint64_t)st.st_size != out->start + out->written)
            return false; /* another process's line would go, too */
        if (ftruncate(out->fd, (off_t)(out->start + offset)) != 0) return false;
        out->written = offset;
        out->synced = 0;
        if (lseek(out->fd, (off_t)(out->start + offset), SEEK_SET) < 0) return false;
    }
    out->offset = offset;
    out->error = 0;
    return true;
}

/* What is half written goes, and the failure stays. */
static void take_back(lb_output *out)
{
    const int error = out->error;
    if (out->written > out->committed) lb_output_cut(out, out->committed);
    out->error = error;
}

lb_status lb_output_commit(lb_output *output, lb_err *err)
{
    lb_output *out = output;
    const bool step = out->options.sync == LB_OUTPUT_SYNC_STEP, whole = out->options.way == LB_OUTPUT_WHOLE;
    lb_output_flush(out);
    if (!out->error && step && !whole) sync_now(out);
    if (!out->error && !whole) take_name(out);
    if (!out->error && step && !whole) sync_folder(out);
    if (out->error && !whole) take_back(out);
    if (!out->error) out->committed = out->written;
    return report(out, err);
}

static bool close_descriptor(lb_output *out)
{
    const int fd = out->fd;
    out->fd = -1;
    if (close(fd) == 0 || errno == EINTR) return true; /* Linux has closed it */
    return failed(out, errno, "close");
}

lb_status lb_output_close(lb_output *output, lb_err *err)
{
    if (!output) return LB_OK;
    lb_output *out = output;
    const bool whole = out->options.way == LB_OUTPUT_WHOLE,
               synced = out->options.sync != LB_OUTPUT_SYNC_NEVER && !out->special;
    lb_output_commit(out, NULL);
    if (!out->error && synced) sync_now(out);
    close_descriptor(out);
    if (!out->error && whole) take_name(out);
    if (!out->error && synced) sync_folder(out);
    const lb_status status = report(out, err);
    discard(out);
    return status;
}

void lb_output_abandon(lb_output *output)
{
    if (!output) return;
    failed(output, ECANCELED, "write");
    discard(output);
}

lb_status lb_output_save(const char *path, const lb_output_options *options, const void *bytes, size_t n, lb_err *err)
{
    lb_output *out;
    LB_TRY(lb_output_open(path, options, &out, err));
    lb_output_write(out, bytes, n);
    return lb_output_close(out, err);
}

bool lb_output_is_draft(const char *name)
{
    const size_t n = strlen(name), suffix = sizeof LB_OUTPUT_DRAFT - 1;
    if (n < suffix + LB_OUTPUT_DRAFT_DIGITS + 2 || strcmp(name + n - suffix, LB_OUTPUT_DRAFT) != 0) return false;
    const char *digits = name + n - suffix - LB_OUTPUT_DRAFT_DIGITS;
    return digits[-1] == '.' && strspn(digits, "0123456789abcdef") == LB_OUTPUT_DRAFT_DIGITS;
}

FILE *lb_output_scratch(const char *beside, lb_err *err)
{
    lb_output_place place = {.folder = -1};
    const bool found = beside && lb_output_place_open(&place, beside, NULL) == LB_OK;
    const int fd = found ? lb_output_place_draft(&place, false, 0600) : -1;
    FILE *file = fd >= 0 ? fdopen(fd, "wb+") : tmpfile();
    if (!file)
        lb_fail(err, errno == ENOMEM ? LB_ERR_NOMEM : LB_ERR_IO, "%s: cannot create a file beside it: %s",
                beside ? beside : "TMPDIR", strerror(errno));
    lb_output_place_drop(&place);
    if (fd >= 0 && !file) close(fd);
    lb_output_place_close(&place);
    return file;
}
