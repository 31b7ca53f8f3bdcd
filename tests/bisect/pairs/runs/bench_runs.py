"""What two runs of many ranks cost: `python tests/bisect/pairs/runs/bench_runs.py [--ranks 64,256,1024] [--layers 100]`.

Runs are computed by make_ranks.c: data-parallel, an all-reduce a layer. Three tables, each with ratios besides:

ranks     seconds of the processor, memory at its peak (all of it, and what is its own: pages of files the system takes back when it needs them),
          and archive bytes a second, against the number of ranks: runs with the same bits, and one in which a rank is poisoned in its middle layer
share     of one number of ranks, against how much of the run differs: nothing, one all-reduce, all behind the last layer, the middle, the first
workers   wall-clock seconds of 1, 2 and 4 workers that meet in a folder, and each worker's memory: on a machine with two cores 2 is the limit

Linear is 1.00 in every column that says so."""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[4]
BUILD = pathlib.Path(os.environ.get("LASTBIT_BUILD", ROOT / "build" / "release"))


def make(folder, ranks, layers, *options):
    if not folder.exists():
        subprocess.run([BUILD / "tests/make_ranks", folder, f"ranks={ranks}", f"layers={layers}", "steps=1", *options], check=True)
    return folder


def size(folder):
    return sum(file.stat().st_size for file in folder.iterdir())


def own_kilobytes(pid):
    """Memory that no file holds (proc(5), status)."""
    said = re.search(r"RssAnon:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())
    return int(said[1]) if said else 0


def run(*words, workers=1):
    """Wall-clock seconds, seconds of the processor, the memory of the largest worker, and the largest that was a worker's own."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    begun = time.monotonic()
    running = []
    for number in range(workers):
        mine = env | ({"RANK": str(number), "WORLD_SIZE": str(workers), "TORCHELASTIC_RUN_ID": "bench"} if workers > 1 else {})
        running.append(subprocess.Popen([BUILD / "lastbit", *words], env=mine, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    used, memory, own = 0.0, 0, 0
    while any(os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None for worker in running):
        own = max(own, *(own_kilobytes(worker.pid) for worker in running))
        time.sleep(0.02)
    for worker in running:
        _, status, usage = os.wait4(worker.pid, 0)
        assert os.waitstatus_to_exitcode(status) in (0, 1), words
        used += usage.ru_utime + usage.ru_stime
        memory = max(memory, usage.ru_maxrss)
    return time.monotonic() - begun, used, memory / 1024, own / 1024


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", default="64,256,1024")
    parser.add_argument("--layers", type=int, default=100)
    options = parser.parse_args()
    sizes = [int(n) for n in options.ranks.split(",")]
    os.chdir(tempfile.mkdtemp(prefix="bench-runs-"))
    here = pathlib.Path(".")
    try:
        print(f"ranks of {options.layers} layers\n{'':24}{'ranks':>7}{'CPU s':>9}{'per rank':>10}{'MB':>8}{'own MB':>8}{'MB/s':>8}")
        first = {}
        for n in sizes:
            clean = make(here / f"clean-{n}.lb", n, options.layers)
            same = here / f"same-{n}.lb"
            shutil.copytree(clean, same)
            bad = make(here / f"bad-{n}.lb", n, options.layers, f"poison=0:{n // 2}:{options.layers // 2}")
            for name, words in {
                "verify": ["verify", clean],
                "diff, the same": ["diff", clean, same],
                "diff, poisoned": ["diff", clean, bad],
                "ranks": ["ranks", clean],
                "fingerprint": ["fingerprint", clean],
            }.items():
                _, used, memory, own = run(*words)
                first.setdefault(name, used / n)
                read = size(clean) * (2 if words[0] == "diff" else 1)
                print(f"{name:24}{n:7}{used:9.2f}{used / n / first[name]:10.2f}{memory:8.0f}{own:8.0f}{read / used / 1e6:8.0f}")
            shutil.rmtree(same)
        n = sizes[len(sizes) // 2]
        print(f"\nshare that differs, {n} ranks\n{'':24}{'CPU s':>9}{'of none':>10}")
        clean = here / f"clean-{n}.lb"
        shares = {"none": None, "one all-reduce": "flip=0:0:3", "the last layer": f"poison=0:1:{options.layers - 1}"}
        shares |= {"from the middle on": f"poison=0:1:{options.layers // 2}", "from the first on": "poison=0:1:0"}
        none = None
        for name, option in shares.items():
            other = make(here / "share.lb", n, options.layers, *([option] if option else []))
            _, used, _, _ = run("diff", clean, other)
            none = none or used
            print(f"{name:24}{used:9.2f}{used / none:10.2f}")
            shutil.rmtree(other)
        print(f"\nworkers, {n} ranks, poisoned\n{'':24}{'seconds':>9}{'speed-up':>10}{'MB each':>10}")
        alone = None
        for workers in (1, 2, 4):
            wall, _, memory, _ = run("diff", clean, here / f"bad-{n}.lb", workers=workers)
            alone = alone or wall
            print(f"{workers:<24}{wall:9.2f}{alone / wall:10.2f}{memory:10.0f}")
    finally:
        shutil.rmtree(pathlib.Path.cwd())


if __name__ == "__main__":
    main()
