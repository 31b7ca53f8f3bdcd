"""Trials begin at the latest step that their change leaves as it was: the same trials, outcomes and verdict as from the first
step, on one process and on several."""

import pytest


def both(lastbit, capture, *options, expect=1):
    answers = [lastbit.json("bisect", capture, "-q", *options, *more, expect=expect) for more in ([], ["--from-start"])]
    for answer in answers:
        answer.pop("seconds", None)
        for trial in answer["trials"]:
            assert trial.pop("seconds") >= 0
    assert answers[0] == answers[1]
    return answers[0]


@pytest.mark.parametrize(
    "program,arguments,axis",
    [
        ("tests/programs/failing_llama.py", ["gradient"], "block"),
        ("tests/programs/failing_llama.py", ["half"], "precision"),
        pytest.param("tests/programs/failing_llama.py", ["overflow"], "block", marks=pytest.mark.full),
        pytest.param("tests/programs/hard_cases.py", ["two-axes"], "precision", marks=pytest.mark.full),
        pytest.param("tests/programs/hard_cases.py", ["spike"], "source", marks=pytest.mark.full),
        pytest.param("tests/programs/failing_gpt.py", ["adam-eps"], "block", marks=pytest.mark.full),
    ],
)
def test_trials_from_a_checkpoint_give_what_whole_ones_give(program, arguments, axis, lastbit, tmp_path):
    lastbit.record(tmp_path / "run.lb", program, *arguments, expect=0)
    assert both(lastbit, tmp_path / "run.lb")["culprit"]["axis"] == axis


def test_ranks_meet_after_a_checkpoint_as_before_it(lastbit, tmp_path):
    lastbit.record(tmp_path / "run.lb", "tests/programs/ranks/failing_ranks.py", "nan-data", tmp_path, expect=0)
    assert both(lastbit, tmp_path / "run.lb")["culprit"]["axis"] == "rank"


def test_a_limit_on_memory_leaves_the_verdict_as_it_is(lastbit, tmp_path):
    lastbit.record(tmp_path / "run.lb", "tests/programs/failing_llama.py", "gradient", expect=0)
    answers = [lastbit.json("bisect", tmp_path / "run.lb", "-q", "--memory", f"{megabytes}M", expect=1) for megabytes in (8, 10, 14, 1000)]
    assert all(a["culprits"] == answers[0]["culprits"] for a in answers)
