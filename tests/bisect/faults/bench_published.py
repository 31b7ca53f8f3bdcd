"""Two implementations of one model that others published, innocent and with planted faults: what `lastbit diff` says of them.

    tests/setup.sh published FOLDER                                  # once: the releases, beside each other
    build/venv/bin/python tests/bisect/faults/bench_published.py FOLDER RECORDINGS [--only REGEX] [--list]

A fault is exact where every place that was planted is met by a difference and no difference is met by none of them.
"""

import argparse
import collections
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROGRAMS = ROOT / "tests/programs/published"
sys.path.insert(0, str(PROGRAMS))
import catalogue  # noqa: E402

LASTBIT = pathlib.Path(os.environ.get("LASTBIT_BUILD", ROOT / "build/release")) / "lastbit"


def record(pair, side, faults, folders, recordings):
    words = [
        pair.program,
        f"{pair.family}/{side}",
        *["--train"] * pair.train,
        *[word for fault in faults for word in ("--fault", fault)],
        "--dtype",
        pair.dtype,
    ]
    path = recordings / (re.sub(r"\W+", "-", " ".join(words)) + ".lb")
    if path.exists():
        return path
    places = [str(folders / name) for name in catalogue.SOURCES[side].split(",") if name]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places), "OMP_NUM_THREADS": "1"}
    command = [LASTBIT, "record", "--force", "-o", path, "--", sys.executable, PROGRAMS / words[0], *words[1:]]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    if done.returncode or not path.exists():
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip().splitlines()[-1:] or done.returncode}")
    return path


def words_of(difference):
    return " ".join(str(difference.get(key) or "") for key in ("layer", "layer_b", "op", "op_b", "parameter"))


def score(pair, answer):
    verdict, found = answer["verdict"], answer["differences"] or ([answer["first"]] if answer["first"] and answer["verdict"] == "diverged" else [])
    if not pair.places:
        return "right" if verdict in ("rounding", "reordered", "identical") else f"innocent {verdict}"
    if verdict != "diverged":
        return verdict if verdict == "missing" else f"wrong: {verdict}"
    texts = [words_of(d) for d in found]
    met = [any(re.search(place, text) for text in texts) for place in pair.places]
    stray = [text for text in texts if not any(re.search(place, text) for place in pair.places)]
    if all(met) and not stray:
        return "right"
    return "partly" if any(met) else "wrong: place"


def ask(pair, folders, recordings, seconds):
    paths = [record(pair, pair.first, pair.first_faults, folders, recordings), record(pair, pair.second, pair.faults, folders, recordings)]
    done = subprocess.run([LASTBIT, "diff", "--json", *paths], capture_output=True, text=True, timeout=seconds)
    return json.loads(done.stdout), paths


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=pathlib.Path)
    parser.add_argument("recordings", type=pathlib.Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--seconds", type=float, default=300)
    options = parser.parse_args()
    options.recordings.mkdir(parents=True, exist_ok=True)
    counts = {True: collections.Counter(), False: collections.Counter()}
    for pair in catalogue.everything():
        if not re.search(options.only, pair.name):
            continue
        if options.list:
            print(pair.name)
            continue
        try:
            answer, _ = ask(pair, options.folders, options.recordings, options.seconds)
            verdict = score(pair, answer)
            place = "; ".join(words_of(d) for d in (answer["differences"] or [answer["first"] or {}])[:3])
        except (RuntimeError, subprocess.TimeoutExpired, json.JSONDecodeError) as failure:
            verdict, place = "failed", str(failure)[-200:]
        counts[not pair.places][verdict.split(":")[0]] += 1
        print(f"{verdict:20} {pair.name:70} {place if verdict != 'right' else ''}", flush=True)
    for innocent, counted in counts.items():
        print("innocent" if innocent else "faults", dict(counted))


if __name__ == "__main__":
    main()
