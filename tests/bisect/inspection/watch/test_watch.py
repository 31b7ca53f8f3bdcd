"""`lastbit watch` over logs whose events are known: formats agree, patterns raise their alarms, actions act, nothing hostile harms."""

import http.server
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
import run_logs as logs
from conftest import ROOT
from warm_python import TORCHRUN


@pytest.fixture(scope="module")
def transient():
    return logs.late_transient()


def write(path, text):
    path.write_bytes(text) if isinstance(text, bytes) else path.write_text(text)
    return path


def alarms(answer):
    return [(a["step"], a["kind"], a["level"], a["detector"]) for a in answer["alarms"]]


# ---- patterns


def test_clean_logs_of_100000_steps_raise_no_alarm(lastbit, tmp_path):
    for seed, noise in enumerate(("lognormal", "heavy", "correlated", "decay")):
        run = logs.clean(100000, 40 + seed, noise, norm_spread=0.2)
        answer = lastbit.json("watch", write(tmp_path / "run.log", logs.lines(run)), expect=0)
        assert (answer["alarms"], answer["holds"], answer["pattern"], answer["steps"]) == ([], [], "none", 100000), noise
        assert answer["detectors"]["model_since"] < 1000


def test_nan_at_once(lastbit, tmp_path):
    answer = lastbit.json("watch", write(tmp_path / "run.log", logs.lines(logs.immediate_nan())), expect=1)
    assert alarms(answer) == [(1, "nonfinite", "critical", "rule")]
    alarm = answer["alarms"][0]
    assert alarm["value"] is None and alarm["reference"] == 14.79 and alarm["ratio"] is None
    assert answer["pattern"] == "immediate-nan" and answer["nonfinite"] == 199
    assert answer["holds"] == [{"from": 1, "to": 199, "open": True}]


@pytest.mark.parametrize("at", [0, 5])
def test_an_early_spike_that_settles_is_a_note(lastbit, tmp_path, at):
    answer = lastbit.json("watch", write(tmp_path / "run.log", logs.lines(logs.early_spike(at=at))), expect=0)
    assert answer["alarms"] == [] and answer["pattern"] == "early-spike"
    (note,) = answer["findings"]
    assert note["kind"] == "early-spike" and "7200" in note["text"]


def test_a_late_transient_names_the_checkpoint_written_in_it(lastbit, tmp_path, transient):
    path = write(tmp_path / "run.log", logs.lines(transient))
    answer = lastbit.json("watch", path, "--checkpoint-every", "5000", expect=1)
    assert answer["pattern"] == "late-transient"
    first = {(a["kind"], a["detector"]): a["step"] for a in answer["alarms"]}
    assert set(first) == {("loss", "rule"), ("loss", "model"), ("grad_norm", "model")}
    assert 24850 <= first["loss", "model"] < first["loss", "rule"] < 24900
    assert [(24850 <= h["from"] <= 24860, 25650 <= h["to"] <= 25710) for h in answer["holds"]] == [(True, True)]
    assert [c["step"] for c in answer["checkpoints"]] == [25000] and answer["restart_from"] == 20000
    text = lastbit.run("watch", path, "--checkpoint-every", "5000", expect=1).stdout
    assert "the checkpoint of step 25000 was written while the run was out of its usual range" in text
    assert "restart from the checkpoint of step 20000, not from a spoiled one" in text


def test_curves_keep_the_spikes(lastbit, tmp_path, transient):
    path = write(tmp_path / "run.log", logs.lines(transient))
    curves = lastbit.json("watch", path, expect=1)["curves"]
    assert 2000 <= len(curves["step"]) <= 4096 and curves["step"] == sorted(set(curves["step"]))
    assert {len(curve) for curve in curves.values()} == {len(curves["step"])}
    loudest = max(transient, key=lambda row: row["gnorm"])
    assert max(curves["grad_norm"]) == pytest.approx(loudest["gnorm"], rel=1e-3)
    short = write(tmp_path / "short.log", logs.lines(transient[:300]))
    few = lastbit.json("watch", short)["curves"]
    assert few["step"] == [row["step"] for row in transient[:300]]
    assert few["loss"] == pytest.approx([row["loss"] for row in transient[:300]], abs=1e-4)
    broken = lastbit.json("watch", write(tmp_path / "nan.log", logs.lines(logs.immediate_nan())), expect=1)["curves"]
    assert broken["loss"][0] == pytest.approx(14.79) and broken["loss"][1] is None


def test_checkpoints_are_known_from_the_disk_and_from_the_log(lastbit, tmp_path, transient):
    for step in (15000, 20000, 25000):
        (tmp_path / f"model_{step:06d}.pt").touch()
    path = write(tmp_path / "run.log", logs.lines(transient))
    answer = lastbit.json("watch", path, "--checkpoints", tmp_path / "model_*.pt", expect=1)
    assert [c["step"] for c in answer["checkpoints"]] == [25000] and answer["restart_from"] == 20000
    said = logs.lines(transient[:24001]) + "Saved checkpoint to out/model_024000.pt\n" + logs.lines(transient[24001:25001])
    path = write(tmp_path / "said.log", said + "saving checkpoint ckpt/25000\n" + logs.lines(transient[25001:]))
    answer = lastbit.json("watch", path, expect=1)
    assert [(c["step"], c["text"]) for c in answer["checkpoints"]] == [(25000, "saving checkpoint ckpt/25000")]
    assert answer["restart_from"] == 24000 and answer["bad_lines"] == 0


# ---- formats


def test_every_format_of_one_run_gives_the_same_alarms(lastbit, tmp_path, transient):
    run = transient[22000:27000]
    forms = {
        "run.log": logs.lines(run),
        "run.jsonl": logs.jsonl(run),
        "names.jsonl": logs.jsonl(run, {"loss": "my/nll", "gnorm": "my/g"}),
        "run.csv": logs.csv(run),
        "named.csv": logs.csv(run, {"step": "global_step", "loss": "train/loss", "gnorm": "grad_norm"}),
        "simple.tfevents": logs.events(run),
        "content.tfevents": logs.events(run, "content"),
        "double.tfevents": logs.events(run, "double", together=True),
        "colons.txt": logs.colons(run),
    }
    options = {"colons.txt": ["--pattern", logs.COLONS], "names.jsonl": ["--field", "loss=my/nll", "--field", "gnorm=my/g"]}
    answers = {}
    for name, text in forms.items():
        answer = lastbit.json("watch", write(tmp_path / name, text), *options.get(name, []), expect=1)
        assert (answer["steps"], answer["bad_lines"]) == (5000, 0), name
        answers[name] = [(*a, h["from"], h["to"]) for a, h in zip(alarms(answer), 3 * answer["holds"], strict=True)]
    assert len(answers["run.log"]) == 3
    for name, found in answers.items():
        assert found == answers["run.log"], name
    formats = {name: lastbit.json("watch", tmp_path / name, *options.get(name, []))["format"] for name in forms}
    assert {formats[n] for n in forms if "tfevents" in n} == {"events"}
    assert (formats["run.log"], formats["run.jsonl"], formats["run.csv"], formats["colons.txt"]) == ("line", "jsonl", "csv", "pattern")


def test_a_folder_of_event_files_is_one_run(lastbit, tmp_path, transient):
    run = transient[22000:27000]
    write(tmp_path / "events.out.tfevents.100.host", logs.events(run[:2500]))
    write(tmp_path / "events.out.tfevents.200.host", logs.events(run[2500:]))
    answer = lastbit.json("watch", tmp_path, expect=1)
    assert answer["steps"] == 5000 and answer["pattern"] == "late-transient"


def test_event_files_of_tensorboards_own_writer(lastbit, tmp_path, transient):
    pytest.importorskip("tensorboard", reason="torch.utils.tensorboard needs the package")
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(tmp_path)
    for r in transient[24000:26000]:
        writer.add_scalar("train/loss", r["loss"], r["step"])
        writer.add_scalar("train/grad_norm", r["gnorm"], r["step"])
    writer.close()
    assert lastbit.json("watch", tmp_path, expect=1)["steps"] == 2000


def test_stdin_is_a_log(lastbit):
    done = lastbit.run("watch", "--json", "-", input=logs.lines(logs.immediate_nan()), expect=1)
    assert json.loads(done.stdout)["pattern"] == "immediate-nan"


def test_a_capture_is_a_log_of_its_scalars(lastbit):
    answer = lastbit.json("watch", ROOT / "samples" / "scan-overflow.lbz", expect=1)
    assert answer["format"] == "capture" and alarms(answer) == [(2, "nonfinite", "critical", "rule")]
    text = lastbit.run("watch", "samples/scan-overflow.lbz", cwd=ROOT, expect=1).stdout
    assert "lastbit bisect samples/scan-overflow.lbz; the step alone: lastbit replay samples/scan-overflow.lbz --steps 2" in text
    assert lastbit.json("watch", ROOT / "samples" / "clean.lbz", expect=0)["steps"] >= 1


PROGRAM = """
import sys, time
import torch
import lastbit.torch
with lastbit.torch.capture(sys.argv[1], level="stats") as cap:
    for n in range(int(sys.argv[2])):
        with cap.step(n):
            x = torch.ones(2) + 1
            cap.scalar("loss", 14.79 if n < 5 else float("nan"))
            cap.scalar("grad_norm", 1.5)
        time.sleep(float(sys.argv[3]))
"""


def test_a_capture_is_followed_while_it_is_written(lastbit, tmp_path):
    write(tmp_path / "program.py", PROGRAM)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "capture"), "LASTBIT_LIBRARY": str(lastbit.path.parent / "liblastbit_capture.so")}
    out = tmp_path / "run.lb"
    program = subprocess.Popen([sys.executable, tmp_path / "program.py", out, "200", "0.1"], env=env)
    try:
        deadline = time.monotonic() + 60
        while not list(out.glob("rank-*.tar")) and program.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        answer = lastbit.json("watch", out, "--follow", "--exit-on", "critical", "--idle", "60", expect=1, timeout=90)
        assert program.poll() is None  # it was seen while the run went on
    finally:
        program.kill()
        program.wait()
    assert alarms(answer) == [(5, "nonfinite", "critical", "rule")]


def test_token_frequencies_of_a_capture_that_drift_name_the_shard(lastbit, tmp_path):
    env = {**os.environ, "PYTHONPATH": str(ROOT / "capture"), "LASTBIT_LIBRARY": str(lastbit.path.parent / "liblastbit_capture.so")}
    subprocess.run(
        [sys.executable, ROOT / "tests/programs/ranks/sharded_tokens.py", tmp_path / "alike.lb", tmp_path / "other.lb"], env=env, check=True
    )
    assert lastbit.json("watch", tmp_path / "alike.lb", expect=0)["steps"] == 48
    (alarm,) = lastbit.json("watch", tmp_path / "other.lb", expect=1)["alarms"]
    assert (alarm["step"], alarm["kind"], alarm["shard"]) == (36, "data", "part-1.bin") and alarm["ratio"] > 5


def test_ranks_of_a_capture_that_read_the_same_tokens(lastbit, tmp_path):
    torchrun = [sys.executable, *TORCHRUN, "2", ROOT / "tests/programs/ranks/rank_tokens.py"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    lastbit.run("record", "-o", tmp_path / "own.lb", "--level", "stats", "--", *torchrun, expect=0, env=env)
    lastbit.run("record", "-o", tmp_path / "same.lb", "--level", "stats", "--", *torchrun, "--same", expect=0, env=env)
    assert lastbit.json("watch", tmp_path / "own.lb", expect=0)["steps"] >= 7
    answer = lastbit.json("watch", tmp_path / "same.lb", expect=1)
    assert [(a["kind"], a["level"]) for a in answer["alarms"]] == [("data", "critical")]
    assert "ranks 0 and 1 read the same tokens" in answer["alarms"][0]["why"]


# ---- following


class Follower:
    """A watch that follows; what it has printed so far."""

    def __init__(self, lastbit, folder, *args):
        self.out = folder / "printed"
        self.err = folder / "errors"
        self.process = subprocess.Popen([lastbit.path, "watch", "-f", *map(str, args)], stdout=self.out.open("w"), stderr=self.err.open("w"))

    def wait_for(self, text, seconds=30):
        deadline = time.monotonic() + seconds
        while text not in self.out.read_text():
            assert time.monotonic() < deadline and self.process.poll() is None, self.out.read_text() + self.err.read_text()
            time.sleep(0.05)

    def end(self):
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(30)


@pytest.fixture
def follow(lastbit, tmp_path):
    """Starts followers; none outlives its test."""
    started = []

    def start(*args):
        started.append(Follower(lastbit, tmp_path, *args))
        return started[-1]

    yield start
    for follower in started:
        follower.process.kill()
        follower.process.wait()


def wait_until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def spiked(first, last, at, norm=300.0):
    run = logs.clean(last, 3)[first:]
    for r in run:
        if at <= r["step"] < at + 3:
            r["gnorm"] = norm
    return logs.lines(run)


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


# ---- actions


def test_a_command_is_run_for_each_alarm_one_at_a_time(lastbit, tmp_path, transient):
    path, out = write(tmp_path / "run.log", logs.lines(transient)), tmp_path / "out"
    command = (
        f"test ! -e {tmp_path}/busy && touch {tmp_path}/busy && sleep 0.1 && rm {tmp_path}/busy && "
        f'echo "$LASTBIT_ALARM_STEP $LASTBIT_ALARM_KIND $LASTBIT_ALARM_LEVEL $LASTBIT_ALARM_DETECTOR $LASTBIT_LOG" >> {out}; echo noise'
    )
    done = lastbit.run("watch", "--json", path, "--on-alarm", command, expect=1)
    answer = json.loads(done.stdout)  # what the command prints goes elsewhere
    assert [tuple(line.split()) for line in out.read_text().splitlines()] == [(str(a[0]), *a[1:], str(path)) for a in alarms(answer)]
    assert "noise" in done.stderr


def test_a_command_that_fails_is_reported(lastbit, tmp_path):
    path = write(tmp_path / "run.log", logs.lines(logs.immediate_nan()))
    assert "ended with exit code 3" in lastbit.run("watch", path, "--on-alarm", "exit 3", expect=1).stderr


def test_alarms_are_appended_to_a_file_and_posted(lastbit, tmp_path, transient):
    posted = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    path, file = write(tmp_path / "run.log", logs.lines(transient[22000:27000])), tmp_path / "alarms.jsonl"
    sink = ["--alarm-file", file]
    if shutil.which("curl"):
        sink += ["--webhook", f"http://127.0.0.1:{server.server_port}/hook"]
    answer = lastbit.json("watch", path, *sink, expect=1)
    server.shutdown()
    written = [json.loads(line) for line in file.read_text().splitlines()]
    assert alarms({"alarms": written}) == alarms(answer) and {a["log"] for a in written} == {str(path)}
    if shutil.which("curl"):
        assert posted == written
        done = lastbit.run("watch", path, "--webhook", "http://127.0.0.1:1/none", expect=1)
        assert "--webhook `http://127.0.0.1:1/none` ended with exit code 7" in done.stderr


def test_each_metric_has_its_level(lastbit, tmp_path, transient):
    path = write(tmp_path / "run.log", logs.lines(transient[22000:27000]))
    answer = lastbit.json("watch", path, "--level", "loss=critical", "--level", "grad_norm=off", expect=1)
    assert {(a["kind"], a["level"]) for a in answer["alarms"]} == {("loss", "critical")}
    assert {f["kind"] for f in answer["findings"]} == {"below-level"}
    off = lastbit.json("watch", path, "--level", "loss=off", "--level", "grad_norm=off", expect=0)
    assert off["alarms"] == [] and len(off["findings"]) == 3


RING = """
import pathlib, sys, time
import torch
x = torch.ones(4, requires_grad=True)
opt = torch.optim.SGD([x], lr=0.1)
for n in range(4000):
    (x * x).sum().backward()
    opt.step()
    opt.zero_grad()
    if n == 10:
        pathlib.Path(sys.argv[1]).touch()
    time.sleep(0.02)
"""


@pytest.mark.parametrize("by", ["folder", "process"])
def test_an_alarm_has_the_flight_recorder_written(lastbit, tmp_path, by):
    program, ready, out = write(tmp_path / "program.py", RING), tmp_path / "ready", tmp_path / "run.lb"
    run = subprocess.Popen(
        [lastbit.path, "record", "-o", out, "--ring", "3", "--", sys.executable, program, ready], stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until(ready.exists, 60)
        path = write(tmp_path / "run.log", logs.lines(logs.immediate_nan()))
        done = lastbit.run("watch", path, "--trigger", out if by == "folder" else run.pid, expect=1)
        assert "1 recording process told to write the flight recorder" in done.stderr
        wait_until(lambda: list(out.glob("rank-*.tar")) and list(out.glob("rank-*.tar"))[0].stat().st_size > 5000, 30)
    finally:
        run.terminate()
        run.communicate()
    assert 3 <= len(lastbit.json("ls", out)["steps"]) <= 6


def test_a_process_that_does_not_wait_for_the_signal_is_left_alone(lastbit, tmp_path):
    path = write(tmp_path / "run.log", logs.lines(logs.immediate_nan()))
    sleeper = subprocess.Popen(["sleep", "60"])
    done = lastbit.run("watch", path, "--trigger", sleeper.pid, expect=1)
    assert "no process there waits" in done.stderr and sleeper.poll() is None
    sleeper.kill()
    sleeper.wait()


# ---- schedule, data, guard


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


# ---- hostile logs


def test_a_bad_line_is_reported_and_skipped(lastbit, tmp_path):
    text = logs.lines(logs.clean(100)).splitlines()
    text[40] = "step 00040/30000 | loss: 2.x3"
    text[60] = "step 00060/30000 | loss: oops | gnorm: 1"
    text[70] = "something else went to this log"
    done = lastbit.run("watch", "--json", write(tmp_path / "run.log", "\n".join(text)), expect=0)
    answer = json.loads(done.stdout)
    assert (answer["steps"], answer["bad_lines"]) == (98, 2)
    assert "line 61 was skipped" in done.stderr and "line 71 was skipped: it is not a step" in done.stderr


def test_hostile_logs_are_survived(lastbit, tmp_path):
    good = logs.lines(logs.clean(300)).encode()
    junk = random.Random(1).randbytes(300000)
    lines = [
        b"step 00010/30000 | loss: " + b"9" * 2000000 + b" | gnorm: 1\n",
        b"step -5/30000 | loss: 1 | gnorm: 1\n",
        b"step 1e3 | loss: --- | \xff\xfe\n",
        b"step 5 | " + b"a: 1 | " * 5000 + b"\n",
        b"x" * 3000000 + b"\n",
        b"\0" * 1000 + b"\n",
        b"step 99999999999999999999 | loss: 1 |\n",
    ]
    answer = lastbit.json("watch", write(tmp_path / "mixed.log", good + b"".join(lines) + junk + b"\n" + good), timeout=60)
    assert answer["steps"] >= 600 and answer["bad_lines"] >= 5
    for name, content in {
        "junk": junk,
        "empty": b"",
        "newlines": b"\n" * 1000,
        "cut.tfevents": logs.events(logs.clean(3))[:-9],
        "flipped.tfevents": logs.events(logs.clean(3))[:200] + b"\xff" * 40,
        "braces.jsonl": b'{"a":' * 100000,
        "nan.jsonl": b'{"step": NaN, "loss": NaN}\n{"step": 1e400}\n{"step": 1.5}\n',
    }.items():
        done = lastbit.run("watch", "--json", write(tmp_path / name, content), expect=(0, 1, 125, 128), timeout=60)
        json.loads(done.stdout)


def test_every_cut_of_an_event_file_is_read_up_to_it(lastbit, tmp_path):
    whole = logs.events(logs.clean(20))
    for cut in range(0, len(whole), 97):
        answer = json.loads(lastbit.run("watch", "--json", "--format", "events", write(tmp_path / "cut", whole[:cut])).stdout)
        assert 0 <= answer["steps"] <= 20 and answer["bad_lines"] <= 1


def test_nan_is_read_in_all_its_spellings(lastbit, tmp_path):
    for spelling in ("nan", "NaN", "-nan", "inf", "-Infinity"):
        text = logs.lines(logs.clean(30)) + f"step 00030/30000 | loss: {spelling} | gnorm: 1.0\n"
        assert alarms(lastbit.json("watch", write(tmp_path / "run.log", text), expect=1)) == [(30, "nonfinite", "critical", "rule")]


def test_a_resumed_run_overlaps(lastbit, tmp_path):
    run = logs.clean(6000, 8)
    text = logs.lines(run[:4000]) + logs.lines(run[3000:])
    answer = lastbit.json("watch", write(tmp_path / "run.log", text), expect=0)
    assert [f["kind"] for f in answer["findings"]] == ["restart"] and answer["last_step"] == 5999
    table = logs.csv(run[:4000]) + logs.csv(run[3000:])
    assert lastbit.json("watch", write(tmp_path / "run.csv", table), expect=0)["bad_lines"] == 0


# ---- misuse


@pytest.mark.parametrize(
    "args, said",
    [
        ([], "expected LOG"),
        (["x", "--format", "xml"], "is none of"),
        (["x", "--pattern", "("], "pattern"),
        (["x", "--pattern", "loss (.*)"], "no group with the name of a field"),
        (["x", "--field", "norm=x"], "is not FIELD=NAME"),
        (["x", "--schedule", "cosine", "--iterations", "-1"], "length of the whole run"),
        (["x", "--schedule", "step", "--iterations", "5"], "is none of"),
        (["x", "--exit-on", "error"], "is none of"),
        (["x", "--level", "loss=loud"], "is not METRIC=LEVEL"),
        (["x", "--level", "norm=critical"], "is not METRIC=LEVEL"),
        (["x", "y", "--follow"], "about one log"),
        (["x", "--idle", "3"], "which is not given"),
    ],
)
def test_misuse_is_said(lastbit, args, said):
    assert said in lastbit.run("watch", *args, expect=129).stderr


def test_a_log_without_a_step_cannot_be_tested_and_a_missing_one_fails(lastbit, tmp_path):
    assert "no step was found" in lastbit.run("watch", write(tmp_path / "prose", "hello\nworld\n"), expect=128).stderr
    assert "cannot open" in lastbit.run("watch", tmp_path / "missing", expect=128).stderr


# ---- transformers' trainer_state.json


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


def spiked_records(first, last, at, norm=300.0):
    run = logs.clean(last, 3)[first:]
    for r in run:
        if at <= r["step"] < at + 3:
            r["gnorm"] = norm
    return run


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


# ---- alarms that the end of a log settles


@pytest.mark.parametrize("rows", [61, 70, 90, 92])
def test_norm_that_is_out_when_a_short_log_ends_is_an_alarm_once(lastbit, tmp_path, rows):
    """Among the first records it may be a spike that settles: whether it did, the end says; actions hear of it, and all else is told once."""
    lines = [{"step": n, "loss": 2.0 if n < 60 else 90.0, "grad_norm": 1.0 if n < 60 else 500.0} for n in range(rows)]
    log = write(tmp_path / "log.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    answer = lastbit.json("watch", log, "--alarm-file", tmp_path / "alarms.jsonl", "--html", tmp_path / "page.html", expect=1)
    told = [json.loads(line) for line in (tmp_path / "alarms.jsonl").read_text().splitlines()]
    assert {(a["step"], a["kind"]) for a in told} == {(a["step"], a["kind"]) for a in answer["alarms"]} and len(told) == len(answer["alarms"])
    assert [a["step"] for a in answer["alarms"] if a["kind"] == "grad_norm"] == [60]
    assert lastbit.run("watch", log, expect=1).stdout.count("gradient norm") >= 1 and (tmp_path / "page.html").exists()
