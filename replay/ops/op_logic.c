/* Comparisons, bits, selections and clamps: elementwise ops that round nothing, all bit-equal.
 *
 * Comparisons and bit ops are discontinuous: the exact shadow takes their recorded results. Selections are not. */
#include "pointwise.h"

#define EXACT LB_ROW_EXACT
#define STEPS (LB_ROW_EXACT | LB_ROW_DISCONTINUOUS)
#define COMMON LB_POINTWISE_COMMON

#define NAN_OF(T) ((T)__builtin_nan(""))
#define IS_INF(x) (ABS(x) == (T)__builtin_inf())
#define SHIFT_LEFT(x, by) ((by) < 0 || (by) > 63 ? 0 : (int64_t)((uint64_t)(x) << ((by) & 63)))
#define SHIFT_RIGHT(x, by) ((x) >> ((by) < 0 || (by) > 63 ? 63 : (by)))

/* torch's clamp: min(max(x, lo), hi), so that hi wins over lo; a NaN in x stays, a NaN bound makes everything NaN. */
#define LOWER(x) (l->given_s[0] && (x) < s0 ? s0 : (x))
#define UPPER(x) (l->given_s[1] && (x) > s1 ? s1 : (x))
#define CLAMP_F                                                                                              \
    ((l->given_s[0] && s0 != s0) || (l->given_s[1] && s1 != s1)                                              \
         ? NAN_OF(T)                                                                                         \
         : (l->given_s[1] && LOWER(A) > s1 ? s1 : LOWER(A)))
#define CLAMP_I (l->given_s[1] && LOWER(A) > s1 ? s1 : LOWER(A))
#define CLAMP_T_I (l->given[2] && (l->given[1] && A < B ? B : A) > C ? C : l->given[1] && A < B ? B : A)
#define CLAMP_T_F ((l->given[1] && B != B) ? B : (l->given[2] && C != C) ? C : CLAMP_T_I)

/* Infinities become the largest finite values of the result's dtype where no other is given. */
static inline __attribute__((pure)) double largest(const lb_lanes *l) { return lb_dtype_max_finite(l->result); }
#define FINITE(x)                                                                                            \
    ((x) != (x)     ? (l->given_s[0] ? s0 : 0)                                                               \
     : !IS_INF(x)   ? (x)                                                                                    \
     : (x) > 0      ? (l->given_s[1] ? s1 : (T)largest(l))                                                   \
     : l->given_s[2] ? s2                                                                                    \
                     : (T)-largest(l))

#define OPS(X)                                                                                               \
    X(FI, eq, "eq.Tensor", "self other", "xx", COMMON, A == B, A == B, 0, 0, STEPS, "binary near")                              \
    X(FI, ne, "ne.Tensor", "self other", "xx", COMMON, A != B, A != B, 0, 0, STEPS, "binary near")                              \
    X(FI, lt, "lt.Tensor", "self other", "xx", COMMON, A < B, A < B, 0, 0, STEPS, "binary near")                                \
    X(FI, le, "le.Tensor", "self other", "xx", COMMON, A <= B, A <= B, 0, 0, STEPS, "binary near")                              \
    X(FI, gt, "gt.Tensor", "self other", "xx", COMMON, A > B, A > B, 0, 0, STEPS, "binary near")                                \
    X(FI, ge, "ge.Tensor", "self other", "xx", COMMON, A >= B, A >= B, 0, 0, STEPS, "binary near")                              \
    X(FI, logical_and, "logical_and", "self other", "xx", COMMON, (A != 0) & (B != 0), (A != 0) & (B != 0), 0, 0, STEPS, "binary near")   \
    X(FI, logical_or, "logical_or", "self other", "xx", COMMON, (A != 0) | (B != 0), (A != 0) | (B != 0), 0, 0, STEPS, "binary near")     \
    X(FI, logical_xor, "logical_xor", "self other", "xx", COMMON, (A != 0) ^ (B != 0), (A != 0) ^ (B != 0), 0, 0, STEPS, "binary near")   \
    X(FI, logical_not, "logical_not", "self", "x", 0, A == 0, A == 0, 0, 0, STEPS, "unary")                                     \
    X(I, bitwise_and, "bitwise_and.Tensor", "self other", "xx", 0, 0, A &B, 0, 0, STEPS, "binary integer")                      \
    X(I, bitwise_or, "bitwise_or.Tensor", "self other", "xx", 0, 0, A | B, 0, 0, STEPS, "binary integer")                       \
    X(I, bitwise_xor, "bitwise_xor.Tensor", "self other", "xx", 0, 0, A ^ B, 0, 0, STEPS, "binary integer")                     \
    X(I, bitwise_not, "bitwise_not", "self", "x", 0, 0, l->result == LB_BOOL ? A == 0 : ~A, 0, 0, STEPS, "unary integer")       \
    X(I, shift_left, "bitwise_left_shift.Tensor", "self other", "xx", 0, 0, SHIFT_LEFT(A, B), 0, 0, STEPS, "binary integer shift nobool") \
    X(I, shift_right, "bitwise_right_shift.Tensor", "self other", "xx", 0, 0, SHIFT_RIGHT(A, B), 0, 0, STEPS, "binary integer shift nobool") \
    X(FI, isnan, "isnan", "self", "x", 0, A != A, 0 * A, 0, 0, STEPS, "unary")                                                  \
    X(FI, isinf, "isinf", "self", "x", 0, IS_INF(A), 0 * A, 0, 0, STEPS, "unary")                                               \
    X(FI, isposinf, "isposinf", "self", "x", 0, IS_INF(A) & (A > 0), 0 * A, 0, 0, STEPS, "unary")                               \
    X(FI, isneginf, "isneginf", "self", "x", 0, IS_INF(A) & (A < 0), 0 * A, 0, 0, STEPS, "unary")                               \
    X(FI, signbit, "signbit", "self", "x", 0, COPYSIGN((T)1, A) < 0, A < 0, 0, 0, STEPS, "unary nonan")                         \
    X(FI, where, "where.self", "condition self other", "xxx", 0, A != 0 ? B : C, A != 0 ? B : C, 0, 0, EXACT, "where")          \
    X(FI, masked_fill, "masked_fill.Scalar", "self mask value", "xxs", 0, B != 0 ? s0 : A, B != 0 ? s0 : A, 0, 0, EXACT, "masked scalar") \
    X(FI, masked_fill_t, "masked_fill.Tensor", "self mask value", "xxx", 0, B != 0 ? C : A, B != 0 ? C : A, 0, 0, EXACT, "masked tensor") \
    X(FI, clamp, "clamp", "self min max", "xnn", COMMON, CLAMP_F, CLAMP_I, 0, 0, EXACT, "clamp nobool")                         \
    X(FI, clamp_t, "clamp.Tensor", "self min max", "xoo", COMMON, CLAMP_T_F, CLAMP_T_I, 0, 0, EXACT, "clamp_tensor nobool")     \
    X(FI, clamp_min, "clamp_min", "self min", "xx", COMMON, B != B ? B : A < B ? B : A, A < B ? B : A, 0, 0, EXACT, "scalar nobool") \
    X(FI, clamp_max, "clamp_max", "self max", "xx", COMMON, B != B ? B : A > B ? B : A, A > B ? B : A, 0, 0, EXACT, "scalar nobool") \
    X(FI, nan_to_num, "nan_to_num", "self nan posinf neginf", "xnnn", 0, FINITE(A), A, 0, 0, EXACT, "nan_to_num")              \
    X(FI, relu, "relu", "self", "x", 0, A < 0 ? 0 : A, A < 0 ? 0 : A, 0, 0, EXACT, "unary nobool")                              \
    X(FI, threshold, "threshold", "self threshold value", "xss", 0, A <= s0 ? s1 : A, A <= s0 ? s1 : A, 0, 0, EXACT, "unary scalars=2 nobool") \
    X(FI, threshold_backward, "threshold_backward", "grad_output self threshold", "xxs", 0, B <= s0 ? 0 : A, B <= s0 ? 0 : A, 0, 0, EXACT, \
      "gradient scalars=1")                                                                                                     \
    X(F, hardtanh, "hardtanh", "self min_val max_val", "xss", COMMON, CLAMP_F, 0, 0, 0, EXACT, "hardtanh")                      \
    X(FT, hardtanh_backward, "hardtanh_backward", "grad_output self min_val max_val", "xxss", 0, (B > s0) & (B < s1) ? A : 0, 0, UNLESS_NAN(B), \
      1, 0, "gradient hardtanh")

/* clang-format off */
OPS(LB_DEFINE)

#define COMPARISON(ID) LB_SAME(ID##_kernel, NULL, #ID ".Scalar", "self other", 0, STEPS, "scalar near")
const lb_op_row lb_rows_logic[] = {
    OPS(LB_ROW)
    COMPARISON(eq) COMPARISON(ne) COMPARISON(lt) COMPARISON(le) COMPARISON(gt) COMPARISON(ge)
    LB_SAME(bitwise_and_kernel, NULL, "bitwise_and.Scalar", "self other", 0, STEPS, "scalar integer")
    LB_SAME(bitwise_or_kernel, NULL, "bitwise_or.Scalar", "self other", 0, STEPS, "scalar integer")
    LB_SAME(bitwise_xor_kernel, NULL, "bitwise_xor.Scalar", "self other", 0, STEPS, "scalar integer")
    LB_SAME(shift_left_kernel, NULL, "bitwise_left_shift.Tensor_Scalar", "self other", 0, STEPS, "scalar integer shift nobool")
    LB_SAME(shift_right_kernel, NULL, "bitwise_right_shift.Tensor_Scalar", "self other", 0, STEPS, "scalar integer shift nobool")
    LB_SAME(clamp_min_kernel, NULL, "clamp_min.Tensor", "self min", 0, EXACT, "binary nobool nozero")
    LB_SAME(clamp_max_kernel, NULL, "clamp_max.Tensor", "self max", 0, EXACT, "binary nobool nozero")
    {NULL}
};
