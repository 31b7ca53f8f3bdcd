/* A sum that rises when numbers stay high: G = max(0, G + v - kappa) (Page 1954).
 *
 * Its threshold is -log p / theta, with theta the smaller of two: what the law of the noise gives for independent
 * numbers (noise_law.h), divided by how much more sums of numbers scatter than sums of independent ones would
 * (noise_memory.h); and what the heights of the sum's own past excursions show, which are as likely to grow by one more
 * unit whatever the dependence of the numbers is, if it fades. It is never below one and a half times the highest
 * excursion so far. */
#ifndef LB_RISING_SUM_H
#define LB_RISING_SUM_H

#include "levels/noise_law.h"

enum { LB_SUM_HEIGHTS = 40 };

typedef struct lb_rising_sum {
    double kappa, g, peak, exponent;
    double heights[LB_SUM_HEIGHTS], n_heights; /* of past excursions, 4 bins an octave from 2^-2 on */
    double highest;
    uint32_t length;   /* of the excursion that lasts */
    double from, told; /* the level that it left, mean of the last 32 numbers since */
} lb_rising_sum;

void lb_rising_sum_init(lb_rising_sum *sum, double kappa);
/* `term` is standardised; `number` and `level` are what it was and was expected to be. */
void lb_rising_sum_take(lb_rising_sum *sum, double term, double number, double level);
void lb_rising_sum_fit(lb_rising_sum *sum, const lb_noise_law *law, double memory);
/* The height that chance reaches with probability exp(-logp); infinite: it cannot say. */
double lb_rising_sum_threshold(const lb_rising_sum *sum, double logp);
/* How far the last numbers stand above the level that they left, in their mean; 0: there is no excursion. */
double lb_rising_sum_rise(const lb_rising_sum *sum);
/* Forgets the excursion, and does not learn from it. */
void lb_rising_sum_drop(lb_rising_sum *sum);

#endif
