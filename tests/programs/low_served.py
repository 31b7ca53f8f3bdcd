"""Low-precision serving and scoring of small language models as two people write it, with single faults in the second way.

    python low_served.py --all FOLDER [NAME…]  # records NAME-first.lb, NAME-second.lb and NAME-FAULT.lb
    python low_served.py --confirm [NAME…]    # in f64 both ways agree to 1e-9 and a fault moves more than 1e-6; then, in the
                                              # precision of the pair, a fault's effect over the gap of the innocent pair
    python low_served.py --truth              # JSON: where each fault lies, and what its line reads

A record is one step without gradient: the serving of one list of requests. What is quantised is quantised in f64, too."""

import json
import pathlib
import re
import sys

import low_served_caches
import low_served_casts
import low_served_codes
import low_served_experts
import low_served_floats
import low_served_inputs
import low_served_integers
import low_served_mixers
import low_served_parallel
import low_served_plain
import low_served_scores
import torch
from low_served_frame import built

FILES = (
    low_served_scores,
    low_served_plain,
    low_served_parallel,
    low_served_floats,
    low_served_integers,
    low_served_caches,
    low_served_experts,
    low_served_mixers,
    low_served_inputs,
    low_served_casts,
    low_served_codes,
)
PROGRAMS = {name: program for file in FILES for name, program in file.PROGRAMS.items()}


def truth():
    """By the stem of its record: the modules of either side that hold it, the expression of its line, and what holds it when no
    layer does. A module stands for those below it, too, but "" for the root's own code alone."""
    told = {}
    for name, program in PROGRAMS.items():
        for fault, lies in program.faults.items():
            where = sorted({lies.at, *lies.also})
            of = dict(program=name, fault=fault, where=where, line=lies.line(fault), outside=lies.outside)
            told[f"{name}-{fault}"] = dict(of, subtle=lies.subtle)
    return told


def unmatched():
    """Parts of the expressions of lines that no line of these programs matches."""
    here = pathlib.Path(__file__).parent
    lines = [line for path in here.glob("low_served_*.py") for line in path.read_text().splitlines() if "Fault(" not in line]
    for lies in truth().values():
        yield from (part for part in lies["line"].split("|") if not any(re.search(part, line) for line in lines))


def unplaced():
    """Places of faults that neither way of their program has a module at."""
    torch.set_default_dtype(torch.float32)
    for name, program in PROGRAMS.items():
        ways = [{at for at, _ in built(program, name, way)[0].named_modules()} for way in ("first", "second")]
        for fault, lies in program.faults.items():
            yield from (f"{name}-{fault} {at}" for at in (lies.at, *lies.also) if not any(at in way for way in ways))


def answered(name, way, fault, dtype):
    torch.set_default_dtype(dtype)
    served, requests = built(PROGRAMS[name], name, way, fault)
    with torch.no_grad():
        return served.serve(requests).double()


def distance(one, other):
    return float((one - other).norm() / other.norm())


def verdict(lies, moved, ratio):
    """Whether a fault moves the function, and by as much as it is said to."""
    return moved > 1e-6 and (2 <= ratio < 10 if lies.subtle else ratio >= 10)


def confirm(names):
    wrong, ratios = 0, []
    for told in [*(f"no line reads {part}" for part in unmatched()), *(f"no module at {at}" for at in unplaced())]:
        print("WRONG ", told)
        wrong += 1
    for name in names or PROGRAMS:
        first, second = ({d: answered(name, way, None, d) for d in (torch.float64, torch.float32)} for way in ("first", "second"))
        far, gap = (distance(second[d], first[d]) for d in (torch.float64, torch.float32))
        good = far < 1e-9 and gap < 0.1
        wrong += not good
        print("%-6s %.1e  gap %.1e  %s" % ("right" if good else "WRONG", far, gap, name))
        for fault, lies in PROGRAMS[name].faults.items():
            moved, effect = (distance(answered(name, "second", fault, d), second[d]) for d in (torch.float64, torch.float32))
            good = verdict(lies, moved, effect / gap)
            wrong += not good
            ratios.append(effect / gap)
            told = "right" if good else "WRONG", moved, effect, ratios[-1], fault, " (subtle)" if lies.subtle else ""
            print("%-6s %.1e    %.1e  %6.1f  %s%s" % told)
    ratios = torch.tensor(ratios)
    print(
        f"{len(names or PROGRAMS)} programs, {len(ratios)} faults, {int((ratios < 10).sum())} below 10, {int((ratios < 20).sum())} below 20, median ratio {ratios.median():.0f}, {wrong} wrong"
    )
    sys.exit(wrong > 0)


def record(out, name, way, fault):
    import lastbit.torch

    served, requests = built(PROGRAMS[name], name, way, fault)
    with torch.no_grad(), lastbit.torch.capture(out, level="ops") as cap, cap.step():
        served.serve(requests)


def main():
    torch.set_num_threads(1)
    if sys.argv[1] == "--truth":
        print(json.dumps(truth(), indent=1))
    elif sys.argv[1] == "--confirm":
        confirm(sys.argv[2:])
    else:
        for name in sys.argv[3:] or PROGRAMS:
            for way, fault in (("first", None), *(("second", fault) for fault in (None, *PROGRAMS[name].faults))):
                record(f"{sys.argv[2]}/{name}-{fault or way}.lb", name, way, fault)


if __name__ == "__main__":
    main()
