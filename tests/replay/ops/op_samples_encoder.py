"""Inputs of torch's fused multi-head attention and encoder layer, and of what they are made of."""

import torch
from op_samples import FLOATS, generator

# batch, tokens, heads, head size, feed-forward size
SHAPES = [(1, 1, 1, 4, 8), (2, 5, 2, 8, 24), (3, 17, 4, 16, 96), (2, 33, 3, 20, 40), (1, 130, 2, 32, 128), (4, 9, 1, 7, 300)]


def some(draw, shape):
    """A mask of bools that leaves something over in its first place."""
    mask = torch.rand(shape, generator=draw.torch) < 0.3
    mask[..., 0] = False
    return mask


def masks(draw, b, h, t):
    """A mask and its type: none, of tokens, of keys, of scores."""
    return [(None, None), (some(draw, (t, t)), 0), (some(draw, (b, t)), 1), (some(draw, (b, h, t, t)), 2), (some(draw, (b, h, t, t)), 0)]


def weight(draw, rows, columns, dtype):
    return draw.dense((rows, columns), dtype, draw.choice([1.0, 1.0, 3.0]) * columns**-0.5)


def projections(draw, d, dtype):
    weights = weight(draw, 3 * d, d, dtype), draw.dense((3 * d,), dtype, 0.5), weight(draw, d, d, dtype), draw.dense((d,), dtype, 0.5)
    return list(weights)


def attention_samples(draw, dtype, shape):
    b, t, h, size, _ = shape
    d = h * size
    for mask, kind in masks(draw, b, h, t):
        x = draw.dense((b, t, d), dtype, draw.choice([1.0, 0.1, 4.0]))
        others = draw.choice([(x, x), (x.flip(1), x.flip(1)), (draw.dense((b, t, d), dtype, 1.0), draw.dense((b, t, d), dtype, 1.0))])
        if draw.random.random() < 0.3:
            x = x.transpose(0, 1).contiguous().transpose(0, 1)
        for need, average in ((False, True), (True, True), (True, False)):
            yield (x, *others, d, h, *projections(draw, d, dtype), mask, need, average, kind), {}


def layer_samples(draw, dtype, shape):
    b, t, h, size, inner = shape
    d = h * size
    for mask, kind in masks(draw, b, h, t):
        x = draw.dense((b, t, d), dtype, draw.choice([1.0, 0.1, 4.0]))
        norms = [1 + draw.dense((d,), dtype, 0.1), draw.dense((d,), dtype, 0.1), 1 + draw.dense((d,), dtype, 0.1), draw.dense((d,), dtype, 0.1)]
        feed = [weight(draw, inner, d, dtype), draw.dense((inner,), dtype, 0.5), weight(draw, d, inner, dtype), draw.dense((d,), dtype, 0.5)]
        for gelu, first in ((True, False), (False, False), (True, True)):
            yield (x, d, h, *projections(draw, d, dtype), gelu, first, draw.choice([1e-5, 1e-12]), *norms, *feed, mask, kind), {}


@generator
def encoder(draw, options):
    samples = layer_samples if "layer" in options else attention_samples
    for dtype in FLOATS:
        for shape in SHAPES:
            yield from samples(draw, dtype, shape)


@generator
def transform_qkv(draw, options):
    for dtype in FLOATS:
        for b, t, h, size, _ in SHAPES:
            for scale in (1.0, 30.0):
                yield (draw.dense((b, t, 3 * h * size), dtype, scale), draw.dense((3 * h * size,), dtype, 1.0), h), {}


@generator
def masked_softmax(draw, options):
    for dtype in FLOATS:
        for b, t, h, _, _ in SHAPES:
            for mask, kind in masks(draw, b, h, t)[1:]:
                x = draw.dense((b, h, t, t), dtype, draw.choice([1.0, 0.1, 6.0]))
                if "backward" in options:
                    if mask.dim() == 4:
                        y = torch._masked_softmax(x, mask, -1, 2)
                        yield (draw.dense(x.shape, dtype, 1.0), y, mask, -1), {}
                    continue
                yield (x, mask, draw.choice([-1, 3]), kind), {}
        nothing = torch.zeros((2, 3, 4, 5), dtype=torch.bool)
        nothing[0, 1, 2] = True
        x = draw.dense((2, 3, 4, 5), dtype, 1.0)
        if "backward" not in options:
            yield (x, nothing, -1, 2), {}
            yield (x, nothing, 1, 2), {}
            yield (draw.dense((7, 9), dtype, 1.0), some(draw, (7, 9)), 1, 2), {}
