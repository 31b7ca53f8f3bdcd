"""Parameters that are windows on one flat buffer: what each holds at the end of a step is its window, whichever op wrote which part."""

import itertools

import pytest

PROGRAM = "tests/programs/flat_parameters.py"
WAYS = ("separate", "views", "flat", "gradient")


@pytest.mark.parametrize("first,second", list(itertools.combinations(WAYS, 2)))
def test_a_flat_buffer_holds_the_same_parameters(lastbit, recordings, first, second):
    runs = [recordings(how, program=PROGRAM) for how in (first, second)]
    for order in (runs, runs[::-1]):
        answer = lastbit.json("diff", *order, expect=0)
        assert answer["verdict"] == "identical" and not answer["missing"], answer["first"]


@pytest.mark.parametrize("how", WAYS)
def test_a_fault_in_one_window_names_its_parameter(lastbit, recordings, how):
    runs = [recordings(way, program=PROGRAM) for way in (how, "fault")]
    for order in (runs, runs[::-1]):
        answer = lastbit.json("diff", "--steps", "0", *order, expect=1)
        assert answer["verdict"] == "diverged"
        assert answer["first"]["layer"] == "1.up.weight", answer["first"]
