"""Every row of the op table against torch.

EXACT rows must have torch's bits (any NaN equals any NaN). For the others both torch's result and ours must lie within the row's bound of the
value computed in f64, and the shadow itself must agree with torch's own float64 result. Besides: in-place, out and foreach forms give the base
row's bits, and bits depend neither on the instruction set nor on the thread count. A row without samples, bound or kernel fails.
"""

import math
import os
import pathlib
import sys

import op_harness as H
import op_samples
import pytest
import torch
from op_cases import Case, bits, blank_like, callable_op, copied, half_ulp, mapped, same_bits, tensors  # noqa: F401

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "programs"))
import blockwise_optimizers  # noqa: E402
import four_bit_weights  # noqa: E402
import serving_kernels  # noqa: E402
import serving_ops  # noqa: E402
import training_kernels  # noqa: E402

torch.set_num_threads(1)
ROWS = H.rows()
CUSTOM = {
    *serving_ops.OPS,
    *serving_kernels.OPS,
    *training_kernels.OPS,  # and FSDP2's: tests/programs/ranks/sharded.py
    *blockwise_optimizers.OPS,
    *four_bit_weights.OPS,
    "bitsandbytes::dequantize_4bit.out",
    "bitsandbytes::dequantize_blockwise.out",
    "fsdp::split_with_sizes_copy",
    "fsdp::chunk_cat",
    "fsdp::chunk_cat_mixed_dtype",
}
NUMERIC = sorted(
    n for n, r in ROWS.items() if r.contents.kernel and n.startswith("aten::") and not r.contents.text("samples").startswith(("complex", "factors"))
)  # those: test_complex.py, test_fft.py, test_factorisations.py
SWEEPS = 10 if os.environ.get("LASTBIT_FULL") == "1" else 1


def cases(name, seed=0):
    row = ROWS[name]
    op = callable_op(name)
    text = row.contents.text("samples")
    seeds = range(seed, seed + 100 * SWEEPS, 100)
    found = [Case(row, op, args, kwargs) for s in seeds for args, kwargs in op_samples.samples(text, s)]
    return [c for c in found if c.expected is not None]


# ---- comparing -------------------------------------------------------------------------------------------------------


def allowed(row, y, twin, dtype, terms):
    """The bound of ops.h, per element (replay/judgement/bound.c evaluates it for users)."""
    u = 2.0**-53 if dtype == torch.float64 else 2.0**-24
    tiny = 2.0**-1074 if dtype == torch.float64 else 2.0**-149
    factor = row.contents.roundings + row.contents.roundings_per_term * max(terms, 0)
    return half_ulp(y, dtype) + u * factor * twin + tiny * (factor + 1)


def outside(row, got, y, twin, dtype, terms):
    """Where `got` is farther from the exact `y` than the row allows."""
    g = got.double()
    limit = torch.finfo(dtype).max * (1 - 2.0**-6)
    overflow = (y.abs() > limit) & ~torch.isnan(y)
    agree_inf = torch.isinf(g) & torch.isinf(y) & (g == y)
    ok = (g - y).abs() <= allowed(row, y, twin, dtype, terms)
    ok |= torch.isnan(g) & torch.isnan(y)
    ok |= agree_inf | (overflow & (g.sign() == y.sign()))
    ok |= ~(twin < torch.finfo(dtype).max)  # a term overflows on the way: nothing can be said
    return ~ok


def report(case, what, where, *columns):
    index = tuple(int(k) for k in torch.nonzero(where)[0]) if where.dim() else ()
    shown = ", ".join(f"{label}={t[index].item()!r}" for label, t in columns)
    pytest.fail(
        f"{what} at {list(index)}, {int(where.sum())} of {where.numel()}: {shown}\nin {case.row.contents.text('name')}({case})", pytrace=False
    )


def check_exact(case):
    got = case.ours(case.values(), case.blanks())
    for g, e in zip(got, case.expected):
        if g is not None and not bool(same_bits(g, e).all()):
            report(case, "bits differ", ~same_bits(g, e), ("ours", g), ("torch", e))


def check_bounded(case):
    got = case.ours(case.values(), case.blanks())
    shadow = case.exact()
    twin = case.twin(shadow)
    terms = H.terms(case.row, case.values(), got)
    for g, e, y, w in zip(got, case.expected, shadow, twin):
        if g is None:
            continue
        if not g.dtype.is_floating_point:
            if not bool(same_bits(g, e).all()):
                report(case, "integers differ", ~same_bits(g, e), ("ours", g), ("torch", e))
            continue
        for label, value in (("ours", g), ("torch", e)):
            bad = outside(case.row, value, y, w, e.dtype, terms)
            if bool(bad.any()):
                report(
                    case,
                    f"{label} is outside the bound",
                    bad,
                    ("ours", g),
                    ("torch", e),
                    ("exact", y),
                    ("twin", w),
                    ("bound", allowed(case.row, y, w, e.dtype, terms)),
                )


def check_shadow(case):
    """Our f64 result against torch's own, which is a second implementation; a few units of 2^-53. How many results were compared."""
    theirs = case.torch_shadow()
    if theirs is None:
        return 0
    shadow = case.shadow()
    twin = case.twin(shadow)
    terms = H.terms(case.row, case.values(), shadow)
    compared = 0
    for y, t, w in zip(shadow, theirs, twin):
        if y is None or t is None or t.dtype != torch.float64 or y.shape != t.shape:
            continue
        room = allowed(case.row, y, torch.maximum(w, y.abs()), torch.float64, terms) + 8 * 2.0**-53 * torch.maximum(w, y.abs())
        bad = ~(((y - t).abs() <= room) | (y == t) | (torch.isnan(y) & torch.isnan(t)))
        bad &= w < 2.0**128  # a finite twin of that size says nothing (replay/kernel/pointwise.h)
        bad &= ~((torch.isinf(y) | torch.isinf(t)) & (torch.minimum(y.abs(), t.abs()) > 1e308))
        if bool(bad.any()):
            report(case, "shadow differs from torch.float64", bad, ("shadow", y), ("torch", t), ("twin", w))
        compared += 1
    return compared


# ---- tests -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NUMERIC)
def test_row_computes_what_torch_computes(name):
    H.set_limits()
    found = cases(name)
    assert len(found) >= 3, "torch refused (nearly) all samples of this row"
    unsupported = 0
    for case in found:
        try:
            if case.flags & H.EXACT:
                check_exact(case)
            elif case.flags & H.DISCONTINUOUS:
                check_exact(case)
            else:
                check_bounded(case)
        except H.Unsupported:
            unsupported += 1
    assert unsupported <= len(found) // 2, "most samples are not supported"


# Rows whose results are integers, choices or draws have no shadow: they take the recorded results.
SHADOWED = [n for n in NUMERIC if not ROWS[n].contents.flags & (H.DISCONTINUOUS | H.RANDOM)]


@pytest.mark.parametrize("name", SHADOWED)
def test_shadow_is_the_float64_result(name):
    H.set_limits()
    compared = 0
    for case in cases(name, seed=1):
        try:
            compared += check_shadow(case)
        except H.Unsupported:
            pass
    assert compared, "no sample has an f64 result to compare with: op_references.py needs a definition"


@pytest.mark.parametrize("name", NUMERIC)
def test_bits_do_not_depend_on_the_instruction_set(name):
    for case in cases(name, seed=2)[::3]:
        try:
            H.set_limits(isa=2)
            reference = case.ours(case.values(), case.blanks())
            for isa in range(H.best_isa()):
                H.set_limits(isa=isa)
                for r, g in zip(reference, case.ours(case.values(), case.blanks())):
                    if r is not None and not bool(same_bits(r, g).all()):
                        report(case, f"isa {isa} gives other bits", ~same_bits(r, g), ("best", r), ("isa", g))
        except H.Unsupported:
            pass
        finally:
            H.set_limits()


def base_of(name):
    base, _, overload = name.partition("::")[2].partition(".")
    return base, overload


def inplace_names():
    """(row, in-place spelling) of every row whose op has one."""
    for name in NUMERIC:
        base, overload = base_of(name)
        spelling = f"aten::{base}_" + (f".{overload}" if overload else "")
        if not base.endswith("_") and spelling not in ROWS and H.torch_op(spelling) is not None:
            yield name, spelling


@pytest.mark.parametrize("name,spelling", list(inplace_names()))
def test_inplace_form_gives_the_same_bits(name, spelling):
    row, form = H.find(spelling)
    assert row is not None and row.contents.text("name") == name and form == H.INPLACE
    for case in cases(name, seed=3):
        first = case.values()[0]
        expected = case.expected[0]
        if not isinstance(first, torch.Tensor) or first.dtype != expected.dtype or first.shape != expected.shape or len(case.expected) > 1:
            continue
        values = case.values(copied)
        try:
            fresh = case.ours(case.values(), case.blanks())[0]
            H.run(row, values, [values[0]])
        except H.Unsupported:
            continue
        if not bool(same_bits(values[0], fresh).all()):
            report(case, "in place differs", ~same_bits(values[0], fresh), ("fresh", fresh), ("in place", values[0]))


def every_schema():
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("aten::"):
            yield schema.name + (f".{schema.overload_name}" if schema.overload_name else ""), schema


def test_out_forms_find_the_row_with_the_same_parameters():
    """For every `out` overload of torch that resolves, the row's op takes the same parameters without the out ones."""
    wrong = []
    for name, schema in every_schema():
        row, form = H.find(name)
        if row is None or form != H.OUT:
            continue
        op = H.torch_op(row.contents.text("name"))
        mine = [(a.name, str(a.type)) for a in op._schema.arguments]
        theirs = [(a.name, str(a.type)) for a in schema.arguments if not a.is_out]
        short = [m for m in mine if m[0] not in ("dtype", "layout", "device", "pin_memory")]  # an out tensor has its own
        if [m for m in theirs if m not in mine] and short != theirs:
            wrong.append(f"{name} -> {row.contents.text('name')}")
    assert not wrong, wrong


def test_args_are_named_as_in_the_schema():
    wrong = []
    for name, row in ROWS.items():
        op = H.torch_op(name)
        if op is None:
            continue  # profiler marks and ops of devices that this build lacks
        names = [a.name for a in op._schema.arguments if not a.is_out]  # where results go is no term
        if row.contents.names() != names:
            wrong.append(f"{name}: {row.contents.names()}, schema {names}")
    assert not wrong, wrong


def foreach_names():
    for name, schema in every_schema():
        if name.startswith("aten::_foreach_") and not any(a.is_out for a in schema.arguments):
            row, form = H.find(name)
            if row is not None and row.contents.kernel:
                yield name


def foreach_sample(draw, schema, dtype):
    """Three tensors per list; scalar lists of three numbers."""
    values, number = [], draw.choice([0.5, 2.0, 0.1])
    shapes = [(4,), (2, 3), (5, 1)]
    positive = any(word in schema.name for word in ("sqrt", "log", "pow", "addcdiv"))
    for parameter in schema.arguments:
        kind = str(parameter.type)
        if kind == "List[Tensor]":
            made = [draw.dense(s, dtype) for s in shapes]
            values.append([m.abs() + 0.5 for m in made] if positive else made)
        elif kind == "Tensor":
            values.append(torch.tensor(number))
        elif kind.startswith("List["):
            values.append([0.5, 2.0, 0.25])
        elif parameter.has_default_value():
            values.append(parameter.default_value)
        else:
            values.append(number)
    return values


@pytest.mark.parametrize("name", list(foreach_names()))
def test_foreach_form_is_the_row_on_each_element(name):
    H.set_limits()
    op = H.torch_op(name)
    row, form = H.find(name)
    draw = op_samples.Draw(5)
    for dtype in (torch.float32, torch.bfloat16):
        values = foreach_sample(draw, op._schema, dtype)
        before = mapped(values, copied)
        try:
            result = op(*values)
        except RuntimeError:
            continue
        expected = values[0] if form == H.FOREACH_INPLACE else result
        count = len(expected)
        for k in range(count):
            one = [v[k] if isinstance(v, list) and len(v) == count else v for v in before]
            got = one[0] if form == H.FOREACH_INPLACE else blank_like(expected[k])
            H.run(row, one, [got])
            close = torch.allclose(got.double(), expected[k].double(), rtol=2.0**-7 if dtype == torch.bfloat16 else 1e-5, atol=1e-7, equal_nan=True)
            exact = bool(same_bits(got, expected[k]).all())
            assert exact if row.contents.flags & H.EXACT else close, f"{name} element {k}: {got} instead of {expected[k]}"


@pytest.mark.parametrize("name", [n for n in NUMERIC if ROWS[n].contents.flags & H.ELEMENTWISE])
def test_threads_do_not_change_bits(name):
    """One large sample, above the size from which chunks are split."""
    for case in cases(name, seed=4):
        shaped = [a for a in case.args if isinstance(a, torch.Tensor) and a.numel() >= 5]
        if case.expected[0].dtype not in (torch.float32, torch.bfloat16, torch.bool) or not shaped or case.expected[0].dim() != 1:
            continue
        n = 150_001
        grown = Case(
            case.row,
            case.op,
            mapped(list(case.args), lambda t: t.repeat(-(-n // t.numel()))[:n] if t.dim() == 1 and t.numel() > 1 else t),
            case.kwargs,
        )
        if grown.expected is None or grown.expected[0].numel() != n:
            continue
        try:
            one = grown.ours(grown.values(), grown.blanks())
            H.set_limits(threads=2)
            two = grown.ours(grown.values(), grown.blanks())
        except H.Unsupported:
            continue
        finally:
            H.set_limits()
        for a, b in zip(one, two):
            assert bool(same_bits(a, b).all()), name
        return


def test_every_row_has_a_test_a_bound_and_where_it_sums_a_twin():
    incomplete = []
    for name, row in ROWS.items():
        r = row.contents
        nothing_to_compute = r.flags & (H.RANDOM | H.VIEW | H.UNDEFINED | H.HOST | H.COLLECTIVE)
        if not r.kernel and not nothing_to_compute:
            incomplete.append(f"{name}: no kernel")
        if r.text("samples") == "fused":  # whole composites: tests/replay/composites/test_composites.py
            continue
        if r.text("samples") == "custom":  # of libraries that are not here: recorded programs define and call them
            if name not in CUSTOM:
                incomplete.append(f"{name}: no program calls it")
        elif r.kernel and r.text("samples").split()[:1] not in [[g] for g in op_samples.GENERATORS]:
            incomplete.append(f"{name}: samples {r.text('samples')!r} name no generator")
        if r.flags & H.FACTORS:  # judged by residuals
            continue
        if r.kernel and not r.flags & (H.EXACT | H.DISCONTINUOUS) and not (r.roundings > 0 or r.roundings_per_term > 0):
            incomplete.append(f"{name}: no bound")
        if r.kernel and r.roundings_per_term > 0 and not r.twin:
            incomplete.append(f"{name}: sums without a twin")
        if name.startswith("aten::") and H.torch_op(name) is None:
            incomplete.append(f"{name}: torch has no such op, so it is not compared")
        if math.isnan(r.roundings) or r.roundings < 0:
            incomplete.append(f"{name}: roundings {r.roundings}")
    assert not incomplete, "\n".join(incomplete)
