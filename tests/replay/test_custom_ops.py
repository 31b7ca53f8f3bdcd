"""Custom ops of serving stacks, known to replay by their names: tests/programs/serving_ops.py computes them by their public definitions."""
import pytest

PROGRAM = "tests/programs/serving_ops.py"
SPACES = ("_C::", "_moe_C::", "sgl_kernel::", "flashinfer::", "trtllm::", "tex_ts::", "DaoAILab::", "custom_ops::", "fla::")


def replayed(lastbit, tmp_path, *arguments):
    lastbit.record(tmp_path / "run.lb", PROGRAM, *arguments, options=("--level", "ops"), expect=0)
    answer = lastbit.json("replay", tmp_path / "run.lb", "--coverage", "--worst", 1000, expect=(0, 1))
    return answer, {row["op"]: row for row in answer["coverage"] if row["op"].startswith(SPACES)}


@pytest.mark.parametrize("dtype", ["bfloat16", *(pytest.param(d, marks=pytest.mark.full) for d in ("float32", "float16"))])
def test_custom_ops_replay_within_their_bounds(lastbit, tmp_path, dtype):
    answer, custom = replayed(lastbit, tmp_path, "--dtype", dtype)
    assert len(custom) == 47 and all(row["native"] for row in custom.values())
    assert answer["ops"]["opaque"] == 0 and answer["verdict"] == "rounding"
    for one in answer["worst"]:
        assert one["verdict"] == "rounding" and 0 <= one["bound_ratio"] <= 1, one


@pytest.mark.parametrize("dtype", ["bfloat16", *(pytest.param(d, marks=pytest.mark.full) for d in ("float32", "float16"))])
def test_a_fault_in_one_element_of_a_custom_op_diverges(lastbit, tmp_path, dtype):
    answer, custom = replayed(lastbit, tmp_path, "--wrong", "--dtype", dtype)
    diverged = [one["op"] for one in answer["worst"] if one["verdict"] == "diverged"]
    for name, row in custom.items():
        assert diverged.count(name) == row["count"], name
