"""A derivative that one side writes by hand is no place; one that is written wrong is, in its layer."""

import pytest


@pytest.fixture
def nets(recorded_pairs):
    return recorded_pairs("second_gradients", timeout=300)


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
