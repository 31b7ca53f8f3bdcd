"""Power cuts: the writes of a program are logged, and disks are made of the log as a power cut may leave them at any moment.

Of writes that no fsync followed any part may be there, in any order, down to single sectors; of names, too (disk_model.h). On each such
disk every step that fsync had made permanent is there and whole, no step is wrong, `verify` calls nothing whole that lacks bytes, what
`recover` writes lacks no whole step, and a file that is written whole is the old one or the new one (crash_states.c). Over 1,000 disks
in the suite, 100,000 under --full."""

import json
import os
import shutil
import subprocess
import tempfile

import pytest
from conftest import BUILD, FULL

STATES = 12_000 if FULL else 120  # of each program
STEPS = 6
AT_CLOSE, AT_STEP, NEVER = "sync=0", "sync=1", "sync=2"


class Disk:
    """A folder whose writes are logged, and what a power cut makes of them."""

    def __init__(self, folder):
        self.folder, self.start, self.log, self.kept = folder / "disk", folder / "start", folder / "log", folder / "kept"
        self.folder.mkdir()
        names = {"LD_PRELOAD": str(BUILD / "tests/libwrite_log.so"), "LB_LOG_BELOW": str(self.folder), "LB_LOG_TO": str(self.log)}
        self.how = {"cwd": self.folder, "env": {**os.environ, **names}, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}

    def run(self, *command, code=0):
        """Runs a program in the folder; its writes are logged."""
        done = subprocess.run([str(part) for part in command], timeout=120, **self.how)
        assert done.returncode == code, done.stderr

    def settle(self):
        """What was written so far is on the disk: the log begins anew."""
        shutil.copytree(self.folder, self.start)
        self.log.unlink(missing_ok=True)

    def cut(self, *asked):
        """Cuts the power, in STATES ways; what was tried. A few of the disks stay in `kept`."""
        # In memory a state takes a tenth of the time.
        scratch = tempfile.mkdtemp(prefix="lastbit-power-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
        begin = [f"start={self.start}"] if self.start.exists() else []
        command = [BUILD / "tests/crash_states", self.log, scratch, f"end={self.folder}", f"states={STATES}", "keep=3", *begin, *asked]
        try:
            done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=3000)
            assert done.returncode == 0, done.stderr
            tried = json.loads(done.stdout)
            assert tried["states"] >= STATES and tried["events"] > 3, tried
            shutil.copytree(scratch, self.kept)
            return tried
        finally:
            shutil.rmtree(scratch)


@pytest.fixture
def disk(tmp_path):
    return Disk(tmp_path)


def make_steps(*options):
    return [BUILD / "tests/make_steps", "run.lb", f"steps={STEPS}", *options]


@pytest.mark.parametrize("beside", [0, 1])
@pytest.mark.parametrize("when", [AT_CLOSE, AT_STEP, NEVER])
def test_steps_that_were_synced_are_there(lastbit, disk, when, beside):
    disk.run(*make_steps(when, f"beside={beside}"))
    tried = disk.cut("capture=run.lb")
    assert tried["recorded"] == STEPS and tried["permanent"] == (0 if when == NEVER else STEPS)
    # At every step: in the middle of the run, too, there are steps that must be there.
    assert tried["wanted"] == 0 if when == NEVER else tried["wanted"] > (tried["states"] if when == AT_STEP else 0)
    for state in sorted(disk.kept.glob("keep-*")):  # what a person would type next
        for command in ("ls", "verify", "recover"):
            done = lastbit.run(command, "run.lb", cwd=state)
            assert done.returncode in (0, 1, 125, 128) and (done.stdout or done.stderr), (state, command, done)


def test_two_ranks_of_one_capture(disk):
    programs = [subprocess.Popen([str(part) for part in make_steps(AT_STEP, f"rank={rank}", "world=2")], **disk.how) for rank in (0, 1)]
    for program in programs:
        assert program.wait(60) == 0, program.stderr.read()
        program.stderr.close()
    tried = disk.cut("capture=run.lb")
    assert tried["recorded"] == tried["permanent"] == 2 * STEPS


def test_window_of_a_flight_recorder_and_its_rescue(disk):
    """The program is killed, and its launcher puts the window together: at every moment of both the newest steps are there, or were never
    on the disk."""
    disk.run(BUILD / "lastbit", "record", "-o", "run.lb", "--ring", "2", "--", *make_steps("ring=2", "close=0"), code=128 + 9)
    assert [path.name for path in (disk.folder / "run.lb").iterdir()] == ["rank-00000.tar"]
    tried = disk.cut("capture=run.lb")
    assert tried["recorded"] == STEPS and 2 <= tried["permanent"] <= 4


@pytest.fixture
def recorded(disk):
    disk.run(*make_steps())
    return disk


def test_pack_is_there_whole_or_not_at_all(recorded):
    recorded.settle()
    recorded.run(BUILD / "lastbit", "pack", "run.lb", "-o", "new.lbz")
    tried = recorded.cut("whole=new.lbz", "capture=new.lbz", "capture=run.lb")
    assert tried["permanent"] == 2 * STEPS


def test_pack_in_the_place_of_another_leaves_one_of_the_two(recorded):
    recorded.run(BUILD / "lastbit", "pack", "run.lb", "-o", "run.lbz", "--steps", "0-2")
    recorded.settle()
    recorded.run(BUILD / "lastbit", "pack", "-f", "run.lb", "-o", "run.lbz", "--level", "3")
    tried = recorded.cut("whole=run.lbz", "capture=run.lbz")
    assert tried["permanent"] == STEPS and tried["wanted"] > 2 * tried["states"]


def test_repair_takes_nothing_from_what_it_repairs(disk):
    disk.run(*make_steps("close=0", "flush=1"), code=-9)
    disk.settle()
    disk.run(BUILD / "lastbit", "recover", "run.lb", "-o", "whole.lb")
    tried = disk.cut("capture=run.lb", "capture=whole.lb")
    assert tried["wanted"] > 0 and tried["permanent"] >= STEPS


def test_log_that_lacks_a_write_is_told(disk):
    """The detector: what passes by the log is seen."""
    disk.run(*make_steps(AT_STEP))
    whole = disk.log.read_bytes()
    disk.log.write_bytes(whole[: len(whole) // 2])
    scratch = disk.folder.parent / "states"
    done = subprocess.run([BUILD / "tests/crash_states", disk.log, scratch, f"end={disk.folder}", "capture=run.lb"], capture_output=True, text=True)
    assert done.returncode != 0 and done.stderr
