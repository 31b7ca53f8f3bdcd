/* Where an archive's bytes go: one file descriptor, written strictly forward. Private to formats/.
 *
 * Small pieces are gathered and written in larger ones that end at multiples of their size in the file, as the page cache
 * likes it; large ones go straight from the caller's memory to writev(2). The first failure stays. It runs inside other people's processes: no signal may reach them, so a file size limit is looked up, not hit
 * (SIGXFSZ would kill the host). */
#ifndef LB_ARCHIVE_SINK_H
#define LB_ARCHIVE_SINK_H

#include <lastbit/status.h>

#define LB_SINK_BUFFER (1u << 18)
#define LB_SINK_DIRECT (1u << 17)

typedef struct lb_sink {
    int fd;
    int error;        /* errno of the first failure */
    uint64_t offset;  /* bytes accepted */
    uint64_t written; /* bytes handed to the system */
    size_t used;
    char *buffer; /* LB_SINK_BUFFER bytes */
} lb_sink;

/* mode 0600, close-on-exec. LB_ERR_EXISTS when it is there and `overwrite` is not set. */
lb_status lb_sink_open(lb_sink *sink, const char *path, bool overwrite, lb_err *err);
bool lb_sink_write(lb_sink *sink, const void *bytes, size_t n);
bool lb_sink_flush(lb_sink *sink);
/* Cuts off what was written after `offset`, so that a failed write leaves a whole archive and frees the disk. */
void lb_sink_cut(lb_sink *sink, uint64_t offset);
void lb_sink_close(lb_sink *sink);

#endif
