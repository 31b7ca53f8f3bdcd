/* torch's CPU mean and variance of a row of f32, bit for bit: what its layer and group norm are made of.
 *
 * Eight lanes of Welford's update over chunks of 16 vectors, chunks combined in a binary tree, then the tail and the
 * lanes one by one. Read from moments_utils.h (`RowwiseMoments`); where torch's build fuses a product with a sum was
 * found by comparing thousands of rows of 8 to 4096 elements with torch 2.13: what joins two chunks is rounded where
 * only one row in a hundred shows it. Its AVX2 code runs on every x86-64 machine with AVX2. */
#ifndef LB_REPLAY_WELFORD_H
#define LB_REPLAY_WELFORD_H

#include <stdbool.h>
#include <stdint.h>

/* `halves`: the row came from 16-bit elements, whose vectors of 16 enter as two halves. n > 0; var is biased. */
void lb_welford(const float *x, int64_t n, bool halves, float *mean, float *var);

#endif
