"""Threads under ThreadSanitizer: what many threads ask of a recorder at once, as the binding of Python lets them; a recorder whose bytes are
measured and written beside the run. The build of these few programs takes 15 s of one core where nothing is cached.

The shim of NCCL has its own in every build (capture/nccl_storm_races). The loops of replay are not watched: libgomp waits in ways that the
sanitizer does not know, and it calls every one of them a race."""

import os
import shutil
import subprocess

import pytest
from conftest import ROOT

TSAN = ROOT / "build/tsan"
PROGRAMS = ["capture_test_recorder", "capture_test_recorder_storm", "capture_test_pool"]


def build(*targets):
    launcher = ["-DCMAKE_C_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    configure = ["cmake", "--preset", "tsan", "-DLASTBIT_TESTS=ON", *launcher]
    for command in (configure, ["cmake", "--build", "--preset", "tsan", "--target", *targets]):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def run(*command, **more):
    env = {**os.environ, "TSAN_OPTIONS": "exitcode=66 die_after_fork=0", **more}
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=500, env=env)
    assert done.returncode == 0 and "ThreadSanitizer" not in done.stderr, done.stderr[-6000:]


@pytest.fixture(scope="module")
def recorder():
    build(*PROGRAMS, "make_steps")


@pytest.mark.parametrize("program", PROGRAMS)
def test_threads_of_a_recorder_do_not_race(recorder, program):
    run(TSAN / "tests" / program)


@pytest.mark.parametrize("options", [[], ["ring=2"], ["sync=1"]], ids=str)
def test_threads_beside_a_run_do_not_race(recorder, tmp_path, options):
    """Large values, which other threads digest, and a queue that writes."""
    run(TSAN / "tests/make_steps", tmp_path / "run.lb", "steps=20", "elements=200000", *options, LASTBIT_THREADS="4")
