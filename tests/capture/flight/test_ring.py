"""The flight recorder: whatever ends the run, the window before it is on disk, and it bisects."""

import re
import sys
import textwrap

import pytest
import recorded
from conftest import ROOT
from warm_python import TORCHRUN

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
    _, err, _ = recorded.run_script(
        PROGRAM, "kill", folder=tmp_path / "run.lb", ring=K, level="auto", quiet=False, RANK=0, WORLD_SIZE=1, MASTER_ADDR="127.0.0.1", MASTER_PORT=0
    )
    assert "wrote its steps" not in err
    assert recorded.Recorded(tmp_path / "run.lb").steps == []


def test_what_one_rank_leaves_when_another_is_killed(lastbit, tmp_path):
    out = tmp_path / "run.lb"
    done = lastbit.run(
        "record",
        "-o",
        out,
        "--ring",
        K,
        "--",
        sys.executable,
        *TORCHRUN,
        "2",
        PROGRAM,
        "kill",
    )
    assert done.returncode == 1, done.stderr
    # The rank that is left writes them, unless torchrun ends it while it does: then what it held is read from its ring.
    assert done.stderr.count("the flight recorder wrote its steps") <= 1, done.stderr
    capture = recorded.Recorded(out)
    assert capture.steps[-1] == 7 and len(capture.steps) >= K
    lastbit.run("verify", out, expect=0)
    assert lastbit.json("replay", "--mode", "chained", out)["verdict"] != "diverged"
    answer = lastbit.json("bisect", out, expect=1)  # no number fails; whether a collective did is a matter of milliseconds
    assert answer["failure"]["kind"] == "ranks" and "rank 1 never came to " in answer["failure"]["what"]
    assert (answer["culprit"]["axis"], answer["culprit"]["ranks"]) == ("rank", [1])


ENDS = """
import os, sys, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(20):
    loss = model(torch.randn(4, 64)).pow(2).mean() * 1e-3 + 1
    if step == 14:
        how = sys.argv[1]
        if how == "kill": os.kill(os.getpid(), 9)
        if how == "exit": sys.exit(3)
        if how == "_exit": os._exit(4)
    loss.backward(); optimizer.step(); optimizer.zero_grad()
"""


@pytest.mark.parametrize("how, code, said", [("kill", 137, "killed by signal 9"), ("exit", 3, "exit code 3"), ("_exit", 4, "exit code 4")])
def test_window_survives_what_no_process_survives(lastbit, tmp_path, how, code, said):
    out = tmp_path / "run.lb"
    (tmp_path / "ends.py").write_text(ENDS)
    done = lastbit.run("record", "-o", out, "--ring", K, "--", sys.executable, tmp_path / "ends.py", how)
    assert done.returncode == code
    assert f"14 iterations ran, the last {5 if how != 'exit' else 6} kept: {said}" in done.stderr, done.stderr
    assert [path.name for path in out.iterdir()] == ["rank-00000.tar"]
    capture = recorded.Recorded(out)
    assert K <= len(capture.steps) <= 2 * K and capture.steps[-1] == (14 if how == "exit" else 13)
    assert list(capture.table("coverage")["notes"]["trigger"]) == [f"the program ended: {said}"] and capture.table("receipt")
    lastbit.run("verify", out, expect=0)
    chained = lastbit.json("replay", "--mode", "chained", out)
    assert chained["verdicts"]["diverged"] == 0 and chained["ops"]["opaque"] == 0
    assert lastbit.json("bisect", out)["outcome"] == "clean"


def test_what_was_not_read_whole_is_not_removed(lastbit, tmp_path):
    """Whatever keeps one file of the flight recorder from being read, the others hold the only copy of the window. Here one is a folder."""
    out = tmp_path / "run.lb"
    spoil = f'if how == "kill": os.mkdir("{out}/ring-00000-9999999999.tar"); '
    (tmp_path / "ends.py").write_text(ENDS.replace('if how == "kill": ', spoil))
    done = lastbit.run("record", "-o", out, "--ring", K, "--", sys.executable, tmp_path / "ends.py", "kill", expect=137)
    assert "could not be read whole and stay in" in done.stderr and f"lastbit recover {out}" in done.stderr, done.stderr
    assert len([path for path in out.glob("ring-*.tar") if path.is_file()]) == 2
    (out / "ring-00000-9999999999.tar").rmdir()
    lastbit.run("recover", out, "-o", tmp_path / "whole.lb", expect=0)
    assert recorded.Recorded(tmp_path / "whole.lb").steps == [9, 10, 11, 12, 13]


def test_good_run_leaves_nothing_in_the_way_of_the_next(lastbit, tmp_path):
    (tmp_path / "ends.py").write_text(ENDS)
    for _ in range(2):
        done = lastbit.run("record", "-o", tmp_path / "run.lb", "--ring", K, "--", sys.executable, tmp_path / "ends.py", "well", expect=0)
        assert "nothing went wrong" in done.stderr and not (tmp_path / "run.lb").exists()


def test_messages_are_true_after_a_kill(lastbit, tmp_path):
    (tmp_path / "ends.py").write_text(ENDS)

    def killed(steps):
        return lastbit.run(
            "record", "-o", tmp_path / f"{steps}.lb", "--steps", steps, "--", sys.executable, tmp_path / "ends.py", "kill", expect=137
        ).stderr

    assert "14 iterations ran, nothing was kept: killed by signal 9" in killed("100-102")
    said = killed("0-19")  # a thread beside the program writes: of the last step it may not have got to the end
    kept = re.search(r"14 iterations ran, the last (1[34]) kept: killed by signal 9", said)
    assert kept and recorded.Recorded(tmp_path / "0-19.lb").steps == list(range(int(kept.group(1)))), said


def test_window_without_a_launcher_is_recovered(lastbit, tmp_path):
    """The launcher was killed, too: what lies in the folder is assembled by `recover`."""
    (tmp_path / "ends.py").write_text(ENDS)
    recorded.run_script(tmp_path / "ends.py", "kill", folder=tmp_path / "run.lb", ring=K, level="auto", ok=False, quiet=False)
    assert len(list((tmp_path / "run.lb").glob("ring-*.tar"))) == 2
    lastbit.run("recover", tmp_path / "run.lb", "-o", tmp_path / "whole.lb", expect=0)
    assert recorded.Recorded(tmp_path / "whole.lb").steps == [9, 10, 11, 12, 13]


def test_iterations_that_no_step_closes_do_not_fill_memory(lastbit, tmp_path):
    code = """
        import torch, lastbit.torch
        model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        def iterate():
            (model(torch.randn(4, 64)).pow(2).mean() * 1e-3 + 1).backward(); optimizer.step(); optimizer.zero_grad()
        with lastbit.torch.capture(OUT, ring=2) as cap:
            with cap.step(0):
                for _ in range(30):
                    iterate()
            with cap.step(1):
                iterate()
            cap.trigger("test")
    """.replace("OUT", repr(str(tmp_path / "run.lb")))
    recorded.run("import sys; sys.path.insert(0, %r)\n" % str(ROOT / "capture") + textwrap.dedent(code), quiet=False)
    capture = recorded.Recorded(tmp_path / "run.lb")
    long, last = capture.programs[0][0], capture.programs[0][1]
    assert not long.complete and last.complete and len(long.ops) < 6 * len(last.ops)
    assert "first ones were dropped" in list(capture.table("coverage")["notes"]["ring"])[0]
    lastbit.run("verify", tmp_path / "run.lb", expect=0)
    assert lastbit.json("replay", "--mode", "chained", tmp_path / "run.lb")["verdicts"]["diverged"] == 0
