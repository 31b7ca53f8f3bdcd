/* Matrix products c = a b in a stated order, as a method asks for it: which engine runs which schedule.
 *
 * a is m * k, b is k * n, c is m * n and dense row-major, of a real type (LB_F32 or LB_F64). The default: every element
 * of c is the chain acc = fma(a[i, p], b[p, j], acc), p = 0 … k-1, from +0 (matmul.h). method->schedule: blocked:K,
 * halved:K, splitk:N, streamk:C and dpbf16 chain fma from 0 inside each block and add the blocks; torch:N does so as
 * MKL cuts k; tree and torchdot: chains fma along a tree; tdpbf16 chains fma over every second term of a tile; folded:L
 * and eights are gemv_orders.h's; the others add up rounded products (exact: unrounded ones, in f64).
 * method->accumulate rounds after every fma or addition.
 * method->kernel "openblas": OpenBLAS, bits unspecified; "tensorcore:ARCH", also as a schedule: the matrix unit of a
 * GPU (tensor_core.h); products in f64 stay the chain of fma, which is what these units do there. */
#ifndef LB_REPLAY_PRODUCT_H
#define LB_REPLAY_PRODUCT_H

#include "orders/matmul.h"
#include "kernel/ops.h"

typedef struct lb_product {
    int64_t m, n, k;
    int64_t a_row, a_column, b_row, b_column; /* strides; both 0: dense row-major */
} lb_product;

/* Operands of `type`, rounded already. Fails with LB_ERR_NOMEM, or LB_ERR_UNSUPPORTED where a matrix unit does not take
 * operands of their dtype. */
lb_status lb_product_run(const lb_product *shape, lb_dtype type, const lb_method *method, const void *a, const void *b,
                         void *c);

typedef struct lb_matrix_pair {
    lb_matrix a, b;               /* of any dtype and strides (those in an lb_product are ignored) */
    bool absolute;                /* their magnitudes are multiplied */
    const lb_matmul_batch *batch; /* NULL: one product; steps in elements, as in matmul.h */
} lb_matrix_pair;

/* The operands are rounded to method->compute here. Fails as lb_product_run does. */
lb_status lb_product_matrices(const lb_product *shape, lb_dtype type, const lb_method *method,
                              const lb_matrix_pair *operands, void *c);

#endif
