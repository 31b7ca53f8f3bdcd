/* What is kept of a large shadow until the other side's has run: of each block of 256 elements four sums with random
 * signs and sizes, in the place of its numbers (a 64th of them).
 *
 * Two results whose elements differ somewhere by more than rounding differ in the sums of that block: a sum misses it
 * where the random sizes cancel, which four sums do together about as seldom as (room / difference)^4. What they see is
 * a difference of one element by 2^-36 of the largest one, where the elements themselves (shadow_numbers.h) would show
 * one of 2^-40. */
#ifndef LB_BISECT_BLOCK_SUMS_H
#define LB_BISECT_BLOCK_SUMS_H

#include <lastbit/tensor.h>

/* Sums of a tensor of so many elements. */
int64_t lb_block_sums_count(int64_t elements);
/* Of a tensor in row-major order. `largest`: of its finite elements, masks left out; `real`: some element is no
 * integer. Either may be NULL.
 */
void lb_block_sums_of(const lb_tensor *tensor, double *sums, double *largest, bool *real);
/* How far a disturbed run carries a sum: the noise of all. */
double lb_block_sums_noise(const double *sums, const double *disturbed, int64_t count);
/* No sum further apart than 2^6 noises and what 256 elements of 2^-40 of the largest one add up to, by chance. */
bool lb_block_sums_agree(const double *a, const double *b, int64_t count, double noise, double largest);
/* That they agree says something: see lb_shadow_numbers_tell. */
bool lb_block_sums_tell(double largest, double noise);

#endif
