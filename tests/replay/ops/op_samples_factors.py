"""Matrices to factorise: plain ones, with equal eigenvalues, nearly singular, of less than full rank; and calls of the rows that take them."""

import torch
from op_samples import generator


def orthogonal(n, draw):
    return torch.linalg.qr(torch.randn(2, n, n, generator=draw, dtype=torch.float64))[0]


def symmetric(kind, dtype, n=9, seed=1):
    """Two symmetric matrices, positive definite but for kind `low`."""
    draw = torch.Generator().manual_seed(seed)
    q = orthogonal(n, draw)
    if kind == "plain":
        a = torch.randn(2, n, n, generator=draw, dtype=torch.float64)
        gram = a @ a.mT
    else:
        values = {
            "degenerate": [1.0, 1, 1, 2, 2] + [3.0] * (n - 5),
            "ill": [10.0 ** (-6 * k / (n - 1)) for k in range(n)],
            "low": [1.0, 0.5, 0.25] + [0.0] * (n - 3),
        }[kind]
        gram = q * torch.tensor(values, dtype=torch.float64) @ q.mT
    return ((gram + gram.mT) / 2).to(dtype)


def rectangular(kind, dtype, m, n, seed=2):
    """`low`: of rank two."""
    draw = torch.Generator().manual_seed(seed)
    if kind == "low":
        a = torch.randn(2, m, 2, generator=draw, dtype=torch.float64) @ torch.randn(2, 2, n, generator=draw, dtype=torch.float64)
    else:
        a = torch.randn(2, m, n, generator=draw, dtype=torch.float64)
    return a.to(dtype)


def calls(what, kind, dtype):
    """Arguments in schema order."""
    a = symmetric(kind, dtype)
    b = rectangular("plain", dtype, 9, 4)
    if what == "qr":
        for m, n in ((9, 9), (7, 4), (4, 7)):
            for mode in ("reduced", "complete", "r"):
                yield [rectangular(kind, dtype, m, n), mode]
    elif what == "eigh":
        for side, vectors in (("L", True), ("U", True), ("L", False)):
            yield [a, side, vectors]
    elif what == "svd":
        for m, n in ((9, 9), (7, 4), (4, 7)):
            for full, vectors in ((False, True), (True, True), (False, False)):
                yield [rectangular(kind, dtype, m, n), full, vectors, None]
    elif what == "cholesky":
        yield from ([a, upper, False] for upper in (False, True))
    elif what in ("cholesky_solve", "cholesky_inverse"):
        for upper in (False, True):
            factor = torch.linalg.cholesky(a, upper=upper)
            yield [b, factor, upper] if what == "cholesky_solve" else [factor, upper]
    elif what == "triangular":
        for k in range(8):
            yield [b, (a + 3 * torch.eye(9, dtype=dtype)), bool(k & 1), bool(k & 2), bool(k & 4)]
    elif what == "lu":
        yield from ([rectangular(kind, dtype, m, n), True] for m, n in ((9, 9), (7, 4), (4, 7)))
    elif what == "pinv":
        for m, n in ((9, 9), (7, 4), (4, 7)):
            yield [rectangular("plain", dtype, m, n), None, None, False]
            yield [rectangular("plain", dtype, m, n), torch.tensor(0.0, dtype=dtype), torch.tensor(1e-6, dtype=dtype), False]
    elif what == "lu_solve":
        lu, pivots = torch.linalg.lu_factor(rectangular("plain", dtype, 9, 9))
        for left, adjoint in ((True, False), (True, True), (False, False), (False, True)):
            yield [lu, pivots, b if left else b.mT.contiguous(), left, adjoint]
    elif what == "solve":
        square = rectangular("plain", dtype, 9, 9)
        yield from (
            [s, right, left, False] for s in (square, square.mT) for right, left in ((b, True), (b.mT.contiguous(), False), (b[:, :, 0], True))
        )
    elif what == "unpack":
        yield [*torch.linalg.lu_factor(rectangular("plain", dtype, 7, 4)), True, True]
    else:  # of one matrix
        square = rectangular("plain", dtype, 9, 9)
        yield from ([square], [square.mT], [a])


@generator
def factors(draw, options):
    for dtype in (torch.float32, torch.float64):
        for args in calls(next(iter(options)), "plain", dtype):
            yield args, {}


@generator
def matrix_exp(draw, options):
    for dtype in (torch.float32, torch.float64):
        for shape, scale in (((3, 3), 0.01), ((2, 5, 5), 1.0), ((8, 8), 0.3), ((4, 4), 3.0), ((1, 1), 2.0)):
            a = draw.dense(shape, dtype, scale)
            yield (draw.layout(a),), {}
            yield (a - a.mT,), {}


@generator
def householder(draw, options):
    for dtype in (torch.float32, torch.float64):
        for m, n in ((6, 3), (5, 5), (7, 1)):
            a, tau = torch.geqrf(draw.dense((2, m, n), dtype, 1.0))
            yield (draw.layout(a), tau), {}
