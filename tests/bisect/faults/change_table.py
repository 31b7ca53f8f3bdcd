"""Kinds of faults and of innocent changes by name; change_catalogue.py has all of them in it."""

import collections

Change = collections.namedtuple("Change", "name family innocent make early fits shared")
TABLE = {}


def fault(family, early=False, fits=lambda case: True, shared=False):
    """A function (run, draw) that plants a fault and says the truth about it; raises `Unfit` where the run has no place for it.
    `shared`: the reference runs it, too, with `run.changed` false: both programs have something, and one has it wrong."""

    def enter(make):
        name = make.__name__.replace("_", "-")
        TABLE[name] = Change(name, family, False, make, early, fits, shared)
        return make

    return enter


def innocent(early=False, fits=lambda case: True, shared=False):
    def enter(make):
        name = make.__name__.replace("_", "-")
        TABLE[name] = Change(name, "innocent", True, make, early, fits, shared)
        return make

    return enter


class Unfit(Exception):
    """This run has no place for that change."""


def truth(step, phase, exact, near=(), verdict=("diverged",), axis=(), inside=True, delay=0, fails=None, moments=(), same=False, ranks=()):
    """`exact`: module paths or parameter names that count as the place (`input:*`: whatever begins so); `near`: those that count in
    part. `inside`: the place is a module whose result is the first to part. `delay`: by how many steps it may be seen later.
    `same`: exact values agree, the damage is one of rounding. `ranks`: the ranks on which it is.
    `moments`: other (step, phase) that name the same moment: what stands between two steps belongs to either."""
    return {
        "step": step,
        "phase": phase,
        "exact": sorted(set(exact)),
        "near": sorted(set(near)),
        "verdict": list(verdict),
        "axis": list(axis),
        "inside": inside,
        "delay": delay,
        "fails": fails,
        "moments": [[step, phase], *map(list, moments)],
        "same": same,
        "ranks": list(ranks),
    }
