"""How long a whole bisection takes, verdict and reproducer included, against one chained replay of the same window.

    build/venv/bin/python tests/bisect/failures/stages/bench_bisect.py [--only NAME…] [--keep FOLDER] [--from-start]

Needs build/release with the target bench_replay. All times are processor time of one thread. `replay` is the fastest of two
chained replays of the whole window, opening not counted; `bisect` is the whole command. --from-start measures besides what it
takes without checkpoints. The model is failing_llama.py's: a Llama of 8 layers of width 256 with 4 x 128 tokens, and
SmolLM2-135M's shape with 2 x 64 tokens, at random weights."""

import argparse
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[4]
BUILD = pathlib.Path(os.environ.get("LASTBIT_BUILD", ROOT / "build" / "release"))
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
PROGRAM = ROOT / "tests/programs/failing_llama.py"

CASES = {
    f"{shape}-{fault}": [fault, "--shape", shape, "--steps", steps]
    for shape, steps, faults in [("llama", "4", ["gradient", "overflow", "half"]), ("smollm", "3", ["gradient", "overflow"])]
    for fault in faults
}


def record(capture, arguments):
    subprocess.run(
        [BUILD / "lastbit", "record", "-o", capture, "--level", "sources", "--budget", "20G", "--", sys.executable, PROGRAM, *arguments],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=ENV,
    )


def processor_seconds(command):
    """Of a command that may end with 1, and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, env=ENV)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode in (0, 1), done.stderr
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, done.stdout


def bisect(capture, folder, *more):
    small = folder / "small.lb"
    shutil.rmtree(small, ignore_errors=True)
    seconds, out = processor_seconds([BUILD / "lastbit", "bisect", capture, "-q", "--json", "--threads", "1", "-o", small, *more])
    return seconds, json.loads(out)


def measure(name, capture, folder, from_start):
    replay = json.loads(processor_seconds([BUILD / "bench_replay", capture, "1", "2"])[1])["seconds"]
    seconds, verdict = bisect(capture, folder)
    culprit, size = verdict["culprit"], verdict["reproducer_size"]
    print(
        f"{name:16} replay {replay:6.2f} s  bisect {seconds:7.2f} s  ratio {seconds / replay:5.1f}  {len(verdict['trials'])} trials  "
        f"{culprit['axis']} {culprit['layer']} {culprit['op']}, reproducer {size['ops']} ops",
        flush=True,
    )
    if from_start:
        seconds, again = bisect(capture, folder, "--from-start")
        assert again["culprits"] == verdict["culprits"]
        print(f"{'':16} from the start: {seconds:.2f} s  ratio {seconds / replay:.1f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(CASES), metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--keep", type=pathlib.Path, help="keep the captures in this folder, and use those that lie there")
    parser.add_argument("--from-start", action="store_true", help="measure trials without checkpoints, too")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or pathlib.Path(scratch)
        folder.mkdir(exist_ok=True)
        for name in args.only:
            capture = folder / f"{name}.lb"
            if not capture.exists():
                record(capture, CASES[name])
            measure(name, capture, pathlib.Path(scratch), args.from_start)


if __name__ == "__main__":
    main()
