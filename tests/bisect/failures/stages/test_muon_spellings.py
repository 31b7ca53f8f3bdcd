"""Muon is found by what it computes, however it is written (tests/programs/muon_spellings.py), and nothing else is called so."""

import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests" / "programs"))

import muon_spellings  # noqa: E402

PROGRAM = "tests/programs/muon_spellings.py"
SPELLINGS = [f.__name__ for f in muon_spellings.SPELLINGS]
DECOYS = [f.__name__ for f in muon_spellings.DECOYS]


@pytest.mark.parametrize("name", SPELLINGS + ["plain/by-hand", "tiles_of_k/by-hand", "gram_space/by-hand"])
def test_an_iteration_that_overflows_is_muon(lastbit, tmp_path, name):
    """bf16 and f32 hold the same range: AdamW in its place cures, and the parameter whose update ran away is named."""
    capture = tmp_path / "run.lb"
    lastbit.record(capture, PROGRAM, name, "overflow", options=["--level", "ops"], expect=0)
    verdict = lastbit.json("bisect", "-q", capture, expect=1)
    for culprit in verdict["culprits"]:
        assert (culprit["axis"], culprit["phase"], culprit["step"], culprit["ranks"]) == ("muon", "optimizer", 2, [0])
        assert "mm" in culprit["op"] and culprit["parameter"] == culprit["layer"] + ".weight"
    assert {c["layer"] for c in verdict["culprits"]} == {"wide", "tall"}
    for swap in ("f32", "adamw"):
        done = lastbit.json("replay", "--mode", "chained", "--muon", swap, capture, expect=(0, 1))
        assert done["ops"]["opaque"] == 0
    lastbit.run("bisect", "--check", capture, "--muon", "adamw", expect=0)
    lastbit.run("bisect", "--check", capture, "--muon", "f32", expect=1)


@pytest.mark.parametrize("name", DECOYS + [f"{name}/by-hand" for name in DECOYS])
def test_other_uses_of_gram_matrices_are_no_muon(lastbit, tmp_path, name):
    lastbit.record(tmp_path / "run.lb", PROGRAM, name, options=["--level", "ops"], expect=0)
    assert lastbit.json("bisect", "-q", tmp_path / "run.lb", expect=0)["outcome"] == "clean"
    # Statistics that are made in the first step can be told from an iteration's once they have outlived it.
    done = lastbit.run("replay", "--mode", "chained", "--steps", "1-3", "--muon", "f32", tmp_path / "run.lb", expect=125)
    assert "nothing" in done.stderr + done.stdout or "no " in done.stderr + done.stdout


@pytest.mark.parametrize("name", DECOYS)
def test_a_failure_beside_them_is_not_muons(lastbit, tmp_path, name):
    """The stage is passed over: there is no Muon, whatever fails."""
    lastbit.record(tmp_path / "run.lb", PROGRAM, f"{name}/by-hand", options=["--level", "ops"], expect=0)
    verdict = lastbit.json("bisect", "-q", "--predicate", "max>1e-9@step=2&layer=head", tmp_path / "run.lb", expect=(1, 125))
    assert [s["note"] for s in verdict["stages"] if s["stage"] == "muon"] == ["no Muon in this window"]
