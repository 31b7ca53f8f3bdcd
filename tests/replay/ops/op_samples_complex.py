"""Complex numbers."""

import torch
from op_samples import generator


def complex_tensor(draw, shape, dtype=torch.complex64):
    part = torch.float64 if dtype == torch.complex128 else torch.float32
    return torch.complex(draw.dense(shape, part), draw.dense(shape, part))


@generator
def complex(draw, options):
    """Magnitudes and angles, parts, or one complex tensor."""
    for dtype in (torch.float32, torch.float64):
        for shape in ((5,), (3, 4), (2, 3, 5), (1,), (0, 3)):
            a, b = draw.dense(shape, dtype), draw.dense(shape, dtype)
            if "one" in options:
                yield (torch.complex(a, b),), {}
            else:
                yield (a.abs() if "polar" in options else a, b), {}
