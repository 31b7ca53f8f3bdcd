/* Operand rounding: what a precision swap does around the kernel of an op, which itself knows nothing of it.
 *
 *      operands ──▶ rounded or quantised copies ──▶ kernel ──▶ results ──▶ rounded to grids that no tensor is held in
 *
 * An operand whose type holds nothing but values of the grid is left as it is. A copy keeps the operand's type where
 * that holds the rounded values exactly, else it is f32; it is f64 where the arithmetic is to be f64's. Products read
 * quantised copies that run along the dimension they sum over. Scales that depend on earlier steps are kept from step
 * to step of a run.
 *
 * Stochastic rounding of operands draws another sequence for every tensor: its key is made of the seed, step, rank, op
 * and operand.
 */
#ifndef LB_REPLAY_OPERAND_ROUNDING_H
#define LB_REPLAY_OPERAND_ROUNDING_H

#include "machine/event.h"

typedef struct lb_operand_rounding lb_operand_rounding; /* of one rank, over the steps of a run */

/* NULL when out of memory. */
lb_operand_rounding *lb_operand_rounding_new(void);
void lb_operand_rounding_free(lb_operand_rounding *rounding);
/* Before the first op of a step: analyses its program, ends the step before. `prepared` must stay until the next
 * call. */
lb_status lb_operand_rounding_step(lb_operand_rounding *rounding, const lb_prepared *prepared, lb_err *err);

/* Before the kernel: replaces tensors among execution->args. */
lb_status lb_round_operands(lb_machine *machine, const lb_op *op, lb_execution *execution);
/* After it: windows of results whose storage type is only a grid, or that are to be finite. */
lb_status lb_round_results(lb_machine *machine, lb_execution *execution);

#endif
