"""Blocks and small operators by two people, one pass and a step of training: what differs is layer 1, in the first lines and in the list."""

import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests" / "programs"))
import second_blocks  # noqa: E402
import second_operators  # noqa: E402
import two_ways  # noqa: E402

PROGRAMS = (second_blocks, second_operators)
CASES = [(program.__name__, *pair) for program in PROGRAMS for pair in two_ways.pairs(program.NETS)]
FAULTS = [(program, "train-" * trained + name, fault) for program, name, way, fault, trained in CASES if fault]
BOTH_TURNS = [(*fault, False) for fault in FAULTS]
BOTH_TURNS += [pytest.param(*fault, True, marks=[pytest.mark.full] * fault[1].startswith("train-")) for fault in FAULTS]
# Halves that change places are where the numbers are, and only the order of a later sum tells: layer 2 is named, too.
IN_ANOTHER_ORDER = [("train-coupling", "halves-exchanged")]
# The faulty side first: the other one loops over the experts that were chosen, and what was chosen behind the fault is taken as recorded.
CHOSEN_OTHERWISE = [("experts", "no-shared", True)]
# A gradient of layer 0 is listed, too: of a state that goes through all rows.
WITH_GRADIENTS = [("train-recurrent", "begins-with-ones", False)]


def is_in_layer_1(place):
    return any((side or "").split(".")[:2] == ["layers", "1"] for side in (place["layer"], place.get("layer_b")))


@pytest.mark.parametrize("program, name", [(program, "train-" * trained + name) for program, name, way, _, trained in CASES if way == "first"])
@pytest.mark.parametrize("turned", [False, True])
def test_two_ways_are_one_function(lastbit, recorded_pairs, program, name, turned):
    nets = recorded_pairs(program)
    pair = [nets / f"{name}-first.lb", nets / f"{name}-second.lb"]
    answer = lastbit.json("diff", *(reversed(pair) if turned else pair))
    assert answer["verdict"] in ("identical", "reordered", "rounding") and not answer["differences"]


@pytest.mark.parametrize("program, name, fault, turned", BOTH_TURNS)
def test_a_fault_is_named_and_nothing_else(lastbit, recorded_pairs, program, name, fault, turned):
    nets = recorded_pairs(program)
    pair = [nets / f"{name}-first.lb", nets / f"{name}-{fault}.lb"]
    answer = lastbit.json("diff", *(reversed(pair) if turned else pair), expect=1)
    assert answer["verdict"] == "diverged" and answer["differences"]
    if (name, fault) in IN_ANOTHER_ORDER:
        assert any(map(is_in_layer_1, answer["differences"]))
        return
    assert is_in_layer_1(answer["first"])
    if (name, fault, turned) not in (*WITH_GRADIENTS, *CHOSEN_OTHERWISE):
        assert all(map(is_in_layer_1, answer["differences"])), [(d["layer"], d["op"]) for d in answer["differences"]]
