"""Encoders that torch runs as one op a layer, against the same modules op by op: tests/programs/fused_encoder.py."""

import op_harness as H
import op_samples
import pytest
import torch
from op_cases import Case, callable_op, same_bits

FUSED = {"aten::_transformer_encoder_layer_fwd", "aten::_native_multi_head_attention"}


def recorded(lastbit, path, *arguments):
    lastbit.record(path, "tests/programs/fused_encoder.py", *arguments, options=("--level", "ops"), expect=0)
    return path


@pytest.mark.parametrize("order", [("--norm-first",), pytest.param((), marks=pytest.mark.full)])
def test_a_fused_encoder_is_the_same_function_as_its_modules(lastbit, tmp_path, order):
    fused = recorded(lastbit, tmp_path / "fused.lb", *order)
    answer = lastbit.json("replay", fused, "--coverage", expect=(0, 1))
    native = {row["op"] for row in answer["coverage"] if row["native"]}
    assert answer["ops"]["opaque"] == 0 and native >= FUSED and answer["verdict"] == "rounding"
    apart = recorded(lastbit, tmp_path / "apart.lb", "--apart", *order)
    assert not FUSED & {row["op"] for row in lastbit.json("replay", apart, "--coverage", expect=(0, 1))["coverage"]}
    assert lastbit.json("diff", fused, apart, expect=0)["verdict"] == "rounding"
    wrong = recorded(lastbit, tmp_path / "wrong.lb", "--wrong", *order)
    found = lastbit.json("diff", fused, wrong, expect=1)
    assert found["verdict"] == "diverged"
    assert not order or "layers.1" in found["first"]["layer"], found["first"]


@pytest.mark.full
def test_a_fused_encoder_is_the_same_function_in_another_precision(lastbit, tmp_path):
    fine, coarse = (recorded(lastbit, tmp_path / f"{dtype}.lb", "--dtype", dtype) for dtype in ("float32", "bfloat16"))
    assert lastbit.json("replay", coarse, expect=(0, 1))["verdict"] in ("identical", "rounding")
    assert lastbit.json("diff", fine, coarse, expect=0)["verdict"] == "rounding"


def cases(name):
    row = H.rows()[name]
    for args, kwargs in op_samples.samples(row.contents.text("samples"), 11):
        case = Case(row, callable_op(name), args, kwargs)
        if case.expected is not None:
            yield case


def test_heads_and_masked_softmax_have_torchs_bits():
    """But for exponentials in f32 and f64, which torch takes from libm."""
    H.set_limits()
    for name in ("aten::_transform_bias_rescale_qkv", "aten::_masked_softmax"):
        compared = 0
        for case in cases(name):
            if "softmax" in name and case.expected[0].dtype in (torch.float32, torch.float64):
                continue
            for ours, theirs in zip(case.ours(case.values(), case.blanks()), case.expected):
                assert bool(same_bits(ours, theirs).all()), f"{name}({case})"
                compared += ours.numel()
        assert compared > 10_000


@pytest.mark.parametrize("name", ["aten::_native_multi_head_attention", "aten::_transformer_encoder_layer_fwd"])
def test_a_result_from_another_weight_is_outside_the_bound(name):
    """One key less, or a mask that hides another token, in f64, where no number is off by rounding."""
    H.set_limits()
    found = 0
    for case in cases(name):
        values = case.values()
        mask = next(k for k, parameter in enumerate(case.op._schema.arguments) if parameter.name == "mask")
        if case.expected[0].dtype != torch.float64 or values[mask] is None:
            continue
        values[mask] = values[mask].logical_not() if bool(values[mask].logical_not().any()) else values[mask]
        values[mask][..., 0] = False
        ratios = [r for r in H.ratios(case.row, values, case.expected) if r is not None]
        found += any(bool((r > 1).any()) for r in ratios)
    assert found >= 10


def test_scores_that_torch_would_read_in_another_order_are_refused():
    """torch 2.13 (CPU) takes the memory of transposed scores for that of dense ones."""
    scores = torch.randn(2, 3, 4, 5).transpose(1, 2)
    mask = torch.zeros(scores.shape, dtype=torch.bool)
    with pytest.raises(H.Unsupported, match="not contiguous"):
        H.run(H.rows()["aten::_masked_softmax"], [scores, mask, -1, 2], [torch.empty(scores.shape)])
