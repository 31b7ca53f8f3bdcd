"""Blocks of today's networks by two people, one pass and a step of training: what differs is layer 1, in the first lines and in the list."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT

PROGRAM = ROOT / "tests" / "programs" / "second_blocks.py"
sys.path.insert(0, str(PROGRAM.parent))
import second_blocks  # noqa: E402

FAULTS = [("train-" * trained + name, fault) for name, way, fault, trained in second_blocks.pairs() if fault]
# Halves that change places are where the numbers are, and only the order of a later sum tells: layer 2 is named, too.
IN_ANOTHER_ORDER = [("train-coupling", "halves-exchanged")]


@pytest.fixture(scope="module")
def nets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("blocks")
    environment = dict(os.environ, PYTHONPATH=str(ROOT / "capture"), OMP_NUM_THREADS="1")
    subprocess.run([sys.executable, PROGRAM, "--all", folder], env=environment, check=True, timeout=600)
    return folder


def is_in_layer_1(place):
    return any((side or "").split(".")[:2] == ["layers", "1"] for side in (place["layer"], place.get("layer_b")))


@pytest.mark.parametrize("name", [before + name for before in ("", "train-") for name in second_blocks.NETS])
@pytest.mark.parametrize("turned", [False, True])
def test_two_ways_are_one_function(lastbit, nets, name, turned):
    pair = [nets / f"{name}-first.lb", nets / f"{name}-second.lb"]
    answer = lastbit.json("diff", *(reversed(pair) if turned else pair))
    assert answer["verdict"] in ("identical", "reordered", "rounding") and not answer["differences"]


@pytest.mark.parametrize("name, fault", FAULTS)
def test_a_fault_is_named_and_nothing_else(lastbit, nets, name, fault):
    answer = lastbit.json("diff", nets / f"{name}-first.lb", nets / f"{name}-{fault}.lb", expect=1)
    assert answer["verdict"] == "diverged" and answer["differences"]
    if (name, fault) in IN_ANOTHER_ORDER:
        assert any(map(is_in_layer_1, answer["differences"]))
        return
    assert is_in_layer_1(answer["first"])
    assert all(map(is_in_layer_1, answer["differences"])), [(d["layer"], d["op"]) for d in answer["differences"]]


@pytest.mark.parametrize("name", second_blocks.NETS)
def test_turned_about_the_fault_is_named(lastbit, nets, name):
    """The faulty side first: of each net one fault, of one pass."""
    answer = lastbit.json("diff", nets / f"{name}-{second_blocks.NETS[name].faults[-1]}.lb", nets / f"{name}-first.lb", expect=1)
    assert answer["verdict"] == "diverged"
    assert all(map(is_in_layer_1, (answer["first"], *answer["differences"])))
