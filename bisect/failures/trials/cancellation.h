/* Differences between nearly equal numbers, which leave nothing but what their operands rounded: see cancellation.c. */
#ifndef LB_BISECT_CANCELLATION_H
#define LB_BISECT_CANCELLATION_H

#include "failure/trace.h"

typedef struct lb_cancellation {
    uint32_t op;
    lb_dtype dtype;     /* of what it gives */
    double operands;    /* largest magnitude of what it read */
    double step;        /* between neighbours of its dtype at that size */
    double least, most; /* of what it gave */
} lb_cancellation;

/* The nearest op that `broken` was computed from, in its step, whose difference is not larger than the rounding of what
 * it was made of. False: there is none. What it gave may be right to the last digit all the same: a trial in which its
 * operands are exact tells. */
bool lb_cancellation_find(const lb_trace_row *row, uint32_t broken, lb_cancellation *found);

#endif
