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

/* How sums are made, so that they are the same bits whatever computes them: elements in row-major order are cut into
 * pieces of LB_STATISTICS_PIECE; element i of a piece goes to lane i mod 16; the lanes of a piece are added from 0 to
 * 15, and the pieces one after the other. */
#define LB_STATISTICS_PIECE 65536

/* The same, of elements that come in portions: the same bits as in one go. */
typedef struct lb_statistics_state {
    double sum[16], squares[16];     /* the lanes of the piece at hand */
    double whole_sum, whole_squares; /* of the pieces before */
    double min, max;
    int64_t elements, zero, nan, pos_inf, neg_inf;
    int64_t in_piece; /* elements of the piece at hand */
} lb_statistics_state;
LB_API void lb_statistics_begin(lb_statistics_state *state);
/* `count` dense elements; a multiple of 16 in every call but the last. */
LB_API void lb_statistics_add(lb_statistics_state *state, lb_dtype dtype, const void *elements, size_t count);
/* What follows is `next`, which began on its own where a piece begins and ended within one piece. */
LB_API void lb_statistics_join(lb_statistics_state *state, const lb_statistics_state *next);
/* Ends the piece at hand when it is full; for who adds to the lanes by other means. */
LB_API void lb_statistics_turn(lb_statistics_state *state);
LB_API lb_statistics lb_statistics_end(const lb_statistics_state *state);

static inline int64_t lb_statistics_nonfinite(const lb_statistics *s)
{
    return s->nan + s->pos_inf + s->neg_inf;
}

#ifdef __cplusplus
}
#endif
#endif
