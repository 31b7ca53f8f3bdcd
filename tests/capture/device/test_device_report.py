"""The report that a machine with a GPU runs (tests/gpu.sh), on the CPU, so that it works there at the first try."""

import os
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


PIECES = "hardware sanitizer ctest measuring ops kinds bisect train graph generate ranks".split()
SMALL = ("--size", "small", "--sequence", "32", "--steps", "3", "--ranks", "2", "--levels", "stats")


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kit")
    environment = {**os.environ, "LASTBIT_BUILD": str(BUILD)}
    subprocess.run([ROOT / "tests/gpu.sh", "--pack", folder, "--no-build"], check=True, capture_output=True, env=environment)
    return folder


def rehearse(kit, tmp_path, *options):
    """What tests/gpu.sh does with a kit, here: its exit code, and {piece: what is said of it} in their order."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LASTBIT_")}
    command = [ROOT / "tests/gpu.sh", "--rehearse", "--kit", kit, "--python", sys.executable, *options, *SMALL, "--folder", tmp_path]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=environment)
    return done, dict(re.findall(r"^== (\w+): (.*), \d+ s$", done.stdout, re.M))


def test_a_kit_is_small(kit):
    there = {str(path.relative_to(kit)): path.lstat().st_size for path in kit.rglob("*") if path.is_file()}
    assert {"lastbit", "liblastbit_capture.so", "tests/capture_test_cuda_hardware"} <= set(there) and any(name.startswith("lib/") for name in there)
    assert sum(there.values()) <= 64e6, there


def test_pieces_run_in_their_order_and_stop_at_their_limit(kit, tmp_path):
    """A piece that is stopped costs the others nothing, and the exit code says so."""
    done, said = rehearse(kit, tmp_path, "--pieces", "sanitizer hardware ops bisect", "--limit", "2")
    assert list(said) == ["sanitizer", "hardware", "ops", "bisect"] and done.returncode == 1, done.stdout + done.stderr
    assert said["hardware"] == said["sanitizer"] == "left out: not here"
    assert said["ops"] == said["bisect"] == "stopped after 2 s"


@pytest.mark.full
def test_all_pieces_are_rehearsed(kit, tmp_path):
    done, said = rehearse(kit, tmp_path)
    assert list(said) == PIECES and done.returncode == 0, done.stdout + done.stderr
    assert {piece for piece in PIECES if said[piece] == "left out: not here"} == {"hardware", "sanitizer", "ctest", "graph"}
    assert done.stdout.count("0 wrong") == 7 and "layers.1" in done.stdout


@pytest.mark.parametrize("name", ["every_size_has_the_hosts_results", "graph_gives_its_results_at_each_run"])
def test_the_test_of_a_device_is_rehearsed_on_the_stand_in_driver(name):
    """With values of few bytes, for a host runs the kernel; the same program then asks a device for all of them."""
    environment = {**os.environ, "LD_PRELOAD": str(BUILD / "standin" / "libstandin_device.so"), "STANDIN_BEGIN": "1"}
    command = [BUILD / "tests" / "capture_test_cuda_hardware", name, "70000"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and "stand-in 0, driver 12080" in done.stdout and "1 test(s)" in done.stdout + done.stderr, done.stdout + done.stderr


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
        assert max(stored, loaded) <= 8, (name, stored, loaded)
        assert 2 * registers * threads <= REGISTERS and 2 * shared <= SHARED_BYTES, (name, registers, shared)
