"""Inputs of ops that read, write, sort and arrange elements."""

import torch
from op_samples import FLOATS, INTEGERS, Options, generator

TAME = Options("x tame")
EVERY = FLOATS + [torch.int64, torch.int32, torch.bool]
ADDED = FLOATS + [torch.int64]


def integers(draw, shape, low, high, dtype=torch.int64):
    return torch.randint(low, high, shape, generator=draw.torch).to(dtype)


def one_index_per_element(draw, shape, dim, size):
    """An index of `shape` along dim without repeats, so that what a scatter leaves is defined."""
    order = torch.rand([size if k == dim else n for k, n in enumerate(shape)], generator=draw.torch).argsort(dim)
    return order.narrow(dim, 0, shape[dim])


@generator
def embedding(draw, options):
    for dtype in FLOATS:
        for shape in ((3, 4), (5,), (), (0,)):
            yield (draw.tensor((11, 6), dtype), integers(draw, shape, 0, 11)), {}
        yield (draw.tensor((11, 6), dtype), integers(draw, (2, 3), 0, 11, torch.int32)), {"padding_idx": 2}


@generator
def embedding_dense_backward(draw, options):
    for dtype in FLOATS:
        for shape in ((3, 4), (40,), ()):
            for padding, frequency in ((-1, False), (2, False), (1, True)):
                index = integers(draw, shape, 0, 5)
                yield (draw.tensor((*shape, 6), dtype, TAME), index, 7, padding, frequency), {}


@generator
def index_select(draw, options):
    for dtype in EVERY:
        for dim in (0, 1, -1):
            yield (draw.tensor((4, 3, 5), dtype), dim, integers(draw, (6,), 0, 3)), {}
        yield (draw.tensor((4,), dtype), 0, integers(draw, (), 0, 4)), {}


def index_lists(draw):
    """(shape of self, list of indices): neighbours or not, broadcast, masks, None, negative."""
    i = lambda shape, n: integers(draw, shape, -n, n)  # noqa: E731
    mask = lambda shape: torch.rand(shape, generator=draw.torch) < 0.5  # noqa: E731
    return [
        ((5, 6), [i((4,), 5)]),
        ((5, 6), [None, i((4,), 6)]),
        ((5, 6), [i((4,), 5), i((4,), 6)]),
        ((5, 6, 3), [i((4, 1), 5), None, i((2,), 3)]),
        ((5, 6, 3), [None, i((2, 2), 6), i((2,), 3)]),
        ((5, 6), [mask((5,))]),
        ((5, 6), [mask((5, 6))]),
        ((4, 5, 6), [mask((4, 5))]),
        ((4, 5, 6), [None, mask((5,))]),
        ((4, 5, 6), [i((1,), 4), mask((5,))]),
        ((7,), [i((3, 2), 7)]),
        ((4, 5), [i((), 4)]),
        ((4, 5), [i((0,), 4)]),
        ((4, 5, 2), [i((3,), 4), i((3,), 5), i((3,), 2)]),
    ]


@generator
def index(draw, options):
    for dtype in EVERY:
        for shape, indices in index_lists(draw):
            yield (draw.tensor(shape, dtype), indices), {}


@generator
def index_put(draw, options):
    for dtype in ADDED:
        for shape, indices in index_lists(draw):
            x = draw.tensor(shape, dtype, TAME)
            target = torch.ops.aten.index.Tensor(x, indices)
            yield (x, indices, draw.tensor(target.shape, dtype, TAME)), {"accumulate": True}
            yield (x, indices, draw.tensor((), dtype, TAME)), {"accumulate": False}
            if target.dim():
                yield (x, indices, draw.tensor(target.shape[-1:], dtype, TAME)), {"accumulate": True}
        order = torch.randperm(8, generator=draw.torch)[:5]
        yield (draw.tensor((8, 3), dtype), [order], draw.tensor((5, 3), dtype)), {"accumulate": False}


@generator
def gather(draw, options):
    for dtype in EVERY:
        for dim in (0, 1, 2, -1):
            yield (draw.tensor((4, 3, 5), dtype), dim, integers(draw, (2, 3, 4), 0, 3)), {}
        yield (draw.tensor((6,), dtype), 0, integers(draw, (9,), 0, 6)), {}


@generator
def take(draw, options):
    for dtype in EVERY:
        yield (draw.tensor((4, 3), dtype), integers(draw, (2, 5), -12, 12)), {}


@generator
def masked_select(draw, options):
    for dtype in EVERY:
        for shape, mask in (((4, 5), (4, 5)), ((4, 5), (5,)), ((5,), (4, 5))):
            yield (draw.tensor(shape, dtype), draw.tensor(mask, torch.bool)), {}


@generator
def masked_scatter(draw, options):
    for dtype in EVERY:
        for shape, mask in (((4, 5), (4, 5)), ((4, 5), (5,)), ((4, 5), (4, 1))):
            yield (draw.tensor(shape, dtype), draw.tensor(mask, torch.bool), draw.tensor((30,), dtype)), {}


@generator
def masked_scatter_backward(draw, options):
    for dtype in FLOATS:
        yield (draw.tensor((4, 5), dtype), draw.tensor((4, 5), torch.bool), [6, 5]), {}


@generator
def nonzero(draw, options):
    for dtype in EVERY:
        for shape in ((7,), (3, 4), (2, 3, 2), (), (0, 3)):
            x = draw.tensor(shape, dtype)
            yield (torch.where(torch.rand(shape, generator=draw.torch) < 0.5, x, torch.zeros((), dtype=dtype)),), {}


@generator
def isin(draw, options):
    for dtype in (torch.int64, torch.int32, torch.float32):
        for invert in (False, True):
            x = integers(draw, (4, 5), 0, 9).to(dtype)
            yield (x, integers(draw, (3,), 0, 9).to(dtype)), {"invert": invert}
            yield (x, integers(draw, (90,), 0, 9).to(dtype)), {"invert": invert}


@generator
def isin_scalar(draw, options):
    for invert in (False, True):
        yield (integers(draw, (4, 5), 0, 9), 3), {"invert": invert}
        yield (integers(draw, (4, 5), 0, 9).float(), 3.0), {"invert": invert}


@generator
def scalar_isin(draw, options):
    yield (3, integers(draw, (20,), 0, 9)), {}
    yield (3, torch.tensor([1, 2])), {}
    yield (3, torch.tensor([1, 3])), {"invert": True}


@generator
def searchsorted(draw, options):
    for dtype in (torch.float32, torch.int64, torch.bfloat16):
        for right in (False, True):
            rows = draw.tensor((3, 9), dtype, Options("x tame")).sort(-1).values
            yield (rows, draw.tensor((3, 4), dtype, Options("x tame"))), {"right": right}
            yield (rows[0], draw.tensor((2, 4), dtype, Options("x tame"))), {"side": "right" if right else "left"}


@generator
def bucketize(draw, options):
    for right in (False, True):
        for dtype in (torch.float32, torch.bfloat16):
            yield (draw.tensor((3, 4), dtype), torch.tensor([-1.0, 0.0, 0.5, 2.0], dtype=dtype)), {"right": right}


@generator
def index_add(draw, options):
    for dtype in ADDED:
        for dim in (0, 1, -1):
            for alpha in (1, 2):
                size = (4, 3, 5)[dim]
                shape = [4, 3, 5]
                shape[dim] = 7
                yield ((draw.tensor((4, 3, 5), dtype, TAME), dim, integers(draw, (7,), 0, size), draw.tensor(shape, dtype, TAME)), {"alpha": alpha})
        yield (draw.tensor((6,), dtype, TAME), 0, integers(draw, (9,), 0, 6), draw.tensor((9,), dtype, TAME)), {}


@generator
def index_copy(draw, options):
    for dtype in EVERY:
        yield (draw.tensor((5, 3), dtype), 0, torch.randperm(5, generator=draw.torch)[:4], draw.tensor((4, 3), dtype)), {}
        yield (draw.tensor((3, 5), dtype), 1, torch.randperm(5, generator=draw.torch)[:4], draw.tensor((3, 4), dtype)), {}


@generator
def index_fill(draw, options):
    for dtype in FLOATS + [torch.int64]:
        yield (draw.tensor((5, 3), dtype), 0, integers(draw, (2,), 0, 5), 3), {}
        yield (draw.tensor((3, 5), dtype), -1, integers(draw, (2,), 0, 5), 3), {}


@generator
def scatter_src(draw, options):
    for dtype in EVERY:
        for dim in (0, 1, -1):
            index = one_index_per_element(draw, (2, 3, 4), dim % 3, (4, 3, 5)[dim])
            yield (draw.tensor((4, 3, 5), dtype), dim, index, draw.tensor((4, 3, 4), dtype)), {}


@generator
def scatter_value(draw, options):
    for dtype in EVERY:
        yield (draw.tensor((4, 3, 5), dtype), 1, integers(draw, (2, 2, 4), 0, 3), 1), {}


@generator
def scatter_add(draw, options):
    for dtype in ADDED:
        for dim in (0, 1, -1):
            yield ((draw.tensor((4, 3, 5), dtype, TAME), dim, integers(draw, (4, 6, 5), 0, 3), draw.tensor((4, 6, 5), dtype, TAME)), {})
        rows = integers(draw, (9, 1), 0, 4).expand(9, 6)
        yield (draw.tensor((4, 6), dtype, TAME), 0, rows, draw.tensor((9, 6), dtype, TAME)), {}


@generator
def scatter_reduce(draw, options):
    for dtype in ADDED:
        for how in ("add", "multiply"):
            yield ((draw.tensor((4, 5), dtype, TAME), 1, integers(draw, (4, 6), 0, 5), draw.tensor((4, 6), dtype, TAME)), {"reduce": how})


@generator
def scatter_value_reduce(draw, options):
    for dtype in ADDED:
        for how in ("add", "multiply"):
            yield (draw.tensor((4, 5), dtype, TAME), 1, integers(draw, (4, 6), 0, 5), 3), {"reduce": how}


@generator
def scatter_reduce_two(draw, options):
    for dtype in ADDED:
        for how in ("sum", "prod", "mean", "amax", "amin"):
            for include in (True, False):
                yield (
                    (draw.tensor((4, 5), dtype, TAME), 1, integers(draw, (4, 6), 0, 5), draw.tensor((4, 6), dtype, TAME), how),
                    {"include_self": include},
                )


@generator
def put(draw, options):
    for dtype in ADDED:
        yield (draw.tensor((4, 5), dtype, TAME), integers(draw, (9,), -20, 20), draw.tensor((9,), dtype, TAME), True), {}


@generator
def bincount(draw, options):
    yield (integers(draw, (50,), 0, 9),), {}
    yield (integers(draw, (50,), 0, 9),), {"minlength": 12}
    for dtype in (torch.float32, torch.float64):
        yield (integers(draw, (50,), 0, 9), draw.tensor((50,), dtype, TAME)), {}


def rows_with_ties(draw, shape, dtype):
    x = draw.tensor(shape, dtype)
    if dtype.is_floating_point and draw.random.random() < 0.6:
        x = (x * 2).round() / 2
    return x


@generator
def sort(draw, options):
    for dtype in FLOATS + INTEGERS:
        for descending in (False, True):
            for shape, dim in (((7,), 0), ((5, 40), -1), ((40, 3), 0), ((2, 3, 4), 1), ((), -1), ((0, 3), 0)):
                yield (rows_with_ties(draw, shape, dtype), dim, descending), {}


@generator
def sort_stable(draw, options):
    for (x, dim, descending), _ in sort(draw, options):
        yield (x,), {"stable": draw.random.random() < 0.5, "dim": dim, "descending": descending}


@generator
def topk(draw, options):
    """k * 64 <= n takes torch's partial sort, the others its selection; ties everywhere."""
    for dtype in FLOATS + [torch.int64, torch.int32]:
        for largest in (True, False):
            for shape, k, dim in (
                ((5, 8), 2, -1),
                ((5, 60), 4, -1),
                ((3, 300), 4, -1),
                ((3, 300), 50, -1),
                ((40, 3), 7, 0),
                ((8,), 8, 0),
                ((4, 20), 1, 1),
            ):
                yield (rows_with_ties(draw, shape, dtype), k, dim, largest, True), {}


@generator
def cat(draw, options):
    for dtype in EVERY:
        for dim in (0, 1, -1):
            parts = []
            for n in (2, 0, 3):
                shape = [4, 3, 5]
                shape[dim] = n
                parts.append(draw.tensor(shape, dtype))
            yield (parts, dim), {}
        yield ([torch.empty(0, dtype=dtype), draw.tensor((3, 2), dtype)], 1), {}
    yield ([draw.tensor((3,), torch.float32), draw.tensor((2,), torch.bfloat16)], 0), {}
    yield ([draw.tensor((3,), torch.float32), draw.tensor((2,), torch.int64)], 0), {}


@generator
def stack(draw, options):
    for dtype in EVERY:
        for dim in (0, 1, -1):
            yield ([draw.tensor((4, 3), dtype) for _ in range(3)], dim), {}
        yield ([draw.tensor((), dtype) for _ in range(3)], 0), {}


@generator
def constant_pad_nd(draw, options):
    for dtype in EVERY:
        for pad in ([1, 2], [0, -1], [1, 0, 2, 1], [-1, 2, 0, 0], [0, 0, 0, 0, 1, 0]):
            yield (draw.tensor((2, 3, 4), dtype), pad, 1), {}


@generator
def triangle(draw, options):
    for dtype in EVERY:
        for shape in ((4, 4), (3, 5), (2, 5, 3), (0, 3)):
            for diagonal in (0, 1, -2, 7, -9):
                yield (draw.tensor(shape, dtype), diagonal), {}


@generator
def flip(draw, options):
    for dtype in EVERY:
        for dims in ([0], [1, 2], [-1], [0, 1, 2], []):
            yield (draw.tensor((2, 3, 4), dtype), dims), {}


@generator
def repeat(draw, options):
    for dtype in EVERY:
        for times in ([2, 3], [2, 1, 3], [1, 1], [0, 2]):
            yield (draw.tensor((3, 4), dtype), times), {}


@generator
def roll(draw, options):
    for dtype in EVERY:
        for shifts, dims in (([2], [0]), ([-1, 5], [1, 2]), ([3], []), ([0], [1])):
            yield (draw.tensor((2, 3, 4), dtype), shifts, dims), {}


@generator
def repeat_interleave(draw, options):
    for dtype in (torch.int64, torch.int32):
        yield (integers(draw, (6,), 0, 4, dtype),), {}
        yield (torch.zeros(3, dtype=dtype),), {}


@generator
def slice_backward(draw, options):
    for dtype in FLOATS:
        yield (draw.tensor((2, 3, 4), dtype), [2, 9, 4], 1, 2, 5, 1), {}
        yield (draw.tensor((2, 3, 4), dtype), [2, 9, 4], 1, 1, 9223372036854775807, 3), {}
        yield (draw.tensor((2, 9, 3), dtype), [2, 9, 4], -1, 0, -1, 1), {}


@generator
def select_backward(draw, options):
    for dtype in FLOATS:
        yield (draw.tensor((2, 4), dtype), [2, 9, 4], 1, 2), {}
        yield (draw.tensor((2, 9), dtype), [2, 9, 4], -1, -1), {}
        yield (draw.tensor((), dtype), [5], 0, 3), {}


@generator
def diagonal_backward(draw, options):
    for dtype in FLOATS:
        yield (draw.tensor((3,), dtype), [3, 4], 1, 0, 1), {}
        yield (draw.tensor((2, 3), dtype), [3, 2, 5], -1, 2, 0), {}


@generator
def diag_embed(draw, options):
    for dtype in EVERY:
        yield (draw.tensor((3,), dtype),), {}
        yield (draw.tensor((2, 3), dtype), 1), {}
        yield (draw.tensor((2, 4), dtype), -1, 0, 2), {}


@generator
def diagonal_copy(draw, options):
    for dtype in EVERY:
        yield (draw.tensor((3, 4), dtype),), {}
        yield (draw.tensor((2, 3, 5), dtype), 1, -1, 0), {}


@generator
def slice_scatter(draw, options):
    for dtype in EVERY:
        yield (draw.tensor((5, 4), dtype), draw.tensor((2, 4), dtype)), {"dim": 0, "start": 1, "end": 3}
        yield (draw.tensor((5, 4), dtype), draw.tensor((5, 2), dtype)), {"dim": 1, "start": 0, "step": 2}


@generator
def select_scatter(draw, options):
    for dtype in EVERY:
        yield (draw.tensor((5, 4), dtype), draw.tensor((4,), dtype), 0, -2), {}
        yield (draw.tensor((5, 4), dtype), draw.tensor((5,), dtype), 1, 3), {}


@generator
def diagonal_scatter(draw, options):
    for dtype in EVERY:
        yield (draw.tensor((5, 4), dtype), draw.tensor((3,), dtype)), {"offset": 1}


@generator
def unfold_backward(draw, options):
    for dtype in FLOATS:
        yield (draw.tensor((2, 4, 3), dtype, TAME), [2, 6], 1, 3, 1), {}
        yield (draw.tensor((3, 4, 2), dtype, TAME), [7, 4], 0, 2, 2), {}


def bags(draw):
    """(table, indices, offsets, mode, weights, include_last_offset, padding_idx)"""
    for dtype in FLOATS:
        for mode in (0, 1, 2):
            for padding in (-1, 2):
                last = draw.choice([False, True])
                offsets = torch.tensor([0, 4, 4, 9] + ([12] if last else []))
                weights = draw.tensor((12,), dtype, TAME).contiguous() if mode == 0 and draw.random.random() < 0.5 else None
                yield draw.dense((11, 6), dtype), integers(draw, (12,), 0, 11), offsets, mode, weights, last, padding


@generator
def embedding_bag(draw, options):
    for table, index, offsets, mode, weights, last, padding in bags(draw):
        args = (table, index, offsets, False, mode, False, weights, last, padding)
        if not {"backward", "weights"} & set(options):
            yield args, {}
            continue
        try:
            y, bag_of, sizes, chosen = torch.ops.aten._embedding_bag(*args)
        except RuntimeError:
            continue
        g = draw.dense(tuple(y.shape), y.dtype, 1.0)
        if "weights" in options:
            if mode == 0:
                yield (g, table, index, offsets, bag_of, mode, padding), {}
        elif "dense" in options:
            if mode == 2 or bag_of.numel():
                yield (g, index, bag_of, sizes, chosen, 11, False, mode, weights, padding), {}
        elif not last:
            yield (g, index, offsets, bag_of, sizes, chosen, 11, False, mode, False, weights, padding), {}


@generator
def embedding_renorm(draw, options):
    for dtype in FLOATS:
        for most, p in ((1.0, 2.0), (2.0, 2.0), (3.0, 1.0)):
            yield (draw.dense((7, 5), dtype, 1.0), integers(draw, (6,), 0, 7), most, p), {}


@generator
def one_hot(draw, options):
    for shape in ((5,), (2, 3), ()):
        yield (integers(draw, shape, 0, 7), 7), {}
        yield (integers(draw, shape, 0, 7), -1), {}


@generator
def reshape(draw, options):
    for dtype in EVERY:
        for shape, other in (((4, 6), (3, 8)), ((2, 3, 4), (24,)), ((12,), (3, 4)), ((), (1, 1)), ((0, 3), (3, 0))):
            x = draw.tensor(shape, dtype)
            for t in (x, x.transpose(0, -1).contiguous().transpose(0, -1) if x.dim() > 1 else x):
                yield (t, torch.empty(other) if "as" in options else list(other)), {}


@generator
def contiguous(draw, options):
    for dtype in EVERY:
        for shape in ((4, 6), (2, 3, 4, 5), (), (0, 3)):
            x = draw.tensor(shape, dtype)
            yield (x,), {}
            if len(shape) == 4 and "plain" not in options:
                yield (x,), {"memory_format": torch.channels_last}


@generator
def flatten(draw, options):
    for dtype in EVERY:
        for start, end in ((0, -1), (1, 2), (0, 1)):
            x = draw.tensor((2, 3, 4), dtype)
            yield (x, start, end), {}
            yield (x.permute(2, 1, 0), start, end), {}


@generator
def to(draw, options):
    """As `_to_copy`, in the spellings of `Tensor.to`."""
    for source in EVERY:
        for target in EVERY:
            x = draw.tensor(draw.shape(), source, TAME)
            if "dtype" in options:
                yield (x, target), {"copy": draw.choice([True, False])}
            elif "device" in options:
                yield (x, torch.device("cpu"), target), {}
            elif "layout" in options:
                yield (x,), {"dtype": target}
            else:
                yield (x, torch.empty(0, dtype=target)), {}
