"""One recording in one process: its life from install to close, its archive, and what happens when something goes wrong."""

import atexit
import glob
import json
import os
import sys
import threading
import time

import torch

from .. import secret_text
from . import devices, dispatch, library, objects
from .escapes import Escapes
from .functions import Functions
from .gradients import Gradients, Weights
from .graphs import Graphs
from .kernels import Kernels
from .lines import Lines
from .marks import Marks
from .modules import Modules
from .objects import number_of
from .optimizers import Optimizers
from .roles import Roles
from .session_steps import SessionSteps
from .steps import SPENT, UPDATED, Steps
from .threads import Threads
from .watch import Watch

current = None  # the session of this process


def said(message):
    """A message as an archive and a terminal may have it: without secrets, and with a spelling for what neither can show."""
    return secret_text.visible(secret_text.mask_text(message))


def start(settings):
    global current
    if current is not None:
        return current
    current = Session(settings)
    current.install()
    return current


def parse_ranges(text):
    """ "3-5,8" as a predicate on numbers; everything when empty."""
    if not text:
        return None
    ranges = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        ranges.append((int(first), int(last) if dash and last else (1 << 62 if dash else int(first))))
    return lambda n: any(a <= n <= b for a, b in ranges), max(b for _, b in ranges)


class Session(SessionSteps):
    def __init__(self, settings):
        self.settings = settings
        self.lock = threading.RLock()
        self.dead = False  # nothing is recorded any more
        self.step_open = False  # a step is counted now, recorded or not
        self.step = -1
        self.opened_by = None  # id of the root module whose forward opened the step
        self.steps = Steps()
        self.missing = []  # what this torch does not offer
        self.unwrapped = set()
        self.plain = set()
        self.pid = os.getpid()
        self.started = time.time()
        steps = parse_ranges(settings["steps"])
        ranks = parse_ranges(settings["ranks"])
        self.wants_step, self.last_step = steps if steps else (lambda n: True, 1 << 62)
        self.wants_rank = ranks[0] if ranks else lambda n: True
        self.opened = False  # there is an archive, and it takes more
        self.modules = Modules(self)
        self.optimizers = Optimizers(self)
        self.marks = Marks(self, settings.get("step_at") or "")
        self.functions = Functions(self)
        from .collectives import Collectives
        from .routing import Routing
        from .shards import Shards

        self.compiled = None  # compiled functions run eagerly
        self.collectives = Collectives(self)
        self.routing = Routing(self)
        self.shards = Shards(self)
        self.kernels = Kernels(self)
        self.parameters = []  # weak references
        self.manual = bool(settings.get("manual"))
        self.noted = set()  # kinds of notes that were made
        self.undo = []  # what `finish` puts back
        self.triggered = None  # why the flight recorder is to be written
        self.watch = Watch()
        self.devices = devices.Devices()
        self.graphs = Graphs(self)
        self.threads = Threads(self)
        self.gradients = Gradients(self.threads.gradients_of)
        self.weights = Weights(self.threads.gradients_of)
        self.escapes = Escapes(self)
        self.roles = Roles(self)
        self.lines = Lines(self.started) if settings.get("lines", True) else None
        self.native = self._bind()
        if settings.get("compiled") in ("graph", "kernels"):
            self._take_graphs(settings["compiled"])

    def _bind(self):
        """The calls of the C recorder, which are told what to call here."""
        native = library.bind(
            dict(
                objects.given(),
                failed=library.Failed,
                node=self.modules.node,
                sequence=self.modules.sequence,
                fail=self.fail,
                plan_for=self.plan_for,
                saw=self.functions.saw,
                is_foreign=self.is_foreign,
                is_fake=self.is_fake,
                decompose=dispatch.decompose,
                collective=self.collectives.run,
                instead=objects.instead,
                plain=objects.plain,
                fields=objects.fields,
                owner=self.modules.owner,
                code_kind=self.lines and self.lines.code_kind,
                line_of=self.lines and self.lines.line_of,
                copy_bytes=self.devices.copy,
                hold_bytes=self.devices.hold,
                copy_held=self.devices.copy_held,
                let_go=self.devices.let_go,
            )
        )
        try:
            if os.environ.get("LASTBIT_SHORTCUT") != "0":
                self.shortcut = native.shortcut(objects.samples(), torch._C.TensorBase.__basicsize__)
        except Exception:
            pass  # the long way does as well
        return native

    def _take_graphs(self, how):
        from .compiled import Compiled, possible

        if possible() and how == "kernels":
            from .compiled_kernels import CompiledKernels

            self.compiled = CompiledKernels(self)
        elif possible():
            self.compiled = Compiled(self)
        else:
            self.degraded("this torch compiles nothing under a dispatch mode: compiled functions are recorded as they run eagerly")

    def plan_for(self, func):
        if hasattr(func, "_schema"):
            self.native.plan(dispatch.describe(func))
        else:
            self.native.plan(dispatch.describe_opaque(func, self))

    @property
    def live(self):
        """Ops are being recorded now."""
        return self._live

    @live.setter
    def live(self, value):
        self._live = value
        self.native.set_live(value)

    @property
    def optimizer_depth(self):
        """How deep in optimizer steps and clipping the program is."""
        return self._optimizer_depth

    @optimizer_depth.setter
    def optimizer_depth(self, value):
        self._optimizer_depth = value
        self.native.set_optimizer_depth(value)

    _live, _optimizer_depth = False, 0

    # ---- life

    def install(self):
        self.modules.install()
        self.optimizers.install()
        self.threads.install()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.forked)
        atexit.register(self.close)
        self._wrap_excepthook()
        self.replace(os, "_exit", self._save_first)
        self.escapes.install()
        self._wrap_compile()
        self.graphs.install()
        self.kernels.install()
        self.functions.install()
        if self.settings["ring"]:
            self._wait_for_signal()

    def replace(self, owner, name, make):
        """Puts make(original) in the place of an attribute, until `finish`. False when there is no such attribute."""
        original = getattr(owner, name, None)
        if original is None:
            return False
        own = name in vars(owner)
        replacement = make(original)
        for attribute in ("__name__", "__qualname__", "__doc__", "__module__"):
            try:
                setattr(replacement, attribute, getattr(original, attribute))
            except (AttributeError, TypeError):
                pass
        replacement.__wrapped__ = original
        setattr(owner, name, replacement)

        def undo():
            if vars(owner).get(name) is replacement:
                if own:
                    setattr(owner, name, original)
                else:
                    delattr(owner, name)

        self.undo.append(undo)
        return True

    def _wrap_compile(self):
        """A compiled function that runs before our mode is there runs its modules where no hook of theirs is called, and no step
        would ever be found. So the mode is there first, when the first step is wanted."""
        session = self

        def make(compile):
            def compiled(*args, **kwargs):
                session.compiles = True
                if not session.dead and session.wants_step(session.step + 1) and threading.current_thread() is threading.main_thread():
                    session.threads.push()
                if session.compiled is not None and not session.dead:
                    kwargs = session.compiled.taking(kwargs)
                function = compile(*args, **kwargs)
                session.set_eager(session.threads.mode is not None)
                return function

            return compiled

        self.replace(torch, "compile", make)

    def set_eager(self, eager):
        """Under a dispatch mode compiled functions run eagerly, and with fullgraph=True they raise: unless it was asked for."""
        if self.compiled is not None:
            return
        dynamo = sys.modules.get("torch._dynamo.eval_frame")
        stance = getattr(getattr(dynamo, "_stance", None), "stance", None)
        try:
            if eager and stance == "default":
                torch.compiler.set_stance("force_eager")
                self.forced_eager = True
            elif not eager and self.forced_eager:
                torch.compiler.set_stance("default")
                self.forced_eager = False
        except ImportError:
            pass  # the interpreter ends

    forced_eager = False
    compiles = False  # the program has something compiled
    shortcut = False  # tensors are asked by torch's C interface

    def _save_first(self, leave):
        """os._exit skips what is done at the end: steps that have ended get to disk first, where that takes no longer than some seconds."""

        def saved(status):
            if os.getpid() == self.pid and not self.dead and not self.settings["ring"] and self.native.save_steps():
                until = time.monotonic() + 5
                while not self.native.is_saved() and time.monotonic() < until:
                    time.sleep(0.001)
            leave(status)

        return saved

    def _wrap_excepthook(self):
        before = sys.excepthook

        def hook(kind, value, trace):
            self.noticed("exception", "%s: %s" % (kind.__name__, value))
            self.trigger("exception %s" % kind.__name__)
            before(kind, value, trace)

        sys.excepthook = hook
        self.undo.append(lambda: setattr(sys, "excepthook", before) if sys.excepthook is hook else None)

    def _wait_for_signal(self):
        """SIGUSR2 writes the flight recorder; only where the program has no handler of its own for it."""
        import signal

        try:
            if signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL:
                signal.signal(signal.SIGUSR2, lambda *_: self.trigger("signal"))
        except (ValueError, AttributeError):  # not the main thread, not this system
            pass

    def forked(self):
        """In a forked child: the parent's archive is not ours. One of our own opens with the first step."""
        try:
            self.dead, self.live = True, False
            self.opened = False
            self.native.abandon()  # its lock may be held by a thread that is gone: never used again
            if current is self and self.settings.get("out"):
                self.modules.remove()
                self.optimizers.remove()
                restart(self)
        except Exception as error:
            self.fail(error)

    def fail(self, error):
        """Recording ends; the host goes on. Said once, here and in the archive."""
        with self.lock:
            if self.dead:
                return
            self.dead, self.live = True, False
            message = said("%s: %s" % (type(error).__name__, error) if not isinstance(error, library.Failed) else str(error))
            print("lastbit: recording stopped, the program goes on: %s" % message, file=sys.stderr)
            if os.environ.get("LASTBIT_DEBUG"):
                import traceback

                traceback.print_exception(type(error), error, error.__traceback__)
            try:
                if self.opened:
                    self.native.stop(message)
                    self.close_archive()
            except Exception:
                pass

    def close(self, complete=False):
        with self.lock:
            if self.dead or os.getpid() != self.pid:
                return
            try:
                self.functions.ends()
                if "step" in self.noted:
                    self.settings["note"]("last", str(self.step))
                if self.opened:
                    if sys.exc_info()[0] is not None:  # a child of multiprocessing ends by an exception
                        self.trigger("exception %s" % sys.exc_info()[0].__name__)
                    if self.step_open and self.live:
                        self.end_step(complete or self.steps.state in (SPENT, UPDATED) or not self.optimizers.exist)
                    self.close_archive()
            except Exception as error:
                self.fail(error)
            self.dead, self.live = True, False

    def finish(self):
        """The end of a `with capture(…)`: as if we had never been there."""
        global current
        empty = self.step < 0 and not self.dead and not self.over
        self.close()
        if empty:
            print(
                "lastbit: nothing was recorded: no step began inside capture(); call a module, or put what belongs to a step into "
                "`with capture.step():`",
                file=sys.stderr,
            )
        self.modules.remove()
        self.optimizers.remove()
        self.threads.pop()
        atexit.unregister(self.close)
        for undo in reversed(self.undo):
            undo()
        if current is self:
            current = None
        self.native.release()

    def tap(self, name, value):
        try:
            self.native.tap(self.modules.number(name, "tap"), value)
        except Exception as error:
            self.fail(error)

    def degraded(self, what):
        self.missing.append(what)
        self.noticed("degraded", what)  # where the archive is open already

    def noticed(self, kind, message):
        try:
            if self.opened and not self.dead:
                self.native.notice(kind, said(message))
        except Exception as error:
            self.fail(error)

    def trigger(self, why):
        """The flight recorder's window is written when the open step ends; then recording is over."""
        if not self.settings["ring"] or self.triggered or self.dead or not self.opened:
            return
        self.triggered = said(why)
        if not self.step_open:
            self.write_window()

    def write_window(self):
        try:
            self.native.trigger(self.triggered)
            if not self.step_open:
                self.close_archive()
                self.dead, self.live = True, False
                print("lastbit: the flight recorder wrote its steps up to %d: %s" % (self.step, self.triggered), file=sys.stderr)
        except Exception as error:
            self.fail(error)

    # ---- the archive

    def open_archive(self):
        """Opens the archive of this rank: at the first step, when the rank is known."""
        rank, world = self.rank()
        if not self.wants_rank(rank):
            self.dead = True
            return False
        get = self.settings.get
        for attempt in range(64):
            try:
                self.native.open_recorder(
                    get("out"),
                    get("level"),
                    rank + attempt,
                    max(world, rank + attempt + 1),
                    get("keep"),
                    get("layers"),
                    get("budget"),
                    get("ring"),
                    get("like") or "",
                    get("sync") or "",
                    get("close_each") or 0,
                )
                self.opened = True
                self.archives = os.path.join(glob.escape(get("out")), "rank-%05d%s.tar" % (rank + attempt, "-*" if get("close_each") else ""))
                if get("ring"):
                    self.native.watch_crashes()
                break
            except library.Failed as error:
                if error.status != -9 or world > 1:  # exists: a process beside us without a rank of its own
                    raise
        self.modules.reset()
        from .. import receipt

        self.native.table(
            "receipt",
            json.dumps(dict(receipt.collect(host=get("receipt_host")), bits="eager" if self.compiled is None else self.compiled.bits), default=str),
        )
        for what in self.missing:
            self.native.notice("degraded", said(what))
        self._close_with_process()
        return True

    def close_archive(self):
        self.opened = False
        self.native.close_recorder()

    def drop_steps(self):
        """All that was recorded so far was work before the first step."""
        if self.opened:
            self.live = False
            self.native.stop("what was recorded so far was work before the first step")
            self.close_archive()
            for archive in glob.glob(self.archives):
                os.unlink(archive)
            self.native.sweep()
        self.step, self.step_open, self.recorded_last = -1, False, False
        self.steps = Steps()

    def note(self, kind, text):
        """The first of its kind, for `lastbit record`: why nothing was recorded, should that be so."""
        if self.settings.get("note") and kind not in self.noted:
            self.noted.add(kind)
            self.settings["note"](kind, text)

    def _close_with_process(self):
        """Children of multiprocessing end without exit handlers, but run these."""
        try:
            from multiprocessing import util

            util.Finalize(None, self.close, exitpriority=10)
        except Exception:
            pass

    @staticmethod
    def rank():
        dist = torch.distributed
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
        return int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)

    # ---- classes of tensors

    def is_foreign(self, types):
        """1 when one of these subclasses unwraps itself, 2 when one has no bytes."""
        if any(kind in self.unwrapped or (kind is not torch.Tensor and self.is_wrapper(kind)) for kind in types):
            return 1
        return 2 if any(map(self.is_fake, types)) else 0

    @staticmethod
    def is_fake(kind):
        """Tensors of this class have no bytes: torch works out shapes with them (DTensor does, and the compiler)."""
        return kind.__name__ in ("FakeTensor", "FunctionalTensor") and kind.__module__.startswith("torch.")

    def is_wrapper(self, kind):
        """Subclasses that unwrap themselves: their inner ops come back to us."""
        if kind in self.plain or self.is_fake(kind):
            return False
        if kind.__name__ in ("DTensor", "AsyncCollectiveTensor", "ShardedTensor") or hasattr(kind, "__tensor_flatten__"):
            self.unwrapped.add(kind)
            return True
        self.plain.add(kind)
        return False

    # ---- numbers

    def scalar(self, name, value):
        if not self.live:
            return
        try:
            number = number_of(value, self.devices)
            if number is not None:
                self.native.scalar(name, number)
                if self.settings["ring"]:
                    why = self.watch.see(name, number)
                    if why:
                        self.trigger(why)
        except Exception as error:
            self.fail(error)

    def loss(self, tensors):
        if isinstance(tensors, torch.Tensor):
            tensors = (tensors,)
        if not isinstance(tensors, (tuple, list)):
            return  # an iterator is the program's: looking would use it up
        try:
            for t in tensors:
                if isinstance(t, torch.Tensor) and t.numel() == 1:
                    self.scalar("loss", t)
                    return
        except Exception as error:
            self.fail(error)


def restart(old):
    """A session of its own for a forked child."""
    global current
    settings = old.settings
    if old.functions.armed:
        old.threads.pop()  # it was there only to see whether a step begins
    current = None
    session = Session(settings)
    session.missing = list(old.missing)
    session.optimizers.adopt(old.optimizers)
    session.functions.adopt(old.functions)
    session.threads.inherited = old.threads.inherited + (getattr(old.threads.here, "mode", None) is not None)
    current = session
    session.install()
