/* Statistics of one value in one pass: what level `stats` keeps of every result, and what health checks read.
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

/* The same, of elements that come in pieces (in row-major order): the same bits as in one go. */
typedef struct lb_statistics_state {
    double sum[16], squares[16], min[16], max[16]; /* element i of the value goes to lane i mod 16 */
    int64_t elements, zero, nan, pos_inf, neg_inf;
} lb_statistics_state;
LB_API void lb_statistics_begin(lb_statistics_state *state);
/* `count` dense elements; a multiple of 16 in every call but the last. */
LB_API void lb_statistics_add(lb_statistics_state *state, lb_dtype dtype, const void *elements, size_t count);
LB_API lb_statistics lb_statistics_end(const lb_statistics_state *state);

static inline int64_t lb_statistics_nonfinite(const lb_statistics *s)
{
    return s->nan + s->pos_inf + s->neg_inf;
}

#ifdef __cplusplus
}
#endif
#endif
