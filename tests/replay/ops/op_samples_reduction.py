"""Inputs of reductions, scans, softmax and losses."""

import math

import torch
from op_samples import FLOATS, INTEGERS, Options, generator

TAME = Options("x tame")
SHAPES = [(7,), (5, 6), (2, 3, 4), (3, 1, 5), (65,), (40, 33), (3, 130), (300, 5), (2, 5, 70), (6, 4, 3, 5), (1000,)]


def tame(draw, shape, dtype):
    return draw.tensor(shape, dtype, TAME)


def dims_of(draw, ndim):
    dims = [k for k in range(ndim) if draw.random.random() < 0.5]
    return [k - ndim if draw.random.random() < 0.3 else k for k in dims]


@generator
def sum(draw, options):  # noqa: A001
    for dtype in FLOATS + [torch.int64, torch.int32, torch.bool]:
        for shape in SHAPES + [(), (0, 3)]:
            yield (tame(draw, shape, dtype),), {}
        yield (draw.tensor((4, 5), dtype),), {}
    yield (tame(draw, (40, 3), torch.bfloat16),), {"dtype": torch.float32}
    yield (tame(draw, (40, 3), torch.int64),), {"dtype": torch.float32}


@generator
def sum_dim(draw, options):
    for dtype in FLOATS + [torch.int64, torch.bool]:
        for shape in SHAPES + [(0, 3), (4, 0)]:
            for _ in range(3):
                yield (tame(draw, shape, dtype), dims_of(draw, len(shape)), draw.choice([True, False])), {}
        yield (draw.tensor((9, 5), dtype), [1]), {}
        yield (tame(draw, (1, 7), dtype).expand(6, 7), [0]), {}
        yield (tame(draw, (7, 1), dtype).expand(7, 40), [1]), {}
    for shape, dim in (((33, 64), [0]), ((33, 64), [1]), ((8, 33, 64), [0, 1]), ((8, 33, 64), [0, 2]), ((300, 100), [0])):
        yield (tame(draw, shape, torch.bfloat16), dim), {"dtype": torch.float32}


@generator
def nansum(draw, options):
    """Sums over what is a number: rows with some NaN, rows of NaN, rows without."""
    for (x, *rest), kwargs in sum_dim(draw, options):
        x = x.clone(memory_format=torch.preserve_format)
        if x.dtype.is_floating_point and x.numel():
            x.masked_fill_(torch.rand(x.shape, generator=draw.torch) < draw.choice([0.0, 0.3, 1.0]), float("nan"))
        yield (x, *rest), kwargs
    yield (draw.tensor((5, 6), torch.float32),), {}


@generator
def mean(draw, options):
    for dtype in FLOATS:
        for shape in SHAPES:
            yield (tame(draw, shape, dtype),), {}


@generator
def mean_dim(draw, options):
    for dtype in FLOATS:
        for shape in SHAPES:
            for _ in range(2):
                yield (tame(draw, shape, dtype), dims_of(draw, len(shape)), draw.choice([True, False])), {}


@generator
def vector_norm(draw, options):
    for dtype in FLOATS:
        for order in (2, 1, 0, float("inf"), float("-inf"), 3, 0.5):
            yield (tame(draw, (40, 33), dtype), order), {}
            yield (tame(draw, (5, 6), dtype), order, [1], True), {}
            yield (tame(draw, (5, 6), dtype), order, [0], False), {}
        yield (draw.tensor((5, 6), dtype),), {}
        for shape in SHAPES:
            yield (tame(draw, shape, dtype),), {}


@generator
def norm(draw, options):
    for dtype in FLOATS:
        for order in (2, 1, 3.0):
            yield (tame(draw, (40, 33), dtype), order), {}


@generator
def norm_dim(draw, options):
    for dtype in FLOATS:
        for order in (2, 1, None):
            yield (tame(draw, (4, 33), dtype), order, [1], False), {}


@generator
def var(draw, options):
    for dtype in FLOATS:
        for shape in SHAPES:
            for correction in (None, 0, 1):
                yield (
                    (tame(draw, shape, dtype), dims_of(draw, len(shape)) or None),
                    {"correction": correction, "keepdim": draw.choice([True, False])},
                )


@generator
def logsumexp(draw, options):
    for dtype in FLOATS:
        for shape in SHAPES:
            yield (tame(draw, shape, dtype), dims_of(draw, len(shape)) or [0]), {}
        yield (torch.tensor([[float("-inf")] * 3, [float("inf"), 1, 2], [1, 2, float("nan")]], dtype=dtype), [1]), {}


@generator
def count_nonzero(draw, options):
    for dtype in FLOATS + [torch.int64, torch.bool]:
        yield (draw.tensor((5, 6), dtype), [1] if "list" in options else 1), {}


@generator
def extreme(draw, options):
    for dtype in FLOATS + INTEGERS:
        for shape in SHAPES + [()]:
            yield (draw.tensor(shape, dtype, Options("x nonan") if draw.random.random() < 0.7 else ()),), {}


@generator
def extreme_dims(draw, options):
    for dtype in FLOATS + [torch.int64, torch.bool]:
        for shape in SHAPES:
            x = draw.tensor(shape, dtype, Options("x nonan nozero") if draw.random.random() < 0.7 else Options("x nozero"))
            yield (x, dims_of(draw, len(shape)), draw.choice([True, False])), {}


@generator
def extreme_dim(draw, options):
    for dtype in FLOATS + [torch.int64, torch.int32]:
        for shape in SHAPES:
            x = draw.tensor(shape, dtype, Options("x nonan") if draw.random.random() < 0.7 else ())
            yield (x, draw.random.randrange(-len(shape), len(shape)), draw.choice([True, False])), {}
            if "none" in options:
                yield (x,), {}


@generator
def median(draw, options):
    for dtype in FLOATS + [torch.int64]:
        for shape in SHAPES:
            yield (draw.tensor(shape, dtype, Options("x nozero nonan" if draw.random.random() < 0.7 else "x nozero")),), {}


@generator
def kthvalue(draw, options):
    for dtype in FLOATS + [torch.int64, torch.int32]:
        for shape in SHAPES:
            x = draw.tensor(shape, dtype, Options("x nonan") if draw.random.random() < 0.7 else ())
            dim = draw.random.randrange(-len(shape), len(shape))
            yield (x, draw.random.randrange(1, shape[dim] + 1), dim, draw.choice([True, False])), {}


@generator
def mode(draw, options):
    """Of distinct values: which of equal elements the index names depends on a sort."""
    for dtype in FLOATS + [torch.int64]:
        for shape in SHAPES[:7]:
            dim = draw.random.randrange(-len(shape), len(shape))
            order = torch.rand(shape, generator=draw.torch).argsort(dim)
            yield (order.to(dtype), dim, draw.choice([True, False])), {}


@generator
def aminmax(draw, options):
    for dtype in FLOATS + [torch.int64]:
        for shape in SHAPES:
            x = draw.tensor(shape, dtype)
            yield (x,), {}
            yield (x,), {"dim": draw.random.randrange(len(shape)), "keepdim": draw.choice([True, False])}


@generator
def truth(draw, options):
    dtypes = [torch.bool] if "bool" in options else FLOATS + [torch.int64, torch.bool]
    for dtype in dtypes:
        for shape in SHAPES[:6] + [(), (0, 3)]:
            for value in (None, 0, 1):
                x = draw.tensor(shape, dtype) if value is None else torch.full(shape, value, dtype=dtype)
                if "dim" in options:
                    if shape:
                        yield (x, draw.random.randrange(len(shape)), draw.choice([True, False])), {}
                elif "dims" in options:
                    yield (x, dims_of(draw, len(shape)) or [0]), {}
                else:
                    yield (x,), {}


@generator
def prod(draw, options):
    for dtype in FLOATS + [torch.int64, torch.bool]:
        for shape in ((7,), (3, 4), (), (0,), (20,)):
            yield (draw.dense(shape, dtype, 1.0),), {}


@generator
def prod_dim(draw, options):
    for dtype in FLOATS + [torch.int64]:
        for shape in ((7,), (3, 4), (2, 3, 4)):
            yield (draw.dense(shape, dtype, 1.0), draw.random.randrange(len(shape)), draw.choice([True, False])), {}


@generator
def cumulative(draw, options):
    for dtype in FLOATS + [torch.int64, torch.int32, torch.bool]:
        for shape in SHAPES[:8]:
            yield (draw.layout(draw.dense(shape, dtype, 1.0)), draw.random.randrange(-len(shape), len(shape))), {}
    yield (draw.dense((9,), torch.float32, 30.0), 0), {"dtype": torch.int32}
    yield (draw.dense((9,), torch.int64), 0), {"dtype": torch.int32}


@generator
def log_cumulative(draw, options):
    for dtype in FLOATS:
        for shape in SHAPES[:8]:
            for scale in (0.1, 30.0):
                yield (draw.layout(draw.dense(shape, dtype, scale)), draw.random.randrange(-len(shape), len(shape))), {}
        yield (torch.tensor([-math.inf, -math.inf, 0.5, math.nan, 1], dtype=dtype), 0), {}
        yield (torch.tensor([-math.inf, 1, math.inf, 2], dtype=dtype), 0), {}


@generator
def cumulative_extreme(draw, options):
    for dtype in FLOATS + [torch.int64]:
        for shape in SHAPES[:6]:
            yield (draw.tensor(shape, dtype), draw.random.randrange(len(shape))), {}


@generator
def histc(draw, options):
    for dtype in (torch.float32, torch.float64):
        whole = torch.randint(0, 8, (200,), generator=draw.torch).to(dtype)
        yield (whole, 8, 0, 7), {}
        yield (whole, 8, 0, 8), {}
        yield (whole, 60, 0, 59), {}
        yield (draw.dense((300,), dtype, 1.0), 10), {}
        yield (draw.dense((300,), dtype, 1.0), 10, -1, 1), {}
        yield (torch.ones(4, dtype=dtype), 5), {}


# ---- softmax and losses ------------------------------------------------------------------------------------------

ROWS = [((7,), 0), ((5, 33), -1), ((33, 5), 0), ((2, 3, 40), 1), ((2, 3, 40), 2), ((3, 300), 1), ((), 0), ((4, 1), 1)]


@generator
def softmax(draw, options):
    for dtype in FLOATS:
        for shape, dim in ROWS:
            yield (tame(draw, shape, dtype), dim, False), {}
        masked = tame(draw, (4, 9), dtype)
        masked[:, 3:6] = float("-inf")
        yield (masked, 1, False), {}
        yield (torch.tensor([[float("nan"), 1, 2], [float("inf"), 1, 2]], dtype=dtype), 1, False), {}


@generator
def safe_softmax(draw, options):
    for dtype in FLOATS:
        for shape, dim in ROWS:
            yield (tame(draw, shape, dtype), dim), {}
        masked = tame(draw, (4, 9), dtype)
        masked[:, 3:6] = float("-inf")
        masked[2] = float("-inf")
        yield (masked, 1), {}
    yield (tame(draw, (4, 9), torch.bfloat16), 1), {"dtype": torch.float32}


@generator
def softmax_backward(draw, options):
    for dtype in FLOATS:
        for shape, dim in ROWS:
            x = tame(draw, shape, dtype)
            yield (tame(draw, shape, dtype), torch.softmax(x, dim), dim, dtype), {}


@generator
def log_softmax_backward(draw, options):
    for dtype in FLOATS:
        for shape, dim in ROWS:
            x = tame(draw, shape, dtype)
            yield (tame(draw, shape, dtype), torch.log_softmax(x, dim), dim, dtype), {}


def loss_inputs(draw, dtype, shape):
    scores = torch.log_softmax(tame(draw, shape, dtype), 1 if len(shape) > 1 else 0)
    spatial = [shape[0], *shape[2:]] if len(shape) > 1 else []
    classes = shape[1] if len(shape) > 1 else shape[0]
    target = torch.randint(0, classes, spatial, generator=draw.torch)
    if target.dim():
        target[torch.rand(spatial, generator=draw.torch) < 0.2] = -100
    weight = draw.choice([None, draw.dense((classes,), dtype, 1.0).abs()])
    return scores, target, weight


@generator
def nll_loss(draw, options):
    for dtype in FLOATS:
        for shape in ((5, 7), (300, 11), (1, 3), (7,), (2000, 5)):
            for reduction in (0, 1, 2):
                scores, target, weight = loss_inputs(draw, dtype, shape)
                yield (scores, target, weight, reduction, -100), {}


@generator
def nll_loss2d(draw, options):
    for dtype in FLOATS:
        for reduction in (0, 1, 2):
            scores, target, weight = loss_inputs(draw, dtype, (3, 5, 4, 6))
            yield (scores, target, weight, reduction, -100), {}


@generator
def nll_loss_backward(draw, options):
    for dtype in FLOATS:
        for shape in ((5, 7), (300, 11), (7,)):
            for reduction in (0, 1, 2):
                scores, target, weight = loss_inputs(draw, dtype, shape)
                loss, total = torch.ops.aten.nll_loss_forward(scores, target, weight, reduction, -100)
                yield (tame(draw, loss.shape, dtype), scores, target, weight, reduction, -100, total), {}


@generator
def nll_loss2d_backward(draw, options):
    for dtype in FLOATS:
        for reduction in (0, 1, 2):
            scores, target, weight = loss_inputs(draw, dtype, (3, 5, 4, 6))
            loss, total = torch.ops.aten.nll_loss2d_forward(scores, target, weight, reduction, -100)
            yield (tame(draw, loss.shape, dtype), scores, target, weight, reduction, -100, total), {}


@generator
def softmax_int(draw, options):
    for dtype in FLOATS:
        for shape, dim in (((4, 7), -1), ((3, 5, 33), 1), ((300,), 0), ((2, 1000), 1)):
            x = draw.dense(shape, dtype)
            yield (x, dim), {}
            yield (x, dim), {"dtype": torch.promote_types(dtype, torch.float32)}


@generator
def cross_entropy(draw, options):
    for dtype in FLOATS:
        for shape in ((5, 7), (300, 11), (7,), (3, 5, 4)):
            for reduction in (0, 1, 2):
                scores, target, weight = loss_inputs(draw, dtype, shape)
                yield (scores, target, weight, reduction, -100, 0.0), {}
