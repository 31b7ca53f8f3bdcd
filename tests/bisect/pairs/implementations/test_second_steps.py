"""Steps of training by two people: optimizers as functions over dictionaries, lists and flat vectors beside torch's, and objectives by hand."""

import sys

import pytest
from conftest import ROOT

sys.path[:0] = [str(ROOT / "tests" / "programs"), str(ROOT / "capture")]
import training_objectives
import update_rules
from written_twice import ask, record

PROGRAMS = {program.__name__: program for program in (update_rules, training_objectives)}
# One side keeps y and z, the other x and z, and y is made of x and z: no memory of one is the other's.
OF_OTHER_STATES = {"schedule_free"}
NAMES = [(program, name) for program in PROGRAMS for name in PROGRAMS[program].FAULTS]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return {name: record(program, tmp_path_factory.mktemp(name)) for name, program in PROGRAMS.items()}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("program, name", NAMES)
def test_a_step_is_one_function_however_it_is_written(lastbit, recorded, program, name, turned):
    if name in OF_OTHER_STATES:
        assert ask(lastbit, recorded[program], name, f"{name}-second", turned, expect=1)["verdict"] == "missing"
        return
    answer = ask(lastbit, recorded[program], name, f"{name}-second", turned, expect=0)
    assert answer["verdict"] in ("rounding", "reordered", "identical") and not answer["differences"]
