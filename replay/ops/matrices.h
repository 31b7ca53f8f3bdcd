/* The operands of a matrix product as an op has them: read where they lie, whatever dtype and strides, and
 * multiplied. */
#ifndef LB_REPLAY_MATRICES_H
#define LB_REPLAY_MATRICES_H

#include "kernel/frame.h"
#include "kernel/product.h"

/* Batched operands, (batch…, m, k) times (batch…, k, n), read where they lie. */
typedef struct lb_matrices {
    lb_frame frame;
    lb_product shape;
    int64_t batch;
    lb_tensor a, b;
    bool twin;
} lb_matrices;

/* Begins the frame; false: shapes do not match, and it only has to be ended. */
bool lb_matrices_begin(lb_matrices *matrices, lb_call *call, const lb_tensor *a, const lb_tensor *b, bool twin);
/* All products of the batch into c; those along its last dimension in one call. */
void lb_matrices_multiply(lb_matrices *matrices, void *c);
/* A tensor's elements, or their magnitudes for a twin. */
const void *lb_matrices_reals(lb_frame *frame, const lb_tensor *tensor, bool twin);
/* The matrix of `tensor` at index `outer` of its dimensions before the last `kept`. */
lb_matrix lb_matrix_at(const lb_tensor *tensor, int kept, int64_t outer);
/* Fails the frame as a product of status `status` did. */
void lb_matrices_failed(lb_frame *frame, lb_status status);

#endif
