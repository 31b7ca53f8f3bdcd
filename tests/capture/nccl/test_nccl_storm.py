"""The shim under load: threads, injected failures, forks, dlclose; its cost where nothing is recorded; data races."""

import os
import re
import shutil
import subprocess

import pytest
from conftest import BUILD, ROOT

STORM = BUILD / "tests" / "nccl_storm"
SHIM = BUILD / "liblastbit_nccl.so"
HERE = ROOT / "tests" / "capture" / "nccl"
STANDIN = [HERE / f"standin_{part}.c" for part in ("nccl", "reduce", "numbers")]


def storm(calls, forks, *, program=STORM, threads=4, **environment):
    env = {**os.environ, "STANDIN_NCCL_FAIL": "7", "STORM_LIBRARY": str(BUILD / "dropin/nccl/libnccl.so.2")}
    env.update({key: str(value) for key, value in environment.items()})
    done = subprocess.run([program, str(threads), str(calls), str(forks)], capture_output=True, text=True, timeout=550, env=env)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout, done.stderr


def recorded(tmp_path, **environment):
    folder = tmp_path / "run.lb"
    folder.mkdir()
    return folder, dict(LD_PRELOAD=SHIM, LASTBIT_OUT=folder, LASTBIT_LIB=BUILD / "liblastbit_capture.so", **environment)


def calls_in(lastbit, folder):
    listed = lastbit.run("ls", folder, "--json").stdout
    return sum(int(n) for n in re.findall(r'"ops": (\d+)', listed))


@pytest.mark.parametrize("calls, forks", [(30000, 20), pytest.param(1000000, 200, marks=pytest.mark.full)])
@pytest.mark.parametrize("keep", ["calls", "bytes"])
def test_results_are_the_same_and_the_capture_is_whole(lastbit, tmp_path, calls, forks, keep):
    folder, environment = recorded(tmp_path, LASTBIT_NCCL_KEEP=keep, LASTBIT_NCCL_STEP=1000, LASTBIT_LEVEL="stats")
    assert storm(calls, forks, **environment) == storm(calls, forks)
    verified = lastbit.run("verify", folder, expect=0).stdout
    assert "1 archive (1 closed)" in verified and "0 damaged" in verified
    assert calls_in(lastbit, folder) >= calls


@pytest.mark.full
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_sanitizers_find_nothing(tmp_path, sanitizer):
    """Shim, stand-in and storm under a sanitizer; the recorder, which has tests of its own, is the plain one."""
    flags = [
        "cc",
        "-std=gnu11",
        "-g",
        "-O1",
        f"-fsanitize={sanitizer}",
        "-fPIC",
        *(f"-I{ROOT}/{folder}" for folder in ("include", "capture", "capture/nccl")),
    ]
    shim, standin, program = tmp_path / "liblastbit_nccl.so", tmp_path / "libnccl.so.2", tmp_path / "storm"
    sources = sorted(path for folder in ("calls", "nccl") for path in (ROOT / "capture" / folder).glob("*.c"))
    subprocess.run([*flags, "-shared", "-fvisibility=hidden", "-Wl,-z,nodelete", *sources, "-o", shim, "-lpthread"], check=True)
    subprocess.run([*flags, "-shared", "-Wl,-soname,libnccl.so.2", *STANDIN, "-o", standin, "-lm", "-lpthread"], check=True)
    linked = [shim, standin, f"-Wl,-rpath,{tmp_path}", "-Wl,--no-as-needed", "-lpthread"]
    subprocess.run([*flags, HERE / "nccl_storm.c", "-o", program, *linked], check=True)
    options = dict(TSAN_OPTIONS="exitcode=66 die_after_fork=0 atexit_sleep_ms=0", UBSAN_OPTIONS="halt_on_error=1")
    folder, environment = recorded(tmp_path, LASTBIT_NCCL_STEP=1000, LASTBIT_LEVEL="stats", STORM_LIBRARY=shim, **options)
    del environment["LD_PRELOAD"]
    forks = 10 if sanitizer == "thread" else 0  # a child drops what its parent has, which is a leak in the child
    out, err = storm(100000, forks, program=program, **environment)
    assert "Sanitizer" not in err and "runtime error" not in err
    assert list(folder.glob("rank-*.tar"))


def instructions(tmp_path, **environment):
    """Of the shim in the thread that calls ncclAllReduce, per call: the stand-in's own function of that name ends the counting."""
    out = tmp_path / "callgrind.out"
    env = {"STORM_LIBRARY": "", "LD_PRELOAD": SHIM}
    env = {**os.environ, **env, **environment}
    tool = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "--toggle-collect=ncclAllReduce"]
    command = [*tool, STORM, "1", "4000", "0"]
    subprocess.run(command, capture_output=True, check=True, timeout=300, env={key: str(value) for key, value in env.items()})
    return int(re.search(r"^(?:summary|totals): (\d+)", out.read_text(), re.M).group(1)) / 4000


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_cost_of_a_call(tmp_path):
    """At three instructions a nanosecond: 50 ns where nothing is recorded, 0.5 us where calls are recorded without bytes, or not in the window."""
    folder, environment = recorded(tmp_path, LASTBIT_NCCL_KEEP="calls", LASTBIT_NCCL_STEP=1000)
    assert 0 < instructions(tmp_path) < 150
    assert 0 < instructions(tmp_path, **environment) < 1500
    assert 0 < instructions(tmp_path, LASTBIT_STEPS="5000", **environment) < 1500
    assert list(folder.glob("rank-*.tar"))


@pytest.mark.full
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_cost_of_a_call_when_disabled(tmp_path):
    folder, environment = recorded(tmp_path, LASTBIT_DISABLE=1)
    assert 0 < instructions(tmp_path, **environment) < 150
    assert not list(folder.iterdir())
