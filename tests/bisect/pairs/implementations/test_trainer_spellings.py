"""Losses and loops of trainers, each by two authors: what was not in sight when the comparison was made. A line that is edited is in the first place that is said."""

import importlib
import sys

import pytest
from conftest import FULL, ROOT

sys.path[:0] = [str(ROOT / "tests" / "programs"), str(ROOT / "capture")]
from written_twice import ask, record, source_of

PROGRAMS = ["trainer_losses", "trainer_loops", "published_losses", "published_loops"]
UNDECIDED = {"chunked-labels"}
# What is said lies in other lines: where a difference shows, and not where it was made.
ELSEWHERE = {
    "barlow-n", "chunked-all", "chunked-mean", "chunked-row", "dual_clip-bonus", "dual_clip-max", "hf_trainer-part", "hidden_match-square", "micro_steps-late",
    "ntxent-self", "orpo-lambda", "orpo-sum", "quantised-both", "quantised-straight", "quantised-swapped", "robust_dpo-swap", "several_tokens-detached",
    "torchtune-most", "torchtune-one",
}  # fmt: skip
# The first place is another one than that with the line, from one side at least.
LATER = {"accelerate-nodiv", "entropy_bonus-sign", "lookahead-none", "nanogpt-lone", "rloo-kl", "robust_dpo-beta", "torchtune-norm"}


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
        places = answer["differences"] if f"{name}-{fault}" in LATER else answer["differences"][:1]
        lines = {line for d in places for line in d["lines" if turned else "lines_b"]}
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


@pytest.mark.parametrize("loop, fault", [("micro_steps", "nodiv"), ("main_grads", "sum")])
def test_a_factor_that_a_loss_lacks_is_said(lastbit, tmp_path, loop, fault):
    """Nothing else differs: from losses of one size both sides leave the same."""
    program = importlib.import_module("trainer_loops")
    record(program, tmp_path, [loop, f"{loop}-second-{fault}"])
    answer = ask(lastbit, tmp_path, loop, f"{loop}-second-{fault}", expect=1)
    assert any("nothing takes that back" in text for text in answer["findings"])
    assert answer["differences"][0]["source_b"]["line"] == source_of(program, loop, fault)[2]


def test_a_factor_that_is_taken_back_hides_no_other_place(lastbit, tmp_path):
    """A loss times 512, and gradients by 1 / 256: backward is compared in units of the loss."""
    program = importlib.import_module("trainer_loops")
    record(program, tmp_path, ["unscaled", "unscaled-second-kept"])
    answer = ask(lastbit, tmp_path, "unscaled", "unscaled-second-kept", expect=1)
    assert any("backward was compared as if it were the same" in text for text in answer["findings"])
    assert {d["source_b"]["line"] for d in answer["differences"]} == {source_of(program, "unscaled", "kept")[2]}


@pytest.mark.parametrize("fault", ["alpha", "old"])
def test_other_memory_of_a_parameter_is_followed(lastbit, tmp_path, fault):
    """`p.data = …`: the next step begins with what that line gave."""
    program = importlib.import_module("trainer_loops")
    record(program, tmp_path, ["lookahead", f"lookahead-second-{fault}"])
    answer = ask(lastbit, tmp_path, "lookahead", f"lookahead-second-{fault}", expect=1)
    assert answer["differences"][0]["source_b"]["line"] == source_of(program, "lookahead", fault)[2]
