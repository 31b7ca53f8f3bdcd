"""Seven workers over 1,024 ranks: some begin late, some are killed at any instant and started again under their number or not at all. Each command gives
the bytes of one process, also where few workers are left to give them."""

import os
import random
import shutil
import signal
import subprocess
import time

import pytest
from conftest import BUILD, FULL

RANKS, WORKERS = 1024, 7
LASTBIT = str(BUILD / "lastbit")
STARTED = ("SLURM_", "OMPI_", "PMI", "RANK", "WORLD_SIZE", "LASTBIT_PARTS", "TORCHELASTIC", "MASTER_")
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith(STARTED)} | {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1"}
QUESTIONS = {
    "verify": ["verify", "clean.lb"],
    "diff": ["diff", "clean.lb", "poisoned.lb"],
    "ranks": ["ranks", "poisoned.lb"],
    "fingerprint": ["fingerprint", "clean.lb", "--against", "poisoned.lb"],
    "check": ["check", "clean.lb", "--only", "memory"],
    "audit": ["audit", "clean.safetensors", "--against", "changed.safetensors"],
}
if FULL:
    QUESTIONS["explain"] = ["explain", "clean.lb", "tree.lb"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    np = pytest.importorskip("numpy")
    from safetensors.numpy import save_file

    folder = tmp_path_factory.mktemp("thousand")
    for name, option in {"clean": "steps=1", "poisoned": "poison=0:500:0", "tree": "order=tree"}.items():
        made = [BUILD / "tests/make_ranks", folder / f"{name}.lb", f"ranks={RANKS}", "layers=1", "steps=1", option]
        subprocess.run(made, check=True, capture_output=True)
    draw = np.random.default_rng(3)
    weights = {f"model.layers.{i}.mlp.weight": draw.standard_normal((32, 16), dtype=np.float32) for i in range(64)}
    save_file(weights, folder / "clean.safetensors")
    weights["model.layers.7.mlp.weight"] = weights["model.layers.7.mlp.weight"] + np.float32(1)
    save_file(weights, folder / "changed.safetensors")
    return folder


@pytest.fixture(scope="module")
def alone(place):
    """What one process answers, with which code, and the seconds that it took."""
    answers = {}
    for name, words in QUESTIONS.items():
        began = time.monotonic()
        done = subprocess.run([LASTBIT, *words, "--json"], cwd=place, env=PLAIN, capture_output=True, timeout=500)
        assert done.returncode in (0, 1, 125) and done.stdout, done.stderr
        answers[name] = (done.stdout, done.returncode, time.monotonic() - began)
    return answers


class Worker:
    """Its answer goes into a file: a pipe that is not read holds up who gives more than fits."""

    def __init__(self, place, words, env, out):
        with out.open("wb") as stdout, out.with_suffix(".err").open("wb") as stderr:
            self.process = subprocess.Popen([LASTBIT, *words, "--json"], cwd=place, env=env, stdout=stdout, stderr=stderr)
        self.out = out

    def kill(self):
        self.process.kill()

    def end(self):
        return self.process.wait(timeout=120), self.out.read_bytes(), self.out.with_suffix(".err").read_bytes()


def merge(place, words, folder):
    return subprocess.run([LASTBIT, words[0], "--merge", folder, "--json"], cwd=place, env=PLAIN, capture_output=True, timeout=120)


@pytest.mark.parametrize("round", range(1 if not FULL else 12))
@pytest.mark.parametrize("name", QUESTIONS)
def test_workers_that_die_or_begin_late(place, alone, tmp_path, name, round):
    answer, code, took = alone[name]
    draw, folder, words = random.Random(f"{name} {round}"), tmp_path / "shared", QUESTIONS[name]
    workers = []

    def start():
        workers.append(Worker(place, [*words, "--parts", folder], PLAIN, tmp_path / f"{len(workers)}.out"))

    for _ in range(WORKERS - 2):
        start()
    for victim in draw.sample(range(WORKERS - 2), 4):
        time.sleep(draw.random() * took * 0.4)
        workers[victim].kill()
        if len(workers) < WORKERS and draw.random() < 0.5:
            start()
    while len(workers) < WORKERS:
        start()
    ends = [worker.end() for worker in workers]
    assert {end for end, _, _ in ends} <= {-signal.SIGKILL, 0, code}, ends
    # One answer in all; of one that was killed while it gave it, the folder has the rest.
    out = b"".join(out for _, out, _ in ends)
    assert out == answer or (answer.startswith(out) and (folder / "told").exists()), ends
    merged = merge(place, words, folder)
    assert (merged.returncode, merged.stdout) == (code, answer), merged.stderr


@pytest.mark.parametrize("round", range(1 if not FULL else 12))
@pytest.mark.parametrize("name", ["diff", "fingerprint"] if not FULL else QUESTIONS)
def test_workers_that_are_started_again_under_their_number(place, alone, tmp_path, name, round):
    """As a launcher does it (torchrun, a job array whose task failed): the six others go on meanwhile."""
    answer, code, took = alone[name]
    draw, words = random.Random(f"{round} {name}"), QUESTIONS[name]

    def of(number):
        return PLAIN | {"RANK": str(number), "WORLD_SIZE": str(WORKERS), "TORCHELASTIC_RUN_ID": f"again-{name}-{round}", "MASTER_PORT": "1"}

    workers = [Worker(place, words, of(number), tmp_path / f"{number}.out") for number in range(WORKERS)]
    for victim in draw.sample(range(WORKERS), 3):
        time.sleep(draw.random() * took * 0.3)
        workers[victim].kill()
        workers.append(Worker(place, words, of(victim), tmp_path / f"{victim} again.out"))
    ends = [worker.end() for worker in workers]
    assert {end for end, _, _ in ends} <= {-signal.SIGKILL, 0, code}, ends
    assert all(answer.startswith(out) for _, out, _ in ends), ends
    left = list(place.glob("*.parts"))
    merged = [merge(place, words, folder) for folder in left]
    for folder in left:
        shutil.rmtree(folder)
    assert all((one.returncode, one.stdout) == (code, answer) for one in merged), merged
    assert merged or any(out == answer for _, out, _ in ends), ends
