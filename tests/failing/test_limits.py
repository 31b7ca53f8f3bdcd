"""Commands under limits on memory, stacks and threads: they start small, and what they cannot get is told."""

import os
import re
import resource
import subprocess

import numpy as np
import pytest
from conftest import BUILD, ROOT
from failing_runs import Server
from safetensors.numpy import save_file

SAMPLE = ROOT / "samples" / "scan-overflow.lbz"
LIBRARY = BUILD / "tests" / "libfailing_host.so"
UNTESTABLE, FAILED = 125, 128


def limited(megabytes, *words):
    command = ["bash", "-c", f'ulimit -v {megabytes << 10}; exec "$@"', "bash", BUILD / "lastbit", *words]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("words", [["ls", SAMPLE], ["verify", SAMPLE], ["show", SAMPLE], ["help", "diff"]], ids=lambda words: words[0])
def test_a_command_that_computes_nothing_needs_little_address_space(words):
    """A library that starts threads in every command would want gigabytes of it."""
    done = limited(128, *words)
    free = subprocess.run([str(word) for word in [BUILD / "lastbit", *words]], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (free.returncode, free.stdout) and free.returncode == 0, done.stderr


def test_a_library_that_would_wait_for_memory_for_ever_is_not_loaded():
    done = limited(250, "replay", SAMPLE, "--kernel", "openblas")
    assert done.returncode == UNTESTABLE and "OpenBLAS" in done.stderr and not done.stdout


@pytest.mark.skipif(os.cpu_count() < 2, reason="OpenBLAS starts no thread for one core")
def test_a_library_that_ends_its_process_where_no_thread_can_be_started_is_not_loaded(tmp_path):
    """OpenBLAS raises SIGINT then: a command would end as if it had been interrupted."""
    if not LIBRARY.exists():
        pytest.skip("the injector needs glibc, and a build without sanitizers")
    command = [BUILD / "lastbit", "replay", SAMPLE, "--kernel", "openblas"]
    with Server(command, tmp_path, LIBRARY, environment={"OPENBLAS_NUM_THREADS": "2"}) as server:
        assert server.run().out.startswith(b"isolated replay")
        outcome = server.run("thread", 1)
        assert outcome.failed and outcome.code == UNTESTABLE and b"threads cannot be started" in outcome.err and not outcome.out, outcome


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """The files of COMMANDS in capitals: tensors of two threads' work among them."""
    folder = tmp_path_factory.mktemp("inputs")
    subprocess.run([BUILD / "train_in_c", folder / "RUN"], check=True, capture_output=True)
    numbers = np.random.default_rng(0)
    weights = {f"layers.{i}.{name}.weight": numbers.standard_normal((256, 256)).astype(np.float32) for i in range(2) for name in "qk"}
    save_file(weights, folder / "GOOD.safetensors")
    weights["layers.1.q.weight"][3] *= np.float32(1.01)
    save_file(weights, folder / "BAD.safetensors")
    return folder


COMMANDS = "ls GOOD|show RUN first.weight|audit GOOD --against BAD|fingerprint GOOD --against BAD|diff GOOD BAD|replay RUN|explain RUN RUN".split("|")


FILES = {"RUN": "RUN", "GOOD": "GOOD.safetensors", "BAD": "BAD.safetensors"}


def words_of(inputs, command):
    return [inputs / FILES[word] if word in FILES else word for word in command.split()]


def answer(inputs, command, limits=":", **variables):
    """Exit code and answer of a command behind `limits`, a line of the shell; variables that are None are not there."""
    environment = {name: value for name, value in {**os.environ, "OMP_NUM_THREADS": "3", **variables}.items() if value is not None}
    shell = ["bash", "-c", f'{limits}; exec "$@"', "bash", BUILD / "lastbit", *words_of(inputs, command)]
    done = subprocess.run([str(word) for word in shell], env=environment, capture_output=True, text=True, timeout=60)
    return done.returncode, re.sub(r"in \d+\.\d+ s\b", "", done.stdout), done.stderr


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kilobytes", [64, 128])
def test_a_command_has_the_same_stack_whatever_its_limit_is(command, kilobytes, inputs):
    code, out, _ = answer(inputs, command)
    assert out and code in (0, 1)
    assert answer(inputs, command, f"ulimit -s {kilobytes}") == (code, out, "")


@pytest.mark.parametrize(
    "name, value", [("NUM_THREADS", "100000"), ("STACKSIZE", "16k"), ("STACKSIZE", "100G"), ("THREAD_LIMIT", "1"), ("DYNAMIC", "true")]
)
def test_variables_of_openmp_change_no_answer(name, value, inputs):
    for command in COMMANDS[2:]:
        code, out, _ = answer(inputs, command)
        assert answer(inputs, command, **{f"OMP_{name}": value}) == (code, out, ""), command


def test_a_number_of_threads_that_is_asked_for_is_one_that_can_be_had(inputs):
    for command in ("replay RUN", "diff RUN RUN", "explain RUN RUN"):
        code, out, _ = answer(inputs, command)
        assert answer(inputs, f"{command} --threads 100000") == (code, out, ""), command


def test_programs_of_a_command_have_the_variables_that_it_was_given(tmp_path):
    """What the command sets for itself is taken back, whether it was set before or not."""
    script, said = tmp_path / "job.sh", tmp_path / "said"
    script.write_text(f"#!/bin/sh\nenv | grep -E 'OMP_|LASTBIT_' | sort >{said}\nexit 1\n")
    script.chmod(0o755)
    bare = {name: value for name, value in os.environ.items() if "OMP_" not in name and not name.startswith("LASTBIT_")}
    for given in ({}, {"OMP_STACKSIZE": "3M"}, {"OMP_STACKSIZE": "3M", "OMP_WAIT_POLICY": "active"}):
        command = [BUILD / "lastbit", "bisect", "--run", script, "--flag", "muon=-a"]
        subprocess.run([str(word) for word in command], env=bare | given, cwd=tmp_path, capture_output=True, timeout=60)
        lines = [line for line in said.read_text().splitlines() if "OMP_" in line or "GIVEN" in line or "AGAIN" in line]
        assert lines == sorted(f"{name}={value}" for name, value in given.items())


@pytest.mark.skipif(not LIBRARY.exists(), reason="the injector needs glibc, and a build without sanitizers")
def test_threads_that_cannot_be_started_are_not_missed(inputs, tmp_path):
    """OpenMP would end the process with 1, which reads as "found"."""
    for command in ("audit BAD", "fingerprint GOOD --against BAD"):
        with Server([BUILD / "lastbit", *words_of(inputs, command)], tmp_path, LIBRARY, environment={"OMP_NUM_THREADS": "4"}) as server:
            whole = server.run()
            once, for_good = list(server.sweep("thread", False)), list(server.sweep("thread", True))
        assert len(once) >= 6 and len(for_good) >= 3
        for outcome in once[:3] + for_good[:1]:  # the first three are trials
            assert (outcome.code, outcome.out) == (whole.code, whole.out) and not outcome.err, outcome
        for outcome in once[3:] + for_good[1:]:
            assert (outcome.code, outcome.out) == (whole.code, whole.out) or (outcome.code == FAILED and not outcome.out), outcome


@pytest.mark.skipif(not LIBRARY.exists(), reason="the injector needs glibc, and a build without sanitizers")
def test_where_neither_stack_nor_thread_can_be_had_is_told(inputs, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (128 << 10, hard))  # which what we start inherits
    try:
        with Server([BUILD / "lastbit", *words_of(inputs, "ls GOOD")], tmp_path, LIBRARY) as server:
            assert server.run().code == 0
            outcome = server.run("thread", 1)
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))
    assert outcome.failed and outcome.code == FAILED and b"ulimit -s" in outcome.err and not outcome.out
