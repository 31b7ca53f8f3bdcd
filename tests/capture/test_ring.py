"""The flight recorder: whatever ends the run, the window before it is on disk, and it bisects."""
import sys

import pytest

import recorded
from conftest import ROOT

PROGRAM = ROOT / "tests/programs/crashing.py"
K = 3


@pytest.mark.parametrize("how, status", [("exception", 1), ("abort", -6), ("segv", -11), ("term", -15), ("nothing", 0)])
def test_failing_window_is_on_disk_and_bisects(lastbit, tmp_path, how, status):
    out = tmp_path / "run.lb"
    _, err, ended = recorded.run_script(PROGRAM, how, folder=out, ring=K, level="auto", ok=False, quiet=False)
    assert ended == status, err
    assert err.count("the flight recorder wrote its steps") == 1, err
    capture = recorded.Recorded(out)
    assert capture.steps[-1] == 7 and K <= len(capture.steps) <= 2 * K
    assert capture.table("coverage")["notes"]["trigger"]
    lastbit.run("verify", out, expect=0)
    found = lastbit.json("bisect", out, expect=1)
    assert found["outcome"] == "found" and found["failure"]["step"] == 7
    assert found["culprit"]["axis"] == "source" and found["culprit"]["step"] == 7


def test_run_that_ends_well_leaves_no_window(tmp_path):
    _, err, _ = recorded.run_script(PROGRAM, "kill", folder=tmp_path / "run.lb", ring=K, level="auto", quiet=False,
                                    RANK=0, WORLD_SIZE=1, MASTER_ADDR="127.0.0.1", MASTER_PORT=0)
    assert "wrote its steps" not in err
    assert recorded.Recorded(tmp_path / "run.lb").steps == []


def test_what_one_rank_leaves_when_another_is_killed(lastbit, tmp_path):
    out = tmp_path / "run.lb"
    done = lastbit.run("record", "-o", out, "--ring", K, "--", sys.executable, "-m", "torch.distributed.run", "--standalone",
                       "--nproc-per-node", "2", PROGRAM, "kill")
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("the flight recorder wrote its steps") == 1, done.stderr
    capture = recorded.Recorded(out)
    assert capture.steps[-1] == 7 and len(capture.steps) >= K
    lastbit.run("verify", out, expect=0)
    assert lastbit.json("replay", "--mode", "chained", out)["verdict"] != "diverged"
    assert lastbit.json("bisect", out, expect=0)["outcome"] == "clean"
