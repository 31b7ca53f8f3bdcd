"""Commands under limits on memory: they start small, and what they cannot get is told."""

import subprocess

import pytest
from conftest import BUILD, ROOT

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
