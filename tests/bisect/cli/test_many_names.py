"""Files of very many names take time in proportion to them: seconds of the processor at N names against those at 4 N.

    python tests/bisect/cli/test_many_names.py [N]      prints the ratios from N (10,000) to 4 N

Linear is a ratio of 4, the square 16. What of each command does not grow is subtracted: the seconds of a file of four names."""

import io
import json
import os
import pathlib
import resource
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(os.environ.get("LASTBIT_BUILD", ROOT / "build" / "release"))
MOST = 9  # of a ratio that is 4 where all is linear: caches are smaller than files
CLOCK = 0.1  # seconds: what is that short is not told from nothing


def write_safetensors(path, names, numbers):
    """A tensor of two f32 for each name; `numbers`: of row i."""
    data = np.array([numbers(i) for i in range(len(names))], "<f4").tobytes()
    rows = (f'{json.dumps(name)}:{{"dtype":"F32","shape":[2],"data_offsets":[{8 * i},{8 * i + 8}]}}' for i, name in enumerate(names))
    head = ("{" + ",".join(rows) + "}").encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + data)


def write_gguf(path, names):
    text = [struct.pack("<Q", len(name)) + name.encode() + struct.pack("<IQIQ", 1, 2, 0, 0) for name in names]
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, len(names), 0) + b"".join(text) + bytes(64))


def layers(n, prefix=""):
    return [f"{prefix}layers.{i // 4}.m{i % 4}.weight" for i in range(n)]


def pair(folder, n, second, numbers):
    write_safetensors(folder / "a.safetensors", layers(n), lambda i: (i, i + 0.5))
    write_safetensors(folder / "b.safetensors", second, numbers)
    return ["diff", folder / "a.safetensors", folder / "b.safetensors"]


def other_numbers(folder, n):
    return pair(folder, n, layers(n), lambda i: (i, i + 1.5))


def known_spellings(folder, n):
    """Names that meet by what frameworks call differently."""
    return pair(folder, n, layers(n, "model."), lambda i: (i, i + 0.5))


def other_names(folder, n):
    """No name of one side is on the other, and no number."""
    return pair(folder, n, [f"tensor{i}" for i in range(n)], lambda i: (-i - 1, i + 1.5))


def many_findings(folder, n):
    """Half are NaN, half zero: two groups, the second begins behind all of the first."""
    write_safetensors(folder / "x.safetensors", layers(n), lambda i: (float("nan"), 1) if i < n // 2 else (0, 0))
    return ["audit", folder / "x.safetensors"]


def one_name(folder, n):
    write_gguf(folder / "x.gguf", ["same"] * n)
    return ["audit", folder / "x.gguf"]


def members(folder, n):
    """An archive member for each, in a file that calls itself one of two: what lacks is looked for."""
    with zipfile.ZipFile(folder / "x-00001-of-00002.npz", "w") as file:
        for name in layers(n):
            member = io.BytesIO()
            np.save(member, np.ones(2, np.float32))
            file.writestr(f"{name}.npy", member.getvalue())
    return ["audit", folder / "x-00001-of-00002.npz"]


def seconds(words):
    """Of the processor; the least of three runs."""
    least = float("inf")
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        done = subprocess.run(
            [BUILD / "lastbit", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        assert done.returncode in (0, 1), done.stderr
        least = min(least, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)
    return least


# As many names as took a second or more in the square, four times over.
INPUTS = {other_numbers: 4000, known_spellings: 4000, other_names: 4000, many_findings: 10000, one_name: 25000, members: 8000}


def measured(folder, make, n):
    few, some, many = (seconds(make(folder, count)) for count in (4, n, 4 * n))
    return some - few, many - few


@pytest.mark.parametrize("make", INPUTS, ids=lambda make: make.__name__)
def test_time_grows_with_the_names(tmp_path, make):
    count = INPUTS[make]
    some, many = measured(tmp_path, make, count)
    assert many < MOST * some + CLOCK, f"{some:.3f} s for {count} names, {many:.3f} s for {4 * count}"


if __name__ == "__main__":
    import tempfile

    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10000
    with tempfile.TemporaryDirectory() as place:
        print(f"{'input':18} {count:>8} {4 * count:>8}  ratio (4: linear)")
        for one in INPUTS:
            some, many = measured(pathlib.Path(place), one, count)
            print(f"{one.__name__:18} {some:7.2f}s {many:7.2f}s  {many / max(some, 0.001):5.1f}")
