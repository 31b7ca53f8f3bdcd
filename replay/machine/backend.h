/* A child process that runs single ops in PyTorch; capture/lastbit/backend_server.py is the other side. */
#ifndef LB_REPLAY_BACKEND_H
#define LB_REPLAY_BACKEND_H

#include "kernel/ops.h"

#include <lastbit/replay.h>

/* Results are filled by position; the op must give as many, of the same dtypes and sizes. LB_ERR_UNSUPPORTED: PyTorch
 * refuses the call, with its reason. Any other failure is the end of the child. */
lb_status lb_backend_run(lb_backend *backend, const char *op, const lb_operand *args, uint32_t n_args,
                         const lb_tensor *results, uint32_t n_results, lb_err *err);

#endif
