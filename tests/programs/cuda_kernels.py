"""Ops that PyTorch has on CUDA alone, as kernels for the CPU: importing this lets a program on any machine record them.

Each does in its inputs' compute type, operation by operation, what the public kernel does; sums run in some threads' order. So what a program
computes with them is rounded as a device rounds, and the tests say whether the bounds allow it.
"""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch.utils._python_dispatch import _disable_current_modes

CPU = torch.library.Library("aten", "IMPL", "CPU")
THREADS = 7
PLANTED = {}  # name: how many more calls until one errs, and by what factor


def plant(name, call=0, factor=1.01):
    """The result of that call of an op, the first is 0, will be off by a factor in its largest element."""
    PLANTED[name] = [call, factor]


def spoil(result, factor):
    flat = next(t for t in (result if isinstance(result, (tuple, list)) else [result]) if t is not None and t.numel()).reshape(-1)
    at = int(flat.abs().double().argmax())
    flat[at] = flat[at] * factor if flat.dtype.is_floating_point else flat[at] + 1


def kernel(*names):
    def register(function):
        for name in names:

            def run(*args, name=name, **kwargs):
                result = function(*args, **kwargs)
                if name in PLANTED:
                    PLANTED[name][0] -= 1
                    if PLANTED[name][0] == -1:
                        spoil(result, PLANTED[name][1])
                return result

            CPU.impl(name, run)
        return function

    return register


def compute_type(t):
    return torch.float64 if t.dtype == torch.float64 else torch.float32


# ---- the pieces of SyncBatchNorm: aten/src/ATen/native/cuda/Normalization.cuh


def by_channel(t):
    """(elements, channels) in the compute type."""
    return t.transpose(0, 1).reshape(t.shape[1], -1).t().to(compute_type(t))


def spread(t, like):
    return t.reshape(1, -1, *[1] * (like.dim() - 2))


def joined(a, b):
    """Counts, means and sums of squared differences of two sets."""
    n, factor = a[0] + b[0], 1 / max(1, a[0] + b[0])
    return n, (a[0] * a[1] + b[0] * b[1]) * factor, a[2] + b[2] + (a[1] - b[1]) ** 2 * (a[0] * b[0] * factor)


def welford(rows):
    n, mean, squares = 0, torch.zeros_like(rows[0]), torch.zeros_like(rows[0])
    for row in rows:
        n, before = n + 1, row - mean
        mean = mean + before / n
        squares = squares + before * (row - mean)
    return n, mean, squares


@kernel("batch_norm_stats")
def stats(x, eps):
    rows, whole = by_channel(x), None
    for k in range(min(THREADS, len(rows))):
        part = welford(rows[k::THREADS])
        whole = part if whole is None else joined(whole, part)
    return whole[1], 1 / torch.sqrt(whole[2] / whole[0] + eps)


@kernel("batch_norm_gather_stats_with_counts")
def gather(x, mean, invstd, running_mean, running_var, momentum, eps, counts):
    n, average, squares = 0, torch.zeros_like(mean[0]), torch.zeros_like(mean[0])
    for count, m, r in zip(counts.tolist(), mean, invstd):
        v, factor = (1 / r * (1 / r) - eps) * count, 1 / (n + count)
        squares = squares + (v + (average - m) * (average - m) * n * count * factor)
        average = n * factor * average + count * factor * m
        n += count
    if running_mean is not None:
        running_mean.copy_((1 - momentum) * running_mean + momentum * average)
        running_var.copy_((1 - momentum) * running_var + momentum * (squares / (n - 1)))
    return average, 1 / torch.sqrt(squares / n + eps)


@kernel("batch_norm_gather_stats")
def gather_alike(x, mean, invstd, running_mean, running_var, momentum, eps, count):
    return gather(x, mean, invstd, running_mean, running_var, momentum, eps, torch.full(mean.shape[:1], count))


@kernel("batch_norm_elemt")
def elemt(x, weight, bias, mean, invstd, eps):
    y = (x.to(compute_type(x)) - spread(mean, x)) * (1 if weight is None else spread(weight, x).to(mean.dtype)) * spread(invstd, x)
    return (y if bias is None else y + spread(bias, x)).to(x.dtype)


@kernel("batch_norm_backward_reduce")
def backward_reduce(dy, x, mean, invstd, weight, input_g, weight_g, bias_g):
    d, c = by_channel(dy), by_channel(x) - mean
    total = sum(d[k::THREADS].cumsum(0)[-1] for k in range(min(THREADS, len(d))))
    dot = sum((d * c)[k::THREADS].cumsum(0)[-1] for k in range(min(THREADS, len(d))))
    given = weight if weight is not None else mean
    dgamma, dbeta = (dot * invstd).to(given.dtype), total.to(given.dtype)
    return total, dot, dgamma if weight_g else torch.empty(0), dbeta if bias_g else torch.empty(0)


@kernel("batch_norm_backward_elemt")
def backward_elemt(dy, x, mean, invstd, weight, sum_dy, sum_dy_xmu, count):
    norm = 1 / torch.tensor(float(count.sum()), dtype=mean.dtype)
    scale = invstd if weight is None else weight * invstd
    slope = invstd * invstd * sum_dy_xmu * norm
    d = dy.to(mean.dtype) - spread(sum_dy * norm, x)
    return ((d - (x.to(mean.dtype) - spread(mean, x)) * spread(slope, x)) * spread(scale, x)).to(x.dtype)


# ---- recurrent layers: aten/src/ATen/native/cuda/RNN.cu; aten/src/ATen/native/cudnn/RNN.cpp


@kernel("_thnn_fused_lstm_cell")
def lstm_cell(x, h, cx, b=None, d=None):
    wide = [t.to(compute_type(t)) for t in ((x, h) if b is None else (x, h, b, d))]
    i, f, g, o = sum(wide[1:], wide[0]).chunk(4, 1)
    i, f, g, o = 1 / (1 + torch.exp(-i)), 1 / (1 + torch.exp(-f)), g.tanh(), 1 / (1 + torch.exp(-o))
    cy = f * cx.to(f.dtype) + i * g
    return (o * cy.tanh()).to(cx.dtype), cy.to(cx.dtype), torch.cat([i, f, g, o], 1).to(cx.dtype)


@kernel("_thnn_fused_lstm_cell_backward_impl")
def lstm_cell_backward(dh, dc, cx, cy, workspace, has_bias):
    wide = lambda t: torch.zeros_like(cx, dtype=compute_type(cx)) if t is None else t.to(compute_type(cx))  # noqa: E731
    i, f, g, o = wide(workspace).chunk(4, 1)
    t, dh = wide(cy).tanh(), wide(dh)
    d = dh * o * (1 - t * t) + wide(dc)
    gates = [d * g * (1 - i) * i, d * wide(cx) * (1 - f) * f, d * i * (1 - g * g), dh * t * (1 - o) * o]
    gates = torch.cat(gates, 1).to(cx.dtype)
    return gates, (d * f).to(cx.dtype), gates.sum(0) if has_bias else torch.empty(0)


@kernel("_thnn_fused_gru_cell")
def gru_cell(x, h, hx, b=None, d=None):
    (xr, xz, xn), (hr, hz, hn) = ((t.to(compute_type(t)) + (0 if u is None else u)).chunk(3, 1) for t, u in ((x, b), (h, d)))
    r, z, old = 1 / (1 + torch.exp(-(xr + hr))), 1 / (1 + torch.exp(-(xz + hz))), hx.to(xr.dtype)
    n = (xn + r * hn).tanh()
    return (n + z * (old - n)).to(hx.dtype), torch.cat([r, z, n, old, hn], 1).to(hx.dtype)


@kernel("_thnn_fused_gru_cell_backward")
def gru_cell_backward(dh, workspace, has_bias):
    r, z, n, h, v = workspace.to(compute_type(workspace)).chunk(5, 1)
    d = dh.to(r.dtype)
    inner = d * (1 - z) * (1 - n * n)
    first = [inner * v * (1 - r) * r, d * (h - n) * (1 - z) * z]
    of_input, of_state = (torch.cat([*first, last], 1).to(dh.dtype) for last in (inner, inner * r))
    sums = (of_input.sum(0), of_state.sum(0)) if has_bias else (torch.empty(0), torch.empty(0))
    return of_input, of_state, (d * z).to(dh.dtype), *sums


def elsewhere(function):
    """What a function gives in a thread of its own, where autograd is as it is outside of a kernel; its ops are not recorded."""

    def unseen():
        with _disable_current_modes():
            return function()

    with ThreadPoolExecutor(1) as one:
        return one.submit(unseen).result()


def torch_layers(x, weights, stride, hx, cx, mode, layers, batch_first, bidirectional, sizes):
    op = (torch.ops.aten.rnn_relu, torch.ops.aten.rnn_tanh, torch.ops.aten.lstm, torch.ops.aten.gru)[mode]
    states, how = [hx, cx] if mode == 2 else hx, (stride == 4, layers, 0.0, True, bidirectional)
    if sizes:
        return op.data(x, torch.tensor(sizes), states, weights, *how)
    return op.input(x, states, weights, *how, batch_first)


@kernel("_cudnn_rnn")
def layers(x, weights, stride, buffer, hx, cx, mode, size, proj, n, batch_first, dropout, train, bidirectional, sizes, state):
    with torch.no_grad():
        results = elsewhere(lambda: torch_layers(x.detach(), weights, stride, hx, cx, mode, n, batch_first, bidirectional, sizes))
    cell = () if mode == 2 else (torch.empty(0),)
    return *(r.detach() for r in results), *cell, torch.zeros(16, dtype=torch.uint8), torch.cat([w.reshape(-1) for w in weights])


@kernel("_cudnn_rnn_backward")
def layers_backward(
    x,
    weights,
    stride,
    buffer,
    hx,
    cx,
    output,
    dy,
    dhy,
    dcy,
    mode,
    size,
    proj,
    n,
    batch_first,
    dropout,
    train,
    bidirectional,
    sizes,
    state,
    reserve,
    mask,
):
    leaves = [t.detach().clone().requires_grad_() for t in (x, hx, *([cx] if mode == 2 else []), *weights)]
    states = leaves[1:3] if mode == 2 else [leaves[1], None]

    def gradients():
        results = torch_layers(leaves[0], leaves[len(leaves) - len(weights) :], stride, *states, mode, n, batch_first, bidirectional, sizes)
        pairs = [(r, d) for r, d in zip(results, (dy, dhy, dcy)) if d is not None]
        return torch.autograd.grad([r for r, _ in pairs], leaves, [d for _, d in pairs])

    found = elsewhere(gradients)
    return found[0], found[1], found[2] if mode == 2 else None, parts_of_one(found[len(found) - len(weights) :])


def parts_of_one(tensors):
    """The same numbers in one buffer, as cuDNN has them: each is a view of it."""
    buffer, at = torch.cat([t.reshape(-1) for t in tensors]), 0
    parts = []
    for tensor in tensors:
        parts.append(buffer[at : at + tensor.numel()].view(tensor.shape))
        at += tensor.numel()
    return parts
