"""Inputs of ops that take non-finite values out."""

import torch
from op_samples import FLOATS, generator


@generator
def nan_to_num(draw, options):
    for dtype in FLOATS + [torch.int64, torch.bool]:
        for replacement in ((None, None, None), (0.0, 1.5, -2.0), (1e3, None, -7.0), (None, 3.4028234663852886e38, None)):
            for shape in ((7,), (40, 5), ()):
                yield (draw.tensor(shape, dtype), *replacement), {}
