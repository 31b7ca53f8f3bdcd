/* Keeps a large shadow in a 64th of its size until the other side's shadow has run: for each block of 256 elements four
 * sums with random signs and sizes, in place of the numbers.
 *
 * Two results with an element that differs by more than rounding also differ in the sums of that element's block. One
 * sum misses the difference where the random sizes cancel; all four miss it about as seldom as (room / difference)^4.
 * The sums see a difference of one element by 2^-36 of the largest one; the elements themselves (shadow_numbers.h)
 * would show 2^-40. */
#ifndef LB_BISECT_BLOCK_SUMS_H
#define LB_BISECT_BLOCK_SUMS_H

#include <lastbit/tensor.h>

/* Sums of a tensor of so many elements. */
int64_t lb_block_sums_count(int64_t elements);
/* The sums of a tensor, taken in row-major order. `largest`: the largest of its finite elements, masks left out.
 * `real`: some element is not an integer. Either may be NULL. */
void lb_block_sums_of(const lb_tensor *tensor, double *sums, double *largest, bool *real);
/* How far a disturbed run moves a sum: one noise for all sums. */
double lb_block_sums_noise(const double *sums, const double *disturbed, int64_t count);
/* True where no sum differs by more than 2^6 noises and what 256 elements of 2^-40 of the largest one add up to by
 * chance. */
bool lb_block_sums_agree(const double *a, const double *b, int64_t count, double noise, double largest);
/* Does it mean anything that they agree? See lb_shadow_numbers_tell. */
bool lb_block_sums_tell(double largest, double noise);

#endif
