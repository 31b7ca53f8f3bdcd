"""The recorder inside a program, on a host that fails: the program goes on and ends with its own code, whatever the recorder's calls meet.

Calls fail in the recorder's library and in those that it uses, not in the program. What was recorded is whole, or says where it stopped,
and the program hears of it when it closes the recorder.
"""

import re
import subprocess

import pytest
from conftest import BUILD, FULL
from failing_runs import KINDS, Server
from test_failing_commands import FAILED, LIBRARY, pytestmark, remove  # noqa: F401

RECORDER = "liblastbit_capture,libarchive,libjansson,libzstd,libpcre2,libmsgpack"
STEPS = 8  # of the sample


def ask(*words):
    return subprocess.run([BUILD / "lastbit", *words], capture_output=True, text=True, timeout=60)


def steps_in(capture):
    """Steps that `ls` counts; what is there must be whole."""
    verified = ask("verify", capture)
    assert verified.returncode == 0 or ": empty:" in verified.stdout, verified.stdout
    return int(re.search(r"(\d+) steps?\b", ask("ls", capture).stdout)[1])


def check(outcome, whole, capture):
    """What is wrong with this run; None: nothing is."""
    went_on = outcome.out == whole.out
    if outcome.code == 1 and outcome.err.startswith(b"train_in_c: ") and not outcome.out:
        return None  # it could not begin, and the sample ends then
    if not went_on or outcome.code not in (0, 1):
        return f"the program did not go on: {outcome}"
    told = outcome.err.startswith(b"train_in_c: ")
    if told != (outcome.code == 1):
        return f"the sample says what close told it, and nobody else speaks: {outcome}"
    if not capture.exists() or not any(capture.iterdir()):
        return None if told else f"nothing is there, and nobody says so: {outcome}"
    steps = steps_in(capture)
    if not told and steps != STEPS:
        return f"{steps} steps are there, and close said that all is well: {outcome}"
    if told and steps < STEPS and outcome.for_good is False and outcome.kind == "alloc" and "stopped recording" not in ask("ls", capture).stdout:
        return f"ls does not say why it stopped: {outcome}"
    return None


@pytest.mark.parametrize("kind", KINDS)
def test_the_recorded_program_goes_on(kind, tmp_path):
    capture, wrong, runs = tmp_path / "run.lb", [], 0
    with Server([BUILD / "train_in_c", capture], tmp_path, LIBRARY, only=RECORDER) as server:
        whole = server.run()
        assert whole.code == 0 and steps_in(capture) == STEPS
        remove(capture)
        calls = server.run(kind).calls
        remove(capture)
        for for_good in (False, True):
            for n in server.chosen(calls, None if FULL else 30 if kind == "alloc" else 3):
                outcome = server.run(kind, n, for_good)
                runs += bool(outcome.failed)
                trouble = check(outcome, whole, capture)
                wrong += [trouble] if trouble else []
                remove(capture)
    assert not wrong, "\n".join(wrong[:10])
    assert runs or not calls


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
