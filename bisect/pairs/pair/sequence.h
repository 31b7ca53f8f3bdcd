/* Matching two sequences of keys: the longest common subsequence. */
#ifndef LB_BISECT_SEQUENCE_H
#define LB_BISECT_SEQUENCE_H

#include <stdint.h>

/* match[i]: the index in b of a[i]'s partner, or UINT32_MAX; ascending. Sequences too long for the table (tens of ops
 * in a layer, but a whole unscoped optimizer phase) fall back to a greedy scan with a bounded look-ahead. */
void lb_sequence_match(const uint64_t *a, uint32_t na, const uint64_t *b, uint32_t nb, uint32_t *match);

#endif
