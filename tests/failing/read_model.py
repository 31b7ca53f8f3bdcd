"""A program that reads a capture by `import lastbit`, as a server of runs (forked_runs.py).

    read_model.py CAPTURE

A run prints a digest of all that the capture holds. Where the library reports an error it prints the error's status alone."""

import hashlib
import sys

import lastbit
from forked_runs import serve

PATH = sys.argv[1]


def read_all():
    seen = hashlib.sha256()
    with lastbit.open(PATH) as capture:
        for rank in capture.ranks:
            seen.update(repr([(name, capture.table(name, rank)) for name in sorted(capture.tables(rank))]).encode())
        for number in capture.steps:
            step = capture.step(number)
            seen.update(repr([(op.name, op.layer, op.phase, str(op.line), len(op.arguments)) for op in step.ops]).encode())
            for value in step.values:
                seen.update(f"{value.name} {value.dtype} {value.shape} {value.digest} {value.statistics} {value.kept}".encode())
                seen.update(value.tobytes() if value.kept else b"")
    return seen.hexdigest()


def task():
    try:
        print(read_all())
    except lastbit.Error as error:
        print("error", error.status)


read_all()  # what is loaded late is there when the runs begin
serve(task)
