"""Elements that change places, scaled branches, padded rows, tables that every layer has: what differs is layer 1, and nothing else is ever named."""

import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests" / "programs"))
import second_orders  # noqa: E402

FAULTS = [("train-" * trained + name, fault) for name, way, fault, trained in second_orders.pairs() if fault]


@pytest.fixture
def nets(recorded_pairs):
    return recorded_pairs("second_orders")


@pytest.mark.parametrize("name", [*second_orders.NETS, *("train-" + name for name in second_orders.TRAINED)])
@pytest.mark.parametrize("turned", [False, True])
def test_two_ways_are_one_function(lastbit, nets, name, turned):
    pair = [nets / f"{name}-first.lb", nets / f"{name}-second.lb"]
    answer = lastbit.json("diff", *(reversed(pair) if turned else pair), expect=0)
    assert answer["verdict"] in ("identical", "reordered", "rounding") and not answer["differences"] and not answer["missing"]


@pytest.mark.parametrize("name, fault", FAULTS)
def test_a_fault_is_named_and_nothing_else(lastbit, nets, name, fault):
    pair = [nets / f"{name}-first.lb", nets / f"{name}-{fault}.lb"]
    turned = FAULTS.index((name, fault)) % 2
    answer = lastbit.json("diff", *(reversed(pair) if turned else pair), expect=1)
    assert answer["verdict"] == "diverged" and answer["differences"]
    for place in (answer["first"], *answer["differences"]):
        sides = [place["layer"], place.get("layer_b") or ""]
        unknown = name == "frames" and place["op"] == "lb::source"  # an input: no token says which frame is which
        assert unknown or any(side.split(".")[:2] == ["layers", "1"] for side in sides), place


def test_the_line_that_changes_the_order_is_named(lastbit, nets):
    """A shuffle that one side leaves out: numbers meet before and behind it, and the next reader is not to blame."""
    answer = lastbit.json("diff", nets / "shuffle-first.lb", nets / "shuffle-left-out.lb", expect=1)
    assert [d["op"] for d in answer["differences"]] == ["aten::clone"]
    assert "transpose(1, 2).flatten" in answer["first"]["source"]["text"]
