/* Functions and activations with their derivatives.
 *
 * torch evaluates these in f32 step by step with its own 1 ulp functions; here they are evaluated in f64 and rounded once. Twins follow
 * torch's formula: where it cancels (1 + erf of a negative number, 1 − sigmoid) the bound is that of the terms, not of the result, and where
 * an f32 exp overflows or underflows that f64 does not, it admits 0. */
#include "transcendental.h"

#define EXACT LB_ROW_EXACT
#define COMMON LB_POINTWISE_COMMON

/* exp(-x) overflows: a quotient by 1 + exp(-x) becomes 0 there. */
#define LOST(x) (l->common == LB_F64 ? ((x) < -709 ? 0x1p53 : 1) : ((x) < -87 ? 0x1p24 : 1))
#define SQRT_HALF 0.70710678118654752440
#define TWO_BY_SQRT_PI 1.12837916709551257390
#define GELU_BETA (SQRT_HALF * TWO_BY_SQRT_PI) /* sqrt(2/pi) */
#define GELU_KAPPA 0.044715
#define NORMAL_DENSITY(e) ((e)*TWO_BY_SQRT_PI * SQRT_HALF * 0.5) /* of e = exp(-x²/2) */

/* gelu: u = erf(x/√2) or tanh(√(2/π)(x + κx³)), t = its argument; derivatives also need v = exp(-x²/2); x is B there. */
#define GELU_STATEMENTS(x)                                                                                   \
    if (l->text == 't') {                                                                                    \
        SET(t, GELU_BETA * ((x) + GELU_KAPPA * (x) * (x) * (x)));                                            \
        FN(tanh, u, t);                                                                                      \
    } else {                                                                                                 \
        SET(t, (x)*SQRT_HALF);                                                                               \
        FN(erf, u, t);                                                                                       \
    }
#define GELU_DENSITY(x)                                                                                      \
    SET(v, -0.5 * (x) * (x));                                                                                \
    FN(exp, v, v);
#define TANH_SLOPE(x) ((1 - u[i] * u[i]) * GELU_BETA * (1 + 3 * GELU_KAPPA * (x) * (x)))
#define GELU (0.5 * A * (1 + u[i]))
/* The argument's relative error is magnified by its derivative; an error of erf or tanh counts against 1, also near 0 where 1 + erf does
 * not cancel. torch takes erf of vectors in f32 from Abramowitz and Stegun's 7.1.26, good to 1.5e-7 = 2.5 u, whose rational function
 * rounds off another 8 u: over every f32 from 2^-10 to 8 it errs by 10.2 u near ±0.05 (AVX2 and AVX-512, dense but not contiguous
 * tensors). oneDNN's polynomials (contiguous ones) err by 11.4 u near ±3 and make NaN of infinity, the scalar loop (strided ones) by libm's 1 ulp. */
#define BELOW_1000(x) (fabs(x) < 1000 ? fabs(x) : 1000) /* exp(-x) is 0 long before */
#define BELOW_100(x) (fabs(x) < 100 ? fabs(x) : 100) /* tanh is 1 long before; infinity times 0 would be NaN */
#define GELU_TWIN                                                                                            \
    UNLESS_OVERFLOWS(2 * A, 0x1p-103 + fabs(0.5 * A) * (2 + (l->text == 't' ? 4 * (1 - u[i] * u[i]) * BELOW_100(t[i]) \
                                                                            : TWO_BY_SQRT_PI / (fabs(t[i]) + 1 / fabs(t[i])))))
#define GELU_SLOPE(x) (0.5 * (1 + u[i]) + (x) * (l->text == 't' ? 0.5 * TANH_SLOPE(x) : NORMAL_DENSITY(v[i])))
#define GELU_SLOPE_TWIN(x)                                                                                   \
    (1 + fabs(t[i]) + fabs(x) * (l->text == 't' ? (1 + fabs(t[i])) * GELU_BETA * (1 + 3 * GELU_KAPPA * (x) * (x))  \
                                                : v[i] * (1 + 0.5 * (x) * (x))))

#define SIGMOID_OF(x) SET(u, x); FN(sigmoid, u, u);
/* softplus: t = beta x, u = sigmoid(t), v = log(1 + exp(t)) */
#define SOFTPLUS_STATEMENTS(x, beta)                                                                         \
    SET(t, (x) * (beta));                                                                                    \
    FN(sigmoid, u, t);                                                                                       \
    FN(softplus, v, t);

/* mish: t = tanh(softplus(x)), u = sigmoid(x) */
#define MISH_STATEMENTS(x)                                                                                   \
    SET(t, x);                                                                                               \
    FN(softplus, t, t);                                                                                      \
    FN(tanh, t, t);                                                                                          \
    SIGMOID_OF(x)

/* log_sigmoid: t = exp(-|x|), u = log1p(t) */
#define LOG_SIGMOID_STATEMENTS                                                                               \
    SET(t, -fabs(A));                                                                                        \
    FN(exp, t, t);                                                                                           \
    FN(log1p, u, t);
#define MIN0(x) ((x) != (x) ? (x) : (x) < 0 ? (x) : 0)

/* ---- powers --------------------------------------------------------------------------------------------------------- *
 * torch multiplies and divides for the exponents 2, 3, -1 and -2, rounding to the common dtype after the first product, takes square
 * roots for ±1/2 (so that of -0 it gives -0 and of -infinity NaN, as no pow does), and calls pow for all others. */

static void pow_general(const lb_lanes *l, double *out)
{
    lb_pow_f64(out, l->in[0], l->in[1], l->n);
}

/* Exponent `e` everywhere; false when it is none of the small ones. */
#define SMALL_POWER(NAME, TYPE, ROUND)                                                                       \
    static bool NAME(const lb_lanes *l, double e)                                                            \
    {                                                                                                        \
        const TYPE *x = l->in[0];                                                                            \
        TYPE *y = l->out[0], square[LB_LANES];                                                               \
        const size_t n = l->n;                                                                               \
        if (e != 0 && e != 1 && e != 2 && e != 3 && e != -1 && e != -2 && fabs(e) != 0.5) return false;      \
        for (size_t i = 0; i < n; i++) square[i] = x[i] * x[i];                                              \
        if ((e == 3 || e == -2) && l->common != LB_F32 && l->common != LB_F64) ROUND(square, n, l->common, NULL); \
        for (size_t i = 0; i < n; i++)                                                                       \
            y[i] = e == 0    ? 1                                                                             \
                   : e == 1  ? x[i]                                                                          \
                   : e == 2  ? square[i]                                                                     \
                   : e == 3  ? square[i] * x[i]                                                              \
                   : e == -1 ? 1 / x[i]                                                                      \
                   : e == 0.5  ? SQRT(x[i])                                                                  \
                   : e == -0.5 ? 1 / SQRT(x[i])                                                              \
                               : 1 / square[i];                                                                \
        return true;                                                                                         \
    }
SMALL_POWER(small_power_f32, float, lb_round_to_grid_f32)
SMALL_POWER(small_power_f64, double, lb_round_to_grid_f64)

static void pow_f64(const lb_lanes *l)
{
    const double *e = l->in[1];
    if (l->single[1] && l->scalar[1] && small_power_f64(l, e[0])) return;
    pow_general(l, l->out[0]);
}
static void pow_f32(const lb_lanes *l)
{
    const float *e = l->in[1];
    if (l->single[1] && l->scalar[1] && small_power_f32(l, e[0])) return;
    lb_pow_f32(l->out[0], l->in[0], l->in[1], l->n);
}
/* Negative exponents give what 1 / x^|e| truncates to, as in torch. */
static void pow_i64(const lb_lanes *l)
{
    const int64_t *x = l->in[0], *e = l->in[1];
    int64_t *y = l->out[0];
    for (size_t i = 0; i < l->n; i++) {
        uint64_t base = (uint64_t)x[i], result = 1;
        for (int64_t left = e[i]; left > 0; left >>= 1, base *= base)
            if (left & 1) result *= base;
        if (e[i] < 0) result = x[i] == 1 ? 1 : x[i] == -1 ? (e[i] % 2 ? (uint64_t)-1 : 1) : 0;
        y[i] = (int64_t)result;
    }
}
/* |y|; nothing where torch's result is one rounding of a product or quotient; coarse where it rounds in between. */
static void pow_twin_loop(const lb_lanes *l)
{
    const double *e = l->in[1];
    double *y = l->out[0];
    const bool small = l->single[1] && l->scalar[1] && small_power_f64(l, e[0]);
    if (!small) pow_general(l, y);
    for (size_t i = 0; i < l->n; i++) {
        y[i] = fabs(y[i]);
        const double x = ((const double *)l->in[0])[l->single[0] ? 0 : i];
        if (small && (e[0] == 3 || e[0] == -2)) y[i] = UNLESS_STEP_OVERFLOWS(x * x, COARSE(y[i]));
        else if (small) y[i] = fabs(e[0]) == 0.5 ? COARSE(y[i]) : l->coarse == 1 ? 0 : y[i];
        else y[i] = COARSE(y[i]);
    }
}
static const lb_pointwise pow_op = {"xx", pow_f32, pow_f64, pow_i64, pow_twin_loop, LB_POINTWISE_COMMON};
LB_KERNEL(pow)
LB_TWIN(pow)

/* clang-format off */
#define OPS(X)                                                                                               \
    X(U, exp, "exp", "self", "x", 0, exp, , , 4, 0, "unary")                                                  \
    X(U, exp2, "exp2", "self", "x", 0, exp2, , , 4, 0, "unary")                                               \
    X(U, expm1, "expm1", "self", "x", 0, expm1, , , 4, 0, "unary")                                            \
    X(U, log, "log", "self", "x", 0, log, , , 4, 0, "unary")                                                  \
    X(U, log2, "log2", "self", "x", 0, log2, , , 4, 0, "unary")                                               \
    X(U, log10, "log10", "self", "x", 0, log10, , , 4, 0, "unary")                                            \
    X(U, log1p, "log1p", "self", "x", 0, log1p, , , 4, 0, "unary")                                            \
    X(U, sin, "sin", "self", "x", 0, sin, , , 4, 0, "unary")                                                  \
    X(U, cos, "cos", "self", "x", 0, cos, , , 4, 0, "unary")                                                  \
    X(U, tanh, "tanh", "self", "x", 0, tanh, , , 4, 0, "unary")                                               \
    X(UT, erf, "erf", "self", "x", 0, erf, , COARSE(fabs(t[i])) + (l->coarse > 1 ? 2 : 0x1p-103), 4, 0, "unary")                                                  \
    X(UT, sigmoid, "sigmoid", "self", "x", 0, sigmoid, , t[i] * LOST(A), 5, 0, "unary")                        \
    X(DT, silu, "silu", "self", "x", 0, A * u[i], FN(sigmoid, u, in0);, fabs(A * u[i]) * LOST(A), 6, 0, "unary float")          \
    X(DT, silu_backward, "silu_backward", "grad_output self", "xx", 0, A * u[i] * (1 + B * (1 - u[i])), FN(sigmoid, u, in1);,   \
      fabs(A * u[i]) * (1 + fabs(B)) * LOST(B) + UNDERFLOW * (1 + fabs(B)), 8, 0, "gradient")                                                               \
    X(U, erfc, "erfc", "self", "x", 0, erfc, , , 8, 0, "unary")                                                                 \
    X(DT, gelu, "gelu", "self approximate", "xt", 0, GELU, GELU_STATEMENTS(A), GELU_TWIN, 8, 0, "unary float approximate")      \
    X(DT, gelu_backward, "gelu_backward", "grad_output self approximate", "xxt", 0, A * GELU_SLOPE(B), GELU_STATEMENTS(B) GELU_DENSITY(B),      \
      UNLESS_OVERFLOWS(l->text == 't' ? 8 * B * B * B : B * B, fabs(A) * GELU_SLOPE_TWIN(B)), 8, 0, "gradient approximate modest")                                                               \
    X(DT, softplus, "softplus", "self beta threshold", "xss", 0, t[i] > s1 ? A : v[i] / s0, SOFTPLUS_STATEMENTS(A, s0),         \
      t[i] > s1 ? fabs(A) : v[i] / s0 * (1 + fabs(t[i])), 8, 0, "softplus")                                                     \
    X(DT, softplus_backward, "softplus_backward", "grad_output self beta threshold", "xxss", 0,                                 \
      t[i] > s1 ? A : A * u[i], SOFTPLUS_STATEMENTS(B, s0),                                                                     \
      UNLESS_OVERFLOWS(t[i] > s1 ? A : 2 * A / (1 - u[i]), fabs(A) * ((1 + fabs(t[i])) * (t[i] > s1 ? 1 : u[i]) + UNDERFLOW)),  \
      8, 0, "softplus backward modest")                                                                                                \
    X(FT, sigmoid_backward, "sigmoid_backward", "grad_output output", "xx", 0, A * (1 - B) * B, 0, UNLESS_STEP_OVERFLOWS(2 * A * (1 + B * B), COARSE(ABS(A * (1 - B) * B)) + l->grain * (1 + B * B)), 4, 0, "gradient modest")          \
    X(FT, tanh_backward, "tanh_backward", "grad_output output", "xx", 0, A * FMA(-B, B, (T)1), 0, UNLESS_STEP_OVERFLOWS(B * B, COARSE(ABS(A) * (1 + B * B))), 3, 0, "gradient modest") \
    X(F, leaky_relu, "leaky_relu", "self negative_slope", "xs", 0, A > 0 ? A : A * s0, 0, 0, 2, EXACT, "unary float slope")     \
    X(F, leaky_relu_backward, "leaky_relu_backward", "grad_output self negative_slope self_is_result", "xxs-", 0,               \
      B > 0 ? A : A * s0, 0, 0, 2, EXACT, "gradient slope")                                                                     \
    X(D, elu, "elu", "self alpha scale input_scale", "xsss", 0, A < 0 ? t[i] * (s0 * s1) : A * s1,                              \
      SET(t, A * s2); FN(expm1, t, t);, 0, 6, 0, "elu")                                                                         \
    X(DT, elu_backward, "elu_backward", "grad_output alpha scale input_scale is_result self_or_result", "xssssx", 0,            \
      B <= 0 ? (s3 != 0 ? A * s2 * (B + s0 * s1) : A * s2 * (s0 * s1) * t[i]) : A * s1, SET(t, B * s2); FN(exp, t, t);,         \
      B != B ? NOTHING_SAID : UNLESS_OVERFLOWS(4 * A * (1 + fabs(B)) * (1 + fabs(s0 * s1)) * (1 + fabs(s2)),                    \
        B > 0 ? fabs(A * s1) : s3 != 0 ? fabs(A * s2) * (fabs(B) + fabs(s0 * s1))                                               \
                                       : fabs(A * s2 * s0 * s1) * (t[i] * (1 + fabs(B * s2)) + UNDERFLOW)),                     \
      6, 0, "elu backward modest")                                                                                                     \
    X(DT, mish, "mish", "self", "x", 0, A * t[i], MISH_STATEMENTS(A), fabs(A) * (t[i] + UNDERFLOW), 8, 0, "unary float")                                    \
    X(DT, mish_backward, "mish_backward", "grad_output self", "xx", 0, A * (t[i] + B * u[i] * (1 - t[i] * t[i])), MISH_STATEMENTS(B), \
      UNLESS_OVERFLOWS(2 * A * (1 + fabs(B)), fabs(A) * (fabs(t[i]) + fabs(B * u[i]) * (1 + t[i] * t[i]) * LOST(B) + UNDERFLOW * (1 + fabs(B)))), 10, 0, "gradient")                                           \
    X(FT, hardswish, "hardswish", "self", "x", 0, A * (A + 3 < 0 ? 0 : A + 3 > 6 ? 6 : A + 3) / 6, 0, UNLESS_OVERFLOWS(8 * A, ABS(A)), 4, 0, "unary float") \
    X(FT, hardswish_backward, "hardswish_backward", "grad_output self", "xx", 0, B <= -3 ? 0 : B >= 3 ? A : A * (B / 3 + (T)0.5), 0, \
      B == B ? (B > -3 && B < 3 ? ABS(A) * (ABS(B) / 3 + 1) : 0) : NOTHING_SAID, 4, 0, "gradient")                                                                              \
    X(FT, hardsigmoid, "hardsigmoid", "self", "x", 0, (A + 3 < 0 ? 0 : A + 3 > 6 ? 6 : A + 3) / 6, 0, 1 + ABS(A), 3, 0, "unary float") \
    X(F, hardsigmoid_backward, "hardsigmoid_backward", "grad_output self", "xx", 0, (B > -3) & (B < 3) ? A * (T)(1.0f / 6) : 0, 0, 0, 3, 0, \
      "gradient nonan")                                                                                                         \
    X(DT, log_sigmoid, "log_sigmoid_forward", "self", "x", 0, MIN0(A) - u[i], LOG_SIGMOID_STATEMENTS SET((double *)l->out[1], t[i]);, fabs(MIN0(A)) + u[i], 6, 0, "unary float") \
    X(DT, xlogy, "xlogy.Tensor", "self other", "xx", 0, B != B ? B : A == 0 ? 0 : A * t[i], FN(log, t, in1);,                   \
      A == 0 ? 0 : COARSE(fabs(A * t[i])), 6, 0, "binary float modest") \
    X(DT, logaddexp, "logaddexp", "self other", "xx", 0, A == B && !(fabs(A) < INFINITY) ? A : (A > B ? A : B) + t[i],          \
      SET(t, -fabs(A - B)); FN(exp, t, t); FN(log1p, t, t);, fabs(A > B ? A : B) + t[i] * (1 + BELOW_1000(A - B)), 6, 0, "binary float")                  \
    X(DT, logit, "logit", "self eps", "xn", 0, t[i], SET(u, l->given_s[0] ? (A < s0 ? s0 : A > 1 - s0 ? 1 - s0 : A) : A);       \
      SET(t, u[i] / (1 - u[i])); FN(log, t, t);, COARSE(fabs(t[i]) + 1 + 1 / fabs(1 - u[i])), 6, 0, "unary float")

OPS(LB_DEFINE)

/* t = exp(-|x|) comes from the forward op on the CPU; on other devices the buffer is empty. */
#define LOG_SIGMOID_SLOPE (A * ((B < 0 ? 1 : 0) - (B < 0 ? 1 : -1) * (t[i] / (1 + t[i]))))
LB_DEFINE_DT(log_slope, "xxx", 0, LOG_SIGMOID_SLOPE, SET(t, C);, COARSE(2 * fabs(A)))
LB_DEFINE_DT(log_slope_anew, "xx-", 0, LOG_SIGMOID_SLOPE, SET(t, -fabs(B)); FN(exp, t, t);, COARSE(2 * fabs(A)))
static bool no_buffer(const lb_call *call)
{
    return call->args[2].tag != LB_OPERAND_TENSOR || lb_layout_numel(&call->args[2].tensor.layout) == 0;
}
static lb_status log_sigmoid_backward(lb_call *call)
{
    return lb_pointwise_run(call, no_buffer(call) ? &log_slope_anew_op : &log_slope_op);
}
static lb_status log_sigmoid_backward_twin(lb_call *call)
{
    return lb_pointwise_twin(call, no_buffer(call) ? &log_slope_anew_op : &log_slope_op);
}

const lb_op_row lb_rows_activation[] = {
    OPS(LB_ROW)
    LB_SAME(log_sigmoid_backward, log_sigmoid_backward_twin, "log_sigmoid_backward", "grad_output self buffer", 6, 0, "log_sigmoid_backward")
    LB_SAME(pow_kernel, pow_twin, "pow.Tensor_Scalar", "self exponent", 6, 0, "power scalar")
    LB_SAME(pow_kernel, pow_twin, "pow.Tensor_Tensor", "self exponent", 6, 0, "power tensor")
    LB_SAME(pow_kernel, pow_twin, "pow.Scalar", "self exponent", 6, 0, "power base")
    LB_SAME(xlogy_kernel, xlogy_twin, "xlogy.Scalar_Other", "self other", 6, 0, "scalar float modest")
    LB_SAME(xlogy_kernel, xlogy_twin, "xlogy.Scalar_Self", "self other", 6, 0, "scalar_first float")
    {NULL}
};
