"""`lastbit watch -f`: logs that grow, are rotated, cut, interrupted or not there yet."""

import time

import pytest
import run_logs as logs
from watched_logs import following, spiked, wait_until, write


@pytest.fixture
def follow(lastbit, tmp_path):
    yield from following(lastbit, tmp_path)


def test_a_growing_log_is_followed_and_a_partial_line_waits(follow, tmp_path):
    path, hold = tmp_path / "run.log", tmp_path / "hold"
    text = spiked(0, 400, 300)
    path.write_text(text[: text.index("step 00300")])
    follower = follow(path, "--hold", hold)
    rest = text[text.index("step 00300") :]
    with path.open("a") as log:
        log.write(rest[:60])
        log.flush()
        time.sleep(0.6)
        assert follower.out.read_text() == ""  # half a line is none
        log.write(rest[60 : rest.index("step 00305")])
        log.flush()
        follower.wait_for("step 300: critical grad_norm (rule)")
        wait_until(hold.exists)
        assert "no checkpoint while this file exists\nfrom 300" in hold.read_text()
        log.write(rest[rest.index("step 00305") :])
        log.flush()
        follower.wait_for("the hold that began at step 300 is over")
        wait_until(lambda: not hold.exists())
    assert follower.end() == 1
    assert "2 alarms in 400 steps" in follower.out.read_text() and follower.err.read_text() == ""


def test_a_log_that_is_rotated_or_cut_goes_on(follow, tmp_path):
    path = tmp_path / "run.log"
    path.write_text(spiked(0, 200, 10**9))
    follower = follow(path)
    time.sleep(0.5)
    path.rename(tmp_path / "run.log.1")
    path.write_text(spiked(200, 300, 250))
    follower.wait_for("step 250: critical")
    with path.open("r+") as log:  # cut, as copytruncate does
        log.truncate(0)
    time.sleep(0.5)
    with path.open("a") as log:
        log.write(spiked(300, 320, 310))
    follower.wait_for("step 310: warning")
    assert follower.end() == 1
    assert "in 320 steps (0 to 319)" in follower.out.read_text()


def test_interrupted_while_it_holds_it_removes_the_file(follow, tmp_path):
    path, hold = tmp_path / "run.log", tmp_path / "hold"
    text = spiked(0, 400, 300)
    path.write_text(text[: text.index("step 00303")])
    follower = follow(path, "--hold", hold)
    wait_until(hold.exists)
    assert follower.end() == 1
    assert not hold.exists() and "because watching has ended" in follower.err.read_text()


def test_a_hold_stays_when_the_log_ends_in_it_and_a_foreign_file_is_left_alone(lastbit, tmp_path):
    path, hold = write(tmp_path / "nan.log", logs.lines(logs.immediate_nan())), tmp_path / "hold"
    lastbit.run("watch", path, "--hold", hold, expect=1)
    assert hold.exists()
    lastbit.run("watch", write(tmp_path / "ok.log", logs.lines(logs.clean(100))), "--hold", hold, expect=0)
    assert not hold.exists()
    hold.write_text("mine")
    assert "no watch has written" in lastbit.run("watch", path, "--hold", hold, expect=128).stderr
    assert hold.read_text() == "mine"


def test_it_stops_when_idle_or_at_the_level_asked_for(lastbit, tmp_path):
    path = write(tmp_path / "run.log", spiked(0, 400, 300))
    begin = time.monotonic()
    lastbit.run("watch", "-f", "--idle", "0.5", path, expect=1, timeout=30)
    assert time.monotonic() - begin < 20
    answer = lastbit.json("watch", path, "--exit-on", "critical", expect=1)
    assert answer["last_step"] == 300


# ---- a log that is not there yet


def test_a_log_that_is_not_there_yet_is_waited_for(follow, tmp_path):
    path = tmp_path / "run.log"
    follower = follow(path)
    wait_until(lambda: follower.err.read_text() == f"lastbit watch: cannot open {path}: No such file or directory; waiting for {path}\n")
    write(path, spiked(0, 400, 300))
    follower.wait_for("step 300: critical grad_norm (rule)")
    assert follower.end() == 1


def test_the_wait_for_a_log_ends_as_other_waits_do(lastbit, follow, tmp_path):
    missing = tmp_path / "none"
    assert "cannot open" in lastbit.run("watch", missing, expect=128).stderr
    done = lastbit.run("watch", "-f", "--idle", "0.3", missing, expect=128, timeout=30)
    assert "waiting for" in done.stderr and done.stdout == ""
    follower = follow(missing)
    wait_until(lambda: "waiting for" in follower.err.read_text())
    assert follower.end() == 125 and "no step was found" in follower.err.read_text()
