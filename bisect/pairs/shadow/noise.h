/* Measured noise: how far two runs of the same program are apart, value by value.
 *
 * The first side is compared with each of its other runs, put together from the same ranks and shards, rank by rank and
 * op by op. A value that is several parts on one side is as noisy as the noisiest part.
 *
 * A difference between A and B lies inside the noise when it is at most twice the largest difference between A and any
 * other run of A at the same value, in max abs and in relative L2. Twice, because one pair of runs is compared with
 * another pair: with n elements drawn alike both maxima have the same size, and either may be the larger by chance. */
#ifndef LB_BISECT_NOISE_H
#define LB_BISECT_NOISE_H

#include "pair/align.h"

#include <lastbit/archive.h>
#include <lastbit/compare.h>

typedef struct lb_noise {
    /* per value of the first side; 0: all runs have the same bits there, or it was not measured */
    double *max_abs, *rel_l2;
    uint32_t runs;
} lb_noise;

/* `runs`: other recordings of `first`. Those that lack the step or a rank are passed over. */
lb_status lb_noise_measure(const lb_program_view *first, lb_capture *const *runs, uint32_t n_runs, lb_noise *noise,
                           lb_err *err);
void lb_noise_release(lb_noise *noise);
/* `values`: the values of the first side that differ, one or its parts. */
bool lb_noise_covers(const lb_noise *noise, const uint32_t *values, uint32_t n, const lb_difference *difference);

#endif
