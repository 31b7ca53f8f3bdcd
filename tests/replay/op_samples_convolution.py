"""Inputs of convolutions and pooling."""
import torch

from op_samples import FLOATS, Options, generator

TAME = Options("x tame")

# dimensions, input, weight, stride, padding, dilation, transposed, output padding, groups
FORMS = [((2, 4, 9), (6, 4, 3), [1], [1], [1], False, [0], 1),
         ((2, 8, 12), (8, 1, 4), [1], [3], [1], False, [0], 8),
         ((1, 4, 11), (6, 2, 3), [2], [2], [2], False, [0], 2),
         ((2, 3, 8, 8), (5, 3, 4, 4), [4, 4], [0, 0], [1, 1], False, [0, 0], 1),
         ((1, 4, 7, 6), (4, 2, 3, 2), [2, 1], [1, 0], [1, 2], False, [0, 0], 2),
         ((2, 2, 5, 4, 6), (3, 2, 2, 2, 3), [1, 2, 1], [0, 1, 1], [1, 1, 1], False, [0, 0, 0], 1),
         ((2, 4, 5), (4, 3, 3), [2], [1], [1], True, [1], 1),
         ((1, 4, 5, 4), (4, 2, 3, 2), [2, 3], [1, 0], [1, 2], True, [1, 0], 2)]


def tame(draw, shape, dtype):
    return draw.tensor(shape, dtype, TAME, 1.0)


def forms(draw):
    for dtype in FLOATS:
        for x, w, stride, padding, dilation, transposed, output_padding, groups in FORMS:
            channels = w[1] * groups if transposed else w[0]
            bias = draw.dense((channels,), dtype, 1.0) if draw.random.random() < 0.6 else None
            yield (tame(draw, x, dtype), tame(draw, w, dtype), bias, stride, padding, dilation, transposed, output_padding, groups)


@generator
def convolution(draw, options):
    for form in forms(draw):
        yield (*form, *((False, False, False, False) if "whole" in options else ())), {}


@generator
def convolution_backward(draw, options):
    for x, w, bias, *rest in forms(draw):
        y = torch.ops.aten.convolution(x, w, bias, *rest)
        mask = [draw.random.random() < 0.8, draw.random.random() < 0.8, bias is not None]
        yield (tame(draw, tuple(y.shape), y.dtype), x, w, list(bias.shape) if bias is not None else [0], *rest, mask), {}
