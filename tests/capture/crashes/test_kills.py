"""Kills at moments of chance: no step that was said to be committed is lost, none is wrong, and no good file is destroyed (kill_rounds.c).

Some hundred in the suite, over 10,000 under --full. The moments follow from a number; where in the program they fall is the machine's."""

import json
import os
import shutil
import subprocess
import tempfile

import pytest
from conftest import BUILD, FULL

ROUNDS = 1_700 if FULL else 17


@pytest.mark.parametrize("kind", ["recorder", "beside", "ring", "ranks", "pack", "recover"])
def test_kill_takes_nothing_that_was_committed(kind):
    scratch = tempfile.mkdtemp(prefix="lastbit-kills-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    command = [BUILD / "tests/kill_rounds", kind, ROUNDS, 11, BUILD / "tests/make_steps", BUILD / "lastbit", scratch]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr  # the folder stays, to look at
    shutil.rmtree(scratch)
    tried = json.loads(done.stdout)
    assert tried["kills"] == ROUNDS * (2 if kind == "ranks" else 1) and tried["deaths"] > tried["kills"] // 4, tried
    assert tried["kept"] > 0 or kind == "recover", tried
    assert tried["said"] > 0 or kind in ("pack", "recover"), tried
