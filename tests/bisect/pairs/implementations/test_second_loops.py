"""Training loops written twice over one model: what they leave is the same, whatever scales a loss on the way; an edited line is seen, from either side."""

import sys

import pytest
from conftest import ROOT

sys.path[:0] = [str(ROOT / "tests" / "programs"), str(ROOT / "capture")]
import second_loops
from written_twice import ask, record, source_of

# Set before the first op of the step, without any op, or seen in an earlier place that both loops have by themselves.
ELSEWHERE = {"decay-coefficient", "frozen-other", "whole-drop", "whole-quarter"}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return record(second_loops, tmp_path_factory.mktemp("loops"))


@pytest.mark.parametrize("turned", [False, True])
def test_a_loop_is_one_function_however_it_is_written(lastbit, recorded, turned):
    for loop in second_loops.FAULTS:
        answer = ask(lastbit, recorded, loop, f"{loop}-second", turned, expect=0)
        assert answer["verdict"] in ("rounding", "reordered", "identical") and not answer["differences"], loop


@pytest.mark.parametrize("turned", [False, True])
def test_an_edited_line_of_a_loop_is_in_the_first_place(lastbit, recorded, turned):
    for loop, faults in second_loops.FAULTS.items():
        for fault in faults:
            answer = ask(lastbit, recorded, loop, f"{loop}-second-{fault}", turned, expect=1)
            assert answer["verdict"] == "diverged" and answer["differences"], (loop, fault)
            lines = answer["differences"][0]["lines" if turned else "lines_b"]
            assert f"{loop}-{fault}" in ELSEWHERE or source_of(second_loops, loop, fault)[2] in lines, (loop, fault, lines)


@pytest.mark.parametrize("turned", [False, True])
def test_a_scale_of_the_loss_is_said(lastbit, recorded, turned):
    side = "first" if turned else "second"
    for loop, times in (("scaled", 1024), ("accum", 2)):
        answer = ask(lastbit, recorded, loop, f"{loop}-second", turned, expect=0)
        assert any(f"the loss that the {side} side goes back from is {times} times that of the other" in text for text in answer["findings"])
