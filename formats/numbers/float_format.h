/* The bit layout of the narrow floats, and one element's way into and out of it.
 *
 * Everything is written without branches on the data and with the layout as loop-invariant values, so that a plain loop
 * over these functions vectorises; the same source is the scalar definition.
 */
#ifndef LB_FLOAT_FORMAT_H
#define LB_FLOAT_FORMAT_H

#include <lastbit/dtype.h>
#include <lastbit/processor.h>

#include <string.h>

/* A code is sign | exponent | fraction, sign at `sign_shift`; codes of magnitude above max_code are not finite. */
typedef struct float_format {
    uint32_t fraction_bits;
    int32_t bias;
    uint32_t sign_shift;
    uint32_t max_code;      /* largest finite */
    uint32_t inf_code;      /* 0: the format has no infinity */
    uint32_t nan_code;      /* of a NaN, without sign; formats without NaN: what stands for it */
    uint32_t nan_sign;      /* 1: a NaN keeps its sign */
    uint32_t payload_mask;  /* of the NaN payload bits kept (f16) */
    uint32_t unsigned_zero; /* 1: fnuz; the code of -0 is the only NaN */
    float min_subnormal;
    uint32_t torch_over, torch_inf; /* what torch's cast gives for finite overflow and for infinity */
} float_format;

/* bf16, f16, tf32 and the 8- and 4-bit floats; NULL for any other dtype (f32 has one of its own, for f64 sources). */
const float_format *float_format_of(lb_dtype dtype);
extern const float_format float_format_f32;

/* A format with the choices of one lb_cast resolved. */
typedef struct float_target {
    uint32_t fraction_bits;
    int32_t bias;
    uint32_t sign_shift, max_code, nan_code, nan_sign, payload_mask, unsigned_zero;
    uint32_t over_code, inf_code; /* what a finite overflow and an infinity become */
    uint32_t smallest_kept;       /* codes below become 0: flush_subnormals */
} float_target;

float_target float_target_of(const float_format *format, const lb_cast *cast);

LB_INLINE uint32_t bits_of_f32(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

LB_INLINE float f32_of_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

LB_INLINE uint64_t bits_of_f64(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* condition (0 or 1) ? yes : no, as arithmetic: compilers turn chains of ?: into branches and then vectorise
 * nothing. */
LB_INLINE uint32_t pick(uint32_t condition, uint32_t yes, uint32_t no)
{
    const uint32_t mask = 0u - condition;
    return (yes & mask) | (no & ~mask);
}

/* What a magnitude that was cut to `code` becomes, with sign and specials put back. */
LB_INLINE uint32_t float_finish(uint32_t code, uint32_t sign, uint32_t is_inf, uint32_t is_nan, uint32_t payload,
                                const float_target *t)
{
    code = pick(code < t->smallest_kept, 0, code);
    code = pick(code > t->max_code, t->over_code, code);
    code = pick(is_inf, t->inf_code, code);
    code = pick(is_nan, t->nan_code | (payload & t->payload_mask), code);
    sign &= pick(is_nan, t->nan_sign, 1u);
    sign &= 1u ^ (t->unsigned_zero & (code == 0));
    return code | (sign << t->sign_shift);
}

/* f32 -> code. `random`: 32 uniform bits, used by LB_STOCHASTIC alone. */
LB_INLINE uint32_t float_encode_f32(float x, const float_target *t, lb_rounding rounding, uint32_t random)
{
    const uint32_t u = bits_of_f32(x), a = u & 0x7fffffffu;
    const uint32_t hidden = a >= 0x800000u;
    const int32_t exponent = (int32_t)(a >> 23) + (int32_t)(1u - hidden); /* of the f32, biased, subnormals at 1 */
    const uint32_t mantissa = (a & 0x7fffffu) | (hidden << 23);
    const int32_t biased = exponent - 127 + t->bias; /* of the target */
    const uint32_t is_small = biased < 1;
    const uint32_t under = pick(is_small, (uint32_t)(1 - biased), 0);
    const uint32_t drop = 23u - t->fraction_bits + under;
    const uint32_t shift = pick(drop < 31u, drop, 31u); /* 24 bits shifted by 31 or more leave nothing either way */
    const uint32_t half = 1u << (shift - 1u);
    uint32_t keep = mantissa >> shift;
    if (rounding == LB_RNE) {
        keep = (mantissa + half - 1u + (keep & 1u)) >> shift;
    } else if (rounding == LB_RNA) {
        keep = (mantissa + half) >> shift;
    } else if (rounding == LB_STOCHASTIC) {
        const uint32_t rest = mantissa & ((1u << shift) - 1u);
        const uint32_t left = (32u - drop) & 31u, right = pick(drop < 63u, (drop - 32u) & 31u, 31u);
        keep += random < pick(drop < 32u, rest << left, mantissa >> right);
    }
    const uint32_t base = pick(is_small, 0, (uint32_t)(biased - 1)) << t->fraction_bits;
    return float_finish(base + keep, u >> 31, a == 0x7f800000u, a > 0x7f800000u, a >> 13, t);
}

/* f64 -> code, rounded once. */
LB_INLINE uint32_t float_encode_f64(double x, const float_target *t, lb_rounding rounding, uint32_t random)
{
    const uint64_t u = bits_of_f64(x), a = u & 0x7fffffffffffffffu;
    const uint64_t hidden = a >= (1ull << 52);
    const int64_t exponent = (int64_t)(a >> 52) + (int64_t)(1u - hidden);
    const uint64_t mantissa = (a & 0xfffffffffffffu) | (hidden << 52);
    const int64_t biased = exponent - 1023 + t->bias;
    const uint64_t under = biased < 1 ? (uint64_t)(1 - biased) : 0;
    const uint64_t drop = 52u - t->fraction_bits + under;
    const uint64_t shift = drop < 63u ? drop : 63u;
    const uint64_t keep = mantissa >> shift, rest = mantissa & ((1ull << shift) - 1u), half = 1ull << (shift - 1u);
    uint64_t up = 0;
    if (rounding == LB_RNE) {
        up = (rest > half) | (pick(rest == half, keep, 0) & 1u);
    } else if (rounding == LB_RNA) {
        up = rest >= half;
    } else if (rounding == LB_STOCHASTIC) {
        const uint64_t cut = drop < 32u ? rest << (32u - drop) : drop - 32u < 63u ? rest >> (drop - 32u) : 0;
        up = random < cut;
    }
    uint64_t code = ((uint64_t)(biased > 1 ? biased - 1 : 0) << t->fraction_bits) + keep + up;
    if (code > 0xffffffffu) code = 0xffffffffu;
    return float_finish((uint32_t)code, (uint32_t)(u >> 63), a == (0x7ffull << 52), a > (0x7ffull << 52),
                        (uint32_t)(a >> (t->fraction_bits == 23 ? 29 : 42)), t);
}

/* code -> f32, exact for every format here. */
LB_INLINE float float_decode(uint32_t code, const float_format *f)
{
    const uint32_t a = code & ((1u << f->sign_shift) - 1u), sign = code >> f->sign_shift;
    const uint32_t widen = 23u - f->fraction_bits, placed = a << widen;
    const uint32_t normal = placed + ((uint32_t)(127 - f->bias) << 23);
    const uint32_t subnormal = bits_of_f32((float)(int32_t)a * f->min_subnormal);
    uint32_t special = 0x7f800000u | (placed & 0x7fffffu);
    special |= pick((special & 0x7fffffu) != 0, 0x400000u, 0);
    uint32_t u = pick((a >> f->fraction_bits) != 0, normal, subnormal);
    u = pick(a > f->max_code, special, u);
    u = pick(f->unsigned_zero & sign & (a == 0), 0x7fc00000u, u);
    return f32_of_bits(u | (sign << 31));
}

/* e8m0 holds an exponent and nothing else. Nearest as c10 does it (ties up); toward zero takes the exponent as it
 * is. */
LB_INLINE uint32_t scale_encode(float x, lb_rounding rounding, lb_overflow overflow, uint32_t random)
{
    const uint32_t a = bits_of_f32(x) & 0x7fffffffu, exponent = a >> 23, fraction = a & 0x7fffffu;
    if (a > 0x7f800000u) return 0xff;
    uint32_t up = 0;
    if (rounding == LB_STOCHASTIC) {
        up = exponent ? random < fraction << 9 : fraction > 0x400000u && random < (fraction - 0x400000u) << 10;
    } else if (rounding != LB_RZ) {
        up = exponent ? fraction >= 0x400000u : fraction > 0x400000u;
    }
    uint32_t code = exponent == 0xff ? 0xff : exponent + up;
    return code == 0xff && (overflow == LB_OVERFLOW_SATURATE || (rounding == LB_RZ && exponent < 0xff)) ? 0xfe : code;
}

LB_INLINE float scale_decode(uint32_t code)
{
    return f32_of_bits(code == 0 ? 0x00400000u : code == 0xff ? 0x7fc00000u : code << 23);
}

#endif
