"""Architectures of transformers beside the same in plain torch: what differs is layer 1, in the first lines and in the list, and nothing else is named."""

import re
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests" / "programs"))
import second_architectures  # noqa: E402

FAULTS = [("train-" * trained + name, fault) for name, way, fault, trained in second_architectures.pairs() if fault]
LAYER = re.compile(r"(^|\.)(layers|layer|h)\.1(\.|$)")
# A factor that one side takes before the head and the other behind it is named behind a fault, too.
SCALED_OTHERWISE = [("cohere", "groups-repeated"), ("cohere", "in-turn"), ("cohere", "gate-and-value"), ("train-cohere", "turned-halves")]
# The second side's tables of places lack two rows that nothing reads: that these are updated alike is not known.
FEWER_ROWS = ("train-bart",)


@pytest.fixture
def nets(recorded_pairs):
    return recorded_pairs("second_architectures")


@pytest.mark.parametrize("name", [before + name for before in ("", "train-") for name in second_architectures.NETS])
@pytest.mark.parametrize("turned", [False, True])
def test_two_ways_are_one_function(lastbit, nets, name, turned):
    pair = [nets / f"{name}-first.lb", nets / f"{name}-second.lb"]
    answer = lastbit.json("diff", *(reversed(pair) if turned else pair))
    if turned and name in FEWER_ROWS:
        assert answer["verdict"] == "missing" and not answer["differences"]
        return
    assert answer["verdict"] in ("identical", "reordered", "rounding") and not answer["differences"]


@pytest.mark.parametrize("name, fault", FAULTS)
def test_a_fault_is_named_and_nothing_else(lastbit, nets, name, fault):
    pair = [nets / f"{name}-first.lb", nets / f"{name}-{fault}.lb"]
    turned = FAULTS.index((name, fault)) % 2
    answer = lastbit.json("diff", *(reversed(pair) if turned else pair), expect=1)
    assert answer["verdict"] == "diverged" and answer["differences"]
    with_another = (name, fault) in SCALED_OTHERWISE or name in FEWER_ROWS
    for place in (answer["first"], *([] if with_another else answer["differences"])):
        assert any(LAYER.search(side or "") for side in (place["layer"], place.get("layer_b"))), place
