/* One member of a zip unpacked piece by piece, so that it need not be in memory: stored, or deflate by zlib. Private to
 * formats/. */
#ifndef LB_ZIP_MEMBER_H
#define LB_ZIP_MEMBER_H

#include "foreign/zip_directory.h"

#include <zlib.h>

typedef struct lb_zip_reader {
    const lb_zip_member *member;
    char where[400]; /* "x.npz: offset 0: member 'w.npy'": begins messages */
    uint64_t at;     /* unpacked bytes that were given */
    uint32_t crc;    /* of these */
    z_stream inflation;
    bool inflating;
} lb_zip_reader;

/* `offset`: of the member's bytes in `source`. LB_ERR_UNSUPPORTED: of another method, or encrypted. Whatever it gives,
 * close it. */
lb_status lb_zip_reader_open(lb_zip_reader *reader, const lb_zip_member *member, const char *source, uint64_t offset,
                             lb_err *err);
/* The next bytes: `*got` of them, fewer than `n` at the end alone. At the end sizes and CRC-32 must be what the
 * directory says. */
lb_status lb_zip_reader_next(lb_zip_reader *reader, void *bytes, size_t n, size_t *got, lb_err *err);
void lb_zip_reader_close(lb_zip_reader *reader);

#endif
