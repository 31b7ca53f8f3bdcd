/* Preloaded under a program: logs every change of files below the folder LB_LOG_BELOW into the file LB_LOG_TO
 * (write_log.h).
 *
 * A change and its record are one under a lock, so that the order is that of the changes. The log itself is appended by
 * raw system calls, one for each record, and so is whole when the program is killed, and several processes may share
 * it. What the C library writes within itself (stdio) passes by; the test compares the replayed log with the folder and
 * would see it. */
#define _GNU_SOURCE
#include "write_log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MOST_FILES = 4096 };

typedef enum standing { UNKNOWN, OUTSIDE, A_FILE, A_FOLDER } standing;

static struct {
    int fd;
    char below[PATH_MAX];
    size_t length;
    pthread_mutex_t lock;
    standing standing[MOST_FILES];
    uint64_t inode[MOST_FILES];
} log_ = {.fd = -1, .lock = PTHREAD_MUTEX_INITIALIZER};

__attribute__((constructor)) static void begin(void)
{
    const char *below = getenv("LB_LOG_BELOW"), *to = getenv("LB_LOG_TO");
    if (!below || !to || !realpath(below, log_.below)) return;
    log_.length = strlen(log_.below);
    log_.fd = (int)syscall(SYS_openat, AT_FDCWD, to, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    const int high =
        log_.fd < 0 ? -1 : (int)syscall(SYS_fcntl, log_.fd, F_DUPFD_CLOEXEC, 900); /* out of the program's way */
    if (high >= 0) syscall(SYS_close, log_.fd), log_.fd = high;
}

/* Whoever forks holds the lock meanwhile, so that it is open in the child. */
static void lock(void)
{
    pthread_mutex_lock(&log_.lock);
}
static void unlock(void)
{
    pthread_mutex_unlock(&log_.lock);
}
__attribute__((constructor)) static void hold_in_forks(void)
{
    pthread_atfork(lock, unlock, unlock);
}

/* Below the folder: what stands behind it; NULL: elsewhere. */
static const char *inside(const char *path)
{
    if (log_.fd < 0 || strncmp(path, log_.below, log_.length) != 0) return NULL;
    if (path[log_.length] == 0) return path + log_.length;
    return path[log_.length] == '/' ? path + log_.length + 1 : NULL;
}

static void put(log_kind kind, uint64_t inode, uint64_t offset, const char *path, const char *path2,
                const struct iovec *bytes, int n, uint64_t size)
{
    struct iovec pieces[64];
    log_header head = {WRITE_LOG_MAGIC,
                       kind,
                       inode,
                       offset,
                       size,
                       path ? (uint32_t)strlen(path) : 0,
                       path2 ? (uint32_t)strlen(path2) : 0};
    int k = 0;
    pieces[k++] = (struct iovec){&head, sizeof head};
    if (head.path) pieces[k++] = (struct iovec){(void *)(uintptr_t)path, head.path};
    if (head.path2) pieces[k++] = (struct iovec){(void *)(uintptr_t)path2, head.path2};
    for (int i = 0; i < n && size > 0 && k < 64; i++) {
        const size_t take = bytes[i].iov_len < size ? bytes[i].iov_len : size;
        pieces[k++] = (struct iovec){bytes[i].iov_base, take};
        size -= take;
    }
    const int before = errno;
    if (syscall(SYS_writev, log_.fd, pieces, k) < 0) _exit(99); /* a log with a hole would call a loss what is none */
    errno = before;
}

/* The path as the folder knows it: its parent resolved, its last name as it is. */
static const char *resolve(int at, const char *path, char *whole)
{
    char joined[PATH_MAX], folder[PATH_MAX], link[64];
    if (log_.fd < 0 || !path || !*path) return NULL;
    if (path[0] == '/' || at == AT_FDCWD) {
        snprintf(joined, sizeof joined, "%s", path);
    } else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", at);
        const ssize_t n = readlink(link, folder, sizeof folder - 1);
        if (n < 0) return NULL;
        folder[n] = 0;
        if (snprintf(joined, sizeof joined, "%s/%s", folder, path) >= (int)sizeof joined) return NULL;
    }
    for (size_t n = strlen(joined); n > 1 && joined[n - 1] == '/';) joined[--n] = 0;
    char *slash = strrchr(joined, '/');
    const char *name = slash ? slash + 1 : joined;
    if (slash == joined) return NULL;
    if (slash) *slash = 0;
    if (!realpath(slash ? joined : ".", folder) || snprintf(whole, PATH_MAX, "%s/%s", folder, name) >= PATH_MAX)
        return NULL;
    return inside(whole);
}

/* With the lock held: what a descriptor is. */
static standing look(int fd)
{
    if (log_.fd < 0 || fd < 0 || fd >= MOST_FILES) return OUTSIDE;
    if (log_.standing[fd] != UNKNOWN) return log_.standing[fd];
    char link[64], path[PATH_MAX];
    struct stat st;
    const int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, sizeof path - 1);
    standing found = OUTSIDE;
    if (n > 0 && fstat(fd, &st) == 0) {
        path[n] = 0;
        const char *mine = st.st_nlink ? inside(path) : NULL; /* a file without a name is nobody's */
        if (mine && S_ISDIR(st.st_mode)) found = A_FOLDER;
        if (mine && S_ISREG(st.st_mode)) {
            found = A_FILE;
            log_.inode[fd] = st.st_ino;
            put(LOG_OPENED, st.st_ino, 0, mine, NULL, NULL, 0, 0);
        }
    }
    errno = before;
    return log_.standing[fd] = found;
}

static void forget(int fd)
{
    if (fd >= 0 && fd < MOST_FILES) log_.standing[fd] = UNKNOWN;
}

/* ---- opening and closing ----------------------------------------------------------------------------------------- */

static int opened(int fd, int flags)
{
    if (fd < 0 || log_.fd < 0) return fd;
    forget(fd);
    if ((flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)) && look(fd) == A_FILE && flags & O_TRUNC)
        put(LOG_TRUNCATE, log_.inode[fd], 0, NULL, NULL, NULL, 0, 0);
    return fd;
}

#define OPEN(name, parameters, ...)                                                                                    \
    int name parameters                                                                                                \
    {                                                                                                                  \
        va_list list;                                                                                                  \
        va_start(list, flags);                                                                                         \
        const mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(list, mode_t) : 0;                                \
        va_end(list);                                                                                                  \
        pthread_mutex_lock(&log_.lock);                                                                                \
        const int fd = opened((int)syscall(SYS_openat, __VA_ARGS__, flags, mode), flags);                              \
        const int error = errno;                                                                                       \
        pthread_mutex_unlock(&log_.lock);                                                                              \
        errno = error;                                                                                                 \
        return fd;                                                                                                     \
    }
OPEN(open, (const char *path, int flags, ...), AT_FDCWD, path)
OPEN(open64, (const char *path, int flags, ...), AT_FDCWD, path)
OPEN(openat, (int at, const char *path, int flags, ...), at, path)
OPEN(openat64, (int at, const char *path, int flags, ...), at, path)

int close(int fd)
{
    forget(fd);
    return (int)syscall(SYS_close, fd);
}

int dup2(int from, int to)
{
    forget(to);
    return (int)syscall(SYS_dup3, from, to, 0);
}

/* ---- contents ---------------------------------------------------------------------------------------------------- */

static ssize_t write_pieces(int fd, const struct iovec *pieces, int n, off_t at)
{
    pthread_mutex_lock(&log_.lock);
    const bool mine = look(fd) == A_FILE;
    const ssize_t done =
        at < 0 ? syscall(SYS_writev, fd, pieces, n) : syscall(SYS_pwritev, fd, pieces, n, (long)at, (long)0);
    if (mine && done > 0) {
        const off_t end = at < 0 ? lseek(fd, 0, SEEK_CUR) : at + done;
        put(LOG_WRITE, log_.inode[fd], (uint64_t)(end - done), NULL, NULL, pieces, n, (uint64_t)done);
    }
    const int error = errno;
    pthread_mutex_unlock(&log_.lock);
    errno = error;
    return done;
}

ssize_t write(int fd, const void *bytes, size_t n)
{
    return write_pieces(fd, &(struct iovec){(void *)(uintptr_t)bytes, n}, 1, -1);
}
ssize_t writev(int fd, const struct iovec *pieces, int n)
{
    return write_pieces(fd, pieces, n, -1);
}
ssize_t pwrite(int fd, const void *bytes, size_t n, off_t at)
{
    return write_pieces(fd, &(struct iovec){(void *)(uintptr_t)bytes, n}, 1, at);
}
ssize_t pwrite64(int fd, const void *bytes, size_t n, off_t at)
{
    return pwrite(fd, bytes, n, at);
}

int ftruncate(int fd, off_t size)
{
    pthread_mutex_lock(&log_.lock);
    const bool mine = look(fd) == A_FILE;
    const int result = (int)syscall(SYS_ftruncate, fd, size);
    if (mine && result == 0) put(LOG_TRUNCATE, log_.inode[fd], (uint64_t)size, NULL, NULL, NULL, 0, 0);
    pthread_mutex_unlock(&log_.lock);
    return result;
}
int ftruncate64(int fd, off_t size)
{
    return ftruncate(fd, size);
}

static int synced(int fd, long call)
{
    char link[64], path[PATH_MAX];
    pthread_mutex_lock(&log_.lock);
    const standing what = look(fd);
    const int result = (int)syscall(call, fd);
    if (result == 0 && what == A_FILE) put(LOG_SYNC, log_.inode[fd], 0, NULL, NULL, NULL, 0, 0);
    if (result == 0 && what == A_FOLDER) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        const ssize_t n = readlink(link, path, sizeof path - 1);
        if (n > 0) path[n] = 0, put(LOG_SYNC_FOLDER, 0, 0, inside(path), NULL, NULL, 0, 0);
    }
    pthread_mutex_unlock(&log_.lock);
    return result;
}
int fsync(int fd)
{
    return synced(fd, SYS_fsync);
}
int fdatasync(int fd)
{
    return synced(fd, SYS_fdatasync);
}
int syncfs(int fd)
{
    const int result = (int)syscall(SYS_syncfs, fd);
    if (result == 0 && log_.fd >= 0) put(LOG_SYNC_ALL, 0, 0, NULL, NULL, NULL, 0, 0);
    return result;
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static int renamed(int at, const char *from, int to_at, const char *to, unsigned flags)
{
    char a[PATH_MAX], b[PATH_MAX];
    pthread_mutex_lock(&log_.lock);
    const char *x = resolve(at, from, a), *y = resolve(to_at, to, b);
    const int result = (int)syscall(SYS_renameat2, at, from, to_at, to, flags);
    if (result == 0 && x && y) put(LOG_RENAME, 0, flags & 2 /* RENAME_EXCHANGE */ ? 1 : 0, x, y, NULL, 0, 0);
    const int error = errno;
    pthread_mutex_unlock(&log_.lock);
    errno = error;
    return result;
}
int rename(const char *from, const char *to)
{
    return renamed(AT_FDCWD, from, AT_FDCWD, to, 0);
}
int renameat(int at, const char *from, int to_at, const char *to)
{
    return renamed(at, from, to_at, to, 0);
}
int renameat2(int at, const char *from, int to_at, const char *to, unsigned flags)
{
    return renamed(at, from, to_at, to, flags);
}

static int linked(int at, const char *from, int to_at, const char *to, int flags)
{
    char a[PATH_MAX], b[PATH_MAX];
    pthread_mutex_lock(&log_.lock);
    const char *x = resolve(at, from, a), *y = resolve(to_at, to, b);
    const int result = (int)syscall(SYS_linkat, at, from, to_at, to, flags);
    if (result == 0 && x && y) put(LOG_LINK, 0, 0, x, y, NULL, 0, 0);
    const int error = errno;
    pthread_mutex_unlock(&log_.lock);
    errno = error;
    return result;
}
int link(const char *from, const char *to)
{
    return linked(AT_FDCWD, from, AT_FDCWD, to, 0);
}
int linkat(int at, const char *from, int to_at, const char *to, int flags)
{
    return linked(at, from, to_at, to, flags);
}

/* unlink, rmdir and mkdir: one call, one name. */
static int named(log_kind kind, int at, const char *path, long call, long last)
{
    char whole[PATH_MAX];
    pthread_mutex_lock(&log_.lock);
    const char *mine = resolve(at, path, whole);
    const int result = (int)syscall(call, at, path, last);
    if (result == 0 && mine) put(kind, 0, 0, mine, NULL, NULL, 0, 0);
    const int error = errno;
    pthread_mutex_unlock(&log_.lock);
    errno = error;
    return result;
}
int unlink(const char *path)
{
    return named(LOG_UNLINK, AT_FDCWD, path, SYS_unlinkat, 0);
}
int unlinkat(int at, const char *path, int flags)
{
    return named(flags & AT_REMOVEDIR ? LOG_RMDIR : LOG_UNLINK, at, path, SYS_unlinkat, flags);
}
int rmdir(const char *path)
{
    return named(LOG_RMDIR, AT_FDCWD, path, SYS_unlinkat, AT_REMOVEDIR);
}
int mkdir(const char *path, mode_t mode)
{
    return named(LOG_MKDIR, AT_FDCWD, path, SYS_mkdirat, (long)mode);
}
int mkdirat(int at, const char *path, mode_t mode)
{
    return named(LOG_MKDIR, at, path, SYS_mkdirat, (long)mode);
}
