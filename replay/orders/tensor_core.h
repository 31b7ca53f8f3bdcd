/* Models of the matrix units of NVIDIA's GPUs ("tensor cores"): a product in the order and with the roundings they
 * have.
 *
 * One instruction adds a group of products to an accumulator in a single fused sum:
 *
 *      1. every product a b is exact, with exponent e_a + e_b and a significand in [1, 4) that is not normalised
 *         (a subnormal operand has its type's least exponent and a significand below 1); the accumulator has its own
 *      2. top = the largest of these exponents; zeros have none, and it is at least `floor`
 *      3. every term is truncated towards zero to a multiple of 2^(top - fraction)
 *      4. what is left is added up exactly
 *      5. the sum is truncated towards zero to f32, or to an f32 of 13 fraction bits, or rounded to nearest f16
 *
 * A product over k is the chain of such groups, k ascending, from +0. Infinities and NaNs follow the exact sum, NaN is
 * 0x7FFFFFFF, a zero sum is +0, and a sum of 2^128 or more is infinite.
 *
 *      arch        f16 bf16      tf32        8 bits      fraction                     sources
 *      v100        4 (f16)       -           -           23
 *      a100        8             4           -           24
 *      ada         8             4           16          24; 8 bits: 13, kept to 13
 *      h100        16            8           as h100-fp8 25
 *      h100-fp8    -             -           32          13, kept to 13
 *      b200        16            8           32          25
 *
 * Two independent reverse-engineered models agree on these: MMA-Sim (arXiv 2511.10909, mmasim/simulator/nv.py and
 * arithmetic.py) and Khattak and Mikaitis (arXiv 2512.07004, MATLAB-tensor-core models/{V100,A100,H100,B200}TC.m), the
 * latter compared by their authors with a million samples of each GPU. `floor` is theirs: -133, and -15 for f16 sums of
 * f16 products on the B200. They differ for products below 2^-126 alone, where MMA-Sim lets a zero count as 2^-126. */
#ifndef LB_REPLAY_TENSOR_CORE_H
#define LB_REPLAY_TENSOR_CORE_H

#include "orders/matmul.h"

typedef struct lb_tensor_core {
    lb_dtype input; /* what the unit multiplies: f32 means tf32 (operands are truncated to it) */
    int terms;      /* products of one fused sum */
    int fraction;
    int floor;
    int output; /* fraction bits of the sum: 23, or 13; 10 is f16, rounded to nearest */
} lb_tensor_core;

#define LB_TENSOR_CORES                                                                                                \
    "tensorcore:v100 tensorcore:a100 tensorcore:ada tensorcore:h100 tensorcore:h100-fp8 tensorcore:b200"

/* 0, 1, …: the place of an arch in the table above; -1: there is none of that name. */
int lb_tensor_core_arch(const char *name, size_t length);
const char *lb_tensor_core_name(int arch); /* NULL past the last */

/* The unit for operands of `a` and `b` (f32 operands are taken as tf32; of two widths the narrower counts) and sums of
 * `accumulate` (f16; anything else: f32). LB_ERR_UNSUPPORTED: the arch has none. */
lb_status lb_tensor_core_find(int arch, lb_dtype a, lb_dtype b, lb_dtype accumulate, lb_tensor_core *core, lb_err *err);

typedef struct lb_tensor_core_shape {
    size_t m, n, k;
    /* > 0: chains of that many terms from +0, their sums added in order in f32 (what DeepGEMM and cuBLASLt without fast
     * accumulation do every 128) */
    int64_t promote;
    bool add; /* the chains start from the C given */
} lb_tensor_core_shape;

/* C = A B for a dense C. Operands must be values of core->input. LB_ERR_NOMEM is the only failure. */
lb_status lb_tensor_core_product(const lb_tensor_core *core, const lb_tensor_core_shape *shape, const lb_matrix *a,
                                 const lb_matrix *b, float *c);

/* One fused sum: acc and the products a[i] b[i] of `count` pairs; `b` NULL: the terms a[i] alone. */
float lb_tensor_core_sum(const lb_tensor_core *core, const float *a, const float *b, size_t count, float acc);

#endif
