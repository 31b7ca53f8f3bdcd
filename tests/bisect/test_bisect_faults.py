"""Freshly recorded faults are bisected to where the sample planted them; each reproducer fails by itself; a clean run is clean.

Two faults in every run; --full takes all of them.
"""
import pathlib
import re
import runpy

import pytest

SAMPLE = "samples/hybrid_lm.py"
TRUTH = runpy.run_path(str(pathlib.Path(__file__).parents[2] / SAMPLE))["TRUTH"]
ALWAYS = ["polar-bf16", "stale-scale"]
FAILING = [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.full)
           for name, truth in TRUTH.items() if truth["shows"] is not None]


def ops_of(lastbit, capture):
    return lastbit.json("replay", "--mode", "chained", capture)["ops"]["total"]


@pytest.mark.parametrize("fault", FAILING)
def test_fault_is_found_where_it_was_planted(fault, lastbit, tmp_path):
    truth = TRUTH[fault]
    capture, small = tmp_path / "run.lb", tmp_path / "small.lb"
    lastbit.record(capture, SAMPLE, "--fault", fault)

    verdict = lastbit.json("bisect", capture, "-q", "-o", small, expect=1)
    assert verdict["outcome"] == "found"
    culprit = verdict["culprit"]
    assert culprit["axis"] == truth["axis"]
    assert culprit["ranks"] == truth["ranks"]
    assert culprit["block"] == truth["block"]
    assert re.fullmatch(truth["layer"], culprit["layer"])
    assert culprit["op"] == truth["op"]
    assert culprit["phase"] == truth["phase"]
    assert culprit["step"] == truth["acts"]
    assert truth["acts"] <= verdict["failure"]["step"] <= truth["shows"]
    assert verdict["cure"]

    assert verdict["reproducer"] == str(small)
    again = lastbit.json("bisect", small, "-q", expect=(1, 125))
    assert again["failure"]["step"] == verdict["failure"]["step"]
    assert ops_of(lastbit, small) < ops_of(lastbit, capture) / 4


@pytest.fixture(scope="module")
def clean(lastbit, tmp_path_factory):
    """Clean runs by precision, recorded when first asked for."""
    captures = {}

    def record(precision):
        if precision not in captures:
            captures[precision] = tmp_path_factory.mktemp("clean") / "run.lb"
            lastbit.record(captures[precision], SAMPLE, "--precision", precision, expect=0)
        return captures[precision]

    return record


def test_clean_run_is_clean(lastbit, clean):
    verdict = lastbit.json("bisect", clean("fp32"), "-q", expect=0)
    assert verdict["outcome"] == "clean"
    assert verdict["culprits"] == [] and verdict["culprit"] is None
    assert [stage["stage"] for stage in verdict["stages"]] == ["sanity"]


DIFFERING = [name if name == "dropped-term" else pytest.param(name, marks=pytest.mark.full)
             for name, truth in TRUTH.items() if truth["shows"] is None]


@pytest.mark.parametrize("fault", DIFFERING)
def test_difference_is_found_where_it_was_planted(fault, lastbit, clean, tmp_path):
    truth = TRUTH[fault]
    capture, reference = tmp_path / "run.lb", clean(truth.get("settings", {}).get("precision", "fp32"))
    lastbit.record(capture, SAMPLE, "--fault", fault, expect=0)
    culprit = lastbit.json("bisect", capture, "--against", reference, "-q", expect=1)["culprit"]
    assert culprit["axis"] == truth["axis"]
    assert culprit["ranks"] == truth["ranks"]
    assert culprit["block"] == truth["block"]
    assert re.fullmatch(truth["layer"], culprit["layer"])
    assert culprit["op"] == truth["op"]
    assert culprit["phase"] == truth["phase"]
    assert culprit["step"] == truth["acts"]


def test_a_run_against_itself_is_clean(lastbit, clean):
    verdict = lastbit.json("bisect", clean("fp32"), "--against", clean("fp32"), "-q", expect=0)
    assert verdict["outcome"] == "clean"
