"""The sample's faults really fail, when and how its table says; the clean run doesn't.

Two faults in every run; LASTBIT_FULL=1 runs every fault, and the change that cures it.
"""

import os
import re
import runpy
import subprocess
import sys

import pytest
from conftest import ROOT

SAMPLE = ROOT / "samples" / "hybrid_lm.py"
TRUTH = runpy.run_path(str(SAMPLE))["TRUTH"]
full = pytest.mark.skipif(os.environ.get("LASTBIT_FULL", "0") != "1", reason="only with --full")


def run(*options):
    """Exit code and the losses that were printed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, SAMPLE, *options], capture_output=True, text=True, timeout=300, env=environment)
    losses = [float(x) for x in re.findall(r"^step \d+ loss (\S+)", done.stdout, re.MULTILINE)]
    assert losses, done.stderr
    return done.returncode, losses


def fails_where_the_table_says(fault, *options):
    code, losses = run("--fault", fault, *options)
    shows = TRUTH[fault]["shows"]
    assert code == 1
    assert len(losses) == shows + 1  # it stops there, and no loss before was remarkable
    assert losses[-1] != losses[-1]
    assert all(loss < 2 * losses[0] for loss in losses[:-1])


def test_clean_run_ends_well():
    code, losses = run("--digest")
    assert code == 0
    assert len(losses) == 4
    assert all(loss == loss for loss in losses)


@pytest.mark.parametrize("fault", ["polar-bf16", "stale-scale"])
def test_fault_fails(fault):
    fails_where_the_table_says(fault)


@full
@pytest.mark.parametrize("fault", ["poisoned-rank", "scan-overflow", "bad-expert"])
def test_other_fault_fails(fault):
    fails_where_the_table_says(fault)


@full
def test_last_of_two_ranks_can_be_poisoned():
    fails_where_the_table_says("poisoned-rank", "--spawn", "2")


@full
@pytest.mark.parametrize("fault", [name for name, truth in TRUTH.items() if truth["shows"] is None])
def test_run_that_only_differs_ends_well_and_differs(fault):
    settings = TRUTH[fault].get("settings", {})
    options = [word for name, value in settings.items() for word in ("--" + name, str(value))]
    code, losses = run("--fault", fault)
    assert code == 0
    assert losses != run(*options)[1]


@full
@pytest.mark.parametrize(
    "options",
    [
        ("--fault", "polar-bf16", "--muon-dtype", "float32"),
        ("--fault", "polar-bf16", "--optimizer", "adamw"),
        ("--fault", "stale-scale", "--precision", "fp32"),
        ("--fault", "poisoned-rank", "--spawn", "0"),
        ("--fault", "scan-overflow", "--pattern", "AERAD"),
        ("--growing",),
    ],
    ids=" ".join,
)
def test_cure_cures(options):
    assert run(*options)[0] == 0


@full
@pytest.mark.parametrize(
    "options",
    [
        ("--precision", "fp32"),
        ("--precision", "bf16"),
        ("--precision", "autocast"),
        ("--precision", "fp8"),
        ("--experts-kind", "grouped"),
        ("--tied",),
        ("--iteration", "polar-express"),
        ("--optimizer", "adamw"),
    ],
    ids=" ".join,
)
def test_loss_falls(options):
    losses = run("--steps", "120", *options)[1]
    assert sum(losses[-20:]) < 0.75 * sum(losses[:20])
