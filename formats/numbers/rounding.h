/* Rounding an f32 to a narrower float by adding a power of two.
 *
 * For 0 <= m < 2^23 s the sum m + 2^23 s lies where f32 itself has steps of s: the addition rounds m to a multiple of
 * s, ties to even, and the low bits of the sum count the steps. s is the target's step at m's exponent, or below its
 * least normal value the subnormal step, so subnormals need no branch. The other roundings correct the result by one
 * step, exactly.
 *
 * For targets whose 2^23 steps an f32 can hold: f16 and all 8- and 4-bit floats. bf16 and tf32 have f32's own exponents
 * and round by integer addition, see grid.c. float_encode_f32 defines the same roundings without a float operation;
 * tests compare the two. The processor must round to nearest and keep subnormals, as C and torch leave it.
 */
#ifndef LB_ROUNDING_H
#define LB_ROUNDING_H

#include "numbers/float_format.h"

/* Fields are exponents in place, bits 23 to 30 of an f32. */
typedef struct rounder {
    int32_t least;      /* field of the least normal value */
    int32_t beyond;     /* bits of the power of two above the largest value: nothing larger needs to be told apart */
    int32_t lift;       /* from a field to that of 2^23 steps */
    int32_t drop;       /* from a field down to that of one step */
    int32_t code_shift; /* from a difference of fields to one of codes */
} rounder;

LB_INLINE rounder rounder_of(const float_format *f)
{
    const int32_t fraction = (int32_t)f->fraction_bits;
    const int32_t top =
        (int32_t)(f->max_code >> f->fraction_bits); /* exponent of the largest value, as the format holds it */
    return (rounder){(128 - f->bias) << 23, (top + 128 - f->bias) << 23, (23 - fraction) << 23, fraction << 23,
                     23 - fraction};
}

/* A magnitude on its way to the target's grid. */
typedef struct rounded {
    float value;
    int32_t steps; /* value / step */
    int32_t field; /* of m, or the least normal's */
} rounded;

/* `a`: bits of |x|. Finite overflow, infinity and NaN come out as `beyond` or more. */
LB_INLINE rounded round_magnitude(int32_t a, const rounder *g, lb_rounding rounding, uint32_t random)
{
    const int32_t capped = a < g->beyond ? a : g->beyond, own = capped & 0x7f800000;
    const int32_t field = own > g->least ? own : g->least, magic_bits = field + g->lift;
    const float m = f32_of_bits((uint32_t)capped), magic = f32_of_bits((uint32_t)magic_bits);
    const float sum = m + magic, step = f32_of_bits((uint32_t)(field - g->drop));
    rounded r = {sum - magic, (int32_t)bits_of_f32(sum) - magic_bits, field};
    if (rounding == LB_RNA) {
        const int32_t tie = m - r.value == 0.5f * step;
        r.value = tie ? r.value + step : r.value;
        r.steps += tie;
    }
    if (rounding == LB_RZ || rounding == LB_STOCHASTIC) {
        const int32_t above = r.value > m;
        r.value = above ? r.value - step : r.value;
        r.steps -= above;
    }
    if (rounding == LB_STOCHASTIC) {
        /* The discarded part in 2^-32, cut off; by halves since AVX2 converts to signed integers only. */
        const float part = (m - r.value) * f32_of_bits((uint32_t)((254 << 23) - (field - g->drop))) * 65536.0f;
        const int32_t high = (int32_t)part;
        const uint32_t low = (uint32_t)(int32_t)((part - (float)high) * 65536.0f);
        const int32_t up = random < ((uint32_t)high << 16 | low);
        r.value = up ? r.value + step : r.value;
        r.steps += up;
    }
    return r;
}

/* f32 -> code of the target, the same as float_encode_f32. */
LB_INLINE uint32_t round_to_code(float x, const rounder *g, const float_target *t, lb_rounding rounding,
                                 uint32_t random)
{
    const uint32_t u = bits_of_f32(x), a = u & 0x7fffffffu;
    const rounded r = round_magnitude((int32_t)a, g, rounding, random);
    const uint32_t code = (uint32_t)(r.steps + ((r.field - g->least) >> g->code_shift));
    return float_finish(code, u >> 31, a == 0x7f800000u, a > 0x7f800000u, a >> 13, t);
}

#endif
