"""One fault of each family that goes wrong in training (tests/programs/failure_families.py): the verdict is what a person who knows it
would answer, and the change that it prints cures."""

import shlex
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests" / "programs"))

import failure_families  # noqa: E402

PROGRAM = "tests/programs/failure_families.py"
CASES = {name: truth for name, (_, truth) in failure_families.FAULTS.items()}


@pytest.fixture(scope="module")
def verdicts(lastbit, tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("families"), {}

    def get(name):
        if name not in made:
            capture = folder / f"{name}.lb"
            lastbit.record(capture, PROGRAM, name, options=["--level", "ops"], expect=0)
            made[name] = lastbit.json("bisect", "-q", capture)
        return made[name]

    return get


@pytest.mark.parametrize("name", CASES)
def test_the_verdict_is_what_was_planted(verdicts, name):
    truth, verdict = CASES[name], verdicts(name)
    assert verdict["outcome"] == "found", verdict["reason"] or verdict["note"]
    culprit = verdict["culprit"]
    assert (culprit["axis"], culprit["step"], culprit["ranks"]) == (truth["axis"], truth["step"], [0])
    if truth["layer"] is not None:
        assert culprit["layer"] == truth["layer"] or (truth["layer"] and culprit["layer"].startswith(truth["layer"] + "."))
    assert (truth["op"] or "") in culprit["op"] and culprit["phase"] == (truth["phase"] or culprit["phase"])
    assert culprit["parameter"] == truth.get("parameter", culprit["parameter"])


@pytest.mark.parametrize("name", CASES)
def test_every_culprit_has_a_place(verdicts, name):
    for culprit in verdicts(name)["culprits"]:
        assert culprit["ranks"] and culprit["op"] and culprit["phase"] and culprit["step"] is not None and culprit["why"]
        assert culprit["layer"] or culprit["parameter"] or (culprit["phase"] == "forward" and name in ("loss_of_certainty", "row_of_the_batch"))


@pytest.mark.parametrize("name", ["weight_multiplied", "momentum_multiplied", "rate_of_one_group", "state_of_a_checkpoint", "gate_that_overflows"])
def test_the_change_that_is_printed_cures(lastbit, verdicts, name):
    verdict = verdicts(name)
    lastbit.run(*shlex.split(verdict["shows"])[1:], expect=1)
    lastbit.run(*shlex.split(verdict["cures"])[1:], expect=0)


def test_the_run_without_a_fault_is_clean(verdicts):
    assert verdicts("none")["outcome"] == "clean"
