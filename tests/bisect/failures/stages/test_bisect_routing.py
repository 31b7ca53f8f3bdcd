"""Experts that were chosen among numbers which had already gone bad are not forced on a trial in which the numbers are finite."""

import pytest

LAYERS = ["model.layers.1.self_attn.o_proj", "model.layers.0.self_attn.q_proj"]


@pytest.mark.parametrize("experts", ["grouped_mm", pytest.param("eager", marks=pytest.mark.full)])
@pytest.mark.parametrize("layer", [LAYERS[0], pytest.param(LAYERS[1], marks=pytest.mark.full)])
def test_a_float16_projection_is_blamed_and_no_expert(lastbit, tmp_path, experts, layer):
    lastbit.record(tmp_path / "run.lb", "tests/programs/half_island.py", experts, layer, expect=0)
    verdict = lastbit.json("bisect", tmp_path / "run.lb", "-q", expect=1)
    assert [(c["axis"], c["layer"], c["op"], c["phase"], c["step"]) for c in verdict["culprits"]] == [
        ("precision", layer, "aten::_to_copy", "forward", 1)
    ]
    assert verdict["failure"]["step"] == 1
    # Other experts in a step whose numbers are finite: their sorted ids are the recording's, and its memory is only read.
    checked = lastbit.run("bisect", "--check", tmp_path / "run.lb", "--skip", "step=0&layer=^model.layers.0.mlp.gate$")
    assert checked.returncode == 1 and "step 1" in checked.stdout


def test_decisions_whose_bytes_were_not_kept_are_those_of_the_unchanged_replay(lastbit, tmp_path):
    """Experts that run one by one are found by masks; at level sources no bytes of these are kept."""
    lastbit.record(tmp_path / "run.lb", "tests/programs/half_island.py", "eager", LAYERS[0], options=("--level", "sources"), expect=0)
    verdict = lastbit.json("bisect", tmp_path / "run.lb", "-q", expect=1)
    assert [s["outcome"] for s in verdict["stages"] if s["stage"] == "precision"] == ["cured"]
    assert [(c["axis"], c["layer"], c["op"]) for c in verdict["culprits"]] == [("precision", LAYERS[0], "aten::_to_copy")]
    assert not [t for t in verdict["trials"] if t["outcome"] == "invalid"]
