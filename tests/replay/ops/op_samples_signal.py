"""Windows and distances."""

import torch
from op_samples import generator


@generator
def window(draw, options):
    for dtype in (torch.float32, torch.float64):
        for n in (1, 2, 7, 64, 400):
            numbers = [draw.choice([0.5, 0.54]), draw.choice([0.5, 0.3])][: int(options.get("numbers", 0))]
            flag = [draw.choice([True, False])] if "periodic" in options else []
            yield (n, *flag, *numbers), {"dtype": dtype}


@generator
def distances(draw, options):
    """Of two tensors, or of pairs of rows: also equal ones, and more than 25, from where torch takes the product of matrices."""
    for dtype in (torch.float32, torch.float64):
        for p in (2.0, 1.0, 0.0, 3.0, float("inf")):
            if "one" in options:
                for shape in ((7,), (3, 5), ()):
                    yield (draw.layout(draw.dense(shape, dtype)), draw.dense(shape, dtype), p), {}
                continue
            for shape, rows in (((4, 3), 5), ((2, 6, 4), 3), ((30, 8), 27)):
                a, b = draw.layout(draw.dense(shape, dtype)), draw.dense((*shape[:-2], rows, shape[-1]), dtype)
                b[..., 0, :] = a[..., 0, :]
                yield ((a, b) if "euclidean" in options else (a, b, p, None)), {}
