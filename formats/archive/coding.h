/* How packed payloads are compressed: zstd over byte planes. Private to formats/.
 *
 * A coding is one byte: 0 stored as it is, 1 zstd, w in {2, 4, 8, 16}: the bytes are taken apart into w planes (byte k
 * of every element of w bytes together, k = 0 first; what is left over at the end follows as it is), then zstd.
 * Exponents of neighbouring floats are alike, so a plane of them compresses where the interleaved bytes do not. */
#ifndef LB_CODING_H
#define LB_CODING_H

#include "archive/record.h"

/* The coding that suits elements of this dtype. */
lb_coding lb_coding_for(lb_dtype dtype);
/* `*stored` is malloc'ed. When coding would not save an eighth, gives `*coding` 0 and `*stored` NULL: store as it
 * is. */
lb_status lb_coding_encode(const void *bytes, size_t size, int level, lb_coding *coding, void **stored,
                           size_t *stored_size, lb_err *err);
/* `bytes` has room for `size`. Anything but exactly `size` decoded bytes is LB_ERR_CORRUPT. `what` begins the
 * message. */
lb_status lb_coding_decode(lb_coding coding, const void *stored, size_t stored_size, void *bytes, size_t size,
                           const char *what, lb_err *err);
/* Coded bytes, which lb_coding_check found possible; the coding is not 0. `what` begins messages. */
typedef struct lb_coded {
    lb_coding coding;
    const void *stored;
    size_t stored_size;
    uint64_t size; /* decoded */
    const char *what;
} lb_coded;

/* Piece by piece, with no copy beside `bytes`, or, for the digest, never whole in memory. Planes are read side by side,
 * each by a reader that decodes what stands before it: 1.5 times the work for w = 2, 2.5 for 4. A frame with a window
 * of more than 32 MB is LB_ERR_UNSUPPORTED. */
lb_status lb_coding_decode_pieces(const lb_coded *coded, void *bytes, lb_err *err);
lb_status lb_coding_digest(const lb_coded *coded, lb_digest *digest, lb_err *err);
/* Before memory is asked for: could these stored bytes give `size` decoded ones? Reads zstd's frame and block
 * headers. */
lb_status lb_coding_check(lb_coding coding, const void *stored, size_t stored_size, uint64_t size, const char *what,
                          lb_err *err);

#endif
