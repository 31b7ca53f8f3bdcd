/* Neumaier's compensated sum, as a kernel that is probed. */
#ifndef LB_TESTS_COMPENSATED_SUM_H
#define LB_TESTS_COMPENSATED_SUM_H

#include <math.h>
#include <stdint.h>

static inline float compensated_sum(const float *x, int64_t n)
{
    float sum = 0, lost = 0;
    for (int64_t i = 0; i < n; i++) {
        volatile float t = sum + x[i];
        lost += fabsf(sum) >= fabsf(x[i]) ? (sum - t) + x[i] : (x[i] - t) + sum;
        sum = t;
    }
    return sum + lost;
}

#endif
