"""Custom ops of serving stacks, known to replay by their names: tests/programs/serving_ops.py and serving_kernels.py compute them by their
public definitions."""

import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests" / "programs"))
import serving_kernels
import serving_ops
import training_kernels

PROGRAMS = {"serving_ops": serving_ops.OPS, "serving_kernels": serving_kernels.OPS, "training_kernels": training_kernels.OPS}
DTYPES = ["bfloat16", *(pytest.param(d, marks=pytest.mark.full) for d in ("float32", "float16"))]


def replayed(lastbit, tmp_path, program, *arguments):
    lastbit.record(tmp_path / "run.lb", f"tests/programs/{program}.py", *arguments, options=("--level", "ops"), expect=0)
    answer = lastbit.json("replay", tmp_path / "run.lb", "--coverage", "--worst", 1000, expect=(0, 1))
    return answer, {row["op"]: row for row in answer["coverage"] if row["op"] in PROGRAMS[program]}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_custom_ops_replay_within_their_bounds(lastbit, tmp_path, program, dtype):
    answer, custom = replayed(lastbit, tmp_path, program, "--dtype", dtype)
    assert set(custom) == set(PROGRAMS[program]) and all(row["native"] for row in custom.values())
    assert answer["ops"]["opaque"] == 0 and answer["verdict"] == "rounding"
    for one in answer["worst"]:
        assert one["verdict"] == "rounding" and 0 <= one["bound_ratio"] <= 1, one


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_fault_in_one_element_of_a_custom_op_diverges(lastbit, tmp_path, program, dtype):
    answer, custom = replayed(lastbit, tmp_path, program, "--wrong", "--dtype", dtype)
    diverged = [one["op"] for one in answer["worst"] if one["verdict"] == "diverged"]
    for name, row in custom.items():
        assert diverged.count(name) == row["count"], name


@pytest.mark.parametrize("which", [3, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 2, 4, 5, 6, 7, 8))])
def test_a_fault_in_any_gradient_diverges(lastbit, tmp_path, which):
    answer, custom = replayed(lastbit, tmp_path, "training_kernels", "--wrong", "--which", which, "--dtype", "float32")
    diverged = [one["op"] for one in answer["worst"] if one["verdict"] == "diverged"]
    for name, row in custom.items():
        assert "_bwd" not in name or diverged.count(name) == row["count"], name
