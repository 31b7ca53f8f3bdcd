"""How long a diff of rounding pairs takes, and what memory, against one chained replay of both sides.

    build/venv/bin/python tests/bisect/pairs/diff/bench_diff.py [--only NAME...] [--keep FOLDER]

All times are processor time of one thread of whole commands, the best of two; memory is the largest resident set. `ops` are those that the
diff ran, trials of single ops among them, divided by those recorded on both sides, as its --json says. The pairs are those of
tests/programs/rounding_pairs.py, and two steps of a Llama of two authors (two_implementations.py) with up to three faults."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[4]
BUILD = pathlib.Path(os.environ.get("LASTBIT_BUILD", ROOT / "build" / "release"))
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}
PROGRAM = ROOT / "tests/programs/rounding_pairs.py"
TWO = ROOT / "tests/programs/two_implementations.py"

CASES = {
    "gpt": ["gpt", "--steps", "4"],
    "norms": ["norms"],
    "muon": ["muon"],
    "batches": ["batches"],
    "llama": ["llama", "--layers", "8", "--width", "256"],
    "resnet-small": ["resnet", "--width", "16", "--length", "16"],
    "resnet": ["resnet", "--width", "64", "--length", "32"],
}
# Faults of the second author's program.
TRAINED = {
    "train": [],
    "train-eps": ["eps"],
    "train-act": ["act"],
    "train-rope": ["rope"],
    "train-lr": ["lr"],
    "train-scale-lr": ["scale", "lr"],
    "train-eps-act": ["eps", "act"],
    "train-three": ["eps", "residual", "decay"],
    "train-rope-eps-act": ["rope", "eps", "act"],
}


def program_of(name, variant):
    if name not in TRAINED:
        return [PROGRAM, CASES[name][0], str(variant), *CASES[name][1:]]
    faults = [word for fault in TRAINED[name] if variant for word in ("--fault", fault)]
    return [TWO, "decoder" if variant else "transformers", "--train", *faults]


def record(capture, program):
    command = [BUILD / "lastbit", "record", "-o", capture, "--", sys.executable, *program]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENV)


def cost(*command):
    """Seconds, megabytes and what was printed, the best of two."""
    best = None
    for _ in range(2):
        with tempfile.TemporaryFile() as out:
            child = subprocess.Popen([BUILD / "lastbit", *command, "--json"], stdout=out, stderr=subprocess.DEVNULL, env=ENV)
            _, status, used = os.wait4(child.pid, 0)
            assert os.waitstatus_to_exitcode(status) in (0, 1, 125), command  # 125: what replay could not judge
            out.seek(0)
            run = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, json.loads(out.read())
        best = run if best is None or run[0] < best[0] else best
    return best


def measure(name, a, b):
    replays = [cost("replay", side, "--mode", "chained") for side in (a, b)]
    seconds, megabytes, told = cost("diff", a, b)
    replay, window, ran = sum(r[0] for r in replays), sum(r[1] for r in replays), told.get("cost", {"ops": 0, "recorded": 1})
    print(
        f"{name:18} replay of both {replay:6.2f} s {window:6.0f} MB  diff {seconds:6.2f} s {megabytes:6.0f} MB  "
        f"ratio {seconds / replay:5.1f}, memory {megabytes / window:4.1f}, ops {ran['ops'] / ran['recorded']:4.1f}  {told['verdict']}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[*CASES, *TRAINED], metavar="NAME", help=", ".join([*CASES, *TRAINED]))
    parser.add_argument("--keep", type=pathlib.Path, help="keep the captures in this folder, and use those that lie there")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or pathlib.Path(scratch)
        folder.mkdir(exist_ok=True)
        for name in args.only:
            sides = [folder / f"{name}-{variant}.lb" for variant in (0, 1)]
            for variant, side in enumerate(sides):
                if not side.exists():
                    record(side, program_of(name, variant))
            measure(name, *sides)


if __name__ == "__main__":
    main()
