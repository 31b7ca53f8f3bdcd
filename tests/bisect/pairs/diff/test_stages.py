"""Stages of a pipeline on ranks of their own against the whole model in one process: each layer meets its own, whichever rank runs it."""

import sys

import pytest
from conftest import ROOT, warm_python

PROGRAM = ROOT / "tests" / "programs" / "ranks" / "pipeline_twin.py"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.fixture(scope="module")
def captures(lastbit, tmp_path_factory):
    """captures(RANKS, FAULT): recorded once."""
    made = {}

    def record(ranks, *fault):
        if (ranks, fault) not in made:
            out = made[ranks, fault] = tmp_path_factory.mktemp("stages") / "run.lb"
            python = [sys.executable, *TORCHRUN] if ranks == 2 else warm_python()
            lastbit.run("record", "-o", out, "--level", "ops", "--", *python, PROGRAM, *fault, expect=0)
        return made[ranks, fault]

    return record


@pytest.mark.parametrize("turned", [False, True])
def test_healthy_stages_are_the_model(lastbit, captures, turned):
    """The pipeline divides gradients where the process divides the loss: other bits, the same function."""
    sides = [captures(1), captures(2)]
    found = lastbit.json("diff", *(reversed(sides) if turned else sides), expect=0)
    assert found["verdict"] == "rounding" and not found["missing"]
    assert {layer["layer"] for layer in found["layers"]} >= {*(f"layers.{n}" for n in range(4)), "head"}
    same = lastbit.json("diff", captures(2), captures(2), expect=0)
    assert same["verdict"] == "identical"


@pytest.mark.full
@pytest.mark.parametrize("turned", [False, True])
def test_a_parameter_of_a_stage_that_differs_is_named(lastbit, captures, turned):
    sides = [captures(1), captures(2, "weight")]
    found = lastbit.json("diff", *(reversed(sides) if turned else sides), expect=1)
    assert found["verdict"] == "diverged" and found["first"]["layer"] == "layers.2.weight"


@pytest.mark.parametrize("turned", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_fault_in_a_stage_is_found_beside_its_layer(lastbit, captures, turned):
    sides = [captures(1), captures(2, "scale")]
    found = lastbit.json("diff", *(reversed(sides) if turned else sides), expect=1)
    assert (found["verdict"], found["first"]["step"], found["first"]["phase"]) == ("diverged", 0, "forward")
    assert "between layers.2 and layers.3" in found["first"]["why"]
