/* Measured noise: how far two runs of the same program are apart, value by value.
 *
 * The first side, whatever it is put together of, is held against each other run of it put together alike: all ranks
 * that a diff takes together, with their shards, meet rank by rank and op by op. What stands in several parts for one
 * value of the other side is as noisy as the noisiest of them.
 *
 * A difference between A and B lies inside the noise when it is no larger than twice the largest difference between A
 * and any other run of A at the same value, in max abs and in relative L2. Twice, because one pair of runs is compared
 * with another pair: with n elements drawn alike both maxima are of the same size, and neither is the larger one by
 * right.
 */
#ifndef LB_BISECT_NOISE_H
#define LB_BISECT_NOISE_H

#include "pair/align.h"

#include <lastbit/archive.h>
#include <lastbit/compare.h>

typedef struct lb_noise {
    double *max_abs,
        *rel_l2; /* per value of the first side; 0: all runs have the same bits there, or it was not measured */
    uint32_t runs;
} lb_noise;

/* `runs`: other recordings of `first`. Those that lack the step or a rank are passed over. */
lb_status lb_noise_measure(const lb_program_view *first, lb_capture *const *runs, uint32_t n_runs, lb_noise *noise,
                           lb_err *err);
void lb_noise_release(lb_noise *noise);
/* `values`: those of the first side that the difference is of, one or its parts. */
bool lb_noise_covers(const lb_noise *noise, const uint32_t *values, uint32_t n, const lb_difference *difference);

#endif
