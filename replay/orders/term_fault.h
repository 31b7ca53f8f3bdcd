/* What became of contributions to a sum that no order gives: one of them is missing, counts as zeros, is added twice,
 * or is one of an earlier sum. Tried in every order that libraries have; as with orders, one element that misses
 * excludes it. */
#ifndef LB_REPLAY_TERM_FAULT_H
#define LB_REPLAY_TERM_FAULT_H

#include "orders/collective_sum.h"

typedef enum lb_term_fault_kind {
    LB_TERM_MISSING, /* the sum is that of the other ranks, added up as if they were all */
    LB_TERM_ZEROS,   /* the rank takes part, with zeros, and that is seen in the order of the others */
    LB_TERM_TWICE,
    LB_TERM_STALE /* what the rank brought to an earlier sum */
} lb_term_fault_kind;

typedef struct lb_term_fault {
    lb_term_fault_kind kind;
    uint32_t who; /* place of the rank */
    char order[LB_COLLECTIVE_ORDER_NAME];
} lb_term_fault;

/* Elements of the sum as a rank received them, dense. */
typedef struct lb_term_part {
    int64_t first, n;
    const char *bytes;
} lb_term_part;

typedef struct lb_term_sum {
    lb_rank_terms terms; /* at most LB_TERM_FAULT_RANKS */
    lb_collective_reduction reduction;
    uint32_t home; /* 1 + the place that alone receives it; 0 */
    bool blocks;   /* a reduce-scatter of equal blocks */
    const lb_term_part *parts;
    uint32_t n_parts;
    const void *const *earlier; /* per rank: what it brought to an earlier sum of so many elements; NULL: none */
} lb_term_sum;

#define LB_TERM_FAULT_RANKS 64

/* False: none of these, or it is no sum of floats. LB_ERR_NOMEM is the only failure. */
lb_status lb_term_fault_find(const lb_term_sum *sum, bool *found, lb_term_fault *fault, lb_err *err);
/* "without the contribution of rank 3": `rank` is the global rank of fault->who. */
void lb_term_fault_text(const lb_term_fault *fault, int32_t rank, char *text, size_t room);

#endif
