/* torch's CPU sum of f32, bf16 and f16, bit for bit: the order of additions depends on the strides.
 *
 * torch sorts the dimensions (reduced ones first, then by stride), merges neighbours, and sums two dimensions at a time
 * with the cascade of schedule.h, adding what further reduced dimensions give into an f32 result. Which of
 * four loops runs (vectors along or across the reduced dimension, or scalars) follows from strides and sizes. One thread:
 * with more, torch cuts a full reduction of 32768 or more terms into one piece per thread.
 * Read from TensorIterator.cpp (`reorder_dimensions`, `coalesce_dimensions`) and SumKernel.cpp (`cascade_sum`). */
#ifndef LB_REPLAY_TORCH_SUM_H
#define LB_REPLAY_TORCH_SUM_H

#include "schedule.h"

#include <lastbit/tensor.h>

/* Sums the dimensions whose bit is set in `reduced`. `out` gets the other dimensions row-major. `kept_stride[d]` is the
 * stride of dimension d in torch's result, which decides the order of the loops. Elements are added as f32 after
 * rounding to `compute` (0: not); `dtype` is that of the elements torch adds: its vector width is used.
 * `lanes` as for cascade. LB_ERR_NOMEM is the only failure. */
lb_status lb_torch_sum(const lb_tensor *in, uint32_t reduced, const int64_t *kept_stride, int lanes, lb_dtype dtype,
                       lb_dtype compute, lb_dtype accumulate, float *out, lb_err *err);

#endif
