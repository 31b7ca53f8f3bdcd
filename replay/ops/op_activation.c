/* Functions and activations with their derivatives.
 *
 * torch evaluates these in f32 step by step with its own 1 ulp functions; here they are evaluated in f64 and rounded
 * once. Twins follow torch's formula: where it cancels (1 + erf of a negative number, 1 − sigmoid) the bound is that of
 * the terms, not of the result, and where an f32 exp overflows or underflows that f64 does not, it admits 0. */
#include "kernel/complex_rows.h"
#include "kernel/transcendental.h"

#define EXACT (LB_ROW_ELEMENTWISE | LB_ROW_EXACT)
#define COMMON LB_POINTWISE_COMMON

/* exp(-x) overflows: a quotient by 1 + exp(-x) becomes 0 there. */
#define LOST(x) (l->common == LB_F64 ? ((x) < -709 ? 0x1p53 : 1) : ((x) < -87 ? 0x1p24 : 1))
#define SQRT_HALF 0.70710678118654752440
#define TWO_BY_SQRT_PI 1.12837916709551257390
#define GELU_BETA (SQRT_HALF * TWO_BY_SQRT_PI) /* sqrt(2/pi) */
#define GELU_KAPPA 0.044715
#define NORMAL_DENSITY(e) ((e) * TWO_BY_SQRT_PI * SQRT_HALF * 0.5) /* of e = exp(-x²/2) */

/* gelu: u = erf(x/√2) or tanh(√(2/π)(x + κx³)), t = its argument; derivatives also need v = exp(-x²/2); x is B
 * there. */
#define GELU_STATEMENTS(x)                                                                                             \
    if (l->text == 't') {                                                                                              \
        LB_F64_SET(t, GELU_BETA *((x) + GELU_KAPPA * (x) * (x) * (x)));                                                \
        LB_F64_FN(tanh, u, t);                                                                                         \
    } else {                                                                                                           \
        LB_F64_SET(t, (x) * SQRT_HALF);                                                                                \
        LB_F64_FN(erf, u, t);                                                                                          \
    }
#define GELU_DENSITY(x)                                                                                                \
    LB_F64_SET(v, -0.5 * (x) * (x));                                                                                   \
    LB_F64_FN(exp, v, v);
#define TANH_SLOPE(x) ((1 - u[i] * u[i]) * GELU_BETA * (1 + 3 * GELU_KAPPA * (x) * (x)))
#define GELU (0.5 * a[i] * (1 + u[i]))
/* The argument's relative error is magnified by its derivative; an error of erf or tanh counts against 1, also near 0
 * where 1 + erf does not cancel. torch takes erf of vectors in f32 from Abramowitz and Stegun's 7.1.26, good to 1.5e-7
 * = 2.5 u, whose rational function rounds off another 8 u: over every f32 from 2^-10 to 8 it errs by 10.2 u near ±0.05
 * (AVX2 and AVX-512, dense but not contiguous tensors). oneDNN's polynomials (contiguous ones) err by 11.4 u near ±3
 * and make NaN of infinity, the scalar loop (strided ones) by libm's 1 ulp. */
#define BELOW_1000(x) (fabs(x) < 1000 ? fabs(x) : 1000) /* exp(-x) is 0 long before */
#define BELOW_100(x) (fabs(x) < 100 ? fabs(x) : 100)    /* tanh is 1 long before; infinity times 0 would be NaN */
#define GELU_TWIN                                                                                                      \
    LB_UNLESS_OVERFLOWS(2 * a[i],                                                                                      \
                        0x1p-103 + fabs(0.5 * a[i]) *                                                                  \
                                       (2 + (l->text == 't' ? 4 * (1 - u[i] * u[i]) * BELOW_100(t[i])                  \
                                                            : TWO_BY_SQRT_PI / (fabs(t[i]) + 1 / fabs(t[i])))))
#define GELU_SLOPE(x) (0.5 * (1 + u[i]) + (x) * (l->text == 't' ? 0.5 * TANH_SLOPE(x) : NORMAL_DENSITY(v[i])))
#define GELU_SLOPE_TWIN(x)                                                                                             \
    (1 + fabs(t[i]) +                                                                                                  \
     fabs(x) * (l->text == 't' ? (1 + fabs(t[i])) * GELU_BETA * (1 + 3 * GELU_KAPPA * (x) * (x))                       \
                               : v[i] * (1 + 0.5 * (x) * (x))))

#define SIGMOID_OF(x)                                                                                                  \
    LB_F64_SET(u, x);                                                                                                  \
    LB_F64_FN(sigmoid, u, u);
/* softplus: t = beta x, u = sigmoid(t), v = log(1 + exp(t)) */
#define SOFTPLUS_STATEMENTS(x, beta)                                                                                   \
    LB_F64_SET(t, (x) * (beta));                                                                                       \
    LB_F64_FN(sigmoid, u, t);                                                                                          \
    LB_F64_FN(softplus, v, t);

/* mish: t = tanh(softplus(x)), u = sigmoid(x) */
#define MISH_STATEMENTS(x)                                                                                             \
    LB_F64_SET(t, x);                                                                                                  \
    LB_F64_FN(softplus, t, t);                                                                                         \
    LB_F64_FN(tanh, t, t);                                                                                             \
    SIGMOID_OF(x)

/* log_sigmoid: t = exp(-|x|), u = log1p(t) */
#define LOG_SIGMOID_STATEMENTS                                                                                         \
    LB_F64_SET(t, -fabs(a[i]));                                                                                        \
    LB_F64_FN(exp, t, t);                                                                                              \
    LB_F64_FN(log1p, u, t);
#define MIN0(x) ((x) != (x) ? (x) : (x) < 0 ? (x) : 0)

/* ---- powers ------------------------------------------------------------------------------------------------------- *
 * torch multiplies and divides for the exponents 2, 3, -1 and -2, rounding to the common dtype after the first product,
 * takes square roots for ±1/2 (so that of -0 it gives -0 and of -infinity NaN, as no pow does), and calls pow for all
 * others. */

static void pow_general(const lb_lanes *l, double *out)
{
    lb_pow_f64(out, l->in[0], l->in[1], l->n);
}

/* Exponent `e` everywhere; false when it is none of the small ones. */
#define SMALL_POWER(NAME, TYPE, ROUND)                                                                                 \
    static bool NAME(const lb_lanes *l, double e)                                                                      \
    {                                                                                                                  \
        const TYPE *x = l->in[0];                                                                                      \
        TYPE *y = l->out[0], square[LB_LANES];                                                                         \
        const size_t n = l->n;                                                                                         \
        if (e != 0 && e != 1 && e != 2 && e != 3 && e != -1 && e != -2 && fabs(e) != 0.5) return false;                \
        for (size_t i = 0; i < n; i++) square[i] = x[i] * x[i];                                                        \
        if ((e == 3 || e == -2) && l->common != LB_F32 && l->common != LB_F64) ROUND(square, n, l->common, NULL);      \
        for (size_t i = 0; i < n; i++)                                                                                 \
            y[i] = e == 0      ? 1                                                                                     \
                   : e == 1    ? x[i]                                                                                  \
                   : e == 2    ? square[i]                                                                             \
                   : e == 3    ? square[i] * x[i]                                                                      \
                   : e == -1   ? 1 / x[i]                                                                              \
                   : e == 0.5  ? LB_SQRT(x[i])                                                                         \
                   : e == -0.5 ? 1 / LB_SQRT(x[i])                                                                     \
                               : 1 / square[i];                                                                        \
        return true;                                                                                                   \
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
        if (small && (e[0] == 3 || e[0] == -2))
            y[i] = LB_UNLESS_STEP_OVERFLOWS(x * x, LB_COARSE(y[i]));
        else if (small)
            y[i] = fabs(e[0]) == 0.5 ? LB_COARSE(y[i]) : l->coarse == 1 ? 0 : y[i];
        else
            y[i] = LB_COARSE(y[i]);
    }
}
static const lb_pointwise pow_op = {"xx", pow_f32, pow_f64, pow_i64, pow_twin_loop, LB_POINTWISE_COMMON};
LB_KERNEL(pow)
LB_TWIN(pow)

/* clang-format off */
LB_POINTWISE_U(exp, "x", 0, exp)
LB_POINTWISE_U(exp2, "x", 0, exp2)
LB_POINTWISE_U(expm1, "x", 0, expm1)
LB_POINTWISE_U(log, "x", 0, log)
LB_POINTWISE_U(log2, "x", 0, log2)
LB_POINTWISE_U(log10, "x", 0, log10)
LB_POINTWISE_U(log1p, "x", 0, log1p)
LB_POINTWISE_U(sin, "x", 0, sin)
LB_POINTWISE_U(cos, "x", 0, cos)
LB_POINTWISE_U(tanh, "x", 0, tanh)
LB_POINTWISE_UT(erf, "x", 0, erf, LB_COARSE(fabs(t[i])) + (l->coarse > 1 ? 2 : 0x1p-103))
LB_POINTWISE_UT(sigmoid, "x", 0, sigmoid, t[i] * LOST(a[i]))
LB_POINTWISE_DT(silu, "x", 0, LB_F64_FN(sigmoid, u, a);, a[i] * u[i], fabs(a[i] * u[i]) * LOST(a[i]))
LB_POINTWISE_DT(silu_backward, "xx", 0, LB_F64_FN(sigmoid, u, b);, a[i] * u[i] * (1 + b[i] * (1 - u[i])),
    fabs(a[i] * u[i]) * (1 + fabs(b[i])) * LOST(b[i]) + LB_UNDERFLOW * (1 + fabs(b[i])))
LB_POINTWISE_U(erfc, "x", 0, erfc)
LB_POINTWISE_DT(gelu, "xt", 0, GELU_STATEMENTS(a[i]), GELU, GELU_TWIN)
LB_POINTWISE_DT(gelu_backward, "xxt", 0, GELU_STATEMENTS(b[i]) GELU_DENSITY(b[i]), a[i] * GELU_SLOPE(b[i]),
    LB_UNLESS_OVERFLOWS(l->text == 't' ? 8 * b[i] * b[i] * b[i] : b[i] * b[i], fabs(a[i]) * GELU_SLOPE_TWIN(b[i])))
LB_POINTWISE_DT(softplus, "xss", 0, SOFTPLUS_STATEMENTS(a[i], s0), t[i] > s1 ? a[i] : v[i] / s0,
    t[i] > s1 ? fabs(a[i]) : v[i] / s0 * (1 + fabs(t[i])))
LB_POINTWISE_DT(softplus_backward, "xxss", 0, SOFTPLUS_STATEMENTS(b[i], s0), t[i] > s1 ? a[i] : a[i] * u[i],
    LB_UNLESS_OVERFLOWS(t[i] > s1 ? a[i] : 2 * a[i] / (1 - u[i]), fabs(a[i]) * ((1 + fabs(t[i])) * (t[i] > s1 ? 1 : u[i]) + LB_UNDERFLOW)))
LB_POINTWISE_FT(sigmoid_backward, "xx", 0, a[i] * (1 - b[i]) * b[i],
    LB_UNLESS_STEP_OVERFLOWS(2 * a[i] * (1 + b[i] * b[i]), LB_COARSE(LB_ABS(a[i] * (1 - b[i]) * b[i])) + l->grain * (1 + b[i] * b[i])))
LB_POINTWISE_FT(tanh_backward, "xx", 0, a[i] * LB_FMA(-b[i], b[i], (T)1),
    LB_UNLESS_STEP_OVERFLOWS(b[i] * b[i], LB_COARSE(LB_ABS(a[i]) * (1 + b[i] * b[i]))))
LB_POINTWISE_F(leaky_relu, "xs", 0, a[i] > 0 ? a[i] : a[i] * s0)
LB_POINTWISE_F(leaky_relu_backward, "xxs-", 0, b[i] > 0 ? a[i] : a[i] * s0)
LB_POINTWISE_D(elu, "xsss", 0, LB_F64_SET(t, a[i] * s2); LB_F64_FN(expm1, t, t);, a[i] < 0 ? t[i] * (s0 * s1) : a[i] * s1)
LB_POINTWISE_DT(elu_backward, "xssssx", 0, LB_F64_SET(t, b[i] * s2); LB_F64_FN(exp, t, t);,
    b[i] <= 0 ? (s3 != 0 ? a[i] * s2 * (b[i] + s0 * s1) : a[i] * s2 * (s0 * s1) * t[i]) : a[i] * s1,
    b[i] != b[i] ? LB_NOTHING_SAID : LB_UNLESS_OVERFLOWS(4 * a[i] * (1 + fabs(b[i])) * (1 + fabs(s0 * s1)) * (1 + fabs(s2)),
        b[i] > 0 ? fabs(a[i] * s1) : s3 != 0 ? fabs(a[i] * s2) * (fabs(b[i]) + fabs(s0 * s1))
                                             : fabs(a[i] * s2 * s0 * s1) * (t[i] * (1 + fabs(b[i] * s2)) + LB_UNDERFLOW)))
LB_POINTWISE_DT(mish, "x", 0, MISH_STATEMENTS(a[i]), a[i] * t[i], fabs(a[i]) * (t[i] + LB_UNDERFLOW))
LB_POINTWISE_DT(mish_backward, "xx", 0, MISH_STATEMENTS(b[i]), a[i] * (t[i] + b[i] * u[i] * (1 - t[i] * t[i])),
    LB_UNLESS_OVERFLOWS(2 * a[i] * (1 + fabs(b[i])),
        fabs(a[i]) * (fabs(t[i]) + fabs(b[i] * u[i]) * (1 + t[i] * t[i]) * LOST(b[i]) + LB_UNDERFLOW * (1 + fabs(b[i])))))
LB_POINTWISE_FT(hardswish, "x", 0, a[i] * (a[i] + 3 < 0 ? 0 : a[i] + 3 > 6 ? 6 : a[i] + 3) / 6,
    LB_UNLESS_OVERFLOWS(8 * a[i], LB_ABS(a[i])))
LB_POINTWISE_FT(hardswish_backward, "xx", 0, b[i] <= -3 ? 0 : b[i] >= 3 ? a[i] : a[i] * (b[i] / 3 + (T)0.5),
    b[i] == b[i] ? (b[i] > -3 && b[i] < 3 ? LB_ABS(a[i]) * (LB_ABS(b[i]) / 3 + 1) : 0) : LB_NOTHING_SAID)
LB_POINTWISE_FT(hardsigmoid, "x", 0, (a[i] + 3 < 0 ? 0 : a[i] + 3 > 6 ? 6 : a[i] + 3) / 6, 1 + LB_ABS(a[i]))
LB_POINTWISE_F(hardsigmoid_backward, "xx", 0, (b[i] > -3) & (b[i] < 3) ? a[i] * (T)(1.0f / 6) : 0)
LB_POINTWISE_DT(log_sigmoid, "x", 0, LOG_SIGMOID_STATEMENTS LB_F64_SET((double *)l->out[1], t[i]);, MIN0(a[i]) - u[i],
    fabs(MIN0(a[i])) + u[i])
LB_POINTWISE_DT(xlogy, "xx", 0, LB_F64_FN(log, t, b);, b[i] != b[i] ? b[i] : a[i] == 0 ? 0 : a[i] * t[i],
    a[i] == 0 ? 0 : LB_COARSE(fabs(a[i] * t[i])))
LB_POINTWISE_DT(logaddexp, "xx", 0, LB_F64_SET(t, -fabs(a[i] - b[i])); LB_F64_FN(exp, t, t); LB_F64_FN(log1p, t, t);,
    a[i] == b[i] && !(fabs(a[i]) < INFINITY) ? a[i] : (a[i] > b[i] ? a[i] : b[i]) + t[i],
    fabs(a[i] > b[i] ? a[i] : b[i]) + t[i] * (1 + BELOW_1000(a[i] - b[i])))
LB_POINTWISE_DT(logit, "xn", 0,
    LB_F64_SET(u, l->given_s[0] ? (a[i] < s0 ? s0 : a[i] > 1 - s0 ? 1 - s0 : a[i]) : a[i]); LB_F64_SET(t, u[i] / (1 - u[i])); LB_F64_FN(log, t, t);,
    t[i], LB_COARSE(fabs(t[i]) + 1 + 1 / fabs(1 - u[i])))

/* t = exp(-|x|) comes from the forward op on the CPU; on other devices the buffer is empty. */
static lb_status log_sigmoid_forward(lb_call *call, bool twin)
{
    lb_tensor results[2] = {call->results[0]};
    lb_call inner = *call;
    if (call->n_results > 1 && lb_layout_numel(&call->results[1].layout) > 0) results[1] = call->results[1];
    if (call->n_results <= 2) inner.results = results;
    return twin ? log_sigmoid_twin(&inner) : log_sigmoid_kernel(&inner);
}
LB_WITH_TWIN(log_sigmoid_forward, log_sigmoid_forward(call, twin))

#define LOG_SIGMOID_SLOPE (a[i] * ((b[i] < 0 ? 1 : 0) - (b[i] < 0 ? 1 : -1) * (t[i] / (1 + t[i]))))
LB_POINTWISE_DT(log_slope, "xxx", 0, LB_F64_SET(t, c[i]);, LOG_SIGMOID_SLOPE, LB_COARSE(2 * fabs(a[i])))
LB_POINTWISE_DT(log_slope_anew, "xx-", 0, LB_F64_SET(t, -fabs(b[i])); LB_F64_FN(exp, t, t);, LOG_SIGMOID_SLOPE, LB_COARSE(2 * fabs(a[i])))
static bool no_buffer(const lb_call *call)
{
    return call->args[2].tag != LB_OPERAND_TENSOR || lb_layout_numel(&call->args[2].tensor.layout) == 0;
}
static lb_status log_sigmoid_slope(lb_call *call, bool twin)
{
    const lb_pointwise *op = no_buffer(call) ? &log_slope_anew_op : &log_slope_op;
    return twin ? lb_pointwise_twin(call, op) : lb_pointwise_run(call, op);
}
LB_WITH_TWIN(log_sigmoid_backward, log_sigmoid_slope(call, twin))

const lb_op_row lb_rows_activation[] = {
    {.name = "aten::exp", .args = "self!", .kernel = exp_kernel, .roundings = 4, .flags = LB_ROW_ELEMENTWISE, .samples = "unary",
     .complex = &lb_complex_exponential},
    {.name = "aten::exp2", .args = "self!", .kernel = exp2_kernel, .roundings = 4, .flags = LB_ROW_ELEMENTWISE, .samples = "unary"},
    {.name = "aten::expm1", .args = "self!", .kernel = expm1_kernel, .roundings = 4, .flags = LB_ROW_ELEMENTWISE,
     .samples = "unary"},
    {.name = "aten::log", .args = "self!", .kernel = log_kernel, .roundings = 4, .flags = LB_ROW_ELEMENTWISE, .samples = "unary"},
    {.name = "aten::log2", .args = "self!", .kernel = log2_kernel, .roundings = 4, .flags = LB_ROW_ELEMENTWISE, .samples = "unary"},
    {.name = "aten::log10", .args = "self!", .kernel = log10_kernel, .roundings = 4, .flags = LB_ROW_ELEMENTWISE,
     .samples = "unary"},
    {.name = "aten::log1p", .args = "self!", .kernel = log1p_kernel, .roundings = 4, .flags = LB_ROW_ELEMENTWISE,
     .samples = "unary"},
    {.name = "aten::sin", .args = "self!", .kernel = sin_kernel, .roundings = 4, .flags = LB_ROW_ELEMENTWISE, .samples = "unary"},
    {.name = "aten::cos", .args = "self!", .kernel = cos_kernel, .roundings = 4, .flags = LB_ROW_ELEMENTWISE, .samples = "unary"},
    {.name = "aten::tanh", .args = "self!", .kernel = tanh_kernel, .roundings = 4, .flags = LB_ROW_ELEMENTWISE, .samples = "unary"},
    {.name = "aten::erf", .args = "self!", LB_COMPUTED_BY(erf), .roundings = 4, .flags = LB_ROW_ELEMENTWISE,
     .samples = "unary"},
    {.name = "aten::sigmoid", .args = "self!", LB_COMPUTED_BY(sigmoid), .roundings = 5,
     .flags = LB_ROW_ELEMENTWISE, .samples = "unary"},
    {.name = "aten::silu", .args = "self!", LB_COMPUTED_BY(silu), .roundings = 6, .flags = LB_ROW_ELEMENTWISE,
     .samples = "unary float"},
    {.name = "aten::silu_backward", .args = "grad_output! self!", LB_COMPUTED_BY(silu_backward),
     .roundings = 8, .flags = LB_ROW_ELEMENTWISE, .samples = "gradient"},
    {.name = "aten::erfc", .args = "self!", .kernel = erfc_kernel, .roundings = 8, .flags = LB_ROW_ELEMENTWISE, .samples = "unary"},
    {.name = "aten::gelu", .args = "self! approximate", LB_COMPUTED_BY(gelu), .roundings = 8,
     .flags = LB_ROW_ELEMENTWISE, .samples = "unary float approximate"},
    {.name = "aten::gelu_backward", .args = "grad_output! self! approximate", LB_COMPUTED_BY(gelu_backward), .roundings = 8, .flags = LB_ROW_ELEMENTWISE, .samples = "gradient approximate modest"},
    {.name = "aten::softplus", .args = "self! beta threshold", LB_COMPUTED_BY(softplus), .roundings = 8,
     .flags = LB_ROW_ELEMENTWISE, .samples = "softplus"},
    {.name = "aten::softplus_backward", .args = "grad_output! self! beta threshold", LB_COMPUTED_BY(softplus_backward), .roundings = 8, .flags = LB_ROW_ELEMENTWISE, .samples = "softplus backward modest"},
    {.name = "aten::sigmoid_backward", .args = "grad_output! output!", LB_COMPUTED_BY(sigmoid_backward), .roundings = 4, .flags = LB_ROW_ELEMENTWISE, .samples = "gradient modest"},
    {.name = "aten::tanh_backward", .args = "grad_output! output!", LB_COMPUTED_BY(tanh_backward),
     .roundings = 3, .flags = LB_ROW_ELEMENTWISE, .samples = "gradient modest"},
    {.name = "aten::leaky_relu", .args = "self! negative_slope", .kernel = leaky_relu_kernel, .roundings = 2, .flags = EXACT,
     .samples = "unary float slope"},
    {.name = "aten::leaky_relu_backward", .args = "grad_output! self! negative_slope self_is_result",
     .kernel = leaky_relu_backward_kernel, .roundings = 2, .flags = EXACT, .samples = "gradient slope"},
    {.name = "aten::elu", .args = "self! alpha scale input_scale", .kernel = elu_kernel, .roundings = 6, .flags = LB_ROW_ELEMENTWISE,
     .samples = "elu"},
    {.name = "aten::elu_backward", .args = "grad_output! alpha scale input_scale is_result self_or_result!",
     LB_COMPUTED_BY(elu_backward), .roundings = 6, .flags = LB_ROW_ELEMENTWISE,
     .samples = "elu backward modest"},
    {.name = "aten::mish", .args = "self!", LB_COMPUTED_BY(mish), .roundings = 8, .flags = LB_ROW_ELEMENTWISE,
     .samples = "unary float"},
    {.name = "aten::mish_backward", .args = "grad_output! self!", LB_COMPUTED_BY(mish_backward),
     .roundings = 10, .flags = LB_ROW_ELEMENTWISE, .samples = "gradient"},
    {.name = "aten::hardswish", .args = "self!", LB_COMPUTED_BY(hardswish), .roundings = 4,
     .flags = LB_ROW_ELEMENTWISE, .samples = "unary float"},
    {.name = "aten::hardswish_backward", .args = "grad_output! self!", LB_COMPUTED_BY(hardswish_backward), .roundings = 4, .flags = LB_ROW_ELEMENTWISE, .samples = "gradient"},
    {.name = "aten::hardsigmoid", .args = "self!", LB_COMPUTED_BY(hardsigmoid), .roundings = 3,
     .flags = LB_ROW_ELEMENTWISE, .samples = "unary float"},
    {.name = "aten::hardsigmoid_backward", .args = "grad_output! self!", .kernel = hardsigmoid_backward_kernel, .roundings = 3,
     .flags = LB_ROW_ELEMENTWISE, .samples = "gradient nonan"},
    {.name = "aten::log_sigmoid_forward", .args = "self!", LB_COMPUTED_BY(log_sigmoid_forward), .roundings = 6,
     .flags = LB_ROW_ELEMENTWISE, .samples = "unary float"},
    {.name = "aten::xlogy.Tensor", .args = "self! other!", LB_COMPUTED_BY(xlogy), .roundings = 6,
     .flags = LB_ROW_ELEMENTWISE, .samples = "binary float modest"},
    {.name = "aten::logaddexp", .args = "self! other!", LB_COMPUTED_BY(logaddexp), .roundings = 6,
     .flags = LB_ROW_ELEMENTWISE, .samples = "binary float"},
    {.name = "aten::logit", .args = "self! eps", LB_COMPUTED_BY(logit), .roundings = 6,
     .flags = LB_ROW_ELEMENTWISE, .samples = "unary float"},
    {.name = "aten::log_sigmoid_backward", .args = "grad_output! self! buffer!", LB_COMPUTED_BY(log_sigmoid_backward), .roundings = 6, .flags = LB_ROW_ELEMENTWISE, .samples = "log_sigmoid_backward"},
    {.name = "aten::pow.Tensor_Scalar", .args = "self! exponent", LB_COMPUTED_BY(pow), .roundings = 6,
     .flags = LB_ROW_ELEMENTWISE, .samples = "power scalar"},
    {.name = "aten::pow.Tensor_Tensor", .args = "self! exponent!", LB_COMPUTED_BY(pow), .roundings = 6,
     .flags = LB_ROW_ELEMENTWISE, .samples = "power tensor"},
    {.name = "aten::pow.Scalar", .args = "self exponent!", LB_COMPUTED_BY(pow), .roundings = 6,
     .flags = LB_ROW_ELEMENTWISE, .samples = "power base"},
    {.name = "aten::xlogy.Scalar_Other", .args = "self! other", LB_COMPUTED_BY(xlogy), .roundings = 6,
     .flags = LB_ROW_ELEMENTWISE, .samples = "scalar float modest"},
    {.name = "aten::xlogy.Scalar_Self", .args = "self other!", LB_COMPUTED_BY(xlogy), .roundings = 6,
     .flags = LB_ROW_ELEMENTWISE, .samples = "scalar_first float"},
    {NULL}
};
