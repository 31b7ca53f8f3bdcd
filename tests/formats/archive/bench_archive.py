"""bench_archive.py [FOLDER]: torch and NumPy doing what bench_archive.c measures of the archive; best of rounds, the same file system.

write   256 MiB as 64 tensors of 4 MiB, and 80 MB as 40,000 of 2 KiB: torch.save, safetensors, numpy.save (one file)
open    100,000 tensors: torch.load, torch.load(mmap=True), safetensors' safe_open, until one random tensor can be read
"""

import os
import random
import sys
import tempfile
import time

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file


def best(action, rounds=3):
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def write(folder, size, count):
    tensors = {f"layers.{i}.value": torch.randint(0, 256, (size,), dtype=torch.uint8) for i in range(count)}
    whole = np.random.default_rng(0).integers(0, 256, size * count, dtype=np.uint8)
    gigabytes = size * count / 1e9
    ways = {
        "raw write": lambda: open(folder + "/raw", "wb").write(memoryview(whole)),
        "numpy.save of one array": lambda: np.save(folder + "/x.npy", whole),
        "safetensors": lambda: save_file(tensors, folder + "/x.safetensors"),
        "torch.save": lambda: torch.save(tensors, folder + "/x.pt"),
    }
    rates = {way: gigabytes / best(action) for way, action in ways.items()}
    print(f"write {size:8d} B x {count:6d}: " + ", ".join(f"{way} {rate:.2f} GB/s ({rate / rates['raw write']:.2f})" for way, rate in rates.items()))


def reach(folder, count):
    tensors = {f"layers.{i}.value": torch.full((16,), float(i)) for i in range(count)}
    torch.save(tensors, folder + "/many.pt")
    save_file(tensors, folder + "/many.safetensors")
    name = f"layers.{random.randrange(count)}.value"

    def safetensors():
        with safe_open(folder + "/many.safetensors", "pt") as file:
            return file.get_tensor(name)

    for way, action in {
        "torch.load": lambda: torch.load(folder + "/many.pt")[name],
        "torch.load(mmap=True)": lambda: torch.load(folder + "/many.pt", mmap=True)[name],
        "safe_open": safetensors,
    }.items():
        print(f"open {count} values and read one: {way} {best(action, 2) * 1e3:.1f} ms")


with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as scratch:
    write(scratch, 4 << 20, 64)
    write(scratch, 2048, 40000)
    reach(scratch, 100000)
    os.sync()
