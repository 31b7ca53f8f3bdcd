/* The terms of a sum over ranks: what each rank brought, and what each member received of the sum.
 *
 *      rank 0:  stream ┐               received: a window of the sum for each output
 *      rank 1:  stream ┴─▶ sum ─▶      all_reduce and sums of what was gathered: all of it; reduce_scatter: a chunk each
 *
 * No op is asked for its kind: a place is such a sum where every rank's float inputs have as many elements as its
 * outputs, or that many for each rank. Of one rank alone the terms are what an all_gather gave it. */
#ifndef LB_BISECT_SUM_TERMS_H
#define LB_BISECT_SUM_TERMS_H

#include "orders/collective_sum.h"
#include "explain/match_site.h"

enum { LB_MOST_SUM_TERMS = 64 };

/* One output. */
typedef struct lb_received {
    int32_t rank;
    int64_t from, n; /* in the sum */
    void *data;      /* dense */
} lb_received;

typedef struct lb_sum_terms {
    uint32_t n;
    int32_t ranks[LB_MOST_SUM_TERMS];
    void *streams[LB_MOST_SUM_TERMS]; /* dense, `count` elements each */
    int64_t count;
    lb_dtype dtype;
    lb_collective_reduction reduction;
    bool reduces;    /* a collective adds up; false: ops that read what was gathered do, and may do anything else */
    int64_t *starts; /* of the tensors that each stream consists of, then `count` */
    uint32_t tensors;
    lb_received *received;
    uint32_t n_received;
} lb_sum_terms;

/* Reads the terms from the leaves of side `runner` with the numbers of side `bits`, and what that side received.
 * `*found` false: the place is not such a sum. Release it all the same. */
lb_status lb_sum_terms_open(const lb_match_site *site, int runner, int bits, lb_sum_terms *terms, bool *found,
                            lb_err *err);
void lb_sum_terms_release(lb_sum_terms *terms);

#endif
