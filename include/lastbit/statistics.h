/* Statistics of one value in one pass: what level `stats` keeps of every result, and what health checks read.
 *
 * Simplest use:
 *
 *     lb_statistics of = lb_statistics_of(x);
 *     if (lb_statistics_nonfinite(&of)) printf("%lld NaN\n", (long long)of.nan);
 */
#ifndef LASTBIT_STATISTICS_H
#define LASTBIT_STATISTICS_H

#include <lastbit/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Over the finite elements, except the counts. No finite element: min = +inf, max = -inf. Complex: of the
 * parts. */
typedef struct lb_statistics {
    int64_t elements, nan, pos_inf, neg_inf, zero;
    double min, max, sum, sum_squares; /* accumulated in f64 */
} lb_statistics;

LB_API lb_statistics lb_statistics_of(const lb_tensor *tensor);

/* How sums are made, so that they are the same bits whatever computes them, in any number of threads:
 *
 *   block   elements in row-major order that are LB_STATISTICS_BLOCK bytes together; the last one may have fewer
 *   lane    element i of a block goes to lane i mod n, where n elements are 64 bytes; each lane adds its elements, 16 at
 *           most, one after the other, from +0
 *   pairs   the lanes of a block are added in pairs of neighbours, their sums in pairs again, until one is left; the sums
 *           of the blocks likewise, and what has no partner goes up as it is
 *
 * Squares are rounded before they are added. No sum waits for more than some 30 others, which is what a device wants;
 * its rounding error grows with the logarithm of the elements (Higham, Accuracy and Stability, 4.2). */
#define LB_STATISTICS_BLOCK 1024

/* Elements after which what follows may be measured by itself, and joined: whole blocks, a power of two of them, of
 * every type of whole bytes. */
#define LB_STATISTICS_PIECE 65536

#define LB_STATISTICS_GROUP 8 /* blocks */

/* The same, of elements that come in portions: the same bits as in one go. */
typedef struct lb_statistics_state {
    double sum[LB_STATISTICS_GROUP], squares[LB_STATISTICS_GROUP]; /* of the blocks of a group that is not full */
    double group_sum[40], group_squares[40]; /* at k, where bit k of `groups` is 1: of 2^k groups */
    uint64_t groups;
    uint32_t blocks;
    double min, max;
    int64_t elements, zero, nan, pos_inf, neg_inf;
} lb_statistics_state;
LB_API void lb_statistics_begin(lb_statistics_state *state);
/* `count` dense elements; whole blocks in every call but the last. */
LB_API void lb_statistics_add(lb_statistics_state *state, lb_dtype dtype, const void *elements, size_t count);
/* One more block, summed by other means; counts and bounds are the caller's. */
LB_API void lb_statistics_add_block(lb_statistics_state *state, double sum, double squares);
/* What follows is `next`, which began on its own where a piece begins; what has been added before is whole pieces. */
LB_API void lb_statistics_join(lb_statistics_state *state, const lb_statistics_state *next);
LB_API lb_statistics lb_statistics_end(const lb_statistics_state *state);

static inline int64_t lb_statistics_nonfinite(const lb_statistics *s)
{
    return s->nan + s->pos_inf + s->neg_inf;
}

#ifdef __cplusplus
}
#endif
#endif
