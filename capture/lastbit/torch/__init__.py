"""Recording from inside a PyTorch program.

    import lastbit.torch
    with lastbit.torch.capture("run.lb", level="sources") as cap:
        for n, batch in enumerate(loader):
            with cap.step(n, shard=batch.shard):
                loss = model(batch); loss.backward(); opt.step(); opt.zero_grad()
                cap.scalar("loss", loss)

A program that `lastbit record` runs needs none of this. A capture never changes what the program computes, and never
raises: when recording cannot go on it stops, says so once on stderr, and the program goes on.
"""

import contextlib
import os
import sys

from .shards import shard
from .taps import tap

__all__ = ["autostart", "capture", "fingerprint", "load_fingerprint", "merge_fingerprints", "shard", "tap", "trigger"]


def autostart(note=None):
    """Called once torch is imported in a process that `lastbit record` runs; the environment says what to record. Raises
    when it cannot start: the caller says so. `note(kind, text)` tells `lastbit record` what it says when nothing was recorded."""
    from . import session as sessions

    get = os.environ.get
    sessions.start(
        {
            "out": os.environ["LASTBIT_OUT"],
            "level": get("LASTBIT_LEVEL") or "auto",
            "steps": get("LASTBIT_STEPS") or "",
            "ranks": get("LASTBIT_RANKS") or "",
            "keep": get("LASTBIT_KEEP") or "",
            "layers": get("LASTBIT_LAYERS") or "",
            "budget": int(get("LASTBIT_BUDGET") or 0),
            "ring": int(get("LASTBIT_RING") or 0),
            "like": get("LASTBIT_LIKE") or "",
            "sync": get("LASTBIT_SYNC") or "",
            "close_each": int(get("LASTBIT_CLOSE_EACH") or 0),
            "compiled": get("LASTBIT_COMPILED") or "eager",
            "step_at": get("LASTBIT_STEP_AT") or "",
            "lines": get("LASTBIT_LINES") != "0",
            "receipt_host": get("LASTBIT_RECEIPT_HOST") == "1",
            "poison": get("LASTBIT_POISON") == "1",
            "note": note,
        }
    )


class _Capture:
    def __init__(self, session, steps):
        self._session = session
        self._manual = steps

    @contextlib.contextmanager
    def step(self, number=None, shard=None):
        """One training iteration, or one forward pass; without it steps are found as `lastbit record` finds them."""
        session = self._session
        if not session.manual:
            session.manual = True
            _quietly(session, session.functions.are_told)
        _quietly(session, lambda: session.begin_step(None, number, shard))
        complete = False
        try:
            yield self
            complete = True
        finally:
            _quietly(session, lambda: session.end_step(complete))

    def scalar(self, name, value):
        """A number to find again: a float or a one-element tensor."""
        self._session.scalar(name, value)

    def trigger(self, why="call"):
        """Writes what the flight recorder holds."""
        self._session.trigger(why)


def _quietly(session, action):
    try:
        if not session.dead:
            action()
    except Exception as error:
        session.fail(error)


@contextlib.contextmanager
def capture(
    folder,
    level="auto",
    steps="",
    ranks="",
    keep="",
    layers="",
    budget=0,
    ring=0,
    compiled="eager",
    step_at="",
    like="",
    lines=True,
    receipt_host=False,
    poison=False,
    sync="close",
    close_each=0,
):
    """Records into `folder` (NAME.lb); arguments are those of `lastbit record`. `like`: another capture, of whose steps the level and the
    choice of ops and layers are taken. `lines`: of the program's code, one for each op, with its text.
    `receipt_host`: the machine's name in the receipt. `poison`: memory that ops leave unwritten is filled with NaN. `sync`: what a power
    cut may take: "step", "close" or "never" (see `lastbit record --sync`). `close_each`: an archive is closed after so many steps, and another begun."""
    from . import session as sessions

    session = None
    try:
        settings = dict(
            out=str(folder),
            level=level,
            steps=steps,
            ranks=ranks,
            keep=keep,
            layers=layers,
            budget=budget,
            ring=ring,
            compiled=compiled,
            step_at=step_at,
            lines=lines,
            receipt_host=receipt_host,
            poison=poison,
            like=os.path.abspath(like) if like else "",
            sync=sync,
            close_each=close_each,
        )
        session = sessions.start(settings)
    except Exception as error:
        print("lastbit: nothing is recorded: %s" % sessions.said("%s: %s" % (type(error).__name__, error)), file=sys.stderr)
        session = _Nothing()
    try:
        yield _Capture(session, None)
    finally:
        session.finish()


class _Nothing:
    """Stands in for a session that could not start."""

    dead, manual = True, False

    def scalar(self, name, value):
        pass

    def trigger(self, why):
        pass

    def finish(self):
        pass


def trigger(why="call"):
    """Writes what the flight recorder of this process holds; does nothing when none runs."""
    from . import session as sessions

    if sessions.current is not None:
        sessions.current.trigger(why)


def fingerprint(model, rounded=False, threads=None):
    """128 bits of each tensor of a model (parameters and persistent buffers) or a state dict, as `lastbit fingerprint` prints them of files.

        sent = lastbit.torch.fingerprint(model)         # FSDP2: this rank's parts, by their places
        sent = sent.all_reduce()                        # of all ranks; where there are no ranks, not needed
        answer = sent.compare(lastbit.torch.load_fingerprint("server.json"))
        print(answer.verdict, [m.tensor for m in answer.matches if m.finding])

    `rounded`: of f32 and f64 tensors also of their numbers as bf16 and f16, so that a server that rounds is known from the tables alone.
    `threads`: how many hash, as many as torch uses and 8 at most if none is given. Gives a table (torch/fingerprints.py): rows by name,
    `compare`, `save`, `all_reduce`. Raises lastbit.Error where the library is missing."""
    from . import fingerprints

    return fingerprints.fingerprint(model, rounded, threads)


def load_fingerprint(path):
    """A table that `save` or `lastbit fingerprint --json FILE` wrote."""
    from . import fingerprints

    return fingerprints.load(path)


def merge_fingerprints(tables):
    """One table of those of all ranks (tables or paths), without a process group: parts add up, and names of one rank alone are kept."""
    from . import fingerprints

    return fingerprints.merge(tables)


# Where the program imports this before torch, the launcher hears of torch while this is half done, and waits.
if "when_whole" in globals():
    globals().pop("when_whole")(sys.modules[__name__])
