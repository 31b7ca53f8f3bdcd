/* One leaf of a digest (see lastbit/digest.h): its XXH3 and the statistics of its elements, in one pass over its bytes.
 *
 * The hash is libxxhash's XXH3-64 with a seed, bit for bit, written out here because the library has no form that lets
 * a caller look at the bytes while they are in registers, and its own plain build knows SSE2 only. */
#ifndef LB_LEAF_H
#define LB_LEAF_H

#include <lastbit/dtype.h>
#include <lastbit/statistics.h>

/* `statistics` may be NULL: then the bytes are only hashed, and `dtype` means nothing. `size` is that of `elements`
 * whole elements, at most LB_DIGEST_LEAF. */
uint64_t lb_leaf_measure(const void *leaf, size_t size, uint64_t seed, lb_dtype dtype, size_t elements,
                         lb_statistics_state *statistics);

#endif
