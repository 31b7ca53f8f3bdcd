"""Inputs of matrix products."""

import torch
from op_samples import FLOATS, Options, generator

TAME = Options("x tame")
SIZES = [(4, 5, 6), (1, 1, 1), (33, 70, 65), (3, 130, 9), (17, 3, 100), (0, 4, 5), (4, 0, 5), (128, 64, 32)]


def tame(draw, shape, dtype):
    return draw.tensor(shape, dtype, TAME, 1.0)


@generator
def mm(draw, options):
    yield from typed(draw, mm_samples(draw, options)) if "typed" in options else mm_samples(draw, options)


def mm_samples(draw, options):
    for dtype in FLOATS:
        for m, k, n in SIZES:
            yield (tame(draw, (m, k), dtype), tame(draw, (k, n), dtype)), {}
        special = tame(draw, (5, 6), dtype).contiguous()
        special[0, 1], special[1, 2], special[2, 3], special[2, 4] = float("inf"), float("nan"), float("-inf"), float("inf")
        yield (special, tame(draw, (6, 4), dtype)), {}


@generator
def bmm(draw, options):
    yield from typed(draw, bmm_samples(draw, options)) if "typed" in options else bmm_samples(draw, options)


def bmm_samples(draw, options):
    for dtype in FLOATS:
        for m, k, n in SIZES[:5]:
            yield (tame(draw, (3, m, k), dtype), tame(draw, (3, k, n), dtype)), {}
        yield (tame(draw, (1, 4, 5), dtype).expand(3, 4, 5), tame(draw, (3, 5, 6), dtype)), {}


def typed(draw, samples):
    """The same of 16-bit factors with a result in f32, to which self is added in f32 or as it is."""
    for args, kwargs in samples:
        if args[-1].dtype in (torch.bfloat16, torch.float16):
            first = [draw.choice([args[0], args[0].float()])] if len(args) == 3 else []
            yield (*first, *args[-2:]), {"out_dtype": torch.float32, **kwargs}


def blends(draw):
    return draw.choice([{}, {"beta": 0.5, "alpha": 2}, {"beta": 0, "alpha": -1.5}, {"alpha": 0.1}])


@generator
def addmm(draw, options):
    yield from typed(draw, addmm_samples(draw, options)) if "typed" in options else addmm_samples(draw, options)


def addmm_samples(draw, options):
    for dtype in FLOATS:
        for m, k, n in SIZES:
            for shape in ((m, n), (n,), (1, n), (m, 1), ()):
                if "activation" not in options:
                    yield (tame(draw, shape, dtype), tame(draw, (m, k), dtype), tame(draw, (k, n), dtype)), blends(draw)
                elif shape == (n,):
                    yield (tame(draw, shape, dtype), tame(draw, (m, k), dtype), tame(draw, (k, n), dtype)), {"use_gelu": False}


@generator
def baddbmm(draw, options):
    yield from typed(draw, baddbmm_samples(draw, options)) if "typed" in options else baddbmm_samples(draw, options)


def baddbmm_samples(draw, options):
    for dtype in FLOATS:
        for m, k, n in SIZES[:4]:
            for shape in ((2, m, n), (1, n), (2, m, 1)):
                yield (tame(draw, shape, dtype), tame(draw, (2, m, k), dtype), tame(draw, (2, k, n), dtype)), blends(draw)


@generator
def addbmm(draw, options):
    for dtype in FLOATS:
        for m, k, n in SIZES[:4]:
            yield (tame(draw, (m, n), dtype), tame(draw, (3, m, k), dtype), tame(draw, (3, k, n), dtype)), blends(draw)


@generator
def addmv(draw, options):
    for dtype in FLOATS:
        for m, k, _ in SIZES:
            yield (tame(draw, (m,), dtype), tame(draw, (m, k), dtype), tame(draw, (k,), dtype)), blends(draw)


@generator
def mv(draw, options):
    for dtype in FLOATS:
        for m, k, _ in SIZES:
            yield (tame(draw, (m, k), dtype), tame(draw, (k,), dtype)), {}


@generator
def dot(draw, options):
    for dtype in FLOATS:
        for n in (1, 7, 300):
            yield (tame(draw, (n,), dtype), tame(draw, (n,), dtype)), {}


@generator
def matmul(draw, options):
    for dtype in FLOATS:
        for a, b in (
            ((4, 5), (5, 6)),
            ((5,), (5, 6)),
            ((4, 5), (5,)),
            ((5,), (5,)),
            ((2, 3, 4, 5), (5, 6)),
            ((2, 1, 4, 5), (3, 5, 6)),
            ((3, 4, 5), (5,)),
            ((5,), (2, 5, 6)),
        ):
            yield (tame(draw, a, dtype), tame(draw, b, dtype)), {}


@generator
def linear(draw, options):
    for dtype in FLOATS:
        for shape in ((4, 5), (2, 3, 5), (5,)):
            yield (tame(draw, shape, dtype), tame(draw, (6, 5), dtype), tame(draw, (6,), dtype)), {}
            yield (tame(draw, shape, dtype), tame(draw, (6, 5), dtype)), {}


@generator
def int_mm(draw, options):
    for m, k, n in ((32, 64, 16), (17, 8, 8), (33, 1024, 24)):
        a, b = (torch.randint(-128, 128, shape, generator=draw.torch).to(torch.int8) for shape in ((m, k), (n, k)))
        yield (a, b.t()), {}
        yield (a, b.t().contiguous()), {}


@generator
def int8_weights(draw, options):
    for dtype in FLOATS[:3]:
        for m, k, n in ((1, 32, 16), (17, 64, 32), (5, 1024, 24)):
            weight = torch.randint(-128, 128, (n, k), generator=draw.torch).to(torch.int8)
            yield (draw.dense((m, k), dtype, 1.0), weight, (draw.dense((n,), torch.float32, 0.01)).to(dtype)), {}


@generator
def grouped_mm(draw, options):
    """Strides must be multiples of 16 bytes."""
    offsets = torch.tensor([4, 4, 9, 16], dtype=torch.int32)
    for dtype in (torch.bfloat16, torch.float32, torch.float16):
        x = lambda *shape: draw.dense(shape, dtype, 1.0)  # noqa: E731
        yield (x(16, 32), x(4, 32, 24), offsets), {}
        yield (x(16, 32), x(4, 24, 32).transpose(1, 2), offsets), {}
        yield (x(24, 16), x(16, 32), offsets), {}
        yield (x(16, 24).t(), x(16, 32), offsets), {}
        yield (x(4, 8, 32), x(32, 16), offsets), {}
        yield (x(4, 8, 32), x(4, 32, 16)), {}


@generator
def scaled_mm(draw, options):
    for out in (torch.float32, torch.bfloat16):
        a = draw.dense((16, 32), torch.float32, 1.0).to(torch.float8_e4m3fn)
        b = draw.dense((48, 32), torch.float32, 1.0).to(torch.float8_e4m3fn).t()
        yield (a, b, torch.tensor(0.37), torch.tensor(1.9)), {"out_dtype": out}
        yield ((a, b, torch.tensor(0.37), torch.tensor(1.9)), {"out_dtype": out, "bias": draw.dense((48,), torch.float32, 1.0).to(out)})
        yield (a, b, torch.rand(16, 1, generator=draw.torch), torch.rand(1, 48, generator=draw.torch)), {"out_dtype": out}


def up(n, to):
    return -(-n // to)


def eight(draw, *shape):
    return draw.dense(shape, torch.float32, 1.0).to(torch.float8_e4m3fn)


def powers(draw, n):
    """Scales of MX: bytes near that of 1."""
    return torch.randint(120, 132, (n,), generator=draw.torch).to(torch.uint8).view(torch.float8_e8m0fnu)


def block_scales(draw, rows, k, square):
    """As cuBLASLt wants them: (rows, blocks), or (blocks, rows / 128) with blocks rounded up to a multiple of 4, column by column."""
    shape = (up(up(k, 128), 4) * 4, up(rows, 128)) if square else (rows, up(k, 128))
    return (torch.rand(shape[::-1], generator=draw.torch) + 0.1).t()


@generator
def scaled_mm_v2(draw, options):
    """By tensor, by row, by blocks of 128, MX and NVFP4 in rows and in tiles."""
    one = lambda: torch.rand(1, generator=draw.torch) + 0.1  # noqa: E731
    for out in (torch.bfloat16, torch.float32):
        given = {"out_dtype": out, "use_fast_accum": draw.choice([False, True])}
        a, b = eight(draw, 16, 64), eight(draw, 48, 64).t()
        bias = None if out == torch.float32 else draw.dense((48,), torch.float32, 1.0).to(torch.bfloat16)
        yield (a, b, [one()], [0], [0], [one()], [0], [0], bias), given
        rows = torch.rand(16, 1, generator=draw.torch), torch.rand(1, 48, generator=draw.torch)
        yield (a, b, [rows[0]], [1], [], [rows[1]], [1], [], None), given
        m, n, k = 144, 160, 272
        a, b = eight(draw, m, k), eight(draw, n, k).t()
        for left, right in ((4, 4), (4, 5), (5, 4)):
            scales = block_scales(draw, m, k, left == 5), block_scales(draw, n, k, right == 5)
            yield (a, b, [scales[0]], [left], [], [scales[1]], [right], [], None), given
        for tiled in (0, 1):
            count = lambda rows, columns: up(rows, 128) * 128 * up(columns, 4) * 4 if tiled else rows * columns  # noqa: B023, E731
            yield (a, b, [powers(draw, count(m, up(k, 32)))], [3], [tiled], [powers(draw, count(n, up(k, 32)))], [3], [tiled], None), given
            pairs = [torch.randint(0, 256, (rows, k // 2), generator=draw.torch).to(torch.uint8) for rows in (m, n)]
            four = [(torch.rand(count(rows, k // 16), generator=draw.torch) + 0.1).to(torch.float8_e4m3fn) for rows in (m, n)]
            yield (pairs[0], pairs[1].t(), [four[0], one()], [2, 0], [tiled, 0], [four[1], one()], [2, 0], [tiled, 0], None), given


@generator
def scaled_grouped_mm(draw, options):
    offsets, rand = torch.tensor([16, 16, 32, 48], dtype=torch.int32), lambda *shape: torch.rand(shape, generator=draw.torch) + 0.1
    wide = eight(draw, 4, 32, 64).transpose(1, 2)  # (groups, k, n)
    forms = [
        (eight(draw, 48, 64), wide, rand(48), rand(4, 32), offsets),
        (eight(draw, 4, 16, 64), wide, rand(4, 16), rand(4, 32), None),
        (eight(draw, 32, 48), eight(draw, 16, 48).t(), rand(4 * 32), rand(4 * 16), offsets),
        (eight(draw, 4, 16, 64), eight(draw, 48, 64).t(), rand(4, 16), rand(48), offsets),
    ]
    for a, b, sa, sb, offs in forms:
        for fast in (False, True):
            if "v2" in options:
                yield (a, b, [sa], [1], [0], [sb], [1], [0], offs), {"out_dtype": torch.bfloat16, "use_fast_accum": fast}
            else:
                yield (a, b, sa, sb, offs), {"out_dtype": torch.bfloat16, "use_fast_accum": fast}


@generator
def solve_triangular(draw, options):
    for dtype in (torch.float32, torch.float64):
        for batch in ((), (3,), (2, 1)):
            for upper in (False, True):
                for left in (False, True):
                    for unit in (False, True):
                        a = draw.dense((*batch, 7, 7), dtype, 0.5) + 2 * torch.eye(7, dtype=dtype)
                        a = a.triu() if upper else a.tril()
                        b = draw.dense((*batch[:1], 7, 4) if left else (*batch[:1], 4, 7), dtype, 1.0)
                        yield (a, b), {"upper": upper, "left": left, "unitriangular": unit}


@generator
def trilinear(draw, options):
    """nn.Bilinear, and the gradients of its three tensors."""
    for dtype in (torch.float32, torch.float64):
        for rows, one, two, out in ((7, 5, 3, 4), (1, 1, 6, 2), (20, 33, 9, 1)):
            x, w, z, dy = (draw.dense(shape, dtype, 1.0) for shape in ((rows, one), (out, one, two), (rows, two), (rows, out)))
            yield (x, w, z, [1, 3], [0], [1, 2], [2, 3], 1), {}
            yield (dy, w, z, [2, 3], [0], [1, 2], [1, 3], 1), {}
            yield (x, dy, z, [1, 3], [2, 3], [1, 2], [0], 1), {}
            yield (x, w, dy, [1, 3], [0], [2, 3], [1, 2], 1), {}
