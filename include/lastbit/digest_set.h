/* A set of digests: what was written, what was given. It only grows. */
#ifndef LASTBIT_DIGEST_SET_H
#define LASTBIT_DIGEST_SET_H

#include <lastbit/array.h>
#include <lastbit/digest.h>
#include <lastbit/hash.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Zero-initialise. */
typedef struct lb_digest_set {
    lb_digest *rows;
    lb_hash by_digest;
} lb_digest_set;

static inline bool lb_digest_set_has(const lb_digest_set *set, lb_digest digest)
{
    LB_HASH_EACH(row, &set->by_digest, digest.lo)
    if (lb_digest_equal(set->rows[row], digest)) return true;
    return false;
}

/* False when out of memory: the set is as it was. */
static inline bool lb_digest_set_add(lb_digest_set *set, lb_digest digest)
{
    const uint32_t n = set->by_digest.n;
    if (lb_digest_set_has(set, digest)) return true;
    lb_digest *grown = (lb_digest *)lb_array_grow(set->rows, n, sizeof *grown);
    if (!grown) return false;
    set->rows = grown;
    set->rows[n] = digest;
    return lb_hash_add(&set->by_digest, digest.lo, n);
}

static inline void lb_digest_set_release(lb_digest_set *set)
{
    free(set->rows);
    set->rows = NULL;
    lb_hash_release(&set->by_digest);
}

#ifdef __cplusplus
}
#endif
#endif
