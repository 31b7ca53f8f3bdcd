/* Events: what the machine knows about an op once it has run, and what it tells the observer. */
#ifndef LB_REPLAY_EVENT_H
#define LB_REPLAY_EVENT_H

#include "machine/machine.h"
#include "machine/operands.h"

/* An op as it ran. */
typedef struct lb_execution {
    const lb_prepared_op *prepared;
    lb_inputs inputs;
    lb_operands_outputs outputs;
    lb_operand *args, *unit; /* unit == args when the op is one call */
    uint32_t n_args;
    bool backend;       /* PyTorch ran it: there is no bound */
    lb_tensor *branch;  /* per output, for a row that follows what was recorded: lb_call.branch; NULL: it does not */
    const char *order;  /* that gave the recorded bits where they were not kept: regenerate.h; NULL: the op's own */
    lb_sum_verdict sum; /* of a reduction over ranks, when its bits are others */
    uint32_t units, per_unit; /* calls, results of each; 0 units: no kernel ran (a copy, a collective) */
} lb_execution;

/* Outputs were computed: compare and judge them, tell the observer, re-anchor in isolated mode. */
lb_status lb_event_computed(lb_machine *machine, const lb_op *op, const lb_execution *execution);
/* Isolated, with the shadow alone: the recorded results, all of which were kept, are taken as they are. */
lb_status lb_event_taken(lb_machine *machine, const lb_op *op, const lb_execution *execution);
/* Is that how the machine runs? */
bool lb_event_shows_alone(const lb_machine *machine);
/* Then: what a collective gives in f64 beside what was recorded, if that was kept. */
void lb_event_show(lb_machine *machine, uint32_t value, const lb_tensor *exact);
/* Whether a result of the unit whose results begin at `first` lived on CUDA when it was recorded. */
bool lb_event_on_cuda(const lb_machine *machine, const lb_execution *execution, uint32_t first);
/* Whether it did and read tensors of the host. */
bool lb_event_host_scalars(const lb_machine *machine, const lb_execution *execution, uint32_t first);
/* Recorded results stand in for an op that is not run (opaque, random, a collective whose members are not here). */
lb_status lb_event_stand_in(lb_machine *machine, const lb_op *op, lb_verdict verdict);
/* The same of a factorisation (factorisation.h) whose recorded args are known: opaque, unless its results are wrong for
 * them. */
lb_status lb_event_stand_in_judged(lb_machine *machine, const lb_op *op, const lb_operand *args, uint32_t n_args);
/* Some input is missing, so the outputs are, except in isolated mode where they were kept. */
lb_status lb_event_missing(lb_machine *machine, const lb_op *op);

#endif
