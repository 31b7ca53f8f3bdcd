/* What a rounding to 16 bits loses of a number that is subnormal there: half of the least one, however small the number
 * is. */
#ifndef LB_REPLAY_TWIN_GRAIN_H
#define LB_REPLAY_TWIN_GRAIN_H

#include "kernel/frame.h"

/* To be added to the twin of an op whose partial results are rounded to the dtype of arg `i`, beside
 * lb_frame_twin_scale: the bound then has it once for each rounding that it counts. 0 where arg `i` has no 16 bits. */
static inline double lb_twin_grain(const lb_call *call, uint32_t i)
{
    const lb_tensor *tensor = lb_frame_arg_tensor(call, i);
    if (!tensor || lb_dtype_bits(tensor->dtype) != 16 || !lb_dtype_is_float(tensor->dtype)) return 0;
    return 0.5 * lb_dtype_min_subnormal(tensor->dtype) / 0x1p-24;
}

#endif
