"""`lastbit watch` over logs whose events are known: formats agree, patterns raise their alarms, nothing hostile harms."""

import json
import os
import random
import subprocess
import sys
import time

import pytest
import run_logs as logs
from conftest import ROOT
from warm_python import TORCHRUN
from watched_logs import alarms, write


@pytest.fixture(scope="module")
def transient():
    return logs.late_transient()


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
