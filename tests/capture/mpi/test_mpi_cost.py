"""What the library beneath MPI does in the thread that calls, counted by instructions: of a job of one rank, which needs no launcher."""

import re
import shutil
import subprocess

import pytest
from conftest import BUILD
from mpi_runs import SHIM, each_family, environment, program

CALLS = 4000


def instructions(family, tmp_path, **more):
    """Per call of 64 bytes, MPI's own among them; what writes is a thread of its own, and calls no MPI."""
    out = tmp_path / "callgrind.out"
    tool = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "--toggle-collect=MPI_Allreduce"]
    command = [str(word) for word in [*tool, program(family), "counted", "-", CALLS]]
    subprocess.run(command, capture_output=True, check=True, timeout=300, env=environment(**more))
    return int(re.search(r"^(?:summary|totals): (\d+)", out.read_text(), re.M).group(1)) / CALLS


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
@pytest.mark.parametrize("family", each_family())
def test_cost_of_a_call(tmp_path, family):
    """At three instructions a nanosecond: beyond what MPI itself does 0.9 us where bytes are recorded, and less outside of the window."""
    folder = tmp_path / "run.lb"
    folder.mkdir()
    shim = dict(LD_PRELOAD=SHIM, LASTBIT_LIB=BUILD / "liblastbit_capture.so", LASTBIT_OUT=folder)
    idle = instructions(family, tmp_path, **shim, LASTBIT_DISABLE=1)
    outside = instructions(family, tmp_path, **shim, LASTBIT_STEPS=5000) - idle
    assert not list(folder.iterdir())
    recorded = instructions(family, tmp_path, **shim) - idle
    assert list(folder.glob("rank-*.tar"))
    print(f"{family}: disabled, with MPI's own, {idle:.0f}; more outside of the window {outside:.0f}, recorded {recorded:.0f}")
    assert 0 < idle < 1000 and 0 < outside < recorded < 2700
