/* Arithmetic, elementwise: what IEEE defines (+ − × ÷ √ and exact functions) and products of it.
 *
 * Where torch's vectorised code contracts `a + alpha * b` to a fused multiply-add these kernels do too; torch without AVX2 and other
 * devices may round twice, which the twin allows for: it is 0 where every backend must give the correctly rounded result.
 * torch's sqrt on x86 is MKL's and not correctly rounded (0.6 % of f32 results are the neighbour), hence no EXACT row.
 * `mul_` with a Python scalar is an op of its own: torch swaps its operands, so that the scalar is rounded to the tensor's dtype. */
#include "pointwise.h"

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
#define FLOOR_DIVIDE(type, suffix)                                                                           \
    static inline type floor_divide_##suffix(const lb_lanes *l, type a, type b)                              \
    {                                                                                                        \
        if (b == 0) return a / b;                                                                            \
        const type mod = FMOD(a, b);                                                                         \
        type div = step_##suffix(l, step_##suffix(l, a - mod) / b);                                          \
        if (mod != 0 && (b < 0) != (mod < 0)) div = step_##suffix(l, div - 1);                               \
        if (div == 0) return COPYSIGN((type)0, a / b);                                                       \
        const type down = FLOOR(div);                                                                        \
        return step_##suffix(l, div - down) > (type)0.5 ? step_##suffix(l, down + 1) : down;                 \
    }                                                                                                        \
    static inline type remainder_##suffix(type a, type b)                                                    \
    {                                                                                                        \
        const type mod = FMOD(a, b);                                                                         \
        return mod != 0 && (b < 0) != (mod < 0) ? mod + b : mod;                                             \
    }
FLOOR_DIVIDE(float, f32)
FLOOR_DIVIDE(double, f64)

/* Division by 0 raises in torch and never arrives; −2^63 / −1 wraps. */
static inline int64_t divide_i64(int64_t a, int64_t b) { return b == 0 ? 0 : b == -1 ? WSUB(0, a) : a / b; }
static inline int64_t modulo_i64(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }
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
#define FLOOR_DIV(x, y) _Generic((x), float : floor_divide_f32, double : floor_divide_f64)(l, x, y)
#define STEP(x) _Generic((x), float : step_f32, double : step_f64)(l, x)
#define REMAINDER(x, y) _Generic((x), float : remainder_f32, double : remainder_f64)(x, y)
#define DIV_MODE(x, y) (l->text == 'f' ? FLOOR_DIV(x, y) : l->text == 't' ? TRUNC(STEP((x) / (y))) : (x) / (y))

/* |y| where an operand was a scalar (it is rounded first, and CUDA multiplies by its reciprocal), else 0. */
#define SCALAR_TWIN(y) (l->scalar[0] || l->scalar[1] || l->single[1] ? ABS(y) : 0)
/* The same of a + alpha b. Where alpha is not 1, torch rounds it and in part of its loops the product to the common dtype. */
#define SUM_TWIN(x, y)                                                                                       \
    (s0 != 1 ? ABS(x) + COARSE(ABS(s0 * (y)))                                                            \
             : (l->scalar[0] || l->scalar[1] || l->single[0] || l->single[1]) ? COARSE(ABS(x) + ABS(y)) : 0)

#define SUM(x, y, alpha) ((alpha) == 1 ? (x) + (y) : FMA(y, alpha, x))
#define DIFFERENCE(x, y, alpha) ((alpha) == 1 ? (x) - (y) : FMA(y, -(alpha), x))

/* NaN wins; of equal zeros the second, as x86's max and min give. */
#define MAXIMUM(x, y) ((x) != (x) || (x) > (y) ? (x) : (y))
#define MINIMUM(x, y) ((x) != (x) || (x) < (y) ? (x) : (y))

#define EXACT LB_ROW_EXACT
#define STEPS (LB_ROW_EXACT | LB_ROW_DISCONTINUOUS)
#define COMMON LB_POINTWISE_COMMON
#define FIRST LB_POINTWISE_COMMON_FIRST

/* sqrt is not EXACT: torch's CPU builds compute long f32 rows by MKL's vector library, an ulp off at times. */
#define OPS(X)                                                                                               \
    X(FIT, add, "add.Tensor", "self other alpha", "xx1", COMMON, SUM(A, B, s0), WADD(A, WMUL(s0, B)), SUM_TWIN(A, B), 3, 0,              \
      "binary alpha")                                                                                                           \
    X(FIT, sub, "sub.Tensor", "self other alpha", "xx1", COMMON, DIFFERENCE(A, B, s0), WSUB(A, WMUL(s0, B)), SUM_TWIN(A, B), 3, 0,       \
      "binary alpha nobool")                                                                                                    \
    X(FIT, rsub, "rsub.Tensor", "self other alpha", "xx1", COMMON, DIFFERENCE(B, A, s0), WSUB(B, WMUL(s0, A)), SUM_TWIN(B, A), \
      3, 0, "binary alpha nobool")                                          \
    X(FI, mul, "mul.Tensor", "self other", "xx", FIRST, A *B, WMUL(A, B), 0, 2, EXACT, "binary")                                    \
    X(FI, mul_scalar, "mul_.Scalar", "self other", "xx", COMMON, A *B, WMUL(A, B), 0, 2, EXACT, "scalar")                       \
    X(FT, div, "div.Tensor", "self other", "xx", FIRST, A / B, 0, SCALAR_TWIN(A / B), 2, 0, "binary float")                         \
    X(FI, div_mode, "div.Tensor_mode", "self other rounding_mode", "xxt", FIRST, DIV_MODE(A, B),                                    \
      l->text == 'f' ? floor_divide_i64(A, B) : divide_i64(A, B), 0, 2, LB_ROW_DISCONTINUOUS, "binary rounding_mode nonzero modest")   \
    X(FI, floor_divide, "floor_divide", "self other", "xx", FIRST, FLOOR_DIV(A, B), floor_divide_i64(A, B), 0, 2,                   \
      LB_ROW_DISCONTINUOUS, "binary nonzero modest")                                                                                   \
    X(FI, remainder, "remainder.Tensor", "self other", "xx", COMMON, REMAINDER(A, B), remainder_i64(A, B), 0, 2,                \
      LB_ROW_DISCONTINUOUS, "binary nonzero nobool modest")                                                                            \
    X(FI, fmod, "fmod.Tensor", "self other", "xx", COMMON, FMOD(A, B), modulo_i64(A, B), 0, 1, LB_ROW_DISCONTINUOUS,            \
      "binary nonzero nobool modest")                                                                                                  \
    X(FI, neg, "neg", "self", "x", 0, -A, WSUB(0, A), 0, 0, EXACT, "unary nobool")                                              \
    X(FI, abs, "abs", "self", "x", 0, ABS(A), ABS(A), 0, 0, EXACT, "unary nobool")                                              \
    X(F, sqrt, "sqrt", "self", "x", 0, SQRT(A), 0, 0, 1, 0, "unary")                                                        \
    X(FT, rsqrt, "rsqrt", "self", "x", 0, 1 / SQRT(A), 0, (1 + l->coarse / 4) * ABS(1 / SQRT(A)), 4, 0, "unary")                                                \
    X(F, reciprocal, "reciprocal", "self", "x", 0, 1 / A, 0, 0, 1, EXACT, "unary")                                              \
    X(FI, sign, "sign", "self", "x", 0, (A > 0) - (A < 0), (A > 0) - (A < 0), 0, 0, STEPS, "unary")                             \
    X(FI, floor, "floor", "self", "x", 0, FLOOR(A), A, 0, 0, STEPS, "unary nobool")                                             \
    X(FI, ceil, "ceil", "self", "x", 0, CEIL(A), A, 0, 0, STEPS, "unary nobool")                                                \
    X(FI, trunc, "trunc", "self", "x", 0, TRUNC(A), A, 0, 0, STEPS, "unary nobool")                                             \
    X(FI, round, "round", "self", "x", 0, RINT(A), A, 0, 0, STEPS, "unary nobool")                                              \
    X(F, frac, "frac", "self", "x", 0, A - TRUNC(A), 0, 0, 0, STEPS, "unary float")                                             \
    X(FI, maximum, "maximum", "self other", "xx", COMMON, MAXIMUM(A, B), A > B ? A : B, 0, 0, EXACT, "binary nozero")           \
    X(FI, minimum, "minimum", "self other", "xx", COMMON, MINIMUM(A, B), A < B ? A : B, 0, 0, EXACT, "binary nozero")           \
    X(FI, fmax, "fmax", "self other", "xx", COMMON, A != A || B > A ? B : A, A > B ? A : B, 0, 0, EXACT, "binary nozero")       \
    X(FI, fmin, "fmin", "self other", "xx", COMMON, A != A || B < A ? B : A, A < B ? A : B, 0, 0, EXACT, "binary nozero")       \
    X(F, copysign, "copysign.Tensor", "self other", "xx", COMMON, COPYSIGN(A, B), 0, 0, 0, EXACT, "binary")

/* clang-format off */
OPS(LB_DEFINE)

const lb_op_row lb_rows_pointwise[] = {
    OPS(LB_ROW)
    LB_SAME(add_kernel, add_twin, "add.Scalar", "self other alpha", 3, 0, "scalar alpha")
    LB_SAME(sub_kernel, sub_twin, "sub.Scalar", "self other alpha", 3, 0, "scalar alpha nobool")
    LB_SAME(rsub_kernel, rsub_twin, "rsub.Scalar", "self other alpha", 3, 0, "scalar alpha nobool")
    LB_SAME(mul_kernel, NULL, "mul.Scalar", "self other", 2, EXACT, "scalar")
    LB_SAME(div_kernel, div_twin, "div.Scalar", "self other", 2, 0, "scalar")
    LB_SAME(div_mode_kernel, NULL, "div.Scalar_mode", "self other rounding_mode", 2, LB_ROW_DISCONTINUOUS, "scalar rounding_mode nonzero modest")
    LB_SAME(floor_divide_kernel, NULL, "floor_divide.Scalar", "self other", 2, LB_ROW_DISCONTINUOUS, "scalar nonzero modest")
    LB_SAME(remainder_kernel, NULL, "remainder.Scalar", "self other", 2, LB_ROW_DISCONTINUOUS, "scalar nonzero nobool modest")
    LB_SAME(remainder_kernel, NULL, "remainder.Scalar_Tensor", "self other", 2, LB_ROW_DISCONTINUOUS, "scalar_first nobool modest")
    LB_SAME(fmod_kernel, NULL, "fmod.Scalar", "self other", 1, LB_ROW_DISCONTINUOUS, "scalar nonzero nobool modest")
    LB_SAME(sign_kernel, NULL, "sgn", "self", 0, STEPS, "unary")
    LB_SAME(copysign_kernel, NULL, "copysign.Scalar", "self other", 0, EXACT, "scalar")
    {NULL}
};
