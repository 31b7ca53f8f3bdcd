"""Ops on sparse tensors: torch's results are within the bound whatever order it adds up in, one number that is left out is not."""

import math

import op_harness as H
import op_samples
import pytest
import torch
from op_samples_sparse import COLUMNS, INNER, ROWS

NAMES = sorted(name for name, row in H.rows().items() if row.contents.text("samples").startswith("sparse "))
SHAPES = {1: (ROWS, INNER), 2: (ROWS, COLUMNS)}  # by the number of sparse dimensions


def calls(name):
    for seed in range(4):
        yield from (list(args) for args, _ in op_samples.samples(H.rows()[name].contents.text("samples"), seed))


def whole(value):
    """A tensor of its parts."""
    return torch.sparse_coo_tensor(*value, SHAPES[len(value[0])]) if isinstance(value, list) else value


def parts(result):
    return [result._indices(), result._values()] if result.is_sparse else [result]


def torchs(name, args):
    values = [whole(a) for a in args]
    base = name.partition("::")[2]
    if base == "sparse_mask":
        values[1] = values[1].coalesce()
    if base == "add.Tensor":
        return parts(torch.add(*values[:2], alpha=values[2]))
    if base == "_sparse_addmm":
        return parts(torch.sparse.addmm(*values[:3], beta=values[3], alpha=values[4]))
    return parts(torch.sparse.mm(*values) if base == "mm" else getattr(torch.ops.aten, base)(*values[: 1 if base == "clone" else None]))


@pytest.mark.parametrize("name", NAMES)
def test_results_of_torch_are_within_the_bound_and_wrong_ones_are_not(name):
    row, tried = H.rows()[name], 0
    for args in calls(name):
        try:
            theirs = [t.contiguous() for t in torchs(name, args)]
        except (RuntimeError, NotImplementedError):  # torch has no product of a sparse matrix in 16 bits
            continue
        ours = [torch.full_like(t, 3) for t in theirs]
        H.run(row, args, ours)
        exact, tried = H.is_exact(row, args, theirs), tried + 1
        for k, (mine, their) in enumerate(zip(ours, theirs)):
            if exact or not their.is_floating_point():
                assert torch.equal(mine, their), (name, k)
                continue
            assert float(H.ratios(row, args, theirs)[k].max()) <= 1 and float(H.ratios(row, args, ours)[k].max()) <= 1
            used = H.ratios(row, args, [their + 0.1 * their.abs().max() if j == k else t for j, t in enumerate(theirs)])[k]
            assert bool((used[~used.isnan()] > 1).all()), "all of it is off by a tenth"
    assert tried >= 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_order_of_a_sum_is_outside_the_bound_and_a_number_left_out_is(dtype):
    """The places of a gradient in any order, as threads and GPUs have it: numbers that nearly cancel, hundreds of them in one row."""
    row, draw = H.rows()["parts::add.Tensor"], torch.Generator().manual_seed(1)
    for n, scale in ((2, 1.0), (30, 1e-3), (400, 1e3)):
        dense = torch.randn(ROWS, INNER, generator=draw, dtype=dtype)
        numbers = scale * torch.randn(n, INNER, generator=draw, dtype=dtype)
        numbers[n // 2 :] -= numbers[: n - n // 2]
        indices = torch.randint(0, 2, (1, n), generator=draw)
        for _ in range(5):
            order, right = torch.randperm(n, generator=draw), dense.clone()
            for k in order:
                right[indices[0, k]] += -0.1 * numbers[k]
            args = [dense, [indices, numbers], -0.1]
            assert float(H.ratios(row, args, [right])[0].max()) <= 1
            for wrong in (right.index_add(0, indices[0, :1], 0.1 * numbers[:1]), right + 1e-3 * scale * (torch.arange(ROWS) == 5)[:, None]):
                assert float(H.ratios(row, args, [wrong])[0].max()) > 1


def test_what_is_no_plain_sparse_tensor_is_refused():
    """Compressed rows and compressed columns have the same parts: which they are nothing says."""
    row, dense = H.rows()["parts::mm"], torch.ones(5, 3)
    csr = torch.eye(5).to_sparse_csr()
    for parts_of in (
        [csr.crow_indices(), csr.col_indices(), csr.values()],
        [torch.tensor([[0, 9], [0, 1]]), torch.ones(2)],
        [torch.zeros(2, 1, dtype=torch.int64), torch.ones(1, dtype=torch.int64)],
    ):
        with pytest.raises(H.Unsupported):
            H.run(row, [parts_of, dense], [torch.empty(5, 3)])


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
def test_a_training_with_sparse_gradients_is_computed(lastbit, tmp_path, optimizer):
    program = "tests/programs/sparse_gradients.py"
    lastbit.record(tmp_path / "run.lb", program, "--optimizer", optimizer, options=("--level", "ops"), expect=0)
    for mode in ("isolated", "chained"):
        answer = lastbit.json("replay", tmp_path / "run.lb", "--mode", mode, expect=0)
        assert answer["ops"]["opaque"] == 0, answer["opaque_ops"]
        assert answer["verdict"] in ("identical", "rounding") and answer["verdicts"]["diverged"] == answer["verdicts"]["missing"] == 0
    lastbit.record(tmp_path / "wrong.lb", program, "--optimizer", optimizer, "--fault", options=("--level", "ops"), expect=0)
    answer = lastbit.json("replay", tmp_path / "wrong.lb", "--worst", 50, expect=(0, 1))
    diverged = [one for one in answer["worst"] if one["verdict"] == "diverged"]
    if optimizer == "sgd":  # the others add up what meets in one row before
        assert {one["op"] for one in diverged} == {"aten::add_.Tensor"} and all(
            one["bound_ratio"] > 1 or math.isinf(one["bound_ratio"]) for one in diverged
        )
