"""Masks that leave a row of attention no key: what wrote the mask is named once, not every layer that read it."""

import pytest
from test_origin import LOOP

# case -> what makes the mask, the op that is named and its step
CASES = {
    "one row more": ("if step == 1: mask[1, 3] = float('-inf')", "aten::fill_.Tensor", 0),
    "padding": (
        "keep = torch.ones(2, 8, dtype=torch.bool)\n    if step == 1: keep[1] = False\n    mask = mask.masked_fill(~keep[:, None, :], float('-inf'))",
        "aten::masked_fill.Scalar",
        0,
    ),
    "from outside": (
        "import numpy; a = mask.numpy().copy(); a[1, 3] = -numpy.inf if step == 1 else a[1, 3]; mask = torch.from_numpy(a)",
        "lb::source",
        0,
    ),
}


@pytest.mark.parametrize("case", [c if c == "one row more" else pytest.param(c, marks=pytest.mark.full) for c in CASES])
def test_the_mask_is_the_common_cause(lastbit, tmp_path, case):
    code, op, step = CASES[case]
    (tmp_path / "program.py").write_text(LOOP.replace("CASE", code))
    lastbit.record(tmp_path / "run.lb", tmp_path / "program.py", expect=0)
    verdict = lastbit.json("bisect", tmp_path / "run.lb", "-q", "-o", tmp_path / "small.lb", expect=1)
    assert [(c["axis"], c["op"], c["step"], c["layer"]) for c in verdict["culprits"]] == [("source", op, step, "")]
    assert "leaves a row no key" in verdict["culprit"]["why"]
    assert [s["outcome"] for s in verdict["stages"] if s["stage"] == "mask"] == ["cured"]
    assert verdict["reproducer"] or case == "padding"  # there nothing smaller fails by itself


def test_a_mask_that_is_no_cause_is_left_alone(lastbit, tmp_path):
    (tmp_path / "program.py").write_text(LOOP.replace("CASE", "if step == 1: y[:] = -100"))
    lastbit.record(tmp_path / "run.lb", tmp_path / "program.py", expect=0)
    verdict = lastbit.json("bisect", tmp_path / "run.lb", "-q", expect=(1, 125))
    assert not [s for s in verdict["stages"] if s["stage"] == "mask"]
