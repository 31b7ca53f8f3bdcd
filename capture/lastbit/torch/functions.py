"""Programs of plain functions, which call no module with parameters: where their steps are, and which tensors are their parameters.

Modules say when a forward begins. Where there are none the ops have to: the dispatch mode's handler shows each op to `saw` before it
runs, while something may begin with it. In what order things are believed:

    an op that autograd records, of a tensor made to require gradients     a forward of a training loop: steps as steps.py has them
    the outermost torch.func.grad, vjp, … begins                           the same; an autograd.grad within it is the backward
    an op that computes, in a program without modules                      the program only infers: all that it does is one step

The last is a guess. When the program calls a module, makes one, or trains after all, what was recorded until then is dropped, as work
before the first step always is. Between a backward and the next forward a program without an optimizer updates its tensors itself: the
forward is told from the update by reading a tensor that was written since, or that is new.

A process that another Python process made (a worker of a DataLoader, of a pool) records functions only where it trains.
"""

import multiprocessing
import sys
import threading
import weakref

import torch

from . import library
from .gradients import is_differentiated_later
from .names import held_by_program
from .steps import BACKED, CLOSED, OPEN, SOLE

_LONG = 1 << 17  # ops of a step that no backward ended: the next one begins
_NODES = 20000  # of an autograd graph that is searched for its leaves
# Ops that bring numbers into being or carry them about, by which no program can be told from one that is about to build modules.
_CARRIES = set(
    """_to_copy copy_ copy clone contiguous detach detach_ lift_fresh lift fill_ fill zero_ zero set_ resize_ cat stack index_select
    zeros_like ones_like full_like empty_like rand_like randn_like randint_like new_zeros new_ones new_full new_empty new_empty_strided
    normal_ uniform_ random_ bernoulli_ exponential_ item _local_scalar_dense pin_memory record_stream is_pinned equal""".split()
)


class Functions:
    def __init__(self, session):
        self.session = session
        self.armed = False
        self.modules = False  # some were made, with parameters
        self.called = False  # and one was called before anything was recorded here: the program is one of modules
        self.began = False  # the open step and those before it were found here
        self.guessed = False  # of these none has ended in a backward: they may be dropped
        self.forked = False
        self.group_before = False  # the process group was there before this process was forked
        self.leaves = {}  # id -> weak reference to a tensor that the program differentiates by
        self.parameter_names = set()  # that such tensors had: what is made in the place of one has its name
        self.left = {}  # id -> (version, storage) of a leaf when the last backward ended
        self.computing = {}  # op -> does it compute?
        self.here = threading.local()  # .depth: of torch.func's transforms; .differentiated: one of them ran a backward

    # ---- when ops are looked at

    def install(self):
        session = self.session
        self._wrap_registration()
        self._wrap_transforms()
        if "note" not in session.settings and self._finds_modules():
            self.modules = True  # `capture()`: recording begins in the middle of the program
        if not self.modules:
            self.arm()

    def adopt(self, others):
        """Those of the process that this one was forked from."""
        dist = torch.distributed
        self.forked, self.group_before = True, dist.is_available() and dist.is_initialized()
        self.modules, self.called = others.modules, others.called

    def arm(self):
        session = self.session
        main = threading.current_thread() is threading.main_thread() or getattr(session.threads.here, "mode", None) is not None
        if main and not self.called and not session.dead and not session.over and not session.manual and session.threads.push():
            self.watch(True)

    def watch(self, armed):
        if armed != self.armed:
            self.armed = armed
            self.session.native.set_watching(armed)

    def rest(self):
        """No step begins here any more: what this costs ends."""
        self.watch(False)
        if not self.session.live:
            self.session.threads.pop()

    @staticmethod
    def _finds_modules():
        import gc

        return any(issubclass(type(m), torch.nn.Module) and next(m.parameters(), None) is not None for m in gc.get_objects())

    def _wrap_registration(self):
        """A module gets its first parameter: what is done while modules are built is no step."""
        functions, session = self, self.session

        def make(original):
            def register_parameter(module, name, param):
                if param is not None and not functions.modules and not torch.compiler.is_compiling():
                    if not isinstance(module, (torch.nn.ParameterList, torch.nn.ParameterDict)):
                        session.guarded(functions.modules_are_made)
                return original(module, name, param)

            return register_parameter

        session.replace(torch.nn.Module, "register_parameter", make)

    def modules_are_made(self):
        self.modules = True
        if not self.began or self.guessed:
            with self.session.lock:
                self.drop()
            if not self.session.marks.name:
                self.rest()

    def module_called(self, module):
        """An outermost one. True: it is a part of a program of functions, and the event of no step."""
        if self.called:
            return False
        if next(module.parameters(), None) is None:
            return self.began
        if self.began and not self.guessed:
            return True
        self.called = True
        self.drop()
        self.watch(False)
        return False

    def drop(self):
        if self.began:
            self.session.drop_steps()
        self.began = self.guessed = False

    def are_told(self):
        """The program says itself where its steps begin (`step()` of `capture`); what its tensors are called is found all the same."""
        self.drop()
        self.watch(False)
        self.began = not self.modules

    # ---- what an op says

    def saw(self, func, args, kwargs):
        """An op is about to run, while we are armed."""
        session = self.session
        if not self.armed:
            return
        try:
            if session.dead or session.over or session.manual or self._is_loader():
                self.rest()
            elif session.marks.name:
                self._look_for_mark()
            elif not session.threads.in_backward() and not getattr(self.here, "depth", 0):
                self._weigh(func, args, kwargs or {})
        except Exception as error:
            session.fail(error)

    def _look_for_mark(self):
        """A call may have begun before its function was replaced: `f(torch.randn(3))` takes `f` first."""
        session = self.session
        session.marks.look()
        if session.marks.found and not session.step_open:
            session.marks.catch_up()
        if session.step_open:
            self.watch(False)

    def _weigh(self, func, args, kwargs):
        session, state = self.session, self.session.steps.state
        leaf, update = _leaf([args, list(kwargs.values())]), session.optimizers.running()
        if leaf is not None and (torch.is_grad_enabled() or is_differentiated_later()):
            if update is not None:
                update.forwards += 1
            if update is None or update.forwards == 1:
                self._differentiates(leaf, state)
        elif update is None and state == CLOSED and not self.modules and self._computes(func, args) and self._may_infer():
            with session.lock:
                self._begin("sole")
        elif state in (SOLE, OPEN) and session.live and session.native.next_op() >= _LONG:
            with session.lock:
                session.see("long")

    def _differentiates(self, leaf, state):
        """A forward begins, unless it goes on, or this is the update of the last one."""
        session = self.session
        with session.lock:
            if state in (CLOSED, SOLE):
                self.drop()
                self._begin("forward", leaf)
                return
            if state == BACKED:
                session.look_for_gradients()
                if session.steps.state == BACKED and not session.optimizers.exist and self._is_updated(leaf):
                    session.see("byhand")
                    return
            if state != OPEN:
                session.see("forward")
                self.watch(session.steps.state == BACKED and not session.optimizers.exist)

    def _begin(self, event, leaf=None):
        self.began = self.guessed = True
        if leaf is not None:
            self.keep([leaf])
        self.session.see(event)

    def transform_begins(self):
        """The outermost of torch.func's transforms that differentiate."""
        session, state = self.session, self.session.steps.state
        if self.called or (self.modules and not self.began) or session.manual or session.over or self._is_loader() or session.threads.in_backward():
            return
        with session.lock:
            if state in (CLOSED, SOLE):
                self.drop()
                self._begin("forward")
            elif state == BACKED and not session.optimizers.exist:
                session.see("byhand")
            elif state != OPEN:
                session.see("forward")

    def _is_updated(self, leaf):
        known = self.left.get(id(leaf))
        ref = self.leaves.get(id(leaf))
        return known is None or ref is None or ref() is not leaf or known != _state(leaf)

    def _computes(self, func, args):
        computes = self.computing.get(func)
        if computes is None:
            schema = getattr(func, "_schema", None)
            base = schema.name.partition("::")[2] if schema is not None else ""
            views = schema is not None and not schema.is_mutable and any(r.alias_info is not None for r in schema.returns)
            computes = self.computing[func] = schema is not None and base not in _CARRIES and not views and not schema.name.startswith("profiler")
        return computes and any(_has_bytes(t) for t in _tensors(args))

    @staticmethod
    def _is_loader():
        data = sys.modules.get("torch.utils.data")
        return data is not None and data.get_worker_info() is not None

    def _may_infer(self):
        if not self.forked and multiprocessing.parent_process() is None:
            return True
        dist = torch.distributed
        return dist.is_available() and dist.is_initialized() and not self.group_before

    # ---- what else happens

    def backward_begins(self, outputs, inputs=()):
        """The tensors that it differentiates by are parameters of the program: those named to `autograd.grad`, else the graph's leaves."""
        if self.called or (self.modules and not self.began):
            return
        given = [t for t in map(_unwrapped, _tensors([inputs])) if t.is_leaf and _has_bytes(t)]
        self.keep(given or leaves_of(outputs))
        self.session.collect_parameters()
        self.parameter_names.update(self.session.roles.names.get(id(t)) for t in given)

    def backward_ended(self):
        """Of a program that has modules, and has called none, this says that it calls none."""
        session = self.session
        if self.called or session.manual:
            return
        if self.modules and not self.began:
            if any(next(m.parameters(), None) is not None for m in session.modules.living()):
                self.called = True
                return
            self.began = True
            session.modules.family.search()
        self.guessed = False
        self.left = {key: _state(t) for key, t in self._living()}

    def happened(self):
        """After each event of steps: ops are looked at where one may begin."""
        if self.called or not self.began or self.session.marks.name:
            return
        state = self.session.steps.state
        if state == OPEN and not self.guessed:
            self.watch(False)
        else:
            self.arm()

    def ends(self):
        """The program is over. Of one that seemed to infer only, that is so."""
        if self.guessed:
            self.session.say_step()
        elif not self.began and not self.called and self.modules:
            self.session.note("uncalled", "-")
        self.guessed = False

    # ---- parameters

    def keep(self, tensors):
        for t in tensors:
            self.leaves[id(t)] = weakref.ref(t)

    def _living(self):
        living = [(key, ref()) for key, ref in self.leaves.items()]
        self.leaves = {key: self.leaves[key] for key, t in living if t is not None}
        return [(key, t) for key, t in living if t is not None]

    def parameters(self):
        return [t for _, t in self._living()] if self.began else []

    def name_tensors(self, names):
        """At the begin of a step: what the program's variables hold is called as they are."""
        if not self.began or self.called:
            return
        roles = self.session.roles
        found = held_by_program(sys._getframe(1))
        self.keep(t for name, t in found if t.is_leaf and (t.requires_grad or name in self.parameter_names))
        for name, t in found:
            if id(t) not in names:
                names[id(t)] = name
                if id(t) in self.leaves:
                    roles.name(t, library.PARAMETER, library.IS_PARAMETER, name)
                else:
                    roles.name(t, library.OTHER_SOURCE, 0, name)
        for n, (key, t) in enumerate(self._living()):
            if key not in names:
                names[key] = "leaf.%d" % n
                roles.name(t, library.PARAMETER, library.IS_PARAMETER, names[key])
        self.session.collect_parameters()

    # ---- torch.func

    def _wrap_transforms(self):
        """Their outermost begin and end: what autograd does within is not seen from below, where tensors require no gradients."""
        functions, session, here = self, self.session, self.here
        transforms = sys.modules.get("torch._functorch.eager_transforms")

        def entering(original):
            def _grad_increment_nesting(*args):
                here.depth = getattr(here, "depth", 0) + 1
                if here.depth == 1 and not session.dead and not torch.compiler.is_compiling():
                    here.differentiated = False
                    session.guarded(functions.transform_begins)
                return original(*args)

            return _grad_increment_nesting

        def leaving(original):
            def _grad_decrement_nesting(*args):
                result = original(*args)
                here.depth = max(0, getattr(here, "depth", 0) - 1)
                if here.depth == 0 and getattr(here, "differentiated", False):
                    here.differentiated = False
                    session.guarded(functions.transform_differentiated)
                return result

            return _grad_decrement_nesting

        if transforms is None or not session.replace(transforms, "_grad_increment_nesting", entering):
            session.degraded("torch has no torch.func as it is known: steps of programs that train by it alone are not found")
            return
        session.replace(transforms, "_grad_decrement_nesting", leaving)

    def gradient_computed(self, inputs, gradients):
        """An `autograd.grad` that a graph is made of has ended: of a transform, of what `vjp` gave, or of the program, where it is part
        of a loss."""
        if getattr(self.here, "depth", 0):
            self.here.differentiated = True
            self.session.optimizers.returns([_unwrapped(t) for t in _tensors([inputs])], [g if g is None else _unwrapped(g) for g in gradients])
            return
        frame = sys._getframe(1)
        for _ in range(4):
            frame = frame.f_back if frame is not None else None
            if frame is not None and frame.f_code.co_name == "_autograd_grad" and frame.f_code.co_filename.endswith("eager_transforms.py"):
                self.transform_differentiated()
                return

    def transform_differentiated(self):
        if self.began:
            self.session.saw_backward()


def leaves_of(outputs):
    """The tensors that the graph behind these ends at."""
    ends = [t.grad_fn for t in _tensors([outputs]) if t.grad_fn is not None]
    seen, found = set(ends), []
    while ends and len(seen) < _NODES:
        node = ends.pop()
        variable = getattr(node, "variable", None)
        if isinstance(variable, torch.Tensor):
            found.append(variable)
        for after, _ in node.next_functions:
            if after is not None and after not in seen:
                seen.add(after)
                ends.append(after)
    return found


def _unwrapped(t):
    """The tensor below torch.func's wrappers."""
    wrapped = getattr(torch._C._functorch, "is_gradtrackingtensor", None)
    while wrapped is not None and wrapped(t):
        t = torch._C._functorch.get_unwrapped(t)
    return t


def _tensors(values, depth=2):
    for a in values:
        if isinstance(a, torch.Tensor):
            yield a
        elif depth and isinstance(a, (list, tuple)):
            yield from _tensors(a, depth - 1)


def _leaf(values):
    return next((t for t in _tensors(values, 3) if t.requires_grad and t.is_leaf and _has_bytes(t)), None)


def _has_bytes(t):
    return type(t) in (torch.Tensor, torch.nn.Parameter) and t.device.type != "meta"


def _state(t):
    try:
        return t._version, t.untyped_storage()._cdata
    except (RuntimeError, NotImplementedError):
        return None
