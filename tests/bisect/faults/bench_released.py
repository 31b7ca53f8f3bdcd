"""Pairs of implementations that others published, innocent and with planted faults, and how well `lastbit diff` answers.

    python tests/bisect/faults/bench_released.py --environments DIR --recordings DIR --only 'llama-tf5-litgpt'
    python tests/bisect/faults/bench_released.py --list

Each side is recorded once and stays in the folder of recordings. Of an innocent pair `diverged` is wrong. Of a planted fault an answer is
exact where a divergence stands at its place on either side; partly where some faults are found, or more places are named than are faulty;
wrong where none of the named places is faulty; missing where no divergence is named. `held` is an innocent pair that is undecided; `failed`
that diff itself did not answer. Of a diverged answer the first place that a person reads is judged by itself: `headline`; a star marks a
score whose first place is not that of a fault. `--confirm` runs all sides in float64 instead, and says which pairs are not what they are
listed as."""

import argparse
import collections
import fnmatch
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time

import numpy

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROGRAMS = ROOT / "tests" / "programs" / "released"
sys.path.insert(0, str(PROGRAMS))
import released_pairs  # noqa: E402

PATHS = {"timm": ("timm", "torchvision"), "torchvision": ("timm", "torchvision"), "tf5": (), "lens": ("lens", "tf457")}
PATHS |= {"encodec": ("encodec", "torchaudio")}
PATHS |= {"patchvit": ("vitpytorch",), "plainperceiver": ("perceiver",), "plainunet": ("diffusers",), "densegraph": ("pyg",), "listgraph": ("pyg",)}
PATHS |= {"plainconformer": ("torchaudio",), "plaintables": ("rtdl",), "plainsoft": ("softmoe",), "pytorchcv": ("pytorchcv", "torchvision")}
PATHS |= {"hiera": ("hiera", "timm", "torchvision"), "sam": ("sam", "torchvision")}
PATHS |= dict.fromkeys(("bags", "pairs", "grid", "edges", "peft", "byhand", "merged", "decoded", "leftpadded", "fastllama", "smallgpt"), ())
PATHS |= dict.fromkeys(("parallel", "recurrent", "chunked", "fourier", "matrix", "grouped"), ())
PATHS |= dict.fromkeys(("flatllama", "dictllama", "onlinegpt", "recurrent", "latent", "dispatch", "torchlstm", "cells"), ())


def recording(folder, side):
    environment, words = side
    digest = hashlib.sha256(" ".join((environment, *words)).encode()).hexdigest()[:8]
    return folder / f"{environment}-{words[0]}-{digest}.lb"


def paths(environments, environment):
    return os.pathsep.join(str(environments / n) for n in (*PATHS.get(environment, (environment,)), "web"))


def run_all(pairs, environments, folder, mode, suffix):
    """Records both sides of `pairs` ("--many"), or runs them in float64 ("--wide"), where that is missing; one process for each environment."""
    wanted = collections.defaultdict(dict)
    for pair in pairs:
        for side in (pair.a, pair.b):
            out = recording(folder, side)
            if not pathlib.Path(f"{out}.{suffix}").exists():
                wanted[side[0]][str(out) if mode == "--many" else f"{out}.{suffix}"] = list(side[1])
    for environment, sides in wanted.items():
        entries = folder / f"{environment}.json"
        entries.write_text(json.dumps([dict(out=out, words=words) for out, words in sides.items()]))
        path = os.pathsep.join([paths(environments, environment), str(ROOT / "capture")])
        subprocess.run(
            [str(ROOT / "build" / "venv" / "bin" / "python"), str(PROGRAMS / "released.py"), mode, str(entries)],
            env=dict(os.environ, PYTHONPATH=path, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1"),
            stdout=open(folder / f"{environment}.log", "a"),
            stderr=subprocess.STDOUT,
        )


def distance(pair, folder):
    """The largest difference of what both sides give in float64, of the largest number there; None where a side did not run."""
    try:
        a, b = (numpy.load(f"{recording(folder, side)}.f64") for side in (pair.a, pair.b))
    except OSError:
        return None
    return max(float(abs(a[name] - b[name]).max() / abs(a[name]).max()) for name in a)


def confirm(pairs, environments, folder):
    """In float64 an innocent pair agrees to 1e-9, and a fault changes more than 1e-6: what does not is no such pair."""
    run_all(pairs, environments, folder, "--wide", "f64")
    wrong = 0
    for pair in pairs:
        far = distance(pair, folder)
        right = far is not None and (far > 1e-6 if pair.faults else far < 1e-9)
        wrong += not right
        print("%-6s %-10s %s" % ("right" if right else "WRONG", "failed" if far is None else "%.2e" % far, pair.name), flush=True)
    print(f"{wrong} of {len(pairs)} are not what they are listed as")


def ask(binary, a, b, limit):
    try:
        done = subprocess.run([str(binary), "diff", "--json", str(a), str(b)], capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return 124, {"error": "more than %d s" % limit}
    try:
        return done.returncode, json.loads(done.stdout)
    except ValueError:
        return done.returncode, {"error": (done.stderr or done.stdout)[-300:]}


def names(row):
    """What a row's place may be called; in the outermost module by what ran before it there, and with its phase."""
    place = row["layer"] or "(root after %s)" % (row.get("after_module") or "nothing")
    return {place, "%s:%s" % (row["phase"], place)}


def places(answer):
    """All places that differ by themselves, each by what either side calls it; where ops line up, the layers in which a divergence begins."""
    if answer.get("differences"):
        return [names(row) | (names({**row, "layer": row["layer_b"]}) if row["layer_b"] is not None else set()) for row in answer["differences"]]
    first = answer.get("first") or {}
    rows = [first] if first.get("verdict") == "diverged" else []
    rows += [r for r in answer.get("layers") or [] if r["local"] == "diverged" and r["layer"] != first.get("layer")]
    return [names(row) for row in rows]


def score(pair, truths, code, answer):
    verdict = answer.get("verdict")
    if verdict is None:
        return "failed"
    if not pair.faults:
        return "wrong" if verdict == "diverged" else "exact" if code in (0, 1) and verdict in ("identical", "reordered", "rounding") else "held"
    if verdict != "diverged":
        return "missing"
    named = places(answer)
    found = [any(fnmatch.fnmatchcase(layer, place) for layers in named for layer in layers for place in truth) for truth in truths]
    stray = [layers for layers in named if not any(fnmatch.fnmatchcase(layer, p) for t in truths for p in t for layer in layers)]
    if not any(found):
        return "wrong"
    return "exact" if all(found) and not stray else "partly"


def leading(answer):
    """What the place in the first lines of the answer may be called, by either side where it is one of the list as well; None: there is none."""
    first = answer.get("first") or {}
    if answer.get("verdict") != "diverged" or first.get("layer") is None:
        return None
    called = names(first)
    for row in answer.get("differences") or []:
        if all(row[key] == first[key] for key in ("layer", "op", "phase", "step", "index")) and row["layer_b"] is not None:
            called |= names({**row, "layer": row["layer_b"]})
    return called


def headline(truths, answer):
    """Is the place in the first lines of the answer that of a fault?"""
    called = leading(answer)
    return called and any(fnmatch.fnmatchcase(layer, place) for layer in called for truth in truths for place in truth)


def truths_of(pair, folder):
    if pair.faults[0] in released_pairs.RELEASES:
        return [released_pairs.RELEASES[fault] for fault in pair.faults]
    truths = [t for t in json.loads(pathlib.Path(f"{recording(folder, pair.b)}.truth").read_text()) if t is not None]
    fused = any("torchbert" in side[1] and "--forward" in side[1] for side in (pair.a, pair.b))
    return [[*truth, "layers.1"] if fused else truth for truth in truths]  # where it does not train, a layer of torch's own is one op


def said(answer):
    first = answer.get("first") or {}
    return answer.get("error") or "%s at %s %s, %s of step %s" % tuple(
        [answer.get("verdict")] + [first.get(k) for k in ("layer", "op", "phase", "step")]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=pathlib.Path, default=ROOT / "build" / "published")
    parser.add_argument("--recordings", type=pathlib.Path, default=ROOT / "build" / "published" / "recordings")
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--confirm", action="store_true", help="run both sides in float64, and say which pairs are not what they are listed as")
    parser.add_argument("--record", action="store_true", help="record alone, ask nothing")
    parser.add_argument("--limit", type=float, default=60, help="seconds for one diff")
    parser.add_argument("--out", help="a line of JSON for each pair")
    args = parser.parse_args()
    pairs = [p for p in released_pairs.PAIRS if re.search(args.only, p.name)]
    if args.list:
        for pair in pairs:
            print(f"{pair.name}\n    {recording(args.recordings, pair.a)} {recording(args.recordings, pair.b)}")
        return
    args.recordings.mkdir(parents=True, exist_ok=True)
    if args.confirm:
        return confirm(pairs, args.environments, args.recordings)
    run_all(pairs, args.environments, args.recordings, "--many", "truth")
    if args.record:
        return
    binary = pathlib.Path(os.environ.get("LASTBIT_BUILD", ROOT / "build" / "release")) / "lastbit"
    table = collections.defaultdict(collections.Counter)
    for pair in pairs:
        first_is_right = None
        began, sides = time.time(), [recording(args.recordings, side) for side in (pair.a, pair.b)]
        kind = "fault" if pair.faults else "innocent"
        if not all(pathlib.Path(f"{s}.truth").exists() for s in sides):
            result, answer, code = "unrecorded", {"error": "a side could not be recorded"}, None
        else:
            code, answer = ask(binary, *sides, args.limit)
            truths = truths_of(pair, args.recordings) if pair.faults else []
            result = score(pair, truths, code, answer)
            if pair.faults:
                first_is_right = headline(truths, answer)
        if first_is_right is not None:
            table["headline"]["right" if first_is_right else "elsewhere"] += 1
        table[kind][result] += 1
        print("%-10s %5.1f s  %-70s %s" % (result + "*" * (first_is_right is False), time.time() - began, pair.name, said(answer)), flush=True)
        if args.out:
            with open(args.out, "a") as out:
                out.write(
                    json.dumps(
                        dict(
                            name=pair.name,
                            score=result,
                            headline=first_is_right is not False,
                            first=sorted(leading(answer) or ()),
                            code=code,
                            named=[sorted(p) for p in places(answer)],
                        )
                    )
                    + "\n"
                )
    for kind, row in table.items():
        print(kind, ", ".join(f"{n} {result}" for result, n in sorted(row.items())))


if __name__ == "__main__":
    main()
