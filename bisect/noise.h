/* Measured noise: how far two runs of the same program are apart, value by value.
 *
 * A difference between A and B lies inside the noise when it is no larger than twice the largest difference between A and
 * any other run of A at the same value, in max abs and in relative L2. Twice, because one pair of runs is compared with
 * another pair: with n elements drawn alike both maxima are of the same size, and neither is the larger one by right.
 */
#ifndef LB_BISECT_NOISE_H
#define LB_BISECT_NOISE_H

#include "align.h"

#include <lastbit/archive.h>
#include <lastbit/compare.h>

typedef struct lb_noise {
    double *max_abs, *rel_l2; /* per value of A; 0: all runs have the same bits there, or it was not measured */
    uint32_t runs;
} lb_noise;

/* `runs`: other recordings of A. Those that lack the step or the rank are passed over; nothing is measured for a side of several programs. */
lb_status lb_noise_measure(const lb_side *a, lb_capture *const *runs, uint32_t n_runs, lb_noise *noise,
                           lb_err *err);
void lb_noise_release(lb_noise *noise);
bool lb_noise_covers(const lb_noise *noise, uint32_t value, const lb_difference *difference);

#endif
