/* Elementary functions that models use now and then: trigonometry and its inverses, hyperbolic functions, erfinv, shrinkage.
 *
 * All are evaluated in f64 from the functions of elementary.h and rounded once. The arc tangent corrects a coarse guess g by the exact
 * identity atan x = g + atan((x - tan g) / (1 + x tan g)), whose second term is so small that three terms of its series do. */
#include "transcendental.h"

#define COMMON LB_POINTWISE_COMMON
#define PI 3.14159265358979323846

/* v = atan(u), with t for scratch; u may be infinite. Worked on |u| <= 1, beyond it atan u = ±π/2 - atan 1/u. */
#define ATAN_STATEMENTS                                                                                      \
    double w[LB_LANES];                                                                                      \
    double sine[LB_LANES];                                                                                   \
    double cosine[LB_LANES];                                                                                 \
    SET(w, fabs(u[i]) > 1 ? 1 / u[i] : u[i]);                                                                \
    SET(v, w[i] * (0.9998660 + w[i] * w[i] * (-0.3302995 + w[i] * w[i] * (0.1801410 + w[i] * w[i] * (-0.0851330 + w[i] * w[i] * 0.0208351))))); \
    FN(sin, sine, v);                                                                                        \
    FN(cos, cosine, v);                                                                                      \
    SET(t, (w[i] * cosine[i] - sine[i]) / (cosine[i] + w[i] * sine[i]));                                     \
    SET(v, fabs(w[i]) < 1e-8 ? w[i] : v[i] + t[i] * (1 - t[i] * t[i] * (1.0 / 3 - t[i] * t[i] / 5)));        \
    SET(v, fabs(u[i]) > 1 ? __builtin_copysign(PI / 2, u[i]) - v[i] : v[i]);

/* t = (e^|x| - 1) of operand x */
#define EXPM1_STATEMENTS(x) SET(t, fabs(x)); FN(expm1, t, t);
#define EXP_STATEMENTS(x) SET(t, fabs(x)); FN(exp, t, t);

/* v = erfinv(x): Giles' starting value in two ranges, then two Newton steps on erf, or on erfc where x is near ±1. */
#define CENTRAL(w)                                                                                           \
    (1.50140941 + (w)*(0.246640727 + (w)*(-0.00417768164 + (w)*(-0.00125372503 + (w)*(0.00021858087 +        \
     (w)*(-4.39150654e-06 + (w)*(-3.5233877e-06 + (w)*(3.43273939e-07 + (w)*2.81022636e-08))))))))
#define TAIL(w)                                                                                              \
    (2.83297682 + (w)*(1.00167406 + (w)*(0.00943887047 + (w)*(-0.0076224613 + (w)*(0.00573950773 +           \
     (w)*(-0.00367342844 + (w)*(0.00134934322 + (w)*(0.000100950558 + (w)*-0.000200214257))))))))
#define NEWTON                                                                                               \
    FN(erf, t, v);                                                                                           \
    SET(u, fabs(v[i]));                                                                                      \
    FN(erfc, u, u);                                                                                          \
    SET(density, -v[i] * v[i]);                                                                              \
    FN(exp, density, density);                                                                               \
    SET(v, v[i] - (fabs(A) < 0.5 ? t[i] - A : ((1 - fabs(A)) - u[i]) * (A < 0 ? -1 : 1)) / (1.12837916709551257390 * density[i]));
#define ERFINV_STATEMENTS                                                                                    \
    double density[LB_LANES];                                                                                \
    SET(t, (1 - A) * (1 + A));                                                                               \
    FN(log, t, t);                                                                                           \
    SET(v, -t[i] < 5 ? CENTRAL(-t[i] - 2.5) * A : TAIL(__builtin_sqrt(-t[i]) - 3) * A);                      \
    NEWTON NEWTON                                                                                            \
    SET(v, A == 0 ? A : fabs(A) == 1 ? __builtin_copysign(INFINITY, A) : fabs(A) > 1 ? NAN : v[i]);

/* Sleef promises sinh and cosh up to 88.5 in f32 only; from there vectors are infinite where torch's scalar loop is not yet.
 * sinh x = (e + e/(e + 1))/2 of e = expm1|x|; both halves of e^709 … overflow as torch's do. */
#define SINH_VALUE __builtin_copysign(t[i] > 1e300 ? t[i] / 2 : (t[i] + t[i] / (t[i] + 1)) / 2, A)
/* asinh x = log1p(|x| + x²/(1 + √(x² + 1))); huge arguments: log(2|x|) */
#define ASINH_STATEMENTS                                                                                     \
    SET(t, fabs(A) > 1e150 ? fabs(A) : fabs(A) + A * A / (1 + __builtin_sqrt(A * A + 1)));                   \
    FN(log1p, u, t);                                                                                         \
    SET(u, fabs(A) > 1e150 ? u[i] + 0.69314718055994530942 : u[i]);
/* acosh x = log1p(s + √(2 s + s²)), s = x - 1 */
#define ACOSH_STATEMENTS                                                                                     \
    SET(t, A > 1e150 ? A : (A - 1) + __builtin_sqrt(2 * (A - 1) + (A - 1) * (A - 1)));                       \
    FN(log1p, u, t);                                                                                         \
    SET(u, A > 1e150 ? u[i] + 0.69314718055994530942 : u[i]);

/* atan2(y, x) from atan(y/x); quotients that overflow are infinite, 0/0 is decided by signs. */
#define ATAN2_VALUE                                                                                          \
    (A != A || B != B                        ? NAN                                                           \
     : A == 0 && B == 0                      ? __builtin_copysign(__builtin_signbit(B) ? PI : 0, A)          \
     : fabs(A) == INFINITY && fabs(B) == INFINITY ? __builtin_copysign(B > 0 ? PI / 4 : 3 * PI / 4, A)       \
     : B == 0                                ? __builtin_copysign(PI / 2, A)                                  \
     : B < 0                                 ? v[i] + __builtin_copysign(PI, A)                              \
                                             : v[i])

/* A maximum of two kept apart, so that squares do not overflow. */
#define LARGER (fabs(A) > fabs(B) ? fabs(A) : fabs(B))
#define SMALLER (fabs(A) > fabs(B) ? fabs(B) : fabs(A))
#define HYPOT_VALUE                                                                                          \
    (fabs(A) == INFINITY || fabs(B) == INFINITY ? INFINITY                                                   \
     : LARGER == 0 || LARGER != LARGER || SMALLER != SMALLER                                                 \
         ? fabs(A) + fabs(B)                                                                                 \
         : LARGER * __builtin_sqrt(1 + (SMALLER / LARGER) * (SMALLER / LARGER)))

#define OPS(X)                                                                                               \
    X(DT, tan, "tan", "self", "x", 0, t[i] / u[i], FN(sin, t, in0); FN(cos, u, in0);, fabs(t[i] / u[i]) + 1 / (u[i] * u[i]), 6, 0, "unary tame") \
    X(DT, sinh, "sinh", "self", "x", 0, SINH_VALUE, EXPM1_STATEMENTS(A), UNLESS_OVERFLOWS(2 * t[i], fabs(SINH_VALUE)), 8, 0, "unary")                                       \
    X(DT, cosh, "cosh", "self", "x", 0, t[i] > 1e300 ? t[i] / 2 : (t[i] + 1 / t[i]) / 2, EXP_STATEMENTS(A), UNLESS_OVERFLOWS(2 * t[i], t[i]), 6, 0, "unary")    \
    X(D, asinh, "asinh", "self", "x", 0, __builtin_copysign(A == 0 ? A : u[i], A), ASINH_STATEMENTS, 0, 8, 0, "unary")          \
    X(D, acosh, "acosh", "self", "x", 0, A < 1 ? NAN : u[i], ACOSH_STATEMENTS, 0, 8, 0, "unary")                                              \
    X(D, atanh, "atanh", "self", "x", 0, __builtin_copysign(A == 0 ? A : t[i] / 2, A), SET(t, 2 * fabs(A) / (1 - fabs(A))); FN(log1p, t, t);, 0, 8, 0, "unary") \
    X(D, atan, "atan", "self", "x", 0, v[i], SET(u, A); ATAN_STATEMENTS, 0, 6, 0, "unary")                                      \
    X(D, asin, "asin", "self", "x", 0, v[i], SET(u, A / __builtin_sqrt((1 - A) * (1 + A))); ATAN_STATEMENTS, 0, 8, 0, "unary")  \
    X(D, acos, "acos", "self", "x", 0, 2 * v[i], SET(u, __builtin_sqrt((1 - A) / (1 + A))); ATAN_STATEMENTS, 0, 8, 0, "unary")  \
    X(D, atan2, "atan2", "self other", "xx", COMMON, ATAN2_VALUE, SET(u, A / B); ATAN_STATEMENTS, 0, 8, 0, "binary float")      \
    X(D, erfinv, "erfinv", "self", "x", 0, v[i], ERFINV_STATEMENTS, 0, 12, 0, "unary")                                          \
    X(D, hypot, "hypot", "self other", "xx", COMMON, HYPOT_VALUE, , 0, 6, 0, "binary float integerless")                        \
    X(DT, logaddexp2, "logaddexp2", "self other", "xx", 0, A == B && !(fabs(A) < INFINITY) ? A : (A > B ? A : B) + t[i] * 1.44269504088896340736, \
      SET(t, -fabs(A - B) * 0.69314718055994530942); FN(exp, t, t); FN(log1p, t, t);, fabs(A > B ? A : B) + 2 * t[i] * (1 + fabs(A - B)), 8, 0, "binary float") \
    X(DT, sinc, "sinc", "self", "x", 0, A == 0 ? 1 : t[i] / (PI * A), SET(t, PI * A); FN(sin, t, t);, UNLESS_OVERFLOWS(4 * A, A == 0 ? 1 : COARSE(fabs(t[i] / (PI * A)) + 1)), 8, 0, "unary float tame") \
    X(FT, softshrink, "softshrink", "self lambd", "xs", 0, A > s0 ? A - s0 : A < -s0 ? A + s0 : A != A ? A : 0, 0, ABS(A) + ABS(s0), 2, 0, "unary float lambd")         \
    X(F, hardshrink, "hardshrink", "self lambd", "xs", COMMON, A >= -s0 && A <= s0 ? 0 : A, 0, 0, 0, LB_ROW_EXACT, "unary float lambd") \
    X(FT, softshrink_backward, "softshrink_backward", "grad_output self lambd", "xxs", COMMON, B > s0 || B < -s0 ? A : 0, 0, UNLESS_NAN(B), 1, 0, "gradient lambd") \
    X(FT, hardshrink_backward, "hardshrink_backward", "grad_out self lambd", "xxs", COMMON, B > s0 || B < -s0 ? A : 0, 0, UNLESS_NAN(B), 1, 0, "gradient lambd") \
    X(F, prelu, "_prelu_kernel", "self weight", "xx", 0, A > 0 ? A : B * A, 0, 0, 2, LB_ROW_EXACT, "prelu")                      \
    X(FI, fix, "fix", "self", "x", 0, TRUNC(A), A, 0, 0, LB_ROW_EXACT | LB_ROW_DISCONTINUOUS, "unary nobool")                   \
    X(FI, square, "square", "self", "x", 0, A *A, WMUL(A, A), 0, 2, LB_ROW_EXACT, "unary nobool")                               \
    X(D, deg2rad, "deg2rad", "self", "x", 0, A * (PI / 180), , 0, 3, 0, "unary float")                                                \
    X(D, rad2deg, "rad2deg", "self", "x", 0, A * (180 / PI), , 0, 3, 0, "unary float")

OPS(LB_DEFINE)

/* The gradients of input and weight, both of the input's shape. */
LB_DEFINE_D(prelu_back, "xxx", 0, B > 0 ? A : C * A, SET((double *)l->out[1], B > 0 ? 0 : B * A);, 0)

/* clang-format off */
const lb_op_row lb_rows_function[] = {
    OPS(LB_ROW)
    LB_SAME(prelu_back_kernel, NULL, "_prelu_kernel_backward", "grad_output self weight", 2, LB_ROW_EXACT, "prelu backward")
    {NULL}
};
