/* The log of what processes did to the files below one folder, in the order in which they did it.
 *
 * write_log.c is preloaded and writes it; crash_states.c replays it. A record is this header, then `path` and `path2`
 * (below the folder, "" the folder itself; not terminated), then the bytes of a write. */
#ifndef LB_TESTS_WRITE_LOG_H
#define LB_TESTS_WRITE_LOG_H

#include <stdint.h>

#define WRITE_LOG_MAGIC 0x4c57424cu

typedef enum log_kind {
    LOG_OPENED = 1, /* path is now inode, perhaps a new one */
    LOG_WRITE,      /* inode, offset, bytes */
    LOG_TRUNCATE,   /* inode, offset: the new size */
    LOG_SYNC,       /* inode: its contents are on the disk */
    LOG_SYNC_FOLDER,
    LOG_SYNC_ALL,
    LOG_RENAME, /* path to path2; offset 1: exchanged */
    LOG_LINK,
    LOG_UNLINK,
    LOG_MKDIR,
    LOG_RMDIR
} log_kind;

typedef struct log_header {
    uint32_t magic, kind;
    uint64_t inode, offset, size; /* size: bytes of a write */
    uint32_t path, path2;         /* their lengths */
} log_header;

#endif
