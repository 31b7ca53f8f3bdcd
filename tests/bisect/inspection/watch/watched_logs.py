"""What tests of `lastbit watch` share: files as it reads them, its answer in short, and a watch that follows a file."""

import signal
import subprocess
import time

import run_logs as logs


def write(path, text):
    path.write_bytes(text) if isinstance(text, bytes) else path.write_text(text)
    return path


def alarms(answer):
    return [(a["step"], a["kind"], a["level"], a["detector"]) for a in answer["alarms"]]


def spiked_records(first, last, at, norm=300.0):
    """Steps of a clean run whose norm is out for three steps from `at` on."""
    run = logs.clean(last, 3)[first:]
    for r in run:
        if at <= r["step"] < at + 3:
            r["gnorm"] = norm
    return run


def spiked(*window):
    return logs.lines(spiked_records(*window))


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


def following(lastbit, folder):
    """For a fixture: what starts followers; none outlives its test."""
    started = []

    def start(*args):
        started.append(Follower(lastbit, folder, *args))
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
