"""Graphs of a device (torch.cuda.CUDAGraph, and what other devices have of that kind): what is captured into one runs when it is replayed, and
nothing that torch would tell of happens then. So the C recorder keeps what came while it was captured, and each replay is recorded from that.

What the program did meanwhile (a forward, a backward, an update) it does again in each replay, and steps end by it as ever.
"""

import itertools
import sys
import threading
import weakref

import torch

from . import devices

_numbers = itertools.count(1)
_METHODS = ("capture_begin", "capture_end", "replay")


class Graphs:
    def __init__(self, session):
        self.session = session
        self.captured = weakref.WeakKeyDictionary()  # graph -> (its number, what the steps saw while it was captured)
        self.gone = []  # numbers of graphs that are no more, until the recorder can be told
        self.events = None  # of the graph that is being captured: [(event, id of the root module)]
        self.looked_at = set()  # modules of devices
        self.one_at_a_time = threading.RLock()  # from the record of a run to its launch
        self.lent = set()  # numbers of those whose inside the program was shown: they may run without us, and outlive their object

    def install(self):
        """Classes that are there by now: those of a device are loaded with it."""
        for module in [*devices.modules(), torch.accelerator] if hasattr(torch, "accelerator") else devices.modules():
            if module.__name__ in self.looked_at:
                continue
            self.looked_at.add(module.__name__)
            for kind in [getattr(module, name, None) for name in dir(module) if name.endswith("Graph")]:
                if isinstance(kind, type) and all(hasattr(kind, method) for method in _METHODS):
                    self._wrap(next(base for base in reversed(kind.__mro__) if all(hasattr(base, method) for method in _METHODS)), kind)

    def _wrap(self, kind, outer):
        """`kind` is what all graphs of `outer` call in the end, those of derived classes too."""
        if getattr(kind.replay, "_lastbit", False):
            return
        graphs, replace = self, self.session.replace

        def begin(original):
            def capture_begin(graph, *args, **kwargs):
                number = graphs.begin(graph)
                try:
                    return original(graph, *args, **kwargs)
                except BaseException:
                    graphs.end(graph, number, False)
                    raise

            return capture_begin

        def end(original):
            def capture_end(graph, *args, **kwargs):
                number, whole = graphs.number_of(graph), False
                try:
                    result = original(graph, *args, **kwargs)
                    whole = True
                    return result
                finally:
                    graphs.end(graph, number, whole)

            return capture_end

        def run(original):
            def replay(graph, *args, **kwargs):
                if graphs.session.dead:
                    return original(graph, *args, **kwargs)
                with graphs.one_at_a_time:
                    told, launched = graphs.runs(graph), False
                    try:
                        result = original(graph, *args, **kwargs)
                        launched = True
                        return result
                    finally:
                        graphs.ran(told, launched)

            replay._lastbit = True
            return replay

        def reset(original):
            def forgotten(graph, *args, **kwargs):
                graphs.forget(graph)
                return original(graph, *args, **kwargs)

            return forgotten

        def lend(original):
            def lent(graph, *args, **kwargs):
                graphs.lent.update(told[0] for told in [graphs.captured.get(graph)] if told)
                return original(graph, *args, **kwargs)

            return lent

        replace(kind, "capture_begin", begin)
        replace(kind, "capture_end", end)
        replace(kind, "replay", run)
        replace(kind, "reset", reset)
        for name in dir(outer):
            if name.startswith("raw_"):
                replace(kind if hasattr(kind, name) else outer, name, lend)

    # ---- a capture

    capturing = None  # number of the graph
    of_graph = None  # a weak reference to it

    def number_of(self, graph):
        return self.capturing if self.of_graph is not None and self.of_graph() is graph else None

    def begin(self, graph):
        """Its number; None where it is not recorded."""
        s = self.session
        self.forget(graph)
        if s.dead or s.over or self.capturing is not None:
            return None
        try:
            with self.one_at_a_time, s.lock:
                self.tell_gone()
                s.modules.watch_all()
                if not s.threads.push() or not (s.opened or s.open_archive()):
                    return None
                number = next(_numbers)
                if not s.live:
                    s.roles.name_tensors()
                s.native.graph_begin(number)
                self.capturing, self.of_graph, self.events, self.was_live, s.live = number, weakref.ref(graph), [], s.live, True
                self.first_held = s.devices.next_number()
                return number
        except Exception as error:
            s.fail(error)
            return None

    def end(self, graph, number, whole):
        s = self.session
        if number is None or number != self.capturing:
            return
        events, self.capturing, self.of_graph, self.events = self.events, None, None, None
        # What the graph copies aside is its own: a replay writes there, whatever becomes of us.
        held = s.devices.held
        copies = [n for n in range(self.first_held, s.devices.next_number()) if n in held]
        if whole:
            weakref.finalize(graph, _let_go, held, copies).atexit = False
        else:
            _let_go(held, copies)
        if s.dead:
            return
        try:
            s.live = self.was_live
            s.native.graph_end(whole)
            if not s.live and not s.wants_step(s.step + 1):
                s.threads.pop()
                s.rest()
            if whole:
                self.captured[graph] = number, events
                weakref.finalize(graph, self.gone.append, number).atexit = False
        except Exception as error:
            s.fail(error)

    def forget(self, graph):
        """What was captured into it is no more."""
        told = self.captured.pop(graph, None)
        if told is not None:
            self.gone.append(told[0])

    def tell_gone(self):
        """A graph goes at any time, in the middle of what the recorder does, too."""
        while self.gone:
            number = self.gone.pop()
            if number not in self.lent:
                self.session.native.graph_drop(number)

    # ---- a run

    def runs(self, graph):
        """It is about to: what the recorder is to be told when it does."""
        s = self.session
        if s.dead or not s.opened:
            return None
        if graph not in self.captured:
            if s.live:
                s.noticed("graph", "a graph ran whose capture was not recorded: its ops are in no step")
            return None
        number, events = self.captured[graph]
        try:
            stream = devices.stream_of(_module_of(graph))
            s.devices.wait_for_held()
            with s.lock:
                opens = next((n + 1 for n, (event, _) in enumerate(events) if event in _OPENS), 0)
                for event, root in events[:opens]:
                    s.see(event, root)
                if not events and not s.step_open:
                    s.see("alone")
                self.tell_gone()
                if s.opened:
                    s.native.graph_run(number, stream)
                return number, stream, events[opens:]
        except Exception as error:
            s.fail(error)
            return None

    def ran(self, told, launched):
        s = self.session
        if told is None or s.dead:
            return
        number, stream, events = told
        try:
            if s.opened:
                s.devices.wait_for_held()
                s.native.graph_ran(number, launched, stream)
            with s.lock:
                for event, root in events:
                    s.see(event, root)
        except Exception as error:
            s.fail(error)


def _let_go(held, numbers):
    for number in numbers:
        held.pop(number, None)


def _module_of(graph):
    """torch.cuda or its like: where the class of the graph says so, else that of the accelerator there is."""
    for kind in type(graph).__mro__:
        for module in devices.modules():
            if kind.__module__.startswith(module.__name__) or getattr(module, kind.__name__, None) is kind:
                return module
    accelerator = getattr(torch, "accelerator", None)
    device = accelerator.current_accelerator() if accelerator is not None else None
    return device and sys.modules.get("torch." + device.type)


_OPENS = ("forward", "glance", "alone", "byhand", "mark")
