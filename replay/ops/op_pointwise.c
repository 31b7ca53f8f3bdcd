/* Arithmetic, elementwise: what IEEE defines (+ − × ÷ √ and exact functions) and products of it.
 *
 * Where torch's vectorised code contracts `a + alpha * b` to a fused multiply-add these kernels do too; torch without
 * AVX2 and other devices may round twice, which the twin allows for: it is 0 where every backend must give the
 * correctly rounded result. torch's sqrt on x86 is MKL's and not correctly rounded (0.6 % of f32 results are the
 * neighbour), hence no EXACT row. `mul_` with a Python scalar is an op of its own: torch swaps its operands, so that
 * the scalar is rounded to the tensor's dtype. */
#include "kernel/complex_rows.h"
#include "kernel/pointwise.h"

/* In 16 bits torch rounds every step of a division with a rounding mode, unless the divisor is a single number. */
static inline float step_f32(const lb_lanes *l, float x)
{
    if (l->coarse != 1 && !l->single[1]) lb_round_to_grid_f32(&x, 1, l->common, NULL);
    return x;
}
static inline double step_f64(const lb_lanes *l, double x)
{
    (void)l;
    return x;
}

/* Floor division and remainder as c10::div_floor_floating and Python's % define them. */
#define FLOOR_DIVIDE(type, suffix)                                                                                     \
    static inline type floor_divide_##suffix(const lb_lanes *l, type a, type b)                                        \
    {                                                                                                                  \
        if (b == 0) return a / b;                                                                                      \
        const type mod = LB_FMOD(a, b);                                                                                \
        type div = step_##suffix(l, step_##suffix(l, a - mod) / b);                                                    \
        if (mod != 0 && (b < 0) != (mod < 0)) div = step_##suffix(l, div - 1);                                         \
        if (div == 0) return LB_COPYSIGN((type)0, a / b);                                                              \
        const type down = LB_FLOOR(div);                                                                               \
        return step_##suffix(l, div - down) > (type)0.5 ? step_##suffix(l, down + 1) : down;                           \
    }                                                                                                                  \
    static inline type remainder_##suffix(type a, type b)                                                              \
    {                                                                                                                  \
        const type mod = LB_FMOD(a, b);                                                                                \
        return mod != 0 && (b < 0) != (mod < 0) ? mod + b : mod;                                                       \
    }
FLOOR_DIVIDE(float, f32)
FLOOR_DIVIDE(double, f64)

/* Division by 0 raises in torch and never arrives; −2^63 / −1 wraps. */
static inline int64_t divide_i64(int64_t a, int64_t b)
{
    return b == 0 ? 0 : b == -1 ? LB_WSUB(0, a) : a / b;
}
static inline int64_t modulo_i64(int64_t a, int64_t b)
{
    return b == 0 || b == -1 ? 0 : a % b;
}
static inline int64_t floor_divide_i64(int64_t a, int64_t b)
{
    const int64_t quotient = divide_i64(a, b);
    return modulo_i64(a, b) != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}
static inline int64_t remainder_i64(int64_t a, int64_t b)
{
    const int64_t mod = modulo_i64(a, b);
    return mod != 0 && (mod < 0) != (b < 0) ? mod + b : mod;
}
#define FLOOR_DIV(x, y) _Generic((x), float: floor_divide_f32, double: floor_divide_f64)(l, x, y)
#define STEP(x) _Generic((x), float: step_f32, double: step_f64)(l, x)
#define REMAINDER(x, y) _Generic((x), float: remainder_f32, double: remainder_f64)(x, y)
#define DIV_MODE(x, y) (l->text == 'f' ? FLOOR_DIV(x, y) : l->text == 't' ? LB_TRUNC(STEP((x) / (y))) : (x) / (y))

/* |y| where an operand was a scalar (it is rounded first, and CUDA multiplies by its reciprocal), else 0. */
#define SCALAR_TWIN(y) (l->scalar[0] || l->scalar[1] || l->single[1] ? LB_ABS(y) : 0)
/* The same of a + alpha b. Where alpha is not 1, torch rounds it and in part of its loops the product to the common
 * dtype. */
#define SUM_TWIN(x, y)                                                                                                 \
    (s0 != 1                                                          ? LB_ABS(x) + LB_COARSE(LB_ABS(s0 * (y)))        \
     : (l->scalar[0] || l->scalar[1] || l->single[0] || l->single[1]) ? LB_COARSE(LB_ABS(x) + LB_ABS(y))               \
                                                                      : 0)

#define SUM(x, y, alpha) ((alpha) == 1 ? (x) + (y) : LB_FMA(y, alpha, x))
#define DIFFERENCE(x, y, alpha) ((alpha) == 1 ? (x) - (y) : LB_FMA(y, -(alpha), x))

/* NaN wins; of equal zeros the second, as x86's max and min give. */
#define MAXIMUM(x, y) ((x) != (x) || (x) > (y) ? (x) : (y))
#define MINIMUM(x, y) ((x) != (x) || (x) < (y) ? (x) : (y))

#define EXACT (LB_ROW_ELEMENTWISE | LB_ROW_EXACT)
#define STEPS (LB_ROW_ELEMENTWISE | LB_ROW_EXACT | LB_ROW_DISCONTINUOUS)
#define COMMON LB_POINTWISE_COMMON
#define FIRST LB_POINTWISE_COMMON_FIRST

/* clang-format off */
LB_POINTWISE_FIT(add, "xx1", COMMON, SUM(a[i], b[i], s0), LB_WADD(a[i], LB_WMUL(s0, b[i])), SUM_TWIN(a[i], b[i]))
LB_POINTWISE_FIT(sub, "xx1", COMMON, DIFFERENCE(a[i], b[i], s0), LB_WSUB(a[i], LB_WMUL(s0, b[i])), SUM_TWIN(a[i], b[i]))
LB_POINTWISE_FIT(rsub, "xx1", COMMON, DIFFERENCE(b[i], a[i], s0), LB_WSUB(b[i], LB_WMUL(s0, a[i])), SUM_TWIN(b[i], a[i]))
LB_POINTWISE_FI(mul, "xx", FIRST, a[i] * b[i], LB_WMUL(a[i], b[i]))
LB_POINTWISE_FI(mul_scalar, "xx", COMMON, a[i] * b[i], LB_WMUL(a[i], b[i]))
LB_POINTWISE_FT(div, "xx", FIRST, a[i] / b[i], SCALAR_TWIN(a[i] / b[i]))
LB_POINTWISE_FI(div_mode, "xxt", FIRST, DIV_MODE(a[i], b[i]),
    l->text == 'f' ? floor_divide_i64(a[i], b[i]) : divide_i64(a[i], b[i]))
LB_POINTWISE_FI(floor_divide, "xx", FIRST, FLOOR_DIV(a[i], b[i]), floor_divide_i64(a[i], b[i]))
LB_POINTWISE_FI(remainder, "xx", COMMON, REMAINDER(a[i], b[i]), remainder_i64(a[i], b[i]))
LB_POINTWISE_FI(fmod, "xx", COMMON, LB_FMOD(a[i], b[i]), modulo_i64(a[i], b[i]))
LB_POINTWISE_FI(neg, "x", 0, -a[i], LB_WSUB(0, a[i]))
LB_POINTWISE_FI(abs, "x", 0, LB_ABS(a[i]), LB_ABS(a[i]))
LB_POINTWISE_F(sqrt, "x", 0, LB_SQRT(a[i]))
LB_POINTWISE_FT(rsqrt, "x", 0, 1 / LB_SQRT(a[i]), (1 + l->coarse / 4) * LB_ABS(1 / LB_SQRT(a[i])))
LB_POINTWISE_F(reciprocal, "x", 0, 1 / a[i])
LB_POINTWISE_FI(sign, "x", 0, (a[i] > 0) - (a[i] < 0), (a[i] > 0) - (a[i] < 0))
LB_POINTWISE_FI(floor, "x", 0, LB_FLOOR(a[i]), a[i])
LB_POINTWISE_FI(ceil, "x", 0, LB_CEIL(a[i]), a[i])
LB_POINTWISE_FI(trunc, "x", 0, LB_TRUNC(a[i]), a[i])
LB_POINTWISE_FI(round, "x", 0, LB_RINT(a[i]), a[i])
LB_POINTWISE_F(frac, "x", 0, a[i] - LB_TRUNC(a[i]))
LB_POINTWISE_FI(maximum, "xx", COMMON, MAXIMUM(a[i], b[i]), a[i] > b[i] ? a[i] : b[i])
LB_POINTWISE_FI(minimum, "xx", COMMON, MINIMUM(a[i], b[i]), a[i] < b[i] ? a[i] : b[i])
LB_POINTWISE_FI(fmax, "xx", COMMON, a[i] != a[i] || b[i] > a[i] ? b[i] : a[i], a[i] > b[i] ? a[i] : b[i])
LB_POINTWISE_FI(fmin, "xx", COMMON, a[i] != a[i] || b[i] < a[i] ? b[i] : a[i], a[i] < b[i] ? a[i] : b[i])
LB_POINTWISE_F(copysign, "xx", COMMON, LB_COPYSIGN(a[i], b[i]))

const lb_op_row lb_rows_pointwise[] = {
    {.name = "aten::add.Tensor", .args = "self! other! alpha", LB_COMPUTED_BY(add), .roundings = 3,
     .flags = LB_ROW_ELEMENTWISE, .samples = "binary alpha", .complex = &lb_complex_linear},
    {.name = "aten::sub.Tensor", .args = "self! other! alpha", LB_COMPUTED_BY(sub), .roundings = 3,
     .flags = LB_ROW_ELEMENTWISE, .samples = "binary alpha nobool", .complex = &lb_complex_linear},
    {.name = "aten::rsub.Tensor", .args = "self! other! alpha", LB_COMPUTED_BY(rsub), .roundings = 3,
     .flags = LB_ROW_ELEMENTWISE, .samples = "binary alpha nobool"},
    {.name = "aten::mul.Tensor", .args = "self! other!", .kernel = mul_kernel, .roundings = 2, .flags = EXACT, .samples = "binary",
     .complex = &lb_complex_product},
    {.name = "aten::mul_.Scalar", .args = "self! other", .kernel = mul_scalar_kernel, .roundings = 2, .flags = EXACT,
     .samples = "scalar", .complex = &lb_complex_product},
    {.name = "aten::div.Tensor", .args = "self! other!", LB_COMPUTED_BY(div), .roundings = 2,
     .flags = LB_ROW_ELEMENTWISE, .samples = "binary float", .complex = &lb_complex_quotient},
    {.name = "aten::div.Tensor_mode", .args = "self! other! rounding_mode", .kernel = div_mode_kernel, .roundings = 2,
     .flags = LB_ROW_ELEMENTWISE | LB_ROW_DISCONTINUOUS, .samples = "binary rounding_mode nonzero modest"},
    {.name = "aten::floor_divide", .args = "self! other!", .kernel = floor_divide_kernel, .roundings = 2,
     .flags = LB_ROW_ELEMENTWISE | LB_ROW_DISCONTINUOUS, .samples = "binary nonzero modest"},
    {.name = "aten::remainder.Tensor", .args = "self! other!", .kernel = remainder_kernel, .roundings = 2,
     .flags = LB_ROW_ELEMENTWISE | LB_ROW_DISCONTINUOUS, .samples = "binary nonzero nobool modest"},
    {.name = "aten::fmod.Tensor", .args = "self! other!", .kernel = fmod_kernel, .roundings = 1,
     .flags = LB_ROW_ELEMENTWISE | LB_ROW_DISCONTINUOUS, .samples = "binary nonzero nobool modest"},
    {.name = "aten::neg", .args = "self!", .kernel = neg_kernel, .flags = EXACT, .samples = "unary nobool",
     .complex = &lb_complex_negation},
    {.name = "aten::abs", .args = "self!", .kernel = abs_kernel, .flags = EXACT, .samples = "unary nobool",
     .complex = &lb_complex_magnitude},
    /* sqrt is not EXACT: torch's CPU builds compute long f32 rows by MKL's vector library, an ulp off at times. */
    {.name = "aten::sqrt", .args = "self!", .kernel = sqrt_kernel, .roundings = 1, .flags = LB_ROW_ELEMENTWISE, .samples = "unary"},
    {.name = "aten::rsqrt", .args = "self!", LB_COMPUTED_BY(rsqrt), .roundings = 4, .flags = LB_ROW_ELEMENTWISE,
     .samples = "unary"},
    {.name = "aten::reciprocal", .args = "self!", .kernel = reciprocal_kernel, .roundings = 1, .flags = EXACT, .samples = "unary"},
    {.name = "aten::sign", .args = "self!", .kernel = sign_kernel, .flags = STEPS, .samples = "unary"},
    {.name = "aten::floor", .args = "self!", .kernel = floor_kernel, .flags = STEPS, .samples = "unary nobool"},
    {.name = "aten::ceil", .args = "self!", .kernel = ceil_kernel, .flags = STEPS, .samples = "unary nobool"},
    {.name = "aten::trunc", .args = "self!", .kernel = trunc_kernel, .flags = STEPS, .samples = "unary nobool"},
    {.name = "aten::round", .args = "self!", .kernel = round_kernel, .flags = STEPS, .samples = "unary nobool"},
    {.name = "aten::frac", .args = "self!", .kernel = frac_kernel, .flags = STEPS, .samples = "unary float"},
    {.name = "aten::maximum", .args = "self! other!", .kernel = maximum_kernel, .flags = EXACT, .samples = "binary nozero"},
    {.name = "aten::minimum", .args = "self! other!", .kernel = minimum_kernel, .flags = EXACT, .samples = "binary nozero"},
    {.name = "aten::fmax", .args = "self! other!", .kernel = fmax_kernel, .flags = EXACT, .samples = "binary nozero"},
    {.name = "aten::fmin", .args = "self! other!", .kernel = fmin_kernel, .flags = EXACT, .samples = "binary nozero"},
    {.name = "aten::copysign.Tensor", .args = "self! other!", .kernel = copysign_kernel, .flags = EXACT, .samples = "binary"},
    {.name = "aten::add.Scalar", .args = "self! other alpha", LB_COMPUTED_BY(add), .roundings = 3,
     .flags = LB_ROW_ELEMENTWISE, .samples = "scalar alpha"},
    {.name = "aten::sub.Scalar", .args = "self! other alpha", LB_COMPUTED_BY(sub), .roundings = 3,
     .flags = LB_ROW_ELEMENTWISE, .samples = "scalar alpha nobool"},
    {.name = "aten::rsub.Scalar", .args = "self! other alpha", LB_COMPUTED_BY(rsub), .roundings = 3,
     .flags = LB_ROW_ELEMENTWISE, .samples = "scalar alpha nobool"},
    {.name = "aten::mul.Scalar", .args = "self! other", .kernel = mul_kernel, .roundings = 2, .flags = EXACT, .samples = "scalar",
     .complex = &lb_complex_product},
    {.name = "aten::div.Scalar", .args = "self! other", LB_COMPUTED_BY(div), .roundings = 2,
     .flags = LB_ROW_ELEMENTWISE, .samples = "scalar", .complex = &lb_complex_quotient},
    {.name = "aten::div.Scalar_mode", .args = "self! other rounding_mode", .kernel = div_mode_kernel, .roundings = 2,
     .flags = LB_ROW_ELEMENTWISE | LB_ROW_DISCONTINUOUS, .samples = "scalar rounding_mode nonzero modest"},
    {.name = "aten::floor_divide.Scalar", .args = "self! other", .kernel = floor_divide_kernel, .roundings = 2,
     .flags = LB_ROW_ELEMENTWISE | LB_ROW_DISCONTINUOUS, .samples = "scalar nonzero modest"},
    {.name = "aten::remainder.Scalar", .args = "self! other", .kernel = remainder_kernel, .roundings = 2,
     .flags = LB_ROW_ELEMENTWISE | LB_ROW_DISCONTINUOUS, .samples = "scalar nonzero nobool modest"},
    {.name = "aten::remainder.Scalar_Tensor", .args = "self other!", .kernel = remainder_kernel, .roundings = 2,
     .flags = LB_ROW_ELEMENTWISE | LB_ROW_DISCONTINUOUS, .samples = "scalar_first nobool modest"},
    {.name = "aten::fmod.Scalar", .args = "self! other", .kernel = fmod_kernel, .roundings = 1,
     .flags = LB_ROW_ELEMENTWISE | LB_ROW_DISCONTINUOUS, .samples = "scalar nonzero nobool modest"},
    {.name = "aten::sgn", .args = "self!", .kernel = sign_kernel, .flags = STEPS, .samples = "unary", .complex = &lb_complex_direction},
    {.name = "aten::copysign.Scalar", .args = "self! other", .kernel = copysign_kernel, .flags = EXACT, .samples = "scalar"},
    {NULL}
};
