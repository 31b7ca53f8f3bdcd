"""Inputs of recurrent layers."""

import torch
from op_samples import generator

# time, batch, features, hidden size
SIZES = [(1, 1, 1, 1), (4, 2, 5, 3), (7, 3, 8, 16), (12, 1, 20, 4)]


def layers(draw):
    for dtype in (torch.float32, torch.bfloat16):
        for t, n, i, h in SIZES:
            for reverse in (False, True):
                x = draw.dense((t, n, i), dtype, 1.0)
                weights = [draw.dense(shape, dtype, 0.5) for shape in ((4 * h, i), (4 * h, h), (4 * h,), (4 * h,))]
                states = [draw.dense((n, h), dtype, 0.5) for _ in range(2)]
                yield x, weights, states, reverse, h


@generator
def lstm(draw, options):
    for x, weights, states, reverse, h in layers(draw):
        yield (x, *weights, *states, reverse, [], 2, h, 1, True, False, False, True), {}
        yield (x, *weights, *states, reverse, [], 2, h, 1, True, False, False, False), {}


@generator
def lstm_backward(draw, options):
    for x, weights, states, reverse, h in layers(draw):
        try:
            y, hy, cy, workspace = torch.ops.aten.mkldnn_rnn_layer(x, *weights, *states, reverse, [], 2, h, 1, True, False, False, True)
        except RuntimeError:
            continue
        grads = [draw.dense(tuple(t.shape), t.dtype, 1.0) for t in (y, hy, cy)]
        yield (x, *weights, *states, y, hy, cy, *grads, reverse, 2, h, 1, True, True, False, [], False, workspace), {}
