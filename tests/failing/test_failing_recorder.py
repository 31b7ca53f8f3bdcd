"""The recorder inside a program, on a host that fails: the program goes on and ends with its own code, whatever the recorder's calls meet.

Calls fail in the recorder's library and in those that it uses, not in the program. What was recorded is whole, or says where it stopped,
and the program hears of it when it closes the recorder.
"""

import re
import subprocess
import sys

import pytest
from conftest import BUILD, FULL, ROOT
from failing_runs import KINDS, Server
from mpi_runs import SHIM, each_family, environment, program
from test_failing_commands import FAILED, LIBRARY, pytestmark, remove  # noqa: F401

RECORDER = "liblastbit_capture,libarchive,libjansson,libzstd,libpcre2,libmsgpack"
OWN_CODE = 7  # of recorded_host.c


def ask(*words):
    return subprocess.run([BUILD / "lastbit", *words], capture_output=True, text=True, timeout=60)


def steps_in(capture):
    """Steps that `ls` counts; what is there must be whole."""
    verified = ask("verify", capture)
    assert verified.returncode == 0 or ": empty:" in verified.stdout, verified.stdout
    return int(re.search(r"(\d+) steps?\b", ask("ls", capture).stdout)[1])


def check(outcome, whole, capture, steps):
    """What is wrong with this run; None: nothing is."""
    opened, closed = b"open: " not in outcome.err, b"close: " not in outcome.err
    if outcome.code != OWN_CODE or outcome.out != (whole.out if opened else b""):
        return f"the program did not go on: {outcome}"
    if re.sub(rb"(open|close): [^\n]*\n", b"", outcome.err):
        return f"the recorder speaks where the program did not: {outcome}"
    if not opened or not capture.exists() or not any(capture.iterdir()):
        return None if not (opened and closed) else f"nothing is there, and nobody says so: {outcome}"
    there = steps_in(capture)
    if closed and there != steps:
        return f"{there} steps are there, and close said that all is well: {outcome}"
    if not closed and there < steps and outcome.kind == "alloc" and not outcome.for_good and "stopped recording" not in ask("ls", capture).stdout:
        return f"ls does not say why it stopped: {outcome}"
    return None


@pytest.mark.parametrize("way", ["ops", "auto", "ring", "like"])
def test_the_recorded_program_goes_on(way, tmp_path):
    capture, wrong, runs = tmp_path / "run.lb", [], 0
    words = [BUILD / "tests" / "recorded_host", capture, "ops" if way == "like" else way]
    if way == "like":
        subprocess.run([*words[:1], tmp_path / "first.lb", "ops"], capture_output=True)
        words.append(tmp_path / "first.lb")

    def clean():
        if capture.exists():
            remove(capture)

    with Server(words, tmp_path, LIBRARY, only=RECORDER) as server:
        whole = server.run()
        assert whole.code == OWN_CODE and not whole.err, whole
        steps = steps_in(capture)
        assert steps >= 2
        for kind in KINDS:
            for for_good in (False, True):
                for outcome in server.sweep(kind, for_good, None if FULL else 12 if kind == "alloc" else 2, clean):
                    runs += 1
                    trouble = check(outcome, whole, capture, steps)
                    wrong += [trouble] if trouble else []
    assert not wrong, "\n".join(wrong[:10])
    assert runs > 20


@pytest.mark.parametrize("way", ["ops", "ring"])
def test_the_recorded_model_goes_on(way, tmp_path):
    """What is learnt is the same to the bit, and either all steps are there or the recorder said why not."""
    capture, wrong, runs = tmp_path / "run.lb", [], 0
    words = [sys.executable, ROOT / "tests/failing/recorded_model.py", capture, way]
    environment = {"PYTHONPATH": str(ROOT / "capture"), "LASTBIT_LIB": str(BUILD / "liblastbit_capture.so"), "LASTBIT_THREADS": "1"}

    def clean():
        if capture.exists():
            remove(capture)

    with Server(words, tmp_path, LIBRARY, only=RECORDER, environment=environment, pipes="MODEL_PIPES") as server:
        whole = server.run()
        assert whole.code == OWN_CODE and (way == "ring" or not whole.err), whole
        steps = steps_in(capture)
        assert steps >= 2
        for kind in KINDS:
            for for_good in (False, True) if FULL or kind == "alloc" else (True,):
                for outcome in server.sweep(kind, for_good, None if FULL else 8 if kind == "alloc" else 1, clean):
                    runs += 1
                    trouble = check_model(outcome, whole, capture, steps)
                    wrong += [trouble] if trouble else []
    assert not wrong, "\n".join(wrong[:10])
    assert runs > 15


def check_model(outcome, whole, capture, steps):
    """What is wrong with this run; None: nothing is."""
    if (outcome.code, outcome.out) != (OWN_CODE, whole.out):
        return f"the program did not go on: {outcome}"
    said = [line for line in outcome.err.splitlines() if line not in whole.err.splitlines()]
    if any(not line.startswith(b"lastbit: ") for line in said):
        return f"something else was said: {outcome}"
    there = steps_in(capture) if capture.exists() and any(capture.iterdir()) else 0
    if not said and there != steps:
        return f"{there} steps are there, and nothing was said: {outcome}"
    return f"it is said more than once: {outcome}" if len(said) > 1 else None


def calls_in(capture):
    """Ops of all ranks; what is there must be whole. What the archive itself says is lacking is not said again on stderr."""
    if not any(capture.glob("*.tar")):
        return {"ops": 0, "told": False}
    steps_in(capture)
    listed = ask("ls", "--json", capture).stdout
    return {"ops": sum(map(int, re.findall(r'"ops": (\d+)', listed))), "told": "skipped" in listed or "degraded" in listed}


def calls_that_do_not_go_on(server, capture, least, allocations, clean, given):
    """What is wrong where a call beneath the shim fails: the program gave something else, or calls lack and it was not said. And how many were tried.
    `given`: of what is printed, what must be the same."""
    wrong, runs = [], 0
    whole = server.run()
    assert whole.code == 0 and not whole.err, whole
    calls = calls_in(capture)
    assert calls["ops"] > least and not calls["told"], calls
    for kind in KINDS:
        for for_good in (False, True):
            for outcome in server.sweep(kind, for_good, None if FULL else allocations if kind == "alloc" else 1, clean):
                runs += 1
                if (outcome.code, given(outcome.out)) != (0, given(whole.out)):
                    wrong.append(f"the program did not go on: {outcome}")
                elif not outcome.err and (there := calls_in(capture)) != calls and not there["told"]:
                    wrong.append(f"{there} of {calls} calls are there, and nothing was said: {outcome}")
    return wrong, runs


def emptied(capture):
    def clean():
        if capture.exists():
            remove(capture)
        capture.mkdir()

    clean()
    return clean


@pytest.mark.parametrize("how", ["threads", "processes"])
def test_the_program_above_nccl_goes_on(how, tmp_path):
    """Beneath it stands the shim, which loads the recorder; what each rank received is the same."""
    capture = tmp_path / "run.lb"
    words = [BUILD / "tests" / "nccl_program", "everything", how, 2]
    environment = {
        "LD_PRELOAD": f"{LIBRARY}:{BUILD / 'liblastbit_nccl.so'}",
        "LASTBIT_OUT": str(capture),
        "LASTBIT_LIB": str(BUILD / "liblastbit_capture.so"),
    }
    clean = emptied(capture)
    with Server(words, tmp_path, LIBRARY, only=f"liblastbit_nccl,{RECORDER}", environment=environment) as server:
        wrong, runs = calls_that_do_not_go_on(server, capture, 100, 8, clean, lambda out: sorted(out.splitlines()))
    assert not wrong, "\n".join(wrong[:10])
    assert runs > 15


@pytest.mark.parametrize("family", each_family())
def test_the_program_above_mpi_goes_on(family, tmp_path):
    """A job of one rank, which needs no launcher; one scenario for what returns at once, and one for what is waited for."""
    capture, wrong, runs = tmp_path / "run.lb", [], 0
    settings = {
        **{name: text for name, text in environment().items() if name.startswith("OMPI_")},
        "LD_PRELOAD": f"{LIBRARY}:{SHIM}",
        "LASTBIT_OUT": str(capture),
        "LASTBIT_LIB": str(BUILD / "liblastbit_capture.so"),
    }
    for scenario in ("collectives", "later"):
        clean = emptied(capture)
        with Server([program(family), scenario], tmp_path, LIBRARY, only=f"liblastbit_mpi,{RECORDER}", environment=settings) as server:
            found, tried = calls_that_do_not_go_on(server, capture, 20, 6, clean, lambda out: out)
        wrong, runs = wrong + found, runs + tried
    assert not wrong, "\n".join(wrong[:10])
    assert runs > 15


@pytest.mark.parametrize("kind", ["alloc", "open", "read", "write", "folder", "stat", "path", "process", "unlink", "close"])
def test_record_passes_the_code_on(kind, tmp_path):
    """128 only if the program was not run."""
    out, ran, wrong = tmp_path / "run.lb", tmp_path / "ran", []
    command = [BUILD / "lastbit", "record", "-o", out, "--", "/bin/sh", "-c", f"echo > {ran}; exit 7"]

    def clean():
        ran.unlink(missing_ok=True)
        if out.exists():
            remove(out)

    with Server(command, tmp_path, LIBRARY) as server:
        assert server.run().code == 7
        for for_good in (False, True):
            for outcome in server.sweep(kind, for_good, None if FULL else 10, clean):
                fine = outcome.code == 7 if ran.exists() else outcome.code == FAILED and b"lastbit record" in outcome.err
                wrong += [] if fine else [str(outcome)]
    assert not wrong, "\n".join(wrong[:10])
