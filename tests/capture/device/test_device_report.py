"""The report that a machine with a GPU runs (tests/gpu.sh), on the CPU, so that it works there at the first try."""

import re
import subprocess
import sys

import pytest
import torch
from conftest import BUILD, ROOT

ASSEMBLED = BUILD / "digest_kernel.fatbin.txt"  # what nvcc's assembler said
# Of a multiprocessor; the least of all architectures since sm_80.
REGISTERS, SHARED_BYTES = 65536, 100 << 10


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


@pytest.mark.skipif(not ASSEMBLED.exists(), reason="nvcc is not here")
def test_two_blocks_of_the_kernel_fit_on_a_multiprocessor():
    """And hardly a register is spilled: at most so many bytes a thread, in code that runs once a leaf."""
    entry = r"entry function 'lb_kernel_measure' for '(sm_\d+)'\n.*\n.*?(\d+) bytes spill stores, (\d+) bytes spill loads\n.*Used (\d+) registers.* (\d+) bytes smem"
    built = {name: [int(n) for n in numbers] for name, *numbers in re.findall(entry, ASSEMBLED.read_text())}
    threads = int(re.search(r"LB_KERNEL_THREADS (\d+)", (ROOT / "capture/device/digest_kernel.h").read_text()).group(1))
    assert {"sm_80", "sm_90", "sm_100"} <= set(built)
    for name, (stored, loaded, registers, shared) in built.items():
        assert max(stored, loaded) <= 32, (name, stored, loaded)
        assert 2 * registers * threads <= REGISTERS and 2 * shared <= SHARED_BYTES, (name, registers, shared)
