"""Threads under ThreadSanitizer: what many threads ask of a recorder at once, as the binding of Python lets them; a recorder whose bytes are
measured and written beside the run. The build of these few programs takes 15 s of one core where nothing is cached.

The shim of NCCL has its own in every build (capture/nccl_storm_races). libgomp waits in ways that the sanitizer does not know, and it calls
every loop of replay a race. LLVM's libomp runs the loops of GCC as well; its tool Archer tells the sanitizer where threads meet, so that what
is left are races of the loops themselves. What libomp does inside is not looked at (ignore_noninstrumented_modules)."""

import glob
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from conftest import BUILD, ROOT

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


def libraries_of_llvm():
    """libomp and Archer of one release, where they are installed (Debian: libomp-14-dev or a later one)."""
    for folder in sorted(glob.glob("/usr/lib/llvm-*/lib"), reverse=True):
        if os.path.exists(f"{folder}/libomp.so") and os.path.exists(f"{folder}/libarcher.so"):
            return {"LD_PRELOAD": f"{folder}/libomp.so", "OMP_TOOL_LIBRARIES": f"{folder}/libarcher.so"}
    return None


def watched(*words):
    """On three threads, whose meetings the sanitizer is told of."""
    libraries = libraries_of_llvm()
    if not libraries:
        pytest.skip("no libomp with Archer here: apt-get install libomp-14-dev")
    more = {"TSAN_OPTIONS": "exitcode=66 die_after_fork=0 ignore_noninstrumented_modules=1", "OMP_NUM_THREADS": "3", "ARCHER_OPTIONS": "verbose=1"}
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=900, env={**os.environ, **libraries, **more})
    assert "Archer detected OpenMP application with TSan" in done.stdout, done.stderr[-2000:]
    return done


@pytest.mark.parametrize("clause", ["reduction(+ : sum)", "shared(sum)"])
def test_a_loop_that_races_is_found_and_one_that_does_not_is_not(tmp_path, clause):
    (tmp_path / "loop.c").write_text(LOOP.replace("CLAUSE", clause))
    subprocess.run(["cc", "-fsanitize=thread", "-fopenmp", "-g", "-o", tmp_path / "loop", tmp_path / "loop.c"], check=True)
    done = watched(tmp_path / "loop")
    assert ("data race" in done.stderr) == (done.returncode == 66) == (clause == "shared(sum)"), done.stderr[-4000:]


# Loops that meet at barriers, of which only the last one may race.
LOOP = """
#include <stdio.h>
int main(void)
{
    static int x[3000], y[3000];
    long sum = 0;
#pragma omp parallel for
    for (int i = 0; i < 3000; i++) x[i] = i;
#pragma omp parallel for
    for (int i = 0; i < 3000; i++) y[i] = x[2999 - i];
#pragma omp parallel for CLAUSE
    for (int i = 0; i < 3000; i++) sum += y[i];
    return sum == 0;
}
"""


@pytest.fixture(scope="module")
def loops():
    """Runs a command of the build with ThreadSanitizer."""
    if not libraries_of_llvm():
        pytest.skip("no libomp with Archer here: apt-get install libomp-14-dev")
    build("lastbit")

    def command(*words):
        done = watched(TSAN / "lastbit", *words)
        assert done.returncode in (0, 1) and "ThreadSanitizer" not in done.stderr, done.stderr[-6000:]
        return done.stdout

    return command


def record_large(folder, *words):
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "capture"), "LASTBIT_LIB": str(BUILD / "liblastbit_capture.so")}
    program = [sys.executable, ROOT / "tests/capture/recorder/large_model.py", folder, *words]
    subprocess.run(program, env=variables, check=True, capture_output=True)


@pytest.mark.full
def test_loops_of_replay_do_not_race(loops, tmp_path):
    """The first build takes 3 minutes of one core. Tensors are as large as the loops need to be shared."""
    record_large(tmp_path / "run.lb")
    assert "verdict: " in loops("replay", tmp_path / "run.lb")


@pytest.mark.full
def test_loops_that_compare_do_not_race(loops, tmp_path):
    for name, scale in (("first", 1), ("second", 1.001)):
        numbers = np.random.default_rng(0).standard_normal((3, 600, 600)).astype("<f4") * np.float32(scale)
        np.savez(tmp_path / f"{name}.npz", a=numbers[0], b=numbers[1], c=numbers[2].T)
    first, second = tmp_path / "first.npz", tmp_path / "second.npz"
    assert "verdict: " in loops("diff", first, second)
    assert loops("audit", second, "--against", first)
