"""The report that a machine with a GPU runs (tests/gpu.sh), on the CPU, so that it works there at the first try."""

import subprocess
import sys

import pytest
import torch
from conftest import ROOT


@pytest.mark.full
def test_the_report_comes_out_on_the_cpu(lastbit, tmp_path):
    command = [sys.executable, ROOT / "tests/capture/device/device_report.py", "--device", "cpu", "--size", "small", "--sequence", "32"]
    done = subprocess.run([*command, "--steps", "3", "--ranks", "2", "--folder", tmp_path], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.endswith("0 wrong\n"), done.stdout + done.stderr
    lines = done.stdout.splitlines()
    for name in ("A/A", "plain", "overhead", "bits", "bisect"):
        assert any(line.startswith(name) for line in lines), done.stdout
    for parallel in ("train fsdp 2", "train ddp 2"):
        assert any(line.startswith("bits") and parallel in line for line in lines), done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so():
    done = subprocess.run([ROOT / "tests/gpu.sh", "--python", sys.executable], capture_output=True, text=True)
    assert done.returncode == 77 and "no torch that sees a CUDA device" in done.stderr


def test_many_kinds_of_op_are_inside_their_bounds(lastbit, tmp_path):
    """The program that asks a GPU for its ops, on the CPU."""
    program = ROOT / "tests/programs/device_ops.py"
    lastbit.record(tmp_path / "run.lb", program, "--device", "cpu", "--steps", "1", options=("--level", "ops"))
    answer = lastbit.json("replay", tmp_path / "run.lb", expect=0)
    assert answer["ops"]["opaque"] == answer["verdicts"]["diverged"] == answer["verdicts"]["missing"] == 0
    assert answer["ops"]["native"] > 10000
