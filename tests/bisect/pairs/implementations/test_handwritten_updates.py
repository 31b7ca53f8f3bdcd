"""Optimizers written by hand, by two authors each: one function however they are spelled, and a wrong number is said, with its line."""

import sys

import pytest
from conftest import ROOT

sys.path[:0] = [str(ROOT / "tests" / "programs"), str(ROOT / "capture")]
import handwritten_updates
from written_twice import ask, record, source_of

# The number that puts the second side right, and the one that it has.
NUMBERS = {
    "muon-quintic": ("2.0315", "2.0135"),
    "muon-linear": ("3.4445", "3.4455"),
    "muon-cubic": ("-4.775", "-4.757"),
    "muon-rate": ("0.02", "0.03"),
    "adamw-eps": ("1e-05", "0.001"),
    "adafactor-floor": ("1e-10", "0.0001"),
}
# Another line of the same update is said first; a turn of a loop and a factor that is left out are no ops.
BESIDE = {"muon-turns", "muon-shape", "muon-plain", "adamw-uncorrected"}
EACH = [(name, fault) for name, faults in handwritten_updates.FAULTS.items() for fault in faults]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return record(handwritten_updates, tmp_path_factory.mktemp("updates"))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", handwritten_updates.FAULTS)
def test_an_update_is_one_function_however_it_is_written(lastbit, recorded, name, turned):
    answer = ask(lastbit, recorded, name, f"{name}-second", turned, expect=0)
    assert answer["verdict"] in ("rounding", "reordered", "identical") and not answer["differences"]


@pytest.mark.parametrize("name, fault", EACH)
def test_the_line_is_that_of_the_edit(lastbit, recorded, name, fault):
    answer = ask(lastbit, recorded, name, f"{name}-second-{fault}", expect=1)
    assert answer["verdict"] == "diverged" and answer["differences"]
    line, first = source_of(handwritten_updates, name, fault)[2], answer["differences"][0]
    if f"{name}-{fault}" not in BESIDE:
        assert first["source_b"]["line"] == line
    assert line == first["source_b"]["line"] or line in first["lines_b"]
    assert {d["phase"] for d in answer["differences"]} == {"optimizer"}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("which", NUMBERS)
def test_the_number_is_said(lastbit, recorded, which, turned):
    name, fault = which.split("-")
    answer = ask(lastbit, recorded, name, f"{name}-second-{fault}", turned, expect=1)
    said = " ".join(
        [d["why"] for d in answer["differences"]]
        + [f"with {a['first']} in place of {a['second']} in" for d in answer["differences"] for a in d["arguments"]]
    ).replace("-", "")
    right, wrong = (number.replace("-", "") for number in NUMBERS[which])
    assert f"with {right} in place of {wrong} in" in said or f"with {wrong} in place of {right} in" in said
