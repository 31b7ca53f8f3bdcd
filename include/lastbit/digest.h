/* Digests: a tree of XXH3 leaves, the same on every machine and computable in parallel or on a GPU.
 *
 * Simplest use:
 *
 *     char text[33];
 *     lb_digest_format(lb_digest_tensor(x), text);
 *
 * Bytes are cut into leaves of LB_DIGEST_LEAF bytes; leaf i gives XXH3-64 with seed i (so that moved content is
 * seen); the digest is XXH3-128 over the little-endian sequence (total bytes, leaf 0, leaf 1, …).
 *
 *   blob digest     of the dense storage range of a value: decides what is stored once
 *   logical digest  leaves over the elements in row-major order, and (dtype code, ndim, shape…) appended to the
 *                   sequence: equal across layouts, different across shapes
 *
 * Not a cryptographic hash: it finds accidents, not adversaries.
 */
#ifndef LASTBIT_DIGEST_H
#define LASTBIT_DIGEST_H

#include <lastbit/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LB_DIGEST_LEAF 65536

typedef struct lb_digest {
    uint64_t hi, lo; /* both 0: no digest (undefined bytes, or not computed) */
} lb_digest;

static inline bool lb_digest_equal(lb_digest a, lb_digest b)
{
    return a.hi == b.hi && a.lo == b.lo;
}
static inline bool lb_digest_is_none(lb_digest a)
{
    return a.hi == 0 && a.lo == 0;
}

LB_API lb_digest lb_digest_bytes(const void *bytes, size_t n);
/* Any strides; at most one leaf is buffered. */
LB_API lb_digest lb_digest_tensor(const lb_tensor *tensor);
/* The same of a contiguous tensor in parts: the hash of leaf `number`, of at most LB_DIGEST_LEAF bytes, then all leaves
 * in order. */
LB_API uint64_t lb_digest_leaf(const void *bytes, size_t n, uint64_t number);
LB_API lb_digest lb_digest_of_leaves(const uint64_t *leaves, size_t n, const lb_tensor *tensor);
/* lb_digest_bytes of `size` bytes whose leaves these are. */
LB_API lb_digest lb_digest_of_byte_leaves(const uint64_t *leaves, size_t n, uint64_t size);
/* 32 hexadecimal digits and a NUL. */
LB_API void lb_digest_format(lb_digest digest, char text[33]);
LB_API lb_status lb_digest_parse(const char *text, lb_digest *digest, lb_err *err);

#ifdef __cplusplus
}
#endif
#endif
