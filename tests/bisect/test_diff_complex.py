"""diff across complex numbers, which replay does not run exactly: what cannot be told is not called rounding."""
import pytest

PROGRAM = "tests/programs/complex_rotary.py"


@pytest.fixture(scope="module")
def right(lastbit, tmp_path_factory):
    out = tmp_path_factory.mktemp("complex") / "right.lb"
    lastbit.record(out, PROGRAM, options=("--level", "ops"), expect=0)
    return out


@pytest.mark.parametrize("fault", ["conjugated", "scaled", "moved"])
def test_a_fault_in_a_complex_rotary_embedding_is_not_rounding(lastbit, right, tmp_path, fault):
    lastbit.record(tmp_path / "wrong.lb", PROGRAM, fault, options=("--level", "ops"), expect=0)
    told = lastbit.json("diff", right, tmp_path / "wrong.lb", expect=1)
    assert told["verdict"] in ("diverged", "missing")
    assert told["first"]["phase"] == "forward" and told["first"]["op"] == "aten::mul.Tensor"
    assert told["first"]["verdict"] == told["verdict"]


def test_the_same_rotary_embedding_is_the_same(lastbit, right, tmp_path):
    lastbit.record(tmp_path / "again.lb", PROGRAM, options=("--level", "ops"), expect=0)
    assert lastbit.json("diff", right, tmp_path / "again.lb", expect=0)["verdict"] == "identical"
