"""Failing runs as strangers bring them (tests/programs/failing_gpt.py, ranks/failing_ranks.py): causes outside every block too.

Each verdict must name what a person has to change, say why, leave a reproducer that fails by itself, and print commands that
work when they are pasted.
"""

import re
import shlex

import pytest

GPT, RANKS = "tests/programs/failing_gpt.py", "tests/programs/ranks/failing_ranks.py"

# case -> axis, block, layer, op, phase, step of the culprit; words that must stand in the verdict; most ops of the reproducer
CASES = {
    "log-zero": ("block", None, "", "aten::log", "forward", 2, "the logarithm of 0", 20),
    "entropy": ("block", None, "", "aten::log", "forward", 2, "the logarithm of 0", 30),
    "empty-mask": ("block", None, "", r"aten::div\.Tensor", "forward", 2, "0 divided by 0", 20),
    "clip-zero": ("block", None, "(emb)?", "aten::reciprocal", None, 2, "a division by 0", 30),
    "adam-eps": ("block", None, "emb", "aten::addcdiv_", "optimizer", 0, "0 divided by 0", 80),
    "bad-weight": ("source", "A", r"blocks\.1\.attn\.out", "lb::source", "forward", 0, "had 1 non-finite of 1024 elements", 40),
    "huge-weight": ("block", "D", r"blocks\.2\.mlp\.fc", "aten::addmm", "forward", 0, "more than its dtype can hold", 1500),
    "rope": ("precision", "A", r"blocks\.0\.attn", r"aten::mul\.Tensor", "forward", 0, "what lacked is range", 80),
    "half": ("precision", None, "emb|blocks.*|head|norm", "aten::(addcmul_|add_.Tensor)", "optimizer", 0, "what lacked is range", 10),
    "autocast": ("precision", "A", r"blocks\.1\.attn", "aten::bmm", "forward", 2, "what lacked is range", 80),
}
ALWAYS = ["log-zero", "adam-eps", "bad-weight", "half"]


def check_commands(lastbit, verdict, small):
    assert verdict["reproducer"] == str(small), verdict["note"]
    lastbit.run(*shlex.split(verdict["shows"])[1:], expect=1)
    lastbit.run(*shlex.split(verdict["cures"])[1:], expect=0)
    again = lastbit.json("bisect", small, "-q", expect=1)
    assert again["failure"]["kind"] == verdict["failure"]["kind"]
    assert again["culprit"]["op"] in [c["op"] for c in verdict["culprits"]]


@pytest.mark.parametrize("case", [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.full) for name in CASES])
def test_what_a_person_has_to_change_is_named(case, lastbit, tmp_path):
    axis, block, layer, op, phase, step, words, most_ops = CASES[case]
    capture, small = tmp_path / "run.lb", tmp_path / "small.lb"
    lastbit.record(capture, GPT, case, expect=0)
    verdict = lastbit.json("bisect", capture, "-q", "-o", small, expect=1)
    culprit = verdict["culprit"]
    assert (culprit["axis"], culprit["block"], culprit["step"]) == (axis, block, step)
    assert re.fullmatch(layer, culprit["layer"]) and re.fullmatch(op, culprit["op"])
    assert phase in (None, culprit["phase"])
    assert words in culprit["why"] + verdict["begins"]["text"]
    assert len(verdict["trials"]) < 60 or case == "rope"  # there every layer computes its own positions
    check_commands(lastbit, verdict, small)
    assert verdict["reproducer_size"]["ops"] <= most_ops


def test_a_learning_rate_that_is_too_large_is_the_cause(lastbit, tmp_path):
    """Nothing that the program computes is wrong; with smaller updates it does not fail."""
    capture, small = tmp_path / "run.lb", tmp_path / "small.lb"
    lastbit.record(capture, GPT, "lr", expect=0)
    verdict = lastbit.json("bisect", capture, "-q", "-o", small, expect=1)
    assert (verdict["failure"]["kind"], verdict["failure"]["step"]) == ("gross", 0)
    begins, culprit = verdict["begins"], verdict["culprit"]
    assert (begins["step"], begins["phase"]) == (0, "optimizer")
    assert re.match(r"SGD makes \S+ \S+ times as large at a learning rate of 3e\+04", begins["text"])
    assert (culprit["axis"], culprit["phase"], culprit["step"]) == ("source", "optimizer", 0)
    assert "The update is too large" in culprit["why"] and "at a learning rate of 3e+04" in culprit["why"]
    assert [s["outcome"] for s in verdict["stages"] if s["stage"] == "update"] == ["cured"]
    check_commands(lastbit, verdict, small)


@pytest.mark.parametrize("form", ["single", pytest.param("foreach", marks=pytest.mark.full), pytest.param("fused", marks=pytest.mark.full)])
def test_updates_are_made_smaller_whatever_form_the_optimizer_has(form, lastbit, tmp_path):
    lastbit.record(tmp_path / "run.lb", "tests/programs/failing_llama.py", "rate", "--steps", "3", "--optimizer", form, expect=0)
    verdict = lastbit.json("bisect", tmp_path / "run.lb", "-q", expect=1)
    assert (verdict["culprit"]["axis"], verdict["culprit"]["phase"], verdict["culprit"]["step"]) == ("source", "optimizer", 0)
    assert "AdamW makes" in verdict["culprit"]["why"]
    lastbit.run("bisect", "--check", tmp_path / "run.lb", "--update", "1", expect=1)
    lastbit.run("bisect", "--check", tmp_path / "run.lb", "--update", "0", expect=0)
    assert lastbit.run("bisect", "--check", tmp_path / "run.lb", "--update", "2").returncode == 129


@pytest.mark.parametrize(
    "case,rank,op,step",
    [
        ("nan-data", 2, "aten::copy_", 0),  # what prepares step 1's data runs after step 0's optimizer
        pytest.param("huge-data", 1, "aten::addmm", 1, marks=pytest.mark.full),
        pytest.param("log", 3, "aten::log", 1, marks=pytest.mark.full),
    ],
)
def test_the_rank_that_spoils_the_others_is_named(case, rank, op, step, lastbit, tmp_path):
    capture = tmp_path / "run.lb"
    lastbit.record(capture, RANKS, case, tmp_path, expect=0)
    verdict = lastbit.json("bisect", capture, "-q", expect=1)
    culprit = verdict["culprit"]
    assert (culprit["axis"], culprit["ranks"], culprit["op"], culprit["step"]) == ("rank", [rank], op, step)
    assert verdict["failure"]["step"] == 1
    lastbit.run(*shlex.split(verdict["cures"])[1:], expect=0)
