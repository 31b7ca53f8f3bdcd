"""`lastbit watch` over trainer_state.json, as the Trainer of transformers writes it."""

import json
import os
import subprocess
import sys
import time

import pytest
import run_logs as logs
from conftest import ROOT
from watched_logs import alarms, following, spiked_records, wait_until, write


@pytest.fixture
def follow(lastbit, tmp_path):
    yield from following(lastbit, tmp_path)


def history(run):
    """A run as the Trainer logs it: an evaluation among the steps, a summary behind them."""
    rows = [dict(epoch=r["step"] / 100, grad_norm=r["gnorm"], learning_rate=1e-4, loss=r["loss"], step=r["step"]) for r in run]
    rows.insert(len(rows) // 2, dict(epoch=0.5, eval_loss=3.5, eval_runtime=1.5, step=rows[len(rows) // 2 - 1]["step"]))
    return [*rows, dict(epoch=1.0, step=run[-1]["step"] + 1, total_flos=1e15, train_loss=99.5, train_runtime=60.5)]


def state_of(rows):
    """As TrainerState.save_to_json writes it."""
    return (
        json.dumps(dict(best_metric=None, epoch=1.0, global_step=7, log_history=rows, max_steps=500, trial_params=None), indent=2, sort_keys=True)
        + "\n"
    )


def test_a_trainer_state_says_what_its_lines_would(lastbit, tmp_path):
    run = spiked_records(0, 400, 300)
    answer = lastbit.json("watch", write(tmp_path / "trainer_state.json", state_of(history(run))), expect=1)
    assert answer["format"] == "trainer" and answer["steps"] == 400 and answer["bad_lines"] == 0
    rows = "".join(json.dumps(r) + "\n" for r in history(run) if "loss" in r)
    assert (
        alarms(answer)
        == alarms(lastbit.json("watch", write(tmp_path / "rows.jsonl", rows), expect=1))
        == [
            (300, "grad_norm", "critical", "rule"),
            (301, "grad_norm", "warning", "model"),
        ]
    )
    flat = json.dumps(dict(log_history=history(run)))
    assert alarms(lastbit.json("watch", write(tmp_path / "flat.json", flat), expect=1)) == alarms(answer)
    cut = write(tmp_path / "cut.json", state_of(history(run))[:30000])
    assert "ends here, inside of it" in lastbit.run("watch", cut, expect=0).stderr


def save_copies(folder, run, every):
    for step in range(every, run[-1]["step"] + 2, every):
        (folder / f"checkpoint-{step}").mkdir(parents=True)
        write(folder / f"checkpoint-{step}" / "trainer_state.json", state_of(history([r for r in run if r["step"] < step])))


def test_checkpoints_of_a_trainer_are_one_log_and_those_in_an_excursion_are_named(lastbit, tmp_path):
    run = logs.clean(400, 3)
    for r in run[298:303]:
        r["loss"] = float("nan")
    save_copies(tmp_path, run, 100)
    answer = lastbit.json("watch", tmp_path, expect=1)
    assert answer["steps"] == 400 and alarms(answer) == [(298, "nonfinite", "critical", "rule")]
    assert [(c["step"], c["text"]) for c in answer["checkpoints"]] == [(300, f"{tmp_path}/checkpoint-300")]
    assert answer["restart_from"] == 200


def test_checkpoints_of_a_trainer_are_followed_as_they_come(follow, tmp_path):
    folder = tmp_path / "out"
    run = spiked_records(0, 400, 350)
    follower = follow(folder)
    wait_until(lambda: f"waiting for {folder}" in follower.err.read_text())
    folder.mkdir()
    save_copies(folder, run[:300], 100)
    state = state_of(history(run))
    last = folder / "checkpoint-400"
    last.mkdir()
    write(last / "trainer_state.json", state[: len(state) // 2])
    time.sleep(0.5)
    write(last / "trainer_state.json", state)
    follower.wait_for("step 350: critical grad_norm (rule)")
    assert follower.end() == 1
    assert "2 alarms in 400 steps" in follower.out.read_text() and follower.err.read_text().count("\n") == 1


def test_a_trainer_state_that_is_written_again_goes_on(follow, tmp_path):
    path = write(tmp_path / "trainer_state.json", state_of(history(spiked_records(0, 300, 350))))
    follower = follow(path)
    time.sleep(0.5)
    write(path, state_of(history(spiked_records(0, 400, 350))))
    follower.wait_for("step 350: critical grad_norm (rule)")
    assert follower.end() == 1
    assert "2 alarms in 400 steps" in follower.out.read_text()


@pytest.mark.full
def test_the_trainer_itself_is_watched_while_it_runs(lastbit, tmp_path):
    program = [sys.executable, ROOT / "tests/programs/trainers/train_hf_logged.py", tmp_path / "out", "40", "25"]
    run = subprocess.Popen(program, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        answer = lastbit.json("watch", tmp_path / "out", "--follow", "--idle", "240", "--exit-on", "critical", expect=1)
    finally:
        assert run.wait(300) == 0
    assert alarms(answer) == [(25, "nonfinite", "critical", "rule")] and answer["format"] == "trainer"
    whole = lastbit.json("watch", tmp_path / "out", expect=1)
    assert whole["steps"] == 40 and whole["nonfinite"] == 16 and whole["restart_from"] == 20
    assert [c["step"] for c in whole["checkpoints"]] == [30, 40]
