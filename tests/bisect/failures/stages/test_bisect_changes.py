"""Runs that do not fail and are not what they were (tests/programs/changed_gpt.py): the change is named, against the old run."""

import pytest

PROGRAM = "tests/programs/changed_gpt.py"

# case -> axis, layer, op, phase; words of the reason
CASES = {
    "scale": ("block", "blocks.0.attn", "aten::div.Tensor", "forward", "called with other arguments"),
    "eps": ("block", "blocks.1.n1", "aten::native_layer_norm", "forward", "called with other arguments"),
    "init": ("source", "blocks.1.mlp.down", "lb::source", "forward", "blocks.1.mlp.down.weight"),
    "decay": ("source", "emb", "aten::mul_.Tensor", "optimizer", "called with other arguments"),
    "dropped-z-loss": ("block", "", "aten::logsumexp", "forward", "alone runs"),
    "unclipped": ("block", "", "aten::_foreach_norm.Scalar", "optimizer", "alone runs"),
}
ALWAYS = ["init", "dropped-z-loss"]


@pytest.fixture(scope="module")
def reference(lastbit, tmp_path_factory):
    capture = tmp_path_factory.mktemp("reference") / "run.lb"
    lastbit.record(capture, PROGRAM, "none", expect=0)
    return capture


@pytest.mark.parametrize("case", [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.full) for name in CASES])
def test_what_a_refactor_changed_is_named(case, lastbit, reference, tmp_path):
    axis, layer, op, phase, words = CASES[case]
    lastbit.record(tmp_path / "run.lb", PROGRAM, case, expect=0)
    verdict = lastbit.json("bisect", tmp_path / "run.lb", "--against", reference, "-q", expect=1)
    culprit = verdict["culprit"]
    assert (culprit["axis"], culprit["layer"], culprit["op"], culprit["phase"]) == (axis, layer, op, phase)
    assert culprit["step"] == 0 and verdict["failure"]["kind"] == "difference"
    assert words in culprit["why"] and "only the rounding" not in culprit["why"]
