/* How much more sums of noise scatter than sums of independent numbers would: tau = var(sum of m) / (m var), with a
 * margin for how little of it was seen. For small theta E exp(theta sum) of noise with memory is that of independent
 * noise at tau theta, so that an exponent that was found for independent numbers is divided by it. */
#ifndef LB_NOISE_MEMORY_H
#define LB_NOISE_MEMORY_H

#include <stdint.h>

enum { LB_MEMORY_LONGEST = 64 };
#define LB_NOISE_MARGIN                                                                                                \
    2.7 /* standard errors of a variance; the start of a run, which is like nothing behind it, counts less */

typedef struct lb_noise_memory {
    uint32_t m; /* length of the sums */
    float last[LB_MEMORY_LONGEST];
    uint64_t n;
    double sum, mean, square, of_sums;
} lb_noise_memory;

void lb_noise_memory_init(lb_noise_memory *memory, uint32_t m);
void lb_noise_memory_add(lb_noise_memory *memory, double number);
/* Numbers that come do not follow those that came. */
void lb_noise_memory_break(lb_noise_memory *memory);
/* At least 1. */
double lb_noise_memory_of(const lb_noise_memory *memory);

#endif
