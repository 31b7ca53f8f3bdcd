/* Decides whether the exact shadows of two results agree, which means that they are no further apart than rounding in
 * f64 can have carried them.
 *
 * How far that is, is measured. A second run of A's shadow disturbs every number that an op gives by a relative 2^-44,
 * each by a random amount of its own (Monte Carlo arithmetic: Parker, "Monte Carlo Arithmetic", 1997). The largest
 * distance of the two runs at a result is its noise: 2^-44 times what the computation up to there amplifies, of
 * whatever kind: cancellation, a division by nearly zero, an optimizer that divides a gradient that is exactly zero by
 * its own size. f64 rounds by 2^-53, so that two orders of the same sums stay below the noise by a factor of 2^9 and
 * what a longer sum costs.
 */
#ifndef LB_BISECT_SHADOW_NUMBERS_H
#define LB_BISECT_SHADOW_NUMBERS_H

#include <lastbit/tensor.h>

/* The elements in row-major order as f64; returns how many. */
int64_t lb_shadow_numbers(const lb_tensor *tensor, double *out);
/* The same, malloc'ed; NULL when out of memory. */
double *lb_shadow_numbers_copy(const lb_tensor *tensor);
/* The other way round: `numbers` become the elements of a tensor of any dtype, in row-major order. */
void lb_shadow_put(const lb_tensor *tensor, const double *numbers);
/* Disturbs the elements of an f64 tensor in place; integers stay what they are (masks, counts, zeros). `serial` numbers
 * the results of a run, so that every run draws the same numbers. */
void lb_shadow_disturb(const lb_tensor *tensor, uint64_t serial);
/* max |a| over elements that are finite and no mask: below 2^96. */
double lb_shadow_numbers_largest(const double *a, int64_t n);
/* max |disturbed - shadow| over elements that are finite in both. */
double lb_shadow_noise(const double *shadow, const double *disturbed, int64_t n);
/* The same of a tensor with as many elements; 0 when out of memory. */
double lb_shadow_noise_of(const double *shadow, const lb_tensor *disturbed);
/* Whether two shadows are no further apart than rounding in f64 explains: max |a - b| <= 2^5 noise + 2^-40 max |a|. */
bool lb_shadow_numbers_agree(const double *a, const double *b, int64_t n, double noise);
/* Whether that they agree says something: rounding moves them by far less than they are. Numbers that exact arithmetic
 * makes zero (the gradient of a key's bias) are rounding alone, and agree with whatever is as small. */
bool lb_shadow_numbers_tell(const double *a, int64_t n, double noise);

/* A result in four numbers: sums of its elements with random signs and sizes, by which equal results are found among
 * many. */
typedef struct lb_shadow_projection {
    int64_t elements;     /* 0: there is none */
    double sums[4], norm; /* norm: the root of the sum of squares */
    double noise;         /* of a sum: how far the disturbed run's are off */
} lb_shadow_projection;

lb_shadow_projection lb_shadow_projection_of(const lb_tensor *tensor);
/* Of as many elements, and no sum further apart than 2^6 noises and 2^-40 norms. Constants (the projection of all
 * zeros, or of one number) tell nothing apart; whether to trust them is the caller's business. */
bool lb_shadow_projections_agree(const lb_shadow_projection *a, const lb_shadow_projection *b);
/* As lb_shadow_numbers_tell, of two that agree. */
bool lb_shadow_projections_tell(const lb_shadow_projection *a, const lb_shadow_projection *b);

#endif
