"""Two algorithms of Open MPI over one program, recorded beneath it: the orders are named from bits alone, of few ranks in one exact run and of
many one by one, and the same command under mpirun gives the same bytes."""

import os
import subprocess

import mpi_runs as M
import pytest
from conftest import ROOT

RING, DOUBLING = 4, 3
pytestmark = pytest.mark.skipif(bool(M.why_not("openmpi")), reason=M.why_not("openmpi") or "")


@pytest.fixture(scope="module", params=[5, 18], ids=["together", "one by one"])
def place(request, lastbit, tmp_path_factory):
    folder = tmp_path_factory.mktemp("orders")
    for name, algorithm in {"ring": RING, "doubling": DOUBLING}.items():
        forced = {"OMPI_MCA_coll_tuned_use_dynamic_rules": 1, "OMPI_MCA_coll_tuned_allreduce_algorithm": algorithm}
        command = [*M.launcher("openmpi", request.param), M.program("openmpi", "mpi_sums.c"), "100"]
        lastbit.run("record", "--mpi", "-o", folder / f"{name}.lb", "--", *command, env=M.environment(**forced), expect=0)
    return folder


def test_the_orders_are_named(lastbit, place):
    answer = lastbit.json("diff", "ring.lb", "doubling.lb", cwd=place, expect=0)
    assert answer["verdict"] == "reordered" and answer["missing"] == []
    assert answer["first"]["op"] == "c10d::allreduce_"
    assert "the first side's bits are those of mpi_ring, the second's of doubling" in answer["first"]["why"]


def test_two_runs_of_one_algorithm_are_the_same(lastbit, place):
    assert lastbit.json("diff", "ring.lb", "ring.lb", cwd=place, expect=0)["verdict"] == "identical"


def test_under_mpirun_the_bytes_are_the_same(lastbit, place, tmp_path):
    words = ["diff", "ring.lb", "doubling.lb", "--json"]
    alone = subprocess.run([lastbit.path, *words], cwd=place, capture_output=True)
    (tmp_path / "mpirun").write_text('#!/bin/sh\nexec mpirun.openmpi "$@"\n')
    (tmp_path / "mpirun").chmod(0o755)
    env = M.environment(LASTBIT=lastbit.path, MPIRUN_OPTIONS="--oversubscribe", PATH=f"{tmp_path}:{os.environ['PATH']}")
    shared = subprocess.run([ROOT / "samples/cluster/mpirun.sh", "4", *words], cwd=place, env=env, capture_output=True, timeout=120)
    assert (shared.returncode, shared.stdout) == (0, alone.stdout), shared.stderr
