"""A derivative that one side writes by hand is no place; one that is written wrong is, in its layer."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT

PROGRAM = ROOT / "tests" / "programs" / "second_gradients.py"


@pytest.fixture(scope="module")
def nets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gradients")
    environment = dict(os.environ, PYTHONPATH=str(ROOT / "capture"), OMP_NUM_THREADS="1")
    subprocess.run([sys.executable, PROGRAM, "--all", folder], env=environment, check=True, timeout=300)
    return folder


@pytest.mark.parametrize("turned", [False, True])
def test_a_derivative_by_hand_is_the_same_function(lastbit, nets, turned):
    pair = [nets / "first.lb", nets / "second.lb"]
    answer = lastbit.json("diff", *(reversed(pair) if turned else pair))
    assert answer["verdict"] in ("identical", "reordered", "rounding") and not answer["differences"]


@pytest.mark.parametrize("turned", [False, True])
def test_a_wrong_slope_is_named_in_its_layer(lastbit, nets, turned):
    pair = [nets / "first.lb", nets / "wrong-slope.lb"]
    answer = lastbit.json("diff", *(reversed(pair) if turned else pair), expect=1)
    assert answer["verdict"] == "diverged" and answer["differences"]
    for place in (answer["first"], *answer["differences"]):
        assert any((side or "").startswith("layers.1") for side in (place["layer"], place.get("layer_b"))), place
