"""Inputs of recurrent layers."""

import torch
from op_samples import FLOATS, generator

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


@generator
def recurrent_cell(draw, options):
    """Gates of any size, for the step that CUDA has as one op."""
    kinds = 4 if "lstm" in options else 3
    for dtype in FLOATS[: 3 if "backward" in options else 4]:  # autograd's f64 gradients cancel where the op's do not
        for n, h in ((1, 1), (3, 5), (7, 16)):
            x = lambda *shape: draw.tensor(shape, dtype, {"tame": ""}, draw.choice([1.0, 5.0]))  # noqa: E731
            unit = lambda *shape: torch.rand(shape, generator=draw.torch, dtype=torch.float64).clamp(0.01, 0.99).to(dtype)  # noqa: E731
            if "backward" not in options:
                biases = draw.choice([(None, None), (draw.dense((kinds * h,), dtype, 1.0), draw.dense((kinds * h,), dtype, 1.0))])
                yield (x(n, kinds * h), x(n, kinds * h), x(n, h), *biases), {}
            elif "gru" in options:
                workspace = torch.cat([unit(n, h), unit(n, h), 2 * unit(n, h) - 1, x(n, h), x(n, h)], 1)
                yield (x(n, h), workspace, draw.choice([True, False])), {}
            else:
                workspace = torch.cat([unit(n, h), unit(n, h), 2 * unit(n, h) - 1, unit(n, h)], 1)
                grads = draw.choice([(x(n, h), x(n, h)), (x(n, h), None), (None, x(n, h))])
                yield (*grads, x(n, h), x(n, h), workspace, draw.choice([True, False])), {}


@generator
def recurrent_layers(draw, options):
    """Stacks as cuDNN takes them: mode relu, tanh, LSTM, GRU; one or two layers and directions; packed or not."""
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for mode in range(4):
            for t, n, i, h in ((1, 1, 1, 1), (4, 2, 5, 3), (6, 3, 4, 4)):
                layers, bidirectional, biases = draw.choice([1, 2]), draw.choice([False, True]), draw.choice([False, True])
                batch_first, packed = draw.choice([False, True]), draw.choice([False, False, True])
                directions, rows = 2 if bidirectional else 1, (1, 1, 4, 3)[mode] * h
                sizes = sorted((draw.choice(range(1, n + 1)) for _ in range(t - 1)), reverse=True)
                sizes = [n, *sizes] if packed else []
                x = draw.dense((sum(sizes), i) if packed else (n, t, i) if batch_first else (t, n, i), dtype, 1.0)
                weights = []
                for layer in range(layers):
                    for _ in range(directions):
                        width = h * directions if layer else i
                        shapes = [(rows, width), (rows, h)] + [(rows,), (rows,)] * biases
                        weights += [draw.dense(shape, dtype, 0.4) for shape in shapes]
                state = lambda: draw.dense((layers * directions, n, h), dtype, 0.5)  # noqa: E731
                hx, cx = state(), state() if mode == 2 else None
                how = (mode, h, 0, layers, batch_first, 0.0, True, bidirectional, sizes, None)
                lead = (x, weights, 4 if biases else 2, None, hx, cx)
                if "backward" not in options:
                    yield (*lead, *how), {}
                    continue
                output = draw.dense((*x.shape[:-1], h * directions), dtype, 1.0)
                grads = (output, state(), state() if mode == 2 else None)
                yield (*lead[:3], torch.empty(0, dtype=dtype), *lead[4:], output, *grads, *how, torch.empty(0, dtype=torch.uint8), [True] * 4), {}


@generator
def pack_padded(draw, options):
    for dtype in FLOATS:
        for lengths in ([4], [5, 5, 3, 1], [2, 1]):
            for batch_first in (False, True):
                shape = (len(lengths), 5, 3) if batch_first else (5, len(lengths), 3)
                yield (draw.tensor(shape, dtype), torch.tensor(lengths), batch_first), {}
