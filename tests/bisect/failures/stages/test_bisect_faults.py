"""Freshly recorded faults are bisected to where the sample planted them; each reproducer fails by itself and has the same
culprit; a clean run is clean.

Two faults in every run; --full takes all of them, at other levels, seeds, patterns and settings too, so that nothing is tuned
to one run.
"""

import pathlib
import re
import runpy
import shlex

import pytest

SAMPLE = "samples/hybrid_lm.py"
TRUTH = runpy.run_path(str(pathlib.Path(__file__).parents[4] / SAMPLE))["TRUTH"]
PATTERN = "AEMRAD"  # the sample's own
ALWAYS = ["polar-bf16", "stale-scale"]
FAILING = [name for name, truth in TRUTH.items() if truth["shows"] is not None]
DIFFERING = [name for name in TRUTH if name not in FAILING]
PLACE = ["axis", "ranks", "block", "layer", "op", "phase", "step"]


def expected(fault, pattern=PATTERN, ranks=None):
    """TRUTH for other positions of the blocks, or another number of ranks."""
    truth = dict(TRUTH[fault])
    if fault == "stale-scale":
        truth["layer"] = rf"layers\.{pattern.rindex('A')}\.attention\.qkv"
    elif fault == "scan-overflow":
        truth["layer"] = rf"layers\.{pattern.index('M')}\.scan"
    elif fault == "bad-expert":
        truth["layer"] = rf"layers\.{pattern.index('E')}\.moe\.experts\.2(\..*)?"
    elif fault in DIFFERING:
        truth["layer"], truth["block"] = rf"layers\.{len(pattern) // 2}\.norm", pattern[len(pattern) // 2]
    if fault == "poisoned-rank" and ranks:
        truth["ranks"] = [min(2, ranks - 1)]
    return truth


def check_culprit(culprit, truth):
    assert culprit["axis"] == truth["axis"]
    assert culprit["ranks"] == truth["ranks"]
    assert culprit["block"] == truth["block"]
    assert re.fullmatch(truth["layer"], culprit["layer"])
    assert culprit["op"] == truth["op"]
    assert culprit["phase"] == truth["phase"]
    assert culprit["step"] == truth["acts"]


def check_reproducer(lastbit, capture, verdict, small):
    assert verdict["reproducer"] == str(small), verdict["note"]
    again = lastbit.json("bisect", small, "-q", expect=1)
    assert again["failure"]["kind"] == verdict["failure"]["kind"]
    assert again["failure"]["step"] == verdict["failure"]["step"]
    assert {key: again["culprit"][key] for key in PLACE} == {key: verdict["culprit"][key] for key in PLACE}
    replayed = lastbit.json("replay", "--mode", "chained", small, expect=0)
    assert replayed["verdict"] == "identical" and replayed["ops"]["opaque"] == 0  # it says of itself what it computes
    window = lastbit.json("replay", "--mode", "chained", capture)
    size = verdict["reproducer_size"]
    assert 0 < size["ops"] < window["ops"]["total"] / 20
    assert 0 < size["bytes"] < sum(f.stat().st_size for f in capture.iterdir()) / 20
    stray = [name for name in small.iterdir() if not re.fullmatch(r"rank-\d{5}\.tar", name.name)]
    assert stray == []


def paste(lastbit, command, expect):
    """Runs a printed command as a shell would."""
    words = shlex.split(command)
    assert words[0] == "lastbit"
    return lastbit.run(*words[1:], expect=expect)


def check_verdict(lastbit, capture, truth, small):
    verdict = lastbit.json("bisect", capture, "-q", "-o", small, expect=1)
    assert verdict["outcome"] == "found"
    check_culprit(verdict["culprit"], truth)
    assert truth["acts"] <= verdict["failure"]["step"] <= truth["shows"]
    check_reproducer(lastbit, capture, verdict, small)
    paste(lastbit, verdict["shows"], 1)
    paste(lastbit, verdict["cures"], 0)
    return verdict


@pytest.mark.parametrize("fault", [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.full) for name in FAILING])
def test_fault_is_found_where_it_was_planted(fault, lastbit, tmp_path):
    capture = tmp_path / "run.lb"
    lastbit.record(capture, SAMPLE, "--fault", fault)
    verdict = check_verdict(lastbit, capture, expected(fault), tmp_path / "small.lb")

    # The narrow cure is known to cure, whatever was shown for brevity.
    options = shlex.split(verdict["cure"])
    assert lastbit.json("bisect", "--check", capture, *options, expect=0)["outcome"] == "clean"
    # The same from one packed file.
    packed = tmp_path / "run.lbz"
    lastbit.run("pack", capture, "-o", packed, expect=0)
    again = lastbit.json("bisect", packed, "-q", expect=1)
    assert again["culprits"] == verdict["culprits"]


@pytest.mark.full
@pytest.mark.parametrize("level", ["sources", "layers", "ops"])
@pytest.mark.parametrize("fault", FAILING)
def test_fault_is_found_at_every_level_that_keeps_sources(fault, level, lastbit, tmp_path):
    capture = tmp_path / "run.lb"
    lastbit.record(capture, SAMPLE, "--fault", fault, options=["--level", level])
    check_verdict(lastbit, capture, expected(fault), tmp_path / "small.lb")


@pytest.mark.full
@pytest.mark.parametrize("pattern", ["EMADRA", "DAEMRAD", "MRDEAA", "AAMMEE", "RAEM"])
@pytest.mark.parametrize("fault", [name for name in FAILING if name != "poisoned-rank"])
def test_fault_is_found_wherever_the_blocks_stand(fault, pattern, lastbit, tmp_path):
    capture = tmp_path / "run.lb"
    lastbit.record(capture, SAMPLE, "--fault", fault, "--pattern", pattern)
    check_verdict(lastbit, capture, expected(fault, pattern), tmp_path / "small.lb")


@pytest.mark.full
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("fault", FAILING)
def test_fault_is_found_with_other_data_and_weights(fault, seed, lastbit, tmp_path):
    capture = tmp_path / "run.lb"
    lastbit.record(capture, SAMPLE, "--fault", fault, "--seed", seed)
    check_verdict(lastbit, capture, expected(fault), tmp_path / "small.lb")


SETTINGS = {
    "adamw": ["--optimizer", "adamw"],
    "foreach": ["--adamw", "foreach"],
    "fused": ["--adamw", "fused"],
    "sdpa": ["--attention", "sdpa"],
    "tied": ["--tied"],
    "accumulate": ["--accumulate", "2"],
    "bf16": ["--precision", "bf16"],
    "autocast": ["--precision", "autocast"],
    "fp8": ["--precision", "fp8"],
    "grouped": ["--experts-kind", "grouped"],
}
# A setting that takes the fault away, or makes another of it: an e4m3 expert saturates first, and loses at the rounding.
NOT_THERE = {
    ("polar-bf16", "adamw"),
    ("stale-scale", "bf16"),
    ("stale-scale", "autocast"),
    ("stale-scale", "grouped"),
    ("bad-expert", "grouped"),
    ("bad-expert", "fp8"),
    ("poisoned-rank", "accumulate"),
}


@pytest.mark.full
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("fault", FAILING)
def test_fault_is_found_under_other_settings(fault, setting, lastbit, tmp_path):
    if (fault, setting) in NOT_THERE:
        pytest.skip("the setting takes this fault away or makes another of it")
    capture = tmp_path / "run.lb"
    lastbit.record(capture, SAMPLE, "--fault", fault, *SETTINGS[setting])
    check_verdict(lastbit, capture, expected(fault), tmp_path / "small.lb")


@pytest.mark.full
def test_of_two_ranks_the_poisoned_one_is_found(lastbit, tmp_path):
    capture = tmp_path / "run.lb"
    lastbit.record(capture, SAMPLE, "--fault", "poisoned-rank", "--spawn", 2)
    check_verdict(lastbit, capture, expected("poisoned-rank", ranks=2), tmp_path / "small.lb")


@pytest.mark.full
def test_an_expert_that_saturates_first_acts_a_step_before_it_shows(lastbit, tmp_path):
    capture, small = tmp_path / "run.lb", tmp_path / "small.lb"
    lastbit.record(capture, SAMPLE, "--fault", "bad-expert", "--precision", "fp8")
    verdict = lastbit.json("bisect", capture, "-q", "-o", small, expect=1)
    culprit = verdict["culprit"]
    assert (culprit["axis"], culprit["block"], culprit["step"]) == ("block", "E", 2)
    assert re.fullmatch(r"layers\.1\.moe\.experts\.2\.gate_up", culprit["layer"])
    assert verdict["failure"]["step"] == 3
    assert lastbit.json("bisect", small, "-q", expect=1)["culprit"]["step"] == 2


# ---- runs that do not fail -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clean(lastbit, tmp_path_factory):
    """Clean runs by their options, recorded when first asked for."""
    captures = {}

    def record(*options):
        if options not in captures:
            captures[options] = tmp_path_factory.mktemp("clean") / "run.lb"
            lastbit.record(captures[options], SAMPLE, *options, expect=0)
        return captures[options]

    return record


def check_clean(lastbit, capture):
    verdict = lastbit.json("bisect", capture, "-q", expect=0)
    assert verdict["outcome"] == "clean"
    assert verdict["culprits"] == [] and verdict["culprit"] is None and verdict["failure"] is None
    assert [stage["stage"] for stage in verdict["stages"]] == ["sanity"]


def test_clean_run_is_clean(lastbit, clean):
    check_clean(lastbit, clean())


@pytest.mark.full
@pytest.mark.parametrize("setting", SETTINGS)
def test_clean_run_is_clean_under_other_settings(setting, lastbit, clean):
    check_clean(lastbit, clean(*SETTINGS[setting]))


@pytest.mark.full
def test_clean_ranks_are_clean(lastbit, clean):
    check_clean(lastbit, clean("--spawn", "4", "--accumulate", "2"))


def settings_of(truth):
    return [word for name, value in truth.get("settings", {}).items() for word in (f"--{name}", str(value))]


@pytest.mark.parametrize("pattern", [PATTERN, pytest.param("DMARE", marks=pytest.mark.full)])
@pytest.mark.parametrize("fault", [name if name == "dropped-term" else pytest.param(name, marks=pytest.mark.full) for name in DIFFERING])
def test_difference_is_found_where_it_was_planted(fault, pattern, lastbit, clean, tmp_path):
    truth = expected(fault, pattern)
    capture, reference = tmp_path / "run.lb", clean(*settings_of(truth), "--pattern", pattern)
    lastbit.record(capture, SAMPLE, "--fault", fault, "--pattern", pattern, expect=0)
    verdict = lastbit.json("bisect", capture, "--against", reference, "-q", expect=1)
    check_culprit(verdict["culprit"], truth)
    assert verdict["failure"]["kind"] == "difference" and verdict["failure"]["step"] == 0
    paste(lastbit, verdict["shows"], (0, 1))


@pytest.mark.full
def test_a_gross_difference_is_found_where_it_was_planted(lastbit, clean, tmp_path):
    capture = tmp_path / "run.lb"
    lastbit.record(capture, SAMPLE, "--fault", "dropped-term", "--gross", expect=0)
    verdict = lastbit.json("bisect", capture, "--against", clean(), "-q", expect=1)
    # The mean term is there, summed in place of averaged: the product before it is the same on both sides.
    check_culprit(verdict["culprit"], dict(expected("dropped-term"), op="aten::sum.dim_IntList"))


def test_a_difference_says_why_it_leaves_no_reproducer(lastbit, tmp_path):
    samples = pathlib.Path(__file__).resolve().parents[4] / "samples"
    out, clean, dropped = tmp_path / "small.lb", samples / "clean.lbz", samples / "dropped-term.lbz"
    verdict = lastbit.json("bisect", dropped, "--against", clean, "-q", "-o", out, expect=1)
    assert verdict["reproducer"] is None and not out.exists()
    assert f"{out} was not written: " in verdict["note"] and f"--steps {verdict['failure']['step']}" in verdict["note"]
    verdict = lastbit.json("bisect", clean, "--against", clean, "-q", "-o", out, expect=0)
    assert verdict["note"] == f"{out} was not written: nothing differs."


def test_a_run_against_itself_is_clean(lastbit, clean):
    verdict = lastbit.json("bisect", clean(), "--against", clean(), "-q", expect=0)
    assert verdict["outcome"] == "clean"
