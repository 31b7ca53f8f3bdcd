"""Where an op belongs: module scopes, calls, phases, autograd nodes.

Forward: global module hooks keep a stack per thread (global, because a hook on a module changes what some modules run).
Backward: at each hook the autograd sequence number is noted; a node made in between carries a number of that interval, so
the node that runs tells the module that made it.
"""
import bisect
import sys
import threading
import weakref

import torch

from . import library
from .encoding import pack

_WRAPPERS = {"DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "OptimizedModule", "EagerModule"}
_PREFIXES = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_NO_NODE = 1 << 63


def clean(path):
    """A module path without wrapper prefixes."""
    return ".".join(p for p in path.split(".") if p not in _PREFIXES)


class _Thread(threading.local):
    """State of one thread of the program."""

    def __init__(self):
        self.number = None
        self.stack = [(0, 0, None)]  # scope, call, module
        self.marks = [-1]  # sequence numbers, ascending
        self.places = [(0, 0)]  # the place that nodes from there on belong to
        self.base = 1  # stack depth where backward began; deeper means recompute
        self.backward = 0
        self.ran_node = False
        self.memo = {}


class Modules:
    def __init__(self, session):
        self.session = session
        self.entries = {}  # id(module) -> (weak reference, path, class name)
        self.scopes = {}  # path -> number in the recorder that is open
        self.roots = []  # weak references to outermost modules, in order of their first call
        self.prefixes = {}  # id(root) -> path prefix
        self.owners = {}  # id(parameter) -> scope path
        self.thread = _Thread()
        self.threads = 0
        self.handles = []
        self.node = getattr(torch._C, "_current_autograd_node", None)
        self.sequence = getattr(torch.autograd, "_get_sequence_nr", None) or getattr(torch._C._autograd, "_get_sequence_nr", None)
        if self.node is None or self.sequence is None:
            session.degraded("torch has no _current_autograd_node or _get_sequence_nr: backward ops are not attributed to modules")
            self.node = self.sequence = None
        self.where = self._make_where()

    def install(self):
        hooks = torch.nn.modules.module
        self.handles.append(hooks.register_module_forward_pre_hook(self.enter))
        self.handles.append(hooks.register_module_forward_hook(self.leave, always_call=True))

    def remove(self):
        for handle in self.handles:
            handle.remove()
        self.handles = []

    # ---- names

    def reset(self):
        """Another recorder: numbers of scopes are given anew."""
        self.scopes = {}

    def number(self, path, class_name):
        number = self.scopes.get(path)
        if number is None:
            parent = 0
            if "." in path:
                parent = self.number(path.rpartition(".")[0], None)
            number = self.session.wire.scope(path, class_name, parent)
            if number == 0xFFFFFFFF:
                raise MemoryError("no memory for a scope")
            self.scopes[path] = number
        elif class_name and (path, class_name) not in self.scopes:
            self.session.wire.scope(path, class_name, 0)  # a parent that was met before its class
            self.scopes[(path, class_name)] = number
        return number

    def add_root(self, module):
        """Names everything under an outermost module. The first that has parameters is "", others go by their class."""
        unwrapped = module
        while type(unwrapped).__name__ in _WRAPPERS and hasattr(unwrapped, "module"):
            unwrapped = unwrapped.module
        holds = next(module.parameters(), None) is not None
        taken = set(self.prefixes.values())
        prefix = "" if holds and "" not in taken else type(unwrapped).__name__
        base, n = prefix, 1
        while prefix in taken:
            n += 1
            prefix = "%s#%d" % (base or type(unwrapped).__name__, n)
        self.prefixes[id(module)] = prefix
        self.roots.append(weakref.ref(module))
        self.add_tree(module, prefix)

    def add_tree(self, module, prefix):
        for name, child in module.named_modules():
            path = clean(name)
            path = prefix + ("." if prefix and path else "") + path
            known = self.entries.get(id(child))
            if known is not None and known[0]() is child:
                continue
            class_name = type(child).__name__
            self.entries[id(child)] = (weakref.ref(child), path, None if class_name in _WRAPPERS else class_name)

    def entry(self, module):
        known = self.entries.get(id(module))
        if known is not None and known[0]() is module:
            return known
        for ref in self.roots:  # a module that was added since (adapters)
            root = ref()
            if root is not None:
                self.add_tree(root, self.prefixes.get(id(root), ""))
        known = self.entries.get(id(module))
        if known is not None and known[0]() is module:
            return known
        known = self.entries[id(module)] = (weakref.ref(module), type(module).__name__, type(module).__name__)
        return known

    def is_root(self, module):
        return any(ref() is module for ref in self.roots)

    # ---- hooks

    def enter(self, module, args):
        session = self.session
        if session.dead:
            return
        try:
            thread = self.thread
            if len(thread.stack) == 1:
                session.outermost(module, args)
            if not session.live:
                thread.stack.append((0, 0, module))
                return
            _, path, class_name = self.entry(module)
            scope = self.number(path, class_name)
            recompute = thread.backward and len(thread.stack) >= thread.base
            values = (args, _keyword_arguments(module))
            w = session.encoder.tensors(values)
            call = session.wire.library.lb_wire_enter(session.wire.handle, scope, bool(recompute), pack(w), len(w))
            session.wire.check(call)
            thread.stack.append((scope, call, module))
            self.mark(thread, scope, call)
        except Exception as error:
            self.thread.stack.append((0, 0, module))
            session.fail(error)

    def leave(self, module, args, output):
        session = self.session
        if session.dead:
            return
        try:
            thread = self.thread
            while len(thread.stack) > 1:
                scope, call, left = thread.stack.pop()
                if left is module:
                    break
            else:
                return
            if session.live and session.step_open:
                recompute = thread.backward and len(thread.stack) >= thread.base
                w = session.encoder.tensors(output)
                session.wire.check(session.wire.library.lb_wire_leave(
                    session.wire.handle, scope, call, bool(recompute), pack(w), len(w)))
                if session.routing is not None:
                    session.routing.left(module, scope, call, output)
                self.mark(thread, *thread.stack[-1][:2])
            if len(thread.stack) == 1:
                session.outermost_left(module, output)
        except Exception as error:
            session.fail(error)

    def mark(self, thread, scope, call):
        if self.sequence is None:
            return
        number = self.sequence()
        if thread.marks[-1] == number:  # no node was made in between
            thread.places[-1] = (scope, call)
        else:
            thread.marks.append(number)
            thread.places.append((scope, call))
        thread.memo.clear()

    def step_closed(self):
        """Marks of two steps stay: a graph may live on into the next."""
        thread = self.thread
        keep = len(thread.marks) - getattr(thread, "kept", 0)
        del thread.marks[: max(0, len(thread.marks) - max(keep, 1))]
        del thread.places[: max(0, len(thread.places) - max(keep, 1))]
        thread.kept = len(thread.marks)
        thread.memo.clear()

    # ---- where an op belongs

    def thread_number(self, thread):
        if threading.current_thread() is threading.main_thread():
            thread.number = 0
        else:
            self.threads += 1
            thread.number = min(self.threads, 255)
        return thread.number

    def _make_where(self):
        session, local, node_of, sequence = self.session, self.thread, self.node, self.sequence
        grad_enabled = torch.is_grad_enabled
        forward, backward, optimizer, communication, other = range(5)

        def where(plan):
            """phase, flags, scope, call, node, node name, thread"""
            thread = local
            stack = thread.stack
            number = thread.number
            if number is None:
                number = self.thread_number(thread)
            node = node_of() if node_of is not None else None
            scope, call, _ = stack[-1]
            if node is None:
                if thread.backward:
                    phase = communication if thread.ran_node else backward
                elif len(stack) > 1:
                    phase = forward
                elif session.optimizer_depth:
                    phase = optimizer
                else:
                    phase = forward if grad_enabled() else other
                if plan.collective:
                    phase = communication
                return phase, 0, scope, call, (sequence() if sequence is not None else -1), 0, number
            thread.ran_node = True
            nr = node._sequence_nr()
            known = thread.memo.get(nr)
            if known is None:
                known = self.place_of_node(thread, node, nr)
            phase = communication if plan.collective else backward
            if len(stack) > thread.base:  # a module entered inside backward: recompute
                return phase, library.RECOMPUTE, scope, call, known[2], known[3], number
            return phase, 0, known[0], known[1], known[2], known[3], number

        return where

    def place_of_node(self, thread, node, nr):
        name = node.name()
        string = self.session.wire.string(name)
        if nr >= _NO_NODE:  # AccumulateGrad: the parameter's owner
            variable = getattr(node, "variable", None)
            path = self.owners.get(id(variable)) if variable is not None else None
            return (self.number(path, None) if path else 0, 0, -1, string)
        at = bisect.bisect_right(thread.marks, nr) - 1
        scope, call = thread.places[at]
        known = thread.memo[nr] = (scope, call, nr, string)
        return known


def _keyword_arguments(module):
    """The keyword arguments of the call that a global pre-hook cannot see, from the frame that runs the hooks."""
    frame = sys._getframe(2)
    for _ in range(3):
        if frame is None:
            return None
        if frame.f_code.co_name in ("inner", "_call_impl"):
            return frame.f_locals.get("kwargs") or None
        frame = frame.f_back
    return None
