"""The sample of a trainer and its server: three syncs, in which the tensor that was lost and the one that comes late are named."""

import os
import subprocess
import sys

import pytest
from conftest import BUILD, ROOT

LOST, LATE = "model.layers.1.mlp.down_proj.weight", "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("syncs")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "capture"), "LASTBIT_LIB": str(BUILD / "liblastbit_capture.so"), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, ROOT / "samples" / "weight_sync" / "trainer.py", folder]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200, env=environment)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_each_sync_names_what_did_not_arrive(run):
    _, said = run
    assert said.splitlines()[:-1] == [
        "sync 1: same",
        "sync 2: different",
        f"  old: {LATE} (as in sync 1)",
        f"  old: {LOST} (as in sync 1)",
        "sync 3: different",
        f"  old: {LATE} (as in sync 2)",
    ]
    text = (ROOT / "samples" / "weight_sync" / "README.md").read_text()
    assert all(line.strip() in text for line in said.splitlines())


def test_all_syncs_together_tell_late_from_lost(lastbit, run):
    folder, _ = run
    sent = [folder / f"sent-{n}.json" for n in (1, 2, 3)]
    served = [word for n in (1, 2, 3) for word in ("--against", folder / f"server-{n}.json")]
    answer = lastbit.json("fingerprint", *sent, *served, expect=1)
    found = [(m["against"], m["kind"], m["tensor"], m["earlier"], m["later"]) for m in answer["matches"] if m["finding"]]
    assert found == [(1, "late", LATE, 0, 2), (1, "old", LOST, 0, None), (2, "old", LATE, 1, None)]
