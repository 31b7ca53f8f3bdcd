/* Propagates taints (taint.h) along the data flow of both sides: collects the verdicts of what an op reads, and writes
 * the op's verdict to the storages of its results. Private to diff*.c. */
#ifndef LB_BISECT_DIFF_FLOW_H
#define LB_BISECT_DIFF_FLOW_H

#include "diff/diff_walk.h"

enum { LB_ALL_ELEMENTS = -1 };

/* Adds to `in` what the inputs of an op of that side (0: A) bring, except for inputs whose bits its partner `other`
 * (LB_NONE: none) has as well. `element`: for ops over lists (_foreach_, _fused_), only that element of each list, and
 * what is not a list. */
void lb_flow_in(lb_diff_walk *walk, int side, uint32_t op, uint32_t other, int element, lb_diff_flow_source *in);
/* Writes `left` to the storage of outcome `i` of an op. An outcome that covers the whole storage replaces what was
 * known of it. */
void lb_flow_out(lb_diff_walk *walk, int side, uint32_t op, uint32_t i, const lb_diff_flow_source *left);
/* What all inputs of A's op bring, and of B's op or ops beside it; of a collective, what all its members brought, which
 * lb_flow_meet has gathered. */
lb_diff_flow_source lb_flow_in_all(lb_diff_walk *walk, uint32_t ia, int element);
/* What a collective gives to one member, all of them have brought. */
void lb_flow_meet(lb_diff_walk *walk, const lb_collective_match *exchange);
void lb_flow_out_all(lb_diff_walk *walk, int side, uint32_t op, const lb_diff_flow_source *left);
/* Into the outcomes of a pair (or join) that have different bits; the others are clean. */
void lb_flow_out_pair(lb_diff_walk *walk, uint32_t ia, const lb_diff_flow_source *left);

#endif
