/* The logarithm of the gamma function, and its derivative.
 *
 * Stirling's series from 8 on, in f64; smaller arguments are moved there by log Γ(x) = log Γ(x + 8) - log (x (x + 1) …
 * (x + 7)), those below 1/2 mirrored by Γ(x) Γ(1 - x) = π / sin πx (Abramowitz and Stegun 6.1.17, 6.1.40, 6.3.7,
 * 6.3.18). */
#include "kernel/transcendental.h"

#define PI 3.14159265358979323846

static inline __attribute__((always_inline)) double rising(double x) /* x (x + 1) … (x + 7) */
{
    return x * (x + 1) * (x + 2) * (x + 3) * (x + 4) * (x + 5) * (x + 6) * (x + 7);
}

/* 1/x + 1/(x + 1) + … + 1/(x + 7) */
static inline __attribute__((always_inline)) double reciprocals(double x)
{
    return 1 / x + 1 / (x + 1) + 1 / (x + 2) + 1 / (x + 3) + 1 / (x + 4) + 1 / (x + 5) + 1 / (x + 6) + 1 / (x + 7);
}

static inline __attribute__((always_inline)) double stirling_tail(double z)
{
    const double r = 1 / z, q = r * r;
    return r * (1.0 / 12 -
                q * (1.0 / 360 -
                     q * (1.0 / 1260 - q * (1.0 / 1680 - q * (1.0 / 1188 - q * (691.0 / 360360 - q * (1.0 / 156)))))));
}

static inline __attribute__((always_inline)) double digamma_tail(double z)
{
    const double r = 1 / z, q = r * r;
    return r / 2 +
           q * (1.0 / 12 -
                q * (1.0 / 120 - q * (1.0 / 252 - q * (1.0 / 240 - q * (1.0 / 132 - q * (691.0 / 32760 - q / 12))))));
}

/* How far x is from the nearest integer: sin πx but for the sign. */
static inline __attribute__((always_inline)) double off_integer(double x)
{
    return x - __builtin_rint(x);
}

#define LOG_PI 1.14472988584940017414
/* sin πx is πx there, whose product with π may be no normal number. */
#define AT_INTEGER (fabs(off_integer(a[i])) < 1e-20)
#define MIRRORED (a[i] < 0.5)
#define IS_POLE (a[i] <= 0 && off_integer(a[i]) == 0)
/* u: the argument from 1/2 on; z: the same from 8 on; t: log z */
#define FROM_EIGHT                                                                                                     \
    double z[LB_LANES];                                                                                                \
    LB_F64_SET(u, MIRRORED ? 1 - a[i] : a[i]);                                                                         \
    LB_F64_SET(z, u[i] < 8 ? u[i] + 8 : u[i]);                                                                         \
    LB_F64_FN(log, t, z);

/* w: log of what the moved argument's gamma is divided by; v: log π - log |sin πx|, 0 where nothing is mirrored */
#define LGAMMA_STATEMENTS                                                                                              \
    double w[LB_LANES];                                                                                                \
    FROM_EIGHT                                                                                                         \
    LB_F64_SET(w, u[i] < 8 ? rising(u[i]) : 1);                                                                        \
    LB_F64_FN(log, w, w);                                                                                              \
    LB_F64_SET(v, PI *fabs(off_integer(a[i])));                                                                        \
    LB_F64_FN(sin, v, v);                                                                                              \
    LB_F64_SET(v, !MIRRORED ? 1 : AT_INTEGER ? fabs(off_integer(a[i])) : v[i]);                                        \
    LB_F64_FN(log, v, v);                                                                                              \
    LB_F64_SET(v, !MIRRORED ? 0 : AT_INTEGER ? -v[i] : LOG_PI - v[i]);
#define STIRLING                                                                                                       \
    (u[i] == INFINITY ? INFINITY : (z[i] - 0.5) * t[i] - z[i] + 0.91893853320467274178 + stirling_tail(z[i]))
#define LGAMMA_VALUE                                                                                                   \
    (a[i] != a[i]             ? a[i]                                                                                   \
     : fabs(a[i]) == INFINITY ? INFINITY                                                                               \
     : IS_POLE                ? INFINITY                                                                               \
     : a[i] == 1 || a[i] == 2 ? 0                                                                                      \
     : MIRRORED               ? v[i] - (STIRLING - w[i])                                                               \
                              : STIRLING - w[i])
/* Near the zeros at 1 and 2 libraries keep relative precision, below 0 they do not. */
#define LGAMMA_SIZE                                                                                                     \
    (IS_POLE || fabs(a[i]) == INFINITY ? 0                                                                              \
     : MIRRORED                        ? LB_COARSE(fabs(v[i]) + fabs(STIRLING - w[i]) + (l->result == LB_F64 ? 64 : 1)) \
                                       : LB_COARSE(fabs(STIRLING - w[i]) + (l->result == LB_F64 ? 64 : 0.25)))

/* Torch mirrors what is below 0, and gives ±inf at ±0, NaN at the other poles. Its angle is π times a remainder and has
 * that product's rounding, by which the cotangent moves as 1 / sin² does. */
#define DIGAMMA_STATEMENTS                                                                                             \
    double sine[LB_LANES];                                                                                             \
    double cosine[LB_LANES];                                                                                           \
    FROM_EIGHT                                                                                                         \
    LB_F64_SET(v, PI *off_integer(a[i]));                                                                              \
    LB_F64_FN(sin, sine, v);                                                                                           \
    LB_F64_FN(cos, cosine, v);
#define PSI (t[i] - digamma_tail(z[i]) - (u[i] < 8 ? reciprocals(u[i]) : 0))
#define DIGAMMA_VALUE                                                                                                  \
    (a[i] != a[i]               ? a[i]                                                                                 \
     : a[i] == INFINITY         ? INFINITY                                                                             \
     : a[i] == 0                ? __builtin_copysign(INFINITY, -a[i])                                                  \
     : IS_POLE || a[i] < -1e300 ? NAN                                                                                  \
     : MIRRORED                 ? PSI - PI * cosine[i] / sine[i]                                                       \
                                : PSI)
#define DIGAMMA_SIZE                                                                                                   \
    (IS_POLE || fabs(a[i]) == INFINITY || a[i] < -1e300                                                                \
         ? 0                                                                                                           \
         : LB_COARSE(fabs(t[i]) + (u[i] < 8 ? reciprocals(u[i]) : 0) + 1 +                                             \
                     (MIRRORED ? PI * PI / (sine[i] * sine[i]) + 1 / fabs(a[i]) : 0)))

/* clang-format off */
LB_POINTWISE_DT(lgamma, "x", 0, LGAMMA_STATEMENTS, LGAMMA_VALUE, LGAMMA_SIZE)
LB_POINTWISE_DT(digamma, "x", 0, DIGAMMA_STATEMENTS, DIGAMMA_VALUE, DIGAMMA_SIZE)

const lb_op_row lb_rows_gamma[] = {
    {.name = "aten::lgamma", .args = "self!", LB_COMPUTED_BY(lgamma), .roundings = 8, .flags = LB_ROW_ELEMENTWISE,
     .samples = "unary float"},
    {.name = "aten::digamma", .args = "self!", LB_COMPUTED_BY(digamma), .roundings = 16, .flags = LB_ROW_ELEMENTWISE,
     .samples = "unary float"},
    {NULL}
};
