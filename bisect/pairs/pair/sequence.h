/* Matching two sequences of keys: the longest common subsequence. */
#ifndef LB_BISECT_SEQUENCE_H
#define LB_BISECT_SEQUENCE_H

#include <stdint.h>

/* `match[i]`: the index in `b` of the partner of `a[i]`, or UINT32_MAX; indices ascend. A table of na x nb is filled.
 * Where it would be too large (a layer has tens of ops, an optimizer phase without modules has thousands), a greedy
 * scan with a bounded look-ahead takes its place. */
void lb_sequence_match(const uint64_t *a, uint32_t na, const uint64_t *b, uint32_t nb, uint32_t *match);

#endif
