"""Sparse tensors as they are recorded: [indices, numbers]. Most places are named several times."""

import torch
from op_samples import FLOATS, generator

ROWS, COLUMNS, INNER = 7, 5, 4


def vectors(draw, dtype, n=18):
    """Numbers of INNER elements at some of ROWS places: the gradient of an embedding."""
    return [torch.randint(0, ROWS - 1, (1, n), generator=draw.torch), draw.dense((n, INNER), dtype, 1.0)]


def matrix(draw, dtype, n=18):
    """A ROWS × COLUMNS matrix."""
    indices = torch.stack([torch.randint(0, size, (n,), generator=draw.torch) for size in (ROWS - 1, COLUMNS)])
    return [indices, draw.dense((n,), dtype, 1.0)]


@generator
def sparse(draw, options):
    what = next(iter(options))
    for dtype in FLOATS:
        if what in ("clone", "_coalesce"):
            yield (vectors(draw, dtype), None)[: 2 if what == "clone" else 1], {}
            yield (matrix(draw, dtype), None)[: 2 if what == "clone" else 1], {}
        elif what == "t":
            yield (matrix(draw, dtype),), {}
        elif what == "sparse_mask":
            yield (draw.dense((ROWS, INNER), dtype, 1.0), [torch.tensor([[0, 2, 5]]), draw.dense((3, INNER), dtype, 1.0)]), {}
        elif what == "add.Tensor":
            for alpha in (1, -0.1):
                yield (draw.dense((ROWS, INNER), dtype, 1.0), vectors(draw, dtype), alpha), {}
            yield (draw.dense((ROWS, COLUMNS), dtype, 1.0), matrix(draw, dtype), 1), {}
        elif what == "mm":
            yield (matrix(draw, dtype), draw.dense((COLUMNS, 3), dtype, 1.0)), {}
        elif what == "_sparse_addmm":
            yield (draw.dense((ROWS, 3), dtype, 1.0), matrix(draw, dtype), draw.dense((COLUMNS, 3), dtype, 1.0), 0.5, 2.0), {}
