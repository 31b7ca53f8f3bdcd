"""bench_compare.c beside NumPy and torch, one thread each, in GB/s of both inputs read.

    cmake --build --preset release --target bench_compare
    build/venv/bin/python tests/bisect/pairs/compare/bench_compare.py [MIB]

Eight metrics in one pass (max abs, max rel, relative L2, cosine, max and p99 ulp, differing, non-finite) against what one
asks NumPy and torch today: is it equal, is it close, and a script of the same eight metrics. Processor time of the one
thread, best of several runs: others may share the machine. Goals: 0.8 of memcmp, tens of times the script.
"""

import json
import os
import pathlib
import subprocess
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

BUILD = pathlib.Path(os.environ.get("LASTBIT_BUILD", pathlib.Path(__file__).resolve().parents[4] / "build" / "release"))


def script(a, b):
    """The same eight numbers, as one writes them in torch."""
    d = (a - b).abs()
    finite = torch.isfinite(a) & torch.isfinite(b)
    ia, ib = a.view(torch.int32).long(), b.view(torch.int32).long()
    ia, ib = torch.where(ia < 0, -(ia & 0x7FFFFFFF), ia), torch.where(ib < 0, -(ib & 0x7FFFFFFF), ib)
    ulp = (ia - ib).abs()
    return (
        d[finite].max(),
        (d / a.abs())[finite & (a != 0)].max(),
        d.double().norm() / a.double().norm(),
        F.cosine_similarity(a.double(), b.double(), 0),
        ulp.max(),
        ulp.kthvalue(ulp.numel() - ulp.numel() // 100).values,
        (a.view(torch.int32) != b.view(torch.int32)).sum(),
        (~finite).sum(),
    )


def rate(size, run):
    best = 1e9
    for _ in range(3):
        start = time.process_time()
        run()
        best = min(best, time.process_time() - start)
    return 2e-9 * size / best


def main():
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    torch.set_num_threads(1)
    ours = json.loads(subprocess.run([BUILD / "bench_compare", str(mib)], check=True, capture_output=True, text=True).stdout)
    x = ((np.arange(mib << 18) % 1009) - 500.5).astype(np.float32)
    near, size = (x * np.float32(1.0001)).astype(np.float32), x.nbytes
    a, same, b = torch.from_numpy(x), torch.from_numpy(x.copy()), torch.from_numpy(near)
    close = dict(rtol=1e-3, atol=1e-3)
    theirs = {
        "numpy.array_equal, equal": rate(size, lambda: np.array_equal(x, same.numpy())),
        "numpy.array_equal, different": rate(size, lambda: np.array_equal(x, near)),
        "numpy.allclose": rate(size, lambda: np.allclose(x, near, **close)),
        "torch.testing.assert_close": rate(size, lambda: torch.testing.assert_close(a, b, **close)),
        "torch script, eight metrics": rate(size, lambda: script(a, b)),
    }
    print(f"{mib} MiB of f32 on each side, one thread, GB/s of both sides")
    print(f"  {'lastbit, equal bits':30} {ours['equal']:8.2f}      memcmp {ours['memcmp']:.2f}")
    print(f"  {'lastbit, one in 1000 differs':30} {ours['one_in_1000']:8.2f}")
    print(f"  {'lastbit, all differ':30} {ours['all_differ']:8.2f}")
    print(f"  {'lastbit, all differ by noise':30} {ours['noise']:8.2f}")
    for name, speed in theirs.items():
        mine = ours["equal"] if name.endswith(", equal") else ours["all_differ"]
        print(f"  {name:30} {speed:8.2f}      lastbit is {mine / speed:.3g} times as fast")


if __name__ == "__main__":
    main()
