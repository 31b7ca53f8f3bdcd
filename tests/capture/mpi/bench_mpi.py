"""What a call of MPI costs with the library beneath it: `python tests/capture/mpi/bench_mpi.py [FAMILY …]`. Prints ratios, asserts nothing.

An Allreduce in a job of one rank, where a call is what MPI itself does for one, and in a job of two; the best of several rounds, in
microseconds, and as a ratio to the first: alone; preloaded with LASTBIT_DISABLE=1; recorded at level stats (digests, no bytes); recorded
with all bytes. On two cores two ranks leave none for the threads that write.
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
PROCESSES = 3


def nanoseconds(family, ranks, size, *before, **more):
    """The best of a few processes: what else runs on the machine only adds."""
    command = [*before, *launcher(family, ranks), program(family), "timed", "-", str(size)]
    best = None
    for _ in range(PROCESSES):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=environment(**more))
        found = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("time ")]
        assert found, done.stderr
        best = min(found + ([best] if best is not None else []))
    return best


def main(families):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="bench-mpi-"))
    record = [BUILD / "lastbit", "record", "--mpi", "--force", "-o", folder / "run.lb"]
    print(f"{'family':10}{'ranks':>6}{'bytes':>9}{'alone':>12}{'preloaded':>19}{'stats':>19}{'all bytes':>19}")
    for family in families:
        for ranks in (1, 2):
            for size in SIZES:
                alone = nanoseconds(family, ranks, size)
                others = [
                    nanoseconds(family, ranks, size, LD_PRELOAD=SHIM, LASTBIT_DISABLE=1),
                    nanoseconds(family, ranks, size, *record, "--level", "stats", "--"),
                    nanoseconds(family, ranks, size, *record, "--level", "sources", "--"),
                ]
                columns = "".join(f"{other / 1e3:>9.2f} us {other / alone:>5.1f} x" for other in others)
                print(f"{family:10}{ranks:>6}{size:>9}{alone / 1e3:>9.2f} us{columns}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:] or [family for family in FAMILIES if not why_not(family)])
