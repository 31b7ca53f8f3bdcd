"""Which threads of the program have our dispatch mode: a mode belongs to a thread, and to be seen a thread must have one of its own."""

import pathlib
import re
import threading

import torch

from . import dispatch


def engine_of(thread):
    """The number of the devices for which this is autograd's thread; None: it is none of them. Such a thread takes the modes of the one that
    called it, so that its ops are seen, and goes on only while that one waits. Python learns of it when a hook asks for the current thread
    (logging does); the system has the name that the engine gave it (torch/csrc/autograd/engine.cpp)."""
    if not isinstance(thread, threading._DummyThread):
        return None
    try:
        name = pathlib.Path(f"/proc/self/task/{thread.native_id}/comm").read_text()
    except OSError:
        return None
    number = re.match(r"pt_autograd_(\d+)", name)
    return int(number.group(1)) if number else None


class Threads:
    def __init__(self, session):
        self.session = session
        self.mode = None  # the mode that recording began with
        self.here = threading.local()  # .mode: that of the calling thread, where it has one; .backwards: that run in it
        self.apart = False  # another thread than the main one began, and the main one has no mode yet
        self.trainer = None  # the thread that stepped an optimizer
        self.together = False  # another one does so beside it
        self.strangers = set()  # names of threads that are not covered
        self.backwards = 0  # that run, in all threads
        self.differentiating = set()  # threads that ran one
        self.counting = threading.RLock()  # none begins or ends meanwhile
        self.unread = False  # gradients were not read for another one's sake, and coverage says so

    inherited = 0  # modes of ours that a fork left on this thread; they do nothing

    def install(self):
        """A dispatch mode belongs to a thread: each one that starts while we record gets its own."""
        threads, session = self, self.session

        def make(start):
            def start_recorded(thread):
                if threads.mode is not None and not session.dead:
                    run = thread.run

                    def run_recorded():
                        with threads.new_mode() as mode:
                            threads.here.mode = mode
                            run()

                    thread.run, thread._lastbit = run_recorded, True
                return start(thread)

            return start_recorded

        self.session.replace(threading.Thread, "start", make)

    def note_strangers(self):
        for thread in threading.enumerate():
            if thread is threading.current_thread() or getattr(thread, "_lastbit", False) or thread.name in self.strangers:
                continue
            if thread is threading.main_thread():
                continue  # its first module, backward or optimizer brings it in
            if engine_of(thread) is not None:
                continue
            self.strangers.add(thread.name)
            self.session.noticed("thread", "thread %s was there before recording began: its ops are not seen" % thread.name)

    def push(self):
        """Makes our mode the lowest of this thread's; not between the enter and exit of another mode."""
        if getattr(self.here, "mode", None) is not None:
            return True
        if self.modes_active() > self.inherited:
            self.session.noticed("skipped", "another dispatch mode is active: step %d is not recorded" % self.session.step)
            return False
        first, main = self.mode is None, threading.current_thread() is threading.main_thread()
        self.enter()
        self.apart = first and not main or self.apart and not main
        self.session.set_eager(True)
        return True

    def enter(self):
        mode = self.new_mode()
        mode.__enter__()
        self.here.mode = mode
        if self.mode is None or threading.current_thread() is threading.main_thread():
            self.mode = mode
        threading.current_thread()._lastbit = True

    def bring_in(self):
        """A program whose modules first run in a thread of their own (a pipeline, a watchdog around a step) does other things in the
        main thread, which no wrapper of ours started."""
        if not self.apart or not self.session.live or threading.current_thread() is not threading.main_thread():
            return
        if self.modes_active() <= self.inherited:
            self.enter()
            self.apart = False

    def trains(self):
        """An optimizer steps in this thread. Where another one that lives steps another beside it, the two share every step: where one
        ends the other is in the middle of something. (In a hook, the thread that called backward waits.)"""
        thread = threading.current_thread()
        if engine_of(thread) is not None:
            return
        if self.trainer is None or not self.trainer.is_alive():
            self.trainer = thread
        elif thread is not self.trainer and not self.together:
            self.together = True
            self.session.noticed(
                "thread",
                "threads %s and %s both step optimizers: a step is cut where either of them begins anew, and holds parts "
                "of what the other did; writes between steps are not looked for" % (self.trainer.name, thread.name),
            )

    def new_mode(self):
        mode = (dispatch.Recording if self.session.compiled is None else dispatch.RecordingGraphs)(self.session.native)
        return dispatch.poisoned(mode) if self.session.settings.get("poison") else mode

    def modes_active(self):
        count = getattr(torch._C, "_len_torch_dispatch_stack", None)
        return count() if count is not None else self.inherited + (self.mode is not None)

    def pop(self):
        """After the last step that is wanted: costs nothing any more."""
        mode = getattr(self.here, "mode", None)
        if mode is None or self.modes_active() != 1 or threading.current_thread() is not threading.main_thread():
            return
        mode.__exit__(None, None, None)
        self.mode = self.here.mode = None
        self.session.set_eager(False)

    def in_backward(self):
        """Forwards that backward runs again; it runs in threads of its own where there is another device."""
        if getattr(self.here, "backwards", 0):
            return True
        thread = threading.current_thread()
        if self.backwards == 0 or not isinstance(thread, threading._DummyThread):
            return False
        thread._lastbit = True  # of autograd's engine, which takes the modes of the thread that called it
        return True

    def gradients_of(self, parameters):
        """[(parameter, gradient)] of those that have one; None where a thread beside this one runs a backward, or ran one and may run
        another while they are looked at. Autograd sets `p.grad` without the interpreter's lock: one that is read at that moment is
        freed twice, and the program dies. Its thread for a device (of a hook, or of a forward that runs again) sets those of that device
        itself; the others are looked at when the backward that it runs for has ended."""
        engine = engine_of(threading.current_thread())
        if engine is not None:
            there = (p for p in parameters if p.device.type != "cpu" and (p.device.index or 0) == engine)
            return [(p, grad) for p in there for grad in (p.grad,) if grad is not None]
        with self.counting:
            self.differentiating &= {thread.ident for thread in threading.enumerate()}
            if self.backwards <= getattr(self.here, "backwards", 0) and not self.differentiating - {threading.get_ident()}:
                return [(p, grad) for p in parameters for grad in (p.grad,) if grad is not None]
        if not self.unread and self.session.opened:
            self.unread = True
            self.session.noticed(
                "thread",
                "backwards ran in several threads that live: gradients were not read from step %d on where another thread may set "
                "them, so that some have no name, and a step that a scaler or a guard skipped may not be seen to end" % self.session.step,
            )
        return None

    def backward(self, begins):
        """Backward begins or ends in this thread; how many run in it now."""
        here = self.here
        with self.counting:
            if engine_of(threading.current_thread()) is None:
                self.differentiating.add(threading.get_ident())
            here.backwards = max(0, getattr(here, "backwards", 0) + (1 if begins else -1))
            self.backwards = max(0, self.backwards + (1 if begins else -1))
        try:
            return self.session.native.backward(begins)
        except Exception as error:
            self.session.fail(error)
            return 0
