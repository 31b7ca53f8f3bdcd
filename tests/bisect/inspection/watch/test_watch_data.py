"""`lastbit watch` over what a log says beside losses: the schedule, shards of data, tokens, two runs of one seed, averages."""

import json
import math
import random

import pytest
import run_logs as logs
from watched_logs import alarms, write


@pytest.mark.parametrize("form", ["log", "jsonl"])
def test_the_first_step_that_leaves_the_schedule(lastbit, tmp_path, form):
    def multiplier(it, n=2000, warmup=60):
        return (it + 1) / warmup if it < warmup else 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * it / n))

    run = logs.clean(2000, 5)
    for r in run:
        r["lrm"] = multiplier(r["step"])
    options = "--schedule cosine --iterations 2000 --final-lr-frac 0.1".split()
    path = tmp_path / "run"
    as_text = {"log": logs.lines, "jsonl": logs.jsonl}[form]
    assert lastbit.json("watch", write(path, as_text(run)), *options, expect=0)["alarms"] == []
    for r in run[1200:]:
        r["lrm"] = multiplier(r["step"] - 50)
    answer = lastbit.json("watch", write(path, as_text(run)), *options, expect=1)
    assert alarms(answer) == [(1200, "schedule", "warning", "rule")]
    assert abs(answer["alarms"][0]["reference"] - multiplier(1200)) < 1e-4 and answer["alarms"][0]["value"] > multiplier(1200)


def test_a_shard_that_comes_back_over_reruns(lastbit, tmp_path):
    paths = []
    for k in range(3):
        run = logs.clean(2000, 10 + k)
        for r in run:
            r["shard"] = "part-%02d.bin" % ((r["step"] // 100 + 7 * k) % 20)
            if r["shard"] == "part-13.bin" and 40 <= r["step"] % 100 < 44:
                r["gnorm"] *= 80
        shards = "".join(json.dumps({"step": s, "shard": run[s]["shard"]}) + "\n" for s in range(0, 2000, 100))
        paths.append(write(tmp_path / f"{k}.jsonl", logs.jsonl(run)))
    answer = lastbit.json("watch", *paths, expect=1)
    data = [a for a in answer["alarms"] if a["kind"] == "data"]
    assert [(a["shard"], a["level"]) for a in data] == [("part-13.bin", "warning")] and "3 of 3 runs" in data[0]["why"]
    assert len(answer["runs"]) == 3 and {a.get("log") for a in answer["alarms"]} == {*map(str, paths), None}
    bare = write(tmp_path / "bare.log", logs.lines([{k: v for k, v in r.items() if k != "shard"} for r in run]))
    answer = lastbit.json("watch", bare, "--shards", write(tmp_path / "shards.jsonl", shards), expect=1)
    assert {a["shard"] for a in answer["alarms"]} == {"part-13.bin"}


def test_runs_of_one_seed_whose_losses_part(lastbit, tmp_path):
    run = logs.clean(200, 5)
    a, b = write(tmp_path / "a.jsonl", logs.jsonl(run)), write(tmp_path / "b.jsonl", logs.jsonl(run))
    assert lastbit.json("watch", a, b, "--same-seed", expect=0)["findings"][0]["text"] == "the losses of the first 20 steps agree"
    run[12]["loss"] += 1e-7
    b = write(tmp_path / "b.jsonl", logs.jsonl(run))
    answer = lastbit.json("watch", a, b, "--same-seed", expect=1)
    assert [(x["kind"], x["step"]) for x in answer["alarms"]] == [("data", 12)]
    assert lastbit.json("watch", a, b, expect=0)["findings"][0]["step"] == 12


def test_token_frequencies_that_drift(lastbit, tmp_path):
    rng = random.Random(3)

    def counts(shift):
        drawn = [0] * 64
        for _ in range(2000):
            drawn[min(63, int(rng.expovariate(0.1)) + shift)] += 1
        return drawn

    run = [{"step": s, "loss": 2.0, "token_counts": counts(0)} for s in range(80)]
    assert lastbit.json("watch", write(tmp_path / "run.jsonl", logs.jsonl(run)), expect=0)["alarms"] == []
    run += [{"step": s, "loss": 2.0, "token_counts": counts(8)} for s in range(80, 120)]
    answer = lastbit.json("watch", write(tmp_path / "run.jsonl", logs.jsonl(run)), expect=1)
    assert [(a["kind"], a["level"]) for a in answer["alarms"]] == [("data", "warning")]
    assert 80 <= answer["alarms"][0]["step"] < 90 and answer["alarms"][0]["ratio"] > 5


def test_token_frequencies_of_few_steps(lastbit, tmp_path):
    """Fewer than thirty records do not say what is usual: whether their order matters is a finding, and no alarm."""
    rng = random.Random(4)

    def run(n, cut):
        def counts(shift):
            drawn = [0] * 64
            for _ in range(2000):
                drawn[min(63, int(rng.expovariate(0.1)) + shift)] += 1
            return drawn

        records = [{"step": 5 * s, "loss": 2.0, "token_counts": counts(8 if s >= cut else 0)} for s in range(n)]
        answer = lastbit.json("watch", write(tmp_path / "run.jsonl", logs.jsonl(records)), expect=0)
        assert answer["alarms"] == []
        return answer["findings"]

    (drift,) = run(16, 9)
    assert (drift["kind"], drift["step"]) == ("drift", 45) and "of 999 other orders of these 16 records" in drift["text"]
    assert run(16, 99) == [] and run(29, 99) == [] and run(30, 99) == []
    (few,) = run(8, 4)
    assert few["kind"] == "drift" and "fewer than 13 records" in few["text"]


def test_a_schedule_takes_its_length_from_the_log(lastbit, tmp_path):
    run = logs.clean(300, 5)
    for r in run:
        r["lrm"] = min(1, (r["step"] + 1) / 900) if r["step"] < 200 else 0.5
    answer = lastbit.json("watch", write(tmp_path / "run.log", logs.lines(run)), "--schedule", "constant", expect=1)
    assert alarms(answer) == [(200, "schedule", "warning", "rule")]  # of 30000 steps 900 warm up
    answer = lastbit.json("watch", write(tmp_path / "run.jsonl", logs.jsonl(run)), "--schedule", "constant", expect=0)
    assert [f["kind"] for f in answer["findings"]] == ["schedule"]


def test_an_average_that_was_updated_first_is_noted(lastbit, tmp_path):
    run, ema = logs.clean(500, 5), None
    for r in run:
        ema = r["gnorm"] if ema is None else 0.99 * ema + 0.01 * r["gnorm"]
        r["ema"] = ema
    answer = lastbit.json("watch", write(tmp_path / "run.jsonl", logs.jsonl(run)), expect=0)
    assert [f["kind"] for f in answer["findings"]] == ["ema"] and "critical is never reached" in answer["findings"][0]["text"]
