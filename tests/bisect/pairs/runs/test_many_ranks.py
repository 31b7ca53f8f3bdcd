"""Real training on 64 processes of one machine, more than a diff takes together: a rank whose memory is written behind torch's back is named by
each rank judged by itself, as it is by all of them in one exact run; and the same command under mpirun gives the same bytes."""

import os
import shutil
import subprocess
import sys

import pytest
from conftest import BUILD, ROOT

RANKS, POISONED = 64, 13
pytestmark = pytest.mark.full  # 64 processes that load their kernels: three minutes of a core. tests/test_parts.py has computed runs
PROGRAM = ROOT / "tests" / "programs" / "ranks" / "many_ranks.py"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("many")
    env = {**os.environ, "PYTHONPATH": str(ROOT / "capture"), "LASTBIT_BUILD": str(BUILD), "OMP_NUM_THREADS": "1"}
    for name, options in {"clean": [], "poisoned": ["--poison", f"{POISONED}:1"]}.items():
        done = subprocess.run(
            [sys.executable, PROGRAM, folder / f"{name}.lb", str(RANKS), *options], env=env, capture_output=True, text=True, timeout=280
        )
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def answer(lastbit, place):
    return lastbit.json("diff", "clean.lb", "poisoned.lb", cwd=place, expect=1)


def test_the_rank_and_the_op_are_named(answer):
    first = answer["first"]
    assert (answer["verdict"], first["rank"], first["layer"], first["op"]) == ("diverged", POISONED, "layers.1", "aten::gelu")
    assert first["source"]["text"] == "return x + self.down(F.gelu(self.up(self.norm(x))))"
    assert [(place["layer"], place["op"], place["ranks"]) for place in answer["differences"]] == [("layers.1", "aten::gelu", [POISONED])]


def test_what_follows_is_inherited(answer):
    own = {layer["rank"] for layer in answer["layers"] if layer["local"] == "diverged"}
    assert own == {POISONED}
    for layer in answer["layers"]:
        if layer["verdict"] != "identical" and layer["rank"] != POISONED:
            assert layer["inherited"] == "diverged" and layer["local"] in ("identical", "rounding")
    assert {layer["rank"] for layer in answer["layers"] if layer["verdict"] == "diverged"} == set(range(RANKS))


def test_the_collectives_are_no_places(answer):
    """What they gave is what they were given: all that differs behind them came in with one rank."""
    whys = {layer["why"] for layer in answer["layers"] if layer["rank"] not in (POISONED,) and layer["phase"] == "communication"}
    assert answer["missing"] == [] and not any("no order of the sum" in why for why in whys)


@pytest.mark.skipif(not shutil.which("mpirun"), reason="no mpirun here")
def test_under_mpirun_the_bytes_are_the_same(lastbit, place):
    words = ["diff", "clean.lb", "poisoned.lb", "--json"]
    alone = subprocess.run([lastbit.path, *words], cwd=place, capture_output=True)
    env = {**os.environ, "LASTBIT": str(lastbit.path), "MPIRUN_OPTIONS": "--allow-run-as-root --oversubscribe"}
    shared = subprocess.run([ROOT / "samples/cluster/mpirun.sh", "4", *words], cwd=place, env=env, capture_output=True, timeout=120)
    assert (shared.returncode, shared.stdout) == (1, alone.stdout), shared.stderr
