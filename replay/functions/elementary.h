/* Transcendental functions with bits of their own: no libm, the same on every machine and instruction set.
 *
 * f64: the error is below 1 ulp (erf 1.5; tanh, sigmoid and softplus 2; erfc 5), so that an f32 result, which is the
 * f64 one rounded once, is the correctly rounded one but for about one argument in 10^8. Special values as in IEEE 754
 * and C's Annex F; a NaN result is the canonical one. Subnormals are results and arguments like any other.
 *
 * Arrays may be equal (in place), else must not overlap. Any thread. Inside a loop of your own use elementary_real.h.
 */
#ifndef LB_ELEMENTARY_H
#define LB_ELEMENTARY_H

#include <stddef.h>

/* X(name): functions of one argument. softplus is log(1 + e^x) without torch's threshold. */
#define LB_ELEMENTARY(X)                                                                                               \
    X(exp)                                                                                                             \
    X(exp2)                                                                                                            \
    X(expm1)                                                                                                           \
    X(log)                                                                                                             \
    X(log2)                                                                                                            \
    X(log10)                                                                                                           \
    X(log1p)                                                                                                           \
    X(sin)                                                                                                             \
    X(cos)                                                                                                             \
    X(tanh)                                                                                                            \
    X(sigmoid)                                                                                                         \
    X(softplus)                                                                                                        \
    X(erf)                                                                                                             \
    X(erfc)

#define LB_ELEMENTARY_DECLARE(name)                                                                                    \
    double lb_##name(double x);                                                                                        \
    void lb_##name##_f32(float *dst, const float *src, size_t n);                                                      \
    void lb_##name##_f64(double *dst, const double *src, size_t n);
LB_ELEMENTARY(LB_ELEMENTARY_DECLARE)
#undef LB_ELEMENTARY_DECLARE

double lb_pow(double x, double y);
/* dst[i] = x[i] ^ y[i] */
void lb_pow_f32(float *dst, const float *x, const float *y, size_t n);
void lb_pow_f64(double *dst, const double *x, const double *y, size_t n);

#endif
