/* Anchors: bringing recorded bytes into a machine's memory, and knowing which values equal the recording. */
#ifndef LB_REPLAY_REBASE_H
#define LB_REPLAY_REBASE_H

#include "machine/machine.h"

typedef enum lb_likeness { LB_LIKE_UNKNOWN, LB_LIKE_SAME, LB_LIKE_DIFFERENT } lb_likeness;

static inline lb_memory_storage *lb_storage_of(const lb_machine *machine, uint32_t value)
{
    return machine->storages[machine->prepared->storage_of[value]];
}

/* Recorded bytes of a value; false when they were not kept or the value is a pass's own. */
bool lb_rebase_recorded(lb_machine *machine, uint32_t value, lb_tensor *tensor);
/* What a discontinuous op of the exact shadow decides: the recorded bytes, or what the observer puts in their place. */
bool lb_rebase_decided(lb_machine *machine, uint32_t value, lb_tensor *tensor);
/* Into an outcome of an op for which its recording stands in, what the observer puts in its place. */
lb_status lb_rebase_decision(lb_machine *machine, uint32_t value);
/* Into all of them. */
lb_status lb_rebase_decisions(lb_machine *machine, const lb_op *op);
/* Puts the recorded bytes of `value` into its window; `*loaded` false when they were not kept (nothing happens then).
 * What lies between the elements of the window is brought too in isolated mode, where it is what the recording had
 * there. */
lb_status lb_rebase_load(lb_machine *machine, uint32_t value, bool *loaded);
/* The same for a source, which always brings its whole range: slices of one batch come from one source. */
lb_status lb_rebase_source(lb_machine *machine, uint32_t value, bool *loaded);
/* Puts other contents of the value's dtype and shape into its window: unless they are what was recorded, what comes of
 * them is swapped. */
lb_status lb_rebase_put(lb_machine *machine, uint32_t value, const lb_tensor *contents);
/* The same for a result or written value of the current op; where its bytes were not kept it becomes missing. */
lb_status lb_rebase_output(lb_machine *machine, uint32_t value);
/* For all of them. */
lb_status lb_rebase_outputs(lb_machine *machine, const lb_op *op);
/* Compares what the window holds now with the recorded bytes, or with the recorded digest where bytes were not kept. */
lb_likeness lb_rebase_compare(lb_machine *machine, uint32_t value, const lb_tensor *recorded);
/* Before `value` is read as an input: re-anchored in isolated mode, judged in chained mode. Sets `*exact`, and
 * `*missing` when nothing can be read. */
lb_status lb_rebase_input(lb_machine *machine, uint32_t value, bool *exact, bool *missing);
/* After `value` was written: what its storage now knows about itself. */
void lb_rebase_written(lb_machine *machine, uint32_t value, bool exact, bool missing, lb_verdict taint);

#endif
