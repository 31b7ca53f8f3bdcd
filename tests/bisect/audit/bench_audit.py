"""Bytes per second of an audit, alone and against another checkpoint, beside reading the same files: build/venv/bin/python bench_audit.py [GIB]"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

import torch
from safetensors.torch import save_file

ROOT = pathlib.Path(__file__).resolve().parents[3]
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


def main():
    gib = float(sys.argv[1]) if len(sys.argv) > 1 else 1
    with tempfile.TemporaryDirectory() as folder:
        one, other, small = (pathlib.Path(folder) / name for name in ("one", "other", "small"))
        for path, dtype in [(one, torch.bfloat16), (other, torch.float32)]:
            path.mkdir()
            torch.manual_seed(0)
            state = {f"layers.{i}.w.weight": (torch.randn(4096, 4096) * 0.031).bfloat16().to(dtype) for i in range(int(gib * 32))}
            save_file(state, path / "model.safetensors")
        small.mkdir()
        many(small, 50000)
        size = sum(f.stat().st_size for f in one.iterdir())
        read = best(["dd", "bs=4M", "status=none", "of=/dev/null", f"if={one / 'model.safetensors'}"])
        alone = best([LASTBIT, "audit", one])
        pair = best([LASTBIT, "audit", one, "--against", other])
        names = best([LASTBIT, "audit", small])
        print(f"{size / 1e9:.2f} GB of bf16: read(2) {size / read / 1e9:.1f} GB/s, audit {size / alone / 1e9:.1f} GB/s ({read / alone:.2f} of it)")
        print(f"against its f32 copy, {3 * size / 1e9:.2f} GB: {3 * size / pair / 1e9:.1f} GB/s")
        print(f"50,000 tensors of 256 bytes: {names:.2f} s")


if __name__ == "__main__":
    main()
