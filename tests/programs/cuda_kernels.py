"""Ops that PyTorch has on CUDA alone, as kernels for the CPU: importing this lets a program on any machine record them.

Each does in its inputs' compute type, operation by operation, what the public kernel does; sums run in some threads' order. So what a program
computes with them is rounded as a device rounds, and the tests say whether the bounds allow it.
"""

import torch

CPU = torch.library.Library("aten", "IMPL", "CPU")
THREADS = 7
PLANTED = {}  # name: how many more calls until one errs


def plant(name, call=0):
    """The result of that call of an op, the first is 0, will be off by a hundredth in its largest element."""
    PLANTED[name] = call


def spoil(result):
    flat = next(t for t in (result if isinstance(result, (tuple, list)) else [result]) if t is not None and t.numel()).reshape(-1)
    at = int(flat.abs().double().argmax())
    flat[at] = flat[at] * 1.01 if flat.dtype.is_floating_point else flat[at] + 1


def kernel(*names):
    def register(function):
        for name in names:

            def run(*args, name=name, **kwargs):
                result = function(*args, **kwargs)
                if name in PLANTED:
                    PLANTED[name] -= 1
                    if PLANTED[name] == -1:
                        spoil(result)
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
