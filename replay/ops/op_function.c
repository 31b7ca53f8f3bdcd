/* Elementary functions that models use now and then: trigonometry and its inverses, hyperbolic functions, erfinv,
 * shrinkage.
 *
 * All are evaluated in f64 from the functions of elementary.h and rounded once. The arc tangent corrects a coarse guess
 * g by the exact identity atan x = g + atan((x - tan g) / (1 + x tan g)), whose second term is so small that three
 * terms of its series do. */
#include "kernel/frame.h"
#include "kernel/transcendental.h"

#define COMMON LB_POINTWISE_COMMON
#define PI 3.14159265358979323846
#define EXACT (LB_ROW_ELEMENTWISE | LB_ROW_EXACT)
#define MOST_BITS 9999 /* more makes any number 0, or infinite */

/* v = atan(u), with t for scratch; u may be infinite. Worked on |u| <= 1, beyond it atan u = ±π/2 - atan 1/u. */
#define ATAN_STATEMENTS                                                                                                \
    double w[LB_LANES];                                                                                                \
    double sine[LB_LANES];                                                                                             \
    double cosine[LB_LANES];                                                                                           \
    LB_F64_SET(w, fabs(u[i]) > 1 ? 1 / u[i] : u[i]);                                                                   \
    LB_F64_SET(v, w[i] * (0.9998660 +                                                                                  \
                          w[i] * w[i] *                                                                                \
                              (-0.3302995 +                                                                            \
                               w[i] * w[i] * (0.1801410 + w[i] * w[i] * (-0.0851330 + w[i] * w[i] * 0.0208351)))));    \
    LB_F64_FN(sin, sine, v);                                                                                           \
    LB_F64_FN(cos, cosine, v);                                                                                         \
    LB_F64_SET(t, (w[i] * cosine[i] - sine[i]) / (cosine[i] + w[i] * sine[i]));                                        \
    LB_F64_SET(v, fabs(w[i]) < 1e-8 ? w[i] : v[i] + t[i] * (1 - t[i] * t[i] * (1.0 / 3 - t[i] * t[i] / 5)));           \
    LB_F64_SET(v, fabs(u[i]) > 1 ? __builtin_copysign(PI / 2, u[i]) - v[i] : v[i]);

/* t = (e^|x| - 1) of operand x */
#define EXPM1_STATEMENTS(x)                                                                                            \
    LB_F64_SET(t, fabs(x));                                                                                            \
    LB_F64_FN(expm1, t, t);
#define EXP_STATEMENTS(x)                                                                                              \
    LB_F64_SET(t, fabs(x));                                                                                            \
    LB_F64_FN(exp, t, t);

/* v = erfinv(x): Giles' starting value in two ranges, then two Newton steps on erf, or on erfc where x is near ±1. */
#define CENTRAL(w)                                                                                                     \
    (1.50140941 +                                                                                                      \
     (w) * (0.246640727 +                                                                                              \
            (w) * (-0.00417768164 +                                                                                    \
                   (w) * (-0.00125372503 +                                                                             \
                          (w) * (0.00021858087 +                                                                       \
                                 (w) * (-4.39150654e-06 +                                                              \
                                        (w) * (-3.5233877e-06 + (w) * (3.43273939e-07 + (w) * 2.81022636e-08))))))))
#define TAIL(w)                                                                                                        \
    (2.83297682 +                                                                                                      \
     (w) * (1.00167406 +                                                                                               \
            (w) * (0.00943887047 +                                                                                     \
                   (w) * (-0.0076224613 +                                                                              \
                          (w) * (0.00573950773 +                                                                       \
                                 (w) * (-0.00367342844 +                                                               \
                                        (w) * (0.00134934322 + (w) * (0.000100950558 + (w) * -0.000200214257))))))))
#define NEWTON                                                                                                         \
    LB_F64_FN(erf, t, v);                                                                                              \
    LB_F64_SET(u, fabs(v[i]));                                                                                         \
    LB_F64_FN(erfc, u, u);                                                                                             \
    LB_F64_SET(density, -v[i] * v[i]);                                                                                 \
    LB_F64_FN(exp, density, density);                                                                                  \
    LB_F64_SET(v, v[i] - (fabs(a[i]) < 0.5 ? t[i] - a[i] : ((1 - fabs(a[i])) - u[i]) * (a[i] < 0 ? -1 : 1)) /          \
                             (1.12837916709551257390 * density[i]));
#define ERFINV_STATEMENTS                                                                                              \
    double density[LB_LANES];                                                                                          \
    LB_F64_SET(t, (1 - a[i]) * (1 + a[i]));                                                                            \
    LB_F64_FN(log, t, t);                                                                                              \
    LB_F64_SET(v, -t[i] < 5 ? CENTRAL(-t[i] - 2.5) * a[i] : TAIL(__builtin_sqrt(-t[i]) - 3) * a[i]);                   \
    NEWTON NEWTON LB_F64_SET(v, a[i] == 0         ? a[i]                                                               \
                                : fabs(a[i]) == 1 ? __builtin_copysign(INFINITY, a[i])                                 \
                                : fabs(a[i]) > 1  ? NAN                                                                \
                                                  : v[i]);

/* Sleef promises sinh and cosh up to 88.5 in f32 only; from there vectors are infinite where torch's scalar loop is not
 * yet. sinh x = (e + e/(e + 1))/2 of e = expm1|x|; both halves of e^709 … overflow as torch's do. */
#define SINH_VALUE __builtin_copysign(t[i] > 1e300 ? t[i] / 2 : (t[i] + t[i] / (t[i] + 1)) / 2, a[i])
/* asinh x = log1p(|x| + x²/(1 + √(x² + 1))); huge arguments: log(2|x|) */
#define ASINH_STATEMENTS                                                                                               \
    LB_F64_SET(t, fabs(a[i]) > 1e150 ? fabs(a[i]) : fabs(a[i]) + a[i] * a[i] / (1 + __builtin_sqrt(a[i] * a[i] + 1))); \
    LB_F64_FN(log1p, u, t);                                                                                            \
    LB_F64_SET(u, fabs(a[i]) > 1e150 ? u[i] + 0.69314718055994530942 : u[i]);
/* acosh x = log1p(s + √(2 s + s²)), s = x - 1 */
#define ACOSH_STATEMENTS                                                                                               \
    LB_F64_SET(t, a[i] > 1e150 ? a[i] : (a[i] - 1) + __builtin_sqrt(2 * (a[i] - 1) + (a[i] - 1) * (a[i] - 1)));        \
    LB_F64_FN(log1p, u, t);                                                                                            \
    LB_F64_SET(u, a[i] > 1e150 ? u[i] + 0.69314718055994530942 : u[i]);

/* atan2(y, x) from atan(y/x); quotients that overflow are infinite, 0/0 is decided by signs. */
#define ATAN2_VALUE                                                                                                    \
    (a[i] != a[i] || b[i] != b[i]                       ? NAN                                                          \
     : a[i] == 0 && b[i] == 0                           ? __builtin_copysign(__builtin_signbit(b[i]) ? PI : 0, a[i])   \
     : fabs(a[i]) == INFINITY && fabs(b[i]) == INFINITY ? __builtin_copysign(b[i] > 0 ? PI / 4 : 3 * PI / 4, a[i])     \
     : b[i] == 0                                        ? __builtin_copysign(PI / 2, a[i])                             \
     : b[i] < 0                                         ? v[i] + __builtin_copysign(PI, a[i])                          \
                                                        : v[i])

/* A maximum of two kept apart, so that squares do not overflow. */
#define LARGER (fabs(a[i]) > fabs(b[i]) ? fabs(a[i]) : fabs(b[i]))
#define SMALLER (fabs(a[i]) > fabs(b[i]) ? fabs(b[i]) : fabs(a[i]))
#define HYPOT_VALUE                                                                                                    \
    (fabs(a[i]) == INFINITY || fabs(b[i]) == INFINITY ? INFINITY                                                       \
     : LARGER == 0 || LARGER != LARGER || SMALLER != SMALLER                                                           \
         ? fabs(a[i]) + fabs(b[i])                                                                                     \
         : LARGER * __builtin_sqrt(1 + (SMALLER / LARGER) * (SMALLER / LARGER)))

/* clang-format off */
LB_POINTWISE_DT(tan, "x", 0, LB_F64_FN(sin, t, a); LB_F64_FN(cos, u, a);, t[i] / u[i], fabs(t[i] / u[i]) + 1 / (u[i] * u[i]))
LB_POINTWISE_DT(sinh, "x", 0, EXPM1_STATEMENTS(a[i]), SINH_VALUE, LB_UNLESS_OVERFLOWS(2 * t[i], fabs(SINH_VALUE)))
LB_POINTWISE_DT(cosh, "x", 0, EXP_STATEMENTS(a[i]), t[i] > 1e300 ? t[i] / 2 : (t[i] + 1 / t[i]) / 2,
    LB_UNLESS_OVERFLOWS(2 * t[i], t[i]))
LB_POINTWISE_D(asinh, "x", 0, ASINH_STATEMENTS, __builtin_copysign(a[i] == 0 ? a[i] : u[i], a[i]))
LB_POINTWISE_D(acosh, "x", 0, ACOSH_STATEMENTS, a[i] < 1 ? NAN : u[i])
LB_POINTWISE_D(atanh, "x", 0, LB_F64_SET(t, 2 * fabs(a[i]) / (1 - fabs(a[i]))); LB_F64_FN(log1p, t, t);,
    __builtin_copysign(a[i] == 0 ? a[i] : t[i] / 2, a[i]))
LB_POINTWISE_D(atan, "x", 0, LB_F64_SET(u, a[i]); ATAN_STATEMENTS, v[i])
LB_POINTWISE_D(asin, "x", 0, LB_F64_SET(u, a[i] / __builtin_sqrt((1 - a[i]) * (1 + a[i]))); ATAN_STATEMENTS, v[i])
LB_POINTWISE_D(acos, "x", 0, LB_F64_SET(u, __builtin_sqrt((1 - a[i]) / (1 + a[i]))); ATAN_STATEMENTS, 2 * v[i])
LB_POINTWISE_D(atan2, "xx", COMMON, LB_F64_SET(u, a[i] / b[i]); ATAN_STATEMENTS, ATAN2_VALUE)
LB_POINTWISE_D(erfinv, "x", 0, ERFINV_STATEMENTS, v[i])
LB_POINTWISE_D(hypot, "xx", COMMON, , HYPOT_VALUE)
LB_POINTWISE_D(ldexp, "xx", COMMON, , __builtin_ldexp(a[i], b[i] > MOST_BITS ? MOST_BITS : b[i] < -MOST_BITS ? -MOST_BITS : (int)b[i]))
LB_POINTWISE_DT(logaddexp2, "xx", 0, LB_F64_SET(t, -fabs(a[i] - b[i]) * 0.69314718055994530942); LB_F64_FN(exp, t, t); LB_F64_FN(log1p, t, t);,
    a[i] == b[i] && !(fabs(a[i]) < INFINITY) ? a[i] : (a[i] > b[i] ? a[i] : b[i]) + t[i] * 1.44269504088896340736,
    fabs(a[i] > b[i] ? a[i] : b[i]) + 2 * t[i] * (1 + fabs(a[i] - b[i])))
LB_POINTWISE_DT(sinc, "x", 0, LB_F64_SET(t, PI * a[i]); LB_F64_FN(sin, t, t);, a[i] == 0 ? 1 : t[i] / (PI * a[i]),
    LB_UNLESS_OVERFLOWS(4 * a[i], a[i] == 0 ? 1 : LB_COARSE(fabs(t[i] / (PI * a[i])) + 1)))
/* Entropy of one probability; 0 log 0 is 0. */
LB_POINTWISE_DT(entr, "x", 0, LB_F64_FN(log, t, a);, a[i] != a[i] ? a[i] : a[i] > 0 ? -a[i] * t[i] : a[i] == 0 ? 0 : -INFINITY,
    a[i] > 0 ? LB_COARSE(fabs(a[i] * t[i])) : 0)
LB_POINTWISE_FT(softshrink, "xs", 0, a[i] > s0 ? a[i] - s0 : a[i] < -s0 ? a[i] + s0 : a[i] != a[i] ? a[i] : 0, LB_ABS(a[i]) + LB_ABS(s0))
LB_POINTWISE_F(hardshrink, "xs", COMMON, a[i] >= -s0 && a[i] <= s0 ? 0 : a[i])
LB_POINTWISE_FT(softshrink_backward, "xxs", COMMON, b[i] > s0 || b[i] < -s0 ? a[i] : 0, LB_UNLESS_NAN(b[i]))
LB_POINTWISE_FT(hardshrink_backward, "xxs", COMMON, b[i] > s0 || b[i] < -s0 ? a[i] : 0, LB_UNLESS_NAN(b[i]))
LB_POINTWISE_F(prelu, "xx", 0, a[i] > 0 ? a[i] : b[i] * a[i])
LB_POINTWISE_FI(fix, "x", 0, LB_TRUNC(a[i]), a[i])
LB_POINTWISE_FI(square, "x", 0, a[i] * a[i], LB_WMUL(a[i], a[i]))
LB_POINTWISE_D(deg2rad, "x", 0, , a[i] * (PI / 180))
LB_POINTWISE_D(rad2deg, "x", 0, , a[i] * (180 / PI))

/* The gradients of input and weight, both of the input's shape. */
LB_POINTWISE_D(prelu_back, "xxx", 0, LB_F64_SET((double *)l->out[1], b[i] > 0 ? 0 : b[i] * a[i]);, b[i] > 0 ? a[i] : c[i] * a[i])

/* By whole numbers it is one rounding; by others torch rounds a factor first, in a type that differs by release. */
static lb_status whole_ldexp_kernel(lb_call *call)
{
    const lb_tensor *exponents = lb_frame_arg_tensor(call, 1);
    if (!exponents || lb_dtype_is_float(exponents->dtype))
        return lb_fail(call->err, LB_ERR_UNSUPPORTED, "ldexp: exponents that are no whole numbers");
    return ldexp_kernel(call);
}

const lb_op_row lb_rows_function[] = {
    {.name = "aten::tan", .args = "self!", LB_COMPUTED_BY(tan), .roundings = 6, .flags = LB_ROW_ELEMENTWISE,
     .samples = "unary tame"},
    {.name = "aten::sinh", .args = "self!", LB_COMPUTED_BY(sinh), .roundings = 8, .flags = LB_ROW_ELEMENTWISE,
     .samples = "unary"},
    {.name = "aten::cosh", .args = "self!", LB_COMPUTED_BY(cosh), .roundings = 6, .flags = LB_ROW_ELEMENTWISE,
     .samples = "unary"},
    {.name = "aten::asinh", .args = "self!", .kernel = asinh_kernel, .roundings = 8, .flags = LB_ROW_ELEMENTWISE,
     .samples = "unary"},
    {.name = "aten::acosh", .args = "self!", .kernel = acosh_kernel, .roundings = 8, .flags = LB_ROW_ELEMENTWISE,
     .samples = "unary"},
    {.name = "aten::atanh", .args = "self!", .kernel = atanh_kernel, .roundings = 8, .flags = LB_ROW_ELEMENTWISE,
     .samples = "unary"},
    {.name = "aten::atan", .args = "self!", .kernel = atan_kernel, .roundings = 6, .flags = LB_ROW_ELEMENTWISE, .samples = "unary"},
    {.name = "aten::asin", .args = "self!", .kernel = asin_kernel, .roundings = 8, .flags = LB_ROW_ELEMENTWISE, .samples = "unary"},
    {.name = "aten::acos", .args = "self!", .kernel = acos_kernel, .roundings = 8, .flags = LB_ROW_ELEMENTWISE, .samples = "unary"},
    {.name = "aten::atan2", .args = "self! other!", .kernel = atan2_kernel, .roundings = 8, .flags = LB_ROW_ELEMENTWISE,
     .samples = "binary float"},
    {.name = "aten::erfinv", .args = "self!", .kernel = erfinv_kernel, .roundings = 12, .flags = LB_ROW_ELEMENTWISE,
     .samples = "unary"},
    {.name = "aten::hypot", .args = "self! other!", .kernel = hypot_kernel, .roundings = 6, .flags = LB_ROW_ELEMENTWISE,
     .samples = "binary float integerless"},
    {.name = "aten::ldexp.Tensor", .args = "self! other!", .kernel = whole_ldexp_kernel, .flags = EXACT, .samples = "powers_of_two"},
    {.name = "aten::logaddexp2", .args = "self! other!", LB_COMPUTED_BY(logaddexp2), .roundings = 8,
     .flags = LB_ROW_ELEMENTWISE, .samples = "binary float"},
    {.name = "aten::sinc", .args = "self!", LB_COMPUTED_BY(sinc), .roundings = 8, .flags = LB_ROW_ELEMENTWISE,
     .samples = "unary float tame"},
    {.name = "aten::special_entr", .args = "self!", LB_COMPUTED_BY(entr), .roundings = 6,
     .flags = LB_ROW_ELEMENTWISE, .samples = "unary"},
    {.name = "aten::softshrink", .args = "self! lambd", LB_COMPUTED_BY(softshrink), .roundings = 2,
     .flags = LB_ROW_ELEMENTWISE, .samples = "unary float lambd"},
    {.name = "aten::hardshrink", .args = "self! lambd", .kernel = hardshrink_kernel, .flags = LB_ROW_ELEMENTWISE | LB_ROW_EXACT,
     .samples = "unary float lambd"},
    {.name = "aten::softshrink_backward", .args = "grad_output! self! lambd", LB_COMPUTED_BY(softshrink_backward), .roundings = 1, .flags = LB_ROW_ELEMENTWISE, .samples = "gradient lambd"},
    {.name = "aten::hardshrink_backward", .args = "grad_out! self! lambd", LB_COMPUTED_BY(hardshrink_backward), .roundings = 1, .flags = LB_ROW_ELEMENTWISE, .samples = "gradient lambd"},
    {.name = "aten::_prelu_kernel", .args = "self! weight!", .kernel = prelu_kernel, .roundings = 2,
     .flags = LB_ROW_ELEMENTWISE | LB_ROW_EXACT, .samples = "prelu"},
    {.name = "aten::fix", .args = "self!", .kernel = fix_kernel, .flags = LB_ROW_ELEMENTWISE | LB_ROW_EXACT | LB_ROW_DISCONTINUOUS,
     .samples = "unary nobool"},
    {.name = "aten::square", .args = "self!", .kernel = square_kernel, .roundings = 2, .flags = LB_ROW_ELEMENTWISE | LB_ROW_EXACT,
     .samples = "unary nobool"},
    {.name = "aten::deg2rad", .args = "self!", .kernel = deg2rad_kernel, .roundings = 3, .flags = LB_ROW_ELEMENTWISE,
     .samples = "unary float"},
    {.name = "aten::rad2deg", .args = "self!", .kernel = rad2deg_kernel, .roundings = 3, .flags = LB_ROW_ELEMENTWISE,
     .samples = "unary float"},
    {.name = "aten::_prelu_kernel_backward", .args = "grad_output! self! weight!", .kernel = prelu_back_kernel, .roundings = 2,
     .flags = LB_ROW_ELEMENTWISE | LB_ROW_EXACT, .samples = "prelu backward"},
    {NULL}
};
