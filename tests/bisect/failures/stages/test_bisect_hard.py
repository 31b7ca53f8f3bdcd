"""Runs that are easily blamed on the wrong place (tests/programs/hard_cases.py): who acted, not who showed it.

A culprit that is finite itself, one that acts steps before, several at once, one that a sanitiser hides, data that nobody
checked; and what looks like a failure and is none.
"""

import shlex

import pytest

PROGRAM = "tests/programs/hard_cases.py"

# case -> culprits as (axis, block, layer, op, phase, step), the stage that finds them, the step of the failure
CASES = {
    "underflow": ([("precision", None, "score", "aten::_to_copy", "forward", 2)], "precision", 2),
    "spike": ([("source", "D", "layers.3.mlp.down", "aten::addcdiv_", "optimizer", 1)], "update", 2),
    "two-blocks": (
        [("block", "E", "layers.1.moe", "aten::mul.Tensor", "forward", 2), ("block", "M", "layers.2.scan", "aten::exp", "forward", 2)],
        "several",
        2,
    ),
    "two-axes": (
        [("precision", "A", "layers.0.attention", "aten::bmm", "forward", 2), ("block", "M", "layers.2.scan", "aten::exp", "forward", 2)],
        "several",
        2,
    ),
    "range": ([("precision", "A", "layers.0.attention", "aten::bmm", "forward", 2)], "precision", 2),
    "precision": ([("precision", "D", "layers.3.mlp", "aten::_to_copy", "forward", 2)], "precision", 2),
    "hidden": ([("block", "D", "layers.3.mlp", "aten::div.Tensor", "backward", 2)], "block", 2),
    # What prepares step 2's data runs after step 1's optimizer, and belongs to the program of step 1.
    "batch-nan": ([("source", None, "", "lb::source", None, 1)], "source", 2),
    "batch-huge": ([("source", None, "", "lb::source", None, 2)], "source", 2),
    "labels": ([("source", None, "", "lb::source", None, 1)], "source", 2),
    "bytes": ([("source", "D", "layers.3.mlp.up", "lb::source", None, 2)], "sanity", 2),
}
ALWAYS = ["underflow", "two-axes"]
INNOCENT = ["mask", "skipped", "none"]


@pytest.fixture(scope="module")
def recorded(lastbit, tmp_path_factory):
    captures = {}

    def record(case):
        if case not in captures:
            captures[case] = tmp_path_factory.mktemp(case) / "run.lb"
            lastbit.record(captures[case], PROGRAM, case, expect=0)
        return captures[case]

    return record


def place(culprit, like):
    found = tuple(culprit[key] for key in ("axis", "block", "layer", "op", "phase", "step"))
    return tuple(None if b is None and i == 4 else a for i, (a, b) in enumerate(zip(found, like)))


@pytest.mark.parametrize("case", [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.full) for name in CASES])
def test_who_acted_is_named(case, lastbit, recorded, tmp_path):
    culprits, stage, shows = CASES[case]
    capture, small = recorded(case), tmp_path / "small.lb"
    verdict = lastbit.json("bisect", capture, "-q", "-o", small, expect=1)
    assert verdict["failure"]["step"] == shows
    assert [place(c, like) for c, like in zip(verdict["culprits"], culprits)] == culprits
    assert len(verdict["culprits"]) == len(culprits)
    assert [s["outcome"] for s in verdict["stages"] if s["stage"] == stage] == ["found" if stage == "sanity" else "cured"]

    # The one change cures, pasted as it is printed; without it the window fails.
    assert lastbit.run(*shlex.split(verdict["cures"])[1:], expect=0)
    assert lastbit.run(*shlex.split(verdict["shows"])[1:], expect=1)
    again = lastbit.json("bisect", small, "-q", expect=1)
    assert place(again["culprit"], culprits[0]) == culprits[0]
    assert verdict["reproducer_size"]["ops"] < 50 or case == "spike"


@pytest.mark.full
def test_range_and_precision_are_told_apart(lastbit, recorded):
    why = {case: lastbit.json("bisect", recorded(case), "-q", expect=1)["culprit"]["why"] for case in ("range", "precision")}
    assert "what lacked is range" in why["range"]
    assert "what lacked is precision" in why["precision"]


@pytest.mark.full
def test_an_overflow_that_f64_would_hold_is_a_note_and_no_axis(lastbit, recorded):
    verdict = lastbit.json("bisect", recorded("two-blocks"), "-q", expect=1)
    precision = verdict["stages"][2]
    assert precision["stage"] == "precision" and precision["outcome"] == "cleared"
    assert "f64 in place of f32 would cure" in precision["note"]
    assert [t["purpose"] for t in verdict["trials"] if t["change"] == "--precision f64"] == ["note"]


@pytest.mark.full
def test_a_culprit_cured_beside_others_is_said_to_be(lastbit, recorded):
    verdict = lastbit.json("bisect", recorded("two-axes"), "-q", expect=1)
    assert "and nothing else changed" not in verdict["culprits"][0]["why"]
    assert all("the other culprits cured" in c["why"] for c in verdict["culprits"])


@pytest.mark.full
@pytest.mark.parametrize("case", INNOCENT)
def test_what_is_meant_to_be_infinite_is_no_failure(case, lastbit, recorded):
    verdict = lastbit.json("bisect", recorded(case), "-q", expect=0)
    assert verdict["outcome"] == "clean"
    assert (verdict["note"] is not None) == (case == "skipped")
    if case == "skipped":
        assert "the loss scaler met non-finite gradients and skips the step" in verdict["note"]


@pytest.mark.full
def test_layers_that_only_inherit_a_difference_are_no_culprits(lastbit, recorded):
    verdict = lastbit.json("bisect", recorded("batch-huge"), "--against", recorded("none"), "-q", expect=1)
    assert len(verdict["culprits"]) == 1
    assert verdict["culprit"]["layer"] == ""  # the data: no layer computes otherwise
