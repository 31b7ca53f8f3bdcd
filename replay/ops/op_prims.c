/* Ops of torch's primitive dialect that graphs of compiled kernels hold besides aten's (torch/_prims/__init__.py,
 * torch/_inductor/inductor_prims.py).
 *
 * Most compute what an aten op does and are found by rule (op_table.c); here are those whose args stand in another
 * order, views, and draws. */
#include "kernel/frame.h"
#include "kernel/pointwise.h"

#include <math.h>

/* Args: length, start, step. */
static lb_status iota(lb_call *call)
{
    lb_frame frame = lb_frame_begin(call);
    const int64_t n = lb_tensor_numel(&call->results[0]), start = lb_frame_arg_int(call, 1, 0),
                  step = lb_frame_arg_int(call, 2, 1);
    int64_t *y = lb_frame_output_integers(&frame, 0, n);
    for (int64_t i = 0; lb_frame_ok(&frame) && i < n; i++) y[i] = start + step * i;
    return lb_frame_end(&frame);
}

/* Args: seeds, index. */
static lb_status lookup_seed(lb_call *call)
{
    lb_tensor one = *lb_frame_arg_tensor(call, 0);
    const int64_t index = lb_frame_arg_int(call, 1, 0);
    if (one.layout.ndim != 1 || index < 0 || index >= one.layout.shape[0])
        return lb_fail(call->err, LB_ERR_INVALID, "%s: no seed %lld", call->row->name, (long long)index);
    one.data = (char *)one.data + index * one.layout.stride[0] * (int64_t)(lb_dtype_bits(one.dtype) / 8);
    one.layout.ndim = 0;
    return lb_pointwise_copy(call, &call->results[0], &one);
}

LB_POINTWISE_FT(fma, "xxx", 0, LB_FMA(a[i], b[i], c[i]), LB_ABS(a[i] * b[i]) + LB_ABS(c[i]))

#define VIEW(NAME, ARGS) {.name = "prims::" NAME, .args = ARGS, .flags = LB_ROW_VIEW | LB_ROW_EXACT, .samples = "view"},
#define DRAW(NAME, ARGS) {.name = "prims::" NAME, .args = ARGS, .flags = LB_ROW_RANDOM, .samples = "random"},
#define EXACT LB_ROW_EXACT
/* clang-format off */
const lb_op_row lb_rows_prims[] = {
    {.name = "prims::iota", .args = "length start step dtype device requires_grad", .kernel = iota, .flags = EXACT, .samples = "arange 1"},
    {.name = "prims::inductor_lookup_seed", .args = "seeds! index", .kernel = lookup_seed, .flags = EXACT, .samples = "unary"},
    {.name = "prims::fma", .args = "a! b! c!", LB_COMPUTED_BY(fma), .roundings = 3, .flags = LB_ROW_ELEMENTWISE, .samples = "addc"},
    VIEW("broadcast_in_dim", "a shape broadcast_dimensions")
    VIEW("view_of", "a")
    VIEW("view_of_dtype", "a dtype")
    VIEW("transpose", "a permutation")
    VIEW("squeeze", "a dimensions")
    VIEW("split_dim", "a dim outer_length")
    VIEW("collapse_view", "a start end")
    VIEW("real", "self")
    VIEW("imag", "self")
    DRAW("inductor_seed", "device")
    DRAW("inductor_seeds", "count device")
    DRAW("inductor_random", "size seed mode align_dtype")
    DRAW("inductor_randint", "low high size seed")
    DRAW("inductor_rand_eager_offset", "offset device")
    DRAW("inductor_rand_eager_offsets", "offsets device")
    DRAW("normal", "shape mean std dtype device requires_grad generator")
    DRAW("uniform", "shape low high dtype device stride generator")
    {NULL}
};
