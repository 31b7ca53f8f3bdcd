"""The MPIs that are here: their compilers, their launchers, and programs of the tests built with each."""

import functools
import os
import pathlib
import shutil
import subprocess

import pytest
from conftest import BUILD, ROOT

SHIM = BUILD / "liblastbit_mpi.so"
FAMILIES = ("openmpi", "mpich")
# The other source files of a program.
SCENARIOS = {"mpi_program.c": ("mpi_calls.c", "mpi_endings.c")}


def adapter(family):
    return BUILD / f"liblastbit_mpi_{family}.so"


def why_not(family):
    """What keeps the tests of a family from running; None: nothing does."""
    missing = [name for name in (f"mpicc.{family}", f"mpirun.{family}") if not shutil.which(name)]
    if missing:
        return f"{', '.join(missing)}: not installed (tests/setup.sh engines)"
    return None if adapter(family).exists() else f"{adapter(family).name} is not built"


def each_family():
    return [pytest.param(family, marks=pytest.mark.skipif(bool(why_not(family)), reason=why_not(family) or "")) for family in FAMILIES]


@functools.cache
def program(family, source="mpi_program.c"):
    """Its path, compiled with this family's compiler."""
    to = BUILD / "tests" / "mpi" / family / pathlib.Path(source).stem
    here = ROOT / "tests" / "capture" / "mpi"
    parts = [here / name for name in (source, *SCENARIOS.get(source, ()))]
    if not to.exists() or to.stat().st_mtime < max(path.stat().st_mtime for path in (*parts, *here.glob("*.h"))):
        to.parent.mkdir(parents=True, exist_ok=True)
        compiler = "mpif90" if source.endswith(".f90") else "mpicc"
        subprocess.run([f"{compiler}.{family}", "-O1", "-g", "-w", *parts, "-o", to, "-lpthread"], check=True, cwd=to.parent)
    return to


def launcher(family, ranks):
    return [f"mpirun.{family}", *(["--oversubscribe"] if family == "openmpi" else []), "-n", str(ranks)]


def environment(**more):
    """Several ranks to a core, as root, on this machine alone; ranks that wait give way."""
    quiet = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMPI_MCA_btl": "self,vader",
        "OMPI_MCA_pml": "ob1",
    }
    return {**os.environ, **quiet, **{name: str(text) for name, text in more.items()}}


def play(family, *words, ranks=3, source="mpi_program.c", code=0, **more):
    """What it prints without us, line by line, sorted."""
    command = [*launcher(family, ranks), program(family, source), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment(**more))
    assert code is None or done.returncode == code, done.stderr
    return sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))
