/* Arrays of the functions in elementary_real.h, compiled once per instruction set, and the reduction of large
 * angles. */
#include "functions/elementary.h"

#include "functions/elementary_real.h"

#define CHUNK 128 /* through local arrays, which the compiler knows not to overlap: in place is as fast */

/* One function over an array: chunks of f64 in, chunks of f64 out. */
#define ARRAY_BODY(name, type, function)                                                                               \
    LB_INLINE void name##_body(type *dst, const type *src, size_t n)                                                   \
    {                                                                                                                  \
        double in[CHUNK], out[CHUNK];                                                                                  \
        size_t at = 0;                                                                                                 \
        for (; at + CHUNK <= n; at += CHUNK) {                                                                         \
            for (size_t i = 0; i < CHUNK; i++) in[i] = (double)src[at + i];                                            \
            for (size_t i = 0; i < CHUNK; i++) out[i] = real_clean(function(in[i]));                                   \
            for (size_t i = 0; i < CHUNK; i++) dst[at + i] = (type)out[i];                                             \
        }                                                                                                              \
        for (size_t i = 0; at + i < n; i++) in[i] = (double)src[at + i];                                               \
        for (size_t i = 0; at + i < n; i++) out[i] = real_clean(function(in[i]));                                      \
        for (size_t i = 0; at + i < n; i++) dst[at + i] = (type)out[i];                                                \
    }                                                                                                                  \
    LB_PER_ISA(name##_array, name##_body, (type * dst, const type *src, size_t n), (dst, src, n))

#define ARRAYS(name)                                                                                                   \
    void lb_##name##_f32(float *dst, const float *src, size_t n)                                                       \
    {                                                                                                                  \
        name##_f32_array(dst, src, n);                                                                                 \
    }                                                                                                                  \
    void lb_##name##_f64(double *dst, const double *src, size_t n)                                                     \
    {                                                                                                                  \
        name##_f64_array(dst, src, n);                                                                                 \
    }

/* `brief`: the same for what is rounded to f32 afterwards. */
#define ARRAY_FUNCTIONS(name, brief)                                                                                   \
    double lb_##name(double x)                                                                                         \
    {                                                                                                                  \
        return real_clean(real_##name(x));                                                                             \
    }                                                                                                                  \
    ARRAY_BODY(name##_f32, float, brief)                                                                               \
    ARRAY_BODY(name##_f64, double, real_##name)                                                                        \
    ARRAYS(name)
#define ARRAY_FUNCTION(name) ARRAY_FUNCTIONS(name, real_##name)

ARRAY_FUNCTIONS(exp, real_exp_brief)
ARRAY_FUNCTION(exp2)
ARRAY_FUNCTION(expm1)
ARRAY_FUNCTION(log)
ARRAY_FUNCTION(log2)
ARRAY_FUNCTION(log10)
ARRAY_FUNCTION(log1p)
ARRAY_FUNCTION(tanh)
ARRAY_FUNCTION(sigmoid)
ARRAY_FUNCTION(softplus)
ARRAY_FUNCTION(erf)
ARRAY_FUNCTION(erfc)

/* --- angles ---------------------------------------------------------------------------------------------------- */

/* The bits of 2/pi, most significant first. */
static const uint64_t two_over_pi[] = {0xa2f9836e4e441529, 0xfc2757d1f534ddc0, 0xdb6295993c439041, 0xfe5163abdebbc561,
                                       0xb7246e3a424dd2e0, 0x06492eea09d1921c, 0xfe1deb1cb129a73e, 0xe88235f52ebb4484,
                                       0xe99c7026b45f7e41, 0x3991d639835339f4, 0x9c845f8bbdf9283b, 0x1ff897ffde05980f,
                                       0xef2f118b5a0a6d1f, 0x6d367ecf27cb09b7, 0x4f463f669e5fea2d, 0x7527bac7ebe5f17b,
                                       0x3d0739f78a5292ea, 0x6bfb5fb11f8d5d08, 0x56033046fc7b6bab, 0xf0cfbc209af4361d};

/* 64 bits from bit `at` on; zeros before the first (at > -64). */
static uint64_t bits_at(int at)
{
    if (at < 0) return at > -64 ? two_over_pi[0] >> -at : 0;
    const int word = at / 64, shift = at % 64;
    return shift ? two_over_pi[word] << shift | two_over_pi[word + 1] >> (64 - shift) : two_over_pi[word];
}

/* With |x| = m 2^e, bits of 2/pi worth 4 and more after multiplication are dropped: the 192 bits after them, times m,
 * modulo 2^192, are the angle in quarter turns modulo 4 with 190 bits after the point. */
real_angle real_reduce_large(double x)
{
    const uint64_t u = real_bits(x) & 0x7fffffffffffffffu;
    const int exponent = (int)(u >> 52) - 1075;
    const uint64_t m = (u & 0xfffffffffffffu) | 0x10000000000000u;
    const unsigned __int128 low = (unsigned __int128)m * bits_at(exponent - 2 + 128);
    const unsigned __int128 middle = (unsigned __int128)m * bits_at(exponent - 2 + 64) + (uint64_t)(low >> 64);
    const uint64_t top = m * bits_at(exponent - 2) + (uint64_t)(middle >> 64);
    uint64_t quarter = top >> 62;
    /* The fraction as 128 bits, rounded to the nearest quarter: its sign bit says that the next one is nearer. */
    uint64_t f1 = top << 2 | (uint64_t)middle >> 62, f0 = (uint64_t)middle << 2 | (uint64_t)low >> 62;
    uint64_t rest = (uint64_t)low << 2;
    const bool above = f1 >> 63;
    if (above) {
        quarter++;
        rest = ~rest;
        f0 = ~f0;
        f1 = ~f1;
    }
    /* Normalise so that two doubles hold 106 significant bits; doubles come no closer to a quarter than 2^-62. */
    int shift = 0;
    if (f1 == 0) {
        f1 = f0;
        f0 = rest;
        rest = 0;
        shift = 64;
    }
    const int zeros = f1 ? __builtin_clzll(f1) : 63;
    if (zeros) {
        f1 = f1 << zeros | f0 >> (64 - zeros);
        f0 = f0 << zeros | rest >> (64 - zeros);
    }
    const double scale = real_of((uint64_t)(1023 - shift - zeros) << 52);
    const double hi = (double)(f1 >> 11) * 0x1p-53 * scale;
    const double lo = (double)((f1 << 53 | f0 >> 11) >> 11) * 0x1p-106 * scale;
    const real_pair product = real_product(hi, 0x1.921fb54442d18p+0);
    const double tail = product.lo + (hi * 0x1.1a62633145c07p-54 + lo * 0x1.921fb54442d18p+0);
    const real_pair sum = real_sum_ordered(product.hi, tail);
    const double sign = above != (real_bits(x) >> 63) ? -1.0 : 1.0;
    return (real_angle){sign * sum.hi, sign * sum.lo, real_bits(x) >> 63 ? 0u - quarter : quarter};
}

static double trig_far(double x, uint64_t shift)
{
    if (!(real_abs(x) < INFINITY)) return NAN;
    return real_trig_of(real_reduce_large(x), shift);
}

/* Vector code for near angles; far ones are done again one by one (by value, so that bits do not depend on lanes). */
#define TRIG_BODY(name, type, near, shift)                                                                             \
    LB_INLINE void name##_body(type *dst, const type *src, size_t n)                                                   \
    {                                                                                                                  \
        double in[CHUNK], out[CHUNK];                                                                                  \
        for (size_t at = 0; at < n; at += CHUNK) {                                                                     \
            const size_t count = n - at < CHUNK ? n - at : CHUNK;                                                      \
            int far = 0;                                                                                               \
            for (size_t i = 0; i < count; i++) in[i] = (double)src[at + i];                                            \
            for (size_t i = 0; i < count; i++) far |= !(real_abs(in[i]) <= LB_TRIG_LIMIT);                             \
            for (size_t i = 0; i < count; i++) out[i] = real_clean(near(in[i]));                                       \
            for (size_t i = 0; far && i < count; i++)                                                                  \
                if (!(real_abs(in[i]) <= LB_TRIG_LIMIT)) out[i] = trig_far(in[i], shift);                              \
            for (size_t i = 0; i < count; i++) dst[at + i] = (type)out[i];                                             \
        }                                                                                                              \
    }                                                                                                                  \
    LB_PER_ISA(name##_array, name##_body, (type * dst, const type *src, size_t n), (dst, src, n))

#define TRIG_FUNCTION(name, shift)                                                                                     \
    double lb_##name(double x)                                                                                         \
    {                                                                                                                  \
        return real_abs(x) <= LB_TRIG_LIMIT ? real_##name##_near(x) : trig_far(x, shift);                              \
    }                                                                                                                  \
    TRIG_BODY(name##_f32, float, real_##name##_near, shift)                                                            \
    TRIG_BODY(name##_f64, double, real_##name##_near, shift)                                                           \
    ARRAYS(name)

TRIG_FUNCTION(sin, 0)
TRIG_FUNCTION(cos, 1)

/* --- powers ---------------------------------------------------------------------------------------------------- */

double lb_pow(double x, double y)
{
    return real_clean(real_pow(x, y));
}

#define POW_BODY(name, type)                                                                                           \
    LB_INLINE void name##_body(type *dst, const type *x, const type *y, size_t n)                                      \
    {                                                                                                                  \
        double base[CHUNK], power[CHUNK], out[CHUNK];                                                                  \
        for (size_t at = 0; at < n; at += CHUNK) {                                                                     \
            const size_t count = n - at < CHUNK ? n - at : CHUNK;                                                      \
            for (size_t i = 0; i < count; i++) base[i] = (double)x[at + i];                                            \
            for (size_t i = 0; i < count; i++) power[i] = (double)y[at + i];                                           \
            for (size_t i = 0; i < count; i++) out[i] = real_clean(real_pow(base[i], power[i]));                       \
            for (size_t i = 0; i < count; i++) dst[at + i] = (type)out[i];                                             \
        }                                                                                                              \
    }                                                                                                                  \
    LB_PER_ISA(name##_array, name##_body, (type * dst, const type *x, const type *y, size_t n), (dst, x, y, n))
POW_BODY(pow_f32, float)
POW_BODY(pow_f64, double)

void lb_pow_f32(float *dst, const float *x, const float *y, size_t n)
{
    pow_f32_array(dst, x, y, n);
}
void lb_pow_f64(double *dst, const double *x, const double *y, size_t n)
{
    pow_f64_array(dst, x, y, n);
}
