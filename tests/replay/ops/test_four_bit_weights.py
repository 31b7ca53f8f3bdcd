"""Weights of 4 bits beside which adapters are trained: bitsandbytes' ops are computed within their bounds, and faults found."""

import sys

import op_harness as H
import pytest
import torch
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests" / "programs"))
import four_bit_weights

PROGRAM = "tests/programs/four_bit_weights.py"


def replayed(lastbit, tmp_path, *arguments):
    lastbit.record(tmp_path / "run.lb", PROGRAM, *arguments, options=("--level", "ops"), expect=0)
    return lastbit.json("replay", tmp_path / "run.lb", "--coverage", "--worst", 100, expect=(0, 1))


def test_a_training_of_adapters_is_computed(lastbit, tmp_path):
    answer = replayed(lastbit, tmp_path)
    assert answer["ops"]["opaque"] == 0, answer["opaque_ops"]
    assert {row["op"] for row in answer["coverage"]} >= set(four_bit_weights.OPS)
    assert answer["verdict"] in ("identical", "rounding") and answer["verdicts"]["missing"] == 0


@pytest.mark.parametrize("fault, op", [("unpacked", "dequantize_4bit"), ("scale", "dequantize_4bit"), ("product", "gemm_4bit")])
def test_a_wrong_code_scale_or_product_diverges(lastbit, tmp_path, fault, op):
    answer = replayed(lastbit, tmp_path, "--fault", fault)
    diverged = [one["op"] for one in answer["worst"] if one["verdict"] == "diverged"]
    counts = {row["op"]: row["count"] for row in answer["coverage"]}
    assert diverged.count(f"bitsandbytes::{op}") == counts[f"bitsandbytes::{op}"] >= 5, diverged
    assert set(diverged) <= {"bitsandbytes::dequantize_4bit", "bitsandbytes::gemm_4bit"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_and_scales_rounded_on_the_way_are_innocent(dtype):
    """As kernels have it that multiply in 16 bits: code, scale and weight each rounded before."""
    draw = torch.Generator().manual_seed(2)
    packed, absmax = four_bit_weights.pack(torch.randn(16, 128, generator=draw), four_bit_weights.NF4, 64)
    a = torch.randn(7, 128, generator=draw).to(dtype)
    codes = torch.stack([packed >> 4, packed & 15], 1).reshape(-1).long()
    weight = ((four_bit_weights.NF4.to(dtype)[codes].view(-1, 64) * absmax.to(dtype)[:, None]).reshape(16, 128)).to(dtype)
    values = [a, packed, [16, 128], absmax, 64, "nf4", None, None, None, None]
    y = (a.double() @ weight.double().T).to(dtype)
    assert float(H.ratios(H.rows()["bitsandbytes::gemm_4bit"], values, [y])[0].max()) <= 1
    y[2, 3] += 0.1 * y.abs().max()
    assert float(H.ratios(H.rows()["bitsandbytes::gemm_4bit"], values, [y])[0].max()) > 1
