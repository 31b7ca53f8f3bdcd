"""What an op was called with, by the names that who wrote the call gave it; what an op is for that one side leaves out."""

import subprocess
import sys

import pytest
from conftest import ROOT

pytest.importorskip("torch")
PROGRAM = ROOT / "tests" / "programs" / "called_otherwise.py"


@pytest.fixture(scope="module")
def nets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nets")
    subprocess.run([sys.executable, PROGRAM, folder], check=True, capture_output=True, timeout=300)
    return folder


def first_of(lastbit, nets, name, how="loop", turned=False):
    sides = [nets / f"{how}-base.lb", nets / f"{how}-{name}.lb"]
    return lastbit.json("diff", *(sides[::-1] if turned else sides), expect=1)["first"]


OPTIONS = [
    ("loop", "fc_lr", "lr", 0.05, 0.5),
    ("foreach", "fc_lr", "lr", 0.05, 0.5),
    ("fused", "fc_lr", "lr", 0.05, 0.5),
    ("loop", "decay", "weight_decay", 0.1, 0.01),
    ("foreach", "decay", "weight_decay", 0.1, 0.01),
    ("fused", "decay", "weight_decay", 0.1, 0.01),
    ("loop", "no_decay", "weight_decay", 0.1, 0),
    ("loop", "adam_eps", "eps", 1e-8, 1e-3),
    ("foreach", "adam_eps", "eps", 1e-8, 1e-3),
    ("fused", "adam_eps", "eps", 1e-8, 1e-3),
    ("loop", "beta", "betas.0", 0.9, 0.8),
]


@pytest.mark.parametrize("how, name, option, first, second", OPTIONS, ids=[f"{how}-{name}" for how, name, *_ in OPTIONS])
def test_options_of_an_optimizer_are_named_with_their_values(lastbit, nets, how, name, option, first, second):
    found = first_of(lastbit, nets, name, how)
    assert found["arguments"] == [{"name": option, "first": first, "second": second, "group": "fc"}]
    assert found["phase"] == "optimizer"


@pytest.mark.parametrize(
    "name, argument, first, second",
    [("slope", "negative_slope", 0.2, 0.02), ("approximate", "approximate", "none", "tanh"), ("eps", "eps", 1e-5, 1e-3)],
)
def test_arguments_have_the_names_of_the_schema(lastbit, nets, name, argument, first, second):
    assert first_of(lastbit, nets, name)["arguments"] == [{"name": argument, "first": first, "second": second}]
    assert first_of(lastbit, nets, name, turned=True)["arguments"] == [{"name": argument, "first": second, "second": first}]


@pytest.mark.parametrize(
    "name, says", [("no_decay", "weight decay"), ("cap", "a soft cap: tanh between two scalings, by 5"), ("extra", "a term of a loss")]
)
def test_ops_of_one_side_are_said_by_what_they_are_for(lastbit, nets, name, says):
    assert first_of(lastbit, nets, name)["means"].startswith(says)
    assert first_of(lastbit, nets, name, turned=True)["means"].startswith(says)


def test_text_and_bisect_say_both_values(lastbit, nets):
    good, bad = nets / "loop-base.lb", nets / "loop-fc_lr.lb"
    assert "lr 0.05 / 0.5 (group fc)" in lastbit.run("diff", good, bad, expect=1).stdout
    assert "lr 0.5 / 0.05 in group fc" in lastbit.json("bisect", bad, "--against", good, expect=1)["culprit"]["why"]


def test_an_answer_begins_with_the_verdict_the_place_and_the_effect(lastbit, nets):
    lines = lastbit.run("diff", nets / "fused-base.lb", nets / "fused-fc_lr.lb", expect=1).stdout.splitlines()
    assert lines[0].startswith("verdict: diverged")
    number = [n for n, line in enumerate(PROGRAM.read_text().splitlines(), 1) if "optimizer.step()" in line][0]
    assert lines[1].startswith("They part here: step 0, optimizer, fc, aten::_fused_adamw_") and lines[1].endswith(f"at called_otherwise.py:{number}")
    assert lines[2].startswith("    effect    relative L2 ")
    whole = "\n".join(lines)
    assert "ulp" not in lines[2]  # values of different signs have no distance in ulp
    assert "tokens" not in whole  # a classifier scores classes


def test_a_difference_of_roundings_has_its_distance_in_ulp(lastbit, nets):
    lines = lastbit.run("diff", nets / "loop-base.lb", nets / "loop-approximate.lb", expect=1).stdout.splitlines()
    assert lines[2].startswith("    effect    relative L2 ") and " ulp; " in lines[2]


def test_against_a_reference_the_stage_is_said_once(lastbit, nets):
    done = lastbit.run("bisect", nets / "loop-slope.lb", "--against", nets / "loop-base.lb", expect=1)
    assert (done.stdout + done.stderr).count("aligned ops") == 1
