/* Compare: what one pass over two values says, and what the differing elements have in common.
 *
 * Simplest use:
 *
 *     lb_difference difference;
 *     LB_TRY(lb_compare(x, y, &difference, err));
 *     printf("%lld of %lld differ\n", (long long)difference.differing, (long long)difference.elements);
 *
 * Metrics are those engineers quote: max abs, max rel, relative L2, cosine, distance in ulps. None of them decides
 * anything here: verdicts come from diff.h, which asks whether both sides compute the same real function.
 */
#ifndef LASTBIT_COMPARE_H
#define LASTBIT_COMPARE_H

#include <lastbit/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, text): what the differing elements look like. The first that fits all of them is reported. */
#define LB_PATTERNS(X)                                                                                                 \
    X(NONE, "no difference")                                                                                           \
    X(ONE_ELEMENT, "one element")                                                                                      \
    X(ONE_BIT, "one flipped bit")                                                                                      \
    X(NONFINITE, "non-finite on one side")                                                                             \
    X(SIGN, "the other sign")                                                                                          \
    X(POWER_OF_TWO, "a power-of-two scale")                                                                            \
    X(SATURATION, "saturated at the largest finite value")                                                             \
    X(STALE_TAIL, "everything from one index on")                                                                      \
    X(SHIFT, "shifted along a dimension")                                                                              \
    X(SWAPPED, "two slices exchanged")                                                                                 \
    X(TRANSPOSED, "transposed")                                                                                        \
    X(PERMUTED, "slices in another order")                                                                             \
    X(ROWS, "whole slices of a dimension")                                                                             \
    X(STRIDE, "every n-th element")                                                                                    \
    X(TILE, "one rectangular tile")                                                                                    \
    X(QUANTISED, "steps of a quantiser")                                                                               \
    X(SCATTERED, "scattered")

typedef enum lb_pattern {
#define LB_PATTERN_ENUM(name, text) LB_PATTERN_##name,
    LB_PATTERNS(LB_PATTERN_ENUM)
#undef LB_PATTERN_ENUM
} lb_pattern;
LB_API const char *lb_compare_pattern_text(lb_pattern pattern);

/* a is the reference. NaNs compare equal to NaNs (payloads differ between processors), +0 and -0 differ. Metrics over
 * elements that are finite on both sides; `nonfinite` counts the others that differ in class. A complex number is two
 * elements, along a dimension of its own at the end. Empty tensors: all zero, cosine 1. */
typedef struct lb_difference {
    int64_t elements, differing, nonfinite;
    int64_t first;  /* row-major index of the first differing element, -1: none */
    double max_abs; /* max |a-b| */
    double max_rel; /* max |a-b| / |a|, elements with a != 0 */
    double rel_l2;  /* ||a-b|| / ||a||; infinity when a is 0 and b is not */
    double cosine;  /* of a and b as vectors; 1 when both are 0 */
    double max_ulp; /* distance in representable values of the dtype; integers: |a-b| */
    double p99_ulp; /* 99th percentile over all elements, rounded up to a power of two */
    lb_pattern pattern;
    char detail[192]; /* what the pattern is about: "dimension 1, slices 3 and 7" */
} lb_difference;

/* One pass over both values. Shapes must agree (LB_ERR_INVALID); dtypes may differ, then both are compared as f64
 * values and ulps are those of the narrower dtype. Any strides. Bits of the outcome do not depend on the instruction
 * set. */
LB_API lb_status lb_compare_numbers(const lb_tensor *a, const lb_tensor *b, lb_difference *difference, lb_err *err);
/* The same, and adds to `counts` how many elements are equal ([0]), lie [2^(i-1), 2^i) ulp apart ([i]), and farther or
 * not finite on one side (the last). */
#define LB_ULP_BUCKETS 66
LB_API lb_status lb_compare_counted(const lb_tensor *a, const lb_tensor *b, lb_difference *difference,
                                    int64_t counts[LB_ULP_BUCKETS], lb_err *err);
/* The same, and then the pattern, which takes several passes more. */
LB_API lb_status lb_compare(const lb_tensor *a, const lb_tensor *b, lb_difference *difference, lb_err *err);

#ifdef __cplusplus
}
#endif
#endif
