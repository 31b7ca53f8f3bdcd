"""Additive masks as people write them: whatever stands for "not this key", a fault beside it is seen and a reordering is none."""

import pytest

PROGRAM = "tests/programs/masked_attention.py"
VALUES = [
    (dtype, value)
    for dtype in ("float32", "bfloat16", "float16")
    for value in ("-1e9", "-1e4", "-65504", "-inf", "-3e38")
    if dtype != "float16" or value not in ("-1e9", "-3e38")
]  # which float16 cannot hold
FACTOR = {"float32": "1.00002", "bfloat16": "1.01", "float16": "1.01"}


@pytest.mark.parametrize("dtype,value", [v if v == ("float32", "-1e9") else pytest.param(*v, marks=pytest.mark.full) for v in VALUES])
def test_a_mask_hides_no_fault_and_makes_none(dtype, value, lastbit, tmp_path):
    for change in ("none", "scale", "order"):
        lastbit.record(tmp_path / f"{change}.lb", PROGRAM, value, change, dtype, FACTOR[dtype], options=("--level", "ops"), expect=0)
    fault = lastbit.json("diff", tmp_path / "none.lb", tmp_path / "scale.lb", expect=1)
    assert fault["verdict"] == "diverged" and fault["first"]["layer"] == "layers.0.attention", fault["first"]
    assert lastbit.json("diff", tmp_path / "none.lb", tmp_path / "order.lb", expect=0)["verdict"] == "rounding"
