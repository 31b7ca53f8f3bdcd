"""What `lastbit watch` does at an alarm: commands, files, posts, levels, the flight recorder."""

import http.server
import json
import shutil
import subprocess
import sys
import threading

import pytest
import run_logs as logs
from watched_logs import alarms, wait_until, write


@pytest.fixture(scope="module")
def transient():
    return logs.late_transient()


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
