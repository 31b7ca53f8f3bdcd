/* Whether the tensors that a kernel is going to read are there. */
#ifndef LB_REPLAY_REQUIRED_ARGUMENTS_H
#define LB_REPLAY_REQUIRED_ARGUMENTS_H

#include "kernel/ops.h"

/* LB_ERR_UNSUPPORTED, with a report that names the argument, when a tensor that the row cannot do without is missing:
 * the argument is not a tensor, or was recorded as something other than one dense tensor (a sparse one is a list of
 * its parts). Code that calls a kernel with operands from a recording asks this first, so that no kernel has to. */
lb_status lb_required_arguments_are_there(const lb_call *call);

#endif
