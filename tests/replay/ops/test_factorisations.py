"""Factorisations of matrices: computed in the branch that was recorded, and judged by what they promise; optimizers that use them."""

import sys

import op_cases
import op_harness as H
import op_samples_factors
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
def test_optimizers_that_factorise_are_computed_here_and_by_torch(lastbit, tmp_path, optimizer):
    capture = recorded(lastbit, tmp_path, optimizer)
    for mode, backend in (("isolated", ()), ("chained", ()), ("isolated", TORCH)):
        answer = lastbit.json("replay", capture, "--mode", mode, "--coverage", *backend, expect=0)
        assert answer["ops"]["opaque"] == 0, answer["opaque_ops"]
        assert answer["verdicts"]["diverged"] == answer["verdicts"]["missing"] == answer["verdicts"]["opaque"] == 0


def test_a_change_before_a_factorisation_reaches_what_lies_behind_it(lastbit, tmp_path):
    """It ended there while recorded results stood in: the parameters of step 2 follow from the eigenvectors of step 1."""
    capture = recorded(lastbit, tmp_path, "shampoo")
    answer = lastbit.json("replay", capture, "--mode", "chained", "--precision", "op=addmm_=bf16", "--worst", 500, expect=0)
    factors = [row for row in answer["worst"] if row["op"] == "aten::_linalg_eigh"]
    assert len(factors) == 12 and all(row["verdict"] == "swapped" and row["max_abs"] > 0 for row in factors), factors


@pytest.mark.parametrize(
    "optimizer, op",
    [
        ("soap", "linalg_qr"),
        *(pytest.param(*p, marks=pytest.mark.full) for p in (("soap", "_linalg_eigh"), ("shampoo", "_linalg_eigh"), ("whitened", "_linalg_svd"))),
    ],
)
def test_another_legal_factorisation_is_innocent_and_a_wrong_one_diverges(lastbit, tmp_path, optimizer, op):
    plain = recorded(lastbit, tmp_path, optimizer)
    capture = recorded(lastbit, tmp_path, optimizer, "--fault", f"{op}:signs")
    for backend in ((), TORCH):  # which has other signs
        answer = lastbit.json("replay", capture, *backend, expect=0)
        assert answer["verdicts"]["diverged"] == 0, answer["worst"]
    assert lastbit.json("diff", plain, capture, expect=0)["verdict"] == "rounding"
    capture = recorded(lastbit, tmp_path, optimizer, "--fault", f"{op}:wrong")
    for backend in ((), TORCH):
        answer = lastbit.json("replay", capture, "--worst", 100, *backend, expect=1)
        diverged = [one for one in answer["worst"] if one["verdict"] == "diverged"]
        assert {one["op"] for one in diverged} == {f"aten::{op}"} and all(one["bound_ratio"] > 1 for one in diverged), diverged
        assert len(diverged) == FACTORS[optimizer][f"aten::{op}"]
    answer = lastbit.json("diff", plain, capture, expect=1)
    assert answer["verdict"] == "diverged" and answer["first"]["op"] == f"aten::{op}", answer["first"]


# ---- the residuals by themselves ---------------------------------------------------------------------------------------------


def ratio(op, args, results):
    return H.residual(f"aten::{op}", args, results)


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
    "linalg_pinv.atol_rtol_tensor": (None, None, False),
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
        if not r.dtype.is_floating_point:
            continue
        wrong = [x.clone() for x in results]
        largest = (
            0 if "lu" in op or op == "_linalg_solve_ex" and k else wrong[k].flatten().abs().argmax()
        )  # multipliers of small columns may be large
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


# ---- what rows compute -------------------------------------------------------------------------------------------------------------

FACTOR_ROWS = sorted(name for name, row in H.rows().items() if row.contents.text("samples").startswith("factors"))
KINDS = {"qr": ("plain", "low"), "eigh": ("plain", "degenerate", "ill", "low"), "svd": ("plain", "low"), "cholesky": ("plain", "ill")}


def row_calls(name, dtype):
    """(row, args in schema order, torch's results) of every sample of a row."""
    row = H.rows()[name]
    what = row.contents.text("samples").split()[1]
    op = H.torch_op(name)
    for kind in KINDS.get(what, ("plain",)):
        for args in op_samples_factors.calls(what, kind, dtype):
            args = args[: len(op._schema.arguments)] + [False] * (len(op._schema.arguments) - len(args))  # check_errors
            keywords = {p.name: v for p, v in zip(op._schema.arguments, args) if p.kwarg_only}
            results = op(*args[: len(args) - len(keywords)], **keywords)
            yield kind, row, args, [r.clone() for r in (results if isinstance(results, tuple) else (results,))]


def blanks(results, dtype=None):
    return [op_cases.blank_like(r, dtype if r.dtype.is_floating_point else None) for r in results]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FACTOR_ROWS)
def test_rows_give_torchs_branch_and_keep_what_they_promise(name, dtype):
    op = name.partition("::")[2]
    for kind, row, args, theirs in row_calls(name, dtype):
        ours = H.run_branch(row, args, blanks(theirs), theirs)
        if op != "lu_unpack":
            assert 0 <= ratio(op, args, theirs) <= 1 and 0 <= ratio(op, args, ours) <= 1, (kind, args[1:])
        near = 1e-2 if kind == "ill" else 1e-4
        for k, (a, b) in enumerate(zip(ours, theirs)):
            if a.dtype.is_floating_point:
                scale = max(1.0, float(b.double().abs().max())) if b.numel() else 1.0
                assert float((a.double() - b.double()).abs().max() if b.numel() else 0) <= near * scale, (kind, k, args[1:])
            else:
                assert torch.equal(a, b), (kind, k)


@pytest.mark.parametrize("name", ["aten::linalg_qr", "aten::_linalg_eigh", "aten::_linalg_svd"])
def test_another_branch_is_followed_and_without_one_the_result_is_legal(name):
    op = name.partition("::")[2]
    for kind, row, args, theirs in row_calls(name, torch.float32):
        alone = H.run_branch(row, args, blanks(theirs), [None] * len(theirs))
        assert 0 <= ratio(op, args, alone) <= 1, (kind, args[1:])
        other = [r.clone() for r in theirs]
        vectors = 1 if "eigh" in op else 0
        if other[vectors].numel() == 0:  # none were asked for
            continue
        columns = min(args[0].shape[-2:])
        other[vectors][..., :columns] *= -1
        if "eigh" not in op:
            other[-1][..., :columns, :] *= -1
        ours = H.run_branch(row, args, blanks(theirs), other)
        assert 0 <= ratio(op, args, ours) <= 1, (kind, args[1:])
        assert float((ours[vectors] - other[vectors]).abs().max()) <= (1e-2 if kind == "ill" else 1e-4), (kind, args[1:])


@pytest.mark.parametrize("name", ["aten::linalg_qr", "aten::_linalg_eigh", "aten::_linalg_svd"])
def test_exact_results_of_one_branch_hardly_move_with_the_numbers(name):
    """What two sides compute from inputs that f64 rounding keeps apart agrees, also where eigenvalues are equal or rank is missing."""
    for kind, row, args, theirs in row_calls(name, torch.float32):
        wide = args[0].double()
        noise = torch.randn(wide.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        noise = noise + noise.mT if "eigh" in name else noise
        exact = [H.run_branch(row, [x, *args[1:]], blanks(theirs, torch.float64), theirs) for x in (wide, wide * (1 + 2.0**-46 * noise))]
        for a, b in zip(*exact):
            assert a.numel() == 0 or float((a - b).abs().max()) <= 1e-6 * max(1.0, float(a.abs().max())), (kind, args[1:])


@pytest.mark.parametrize("name", FACTOR_ROWS)
def test_bits_of_a_row_do_not_depend_on_the_instruction_set(name):
    for _, row, args, theirs in row_calls(name, torch.float32):
        found = []
        for isa in range(H.best_isa() + 1):
            H.set_limits(isa=isa)
            found.append(H.run_branch(row, args, [torch.zeros_like(r) for r in theirs], theirs))
        H.set_limits()
        assert all(bool(op_cases.same_bits(a, b).all()) for other in found for a, b in zip(found[0], other))


def test_a_wrong_determinant_and_wrong_exchanges_are_found():
    a = op_samples_factors.rectangular("plain", torch.float32, 6, 6)
    det, lu, pivots = torch.ops.aten._linalg_det(a)
    assert ratio("_linalg_det", [a], [det, lu, pivots]) <= 1 < ratio("_linalg_det", [a], [-det, lu, pivots])
    assert ratio("_linalg_det", [a], [det * 1.01, lu, pivots]) > 1
    sign, log, lu, pivots = torch.ops.aten._linalg_slogdet(a)
    assert ratio("_linalg_slogdet", [a], [sign, log, lu, pivots]) <= 1 < ratio("_linalg_slogdet", [a], [sign, log + 0.01, lu, pivots])
    p, l, u = torch.ops.aten.linalg_lu(a)
    assert ratio("linalg_lu", [a, True], [p, l, u]) <= 1 < ratio("linalg_lu", [a, True], [p.flip(-1).contiguous(), l, u])


def test_a_matrix_that_shares_a_row_with_its_transpose_keeps_its_determinant():
    """The LU may be that of the transpose; the first row of U does not tell where a row is equal to its column."""
    a = torch.randn(5, 5, generator=torch.Generator().manual_seed(6))
    a[0] = a[:, 0] = torch.tensor([100.0, 1, 2, 3, 4])
    for x in (a, a.mT):
        for name in ("_linalg_det", "_linalg_slogdet"):
            results = list(H.torch_op(f"aten::{name}")(x))
            assert 0 <= ratio(name, [x], results) <= 1, name
            results[0] = -results[0]
            assert ratio(name, [x], results) > 1, name


def test_a_determinant_whose_factors_leave_the_range_on_the_way_is_not_judged_by_their_product():
    a = torch.diag(torch.tensor([1e30, 1e30, 1e-30, 1e-30]))
    assert 0 <= ratio("_linalg_det", [a], list(torch.ops.aten._linalg_det(a))) <= 1


def test_an_inverse_by_an_ill_conditioned_upper_triangle_is_innocent():
    """LAPACK inverts the triangle, then multiplies: XA - I exceeds what norms tell."""
    generator = torch.Generator().manual_seed(7)
    for _ in range(1500):
        u = (1e4 * (1 + 1e-2 * torch.randn(9, 9, generator=generator))).triu()
        u.diagonal()[torch.rand(9, generator=generator) < 0.4] = 0.7
        x = torch.ops.aten.cholesky_inverse(u, True).contiguous()
        assert not ratio("cholesky_inverse", [u, True], [x]) > 1
    u = torch.eye(9) + 0.1 * u / u.abs().max()
    x = torch.ops.aten.cholesky_inverse(u, True).contiguous()
    assert ratio("cholesky_inverse", [u, True], [x]) <= 1 < ratio("cholesky_inverse", [u, True], [1.001 * x])


def pseudoinverses(dtype):
    """(args, torch's result): of full rank, of less, symmetric, with tolerances that leave numbers out, near the tolerance itself."""
    low, plain = op_samples_factors.rectangular("low", dtype, 9, 6), op_samples_factors.rectangular("plain", dtype, 5, 8)
    symmetric = op_samples_factors.symmetric("low", dtype)
    near = op_samples_factors.orthogonal(7, torch.Generator().manual_seed(5))
    near = (near * torch.tensor([1.0, 0.5, 0.1, 0.1, 0.1, 0.01, 0.0], dtype=torch.float64) @ near.mT).to(dtype)
    number = lambda x: torch.tensor(x, dtype=dtype)  # noqa: E731
    for a, atol, rtol, hermitian in (
        (plain, None, None, False),
        (low, None, None, False),
        (low.mT, None, None, False),
        (symmetric, None, None, True),
        (plain, number(1.5), None, False),
        (plain, None, number(1.0), False),
        (near, None, number(0.1), False),
        (near, number(0.01), number(0.0), True),
        (low, number([0.0, 2.0]), number([1e-3, 0.0]), False),
        (torch.zeros(4, 3, dtype=dtype), None, None, False),
    ):
        x = torch.ops.aten.linalg_pinv.atol_rtol_tensor(a, atol=atol, rtol=rtol, hermitian=hermitian)
        yield [a, atol, rtol, hermitian], x.contiguous()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_pseudoinverse_without_full_rank_is_innocent_and_a_wrong_one_is_found(dtype):
    row = H.rows()["aten::linalg_pinv.atol_rtol_tensor"]
    for args, x in pseudoinverses(dtype):
        assert 0 <= ratio("linalg_pinv.atol_rtol_tensor", args, [x]) <= 1, args[1:]
        for branch in ([x], [None]):
            (ours,) = H.run_branch(row, args, [op_cases.blank_like(x)], branch)
            assert 0 <= ratio("linalg_pinv.atol_rtol_tensor", args, [ours]) <= 1, args[1:]
            tied = args[2] is not None and args[0].shape[-1] == 7  # three equal values at the tolerance: any basis of their space is right
            assert tied or torch.allclose(ours, x, rtol=1e-3, atol=1e-4 * float(x.abs().max())), args[1:]
        if x.abs().max() == 0:  # all of it is left out
            assert ratio("linalg_pinv.atol_rtol_tensor", args, [x + 2 * args[0].mT.contiguous() + 1]) > 1
            continue
        for wrong in (x * 1.01, x.roll(1, -1), x + x.abs().max() * torch.eye(*x.shape[-2:], dtype=dtype)):
            assert ratio("linalg_pinv.atol_rtol_tensor", args, [wrong]) > 1, args[1:]
        if args[1] is None and args[2] is None:
            assert ratio("linalg_pinv.atol_rtol_tensor", args, [torch.zeros_like(x)]) > 1


def test_what_has_no_factor_is_refused():
    """Not positive definite, singular, exchanges out of range: what a library leaves there is its own."""
    rows, a = H.rows(), torch.zeros(3, 3)
    for name, args in (("linalg_cholesky_ex", [a, False, False]), ("linalg_inv_ex", [a, False]), ("_linalg_solve_ex", [a, a, True, False])):
        results = [torch.empty(3, 3), torch.empty(3, 3), torch.empty(3, dtype=torch.int32), torch.empty((), dtype=torch.int32)]
        shapes = {"linalg_cholesky_ex": [0, 3], "linalg_inv_ex": [0, 3], "_linalg_solve_ex": [0, 1, 2, 3]}[name]
        with pytest.raises(H.Unsupported):
            H.run(rows[f"aten::{name}"], args, [results[k] for k in shapes])
    with pytest.raises(H.Unsupported, match="exchanges"):
        H.run(rows["aten::linalg_lu_solve"], [torch.eye(3), torch.tensor([9, 2, 3], dtype=torch.int32), a, True, False], [torch.empty(3, 3)])


def test_what_cannot_be_judged_is_not():
    a = matrices("plain", torch.float32)
    args, results = call("linalg_qr", a)
    nan = [a.clone().fill_(float("nan")), *args[1:]]
    assert ratio("aten::mm", args, results) != ratio("aten::mm", args, results)
    assert not ratio("linalg_qr", nan, [r.fill_(float("nan")) for r in results]) >= 0
    singular = torch.zeros(3, 3)
    inverse, info = torch.ops.aten.linalg_inv_ex(singular)
    assert info.item() and not ratio("linalg_inv_ex", [singular, False], [inverse, info]) >= 0
