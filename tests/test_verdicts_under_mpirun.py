"""What went wrong between 64 ranks is named by one command, and by the same command under a real mpirun of four workers with the same bytes: a poisoned
rank, a bit lost on one hop, a collective that one rank called differently, another algorithm.

Runs are computed by make_ranks.c. Real training of 64 processes and real collectives of Open MPI are in tests/bisect/pairs/runs/test_many_ranks.py and
tests/capture/mpi/test_mpi_algorithms.py."""

import json
import os
import shutil
import subprocess

import pytest
from conftest import BUILD, ROOT

RANKS, LAYERS = 64, 3
LASTBIT = str(BUILD / "lastbit")
FAULTS = {"clean": "steps=1", "poisoned": "poison=0:13:2", "flipped": "flip=0:2:62", "mismatched": "mismatch=0:6:1", "tree": "order=tree"}
QUESTIONS = {
    "poisoned": ["diff", "clean.lb", "poisoned.lb"],
    "flipped": ["diff", "clean.lb", "flipped.lb"],
    "flipped, one run": ["ranks", "flipped.lb"],
    "mismatched": ["diff", "clean.lb", "mismatched.lb"],
    "mismatched, one run": ["ranks", "mismatched.lb"],
    "tree": ["diff", "clean.lb", "tree.lb"],
    "nothing": ["diff", "clean.lb", "clean.lb"],
}
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "OMPI_", "PMI", "RANK", "WORLD_SIZE"))}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verdicts")
    for name, option in FAULTS.items():
        made = [BUILD / "tests/make_ranks", folder / f"{name}.lb", f"ranks={RANKS}", f"layers={LAYERS}", "steps=1", option]
        subprocess.run(made, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def alone(place):
    return {name: subprocess.run([LASTBIT, *words, "--json"], cwd=place, env=PLAIN, capture_output=True) for name, words in QUESTIONS.items()}


def test_each_is_named(alone):
    said = {name: json.loads(done.stdout) for name, done in alone.items()}
    poisoned = said["poisoned"]["first"]
    assert (poisoned["verdict"], poisoned["rank"], poisoned["layer"], poisoned["op"]) == ("diverged", 13, "layers.2", "aten::mm")
    # Of the ring that begins at rank 1, the last addition. These sums are exact, so that the same bit lost one or two hops before is no other number.
    hop = "bit 18 on the way from rank 63 to rank 0"
    flipped, lost = said["flipped"]["first"], said["flipped, one run"]["findings"][0]
    assert flipped["op"] == "c10d::allreduce_" and hop in flipped["why"]
    assert (lost["kind"], lost["element"]) == ("result", 0) and hop in lost["message"]
    assert lost["message"].count("on the way") == 3
    mismatched = said["mismatched"]["first"]
    assert (mismatched["verdict"], mismatched["rank"], mismatched["op"]) == ("diverged", 6, "c10d::allreduce_")
    called = said["mismatched, one run"]["findings"][0]
    assert (called["kind"], called["ranks"]) == ("collective", [6]) and "rank 6 called allreduce_(sum) of f32[32]" in called["message"]
    tree = said["tree"]["earliest"]
    assert (tree["local"], tree["op"]) == ("reordered", "c10d::allreduce_")
    assert "the first side's bits are those of ring, the second's of tree" in tree["why"]
    assert said["nothing"]["verdict"] == "identical"


@pytest.mark.parametrize("launcher", ["openmpi", "mpich"])
@pytest.mark.parametrize("name", QUESTIONS)
def test_the_same_command_under_mpirun(place, alone, tmp_path, launcher, name):
    launched = shutil.which(f"mpirun.{launcher}")
    if not launched:
        pytest.skip(f"no mpirun.{launcher} here")
    (tmp_path / "mpirun").write_text(f'#!/bin/sh\nexec {launched} "$@"\n')
    (tmp_path / "mpirun").chmod(0o755)
    options = {"MPIRUN_OPTIONS": "--allow-run-as-root --oversubscribe"} if launcher == "openmpi" else {}
    env = {**PLAIN, **options, "LASTBIT": LASTBIT, "PATH": f"{tmp_path}:{PLAIN['PATH']}"}
    words = [ROOT / "samples/cluster/mpirun.sh", "4", *QUESTIONS[name], "--json"]
    shared = subprocess.run(words, cwd=place, env=env, capture_output=True, timeout=240)
    assert (shared.returncode, shared.stdout) == (alone[name].returncode, alone[name].stdout), shared.stderr
    assert not list(place.glob("*parts*"))
