"""Small operators by two people, one pass and a step of training: what differs is layer 1, in the first lines and in the list."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT

PROGRAM = ROOT / "tests" / "programs" / "second_operators.py"
sys.path.insert(0, str(PROGRAM.parent))
import second_operators  # noqa: E402

FAULTS = [("train-" * trained + name, fault) for name, way, fault, trained in second_operators.pairs() if fault]
# The faulty side first: the other one loops over the experts that were chosen, and what was chosen behind the fault is taken as recorded.
CHOSEN_OTHERWISE = [("experts", "no-shared")]
# A gradient of layer 0 is listed, too: of a state that goes through all rows.
WITH_GRADIENTS = [("train-recurrent", "begins-with-ones")]


@pytest.fixture(scope="module")
def nets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("operators")
    environment = dict(os.environ, PYTHONPATH=str(ROOT / "capture"), OMP_NUM_THREADS="1")
    subprocess.run([sys.executable, PROGRAM, "--all", folder], env=environment, check=True, timeout=600)
    return folder


def is_in_layer_1(place):
    return any((side or "").split(".")[:2] == ["layers", "1"] for side in (place["layer"], place.get("layer_b")))


@pytest.mark.parametrize("name", [before + name for before in ("", "train-") for name in second_operators.NETS])
@pytest.mark.parametrize("turned", [False, True])
def test_two_ways_are_one_function(lastbit, nets, name, turned):
    pair = [nets / f"{name}-first.lb", nets / f"{name}-second.lb"]
    answer = lastbit.json("diff", *(reversed(pair) if turned else pair))
    assert answer["verdict"] in ("identical", "reordered", "rounding") and not answer["differences"]


@pytest.mark.parametrize("name, fault", FAULTS)
def test_a_fault_is_named_and_nothing_else(lastbit, nets, name, fault):
    pair = [nets / f"{name}-first.lb", nets / f"{name}-{fault}.lb"]
    turned = not name.startswith("train-") and FAULTS.index((name, fault)) % 2
    answer = lastbit.json("diff", *(reversed(pair) if turned else pair), expect=1)
    assert answer["verdict"] == "diverged" and answer["differences"]
    assert is_in_layer_1(answer["first"])
    if (name, fault) not in (*WITH_GRADIENTS, *CHOSEN_OTHERWISE):
        assert all(map(is_in_layer_1, answer["differences"])), [(d["layer"], d["op"]) for d in answer["differences"]]
