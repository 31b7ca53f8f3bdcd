"""The whole command line under AddressSanitizer and UndefinedBehaviorSanitizer, over the samples and captures of every other kind.

Both builds answer every call: what the sanitized one prints, and its exit code, are those of the optimised one, but for `explain`, which
looks as long as it has time. Nothing of it may hang on the compiler's options, and no sanitizer may have a word to say. Files are as other libraries write them, with tensors of no elements among
them: there arrays are NULL and counts 0, which memcpy, memset, memcmp and qsort do not take.
"""

import json
import os
import re
import subprocess

import numpy
import pytest
import torch
from conftest import BUILD, ROOT
from safetensors.numpy import save_file

SANITIZED = ROOT / "build/dev/lastbit"
SAMPLES = sorted((ROOT / "samples").glob("*.lbz"))
STORED = [["ls"], ["ls", "--json"], ["ls", "--tables"], ["verify"], ["show", "--json"]]
ALONE = [["bisect", "--json"], ["replay", "--json"], ["replay", "--mode", "chained"], ["ranks"], ["audit", "--json"]]

TIMES = re.compile(r'"seconds": [0-9.e-]+|\d+\.\d+ s\b')  # the one thing in which two answers may differ

EMPTY = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.GELU(), torch.nn.LayerNorm(6), torch.nn.Linear(6, 2))
model.register_buffer("nothing", torch.zeros(0, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(2):
    x = torch.randn(5, 4)
    none = x[:0] * 2 + model.nothing
    rows = torch.cat([x, none]).masked_select(torch.zeros(5, 4, dtype=torch.bool))
    sums = none.sum() + none.softmax(-1).sum() + (none @ torch.ones(4, 3)).sum() + rows.sum() + none.sort(0).values.sum() + none.cumsum(0).sum()
    picked = x.index_select(0, torch.zeros(0, dtype=torch.long)).exp().sum() + model(none).sum() + torch.nn.functional.layer_norm(none, (4,)).sum()
    (model(x).pow(2).mean() + sums + picked).backward()
    optimizer.step(); optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def inputs(lastbit, tmp_path_factory):
    """name: path, of every kind of input that a command takes."""
    folder = tmp_path_factory.mktemp("sanitized")
    random = numpy.random.default_rng(0)
    weights = {f"h.{i}.w": random.standard_normal((16, 16), dtype=numpy.float32) for i in range(3)}
    weights["none"] = numpy.zeros((0, 7), numpy.float32)
    changed = {name: w.copy() for name, w in weights.items()}
    changed["h.1.w"][3] += 0.1
    save_file(weights, folder / "a.safetensors")
    save_file(changed, folder / "b.safetensors")
    numpy.savez(folder / "a.npz", **weights)
    numpy.save(folder / "a.npy", weights["none"])
    torch.save({name: torch.from_numpy(w) for name, w in changed.items()}, folder / "b.pt")
    subprocess.run([BUILD / "tests/make_captures", folder], check=True)
    (folder / "empty.py").write_text(EMPTY)
    lastbit.record(folder / "empty.lb", folder / "empty.py", options=("--level", "ops"), expect=0)
    losses = [3 / (1 + 0.1 * n) + 0.01 * (n * 7 % 5) for n in range(200)]
    losses[150] = float("nan")
    (folder / "train.log").write_text("".join(f"step {n} loss {loss:.4f} grad_norm 1.{n % 9}\n" for n, loss in enumerate(losses)))
    for side, shift in (("trainer", 0.0), ("server", 0.01)):
        rows = [{"id": n, "tokens": [1, 2, 3, n % 50], "logprobs": [-0.5, -1.25 - shift, -0.125, -2.0 - shift * (n % 3)]} for n in range(20)]
        (folder / f"{side}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def answers(command, cwd):
    """(exit code, stdout) of both builds, and what the sanitizers said."""
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=1:exitcode=99", "UBSAN_OPTIONS": "print_stacktrace=1", "LASTBIT_THREADS": "1"}
    sides = []
    for program in (BUILD / "lastbit", SANITIZED):
        done = subprocess.run([program, *map(str, command)], capture_output=True, text=True, timeout=120, cwd=cwd, env=environment)
        sides.append((done.returncode, TIMES.sub("", done.stdout)))
    said = [line for line in done.stderr.splitlines() if "runtime error" in line or "Sanitizer" in line]
    return sides, said


def check(inputs, commands):
    if not SANITIZED.exists():
        pytest.skip("no sanitized build here (cmake --preset dev && cmake --build --preset dev --target lastbit)")
    wrong = []
    for command in commands:
        sides, said = answers(command, inputs)
        same = sides[0] == sides[1] or (command[0] == "explain" and sides[0][0] == sides[1][0])
        if said or not same or sides[0][0] not in (0, 1, 125, 128):
            wrong.append((" ".join(map(str, command)), said[:3], [side[0] for side in sides]))
    assert not wrong, wrong


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_over_a_sample(inputs, sample):
    check(inputs, [[*command, sample] for command in STORED + ALONE])


def test_over_pairs_of_samples(inputs):
    by_name = {path.stem: path for path in SAMPLES}
    pairs = [("clean", "dropped-term"), ("clean", "clean"), ("scan-overflow", "stale-scale"), ("poisoned-rank", "polar-bf16")]
    check(inputs, [["diff", by_name[a], by_name[b]] for a, b in pairs])
    check(inputs, [["explain", by_name[a], by_name[b]] for a, b in pairs[1:2] + pairs[3:]])


def test_over_files_of_other_programs(inputs):
    files = ["a.safetensors", "b.pt", "a.npz", "a.npy"]
    pairs = [("a.safetensors", "b.safetensors"), ("a.npz", "b.pt"), ("a.npy", "a.npz"), (SAMPLES[0], "a.safetensors")]
    check(inputs, [[*command, file] for file in files for command in [*STORED, *ALONE]])
    check(inputs, [[*command, *pair] for pair in pairs for command in (["diff"], ["diff", "--json"], ["explain"], ["audit", "--against"])])


def test_over_captures_that_a_kill_left_and_of_empty_tensors(inputs):
    check(inputs, [[*command, capture] for capture in ("closed.lb", "killed.lb", "empty.lb") for command in STORED + ALONE])
    check(inputs, [["diff", "closed.lb", "killed.lb"], ["diff", "empty.lb", "empty.lb"], ["explain", "empty.lb", "empty.lb"]])


def test_over_logs_and_log_probabilities(inputs):
    check(inputs, [["watch", "train.log"], ["watch", "--json", "train.log"], ["parity", "trainer.jsonl", "server.jsonl", "--heat"]])
    for name, command in (("watch", ["watch", "--json", "train.log"]), ("parity", ["parity", "--json", "trainer.jsonl", "server.jsonl"])):
        (inputs / f"{name}.json").write_text(answers(command, inputs)[0][0][1])
    check(inputs, [["report", "-o", "page.html", "watch.json", "parity.json"]])
