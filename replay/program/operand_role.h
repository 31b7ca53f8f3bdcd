/* Roles: what the operands of each op are (input, weight, gradient), and which matrix products are those of linear
 * layers.
 *
 * The role of an operand is found by following its contents back through casts, copies and rearrangements to where they
 * were made: a parameter is a weight, what backward made is a gradient, everything else is an input
 * (lastbit/precision.h).
 *
 * A product is linear when one of its factors is a weight, or when it runs in the backward node of a product that is
 * (the gradient of a weight multiplies a gradient and an input, as the backward of attention does too). Without node
 * numbers, products of two plain matrices in backward count as linear.
 *
 * Two factors that hold the same contents under the same layer and role are one tensor: they share a slot, the number
 * of the tensor among those of its role in that call of the layer. In a linear module it is always 0.
 */
#ifndef LB_REPLAY_OPERAND_ROLE_H
#define LB_REPLAY_OPERAND_ROLE_H

#include "program/prepared.h"

#include <lastbit/precision.h>

typedef struct lb_factor {
    uint8_t operand;   /* position among the args */
    uint8_t dimension; /* that is summed over, from the end: 1 is the last */
    uint8_t role;      /* lb_precision_role */
    uint32_t slot;
} lb_factor;

typedef struct lb_product_site {
    uint32_t op;
    bool linear;
    lb_factor factors[2];
} lb_product_site;

typedef struct lb_roles lb_roles;

lb_status lb_roles_new(const lb_prepared *prepared, lb_roles **roles, lb_err *err);
void lb_roles_free(lb_roles *roles);
/* NULL for an op that is no product of two factors. */
const lb_product_site *lb_roles_product(const lb_roles *roles, uint32_t op);
/* Of `value`, an arg of `op`. */
lb_precision_role lb_roles_of(const lb_roles *roles, uint32_t op, uint32_t value);
/* Is it a product whose two factors have a known place? */
bool lb_operand_is_product(const lb_op_row *row);

#endif
