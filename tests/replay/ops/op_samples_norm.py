"""Inputs of norms."""

import torch
from op_samples import FLOATS, Options, generator

TAME = Options("x tame")
# rows, width: single vectors, tails, one chunk of 16 vectors, trees of chunks
ROWS = [(3, 7), (4, 64), (5, 100), (2, 129), (3, 768), (2, 1000), (1, 4096), (300, 5)]
MIXED = [(d, d) for d in FLOATS] + [(torch.bfloat16, torch.float32)]


def tame(draw, shape, dtype, scale=None):
    return draw.tensor(shape, dtype, TAME, scale)


def affine(draw, width, dtype):
    """Dense: torch's group and batch norm read strided weights as if they were."""
    gamma, beta = draw.dense(width, dtype, 1.0), draw.dense(width, dtype, 1.0)
    return draw.choice([(None, None), (gamma, beta), (gamma, None)])


@generator
def layer_norm(draw, options):
    for dtype, weight in MIXED:
        for n, width in ROWS:
            x = tame(draw, (n, width), dtype) + draw.choice([0, 0, 5])
            yield (x, [width], *affine(draw, (width,), weight), 1e-5), {}
        yield (tame(draw, (2, 3, 4, 5), dtype), [4, 5], *affine(draw, (4, 5), weight), 1e-3), {}


@generator
def layer_norm_backward(draw, options):
    for (x, shape, gamma, beta, eps), _ in layer_norm(draw, options):
        try:
            y, mean, rstd = torch.ops.aten.native_layer_norm(x, shape, gamma, beta, eps)
        except RuntimeError:
            continue
        mask = [draw.random.random() < 0.8, gamma is not None, beta is not None]
        yield (tame(draw, x.shape, x.dtype, 1.0), x, shape, mean, rstd, gamma, beta, mask), {}


@generator
def rms_norm(draw, options):
    for dtype in FLOATS:
        for n, width in ROWS:
            yield (tame(draw, (n, width), dtype), [width], affine(draw, (width,), dtype)[0], draw.choice([None, 1e-6])), {}


@generator
def rms_norm_backward(draw, options):
    for (x, shape, gamma, eps), _ in rms_norm(draw, options):
        y, rstd = torch.ops.aten._fused_rms_norm(x, shape, gamma, eps)
        yield (tame(draw, x.shape, x.dtype, 1.0), x, shape, rstd, gamma, [True, gamma is not None]), {}


@generator
def group_norm(draw, options):
    for dtype, weight in MIXED:
        for n, c, hw, groups in ((2, 6, 10, 3), (1, 8, 33, 1), (3, 4, 64, 4), (2, 32, 7, 8)):
            x = tame(draw, (n, c, hw), dtype) + draw.choice([0, 0, 5])
            gamma, beta = affine(draw, (c,), weight)
            yield ((x, groups, gamma, beta, 1e-5) if "whole" in options else (x, gamma, beta, n, c, hw, groups, 1e-5)), {}


@generator
def group_norm_backward(draw, options):
    for (x, gamma, beta, n, c, hw, groups, eps), _ in group_norm(draw, options):
        try:
            y, mean, rstd = torch.ops.aten.native_group_norm(x, gamma, beta, n, c, hw, groups, eps)
        except RuntimeError:
            continue
        mask = [True, gamma is not None, gamma is not None]
        yield (tame(draw, x.shape, x.dtype, 1.0).contiguous(), x.contiguous(), mean, rstd, gamma, n, c, hw, groups, mask), {}


def batch_inputs(draw):
    for dtype, weight in MIXED:
        for shape in ((6, 3), (4, 5, 7), (3, 4, 5, 6), (200, 2)):
            c = (shape[1],)
            x = tame(draw, shape, dtype) + draw.choice([0, 0, 5])
            running = (draw.dense(c, weight, 1.0), draw.dense(c, weight, 1.0).abs())
            yield x, affine(draw, c, weight), running


@generator
def batch_norm(draw, options):
    for x, (gamma, beta), (mean, var) in batch_inputs(draw):
        for training in (True, False):
            given = () if "no_stats" in options else (mean.clone(), var.clone())
            if "inference" in options:
                yield (x, gamma, beta, *given, 0.1, 1e-5), {}
            elif "cudnn" in options:
                if gamma is not None and training:
                    yield (x, gamma, beta, *given, True, 0.1, 1e-5), {}
            elif "whole" in options:
                yield (x, gamma, beta, *([None, None] if training else given), training, 0.1, 1e-5, False), {}
            elif given or training:
                yield (x, gamma, beta, *given, training, 0.1, 1e-5), {}


@generator
def batch_norm_backward(draw, options):
    for x, (gamma, beta), (mean, var) in batch_inputs(draw):
        for training in (True, False):
            try:
                y, m, s = torch.ops.aten.native_batch_norm(x, gamma, beta, mean.clone(), var.clone(), training, 0.1, 1e-5)
            except RuntimeError:
                continue
            g, none = tame(draw, x.shape, x.dtype, 1.0), torch.empty(0, dtype=torch.uint8)
            if "cudnn" in options:
                if training and gamma is not None:
                    yield (x, g, gamma, mean, var, m, s, 1e-5, *([] if "miopen" in options else [none])), {}
                continue
            if "reserve" in options and gamma is None:
                continue
            yield (
                (
                    g,
                    x,
                    gamma,
                    mean,
                    var,
                    m,
                    s,
                    training,
                    1e-5,
                    [True, gamma is not None, gamma is not None],
                    *([none] if "reserve" in options else []),
                ),
                {},
            )


@generator
def weight_norm(draw, options):
    for dtype in FLOATS[:2] + FLOATS[3:]:
        for shape, dim in (((6, 4, 3), 0), ((6, 4, 3), 2), ((5, 300), 0), ((5, 7), 1), ((1, 9), 0)):
            v = draw.dense(shape, dtype, 1.0)
            norm_shape = [s if k == dim else 1 for k, s in enumerate(shape)]
            g = draw.dense(norm_shape, dtype, 1.0)
            if "backward" not in options:
                yield (v, g, dim), {}
            else:
                norms = torch.ops.aten._weight_norm_interface(v, g, dim)[1]
                yield (draw.dense(shape, dtype, 1.0), v, g, norms, dim), {}


@generator
def sync_norm(draw, options):
    """The pieces of SyncBatchNorm, of three ranks; statistics are f32, or f64 of f64."""
    for dtype, weight in MIXED:
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        for shape in ((6, 3), (4, 5, 7), (3, 4, 5, 6), (200, 2)):
            c = (shape[1],)
            x, dy = tame(draw, shape, dtype) + draw.choice([0, 0, 5]), tame(draw, shape, dtype, 1.0)
            gamma, beta = affine(draw, c, weight)
            mean, invstd = draw.dense(c, wide, 1.0), draw.dense(c, wide, 1.0).abs() + 0.1
            counts = torch.tensor([draw.choice([1, 7, 500]) for _ in range(3)])
            if "stats" in options:
                yield (x, 1e-5), {}
            elif "gather" in options:
                running = draw.choice([(None, None), (draw.dense(c, weight, 1.0), draw.dense(c, weight, 1.0).abs())])
                count = counts.to(wide if running[0] is None else weight) if "counts" in options else 120
                yield (x, draw.dense((3, *c), wide, 1.0), draw.dense((3, *c), wide, 1.0).abs() + 0.1, *running, 0.1, 1e-5, count), {}
            elif "elemt" in options:
                yield (x, gamma, beta, mean, invstd, 1e-5), {}
            elif "reduce" in options:
                yield (dy, x, mean, invstd, gamma, True, gamma is not None, gamma is not None), {}
            else:
                gamma = None if gamma is None else gamma.to(wide)
                yield (dy, x, mean, invstd, gamma, draw.dense(c, wide, 3.0), draw.dense(c, wide, 3.0), counts.int()), {}
