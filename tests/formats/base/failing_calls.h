/* System calls of this program that fail when a test says so: the calls are defined here, in front of the C library's.
 *
 *     fail_call(CALL_FSYNC, 2, EIO);   // the second fsync from now on, once
 *
 * What they are is counted, too. Calls go to the kernel by syscall(2), so that no sanitizer stands between. */
#ifndef LB_TESTS_FAILING_CALLS_H
#define LB_TESTS_FAILING_CALLS_H

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

typedef enum counted_call {
    CALL_OPENAT,
    CALL_WRITEV,
    CALL_FSYNC,
    CALL_FDATASYNC,
    CALL_CLOSE,
    CALL_RENAME,
    CALL_MKDIR,
    COUNTED_CALLS
} counted_call;

static struct {
    int calls[COUNTED_CALLS], left[COUNTED_CALLS], error[COUNTED_CALLS];
    bool no_renameat2, same_numbers; /* an old file system; a generator that somebody knows */
    size_t most_written;             /* by one call; 0: all of it */
} failing;

static void no_failures(void)
{
    memset(&failing, 0, sizeof failing);
}

static void fail_call(counted_call call, int nth, int error)
{
    failing.left[call] = nth, failing.error[call] = error;
}

static bool fails(counted_call call)
{
    failing.calls[call]++;
    if (failing.left[call] == 0 || --failing.left[call] > 0) return false;
    errno = failing.error[call];
    return true;
}

int openat(int folder, const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    const int mode = flags & O_CREAT ? va_arg(args, int) : 0;
    va_end(args);
    return fails(CALL_OPENAT) ? -1 : (int)syscall(SYS_openat, folder, path, flags, mode);
}

ssize_t writev(int fd, const struct iovec *pieces, int n)
{
    if (fails(CALL_WRITEV)) return -1;
    if (failing.most_written && pieces[0].iov_len > failing.most_written)
        return syscall(SYS_write, fd, pieces[0].iov_base, failing.most_written);
    return syscall(SYS_writev, fd, pieces, n);
}

int fsync(int fd)
{
    return fails(CALL_FSYNC) ? -1 : (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd)
{
    return fails(CALL_FDATASYNC) ? -1 : (int)syscall(SYS_fdatasync, fd);
}

int close(int fd)
{
    const bool failed = fails(CALL_CLOSE);
    const int error = errno, result = (int)syscall(SYS_close, fd); /* one that failed has closed all the same */
    if (failed) errno = error;
    return failed ? -1 : result;
}

int renameat(int from_folder, const char *from, int to_folder, const char *to)
{
    return fails(CALL_RENAME) ? -1 : (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, 0);
}

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags)
{
    if (failing.no_renameat2) return errno = EINVAL, -1;
    return fails(CALL_RENAME) ? -1 : (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
}

int mkdirat(int folder, const char *path, mode_t mode)
{
    return fails(CALL_MKDIR) ? -1 : (int)syscall(SYS_mkdirat, folder, path, mode);
}

ssize_t getrandom(void *bytes, size_t n, unsigned flags)
{
    static unsigned char next;
    if (!failing.same_numbers) return syscall(SYS_getrandom, bytes, n, flags);
    memset(bytes, 0, n);
    *(unsigned char *)bytes = ++next;
    return (ssize_t)n;
}

#endif
