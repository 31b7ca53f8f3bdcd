"""Losses and loops of trainers, each by two authors: what was not in sight when the comparison was made. A line that is edited is named, or is among those listed."""

import importlib
import sys

import pytest
from conftest import FULL, ROOT

sys.path[:0] = [str(ROOT / "tests" / "programs"), str(ROOT / "capture")]
from written_twice import ask, record, source_of

PROGRAMS = ["trainer_losses", "trainer_loops"]
UNDECIDED = {"chunked-labels", "chunked-mean"}
# What is said lies in other lines: where a difference shows, and not where it was made.
ELSEWHERE = {
    "adam-bias", "averaged-decay", "barlow-n", "chunked-all", "chunked-row", "descent-decay", "descent-last", "descent-nodiv", "descent-same",
    "dual_clip-c", "dual_clip-max", "dual_clip-rows", "each_clipped-mean", "flow-reversed", "flow-twice", "groups-lr", "groups-norms", "items-all",
    "jensen-reverse", "kto-weights", "lookahead-alpha", "lookahead-none", "lookahead-old", "main_grads-kept", "main_grads-sum",
    "micro_steps-firsthalf", "micro_steps-late", "micro_steps-nodiv", "orpo-lambda", "quantised-both", "quantised-straight", "quantised-swapped",
    "robust_dpo-swap", "scheduled-late", "scheduled-peak", "scheduled-squared", "several_tokens-detached", "unscaled-kept", "unscaled-sum",
}  # fmt: skip


def faults_of(program, full=FULL):
    """All of them, or one of each."""
    return [(name, fault) for name, faults in program.FAULTS.items() for fault in (list(faults) if full else list(faults)[:1])]


@pytest.fixture(scope="module", params=PROGRAMS)
def recorded(request, tmp_path_factory):
    program = importlib.import_module(request.param)
    words = [word for name in program.FAULTS for word in (name, f"{name}-second")]
    words += [f"{name}-second-{fault}" for name, fault in faults_of(program)]
    return program, record(program, tmp_path_factory.mktemp(request.param), words)


@pytest.mark.parametrize("turned", [False, pytest.param(True, marks=pytest.mark.full)])
def test_two_authors_are_one_function(lastbit, recorded, turned):
    program, folder = recorded
    for name in program.FAULTS:
        answer = ask(lastbit, folder, name, f"{name}-second", turned, expect=0)
        assert answer["verdict"] in ("rounding", "reordered", "identical") and not answer["differences"], name


@pytest.mark.parametrize("turned", [False, pytest.param(True, marks=pytest.mark.full)])
def test_an_edited_line_is_among_those_said(lastbit, recorded, turned):
    program, folder = recorded
    for name, fault in faults_of(program):
        answer = ask(lastbit, folder, name, f"{name}-second-{fault}", turned, expect=1)
        if f"{name}-{fault}" in UNDECIDED:
            assert answer["verdict"] == "missing" and answer["missing"]
            continue
        assert answer["verdict"] == "diverged" and answer["differences"], (name, fault)
        lines = {line for d in answer["differences"] for line in d["lines" if turned else "lines_b"]}
        if f"{name}-{fault}" not in ELSEWHERE:
            assert source_of(program, name, fault)[2] in lines, (name, fault, lines)


@pytest.mark.full
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_truth_in_float64(name):
    program = importlib.import_module(name)
    for first, faults in program.FAULTS.items():
        left = program.final(first)
        assert (left - program.final(f"{first}-second")).abs().max() < 1e-8, first
        for fault in faults:
            assert (left - program.final(f"{first}-second-{fault}")).abs().max() > 1e-5, (first, fault)
