/* One f64 of each function of elementary.h, inline, so that a loop around it becomes vector code.
 *
 * Not a libm: no errno, no traps, one rounding mode. Plain multiplications and additions in a stated order (never an
 * fma), selections instead of branches: under strict floating point the bits are those of the source on every
 * instruction set. Extra precision comes from error-free sums and products (Dekker, Knuth) where a rounding would show.
 *
 * Coefficients are minimax fits by Remez exchange in 220-bit arithmetic; the comment gives interval and error.
 */
#ifndef LB_ELEMENTARY_REAL_H
#define LB_ELEMENTARY_REAL_H

#include "functions/real_bits.h"

#include <math.h>
#include <string.h>

#define LB_LN2_HI 0x1.62e42fefa2000p-1 /* 40 bits: times an exponent it is exact */
#define LB_LN2_LO 0x1.9ef35793c7673p-41
#define LB_ROUNDER 0x1.8p52 /* adding it leaves the nearest integer in the low bits */

LB_INLINE double real_abs(double x)
{
    return real_of(real_bits(x) & 0x7fffffffffffffffu);
}
LB_INLINE double real_copysign(double x, double sign)
{
    return real_of((real_bits(x) & 0x7fffffffffffffffu) | (real_bits(sign) & 0x8000000000000000u));
}

/* condition ? a : b, as bits: a chain of ?: becomes branches, and those are not vectorised. */
LB_INLINE double real_pick(int condition, double a, double b)
{
    const uint64_t mask = 0u - (uint64_t)(condition != 0);
    return real_of((real_bits(a) & mask) | (real_bits(b) & ~mask));
}

/* Which of two NaNs an operation hands on is the compiler's choice: results are made canonical. */
LB_INLINE double real_clean(double x)
{
    return real_pick(x != x, NAN, x);
}

LB_INLINE double real_clamp(double x, double low, double high) /* NaN stays */
{
    x = real_pick(x > high, high, x);
    return real_pick(x < low, low, x);
}

/* --- two doubles as one number --------------------------------------------------------------------------------- */

typedef struct real_pair {
    double hi, lo;
} real_pair;

LB_INLINE real_pair real_sum(double a, double b)
{
    const double s = a + b, v = s - a;
    return (real_pair){s, (a - (s - v)) + (b - v)};
}

/* |a| >= |b|, or a == 0 */
LB_INLINE real_pair real_sum_ordered(double a, double b)
{
    const double s = a + b;
    return (real_pair){s, b - (s - a)};
}

LB_INLINE real_pair real_product(double a, double b)
{
    const double ca = 134217729.0 * a, cb = 134217729.0 * b;
    const double ah = ca - (ca - a), bh = cb - (cb - b), al = a - ah, bl = b - bh;
    const double p = a * b;
    return (real_pair){p, ((ah * bh - p) + ah * bl + al * bh) + al * bl};
}

/* --- exponentials ---------------------------------------------------------------------------------------------- */

/* 2^k, -1022 <= k <= 1023, from a double that is LB_ROUNDER + k. */
LB_INLINE double real_power_of_two(double rounder_plus_k)
{
    return real_of((real_bits(rounder_plus_k) + 1023) << 52);
}

/* y * 2^k for any k in [-2100, 2100], rounded once: by two exact factors, of which only the last can leave the
 * range. */
LB_INLINE double real_scale(double y, double k)
{
    const double half = k * 0.5 + LB_ROUNDER, rest = (k - (half - LB_ROUNDER)) + LB_ROUNDER;
    return y * real_power_of_two(half) * real_power_of_two(rest);
}

/* e^r = 1 + r + tail, |r| <= ln2/2. (e^r - 1 - r) / r^2 so that e^r is good to 2^-64. */
LB_INLINE double real_exp_tail(double r)
{
    double p = 0x1.1f9e4a032fa11p-29;
    p = p * r + 0x1.af6d470a638dap-26;
    p = p * r + 0x1.27e4bef07c784p-22;
    p = p * r + 0x1.71ddef4ea90dcp-19;
    p = p * r + 0x1.a01a01b47735dp-16;
    p = p * r + 0x1.a01a01b3d6647p-13;
    p = p * r + 0x1.6c16c16c13509p-10;
    p = p * r + 0x1.111111110eb6dp-7;
    p = p * r + 0x1.555555555555ep-5;
    p = p * r + 0x1.555555555555cp-3;
    p = p * r + 0x1.0000000000000p-1;
    return r * r * p;
}

/* e^(x + low), x in [-1500, 1500] or NaN, |low| small. */
LB_INLINE double real_exp_pair(double x, double low)
{
    const double k = (x * 0x1.71547652b82fep+0 + LB_ROUNDER) - LB_ROUNDER;
    const double a = x - k * LB_LN2_HI, b = k * LB_LN2_LO, r = a - b, c = ((a - r) - b) + low;
    const double square = real_exp_tail(r), tail = square + (c + c * (r + square));
    const real_pair one = real_sum_ordered(1.0, r);
    return real_scale(one.hi + (one.lo + tail), k);
}

LB_INLINE double real_exp(double x)
{
    return real_exp_pair(real_clamp(x, -746.0, 710.0), 0.0);
}

/* e^x of an f32, to be rounded to f32: for each of the 2^32 numbers that gives the bits which real_exp gives (gone
 * through one by one). (e^r - 1 - r) / r^2 to 2^-47; what is past f32's range on either side stays past it. */
LB_INLINE double real_exp_brief(double x)
{
    x = real_clamp(x, -110.0, 90.0);
    const double t = x * 0x1.71547652b82fep+0 + LB_ROUNDER, k = t - LB_ROUNDER, r = (x - k * LB_LN2_HI) - k * LB_LN2_LO;
    double p = 0x1.289bb88d164a8p-22;
    p = p * r + 0x1.72c7424d53424p-19;
    p = p * r + 0x1.a019b04d7601bp-16;
    p = p * r + 0x1.a019ad945950dp-13;
    p = p * r + 0x1.6c16c17ae2269p-10;
    p = p * r + 0x1.1111111c4a9eap-7;
    p = p * r + 0x1.55555555536bep-5;
    p = p * r + 0x1.5555555553b6dp-3;
    p = p * r + 0x1.0000000000004p-1;
    return (1.0 + (r + r * r * p)) * real_power_of_two(t);
}

LB_INLINE double real_exp2(double x)
{
    x = real_clamp(x, -1076.0, 1025.0);
    const double k = (x + LB_ROUNDER) - LB_ROUNDER, f = x - k; /* exact */
    const real_pair product = real_product(f, 0x1.62e42fefa39efp-1);
    const double r = product.hi, c = product.lo + f * 0x1.abc9e3b39803fp-56;
    const double tail = real_exp_tail(r) + (c + c * r);
    const real_pair one = real_sum_ordered(1.0, r);
    return real_scale(one.hi + (one.lo + tail), k);
}

/* e^x - 1 as an unevaluated sum, x in [-50, 42] (2^k - 1 is exact there) or NaN. */
LB_INLINE real_pair real_expm1_pair(double x)
{
    const double t = x * 0x1.71547652b82fep+0 + LB_ROUNDER, k = t - LB_ROUNDER, scale = real_power_of_two(t);
    const double a = x - k * LB_LN2_HI, b = k * LB_LN2_LO, r = a - b, c = (a - r) - b;
    const double tail = real_exp_tail(r) + (c + c * r);
    const real_pair sum = real_sum(scale - 1.0, scale * r);
    return (real_pair){sum.hi, sum.lo + scale * tail};
}

LB_INLINE double real_expm1(double x)
{
    const real_pair pair = real_expm1_pair(real_clamp(x, -50.0, 42.0));
    const double y = real_pick(x > 42.0, real_exp(x), pair.hi + pair.lo);
    return real_pick(x == 0.0, x, y); /* keeps -0 */
}

/* --- logarithms ------------------------------------------------------------------------------------------------ */

/* x = 2^k (1 + f), 1 + f in [sqrt(1/2), sqrt(2)); x positive and finite. */
typedef struct real_parts {
    double k, f;
} real_parts;

LB_INLINE real_parts real_split(double x)
{
    const double small = real_pick(x < 0x1p-1022, 54.0, 0.0), normal = real_pick(x < 0x1p-1022, x * 0x1p54, x);
    const uint64_t u = real_bits(normal) + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
    const double k = real_of((u >> 52) | 0x4330000000000000u) - (0x1p52 + 1023.0) - small;
    return (real_parts){k, real_of((u & 0x000fffffffffffffu) + 0x3fe6a09e667f3bcdu) - 1.0};
}

/* log(1+f) = f - (f^2/2 - s (f^2/2 + R)), s = f / (2+f), z = s^2; R/z on [0, 0.0295] to 2^-65. */
LB_INLINE double real_log_rest(double z)
{
    double p = 0x1.0f72f7b48b2e3p-3;
    p = p * z + 0x1.0f5b0b7845246p-3;
    p = p * z + 0x1.3b20bf3ac1fcap-3;
    p = p * z + 0x1.745cddc301c73p-3;
    p = p * z + 0x1.c71c725a6a919p-3;
    p = p * z + 0x1.249249242a0cbp-2;
    p = p * z + 0x1.9999999999e0ep-2;
    p = p * z + 0x1.5555555555555p-1;
    return z * p;
}

/* What log gives at and beyond the ends of its domain. */
LB_INLINE double real_log_ends(double x, double y)
{
    y = real_pick(x < INFINITY, y, x); /* infinity, NaN */
    y = real_pick(x == 0.0, -INFINITY, y);
    return real_pick(x < 0.0, NAN, y);
}

LB_INLINE double real_log(double x)
{
    const real_parts p = real_split(x);
    const double f = p.f, s = f / (2.0 + f), half = 0.5 * f * f;
    const double inner = s * (half + real_log_rest(s * s));
    const double y = p.k * LB_LN2_HI - ((half - (inner + p.k * LB_LN2_LO)) - f);
    return real_log_ends(x, y);
}

/* log(x) / log(base), given 1/log(base) = ih + il and log(2)/log(base) = kh + kl, ih of 31 bits. */
LB_INLINE double real_log_base(double x, double ih, double il, double kh, double kl)
{
    const real_parts p = real_split(x);
    const double f = p.f, s = f / (2.0 + f), half = 0.5 * f * f;
    const double hi = real_of(real_bits(f - half) & 0xffffffff00000000u); /* times ih it is exact */
    const double lo = ((f - hi) - half) + s * (half + real_log_rest(s * s));
    const real_pair sum = real_sum(p.k * kh, hi * ih);
    return real_log_ends(x, sum.hi + (sum.lo + ((lo * ih + (lo + hi) * il) + p.k * kl)));
}

LB_INLINE double real_log2(double x)
{
    return real_log_base(x, 0x1.7154765000000p+0, 0x1.5c17f0bbbe880p-31, 1.0, 0.0);
}

LB_INLINE double real_log10(double x)
{
    return real_log_base(x, 0x1.bcb7b15000000p-2, 0x1.37287195355bbp-33, 0x1.34413509f6000p-2, 0x1.9fef311f12b36p-42);
}

/* log(1 + x), x > -1 finite or NaN. */
LB_INLINE double real_log1p_inside(double x)
{
    const real_pair u = real_sum(1.0, x); /* 1 + x, and what its rounding lost */
    const real_parts p = real_split(u.hi);
    const double f = real_pick(p.k == 0.0, x, p.f), c = real_pick(p.k == 0.0, 0.0, u.lo / u.hi);
    const double s = f / (2.0 + f), half = 0.5 * f * f;
    const double inner = s * (half + real_log_rest(s * s));
    return p.k * LB_LN2_HI - ((half - (inner + (p.k * LB_LN2_LO + c))) - f);
}

LB_INLINE double real_log1p(double x)
{
    double y = real_pick(x < INFINITY, real_log1p_inside(x), x);
    y = real_pick(x == 0.0, x, y);
    y = real_pick(x == -1.0, -INFINITY, y);
    return real_pick(x < -1.0, NAN, y);
}

/* log(x), x positive and finite, to about 2^-65: 2s + 2/3 s^3 + s^5 Q(z); Q on [0, 0.0295] to 2^-65 of the whole. */
LB_INLINE real_pair real_log_pair(double x)
{
    const real_parts p = real_split(x);
    const double f = p.f, d = 2.0 + f, d_low = f - (d - 2.0), s = f / d;
    const real_pair back = real_product(s, d);
    const double s_low = (((f - back.hi) - back.lo) - s * d_low) / d;
    const real_pair z = real_product(s, s);
    const double z_low = z.lo + 2.0 * s * s_low;
    const real_pair cube = real_product(s, z.hi);
    const double cube_low = cube.lo + (s * z_low + s_low * z.hi);
    const real_pair third = real_product(0x1.5555555555555p-1, cube.hi);
    const double third_low = third.lo + (0x1.5555555555555p-55 * cube.hi + 0x1.5555555555555p-1 * cube_low);
    double q = 0x1.0e5241137f4c4p-3;
    q = q * z.hi + 0x1.0f7e487a8358ep-3;
    q = q * z.hi + 0x1.3b1efd6002122p-3;
    q = q * z.hi + 0x1.745ce986813e5p-3;
    q = q * z.hi + 0x1.c71c722e6b1f4p-3;
    q = q * z.hi + 0x1.2492492457233p-2;
    q = q * z.hi + 0x1.9999999999b36p-2;
    const double rest = cube.hi * z.hi * q;
    const real_pair a = real_sum(p.k * LB_LN2_HI, 2.0 * s), b = real_sum(a.hi, third.hi);
    const double low = (a.lo + b.lo) + (((2.0 * s_low + third_low) + p.k * LB_LN2_LO) + rest);
    return real_sum_ordered(b.hi, low);
}

/* --- powers ---------------------------------------------------------------------------------------------------- */

/* The nearest integer to x >= 0; x itself from 2^52 on. */
LB_INLINE double real_whole(double x)
{
    return real_pick(x < 0x1p52, (x + 0x1p52) - 0x1p52, x);
}

/* IEEE 754 pow, special cases included. */
LB_INLINE double real_pow(double x, double y)
{
    const double ax = real_abs(x), ay = real_abs(y);
    /* From 2^65 on every base but 1 over- or underflows, so that a larger y says nothing more. */
    const double power = real_clamp(y, -0x1p65, 0x1p65);
    const real_pair log = real_log_pair(ax);
    const real_pair product = real_product(power, log.hi);
    const double low = product.lo + power * log.lo, high = real_clamp(product.hi, -800.0, 800.0);
    double r = real_exp_pair(high, real_pick(high == product.hi, low, 0.0));
    r = real_pick(ax == 0.0, real_pick(y < 0.0, INFINITY, 0.0), r);
    r = real_pick(ax == INFINITY, real_pick(y < 0.0, 0.0, INFINITY), r);
    /* A negative base: the sign of an odd power; no value for a power that is not an integer, but of 0 and infinity. */
    const double half = ay * 0.5, negative = real_copysign(1.0, x);
    const int odd = (ay < 0x1p53) & (real_whole(half) != half), whole = real_whole(ay) == ay;
    const double of_whole = real_pick(odd, r * negative, r);
    const double of_broken = real_pick((x < 0.0) & (ax < INFINITY), NAN, r);
    r = real_pick(whole, of_whole, of_broken);
    r = real_pick((x != x) | (y != y), NAN, r);
    return real_pick((x == 1.0) | (y == 0.0), 1.0, r);
}

/* --- sine and cosine ------------------------------------------------------------------------------------------- */

#define LB_TRIG_LIMIT 0x1p20 /* the reduction below holds for |x| up to here; beyond: real_reduce_large */

/* x - quarter * pi/2 as a pair; `quarter` modulo 4 in its low bits. */
typedef struct real_angle {
    double hi, lo;
    uint64_t quarter;
} real_angle;

/* pi/2 in three parts of 33 bits (exact times k) and a rest. */
LB_INLINE real_angle real_reduce(double x)
{
    const double t = x * 0x1.45f306dc9c883p-1 + LB_ROUNDER, k = t - LB_ROUNDER;
    const double a = x - k * 0x1.921fb54400000p+0;
    const real_pair b = real_sum(a, -(k * 0x1.0b4611a600000p-34));
    const real_pair c = real_sum(b.hi, -(k * 0x1.3198a2e000000p-69));
    const double low = (b.lo + c.lo) - k * 0x1.b839a252049c1p-104;
    const real_pair sum = real_sum(c.hi, low);
    return (real_angle){sum.hi, sum.lo, real_bits(t)};
}

/* Any finite x, by integer arithmetic on the bits of 2/pi (Payne and Hanek); elementary.c. */
real_angle real_reduce_large(double x);

/* (sin(r)/r - 1) / z, z = r^2 <= (pi/4)^2, to 2^-58 of sin. */
LB_INLINE double real_sin_reduced(double r, double low)
{
    const double z = r * r, cube = z * r;
    double p = 0x1.5d9246c445daap-33;
    p = p * z + -0x1.ae5e63cd6852bp-26;
    p = p * z + 0x1.71de3574ba35bp-19;
    p = p * z + -0x1.a01a019c0e4bep-13;
    p = p * z + 0x1.111111110f861p-7;
    return r - ((z * (0.5 * low - cube * p) - low) - cube * -0x1.5555555555549p-3);
}

/* (cos(r) - 1 + z/2) / z^2 to 2^-64 of cos. */
LB_INLINE double real_cos_reduced(double r, double low)
{
    const double z = r * r;
    double p = -0x1.8fadd0652f6bep-37;
    p = p * z + 0x1.1ee9ea6cae6d6p-29;
    p = p * z + -0x1.27e4f807d608bp-22;
    p = p * z + 0x1.a01a019caef35p-16;
    p = p * z + -0x1.6c16c16c15162p-10;
    p = p * z + 0x1.555555555554cp-5;
    const double half = 0.5 * z, w = 1.0 - half;
    return w + (((1.0 - w) - half) + (z * z * p - r * low));
}

/* sin when shift is 0, cos when it is 1. */
LB_INLINE double real_trig_of(real_angle angle, uint64_t shift)
{
    const uint64_t quarter = angle.quarter + shift;
    const double s = real_sin_reduced(angle.hi, angle.lo), c = real_cos_reduced(angle.hi, angle.lo);
    const uint64_t mask = 0u - (quarter & 1u);
    return real_of(((real_bits(c) & mask) | (real_bits(s) & ~mask)) ^ ((quarter & 2u) << 62));
}

/* |x| <= LB_TRIG_LIMIT */
LB_INLINE double real_sin_near(double x)
{
    const double y = real_trig_of(real_reduce(x), 0);
    return real_pick(x == 0.0, x, y);
}
LB_INLINE double real_cos_near(double x)
{
    return real_trig_of(real_reduce(x), 1);
}

/* --- what networks use ----------------------------------------------------------------------------------------- */

LB_INLINE double real_tanh(double x)
{
    const double ax = real_clamp(real_abs(x), 0.0, 20.0);
    const real_pair e = real_expm1_pair(2.0 * ax);
    const double t = e.hi + e.lo, quotient = real_pick(ax < 0.5, t, 2.0) / (t + 2.0);
    return real_copysign(real_pick(ax < 0.5, quotient, 1.0 - quotient), x);
}

/* 1 / (1 + e^-x) */
LB_INLINE double real_sigmoid(double x)
{
    const double e = real_exp(-real_abs(x));
    return real_pick(x < 0.0, e, 1.0) / (1.0 + e);
}

/* log(1 + e^x), without torch's threshold. */
LB_INLINE double real_softplus(double x)
{
    const double y = real_pick(x > 0.0, x, 0.0) + real_log1p_inside(real_exp(-real_abs(x)));
    return real_pick(x < INFINITY, y, x); /* infinity, NaN */
}

/* x + x F(x^2) up to 1, F to 2^-57; then 1 - e^(-x^2) G(1/(x+2)), G to 2^-62 of the result, up to 6. */
LB_INLINE double real_erf(double x)
{
    const double ax = real_abs(x), inside = real_clamp(ax, 0.0, 6.0), z = inside * inside;
    double f = -0x1.abae49290284cp-31;
    f = f * z + 0x1.d71b0f1f004ccp-27;
    f = f * z + -0x1.5c0726f0d10c6p-23;
    f = f * z + 0x1.b97fd3d9a539cp-20;
    f = f * z + -0x1.f4ca4d6f3fbefp-17;
    f = f * z + 0x1.f9a2baa8fef05p-14;
    f = f * z + -0x1.c02db03dd71dcp-11;
    f = f * z + 0x1.565bccf92b2f9p-8;
    f = f * z + -0x1.b82ce311fa93ep-6;
    f = f * z + 0x1.ce2f21a040d16p-4;
    f = f * z + -0x1.812746b0379bdp-2;
    f = f * z + 0x1.06eba8214db68p-3;
    const double t = 1.0 / (inside + 2.0);
    double g = 0x1.b77017a86378ap+6;
    g = g * t + -0x1.2d1f327803871p+9;
    g = g * t + 0x1.5a6f4411c06d5p+10;
    g = g * t + -0x1.bf1cb4e38b001p+10;
    g = g * t + 0x1.64541645ab45bp+10;
    g = g * t + -0x1.6823a1c137a5cp+9;
    g = g * t + 0x1.d8ffbfb602942p+7;
    g = g * t + -0x1.eacba9a7a0295p+5;
    g = g * t + 0x1.be8aeb9292e05p+3;
    g = g * t + 0x1.4b34cd1a06c21p+0;
    g = g * t + 0x1.0fb8e2d2769cep+1;
    g = g * t + 0x1.1e5ce3a20007ap+0;
    g = g * t + 0x1.21110873a43e3p-1;
    g = g * t + -0x1.ea5284419b3fbp-18;
    const double wide = 1.0 - real_exp(-z) * g;
    return real_copysign(real_pick(ax < 1.0, inside + inside * f, wide), x);
}

/* 1 - erf below 1/2; then e^(-x^2) H(1/(x+3)), H to 2^-61, x^2 exact; 2 - that for negative x. */
LB_INLINE double real_erfc(double x)
{
    const double ax = real_abs(x), inside = real_clamp(ax, 0.0, 28.0), t = 1.0 / (inside + 3.0);
    const real_pair z = real_product(inside, inside);
    double h = 0x1.1f6b8b9f8758bp+27;
    h = h * t + -0x1.0095931965d7ap+29;
    h = h * t + 0x1.a59e975f4b4bbp+29;
    h = h * t + -0x1.a50ddc1c8d9b5p+29;
    h = h * t + 0x1.1cb9692d3df44p+29;
    h = h * t + -0x1.1412bad4ea16ep+28;
    h = h * t + 0x1.8fa4834824376p+26;
    h = h * t + -0x1.c0d340768313ap+24;
    h = h * t + 0x1.93c38b4b06b84p+22;
    h = h * t + -0x1.231e77a3b4427p+20;
    h = h * t + 0x1.527ff602dffc6p+17;
    h = h * t + -0x1.683d9e05e0fdfp+14;
    h = h * t + 0x1.a3c458738e828p+10;
    h = h * t + -0x1.78e72fa4268d5p+6;
    h = h * t + 0x1.6f4fbbf5dbca6p+7;
    h = h * t + 0x1.efee9a5b02421p+6;
    h = h * t + 0x1.0d3a8194921dep+6;
    h = h * t + 0x1.ee3707e744e53p+4;
    h = h * t + 0x1.9637a0c786e3fp+3;
    h = h * t + 0x1.32eb4a4ad2c4cp+2;
    h = h * t + 0x1.b14c2fa28a471p+0;
    h = h * t + 0x1.20dd7503b003bp-1;
    h = h * t + 0x1.e760db72b4f5ap-43;
    const double far = real_exp_pair(-z.hi, -z.lo) * h;
    return real_pick(ax < 0.5, 1.0 - real_erf(x), real_pick(x < 0.0, 2.0 - far, far));
}

#endif
