/* The arithmetic of collectives: reductions over ranks in a stated order (collective_order.h). */
#ifndef LB_REPLAY_COLLECTIVE_SUM_H
#define LB_REPLAY_COLLECTIVE_SUM_H

#include "orders/collective_order.h"

typedef enum lb_collective_reduction {
    LB_REDUCE_SUM,
    /* each contribution is multiplied by 1/n rounded to T (NCCL); wide and rotated: the sum is; gloo: the sum is
     * divided by n */
    LB_REDUCE_AVG,
    LB_REDUCE_PRODUCT,
    LB_REDUCE_MIN,
    LB_REDUCE_MAX,
    LB_REDUCE_BAND,
    LB_REDUCE_BOR,
    LB_REDUCE_BXOR
} lb_collective_reduction;
/* "sum", "avg", "mean", "max", …; false when unknown. */
bool lb_collective_reduction_parse(const char *text, lb_collective_reduction *reduction);

/* What n ranks bring: dense arrays of `count` elements of `dtype`. */
typedef struct lb_rank_terms {
    const void *const *inputs;
    uint32_t n;
    lb_dtype dtype;
    int64_t count;
} lb_rank_terms;

/* out[i] = the reduction of inputs[0][i] … inputs[n-1][i]. `out` may be one of the inputs. Integers wrap; NaNs win in
 * min and max. LB_ERR_UNSUPPORTED for a reduction that the dtype doesn't have. */
lb_status lb_collective_reduce(const lb_collective_order *order, lb_collective_reduction reduction,
                               const lb_rank_terms *terms, void *out, lb_err *err);

/* The same of a reduce-scatter, where each rank alone receives its block of count / n elements; which block is whose
 * matters to orders that end at the rank that receives (lb_collective_order_ends_at_home). `count` is a multiple of
 * n. */
lb_status lb_collective_reduce_blocks(const lb_collective_order *order, lb_collective_reduction reduction,
                                      const lb_rank_terms *terms, void *out, lb_err *err);

#endif
