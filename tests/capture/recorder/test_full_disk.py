"""A disk that is full is told as such: by the summary of `record`, by `recover`, and in the capture; stdout of the program stays its own."""

import json
import subprocess
import sys

import pytest
from conftest import BUILD

PROGRAM = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(6):
    model(torch.randn(40, 64)).pow(2).mean().backward()
    optimizer.step(); optimizer.zero_grad()
    print("step", step)
"""


def record(tmp_path, *options, blocks="unlimited"):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [
        "bash",
        "-c",
        f'ulimit -f {blocks}; exec "$@"',
        "bash",
        BUILD / "lastbit",
        "record",
        "-o",
        tmp_path / "run.lb",
        "--level",
        "ops",
        *options,
        "--",
        sys.executable,
        tmp_path / "program.py",
    ]
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300)


def test_summary_and_recover_say_so(lastbit, tmp_path):
    done = record(tmp_path, blocks=800)
    assert done.returncode == 0 and done.stdout.count("step") == 6
    summary = done.stderr.splitlines()[-1]
    assert "it went no further: the disk is full" in summary and "Next: lastbit bisect" in summary
    whole = tmp_path / "whole.lb"
    text = lastbit.run("recover", tmp_path / "run.lb", "-o", whole, expect=0).stdout
    assert "the disk was full" in text
    told = lastbit.json("recover", whole, "-o", tmp_path / "again.lb", expect=0)
    assert told["stopped"].startswith("the disk was full") and told["programs"] >= 1
    lastbit.run("verify", tmp_path / "run.lb", expect=0)


def test_no_room_for_a_single_step(tmp_path):
    done = record(tmp_path, blocks=12)
    assert done.returncode == 0 and done.stdout.count("step") == 6
    assert "nothing was recorded" in done.stderr and "full" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("blocks", ["unlimited", 800])
def test_json_has_stdout_for_itself(tmp_path, blocks):
    done = record(tmp_path, "--json", blocks=blocks)
    told = json.loads(done.stdout)
    assert told["schema"] == "lastbit.record/1" and told["exit"] == 0 and ("stopped" in told) == (blocks != "unlimited")
    assert [line for line in done.stderr.splitlines() if line.startswith("step")] == [f"step {n}" for n in range(6)]
