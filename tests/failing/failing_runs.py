"""Runs of a program in which one call fails: the server of failing_host.c, driven line by line.

with Server([LASTBIT, "ls", capture], folder) as server:
    whole = server.run()
    for outcome in server.sweep("read", some=8): ...
"""

import ctypes
import dataclasses
import os
import pathlib
import subprocess

FOR_GOOD = 1 << 40
SAME_ADDRESSES = 0x0040000  # personality(2): programs lie where they lay before, so that places of several servers compare
SECONDS = 20  # a run that takes longer hangs
KINDS = "alloc mmap open read write sync close rename unlink truncate seek stat folder path thread process".split()


@dataclasses.dataclass
class Outcome:
    """`code` is the exit code, negative for a signal; `calls` counts those of the kind, `failed` those that failed."""

    kind: str
    first: int
    for_good: bool
    code: int
    calls: int
    failed: int
    out: bytes
    err: bytes

    def __str__(self):
        where = f"{self.kind} {self.first}{' and all after it' if self.for_good else ''}"
        return f"{where}: code {self.code}\n{self.err.decode(errors='replace')[-600:]}"


class Server:
    """`places`: sweep_places is to be asked. `pipes` is the variable that names the pipes: one that failing_host.c does not know where the program is a server of its own."""

    def __init__(self, command, folder, library, only=None, environment=None, pipes="FAILING_PIPES", cwd=None, places=False):
        self.out, self.err, self.ways = (pathlib.Path(folder) / f"failing.{name}" for name in ("out", "err", "places"))
        asked, answered = os.pipe(), os.pipe()
        variables = {
            **os.environ,
            "LD_PRELOAD": str(library),
            "FAILING_OUT": str(self.out),
            "FAILING_ERR": str(self.err),
            **({"FAILING_PLACES": str(self.ways)} if places else {}),
            pipes: f"{asked[0]} {answered[1]}",
        }
        # With these a command does not start itself once more, and out of our hands.
        variables |= {
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "passive",
            "OMP_STACKSIZE": "2M",
            **({"FAILING_ONLY": only} if only else {}),
            **(environment or {}),
        }

        words = [str(word) for word in command]
        how = dict(preexec_fn=lambda: ctypes.CDLL(None).personality(SAME_ADDRESSES)) if places else {}
        pipe_ends = (asked[0], answered[1])
        self.process = subprocess.Popen(words, env=variables, cwd=cwd or folder, stdin=subprocess.DEVNULL, pass_fds=pipe_ends, **how)
        os.close(asked[0]), os.close(answered[1])
        self.ask, self.answers = os.fdopen(asked[1], "w"), os.fdopen(answered[0])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ask.close()
        self.process.wait(timeout=2 * SECONDS)
        self.answers.close()

    def run(self, kind="alloc", first=0, for_good=False):
        self.ask.write(f"{kind} {first} {FOR_GOOD if for_good else first} {SECONDS}\n")
        self.ask.flush()
        line = self.answers.readline()
        assert line, f"the server ended: {kind} {first}"
        status, calls, failed = map(int, line.split())
        code = os.waitstatus_to_exitcode(status)
        return Outcome(kind, first, for_good, code, calls, failed, self.out.read_bytes(), self.err.read_bytes())

    @staticmethod
    def chosen(calls, some=None):
        """n = 1, 2, 3 …; or `some` of them: half are the first ones, the others are spread over all."""
        if not some or some >= calls:
            return range(1, calls + 1)
        step = (calls - some // 2) / (some - some // 2)
        return [*range(1, some // 2 + 1), *(some // 2 + 1 + int(i * step) for i in range(some - some // 2))]

    def sweep(self, kind, for_good, some=None, clean=lambda: None):
        """Outcomes in which a call failed, of the n that `chosen` gives. `clean` removes what the run before has written."""
        clean()
        calls = self.run(kind).calls
        for n in self.chosen(calls, some):
            clean()
            outcome = self.run(kind, n, for_good)
            if outcome.failed:
                yield outcome

    def sweep_places(self, kind, tried, clean=lambda: None):
        """Outcomes in which a call failed, singly and for good, at each place that is not in `tried`, which grows. The server has `places`."""
        clean()
        self.run(kind)
        for line in self.ways.read_text().splitlines():
            n, way = map(int, line.split())
            if (kind, way) in tried:
                continue
            tried.add((kind, way))
            for for_good in (False, True):
                clean()
                outcome = self.run(kind, n, for_good)
                if outcome.failed:
                    yield outcome
