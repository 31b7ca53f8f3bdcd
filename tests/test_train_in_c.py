"""The sample in plain C records itself, and what it recorded replays to the last bit."""

import json
import re
import subprocess

from conftest import BUILD


def run(*command):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=60)


def test_recorded_steps_replay_identically(tmp_path):
    capture = tmp_path / "run.lb"
    done = run(BUILD / "train_in_c", capture)
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", done.stdout)]
    assert len(losses) == 8 and losses[-1] < losses[0] / 2  # it learns

    assert run(BUILD / "lastbit", "verify", capture).returncode == 0
    replayed = json.loads(run(BUILD / "lastbit", "replay", "--json", capture).stdout)
    assert replayed["verdict"] == "identical"
    assert replayed["ops"]["native"] == replayed["ops"]["total"] == replayed["bitwise"] == 80

    listed = run(BUILD / "lastbit", "ls", capture).stdout
    assert "unseen_write" not in listed  # every batch is an allocation of its own


def test_existing_capture_is_not_overwritten(tmp_path):
    capture = tmp_path / "run.lb"
    assert run(BUILD / "train_in_c", capture).returncode == 0
    done = run(BUILD / "train_in_c", capture)
    assert done.returncode == 1
    assert "rank-00000.tar" in done.stderr


def test_run_without_a_capture_is_misuse():
    assert run(BUILD / "train_in_c").returncode == 129
