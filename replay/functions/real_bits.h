/* The bits of a real, and the real of bits. */
#ifndef LB_REPLAY_REAL_BITS_H
#define LB_REPLAY_REAL_BITS_H

#include <lastbit/processor.h>

#include <stdint.h>
#include <string.h>

LB_INLINE uint64_t real_bits(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

LB_INLINE double real_of(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

LB_INLINE uint32_t float_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

LB_INLINE float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

#endif
