/* See archive_sink.h. */
#include "archive_sink.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

lb_status lb_sink_open(lb_sink *sink, const char *path, bool overwrite, lb_err *err)
{
    sink->error = 0;
    sink->offset = sink->written = 0;
    sink->used = 0;
    if (!sink->buffer && !(sink->buffer = (char *)malloc(LB_SINK_BUFFER)))
        return lb_fail(err, LB_ERR_NOMEM, "%s: out of memory", path);
    /* An old file may be mapped by a reader: it keeps its own inode. */
    if (overwrite && unlink(path) != 0 && errno != ENOENT)
        return lb_fail(err, LB_ERR_IO, "%s: cannot replace it: %s", path, strerror(errno));
    sink->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (sink->fd >= 0) return LB_OK;
    if (errno == EEXIST) return lb_fail(err, LB_ERR_EXISTS, "%s exists; nothing was overwritten", path);
    return lb_fail(err, LB_ERR_IO, "%s: cannot create it: %s", path, strerror(errno));
}

/* The buffer, then `bytes`, in one call as a rule. EINTR and short writes are no failures. */
static bool write_all(lb_sink *sink, const char *bytes, size_t n)
{
    struct rlimit limit;
    struct iovec pieces[2] = {{sink->buffer, sink->used}, {(void *)(uintptr_t)bytes, n}};
    uint64_t left = (uint64_t)sink->used + n;
    sink->used = 0;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        sink->written + left > limit.rlim_cur) {
        sink->error = EFBIG;
        return false;
    }
    while (left > 0) {
        struct iovec *first = pieces[0].iov_len ? pieces : pieces + 1;
        ssize_t done = writev(sink->fd, first, pieces[0].iov_len && n ? 2 : 1);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) {
            sink->error = done < 0 ? errno : ENOSPC;
            return false;
        }
        left -= (uint64_t)done;
        sink->written += (uint64_t)done;
        for (size_t out = (size_t)done; out > 0; first++) {
            size_t take = out < first->iov_len ? out : first->iov_len;
            first->iov_base = (char *)first->iov_base + take;
            first->iov_len -= take;
            out -= take;
        }
    }
    return true;
}

bool lb_sink_flush(lb_sink *sink)
{
    return !sink->error && write_all(sink, NULL, 0);
}

bool lb_sink_write(lb_sink *sink, const void *bytes, size_t n)
{
    if (sink->error) return false;
    const char *at = (const char *)bytes;
    sink->offset += n;
    if (n >= LB_SINK_DIRECT) return write_all(sink, at, n);
    while (n > 0) {
        size_t room = LB_SINK_BUFFER - (size_t)(sink->written % LB_SINK_BUFFER) - sink->used,
               take = n < room ? n : room;
        memcpy(sink->buffer + sink->used, at, take);
        sink->used += take;
        at += take;
        n -= take;
        if (take == room && !write_all(sink, NULL, 0)) return false;
    }
    return true;
}

void lb_sink_cut(lb_sink *sink, uint64_t offset)
{
    sink->used = 0;
    if (sink->written > offset && ftruncate(sink->fd, (off_t)offset) == 0) sink->written = offset;
}

void lb_sink_close(lb_sink *sink)
{
    if (sink->fd >= 0) close(sink->fd);
    sink->fd = -1;
    free(sink->buffer);
    sink->buffer = NULL;
}
