"""`record --poison` and `check --only memory`: rows that a kernel leaves unwritten are named where they are read, with the line that made
their memory."""

import math
import os
import subprocess
import sys

import pytest
from checked_programs import recorded

# name: part of the line that reads, of the line that made the memory, and what is said of the rows.
LOST = {
    "tail_lost": ("square().mean()", "torch.empty(x.shape[0]", "32 of the 128 numbers that it reads (rows 12-15)"),
    "expert_lost": ("optimizer.step()", "torch.empty_like(weights)", "64 of the 256 numbers that it reads (rows 1)"),
    "sum_into_empty": ("y = y + total", "total = torch.empty(8)", "8 of the 8 numbers that it reads (rows 0-7)"),
}
WRITTEN = ["none", "tail_written", "tail_masked"]


@pytest.fixture(scope="module")
def steps(lastbit, tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("unwritten"), "unwritten_rows.py", [*LOST, *WRITTEN])


@pytest.mark.parametrize("name", LOST)
def test_rows_that_no_kernel_wrote_are_named(lastbit, steps, name):
    answer = lastbit.json("check", steps / f"{name}.lb", "--only", "memory", expect=1)
    reads, made, rows = LOST[name]
    (row,) = answer["findings"]
    assert row["kind"] == "unwritten" and reads in row["source"]["text"], row
    assert made in row["message"] and rows in row["message"], row


@pytest.mark.parametrize("name", WRITTEN)
def test_rows_that_are_written_or_masked_are_no_finding(lastbit, steps, name):
    answer = lastbit.json("check", steps / f"{name}.lb", "--only", "memory", expect=0)
    assert answer["findings"] == [] and "reached nothing" in answer["proven"][0]


def test_record_fills_fresh_memory_when_asked(lastbit, tmp_path):
    program = tmp_path / "fresh.py"
    program.write_text(
        "import torch\n"
        "model = torch.nn.Linear(4, 4)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "x = torch.empty(4, 4).copy_(torch.ones(4, 4))\n"
        "loss = model(x).sum() + torch.empty(3).sum()\n"
        "loss.backward()\n"
        "optimizer.step()\n"
        "whole = torch.empty(2, dtype=torch.int64)\n"
        "print(float(loss), model(x).isfinite().all().item())\n"
    )
    out = subprocess.run(
        [lastbit.path, "record", "--poison", "-o", tmp_path / "run.lb", "--", sys.executable, program],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert out.returncode == 0, out.stderr
    assert math.isnan(float(out.stdout.split()[0])) and out.stdout.split()[1] == "True", out.stdout
    (row,) = lastbit.json("check", tmp_path / "run.lb", "--only", "memory", expect=1)["findings"]
    assert "torch.empty(3)" in row["message"]
