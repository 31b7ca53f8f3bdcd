/* One op computed: by its row's kernel, by PyTorch where a swap or the plan asks for it, or as a mere copy. Where
 * nothing computes it the recorded result stands in, and the event says so. */
#ifndef LB_REPLAY_EXECUTION_H
#define LB_REPLAY_EXECUTION_H

#include "machine/machine.h"
#include "kernel/ops.h"

/* One input of the op that runs, brought to its recorded bytes in isolated mode; and all inputs of it. What an op
 * overwrites without reading, the args of an `out` form, is no input. */
lb_status lb_execution_inputs_add(lb_machine *machine, uint32_t value, lb_inputs *inputs);
lb_status lb_execution_inputs_gather(lb_machine *machine, const lb_op *op, lb_op_form form, lb_inputs *inputs);

/* An op that has a row, and one that has none. */
lb_status lb_execute(lb_machine *machine, const lb_op *op, const lb_prepared_op *prepared);
lb_status lb_execute_unknown(lb_machine *machine, const lb_op *op, const lb_prepared_op *prepared);
/* lb::zero, lb::copy, lb::round and views that the recorder found in fresh memory: arg 0 goes to the result. */
lb_status lb_execute_pseudo(lb_machine *machine, const lb_op *op, const lb_prepared_op *prepared);

#endif
