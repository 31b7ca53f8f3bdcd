"""Faults to order: pairs of runs by seed, of which one has a fault, an innocent change, or both; and how well lastbit answers.

    python tests/bisect/faults/bench_faults.py -n 2000 --seed 1 --out faults.jsonl      # goes on where it was interrupted
    python tests/bisect/faults/bench_faults.py -n 50 --only soft-cap --keep DIR         # captures of wrong answers stay in DIR
    python tests/bisect/faults/bench_faults.py --again faults.jsonl --case 17 --keep DIR

Each line of the table is a kind: of its answers (diff, diff the other way round, bisect, of failing runs also bisect without a
reference) how many are exact, right in part, undecided and wrong, how many innocent pairs were called diverged, how many cases were
drawn again because plain PyTorch did not confirm them, and the seconds that lastbit took."""

import argparse
import collections
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "capture"), str(ROOT / "tests" / "bisect" / "faults")]
os.environ.setdefault("OMP_NUM_THREADS", "1")


def rows(results):
    """One row per kind, then all together."""
    table = collections.defaultdict(collections.Counter)
    for result in results:
        row = table[fault_trial.kind_of(result["case"])]
        if "redrawn" in result:
            row["redrawn"] += 1
            continue
        row["trials"] += 1
        row["seconds"] += result["seconds"][1]
        for question, (score, said) in result["scores"].items():
            row[score] += 1
        row["false"] += result["truth"] is None and any(said.startswith("diverged") for _, said in result["scores"].values())
    total = collections.Counter()
    for row in table.values():
        total.update(row)
    return [*sorted(table.items()), ("all", total)]


def show(results, out):
    print(
        "%-36s %6s %6s %9s %6s %9s %7s %8s %8s" % ("kind", "exact", "partly", "undecided", "wrong", "false div", "trials", "redrawn", "seconds"),
        file=out,
    )
    for name, r in rows(results):
        print(
            "%-36s %6d %6d %9d %6d %9d %7d %8d %8.1f"
            % (name, r["exact"], r["partly"], r["undecided"], r["wrong"], r["false"], r["trials"], r["redrawn"], r["seconds"]),
            file=out,
        )
    last = rows(results)[-1][1]
    answers = sum(last[s] for s in fault_trial.SCORES)
    if answers:
        print(
            "exact %.1f %%, partly %.1f %%, undecided %.1f %%, wrong %.1f %% of %d answers"
            % (*(100 * last[s] / answers for s in fault_trial.SCORES), answers),
            file=out,
        )


def known_lines(path):
    return [json.loads(line) for line in open(path)] if path and os.path.exists(path) else []


def drawn(args, number):
    """Kinds that were added since change what a seed draws."""
    if args.again:
        return next(line["case"] for line in known_lines(args.again) if line["number"] == number)
    return fault_trial.draw(args.seed, number, args.only, args.program, share=args.share)


def keep(folder, result, keep_to, number):
    name = "%s-%d" % ("+".join(n for n, _ in result["case"]["changes"]), number)
    shutil.rmtree(keep_to / name, ignore_errors=True)
    shutil.copytree(folder, keep_to / name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=2000, help="confirmed cases")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--only", help="this kind alone")
    parser.add_argument("--program", action="append", help="these programs alone; repeatable")
    parser.add_argument("--share", type=float, default=0.5, help="of the library's architectures among the programs")
    parser.add_argument("--out", help="a line of JSON per case; what it holds already is not run again")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for the captures of wrong answers")
    parser.add_argument("--keep-all", action="store_true", help="of all answers")
    parser.add_argument("--case", type=int, help="this number of the seed alone")
    parser.add_argument("--again", help="the --out of an earlier run: its case of that number, as it was drawn then")
    parser.add_argument("--table", help="a file for the table, written anew as it grows")
    args = parser.parse_args()
    binary = pathlib.Path(os.environ.get("LASTBIT_BUILD", ROOT / "build" / "release")) / "lastbit"
    results = known_lines(args.out)
    fault_trial.warm()
    number, began = len(results) if args.case is None else args.case, time.time()
    confirmed = sum("scores" in r for r in results)
    while confirmed < args.n:
        case = drawn(args, number)
        if case is None:
            sys.exit(f"no program fits {args.only}")
        with tempfile.TemporaryDirectory(prefix="fault-") as folder:
            folder = pathlib.Path(folder) / "case"
            result = dict(fault_trial.trial(binary, case, folder), number=number)
            worst = max((s for s, _ in result.get("scores", {}).values()), key=fault_trial.SCORES.index, default=None)
            if args.keep and worst and (args.keep_all or worst == "wrong" or args.case is not None):
                keep(folder, result, args.keep, number)
        results.append(result)
        confirmed += worst is not None
        if args.out:
            with open(args.out, "a") as out:
                out.write(json.dumps(result) + "\n")
        if args.table and number % 10 == 0:
            with open(args.table, "w") as out:
                show(results, out)
        told = "redrawn: " + result["redrawn"] if worst is None else " ".join("%s=%s" % (q, s) for q, (s, _) in result["scores"].items())
        print(
            "%5d %6.0f s  %-40s %-8s %-12s %-12s %s"
            % (number, time.time() - began, "+".join(n for n, _ in case["changes"]), case["program"], case["optimizer"], case["precision"], told),
            file=sys.stderr,
            flush=True,
        )
        number += 1
        if args.case is not None:
            break
    show(results, sys.stdout)
    if args.table:
        with open(args.table, "w") as out:
            show(results, out)


if __name__ == "__main__":
    import change_catalogue  # noqa: F401
    import fault_trial
    import torch

    torch.set_num_threads(1)
    main()
else:
    import fault_trial
