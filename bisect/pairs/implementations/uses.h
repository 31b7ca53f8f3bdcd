/* Sources that their numbers do not tell apart, or that are parts of vectors, told by their use: biases, norms of ones.
 *
 *      A   c_attn.bias (192)                   B   b_Q (4, 16), b_K, b_V              added to features of products
 *          that are one: parts of one bias ln_1.weight, ln_2.weight: ones          the same by other names
 *          read by norms that give the same numbers: one weight
 *
 * A step whose parameters all begin as they were initialised has many, and what training makes of them would be
 * compared with the wrong one. */
#ifndef LB_BISECT_USES_H
#define LB_BISECT_USES_H

#include "implementations/implementations.h"
#include "counterparts/products.h"

/* Behind a free run. `*settled`: sources of B whose partner is another one than was matched; their counterparts have to
 * be found again. */
lb_status lb_uses_settle(lb_implementations *x, const lb_products *products, lb_source_memory *memory,
                         uint32_t *settled, lb_err *err);

#endif
