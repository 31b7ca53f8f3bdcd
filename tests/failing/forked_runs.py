"""A Python program as a server of runs (failing_runs.Server with pipes="MODEL_PIPES"): each run is a fork of a process that has loaded all it needs.

Calls of the libraries that FAILING_ONLY names fail as the server is told; everything else of the program has what it asks for."""

import ctypes
import os
import signal
import sys
import traceback

OWN_CODE = 7
host = ctypes.CDLL(None)


def run(task, kind, first, last, seconds):
    for fd, name in ((1, "FAILING_OUT"), (2, "FAILING_ERR")):
        os.dup2(os.open(os.environ[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), fd)
    code = 1
    try:
        signal.alarm(int(seconds))
        host.failing_host_choose(kind.encode(), ctypes.c_long(int(first)), ctypes.c_long(int(last)))
        task()
        code = OWN_CODE
    except BaseException:  # of our code, or of what it did to the program
        traceback.print_exc()
    host.failing_host_choose(b"none", ctypes.c_long(0), ctypes.c_long(0))
    sys.stdout.flush()
    os._exit(code)


def serve(task):
    """Runs `task` for each line, in a fork that ends with OWN_CODE, or with 1 after an exception."""
    asked, answered = map(int, os.environ["MODEL_PIPES"].split())
    counts = (ctypes.c_long * 2)()
    with os.fdopen(asked) as lines, os.fdopen(answered, "w") as answers:
        for line in lines:
            host.failing_host_choose(b"", ctypes.c_long(0), ctypes.c_long(0))
            child = os.fork()
            if not child:
                run(task, *line.split())
            _, status = os.waitpid(child, 0)
            host.failing_host_counts(counts)
            print(status, *counts, file=answers, flush=True)
