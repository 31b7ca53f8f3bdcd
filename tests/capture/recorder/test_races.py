"""The recorder's locks under ThreadSanitizer: what many threads ask of it at once, as the binding of Python lets them."""

import os
import shutil
import subprocess

import pytest
from conftest import ROOT

PROGRAMS = ["capture_test_recorder", "capture_test_recorder_storm", "capture_test_pool"]


@pytest.mark.full
def test_threads_of_a_recorder_do_not_race():
    launcher = ["-DCMAKE_C_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    for command in (["cmake", "--preset", "tsan", *launcher], ["cmake", "--build", "--preset", "tsan", "--target", *PROGRAMS]):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    for program in PROGRAMS:
        env = {**os.environ, "TSAN_OPTIONS": "exitcode=66 die_after_fork=0"}
        done = subprocess.run([ROOT / "build/tsan/tests" / program], capture_output=True, text=True, timeout=500, env=env)
        assert done.returncode == 0 and "ThreadSanitizer" not in done.stderr, done.stderr[-6000:]
