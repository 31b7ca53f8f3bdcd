"""Collectives: group, operation, sequence number, each rank's input before and output after completion.

Collectives are waited for, which changes what overlaps but no bits. Point-to-point and functional operations that are not
complete when their call returns are read later, when their storage is next used or the step ends (the program must have
waited by then). Until then we hold the storages, not the tensors.
"""
import ctypes

import torch

from .encoding import pack
from .library import DEFER, END

_REDUCE = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum", "unused")


class Collectives:
    def __init__(self, session):
        self.session = session
        self.sequence = {}
        self.waiting = []  # (work, storages)

    def end(self, plan, begun, args, kwargs, out, words):
        session, wire = self.session, self.session.wire
        group, reduce, work = self._describe(args, kwargs, out)
        if work is not None and plan.base not in ("send", "recv_", "recv_any_source_"):
            # Views of the output are taken before the program waits (DDP's buckets): there is no later moment to read it.
            work.wait()
        later = plan.name.startswith("_c10d_functional") or (work is not None and not work.is_completed())
        row = wire.check(wire.library.lb_wire_op(wire.handle, DEFER if later else END, begun, pack(words), len(words)))
        if later and work is not None:
            self.waiting.append((work, [t.untyped_storage() for t in _tensors((args, kwargs))]))
        name, ranks = self._members(group)
        number = self.sequence.get(name, 0)
        self.sequence[name] = number + 1
        array = (ctypes.c_int32 * max(1, len(ranks)))(*ranks)
        wire.check(wire.library.lb_wire_collective(
            wire.handle, row, name.encode(), (reduce or "").encode(), number, ctypes.cast(array, ctypes.c_void_p), len(ranks)))

    def _describe(self, args, kwargs, out):
        """The process group (or its name), the reduction, the Work."""
        dist = torch.distributed
        group = reduce = work = None
        for a in list(args) + list((kwargs or {}).values()):
            if isinstance(a, torch.ScriptObject):
                kind = str(a._type())
                try:
                    if kind.endswith("ProcessGroup"):
                        group = dist.ProcessGroup.unbox(a)
                    elif kind.endswith("ReduceOp"):
                        number = int(a.op())
                        reduce = _REDUCE[number] if 0 <= number < len(_REDUCE) else str(number)
                except Exception as error:  # private entry points: the op itself is recorded all the same
                    self.session.noticed("degraded", "a collective's group or reduction could not be read: %s" % error)
            elif isinstance(a, str):
                if a.lower() in _REDUCE:
                    reduce = a.lower()
                else:
                    group = a
        for o in _leaves(out):
            if isinstance(o, torch.ScriptObject):
                try:
                    work = dist.Work.unbox(o)
                except Exception:
                    pass
        return group, reduce, work

    def _members(self, group):
        dist = torch.distributed
        try:
            if isinstance(group, str):
                from torch.distributed.distributed_c10d import _resolve_process_group

                group = _resolve_process_group(group)
            if group is None:
                return "", []
            return str(group.group_name), [int(r) for r in dist.get_process_group_ranks(group)]
        except Exception as error:
            self.session.noticed("degraded", "the ranks of a group could not be read: %s" % error)
            return str(group), []

    def step_closed(self):
        """What is complete by now is read by the recorder at the end of the step; what is not is forgotten. Returns what
        must stay alive until then: the program may have dropped a result that it never looked at."""
        session, held = self.session, self.waiting
        for work, storages in self.waiting:
            if not work.is_completed():
                numbers = [session.encoder.numbers.pop(s._cdata, None) for s in storages]
                numbers = [n for n in numbers if n]
                session.wire.library.lb_wire_forget(session.wire.handle, pack(numbers), len(numbers))
                session.noticed("skipped", "a collective was not complete when its step ended: its result was not read")
        self.waiting = []
        return held


def _leaves(x):
    if isinstance(x, (list, tuple)):
        for y in x:
            yield from _leaves(y)
    else:
        yield x


def _tensors(x):
    if isinstance(x, dict):
        x = list(x.values())
    for y in _leaves(x):
        if isinstance(y, dict):
            yield from _tensors(y)
        elif isinstance(y, torch.Tensor):
            yield y
