"""Optimizers that factorise matrices (SOAP, Shampoo): recorded results stand in, or PyTorch's own, and are judged by what they promise."""

import ctypes as C
import sys

import op_harness as H
import pytest
import torch

TORCH = ("--backend", "torch", "--backend-python", sys.executable)
PROGRAM = "tests/programs/second_order.py"
FACTORS = {
    "soap": {"aten::linalg_qr": 12, "aten::_linalg_eigh": 4},
    "shampoo": {"aten::_linalg_eigh": 12},
    "whitened": {
        "aten::_linalg_svd": 6,
        "aten::linalg_cholesky_ex": 6,
        "aten::cholesky_solve": 6,
        "aten::linalg_inv_ex": 6,
        "aten::_linalg_solve_ex": 6,
        "aten::_linalg_eigh": 6,
    },
}


def recorded(lastbit, tmp_path, optimizer, *arguments):
    capture = tmp_path / f"{'_'.join(['run', *arguments[1:]]).replace(':', '_')}.lb"
    lastbit.record(capture, PROGRAM, "--optimizer", optimizer, *arguments, options=("--level", "ops"), expect=0)
    return capture


@pytest.mark.parametrize("optimizer", FACTORS)
def test_optimizers_that_factorise_replay_as_recorded_and_by_torch(lastbit, tmp_path, optimizer):
    capture = recorded(lastbit, tmp_path, optimizer)
    for mode in ("isolated", "chained"):
        answer = lastbit.json("replay", capture, "--mode", mode, "--coverage", expect=0)
        assert {row["op"]: row["count"] for row in answer["opaque_ops"]} == FACTORS[optimizer]
        assert all("right for its inputs" in row["why"] for row in answer["opaque_ops"]), answer["opaque_ops"]
        assert answer["verdicts"]["diverged"] == answer["verdicts"]["missing"] == 0
        torch_too = lastbit.json("replay", capture, "--mode", mode, *TORCH, expect=0)
        assert torch_too["ops"]["opaque"] == 0 and torch_too["verdicts"]["diverged"] == 0


@pytest.mark.parametrize(
    "optimizer, op",
    [
        ("soap", "linalg_qr"),
        *(pytest.param(*p, marks=pytest.mark.full) for p in (("soap", "_linalg_eigh"), ("shampoo", "_linalg_eigh"), ("whitened", "_linalg_svd"))),
    ],
)
def test_another_legal_factorisation_is_innocent_and_a_wrong_one_diverges(lastbit, tmp_path, optimizer, op):
    capture = recorded(lastbit, tmp_path, optimizer, "--fault", f"{op}:signs")
    for backend in ((), TORCH):  # which has other signs
        answer = lastbit.json("replay", capture, *backend, expect=0)
        assert answer["verdicts"]["diverged"] == 0, answer["worst"]
    capture = recorded(lastbit, tmp_path, optimizer, "--fault", f"{op}:wrong")
    for backend in ((), TORCH):
        answer = lastbit.json("replay", capture, "--worst", 100, *backend, expect=1)
        diverged = [one for one in answer["worst"] if one["verdict"] == "diverged"]
        assert {one["op"] for one in diverged} == {f"aten::{op}"} and all(one["bound_ratio"] > 1 for one in diverged), diverged
        assert len(diverged) == FACTORS[optimizer][f"aten::{op}"]


# ---- the residuals by themselves ---------------------------------------------------------------------------------------------


def ratio(op, args, results):
    operands = H.Operands(args)
    mirrors = (H.Tensor * len(results))(*[H.tensor(r) for r in results])
    H.LIB.harness_factorisation.restype = C.c_double
    return H.LIB.harness_factorisation(f"aten::{op}".encode(), operands.array, operands.count, mirrors, len(results))


def matrices(kind, dtype):
    generator = torch.Generator().manual_seed(1)
    a = torch.randn(3, 9, 9, generator=generator, dtype=torch.float64)
    gram = a @ a.mT
    if kind == "degenerate":  # equal eigenvalues: any basis of their space is legal
        q = torch.linalg.qr(a)[0]
        gram = q * torch.tensor([1.0, 1, 1, 2, 2, 3, 3, 3, 3], dtype=torch.float64) @ q.mT
    if kind == "ill":
        q = torch.linalg.qr(a)[0]
        gram = q * torch.logspace(0, -6, 9, dtype=torch.float64) @ q.mT
    gram = (gram + gram.mT) / 2
    return gram.to(dtype)


CALLS = {
    "linalg_qr": ("reduced",),
    "_linalg_eigh": ("L", True),
    "_linalg_svd": (False, True, None),
    "linalg_cholesky_ex": (False, False),
    "linalg_inv_ex": (False,),
    "linalg_lu_factor_ex": (True, False),
    "_linalg_solve_ex": None,
    "cholesky_inverse": None,
    "cholesky_solve": None,
}


def call(op, a):
    if op == "_linalg_solve_ex":
        args = [a, a[:, :, :4].contiguous() + 1, True, False]
    elif op == "cholesky_inverse":
        args = [torch.linalg.cholesky(a), False]
    elif op == "cholesky_solve":
        args = [a[:, :, :4].contiguous() + 1, torch.linalg.cholesky(a), False]
    else:
        args = [a, *CALLS[op]]
    function = H.torch_op(f"aten::{op}")
    keywords = {p.name: v for p, v in zip(function._schema.arguments, args) if p.kwarg_only}
    results = function(*args[: len(args) - len(keywords)], **keywords)
    return args, [r.clone(memory_format=torch.contiguous_format) for r in (results if isinstance(results, tuple) else (results,))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["plain", "degenerate", "ill"])
@pytest.mark.parametrize("op", CALLS)
def test_residuals_are_small_for_what_torch_gives_and_large_for_what_was_changed(op, kind, dtype):
    args, results = call(op, matrices(kind, dtype))
    assert 0 <= ratio(op, args, results) <= 1, "torch's own result"
    for k, r in enumerate(results):
        if not r.dtype.is_floating_point or op in ("_linalg_solve_ex",) and k:  # its LU is another op's business
            continue
        wrong = [x.clone() for x in results]
        largest = 0 if "lu" in op else wrong[k].flatten().abs().argmax()  # multipliers of small columns may be large
        wrong[k].view(-1)[largest] *= 1.01
        assert ratio(op, args, wrong) > 1, f"result {k}, its largest number off by one part in 100"


def test_signs_and_bases_of_equal_eigenvalues_are_free():
    a = matrices("degenerate", torch.float32)
    args, (values, vectors) = call("_linalg_eigh", a)
    turn = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(2)))[0]
    vectors[:, :, :3] = vectors[:, :, :3] @ turn
    vectors[:, :, 4] *= -1
    assert ratio("_linalg_eigh", args, [values, vectors]) <= 1
    vectors[:, :, 2:4] = vectors[:, :, 2:4] @ torch.linalg.qr(torch.randn(2, 2, generator=torch.Generator().manual_seed(3)))[0]
    assert ratio("_linalg_eigh", args, [values, vectors]) > 1, "values 1 and 2 were mixed"


@pytest.mark.parametrize("shape", [(7, 4), (4, 7), (2, 5, 5)])
def test_other_shapes_and_modes(shape):
    a = torch.randn(shape, generator=torch.Generator().manual_seed(4))
    for mode in ("reduced", "complete", "r"):
        results = [r.clone(memory_format=torch.contiguous_format) for r in torch.ops.aten.linalg_qr(a, mode)]
        assert 0 <= ratio("linalg_qr", [a, mode], results) <= 1
        results[1].view(-1)[0] *= 1.01
        assert ratio("linalg_qr", [a, mode], results) > 1
    for full in (False, True):
        for vectors in (False, True):
            results = [r.clone(memory_format=torch.contiguous_format) for r in torch.ops.aten._linalg_svd(a, full, vectors)]
            assert 0 <= ratio("_linalg_svd", [a, full, vectors, None], results) <= 1
            results[1].view(-1)[0] *= 1.01
            assert ratio("_linalg_svd", [a, full, vectors, None], results) > 1


def test_what_cannot_be_judged_is_not():
    a = matrices("plain", torch.float32)
    args, results = call("linalg_qr", a)
    nan = [a.clone().fill_(float("nan")), *args[1:]]
    assert ratio("aten::mm", args, results) != ratio("aten::mm", args, results)
    assert not ratio("linalg_qr", nan, [r.fill_(float("nan")) for r in results]) >= 0
    singular = torch.zeros(3, 3)
    inverse, info = torch.ops.aten.linalg_inv_ex(singular)
    assert info.item() and not ratio("linalg_inv_ex", [singular, False], [inverse, info]) >= 0
