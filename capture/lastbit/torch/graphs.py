"""Graphs of a device (torch.cuda.CUDAGraph, and what other devices have of that kind): what is captured into one runs when it is replayed, and
nothing that torch would tell of happens then. So the C recorder keeps what came while it was captured, and each replay is recorded from that.

What the program did meanwhile (a forward, a backward, an update) it does again in each replay, and steps end by it as ever.
"""

import itertools
import weakref

from . import devices

_numbers = itertools.count(1)


class Graphs:
    def __init__(self, session):
        self.session = session
        self.captured = weakref.WeakKeyDictionary()  # graph -> (its number, what the steps saw while it was captured)
        self.events = None  # of the graph that is being captured: [(event, id of the root module)]
        self.looked_at = set()  # modules of devices

    def install(self):
        """Classes that are there by now: those of a device are loaded with it."""
        for module in devices.modules():
            if module.__name__ in self.looked_at:
                continue
            self.looked_at.add(module.__name__)
            for kind in [getattr(module, name, None) for name in dir(module) if name.endswith("Graph")]:
                if isinstance(kind, type) and all(hasattr(kind, method) for method in ("capture_begin", "capture_end", "replay")):
                    self._wrap(kind, module)

    def _wrap(self, kind, module):
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
                whole = False
                try:
                    result = original(graph, *args, **kwargs)
                    whole = True
                    return result
                finally:
                    graphs.end(graph, graphs.capturing, whole)

            return capture_end

        def run(original):
            def replay(graph, *args, **kwargs):
                told = graphs.runs(graph, module)
                try:
                    return original(graph, *args, **kwargs)
                finally:
                    graphs.ran(told)

            return replay

        replace(kind, "capture_begin", begin)
        replace(kind, "capture_end", end)
        replace(kind, "replay", run)

    # ---- a capture

    capturing = None  # number of the graph

    def begin(self, graph):
        """Its number; None where it is not recorded."""
        s = self.session
        if s.dead or s.over or self.capturing is not None:
            return None
        try:
            with s.lock:
                s.modules.watch_all()
                if not s.threads.push() or not (s.opened or s.open_archive()):
                    return None
                number = next(_numbers)
                if not s.live:
                    s.roles.name_tensors()
                s.native.graph_begin(number)
                self.capturing, self.events, self.was_live, s.live = number, [], s.live, True
                return number
        except Exception as error:
            s.fail(error)
            return None

    def end(self, graph, number, whole):
        s = self.session
        if number is None or number != self.capturing:
            return
        events, self.capturing, self.events = self.events, None, None
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
                weakref.finalize(graph, self.drop, number)
        except Exception as error:
            s.fail(error)

    def drop(self, number):
        if not self.session.dead:
            self.session.native.graph_drop(number)

    # ---- a run

    def runs(self, graph, module):
        """It is about to: what the recorder is to be told when it does."""
        s = self.session
        if s.dead or graph not in self.captured:
            return None
        number, events = self.captured[graph]
        try:
            stream = devices.stream_of(module)
            with s.lock:
                opens = next((n + 1 for n, (event, _) in enumerate(events) if event in _OPENS), 0)
                for event, root in events[:opens]:
                    s.see(event, root)
                if not events and not s.step_open:
                    s.see("alone")
                if s.live:
                    s.native.graph_run(number, stream)
                return number, stream, events[opens:]
        except Exception as error:
            s.fail(error)
            return None

    def ran(self, told):
        s = self.session
        if told is None or s.dead:
            return
        number, stream, events = told
        try:
            if s.opened:
                s.native.graph_ran(number, stream)
            with s.lock:
                for event, root in events:
                    s.see(event, root)
        except Exception as error:
            s.fail(error)


_OPENS = ("forward", "glance", "alone", "byhand", "mark")
