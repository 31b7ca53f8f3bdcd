/* Owners: which parameters an op of a program serves, and thereby which module it belongs to where no module's code
 * ran.
 *
 *      _foreach_lerp_([m1, m2], [g1, g2], w)        element 0 serves 1's parameter, element 1 serves 2's
 *      pow(beta, step of 2)                         2's: what it gives reaches nothing but a write of 2
 *      stack([norm of g1, norm of g2])              both: every write that it reaches, it reaches for all
 *
 * Storages whose owner the recording names (parameters, gradients, optimizer state, buffers) are the fixed points. What
 * an element of an op serves is where its result flows to, through storages without a name, until it is written into
 * such a one; and what it is made of, the other way. Of the two the one that names a single parameter counts; where
 * neither does, it is where the result goes. A storage without a name that came in from before and is written from one
 * parameter's numbers alone (the momentum of an optimizer written by hand, an averaged copy of the weights) becomes
 * that parameter's, too. An op of the optimizer whose result leaves the tensors, as a rate that Python reads does, goes
 * with the op that is called next.
 *
 * Flows are followed outside modules only: among the ops of the optimizer and of communication, and among those of
 * other phases that stand in no module and whose results end in a fixed point. Every other op is the owner of what it
 * reads or writes itself.
 */
#ifndef LB_REPLAY_OWNER_H
#define LB_REPLAY_OWNER_H

#include "program/foreach_elements.h"
#include "program/slice.h"

typedef struct lb_owners lb_owners;

#define LB_OWNER_WHOLE LB_ELEMENT_ALL /* element: all of the op */

/* `flow`: of the program, must outlive the owners. `next`: the program of the same rank's next step, which has the
 * names of tensors that this step made anew; may be NULL. */
lb_status lb_owners_new(const lb_slice_flow *flow, const lb_program *next, lb_owners **owners, lb_err *err);
void lb_owners_free(lb_owners *owners);

/* How many elements an op has: of `_foreach_*` and `_fused_*` ops those of their lists, else 1. */
uint32_t lb_owner_elements(const lb_owners *owners, uint32_t op);
/* The element whose result, written value or input a value is; LB_OWNER_WHOLE when it belongs to all, or to none. */
uint32_t lb_owner_element(const lb_owners *owners, uint32_t op, uint32_t value);

/* The name of the parameter (or buffer) that an element serves. Of several: "all parameters", "the parameters of group
 * 1 of AdamW", "blocks.0.up.weight and 3 more". "" when there is none. */
const char *lb_owner_of(const lb_owners *owners, uint32_t op, uint32_t element);
/* The module's path: of an op in a module that module, else the owner's; of several owners the innermost that holds
 * them all, which may be "". */
const char *lb_owner_module(const lb_owners *owners, uint32_t op, uint32_t element);
/* How many parameters it serves. */
uint32_t lb_owner_count(const lb_owners *owners, uint32_t op, uint32_t element);

/* Of the storage that a value lies in, where the recording or the rules above give it one; "" else. */
const char *lb_owner_of_value(const lb_owners *owners, uint32_t value);

#endif
