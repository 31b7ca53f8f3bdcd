/* Comparisons, bits, selections and clamps: elementwise ops that round nothing, all bit-equal.
 *
 * Comparisons and bit ops are discontinuous: the exact shadow takes their recorded results. Selections are not. */
#include "kernel/pointwise.h"

#define EXACT (LB_ROW_ELEMENTWISE | LB_ROW_EXACT)
#define STEPS (LB_ROW_ELEMENTWISE | LB_ROW_EXACT | LB_ROW_DISCONTINUOUS)
#define COMMON LB_POINTWISE_COMMON

#define NAN_OF(T) ((T)__builtin_nan(""))
#define IS_INF(x) (LB_ABS(x) == (T)__builtin_inf())
#define SHIFT_LEFT(x, by) ((by) < 0 || (by) > 63 ? 0 : (int64_t)((uint64_t)(x) << ((by) & 63)))
#define SHIFT_RIGHT(x, by) ((x) >> ((by) < 0 || (by) > 63 ? 63 : (by)))

/* torch's clamp: min(max(x, lo), hi), so that hi wins over lo; a NaN in x stays, a NaN bound makes everything NaN. */
#define LOWER(x) (l->given_s[0] && (x) < s0 ? s0 : (x))
#define UPPER(x) (l->given_s[1] && (x) > s1 ? s1 : (x))
#define CLAMP_F                                                                                                        \
    ((l->given_s[0] && s0 != s0) || (l->given_s[1] && s1 != s1)                                                        \
         ? NAN_OF(T)                                                                                                   \
         : (l->given_s[1] && LOWER(a[i]) > s1 ? s1 : LOWER(a[i])))
#define CLAMP_I (l->given_s[1] && LOWER(a[i]) > s1 ? s1 : LOWER(a[i]))
#define CLAMP_T_I                                                                                                      \
    (l->given[2] && (l->given[1] && a[i] < b[i] ? b[i] : a[i]) > c[i] ? c[i] : l->given[1] && a[i] < b[i] ? b[i] : a[i])
#define CLAMP_T_F ((l->given[1] && b[i] != b[i]) ? b[i] : (l->given[2] && c[i] != c[i]) ? c[i] : CLAMP_T_I)

/* Infinities become the largest finite values of the result's dtype where no other is given. */
static inline __attribute__((pure)) double largest(const lb_lanes *l)
{
    return lb_dtype_max_finite(l->result);
}
#define FINITE(x)                                                                                                      \
    ((x) != (x)      ? (l->given_s[0] ? s0 : 0)                                                                        \
     : !IS_INF(x)    ? (x)                                                                                             \
     : (x) > 0       ? (l->given_s[1] ? s1 : (T)largest(l))                                                            \
     : l->given_s[2] ? s2                                                                                              \
                     : (T) - largest(l))

/* The next number of `dtype` after x towards y. A float's bits count up with its magnitude; those of 16 bits are the
 * upper half of, or converted to, an f32's. */
static double next_number(double x, double y, lb_dtype dtype)
{
    uint64_t bits = 0;
    if (x != x || y != y) return x + y;
    if (x == y) return y;
    lb_convert(dtype, &bits, LB_F64, &x, 1, NULL);
    const uint64_t sign = UINT64_C(1) << (lb_dtype_bits(dtype) - 1);
    if (!(bits & (sign - 1)))
        bits = (y < 0 ? sign : 0) | 1;
    else
        bits += (x < y) == !(bits & sign) ? 1 : UINT64_MAX;
    lb_convert(LB_F64, &x, dtype, &bits, 1, NULL);
    return x;
}

/* clang-format off */
LB_POINTWISE_F(nextafter, "xx", 0, (T)next_number((double)a[i], (double)b[i], l->result))
LB_POINTWISE_FI(eq, "xx", COMMON, a[i] == b[i], a[i] == b[i])
LB_POINTWISE_FI(ne, "xx", COMMON, a[i] != b[i], a[i] != b[i])
LB_POINTWISE_FI(lt, "xx", COMMON, a[i] < b[i], a[i] < b[i])
LB_POINTWISE_FI(le, "xx", COMMON, a[i] <= b[i], a[i] <= b[i])
LB_POINTWISE_FI(gt, "xx", COMMON, a[i] > b[i], a[i] > b[i])
LB_POINTWISE_FI(ge, "xx", COMMON, a[i] >= b[i], a[i] >= b[i])
LB_POINTWISE_FI(logical_and, "xx", COMMON, (a[i] != 0) & (b[i] != 0), (a[i] != 0) & (b[i] != 0))
LB_POINTWISE_FI(logical_or, "xx", COMMON, (a[i] != 0) | (b[i] != 0), (a[i] != 0) | (b[i] != 0))
LB_POINTWISE_FI(logical_xor, "xx", COMMON, (a[i] != 0) ^ (b[i] != 0), (a[i] != 0) ^ (b[i] != 0))
LB_POINTWISE_FI(logical_not, "x", 0, a[i] == 0, a[i] == 0)
LB_POINTWISE_I(bitwise_and, "xx", 0, a[i] & b[i])
LB_POINTWISE_I(bitwise_or, "xx", 0, a[i] | b[i])
LB_POINTWISE_I(bitwise_xor, "xx", 0, a[i] ^ b[i])
LB_POINTWISE_I(bitwise_not, "x", 0, l->result == LB_BOOL ? a[i] == 0 : ~a[i])
LB_POINTWISE_I(shift_left, "xx", 0, SHIFT_LEFT(a[i], b[i]))
LB_POINTWISE_I(shift_right, "xx", 0, SHIFT_RIGHT(a[i], b[i]))
LB_POINTWISE_FI(isnan, "x", 0, a[i] != a[i], 0 * a[i])
LB_POINTWISE_FI(isinf, "x", 0, IS_INF(a[i]), 0 * a[i])
LB_POINTWISE_FI(isposinf, "x", 0, IS_INF(a[i]) & (a[i] > 0), 0 * a[i])
LB_POINTWISE_FI(isneginf, "x", 0, IS_INF(a[i]) & (a[i] < 0), 0 * a[i])
LB_POINTWISE_FI(signbit, "x", 0, LB_COPYSIGN((T)1, a[i]) < 0, a[i] < 0)
LB_POINTWISE_FI(where, "xxx", 0, a[i] != 0 ? b[i] : c[i], a[i] != 0 ? b[i] : c[i])
LB_POINTWISE_FI(masked_fill, "xxs", 0, b[i] != 0 ? s0 : a[i], b[i] != 0 ? s0 : a[i])
LB_POINTWISE_FI(masked_fill_t, "xxx", 0, b[i] != 0 ? c[i] : a[i], b[i] != 0 ? c[i] : a[i])
LB_POINTWISE_FI(clamp, "xnn", COMMON, CLAMP_F, CLAMP_I)
LB_POINTWISE_FI(clamp_t, "xoo", COMMON, CLAMP_T_F, CLAMP_T_I)
LB_POINTWISE_FI(clamp_min, "xx", COMMON, b[i] != b[i] ? b[i] : a[i] < b[i] ? b[i] : a[i], a[i] < b[i] ? b[i] : a[i])
LB_POINTWISE_FI(clamp_max, "xx", COMMON, b[i] != b[i] ? b[i] : a[i] > b[i] ? b[i] : a[i], a[i] > b[i] ? b[i] : a[i])
LB_POINTWISE_FI(nan_to_num, "xnnn", 0, FINITE(a[i]), a[i])
LB_POINTWISE_FI(relu, "x", 0, a[i] < 0 ? 0 : a[i], a[i] < 0 ? 0 : a[i])
LB_POINTWISE_FI(threshold, "xss", 0, a[i] <= s0 ? s1 : a[i], a[i] <= s0 ? s1 : a[i])
LB_POINTWISE_FI(threshold_backward, "xxs", 0, b[i] <= s0 ? 0 : a[i], b[i] <= s0 ? 0 : a[i])
LB_POINTWISE_F(hardtanh, "xss", COMMON, CLAMP_F)
LB_POINTWISE_FT(hardtanh_backward, "xxss", 0, (b[i] > s0) & (b[i] < s1) ? a[i] : 0, LB_UNLESS_NAN(b[i]))

#define COMPARISON(ID)                                                                                       \
    {.name = "aten::" #ID ".Scalar", .args = "self! other", .kernel = ID##_kernel, .flags = STEPS,           \
     .samples = "scalar near"},
const lb_op_row lb_rows_logic[] = {
    {.name = "aten::eq.Tensor", .args = "self! other!", .kernel = eq_kernel, .flags = STEPS, .samples = "binary near"},
    {.name = "aten::ne.Tensor", .args = "self! other!", .kernel = ne_kernel, .flags = STEPS, .samples = "binary near"},
    {.name = "aten::lt.Tensor", .args = "self! other!", .kernel = lt_kernel, .flags = STEPS, .samples = "binary near"},
    {.name = "aten::le.Tensor", .args = "self! other!", .kernel = le_kernel, .flags = STEPS, .samples = "binary near"},
    {.name = "aten::gt.Tensor", .args = "self! other!", .kernel = gt_kernel, .flags = STEPS, .samples = "binary near"},
    {.name = "aten::ge.Tensor", .args = "self! other!", .kernel = ge_kernel, .flags = STEPS, .samples = "binary near"},
    {.name = "aten::logical_and", .args = "self! other!", .kernel = logical_and_kernel, .flags = STEPS, .samples = "binary near"},
    {.name = "aten::logical_or", .args = "self! other!", .kernel = logical_or_kernel, .flags = STEPS, .samples = "binary near"},
    {.name = "aten::logical_xor", .args = "self! other!", .kernel = logical_xor_kernel, .flags = STEPS, .samples = "binary near"},
    {.name = "aten::logical_not", .args = "self!", .kernel = logical_not_kernel, .flags = STEPS, .samples = "unary"},
    {.name = "aten::bitwise_and.Tensor", .args = "self! other!", .kernel = bitwise_and_kernel, .flags = STEPS,
     .samples = "binary integer"},
    {.name = "aten::bitwise_or.Tensor", .args = "self! other!", .kernel = bitwise_or_kernel, .flags = STEPS,
     .samples = "binary integer"},
    {.name = "aten::bitwise_xor.Tensor", .args = "self! other!", .kernel = bitwise_xor_kernel, .flags = STEPS,
     .samples = "binary integer"},
    {.name = "aten::bitwise_not", .args = "self!", .kernel = bitwise_not_kernel, .flags = STEPS, .samples = "unary integer"},
    {.name = "aten::bitwise_left_shift.Tensor", .args = "self! other!", .kernel = shift_left_kernel, .flags = STEPS,
     .samples = "binary integer shift nobool"},
    {.name = "aten::bitwise_right_shift.Tensor", .args = "self! other!", .kernel = shift_right_kernel, .flags = STEPS,
     .samples = "binary integer shift nobool"},
    {.name = "aten::nextafter", .args = "self! other!", .kernel = nextafter_kernel, .flags = STEPS, .samples = "binary near float integerless"},
    {.name = "aten::isnan", .args = "self!", .kernel = isnan_kernel, .flags = STEPS, .samples = "unary"},
    {.name = "aten::isinf", .args = "self!", .kernel = isinf_kernel, .flags = STEPS, .samples = "unary"},
    {.name = "aten::isposinf", .args = "self!", .kernel = isposinf_kernel, .flags = STEPS, .samples = "unary"},
    {.name = "aten::isneginf", .args = "self!", .kernel = isneginf_kernel, .flags = STEPS, .samples = "unary"},
    {.name = "aten::signbit", .args = "self!", .kernel = signbit_kernel, .flags = STEPS, .samples = "unary nonan"},
    {.name = "aten::where.self", .args = "condition! self! other!", .kernel = where_kernel, .flags = EXACT, .samples = "where"},
    {.name = "aten::masked_fill.Scalar", .args = "self! mask! value", .kernel = masked_fill_kernel, .flags = EXACT,
     .samples = "masked scalar"},
    {.name = "aten::masked_fill.Tensor", .args = "self! mask! value!", .kernel = masked_fill_t_kernel, .flags = EXACT,
     .samples = "masked tensor"},
    {.name = "aten::clamp", .args = "self! min max", .kernel = clamp_kernel, .flags = EXACT, .samples = "clamp nobool"},
    {.name = "aten::clamp.Tensor", .args = "self! min max", .kernel = clamp_t_kernel, .flags = EXACT,
     .samples = "clamp_tensor nobool"},
    {.name = "aten::clamp_min", .args = "self! min", .kernel = clamp_min_kernel, .flags = EXACT, .samples = "scalar nobool"},
    {.name = "aten::clamp_max", .args = "self! max", .kernel = clamp_max_kernel, .flags = EXACT, .samples = "scalar nobool"},
    {.name = "aten::nan_to_num", .args = "self! nan posinf neginf", .kernel = nan_to_num_kernel, .flags = EXACT,
     .samples = "nan_to_num"},
    {.name = "aten::relu", .args = "self!", .kernel = relu_kernel, .flags = EXACT, .samples = "unary nobool"},
    {.name = "aten::threshold", .args = "self! threshold value", .kernel = threshold_kernel, .flags = EXACT,
     .samples = "unary scalars=2 nobool"},
    {.name = "aten::threshold_backward", .args = "grad_output! self! threshold", .kernel = threshold_backward_kernel, .flags = EXACT,
     .samples = "gradient scalars=1"},
    {.name = "aten::hardtanh", .args = "self! min_val max_val", .kernel = hardtanh_kernel, .flags = EXACT, .samples = "hardtanh"},
    {.name = "aten::hardtanh_backward", .args = "grad_output! self! min_val max_val", LB_COMPUTED_BY(hardtanh_backward), .roundings = 1, .flags = LB_ROW_ELEMENTWISE, .samples = "gradient hardtanh"},
    COMPARISON(eq) COMPARISON(ne) COMPARISON(lt) COMPARISON(le) COMPARISON(gt) COMPARISON(ge)
    {.name = "aten::bitwise_and.Scalar", .args = "self! other", .kernel = bitwise_and_kernel, .flags = STEPS,
     .samples = "scalar integer"},
    {.name = "aten::bitwise_or.Scalar", .args = "self! other", .kernel = bitwise_or_kernel, .flags = STEPS,
     .samples = "scalar integer"},
    {.name = "aten::bitwise_xor.Scalar", .args = "self! other", .kernel = bitwise_xor_kernel, .flags = STEPS,
     .samples = "scalar integer"},
    {.name = "aten::bitwise_left_shift.Tensor_Scalar", .args = "self! other", .kernel = shift_left_kernel, .flags = STEPS,
     .samples = "scalar integer shift nobool"},
    {.name = "aten::bitwise_right_shift.Tensor_Scalar", .args = "self! other", .kernel = shift_right_kernel, .flags = STEPS,
     .samples = "scalar integer shift nobool"},
    {.name = "aten::clamp_min.Tensor", .args = "self! min!", .kernel = clamp_min_kernel, .flags = EXACT,
     .samples = "binary nobool nozero"},
    {.name = "aten::clamp_max.Tensor", .args = "self! max!", .kernel = clamp_max_kernel, .flags = EXACT,
     .samples = "binary nobool nozero"},
    {NULL}
};
