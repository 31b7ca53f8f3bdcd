/* Rows called with complex numbers.
 *
 * Kernels know reals. A call that has a complex tensor among its operands or results is, by the way in its row,
 *      moved     the row's own kernel: elements are only carried about
 *      by parts  the row's kernel twice, on the real parts and on the imaginary ones: sums and what is linear in them
 *      filled    with one, or with its second arg
 *      products  the row's kernel four times, on the parts of both factors of a matrix product
 *      its own   a loop of op_complex.c: products, magnitudes, polar coordinates
 * A row that is LB_ROW_COMPLEX knows them by itself, and without a way it is not computed: the op is opaque. Bounds
 * hold for each part by itself. */
#ifndef LB_REPLAY_COMPLEX_ROWS_H
#define LB_REPLAY_COMPLEX_ROWS_H

#include "kernel/ops.h"

/* For the rows of other families. */
extern const struct lb_complex_way lb_complex_moved, lb_complex_ones, lb_complex_second, lb_complex_linear,
    lb_complex_negation, lb_complex_sums, lb_complex_product, lb_complex_magnitude, lb_complex_quotient,
    lb_complex_direction, lb_complex_exponential, lb_complex_matrices;

bool lb_complex_is_used(const lb_call *call);
/* A complex tensor as one of reals that has another dimension of two at its end; any other as it is. False: it has no
 * room for that dimension. */
bool lb_complex_tensor_parts(const lb_tensor *tensor, lb_tensor *parts);
lb_layout lb_complex_layout_parts(const lb_layout *layout, lb_dtype dtype);
/* The row's kernel, or its twin; of complex numbers as above. A twin that neither has leaves the results as they are
 * and gives LB_ERR_NOT_FOUND: |y| stands for it. */
lb_status lb_row_run(const lb_call *call);
lb_status lb_row_twin(const lb_call *call);
/* How the results of this call are judged; for reals what the row says. torch computes products of complex numbers with
 * a fused multiply-add in some loops and without in others, so that no bits are the right ones. */
bool lb_row_is_exact(const lb_call *call);
double lb_row_roundings(const lb_call *call);

#endif
