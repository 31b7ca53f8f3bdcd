/* Drift of token frequencies in fewer records than it takes to learn what is usual: whether their order matters.
 *
 * If no drift, any order of the same records is as likely as theirs. Each record is a point (roots of its frequencies);
 * for every place to cut the run in two, the energy distance between what stands before and behind (Szekely and Rizzo
 * 2004, 2 E|X-Y| - E|X-X'| - E|Y-Y'|, times n m / (n + m)); the largest of those is compared with the largest of 999
 * shuffled orders. It errs once in 200 runs whose records are exchangeable, whatever their scatter; below thirteen
 * records no cut is rare enough to be told. */
#ifndef LB_SHORT_DRIFT_H
#define LB_SHORT_DRIFT_H

#include <stdbool.h>
#include <stdint.h>

enum { LB_SHORT_DRIFT_LEAST = 13, LB_SHORT_DRIFT_MOST = 29, LB_SHORT_DRIFT_ORDERS = 999, LB_SHORT_DRIFT_RARE = 4 };

typedef struct lb_short_drift {
    uint32_t cut;    /* records before the place where they part most; without enough of them, half */
    double distance; /* KL(behind || before), nats, half a count added to every bin */
    uint32_t as_far; /* orders of the same records that part as much */
    bool judged;     /* enough records, and memory */
    bool told;       /* judged, at most LB_SHORT_DRIFT_RARE part as much, and the distance is above `least` */
} lb_short_drift;

/* `counts`: `bins` of each of n records, n <= LB_SHORT_DRIFT_MOST. */
lb_short_drift lb_short_drift_of(const double *counts, uint32_t n, uint32_t bins, double least);

#endif
