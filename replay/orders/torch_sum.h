/* torch's CPU sum of f32, bf16 and f16, bit for bit: the order of additions depends on the strides.
 *
 * torch sorts the dimensions (reduced ones first, then by stride), merges neighbours, and sums two dimensions at a time
 * with the cascade of schedule.h, adding what further reduced dimensions give into an f32 result. Which of four loops
 * runs (vectors along or across the reduced dimension, or scalars) follows from strides and sizes. One thread: with
 * more, torch cuts a full reduction of 32768 or more terms into one piece per thread. Read from TensorIterator.cpp
 * (`reorder_dimensions`, `coalesce_dimensions`) and SumKernel.cpp (`cascade_sum`). */
#ifndef LB_REPLAY_TORCH_SUM_H
#define LB_REPLAY_TORCH_SUM_H

#include "orders/schedule.h"

#include <lastbit/tensor.h>

typedef struct lb_torch_sum_way {
    uint32_t reduced;           /* a bit for each dimension that is summed */
    const int64_t *kept_stride; /* of each dimension in torch's result, which decides the order of the loops */
    int lanes;                  /* as for cascade */
    lb_dtype dtype;             /* of the elements torch adds: its vector width is used */
    lb_dtype compute;           /* elements are added as f32 after rounding to this; 0: not */
    lb_dtype accumulate;        /* every sum is rounded to this; 0: not */
} lb_torch_sum_way;

/* `out` gets the dimensions that are kept, row-major. LB_ERR_NOMEM is the only failure. */
lb_status lb_torch_sum(const lb_tensor *in, const lb_torch_sum_way *way, float *out, lb_err *err);

#endif
