"""Steps that a loss scaler skips: one is how it finds its scale, all of them are a run that does not train."""

import pytest

PROGRAM = "tests/programs/scaled_half.py"


def verdict_of(lastbit, folder, case, expect):
    lastbit.record(folder / "run.lb", PROGRAM, case, options=["--level", "ops"], expect=0)
    return lastbit.json("bisect", "-q", folder / "run.lb", expect=expect)


@pytest.mark.parametrize("case,noted", [("healthy", False), ("first-step", True)])
def test_a_skipped_step_is_a_note(lastbit, tmp_path, case, noted):
    verdict = verdict_of(lastbit, tmp_path, case, 0)
    assert verdict["outcome"] == "clean" and bool(verdict["note"]) is noted
    assert not noted or "skips the step" in verdict["note"]


def test_all_skipped_steps_are_named(lastbit, tmp_path):
    note = verdict_of(lastbit, tmp_path, "two-steps", 0)["note"]
    assert note == "steps 0 and 1: the loss scaler met non-finite gradients and skips the steps"


def test_a_falling_scale_is_no_growing_gradient(lastbit, tmp_path):
    """Gradients are as large as the scale makes them, and of a skipped step only those that are finite have a norm."""
    verdict = verdict_of(lastbit, tmp_path, "falling", 0)
    assert verdict["outcome"] == "clean" and not verdict["trials"]
    assert verdict["note"].startswith("steps 0, 1, 2, 3, 4, 5, … ") and " steps): " in verdict["note"]


def test_every_step_skipped_names_the_op_that_overflows(lastbit, tmp_path):
    verdict = verdict_of(lastbit, tmp_path, "overflow", 1)
    assert verdict["failure"]["kind"] == "gradient" and verdict["failure"]["step"] == 0
    assert {(c["axis"], c["layer"]) for c in verdict["culprits"]} == {("precision", "h.2.mlp.act")}
    # In step 0 the squares still fit f16, the largest is 50400. Three times that, the cube's derivative, does not.
    assert {(c["op"], c["phase"]) for c in verdict["culprits"]} == {("aten::mul.Scalar", "backward")}
    assert (verdict["begins"]["op"], verdict["begins"]["step"]) == ("aten::mul.Scalar", 0)
    assert "every step" in verdict["note"]


def test_a_scale_that_f16_cannot_bear_is_found_where_it_enters(lastbit, tmp_path):
    verdict = verdict_of(lastbit, tmp_path, "scale", 1)
    culprit = verdict["culprit"]
    assert (culprit["axis"], culprit["op"], culprit["phase"], culprit["step"]) == ("precision", "aten::_to_copy", "backward", 0)
