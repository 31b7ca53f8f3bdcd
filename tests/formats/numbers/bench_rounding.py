"""bench_rounding.c beside torch's casts and ml_dtypes', one thread each, as Gelt/s.

    python tests/formats/numbers/bench_rounding.py [MIB]     # build the target bench_rounding first

A round trip (f32 to the type and back to f32) is what rounding to a grid replaces; a cast is one way.
"""

import os
import pathlib
import subprocess
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import ml_dtypes  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402

BUILD = pathlib.Path(os.environ.get("LASTBIT_BUILD", pathlib.Path(__file__).resolve().parents[3] / "build" / "release"))
TYPES = {
    "bf16": (torch.bfloat16, ml_dtypes.bfloat16),
    "f16": (torch.float16, np.float16),
    "e4m3fn": (torch.float8_e4m3fn, ml_dtypes.float8_e4m3fn),
    "e5m2": (torch.float8_e5m2, ml_dtypes.float8_e5m2),
    "e4m3fnuz": (torch.float8_e4m3fnuz, ml_dtypes.float8_e4m3fnuz),
    "e2m1": (None, ml_dtypes.float4_e2m1fn),
    "e8m0": (torch.float8_e8m0fnu, ml_dtypes.float8_e8m0fnu),
}


def rate(n, run):
    """Best of half a second, processor time of this thread: others share the machine."""
    best, start = 1e9, time.monotonic()
    while time.monotonic() - start < 0.5:
        t = time.thread_time()
        run()
        best = min(best, time.thread_time() - t)
    return n / best * 1e-9


def main():
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    subprocess.run([BUILD / "bench_rounding", str(mib)], check=True)
    torch.set_num_threads(1)
    print(f"\n{'Gelt/s':12}" + "".join(f"{c:>14}" for c in ("torch trip", "torch cast", "ml_dtypes trip", "ml_dtypes cast", "torch trip 32K")))
    x = torch.randn(mib << 18) * 4
    n, small = x.numel(), x[:8192].clone()
    for name, (torch_type, numpy_type) in TYPES.items():
        part = x.numpy()[: 1 << 22]
        cells = [
            None,
            None,
            rate(part.size, lambda: part.astype(numpy_type).astype(np.float32)),
            rate(part.size, lambda: part.astype(numpy_type)),
            None,
        ]
        if torch_type:
            cells[0] = rate(n, lambda: x.to(torch_type).to(torch.float32))
            cells[1] = rate(n, lambda: x.to(torch_type))
            cells[4] = rate(small.numel() * 50, lambda: [small.to(torch_type).to(torch.float32) for _ in range(50)])
        print(f"{name:12}" + "".join(f"{'' if c is None else format(c, '.3f'):>14}" for c in cells), flush=True)


if __name__ == "__main__":
    main()
