"""Collectives: group, operation, sequence number, each rank's input before and output after completion.

Collectives are waited for, functional ones too, which changes what overlaps but no bits. Point-to-point operations that are not
complete when their call returns are read later, when their storage is next used or the step ends (the program must have
waited by then). Until then we hold the storages, not the tensors.

Below all of them may be NCCL, and below that our own library: it makes no ops of the calls that are ops here, and says in which
order NCCL reduced.

Custom ops of serving stacks that are collectives say less: the name of a group that the stack keeps, a list of ranks, or nothing.
"""

import sys

import torch

from . import library

# Where serving stacks keep their groups: `_groups` by name, and get_tp_group() for the ops that name none.
_KEEPERS = ("vllm.distributed.parallel_state", "sglang.srt.distributed.parallel_state")
_SENDERS = {"broadcast_": 0, "allreduce_": 0, "allreduce_coalesced_": 0, "reduce_": 0, "allgather_": 1, "_allgather_base_": 1, "send": 0}
_MESSAGES = ("send", "recv_", "recv_any_source_")
_REDUCE = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum", "unused")


class Collectives:
    def __init__(self, session):
        self.session = session
        self.sequence = {}
        self.waiting = []  # (work, storages)
        self.nccl = None
        self.join()

    def run(self, func, args, kwargs):
        """Called by the dispatch mode in place of the op."""
        session, kwargs, begun = self.session, kwargs or {}, None
        try:
            self.vouch(func, args)
            begun = session.native.begin(func, args, kwargs)
        except Exception as error:
            session.fail(error)
        if self.nccl is None:
            self.join()  # bindings open NCCL when they are first used
        self.order()  # of a call that was no op
        try:
            out = func(*args, **kwargs)
        except Exception:
            if begun is not None and session.live:
                session.native.failed_op(begun)
            raise
        if begun is not None and session.live:
            try:
                out = self.end(func, begun, args, kwargs, out)
            except Exception as error:
                session.fail(error)
        return out

    def vouch(self, func, args):
        """What is sent was written. DDP fills integers (the order of its buckets) in C++, past every op."""
        base = func._schema.name.partition("::")[2]
        if base not in _SENDERS or (base == "broadcast_" and not self.is_root(args)):
            return
        for t in _tensors(args[_SENDERS[base]]):
            if not t.is_floating_point() and not t.is_complex():
                self.session.native.vouch(t)

    def is_root(self, args):
        group, _, _ = self._describe(args, {}, None)
        _, ranks = self._members(group)
        return len(args) > 2 and args[2] < len(ranks) and ranks[args[2]] == torch.distributed.get_rank()

    def end(self, func, begun, args, kwargs, out):
        """Records the collective; gives what the program gets."""
        native, order = self.session.native, self.order()
        space, _, base = func._schema.name.partition("::")
        stack = space not in ("c10d", "_c10d_functional", "_c10d_functional_autograd")
        group, reduce, work = (None, "sum", None) if stack else self._describe(args, kwargs, out)
        try:
            if work is not None and base not in _MESSAGES:
                # Views of the output are taken before the program waits (DDP's buckets): there is no later moment to read it.
                work.wait()
                if not work.is_completed() and _is_of_host((args, kwargs)):
                    out = _waited_for(out)
                work = None
            if space.startswith("_c10d_functional"):
                for t in _tensors(out):
                    torch.ops._c10d_functional.wait_tensor(t)
        except RuntimeError as error:  # another rank is gone: the program learns it when it waits itself
            native.failed_op(begun)
            self.session.noticed("collective", "%s did not complete: %s" % (func._schema.name, error))
            return out
        later = work is not None and not work.is_completed()
        row = native.end(begun, out, later)
        if later and work is not None:
            self.waiting.append((work, [t.untyped_storage() for t in _tensors((args, kwargs))]))
        name, ranks = self._of_stack(func, args, kwargs) if stack else self._members(group)
        # Messages are counted apart: not all ranks of a group have a part in each, and they number their collectives alike.
        counted = (name, base in _MESSAGES)
        number = self.sequence.get(counted, 0)
        self.sequence[counted] = number + 1
        native.collective(row, name, reduce, number, ranks, order)
        return out

    def join(self):
        self.nccl = library.beneath_nccl()
        if self.nccl is not None:
            self.nccl.lb_nccl_join(1)

    def order(self):
        """How NCCL reduced the last call of this thread, as `--order` spells it; None where there is no NCCL, or it did not say."""
        return (self.nccl.lb_nccl_last_order().decode() if self.nccl is not None else "") or None

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

    def _of_stack(self, func, args, kwargs):
        """Where neither the op nor its stack says who takes part, all ranks are taken to."""
        given = {a.name: value for a, value in zip(func._schema.arguments, args)}
        given.update(kwargs or {})
        ranks, name = given.get("group"), given.get("group_name")
        if isinstance(ranks, (list, tuple)):
            return "ranks " + ",".join(map(str, ranks)), [int(r) for r in ranks]
        for keeper in filter(None, map(sys.modules.get, _KEEPERS)):
            try:
                group = keeper.get_tp_group() if name is None else keeper._groups[name]()
                return str(group.unique_name), [int(r) for r in group.ranks]
            except Exception:
                pass  # the other one's
        dist = torch.distributed
        try:
            if name is not None:
                from torch.distributed.distributed_c10d import _resolve_process_group

                return name, [int(r) for r in dist.get_process_group_ranks(_resolve_process_group(name))]
        except Exception:
            pass  # a name of the stack's own
        ranks = list(range(dist.get_world_size())) if dist.is_available() and dist.is_initialized() else []
        if name is not None:
            self.session.noticed(
                "degraded", "nothing says who is in the group %s of %s: all %d ranks were taken to be" % (name, func._schema.name, len(ranks))
            )
        return name or "", ranks

    def step_closed(self):
        """What is complete by now is read by the recorder at the end of the step; what is not is forgotten. Returns what
        must stay alive until then: the program may have dropped a result that it never looked at."""
        session, held = self.session, self.waiting
        for work, storages in self.waiting:
            if not work.is_completed():
                for storage in storages:
                    session.native.forget(storage)
                session.noticed("skipped", "a collective was not complete when its step ended: its result was not read")
        self.waiting = []
        return held


def _is_of_host(x):
    """Waiting orders the device's streams and not the host: of a device the program waits for its own."""
    return all(t.is_cpu for t in _tensors(x))


def _waited_for(out):
    """gloo's reduce-scatter copies its result out inside wait(), each time anew, and is never complete. A second wait would be
    seen as a copy from an unknown buffer, and cut a replayed chain: the program gets a Work with nothing left to do."""
    work = getattr(torch._C._distributed_c10d, "FakeWork", None)
    if work is None:
        return out
    done = work().boxed()
    if isinstance(out, (list, tuple)):
        return type(out)(done if isinstance(o, torch.ScriptObject) else o for o in out)
    return done if isinstance(out, torch.ScriptObject) else out


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
