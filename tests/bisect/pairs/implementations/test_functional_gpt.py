"""Modules beside functions of stacked weights, which give new weights and states in every step (as JAX programs do)."""

import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests" / "programs"))
import functional_gpt  # noqa: E402

LAYERS = {"no-places": "places", "one-layer-less": "blocks.2"}


@pytest.fixture
def runs(recorded_pairs):
    return recorded_pairs("functional_gpt")


@pytest.mark.parametrize("trained", ["", "train-"])
@pytest.mark.parametrize("turned", [False, True])
def test_functions_are_the_modules(lastbit, runs, trained, turned):
    pair = [runs / f"{trained}first.lb", runs / f"{trained}second.lb"]
    answer = lastbit.json("diff", *(reversed(pair) if turned else pair), expect=0)
    assert answer["verdict"] == "rounding" and not answer["differences"] and not answer["missing"]


@pytest.mark.parametrize("fault", functional_gpt.MODEL_FAULTS)
def test_a_fault_of_the_model_is_the_one_place(lastbit, runs, fault):
    answer = lastbit.json("diff", runs / "first.lb", runs / f"{fault}.lb", expect=1)
    assert [d["layer"].startswith(LAYERS.get(fault, "blocks.1")) for d in answer["differences"]] == [True]
    assert answer["first"]["layer"] == answer["differences"][0]["layer"]


@pytest.mark.parametrize("fault", sorted(set(functional_gpt.faults_of(True)) & set(functional_gpt.MODEL_FAULTS)))
def test_so_it_is_where_the_model_is_trained(lastbit, runs, fault):
    answer = lastbit.json("diff", runs / "train-first.lb", runs / f"train-{fault}.lb", expect=1)
    assert [(d["phase"], d["layer"]) for d in answer["differences"]] == [("forward", "blocks.1")]


@pytest.mark.parametrize("fault", functional_gpt.STEP_FAULTS)
def test_a_fault_of_the_step_lies_in_the_update(lastbit, runs, fault):
    answer = lastbit.json("diff", runs / "train-first.lb", runs / f"train-{fault}.lb", expect=1)
    assert answer["differences"] and all(d["phase"] in ("optimizer", "other") for d in answer["differences"])
    assert answer["first"]["source_b"]["function"] in ("second_step", "<dictcomp>", "<genexpr>")
