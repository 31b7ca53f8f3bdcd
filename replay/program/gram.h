/* Gram products: X Xᵀ, of a matrix with itself transposed, or of parts of it, whatever the product is called and
 * through copies and casts. They are known by how both factors lie in the memory that they came from. */
#ifndef LB_REPLAY_GRAM_H
#define LB_REPLAY_GRAM_H

#include "program/operand_role.h"
#include "program/slice.h"

/* Where the op's factors are and along what they are summed, as its row says; NULL: it is no product of two. */
const lb_factors *lb_gram_factors(const lb_program *program, const lb_op *op);
/* Are both factors of op `op` the same matrix, or parts of it, one of them transposed? */
bool lb_gram_is_product(const lb_slice_flow *flow, uint32_t op);

#endif
