"""Reads a capture from Python: walks the ops of its first step, compares two values, replays the step and bisects it.

    PYTHONPATH=PREFIX/lib/lastbit/python python read_capture.py run.lb

The same in C is read_capture.c. What a step, an op or a value reads belongs to the open capture; arrays stay valid."""

import sys

import lastbit


def list_layers(step):
    """The layers of a step, each with the op that runs there first."""
    last = None
    for op in step.ops:
        if op.layer and op.layer != last:
            print(f"  op {op.index:4}  {op.phase:<9} {op.layer}: {op.name}")
            last = op.layer


def compare_parameter(step):
    """The two values whose bytes were kept, which have one name's storage in two versions: before the step and after it."""
    windows = {}
    for value in step.values:
        windows.setdefault(value.storage, []).append(value)
    for before in step.values:
        if not before.name or not before.kept:
            continue
        for after in windows[before.storage]:
            if after.index < before.index or after.version == before.version or not after.kept:
                continue
            if (after.dtype, after.shape) != (before.dtype, before.shape):
                continue
            x, y = before.numpy(), after.numpy()
            nonfinite = after.statistics.nan + after.statistics.pos_inf + after.statistics.neg_inf
            print(f"{before.name}: the step changed {(x != y).sum()} of {x.size} elements, {nonfinite} are not finite")
            return
    print("no parameter was kept both before and after the step")


def main(path):
    with lastbit.open(path) as capture:
        step = capture.step()
        print(f"step {step.number}: {len(step.ops)} ops, {len(step.values)} values")
        list_layers(step)
        compare_parameter(step)
        replayed = capture.replay(steps=step.number)
        print(f"replay: {replayed.bitwise} of {replayed.ops.total} ops gave the recorded bits")
        found = capture.bisect()
        if not found.culprits:
            print("bisect: nothing is to blame")
        for culprit in found.culprits:
            print(f"bisect: {culprit.axis}: {culprit.layer} {culprit.op}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: read_capture.py CAPTURE")
    try:
        main(sys.argv[1])
    except lastbit.Error as error:
        print(f"read_capture: {error}", file=sys.stderr)
        sys.exit(128)
