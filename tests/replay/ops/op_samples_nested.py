"""Nested tensors as they are recorded: [sizes, strides, where each begins, numbers]."""

import torch
from op_samples import FLOATS, generator

LENGTHS, WIDTH = (3, 1, 5), 4


def parts(draw, dtype, lengths=LENGTHS, width=WIDTH):
    sizes = torch.tensor([[n, width] for n in lengths])
    begins = torch.cat([torch.zeros(1, dtype=torch.int64), (sizes[:, 0] * width).cumsum(0)[:-1]])
    return [sizes, torch.tensor([[width, 1]] * len(lengths)), begins, draw.dense((sum(lengths) * width,), dtype, 1.0)]


@generator
def nested(draw, options):
    for dtype in FLOATS:
        yield (parts(draw, dtype),), {}
