"""Commands under limits on memory: they start small, and what they cannot get is told."""

import os
import subprocess

import pytest
from conftest import BUILD, ROOT
from failing_runs import Server

SAMPLE = ROOT / "samples" / "scan-overflow.lbz"
UNTESTABLE = 125


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
    library = BUILD / "tests" / "libfailing_host.so"
    if not library.exists():
        pytest.skip("the injector needs glibc, and a build without sanitizers")
    command = [BUILD / "lastbit", "replay", SAMPLE, "--kernel", "openblas"]
    with Server(command, tmp_path, library, environment={"OPENBLAS_NUM_THREADS": "2"}) as server:
        assert server.run().out.startswith(b"isolated replay")
        outcome = server.run("thread", 1)
        assert outcome.failed and outcome.code == UNTESTABLE and b"threads cannot be started" in outcome.err and not outcome.out, outcome
