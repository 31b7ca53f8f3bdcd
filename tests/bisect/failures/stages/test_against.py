"""`bisect --against`: the smallest set of places that part a run from a good one, each of them needed, whether both are of one structure or not."""

import itertools
import os
import random
import re
import signal
import subprocess
import sys

import pytest

PROGRAM = "tests/programs/several_edits.py"

# Where each edit lies: the last words of the module's path, in transformers' structure and in the other one.
PLACES = {
    "eps": ("post_attention_layernorm", "between"),
    "act": ("mlp", "feed"),
    "gain": ("mlp", "feed"),
    "scale": ("self_attn", "mix"),
    "query": ("self_attn", "mix"),
    "mask": ("self_attn", "mix"),
    "weight": ("o_proj", "out"),
}


def combinations():
    """One to three edits in places of their own; the seed is fixed, so that a failure can be looked at again."""
    draw = random.Random(20)
    for n, structure in itertools.product((1, 2, 2, 3, 3), ("llama", "decoder")):
        layers = draw.sample(range(3), n)
        yield "+".join([structure, *(f"{draw.choice(list(PLACES))}.{layer}" for layer in sorted(layers))])


def record(folder, names, *options):
    root = __file__.split("/tests/")[0]
    subprocess.run([sys.executable, PROGRAM, folder, *options, *names], cwd=root, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


GENERATED = sorted(set(combinations()))
MASKED = [
    "llama+query.1+key.1", "llama+query.1+key.1+gain.2", "decoder+query.1+key.1+gain.2", "llama+low.1", "llama+low.1+least.1",
    "decoder+low.1+least.1", "llama+shift.1+eps.1", "llama+scale.0+mask.1+gain.2", "llama+eps.0+eps.1+eps.2",
    "llama+raised.1+lowered.1+eps.2", "llama+raised.1+lowered.1+gain.1", "decoder+raised.1+lowered.1+mask.2", "decoder+scale.0+raised.1+lowered.1+gain.2",
]  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("edits")
    record(folder, ["llama", *GENERATED, *MASKED])
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    record(folder, ["llama", *TRAINED], "--train")
    return folder


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    folder = tmp_path_factory.mktemp("halves")
    record(folder, ["llama", *HALVES], "--half")
    return folder


def bisected(lastbit, folder, name, expect=1):
    return lastbit.json("bisect", "-q", folder / f"{name}.lb", "--against", folder / "llama.lb", expect=expect)


def wanted(name):
    """The layer and the module of each edit."""
    structure, *edits = name.split("+")
    words = [edit.split(".") for edit in edits]
    return sorted((word[1], PLACES[word[0]][structure == "decoder"]) if len(word) > 1 else ("", "") for word in words)


def found(answer):
    """A weight's place is the module that reads it; of the others a module around them is not taken."""
    paths = [culprit["layer"].split(".") for culprit in answer["culprits"]]
    return sorted((next((word for word in path if word.isdigit()), ""), path[-1]) for path in paths)


@pytest.mark.parametrize("name", GENERATED)
def test_edits_are_the_smallest_set(lastbit, runs, name):
    answer = bisected(lastbit, runs, name)
    assert found(answer) == wanted(name), answer["culprits"]
    assert answer["outcome"] == "found" and answer["set"]["outcome"] == "smallest" and answer["set"]["why"] is None
    assert all(culprit["effect"] > 1e-12 for culprit in answer["culprits"])
    assert answer["set"]["replays"] < 10


def test_edits_that_cancel_part_nothing(lastbit, runs):
    """Their product is what it was, to the bit but for the order of the factors."""
    answer = bisected(lastbit, runs, "llama+query.1+key.1")
    assert answer["set"] is None and answer["culprit"]["axis"] == "order"


@pytest.mark.parametrize("structure", ["llama", "decoder"])
def test_edits_that_cancel_beside_one_that_does_not(lastbit, runs, structure):
    name = f"{structure}+query.1+key.1+gain.2"
    answer = bisected(lastbit, runs, name)
    assert found(answer) == wanted(f"{structure}+gain.2") and answer["set"]["outcome"] == "smallest"


@pytest.mark.parametrize("name", [name for name in MASKED if "raised" in name])
def test_places_that_take_back_each_other_are_said_and_are_no_culprits(lastbit, runs, name):
    """Each of the two moves what leaves by far more than the third: as many as there are, all smaller sets are tried."""
    answer = bisected(lastbit, runs, name)
    assert found(answer) == wanted(name.replace("+raised.1+lowered.1", "")) and answer["set"]["outcome"] == "smallest"
    assert [word.split()[-1] for word in answer["set"]["cancels"].split(", ")] == ["aten::add.Tensor", "aten::sub.Tensor"]
    text = lastbit.run("bisect", "-q", runs / f"{name}.lb", "--against", runs / "llama.lb", expect=1).stdout
    assert "\ncancelled " in text and f"{len(answer['culprits'])} place" in text.splitlines()[0]


def test_of_two_bounds_either_is_nothing_and_both_are_one_place(lastbit, runs):
    assert bisected(lastbit, runs, "llama+low.1", expect=0)["outcome"] == "clean"
    for name in ("llama+low.1+least.1", "decoder+low.1+least.1"):
        answer = bisected(lastbit, runs, name)
        assert found(answer) == wanted(name.split("+")[0] + "+gain.1") and answer["set"]["outcome"] == "smallest"


def test_an_edit_without_effect_is_in_no_set(lastbit, runs):
    assert found(bisected(lastbit, runs, "llama+shift.1+eps.1")) == wanted("llama+eps.1")


@pytest.mark.parametrize("name", ["llama+eps.0+eps.1+eps.2", "llama+scale.0+mask.1+gain.2"])
def test_three_in_a_row_are_three_places(lastbit, runs, name):
    answer = bisected(lastbit, runs, name)
    assert found(answer) == wanted(name) and answer["set"]["outcome"] == "smallest"


TRAINED = ["llama+scale.0+mask.1+gain.2", "decoder+scale.0+mask.1+gain.2", "llama+act.1+lr+decay", "decoder+gain.1+decay", "decoder+query.1+weight.2"]


@pytest.mark.parametrize("name", TRAINED)
def test_a_set_of_a_training_step(lastbit, trained, name):
    """The second step begins with what the first left differently: each is judged by itself."""
    answer = bisected(lastbit, trained, name)
    assert found(answer) == wanted(name), answer["culprits"]
    assert answer["set"]["outcome"] == "smallest"


HALVES = ["llama+eps.1", "llama+act.0+gain.1", "llama+scale.0+mask.1+gain.2"]


@pytest.mark.parametrize("name", HALVES)
def test_a_set_of_a_run_in_16_bits(lastbit, halves, name):
    answer = bisected(lastbit, halves, name)
    assert found(answer) == wanted(name) and answer["set"]["outcome"] == "smallest"


def test_verdict_place_and_effect_come_first(lastbit, runs):
    lines = lastbit.run("bisect", "-q", runs / "llama+scale.0+mask.1+gain.2.lb", "--against", runs / "llama.lb", expect=1).stdout.splitlines()
    assert (
        lines[0]
        == "diverged  step 0: 3 places part this run from the reference: exchanged together they leave rounding alone, and no smaller set does"
    )
    assert lines[1].startswith("culprit   block: model.layers.0.self_attn aten::mul.Tensor, several_edits.py:")
    assert lines[2].startswith("effect    0.115 of what leaves the step")
    assert [line.split()[2] for line in lines if line.startswith("and ")] == ["model.layers.1.self_attn", "model.layers.2.mlp"]


def test_one_implementation_against_another(lastbit, recordings):
    """transformers' Llama beside a decoder of another author."""
    program, faults = "tests/programs/two_implementations.py", ("eps", "residual", "mask")
    runs = [recordings("transformers", program=program), recordings("decoder", *(w for f in faults for w in ("--fault", f)), program=program)]
    for first, second in (runs, runs[::-1]):
        answer = lastbit.json("bisect", "-q", first, "--against", second, expect=1)
        assert len(answer["culprits"]) == 3 and answer["set"]["outcome"] == "smallest", answer["set"]


# ---- a side that died


DYING = "tests/programs/dying_net.py"


@pytest.fixture(scope="module")
def dead(lastbit, tmp_path_factory):
    folder = tmp_path_factory.mktemp("dead")

    def run(*words):
        out = folder / ("-".join(words) or "whole")
        if not out.exists():
            lastbit.record(out, DYING, *words, options=("--level", "ops"), expect=1 if "raise" in words else 128 + signal.SIGKILL if words else 0)
        return out

    return run


@pytest.mark.parametrize("part, phase, behind", [("forward", "forward", "aten::relu"), ("backward", "backward", "aten::")])
@pytest.mark.parametrize("step", ["0", "2"])
def test_where_a_program_died_is_said(lastbit, dead, part, phase, behind, step):
    ended, whole = dead("--at", step, "--part", part, "--how", "raise"), dead()
    for first, second, who, other in ((ended, whole, "the run", "the reference"), (whole, ended, "the reference", "the run")):
        answer = lastbit.json("bisect", "-q", first, "--against", second, expect=125)
        assert answer["outcome"] == "undecided" and answer["culprits"] == []
        assert answer["reason"].startswith(f"{who} ended in step {step} on rank 0, in {phase}, behind {behind}")
        assert "dying_net.py:" in answer["reason"] and f"; {other} goes on with aten::" in answer["reason"]


def test_a_program_that_was_killed_is_said(lastbit, dead):
    """A step is committed behind the program's back: of a killed one the last may be missing."""
    answer = lastbit.json("bisect", "-q", dead("--at", "2", "--how", "kill"), "--against", dead(), expect=125)
    assert re.match("the run broke off behind step [01] of rank 0", answer["reason"]) and answer["reason"].endswith("the reference goes on to step 2")
    assert lastbit.json("bisect", "-q", "--steps", "0-0", dead("--at", "2", "--how", "kill"), "--against", dead(), expect=0)["judged"]["ops"] > 10


def test_clean_counts_what_was_judged(lastbit, dead):
    answer = lastbit.json("bisect", "-q", dead(), "--against", dead(), expect=0)
    assert answer["judged"]["ops"] > 40 and answer["set"] is None
    assert " 0 ops" not in lastbit.run("bisect", "-q", dead(), "--against", dead(), expect=0).stdout
