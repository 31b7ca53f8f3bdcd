"""What a diff of rounding pairs runs, counted and not timed; and what diff and explain say while they work."""

import os
import signal
import subprocess
import time

import pytest
from conftest import BUILD

PROGRAM = "tests/programs/rounding_pairs.py"
SHAPE = ["--layers", "2", "--width", "32", "--length", "16"]


@pytest.fixture(scope="module")
def pairs(lastbit, tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("cost"), {}

    def pair(model):
        if model not in made:
            made[model] = [folder / f"{model}{variant}.lb" for variant in (0, 1)]
            for variant, path in enumerate(made[model]):
                lastbit.record(path, PROGRAM, model, str(variant), *SHAPE, expect=0)
        return made[model]

    return pair


@pytest.mark.parametrize("model", ["gpt", "muon", "norms"])
def test_a_diff_costs_a_few_replays(lastbit, pairs, model):
    told = lastbit.json("diff", *pairs(model), expect=0)
    assert told["verdict"] == "rounding"
    # Five runs of a side are the exact shadows with their checks; the search for orders may take two more of both.
    assert 0 < told["cost"]["ops"] <= 8 * told["cost"]["recorded"]
    assert told["cost"] == lastbit.json("diff", *pairs(model), "--threads", "1", expect=0)["cost"]


def test_a_capture_against_itself_runs_nothing(lastbit, pairs):
    a, _ = pairs("gpt")
    assert lastbit.json("diff", a, a, expect=0)["cost"]["runs"] == 0


def test_explain_stops_when_asked(lastbit, pairs):
    told = lastbit.json("explain", *pairs("gpt"), "--stop-after", "1e-9", expect=None)
    assert any("stopped after 1e-09 seconds" in line for line in told["missing"])
    assert not [f for f in told["findings"] if f["op"] != "lb::source"]


def test_threads_that_wait_sleep(pairs):
    a, b = pairs("gpt")
    environment = {k: v for k, v in os.environ.items() if k not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    environment["OMP_DISPLAY_ENV"] = "verbose"
    told = subprocess.run([BUILD / "lastbit", "diff", a, b], env=environment, capture_output=True, text=True).stderr
    assert "GOMP_SPINCOUNT = '0'" in told


def peak(*command):
    """Megabytes that a command had resident at most."""
    child = subprocess.Popen([BUILD / "lastbit", *command, "--json"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    assert os.waitstatus_to_exitcode(status) in (0, 125), command
    return used.ru_maxrss / 1024


WIDE = ["--layers", "2", "--width", "256", "--length", "64"]


def test_a_diff_takes_less_than_twice_the_memory_of_both_replays(lastbit, tmp_path):
    """Exact results of the first side wait for the second's as sums of their blocks, and orders are looked for among the first ops first."""
    sides = [tmp_path / f"llama{variant}.lb" for variant in (0, 1)]
    for variant, path in enumerate(sides):
        lastbit.record(path, PROGRAM, "llama", str(variant), *WIDE, expect=0)
    replays = sum(peak("replay", side, "--mode", "chained") for side in sides)
    assert peak("diff", *sides) < 2 * replays


PLANTED = [[], ["eps"], ["act"], ["scale", "lr"], ["eps", "residual", "decay"]]


def replays(told):
    """How many of both sides' steps the ops make up that were run, trials of single ops among them."""
    assert told["cost"]["recorded"] > 0
    return told["cost"]["ops"] / told["cost"]["recorded"]


@pytest.fixture(scope="module")
def trained(lastbit, tmp_path_factory):
    """transformers' Llama in training, and the same written again, with faults."""
    folder, made = tmp_path_factory.mktemp("trained"), {}

    def side(*arguments):
        if arguments not in made:
            made[arguments] = folder / f"{len(made)}.lb"
            lastbit.record(made[arguments], "tests/programs/two_implementations.py", *arguments, "--train", expect=0)
        return made[arguments]

    return side


@pytest.mark.parametrize("faults", PLANTED, ids="+".join)
def test_training_of_two_authors_costs_at_most_ten_replays(lastbit, trained, faults):
    """With up to three faults; without one, the sides are run once each, and what may be a table again."""
    sides = trained("transformers"), trained("decoder", *(word for fault in faults for word in ("--fault", fault)))
    told = lastbit.json("diff", *sides, expect=1 if faults else 0)
    assert told["verdict"] == ("diverged" if faults else "rounding")
    assert replays(told) <= (10 if faults else 3), told["cost"]


def test_a_line_each_five_seconds_says_what_runs(trained):
    """The program is stopped again and again, so that it takes long on every machine."""
    command = [BUILD / "lastbit", "diff", trained("transformers"), trained("decoder", "--fault", "eps", "--fault", "act")]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    begun = time.monotonic()
    while child.poll() is None:
        time.sleep(0.05)
        child.send_signal(signal.SIGSTOP)
        time.sleep(0.4)
        child.send_signal(signal.SIGCONT)
    took, lines = time.monotonic() - begun, child.stderr.read().splitlines()
    child.stderr.close()
    assert [line for line in lines if line.startswith("lastbit: running both exactly, ")], (took, lines)
    assert len(lines) <= took / 5
