"""Bytes per second of an audit, alone and against another checkpoint, beside reading the same files: build/venv/bin/python bench_audit.py [GIB]"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

import torch
from safetensors.torch import save_file

ROOT = pathlib.Path(__file__).resolve().parents[4]
LASTBIT = pathlib.Path(os.environ.get("LASTBIT_BUILD", ROOT / "build" / "release")) / "lastbit"


def best(command, rounds=3):
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        done = subprocess.run(command, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
        assert done.returncode == 0, command
    return min(times)


def many(folder, n):
    """`n` small tensors: what names cost."""
    save_file({f"layers.{i % 64}.experts.{i // 64}.w.weight": torch.randn(8, 8) for i in range(n)}, folder / "model.safetensors")


def write(folder, state):
    folder.mkdir()
    save_file(state, folder / "model.safetensors")
    return folder


def size_of(folder):
    return sum(file.stat().st_size for file in folder.iterdir())


def report(what, bytes_, seconds, read):
    """Beside reading the same number of bytes: `read` is of bytes per second."""
    rate = bytes_ / seconds
    print(f"{what}: {bytes_ / 1e9:.2f} GB, {rate / 1e9:.1f} GB/s, {rate / read:.2f} of read(2)")


def main():
    gib = float(sys.argv[1]) if len(sys.argv) > 1 else 1
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        torch.manual_seed(0)
        exact = {f"layers.{i}.w.weight": (torch.randn(4096, 4096) * 0.031).bfloat16() for i in range(int(gib * 32))}
        bf16 = write(folder / "bf16", exact)
        f32 = write(folder / "f32", {n: w.float() for n, w in exact.items()})
        master = write(folder / "master", {n: w.float() * (1 + 1e-4) for n, w in exact.items()})
        huge = write(folder / "huge", {"w.weight": torch.cat(list(exact.values()))})
        small = folder / "small"
        small.mkdir()
        many(small, 50000)
        size = size_of(bf16)
        read = size / best(["dd", "bs=4M", "status=none", "of=/dev/null", f"if={bf16 / 'model.safetensors'}"])
        print(f"{size / 1e9:.2f} GB of bf16: read(2) {read / 1e9:.1f} GB/s; {os.environ.get('OMP_NUM_THREADS', os.cpu_count())} threads")
        report("audit", size, best([LASTBIT, "audit", bf16]), read)
        report("audit of one tensor", size, best([LASTBIT, "audit", huge]), read)
        for what, a, b in [
            ("its exact f32 copy", bf16, f32),
            ("the f32 that it was rounded from", bf16, master),
            ("f32 that was rounded to bf16", f32, master),
        ]:
            report(f"against {what}", size_of(a) + size_of(b), best([LASTBIT, "audit", a, "--against", b]), read)
        print(f"50,000 tensors of 256 bytes: {best([LASTBIT, 'audit', small]):.2f} s")


if __name__ == "__main__":
    main()
