"""Inputs of convolutions and pooling."""

import torch
from op_samples import FLOATS, Options, generator

TAME = Options("x tame")

# dimensions, input, weight, stride, padding, dilation, transposed, output padding, groups
FORMS = [
    ((2, 4, 9), (6, 4, 3), [1], [1], [1], False, [0], 1),
    ((2, 8, 12), (8, 1, 4), [1], [3], [1], False, [0], 8),
    ((1, 4, 11), (6, 2, 3), [2], [2], [2], False, [0], 2),
    ((2, 3, 8, 8), (5, 3, 4, 4), [4, 4], [0, 0], [1, 1], False, [0, 0], 1),
    ((1, 4, 7, 6), (4, 2, 3, 2), [2, 1], [1, 0], [1, 2], False, [0, 0], 2),
    ((2, 2, 5, 4, 6), (3, 2, 2, 2, 3), [1, 2, 1], [0, 1, 1], [1, 1, 1], False, [0, 0, 0], 1),
    ((2, 4, 5), (4, 3, 3), [2], [1], [1], True, [1], 1),
    ((1, 4, 5, 4), (4, 2, 3, 2), [2, 3], [1, 0], [1, 2], True, [1, 0], 2),
    ((1, 2, 3, 4, 3), (2, 3, 2, 3, 2), [1, 2, 2], [0, 1, 0], [1, 1, 1], True, [0, 1, 1], 1),
]


def tame(draw, shape, dtype):
    return draw.tensor(shape, dtype, TAME, 1.0)


def forms(draw):
    for dtype in FLOATS:
        for x, w, stride, padding, dilation, transposed, output_padding, groups in FORMS:
            channels = w[1] * groups if transposed else w[0]
            bias = draw.dense((channels,), dtype, 1.0) if draw.random.random() < 0.6 else None
            yield (tame(draw, x, dtype), tame(draw, w, dtype), bias, stride, padding, dilation, transposed, output_padding, groups)


def spelled(draw, options, form):
    """The arguments of `form` as the composite and the devices' ops want them; None where they cannot say it."""
    x, w, bias, stride, padding, dilation, transposed, output_padding, groups = form
    dims = len(stride)
    if transposed != ("transposed" in options):
        return None
    wanted = next((int(o[4]) for o in options if o.startswith("conv") and o[4:5].isdigit()), None)
    if wanted and dims != wanted:
        return None
    if "cudnn" in options:
        if "relu" in options:
            return x, w, bias, stride, padding, dilation, groups
        if "added" in options:
            y = torch.ops.aten.convolution(x.double(), w.double(), None, stride, padding, dilation, False, [0] * dims, groups)
            return x, w, tame(draw, tuple(y.shape), x.dtype), draw.choice([None, 0.5, 1]), bias, stride, padding, dilation, groups
        return (x, w, padding, *([output_padding] if transposed else []), stride, dilation, groups, False, False, False)
    if "miopen" in options or "mkldnn" in options:
        return (
            x,
            w,
            bias,
            padding,
            *([output_padding] if transposed else []),
            stride,
            dilation,
            groups,
            *([False, False] if "miopen" in options else []),
        )
    if "thnn" in options:
        if groups != 1 or dims != (wanted or 2) or (dilation != [1] * dims and "dilated" not in options):
            return None
        return (x, w, list(w.shape[2:]), bias, stride, padding, *([dilation] if "dilated" in options else []))
    if "depthwise" in options:
        w = draw.dense((x.shape[1], 1, *w.shape[2:]), w.dtype, 1.0)
        return (x, w, list(w.shape[2:]), None, stride, padding, dilation) if dims == (wanted or 2) else None
    if draw.random.random() < 0.3:
        x = x[0]
    if transposed:
        return x, w, bias, stride, padding, output_padding, groups, dilation
    if "word" in options:
        word = draw.choice(["same", "valid"]) if max(stride) == 1 and all((k - 1) * d % 2 == 0 for k, d in zip(w.shape[2:], dilation)) else "valid"
        return x, w, bias, stride, word, dilation, groups
    return x, w, bias, stride, padding, dilation, groups


@generator
def convolution(draw, options):
    for _ in range(2 if "depthwise" in options or "thnn" in options else 1):
        for form in forms(draw):
            if not options or "whole" in options:
                yield (*form, *((False, False, False, False) if "whole" in options else ())), {}
            elif (args := spelled(draw, options, form)) is not None:
                yield args, {}


@generator
def convolution_backward(draw, options):
    for x, w, bias, *rest in forms(draw):
        y = torch.ops.aten.convolution(x, w, bias, *rest)
        mask = [draw.random.random() < 0.8, draw.random.random() < 0.8, bias is not None]
        yield (tame(draw, tuple(y.shape), y.dtype), x, w, list(bias.shape) if bias is not None else [0], *rest, mask), {}
