"""Inputs with many equal elements, or slices."""

import torch
from op_samples import FLOATS, generator


@generator
def distinct(draw, options):
    for dtype in [*FLOATS, torch.int64, torch.int32, torch.uint8, torch.bool]:
        for shape in ((7,), (40,), (3, 5), (4, 3, 2), (0,), (1,)):
            x = torch.randint(0, 2 if dtype == torch.bool else 4, shape, generator=draw.torch)
            x = x.to(dtype) if not dtype.is_floating_point else ((x - 1.5) * 0.7).to(dtype)
            if dtype.is_floating_point and len(shape) == 1 and shape[0] > 1 and "along" not in options:
                x[shape[0] // 2] = torch.inf
                x[1] = torch.nan
            wanted = [draw.choice([False, True]), draw.choice([False, True])]
            if "along" in options:
                if 0 not in shape:
                    dim = draw.choice(range(-len(shape), len(shape)))
                    yield (draw.layout(x), dim, *([] if "consecutive" in options else [True]), *wanted), {}
            elif "consecutive" in options:
                dim = None if 0 in shape else draw.choice([None, 0, -1])
                yield (draw.layout(x), *wanted, dim if x.dim() > 1 else None), {}
            else:
                yield (draw.layout(x), True, *wanted[: 2 if "counts" in options else 1]), {}
