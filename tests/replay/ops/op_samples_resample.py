"""Inputs of pools, interpolations and borders."""

import torch
from op_samples import FLOATS, Options, generator

TAME = Options("x tame")
# input sizes and output sizes of one axis
AXES = [(7, 11), (12, 5), (4, 4), (5, 10), (9, 3), (1, 3), (6, 1)]


def planes(draw, sizes, dtype):
    """(batch, channels, sizes), dense or channels last."""
    x = draw.dense((2, 3, *sizes), dtype, 1.0)
    formats = {2: torch.channels_last, 3: torch.channels_last_3d}
    if len(sizes) in formats and draw.random.random() < 0.3:
        return x.contiguous(memory_format=formats[len(sizes)])
    return x


@generator
def upsample(draw, options):
    """Sizes given, or factors given; `corners` where the op can align them."""
    axes = int(options["axes"])
    for dtype in FLOATS:
        for _ in range(6 if axes > 1 else 4):
            sizes = [draw.choice(AXES) for _ in range(axes)]
            factors = None
            if draw.random.random() < 0.4:
                factors = [draw.choice([2.0, 1.5, 0.5, 3.3]) for _ in range(axes)]
                sizes = [(max(n, 2), int(max(n, 2) * f)) for (n, _), f in zip(sizes, factors)]
            given = [] if "corners" not in options and "smooth" not in options else [draw.choice([True, False]) if "corners" in options else False]
            if given and given[0]:
                factors = None
            small, large = [n for n, _ in sizes], [m for _, m in sizes]
            if "smooth" in options and large[-1] == 1:
                continue  # torch 2.13 gives every row the first one's value there, unless channels come last
            if "vec" in options:
                yield (planes(draw, small, dtype), *([None] if factors else [large]), *given, factors), {}
            elif "backward" in options:
                yield (planes(draw, large, dtype), large, [2, 3, *small], *given, *(factors or [None] * axes)), {}
            else:
                yield (planes(draw, small, dtype), large, *given, *(factors or [None] * axes)), {}


def windows(draw, axes):
    kernel = [draw.choice([1, 2, 3]) for _ in range(axes)]
    stride = draw.choice([[], [2] * axes, [1] * axes, [3] * axes])
    padding = [draw.random.randint(0, k // 2) for k in kernel]
    return draw.choice([kernel, kernel[:1]]), stride, padding if draw.random.random() < 0.6 else [0], draw.choice([True, False])


@generator
def pool(draw, options):
    axes = int(options["axes"])
    for dtype in FLOATS:
        for _ in range(8):
            sizes = [draw.choice([5, 6, 9]) for _ in range(axes)]
            x = planes(draw, sizes, dtype)
            if draw.random.random() < 0.2:
                x = x[0]
            if "adaptive" in options:
                out = [draw.choice([1, 2, 4, 7]) for _ in range(axes)]
                if "backward" in options:
                    yield (draw.dense((*x.shape[:-axes], *out), dtype, 1.0), x), {}
                else:
                    yield (x, out), {}
                continue
            kernel, stride, padding, ceil = windows(draw, axes)
            if len(kernel) < axes:
                padding = [min(padding[0], kernel[0] // 2)]
            rest = [ceil, draw.choice([True, False])] + ([draw.choice([None, 5])] if "divisor" in options else [])
            if "backward" not in options:
                yield (x, kernel, stride, padding, *rest), {}
                continue
            op = {2: torch.ops.aten.avg_pool2d, 3: torch.ops.aten.avg_pool3d}[axes]
            try:
                y = op(x, kernel, stride, padding, *rest)
            except RuntimeError:
                continue
            yield (draw.dense(tuple(y.shape), dtype, 1.0), x, kernel, stride, padding, *rest), {}


@generator
def border(draw, options):
    axes = int(options["axes"])
    for dtype in FLOATS:
        for _ in range(5):
            sizes = [draw.choice([4, 5, 7]) for _ in range(axes)]
            padding = [draw.random.randint(0, 3) for _ in range(2 * axes)]
            x = planes(draw, sizes, dtype)
            if "backward" in options:
                sizes = [n + padding[2 * (axes - 1 - k)] + padding[2 * (axes - 1 - k) + 1] for k, n in enumerate(sizes)]
                yield (draw.dense((2, 3, *sizes), dtype, 1.0), x, padding), {}
            else:
                yield (x, padding), {}


def image(draw, sizes, dtype):
    """With special values, for ops that choose."""
    x = draw.tensor((2, 3, *sizes), dtype)
    return x.contiguous(memory_format=torch.channels_last) if len(sizes) == 2 and draw.random.random() < 0.3 else x


@generator
def max_pool(draw, options):
    axes = int(options["axes"])
    for dtype in FLOATS:
        for _ in range(8):
            sizes = [draw.choice([5, 6, 9]) for _ in range(axes)]
            x = image(draw, sizes, dtype)
            kernel, stride, padding, ceil = windows(draw, axes)
            padding = [min(p, min(kernel) // 2) for p in padding]
            args = (
                (x, [draw.choice([1, 2, 4]) for _ in range(axes)])
                if "adaptive" in options
                else (x, kernel, stride, padding, draw.choice([[1], [2], [1]]), ceil)
            )
            if "backward" not in options:
                yield args, {}
                continue
            name = f"adaptive_max_pool{axes}d" if "adaptive" in options else f"max_pool{axes}d_with_indices"
            try:
                y, indices = getattr(torch.ops.aten, name)(*args)
            except RuntimeError:
                continue
            yield (draw.dense(tuple(y.shape), dtype, 1.0), *args[: 1 if "adaptive" in options else None], indices), {}


@generator
def im2col(draw, options):
    for dtype in FLOATS:
        for kernel, dilation, padding, stride in (
            ([2, 3], [1, 1], [0, 0], [1, 1]),
            ([3, 3], [2, 1], [1, 2], [2, 1]),
            ([4, 4], [1, 1], [0, 0], [4, 4]),
        ):
            x = draw.tensor(draw.choice([(2, 3, 8, 9), (3, 8, 9)]), dtype, TAME)
            args = (kernel, dilation, padding, stride)
            if "back" in options:
                columns = torch.ops.aten.im2col(x, *args)
                yield (draw.tensor(tuple(columns.shape), dtype, TAME), list(x.shape[-2:]), *args), {}
            else:
                yield (x, *args), {}


@generator
def pixel_shuffle(draw, options):
    for dtype in FLOATS:
        for r, shape in ((2, (2, 8, 3, 4)), (3, (18, 2, 3)), (1, (1, 4, 5, 2))):
            if "apart" in options:
                shape = (*shape[:-3], shape[-3], shape[-2] * r, shape[-1] * r)
            yield (draw.tensor(shape, dtype), r), {}


@generator
def channel_shuffle(draw, options):
    for dtype in FLOATS:
        for groups, shape in ((2, (2, 6, 3, 4)), (3, (1, 6, 5)), (6, (2, 6, 2, 2))):
            yield (draw.tensor(shape, dtype), groups), {}


@generator
def grid_sampler(draw, options):
    """Places inside and outside of the image; nearest and linear samples."""
    axes = int(options["axes"])
    for dtype in (torch.float32, torch.float64):
        for mode, outside, corners in (
            [(0, 0, True)] * 4 if "cudnn" in options else [(m, o, c) for m in (0, 1) for o in (0, 1, 2) for c in (False, True)]
        ):
            sizes, to = [draw.choice([3, 6, 9]) for _ in range(axes)], [draw.choice([2, 5]) for _ in range(axes)]
            x = planes(draw, sizes, dtype)
            grid = draw.tensor((2, *to, axes), dtype, TAME, 0.8)
            modes = [] if "cudnn" in options else [mode, outside, corners]
            if "backward" not in options:
                yield (x, grid, *modes), {}
            elif "cudnn" in options:
                yield (x, grid, draw.dense((2, 3, *to), dtype, 1.0)), {}
            else:
                yield (draw.dense((2, 3, *to), dtype, 1.0), x, grid, *modes, draw.choice([[True, True], [True, False], [False, True]])), {}
