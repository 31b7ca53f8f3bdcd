"""What a call of MPI costs with the library beneath it: `python tests/capture/mpi/bench_mpi.py [FAMILY …]`. Prints ratios, asserts nothing.

An Allreduce in a job of one rank, where a call is the least that MPI does for one, and in a job of two, in microseconds and as a ratio to
the first column: alone; preloaded with LASTBIT_DISABLE=1; recorded at level stats (digests, no bytes); recorded with all bytes. "burst":
the best of rounds of few calls, which find room in what waits to be written. "many": one call after the other until all of them are
written, where the writer's pace is the program's. On two cores two ranks leave none for the threads that write.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent)]

from conftest import BUILD  # noqa: E402
from mpi_runs import FAMILIES, SHIM, environment, launcher, program, why_not  # noqa: E402

SIZES = (8, 4096, 1 << 20)
PROCESSES = 2


def nanoseconds(family, ranks, size, *before, **more):
    """(burst, many): the best of a few processes, since what else runs on the machine only adds."""
    command = [*before, *launcher(family, ranks), program(family), "timed", "-", str(size)]
    runs = []
    for _ in range(PROCESSES):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=environment(**more))
        found = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("time ")]
        assert found, done.stderr
        runs.append([int(number) for number in found[0]])
    return [max(1, min(column)) for column in zip(*runs)]


def main(families):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="bench-mpi-"))
    record = [BUILD / "lastbit", "record", "--mpi", "--force", "-o", folder / "run.lb"]
    print(f"{'family':10}{'ranks':>6}{'bytes':>9}  {'':6}{'alone':>11}{'preloaded':>20}{'stats':>20}{'all bytes':>20}")
    for family in families:
        for ranks in (1, 2):
            for size in SIZES:
                columns = [
                    nanoseconds(family, ranks, size),
                    nanoseconds(family, ranks, size, LD_PRELOAD=SHIM, LASTBIT_DISABLE=1),
                    nanoseconds(family, ranks, size, *record, "--level", "stats", "--"),
                    nanoseconds(family, ranks, size, *record, "--level", "sources", "--"),
                ]
                for which, name in enumerate(("burst", "many")):
                    alone, *others = [column[which] for column in columns]
                    text = "".join(f"{other / 1e3:>9.2f} us {other / alone:>6.1f} x" for other in others)
                    print(f"{family:10}{ranks:>6}{size:>9}  {name:6}{alone / 1e3:>8.2f} us{text}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:] or [family for family in FAMILIES if not why_not(family)])
