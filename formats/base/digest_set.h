/* Sets of digests: what was written, what was given.
 *
 * lb_digest_set only grows. lb_digest_memory is for a run without end: it forgets digests of small blobs that no step
 * asked for in a while. What it holds is bounded by what is in use, and by a thousandth of the large blobs' bytes. */
#ifndef LASTBIT_DIGEST_SET_H
#define LASTBIT_DIGEST_SET_H

#include "base/array.h"
#include <lastbit/digest.h>
#include "base/hash.h"

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

/* Zero-initialise. A digest that is asked for moves from `old` to `young`; when `young` is full it becomes `old`, and
 * the old ones go. */
typedef struct lb_digest_memory {
    lb_digest_set large; /* never forgotten: weights that come back after a thousand steps are not stored again */
    lb_digest_set young, old;
} lb_digest_memory;

enum { LB_DIGESTS_REMEMBERED = 1 << 13, LB_DIGEST_LARGE_BYTES = 1 << 16 };

static inline bool lb_digest_memory_add(lb_digest_memory *memory, lb_digest digest, size_t bytes)
{
    return lb_digest_set_add(bytes >= LB_DIGEST_LARGE_BYTES ? &memory->large : &memory->young, digest);
}

/* False also for one that is forgotten. */
static inline bool lb_digest_memory_has(lb_digest_memory *memory, lb_digest digest)
{
    if (lb_digest_set_has(&memory->young, digest) || lb_digest_set_has(&memory->large, digest)) return true;
    if (!lb_digest_set_has(&memory->old, digest)) return false;
    lb_digest_set_add(&memory->young, digest); /* without memory it is forgotten sooner */
    return true;
}

static inline void lb_digest_memory_release(lb_digest_memory *memory)
{
    lb_digest_set_release(&memory->large);
    lb_digest_set_release(&memory->young);
    lb_digest_set_release(&memory->old);
}

/* For the end of a step, so that all that one step asks for is remembered in the next, however much that is. */
static inline void lb_digest_memory_turn(lb_digest_memory *memory)
{
    if (memory->young.by_digest.n < LB_DIGESTS_REMEMBERED) return;
    lb_digest_set_release(&memory->old);
    memory->old = memory->young;
    memset(&memory->young, 0, sizeof memory->young);
}

#ifdef __cplusplus
}
#endif
#endif
