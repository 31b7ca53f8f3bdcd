"""Servers of small language models as two people write them, with single faults in one place of the second way.

    python served_ways.py --all FOLDER [NAME…]  # records NAME-first.lb, NAME-second.lb and NAME-FAULT.lb
    python served_ways.py --confirm [NAME…]    # in float64: both ways agree to 1e-9, and a fault moves more than 1e-6
    python served_ways.py --truth              # JSON: where each fault lies, and what its line reads

A record is one step without gradient: the serving of one list of requests, prefill and decoding."""

import json
import pathlib
import re
import sys

import served_ways_batches
import served_ways_caches
import served_ways_layers
import served_ways_requests
import served_ways_steps
import served_ways_weights
import torch
from served_ways_frame import built

FILES = served_ways_caches, served_ways_batches, served_ways_weights, served_ways_layers, served_ways_requests, served_ways_steps
PROGRAMS = {name: program for file in FILES for name, program in file.PROGRAMS.items()}


def truth():
    """By the stem of its record: the modules of either side that hold it, the expression of its line, and what holds it when no
    layer does. A module stands for those below it, too, but "" for the root's own code alone."""
    told = {}
    for name, program in PROGRAMS.items():
        for fault, lies in program.faults.items():
            where = sorted({lies.at, *lies.also})
            told[f"{name}-{fault}"] = dict(program=name, fault=fault, where=where, line=lies.line(fault), outside=lies.outside)
    return told


def unmatched():
    """Parts of the expressions of lines that no line of these programs matches."""
    here = pathlib.Path(__file__).parent
    lines = [line for path in here.glob("served_ways_*.py") for line in path.read_text().splitlines() if "Fault(" not in line]
    for lies in truth().values():
        yield from (part for part in lies["line"].split("|") if not any(re.search(part, line) for line in lines))


def answered(name, way, fault, dtype):
    torch.set_default_dtype(dtype)
    served, requests = built(PROGRAMS[name], name, way, fault)
    return served, requests


def wide(name, way, fault=None):
    served, requests = answered(name, way, fault, torch.float64)
    with torch.no_grad():
        return served.serve(requests)


def ways(names):
    for name in names or PROGRAMS:
        yield name, "first", None
        for fault in (None, *PROGRAMS[name].faults):
            yield name, "second", fault


def confirm(names):
    wrong = 0
    for part in unmatched():
        print("WRONG  no line reads", part)
        wrong += 1
    for name, way, fault in ways(names):
        answer = wide(name, way, fault)
        if way == "first":
            right = answer
            continue
        far = float((answer - right).norm() / right.norm())
        good = far > 1e-6 if fault else far < 1e-9
        wrong += not good
        print("%-6s %.1e %s %s" % ("right" if good else "WRONG", far, name, fault or ""))
    sys.exit(wrong > 0)


def record(out, name, way, fault):
    import lastbit.torch

    served, requests = answered(name, way, fault, torch.float32)
    with torch.no_grad(), lastbit.torch.capture(out, level="ops") as cap, cap.step():
        served.serve(requests)


def main():
    torch.set_num_threads(1)
    if sys.argv[1] == "--truth":
        print(json.dumps(truth(), indent=1))
    elif sys.argv[1] == "--confirm":
        confirm(sys.argv[2:])
    else:
        for name, way, fault in ways(sys.argv[3:]):
            record(f"{sys.argv[2]}/{name}-{fault or way}.lb", name, way, fault)


if __name__ == "__main__":
    main()
