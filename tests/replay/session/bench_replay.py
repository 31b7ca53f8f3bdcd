"""Chained replay of recorded steps beside PyTorch eager doing the same steps: time, memory, and where the time goes.

    build/venv/bin/python tests/replay/session/bench_replay.py [--only NAME…] [--threads 1 2] [--repeats 5] [--ops]

Needs build/release with the target bench_replay. PyTorch's time is what the unchanged program takes between the lines it
prints for its steps, the fastest of them (the first steps warm up); replay's is the fastest repeat over the same steps,
forced to the recorded decisions so that no chain ends early. With one thread both are processor time, which other work on
the machine changes least. Ratio = replay / PyTorch; peak = replay's buffers against the values that are alive at one time.
`smollm` has the shape of SmolLM2-135M with random weights: speed doesn't depend on them."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(os.environ.get("LASTBIT_BUILD", ROOT / "build" / "release"))
HF = "tests/programs/hf_train.py"
LLAMA = ["--layers", "8", "--hidden", "256", "--batch", "4", "--seq", "128"]

# name: (program, arguments, steps to record and to replay)
PROGRAMS = {
    "sample-fp32": ("samples/hybrid_lm.py", ["--precision", "fp32"], 4),
    "sample-bf16": ("samples/hybrid_lm.py", ["--precision", "bf16"], 4),
    "sample-fp8": ("samples/hybrid_lm.py", ["--precision", "fp8"], 4),
    "llama-fp32": (HF, [*LLAMA, "--dtype", "fp32"], 2),
    "llama-bf16": (HF, [*LLAMA, "--dtype", "bf16"], 2),
    "llama-eager-fp32": (HF, [*LLAMA, "--dtype", "fp32", "--attention", "eager"], 2),
    "smollm-fp32": (HF, ["--model", "smollm", "--dtype", "fp32", "--batch", "1", "--seq", "128"], 1),
    "smollm-bf16": (HF, ["--model", "smollm", "--dtype", "bf16", "--batch", "1", "--seq", "128"], 1),
}


def processor_seconds(pid):
    """Time that the threads of a process have run."""
    total = 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total * 1e-9


def eager_seconds(program, arguments, threads, steps):
    """Fastest step of the program as it is."""
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    run = subprocess.Popen(
        [sys.executable, ROOT / program, *arguments, "--threads", str(threads), "--steps", str(steps)], stdout=subprocess.PIPE, text=True, env=env
    )
    times = [processor_seconds(run.pid) if threads == 1 else time.perf_counter() for line in run.stdout if line.startswith("step ")]
    if run.wait() or len(times) != steps:
        raise SystemExit(f"{program} {arguments} failed")
    return min(b - a for a, b in zip(times, times[1:]))


def record(folder, name, program, arguments, steps):
    capture = folder / f"{name}.lb"
    subprocess.run(
        [
            BUILD / "lastbit",
            "record",
            "-o",
            capture,
            "--level",
            "sources",
            "--budget",
            "20G",
            "--",
            sys.executable,
            ROOT / program,
            *arguments,
            "--steps",
            str(steps),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    return capture


def replay(capture, threads, repeats):
    done = subprocess.run([BUILD / "bench_replay", capture, str(threads), str(repeats)], check=True, capture_output=True, text=True)
    answer = json.loads(done.stdout)
    if answer["undecided"] or answer["opaque"]:
        print(f"  {capture.stem}: {answer['opaque']} opaque ops, undecided {answer['undecided']}", file=sys.stderr)
    return answer


def show(name, threads, eager, answer, ops):
    steps, mib = answer["steps"], 1 / 2**20
    ours, compared = answer["seconds"] / steps, answer["compared"] / steps
    print(
        f"{name:17} {threads} thread{'s' if threads > 1 else ' '}  eager {eager * 1e3:9.2f} ms  replay {ours * 1e3:9.2f} ms  "
        f"ratio {ours / eager:5.2f}  (compared {compared / eager:5.2f})  peak {answer['peak_bytes'] * mib:8.1f} MiB of "
        f"{answer['live_bytes'] * mib:8.1f} live: {answer['peak_bytes'] / answer['live_bytes']:.2f}, process "
        f"{answer['max_rss_bytes'] * mib:.0f} MiB",
        flush=True,
    )
    total = sum(seconds for seconds, _ in answer["families"].values())
    shares = sorted(answer["families"].items(), key=lambda item: -item[1][0])
    print("    " + "  ".join(f"{family} {100 * seconds / total:.0f}%" for family, (seconds, _) in shares if seconds > 0.005 * total))
    if ops:
        for op, (seconds, count) in answer["ops"].items():
            print(f"    {op:56} {seconds / steps * 1e3:9.3f} ms {count / steps:7.0f}  {seconds / count * 1e6:9.2f} us each")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(PROGRAMS), metavar="NAME", help=", ".join(PROGRAMS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--ops", action="store_true", help="list the slowest ops, too")
    parser.add_argument("--keep", type=pathlib.Path, help="keep the captures in this folder, and use those that lie there")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or pathlib.Path(scratch)
        folder.mkdir(exist_ok=True)
        for name in args.only:
            program, arguments, steps = PROGRAMS[name]
            capture = folder / f"{name}.lb"
            if not capture.exists():
                record(folder, name, program, arguments, steps)
            for threads in args.threads:
                show(name, threads, eager_seconds(program, arguments, threads, 8), replay(capture, threads, args.repeats), args.ops)


if __name__ == "__main__":
    main()
