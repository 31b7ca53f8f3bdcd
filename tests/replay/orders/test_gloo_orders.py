"""The order of gloo judged by gloo: torch.distributed's backend gives, element for element, the bits of our ring, whole and in chunks.

The ranks are threads of this process: a ProcessGroupGloo each, which meet at a store.
"""

import datetime
import threading

import judged_mpi as J
import numpy as np
import pytest
import torch
import torch.distributed as dist
from conftest import FULL

RANKS = range(2, 9) if FULL else (2, 3, 5, 8)
# gloo cuts bytes into segments of 1 MiB at most, two a rank at least: 2 n elements, one more, and what takes more than two MiB-segments.
LARGE = (2 << 20) // 4 * 3 + 5
DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}
REDUCTIONS = {"sum": dist.ReduceOp.SUM, "prod": dist.ReduceOp.PRODUCT, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


def together(n, work):
    """work(rank, group) on n threads."""
    store, failures = dist.HashStore(), []

    def one(rank):
        try:
            group = dist.ProcessGroupGloo(store, rank, n, datetime.timedelta(seconds=60))
            work(rank, group)
        except Exception as e:
            failures.append(e)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def inputs(n, count, dtype, reduction):
    drawn = torch.Generator().manual_seed(1000 * n + count)
    x = torch.randn(n, count, generator=drawn, dtype=torch.float64)
    x = 1 + x / 16 if reduction == "prod" else x * 2.0 ** torch.randint(-12, 13, (n, count), generator=drawn)
    return [row.to(DTYPES[dtype]) for row in x]


def raw(x):
    return x.view(torch.int16).numpy().view(np.uint16) if x.dtype == torch.bfloat16 else x.numpy()


def same(got, order, reduction, dtype, given, home=0):
    ours = J.rank_sum(order, reduction, dtype, [raw(x) for x in given], home)
    return np.array_equal(J.bits(ours), J.bits(raw(got)))


CASES = [(dtype, "sum", count) for dtype in DTYPES for count in ("1", "2n-1", "2n", "2n+1", "1000")]
CASES += [("f32", "prod", "1000"), ("f64", "max", "2n+1"), ("bf16", "prod", "1000"), ("bf16", "min", "2n+1"), ("f32", "sum", "large")]


def number(count, n):
    named = {"2n-1": 2 * n - 1, "2n": 2 * n, "2n+1": 2 * n + 1, "large": LARGE}
    return named[count] if count in named else int(count)


@pytest.mark.parametrize("n", RANKS)
def test_gloo_gives_the_bits_of_our_ring(n):
    cases = [(dtype, reduction, number(count, n)) for dtype, reduction, count in CASES if count != "large" or n in (3, 8)]
    given = [inputs(n, count, dtype, reduction) for dtype, reduction, count in cases]
    reduced, rooted = [[None] * n for _ in cases], [None] * len(cases)

    def work(rank, group):
        for at, (_, reduction, _count) in enumerate(cases):
            whole, options = given[at][rank].clone(), dist.AllreduceOptions()
            options.reduceOp = REDUCTIONS[reduction]
            group.allreduce([whole], options).wait()
            reduced[at][rank] = whole
            part, options = given[at][rank].clone(), dist.ReduceOptions()
            options.reduceOp, options.rootRank = REDUCTIONS[reduction], at % n
            group.reduce([part], options).wait()
            if rank == at % n:
                rooted[at] = part

    together(n, work)
    for at, (dtype, reduction, count) in enumerate(cases):
        for rank in range(n):
            assert same(reduced[at][rank], "gloo", reduction, dtype, given[at]), (dtype, reduction, count, rank)
        assert same(rooted[at], "gloo", reduction, dtype, given[at], at % n + 1), (dtype, reduction, count, "reduce")
    others = [order for order in J.ORDERS if order != "gloo" and same(reduced[4][0], order, "sum", cases[4][0], given[4])]
    assert n < 4 or not others  # the bits tell gloo from every other order; two neighbours of three ranks are the same two either way round


@pytest.mark.parametrize("n", RANKS)
def test_reduce_scatter_of_a_list_reduces_each_tensor_by_itself(n):
    """… and of one tensor the whole, of which each rank keeps its block."""
    each = 37
    given = inputs(n, n * each, "f32", "sum")
    listed, based = [None] * n, [None] * n

    def work(rank, group):
        out = torch.empty(each)
        group.reduce_scatter([out], [list(given[rank].chunk(n))], dist.ReduceScatterOptions()).wait()
        listed[rank] = out
        out = torch.empty(each)
        group._reduce_scatter_base(out, given[rank], dist.ReduceScatterOptions()).wait()
        based[rank] = out

    together(n, work)
    whole = J.rank_sum("gloo", "sum", "f32", [raw(x) for x in given])
    for rank in range(n):
        mine = slice(rank * each, (rank + 1) * each)
        assert same(listed[rank], "gloo", "sum", "f32", [x[mine] for x in given]), rank
        assert np.array_equal(J.bits(whole[mine]), J.bits(raw(based[rank]))), rank
