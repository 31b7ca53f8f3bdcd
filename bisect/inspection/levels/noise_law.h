/* The law of standardised noise as it was seen so far, and how fast sums of such noise may grow.
 *
 * A sum G = max(0, G + v - kappa) over independent v passes a height h in one of its excursions with a probability of
 * at most exp(-theta h), theta the positive root of E exp(theta (v - kappa)) = 1 (Cramér and Lundberg; Asmussen 2003,
 * XIII.5). The mean is over the histogram of what was seen and over twenty draws that were not: Student's t with 4
 * degrees of freedom. While little has been seen these say how much one large number proves; that noise has a light
 * tail is something that only a past shows. */
#ifndef LB_NOISE_LAW_H
#define LB_NOISE_LAW_H

#include <stdbool.h>
#include <stdint.h>

enum { LB_NOISE_BINS = 128 };
#define LB_NOISE_CLIP 8.0 /* a number counts as this at most, either way */

typedef struct lb_noise_law {
    double weight[LB_NOISE_BINS], prior[LB_NOISE_BINS], total; /* old numbers fade */
} lb_noise_law;

/* `folded`: of absolute values. */
void lb_noise_law_init(lb_noise_law *law, bool folded);
void lb_noise_law_add(lb_noise_law *law, double v);
/* theta, at most 20; 0: the mean is not below kappa, and a sum says nothing. */
double lb_noise_law_exponent(const lb_noise_law *law, double kappa);

#endif
