/* What the exact shadows of two results say about each other: as far as rounding can carry them apart they agree. */
#ifndef LB_BISECT_SHADOW_NUMBERS_H
#define LB_BISECT_SHADOW_NUMBERS_H

#include <lastbit/tensor.h>

/* The elements in row-major order as f64; returns how many. */
int64_t lb_shadow_numbers(const lb_tensor *tensor, double *out);
/* How many units of the dtype's roundoff the computed numbers are from their shadow. Where the narrow run overflowed, its error
 * says nothing: 0. */
double lb_shadow_amplification(const double *computed, const double *shadow, int64_t n, lb_dtype dtype);
/* Whether two shadows are no further apart than f64 itself explains when errors grow `amplified` times. */
bool lb_shadow_numbers_agree(const double *a, const double *b, int64_t n, double amplified);

#endif
