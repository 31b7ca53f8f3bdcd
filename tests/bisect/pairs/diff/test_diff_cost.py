"""What a diff of rounding pairs runs, counted and not timed; and what diff and explain say while they work."""

import os
import subprocess

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
