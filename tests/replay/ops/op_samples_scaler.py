"""Samples of the gradient scaler's ops."""

import torch
from op_samples import FLOATS, generator


@generator
def unscale(draw, options):
    """Finite gradients, gradients with an infinity or a NaN, and a scale of exactly 1."""
    for dtype in FLOATS:
        for special in (None, float("inf"), float("nan")):
            for inverse in (1.0, 2.0**-16, 0.1):
                gradients = [draw.dense(shape, dtype, 1.0) for shape in ((4,), (3, 5), (33,), (130,))]
                if special is not None:
                    gradients[2][7] = special
                yield (gradients, torch.tensor(float(draw.choice([0, 0, 1]))), torch.tensor(inverse)), {}


@generator
def update_scale(draw, options):
    for scale in (65536.0, 1.5, 3e38):
        for tracker in (0, 1, 3):
            for found in (0.0, 1.0):
                yield (torch.tensor(scale), torch.tensor(tracker, dtype=torch.int32), torch.tensor(found), 2.0, 0.5, 4), {}
