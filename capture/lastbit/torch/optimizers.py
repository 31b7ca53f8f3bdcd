"""Optimizers: the phase, the parameter groups with names, states; the gradient norm where it is clipped; the loss."""

import sys
import threading
import weakref

import torch

from . import library
from .frames import variable_of
from .objects import local, number_of


def _same(function):
    """A function of its own that does the same: each place that is replaced is put back by itself."""

    def call(*args, **kwargs):
        return function(*args, **kwargs)

    return call


class _Running:
    """An optimizer's step that has begun."""

    def __init__(self, optimizer, first_op):
        self.optimizer = optimizer
        self.first_op = first_op
        self.thread = threading.get_ident()
        self.forwards = 0  # in grad mode, outermost: of its closure


class Optimizers:
    def __init__(self, session):
        self.session = session
        self.handles = []
        self.exist = False  # an optimizer was made
        self.known = weakref.WeakSet()
        self.named = weakref.WeakKeyDictionary()  # optimizer -> for which step and which states
        self.stack = []  # of _Running: Lookahead and SAM step others within their own step
        self.updates = 0

    def install(self):
        from torch.optim import optimizer as module

        before = getattr(module, "register_optimizer_step_pre_hook", None)
        after = getattr(module, "register_optimizer_step_post_hook", None)
        everywhere = before is not None and after is not None
        if everywhere:
            self.handles += [before(self.before), after(self.after)]
        else:
            self.session.degraded("torch has no global optimizer hooks: optimizers made before recording began are not seen")
        self._note_construction(module.Optimizer, hook_each=not everywhere)
        self._wrap_zeroing(module.Optimizer)
        self._wrap_scaler()
        self._wrap_schedulers()
        self._wrap_clipping()
        self._wrap_backward()

    def remove(self):
        for handle in self.handles:
            handle.remove()
        self.handles = []

    def adopt(self, others):
        """Those of a forked child's parent are its own."""
        self.exist = others.exist
        self.known = others.known

    def living(self):
        return list(self.known)

    def _note_construction(self, cls, hook_each):
        """An optimizer that exists but has not stepped keeps a step open. `hook_each`: its steps are seen by hooks of its own."""
        optimizers = self

        def make(init):
            def __init__(self, *args, **kwargs):
                optimizers.exist = True
                init(self, *args, **kwargs)
                optimizers.known.add(self)
                if hook_each:
                    optimizers.handles += [self.register_step_pre_hook(optimizers.before), self.register_step_post_hook(optimizers.after)]

            return __init__

        self.session.replace(cls, "__init__", make)

    # ---- what ends a step: steps.py

    def _wrap_zeroing(self, cls):
        session = self.session

        def of_optimizer(optimizer):
            return [p for group in optimizer.param_groups for p in group["params"]]

        def wrap(parameters):
            def make(original):
                def zero_grad(self, *args, **kwargs):
                    result = original(self, *args, **kwargs)
                    if not torch.compiler.is_compiling() and not session.dead:
                        try:
                            caller = sys._getframe(1)
                            by_itself = isinstance(self, cls) and caller.f_code.co_name != "step" and variable_of(caller, "self") is self
                            session.zeroed(parameters(self), by_itself)
                        except Exception as error:
                            session.fail(error)
                    return result

                return zero_grad

            return make

        session.replace(cls, "zero_grad", wrap(of_optimizer))
        session.replace(torch.nn.Module, "zero_grad", wrap(lambda module: module.parameters()))

    def _wrap_scaler(self):
        """Where gradients overflowed a scaler does not step the optimizer: the iteration is over all the same."""
        session = self.session
        scaler = getattr(getattr(torch, "amp", None), "GradScaler", None) or getattr(torch.cuda.amp, "GradScaler", None)

        def make(original):
            def step(self, *args, **kwargs):
                updates = session.optimizers.updates
                result = original(self, *args, **kwargs)
                if session.optimizers.updates == updates:
                    session.happened("update")
                return result

            return step

        if scaler is None or not session.replace(scaler, "step", make):
            session.degraded("torch has no GradScaler: steps that a scaler skips are not told from accumulation")

    def _wrap_schedulers(self):
        """Their classes inherit `step` or have one of their own; each class is wrapped once, when it is first made an instance of."""
        session, covered, inside = self.session, set(), []

        def make(original):
            def step(self, *args, **kwargs):
                inside.append(self)
                try:
                    return original(self, *args, **kwargs)
                finally:
                    inside.pop()
                    if not inside:  # not one of many that another steps, nor the first, which belongs to its making
                        session.happened("schedule")

            return step

        def cover(cls):
            for owner in cls.__mro__:
                if "step" in vars(owner) and owner not in covered:
                    covered.add(owner)
                    session.replace(owner, "step", make)

        def construction(init):
            def __init__(self, *args, **kwargs):
                cover(type(self))
                inside.append(self)
                try:
                    init(self, *args, **kwargs)
                finally:
                    inside.pop()

            return __init__

        from torch.optim import lr_scheduler

        base = getattr(lr_scheduler, "LRScheduler", None) or getattr(lr_scheduler, "_LRScheduler", None)
        if base is None:
            session.degraded("torch has no LRScheduler: a scheduler's step ends no step")
            return
        for cls in vars(lr_scheduler).values():
            if isinstance(cls, type) and issubclass(cls, base):
                cover(cls)
                if "__init__" in vars(cls) and cls is base:
                    session.replace(cls, "__init__", construction)

    def _wrap_clipping(self):
        """Clipping belongs to the optimizer phase, and its result is the gradient norm."""
        session = self.session
        from torch.nn.utils import clip_grad

        def make(function):
            def clipping(*args, **kwargs):
                if torch.compiler.is_compiling():
                    return function(*args, **kwargs)
                session.optimizer_depth += 1
                try:
                    result = function(*args, **kwargs)
                finally:
                    session.optimizer_depth -= 1
                session.scalar("grad_norm", result)
                return result

            return clipping

        if not session.replace(clip_grad, "clip_grad_norm_", make):
            session.degraded("torch.nn.utils.clip_grad_norm_ is not there: gradient norms are not seen")
            return
        wrapped = clip_grad.clip_grad_norm_
        session.replace(torch.nn.utils, "clip_grad_norm_", lambda original: _same(wrapped))

    def _wrap_backward(self):
        """Says when backward runs, and what the loss was."""
        session = self.session

        def runs(original, begins, ends):
            def backward(*args, **kwargs):
                if session.dead or torch.compiler.is_compiling():
                    return original(*args, **kwargs)
                session.threads.bring_in()
                if session.threads.backward(True) == 1:
                    session.guarded(begins, args, kwargs)
                out, done = None, False
                try:
                    out = original(*args, **kwargs)
                    done = True
                finally:
                    if session.threads.backward(False) == 0:
                        session.guarded(ends, out, done, args, kwargs)
                return out

            return backward

        def accumulates(args, kwargs):
            tensors = args[0] if args else kwargs.get("tensors")
            session.functions.backward_begins(tensors)
            if session.live:
                session.loss(tensors)

        def accumulated(out, done, args, kwargs):
            if session.live:
                self.name_gradients()
            session.saw_backward()

        def computes(args, kwargs):
            outputs = args[0] if args else kwargs.get("outputs")
            session.functions.backward_begins(outputs, args[1] if len(args) > 1 else kwargs.get("inputs"))

        def computed(out, done, args, kwargs):
            inputs = args[1] if len(args) > 1 else kwargs.get("inputs")
            create_graph = args[4] if len(args) > 4 else kwargs.get("create_graph")
            if done and create_graph:  # part of a loss, or a transform's
                session.functions.gradient_computed(inputs, out)
            elif done and self.returns(inputs, out):
                session.saw_backward()

        session.replace(torch.autograd, "backward", lambda original: runs(original, accumulates, accumulated))
        session.replace(torch.autograd, "grad", lambda original: runs(original, computes, computed))

    def returns(self, inputs, gradients):
        """`autograd.grad` of parameters is a backward whose gradients the program holds itself. False: of something else."""
        session = self.session
        inputs = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs) if isinstance(inputs, (list, tuple)) else []
        ours = {id(p) for ref in session.parameters for p in (ref(),) if p is not None}
        found = [(p, g) for p, g in zip(inputs, gradients or ()) if id(p) in ours]
        for p, g in found if session.live else ():
            if g is not None:
                session.roles.role(g, library.OTHER_SOURCE, library.IS_GRADIENT, session.roles.names.get(id(p), "?"), p)
        return bool(found)

    def name_gradients(self):
        session = self.session
        names = session.roles.names
        parameters = [p for p in (ref() for ref in session.parameters) if p is not None]
        for p, grad in session.threads.gradients_of(parameters) or ():
            session.roles.role(grad, library.OTHER_SOURCE, library.IS_GRADIENT, names.get(id(p), "?"), p)

    # ---- steps

    def running(self, begins=False):
        """The outermost optimizer's step that this thread is in; None. One that an exception ended had no hook to say so: it is put
        away. `begins`: the innermost that torch runs is not counted yet."""
        mine = [running for running in self.stack if running.thread == threading.get_ident()]
        if not mine:
            return None
        stepping = _stepping(sys._getframe(1))
        if begins:
            stepping.pop(0)
        alive = []
        for running in mine:
            if any(running.optimizer is optimizer for optimizer in stepping):
                alive.append(running)
            else:
                self.stack.remove(running)
                self.session.optimizer_depth -= 1
        return alive[0] if alive else None

    def step_began(self):
        """Of the recording: all ops of running steps come."""
        for running in self.stack:
            running.first_op = 0

    def backward_ended(self):
        """What a closure ran is not the update."""
        if self.stack and self.session.live:
            for running in self.stack:
                running.first_op = self.session.native.next_op()

    def before(self, optimizer, args, kwargs):
        if torch.compiler.is_compiling():
            return
        session = self.session
        try:
            if self.running(begins=True) is None:
                session.look_for_gradients()
            session.marks.look()
            session.optimizer_depth += 1
            self.exist = True
            self.known.add(optimizer)
            self.stack.append(_Running(optimizer, 0))
            if not session.live:
                return
            session.threads.bring_in()
            session.threads.trains()
            self.stack[-1].first_op = session.native.next_op()
            self.name_states(optimizer, session.roles.names)
        except Exception as error:
            session.fail(error)

    def after(self, optimizer, args, kwargs):
        if torch.compiler.is_compiling():
            return
        session = self.session
        try:
            at = next((n for n in reversed(range(len(self.stack))) if self.stack[n].optimizer is optimizer), None)
            if at is None:
                return
            first_op = self.stack[at].first_op
            session.optimizer_depth -= len(self.stack) - at  # and what an exception left within it
            del self.stack[at:]
            self.updates += 1
            if session.live:
                self._groups(optimizer, first_op)
            if not self.stack:
                session.happened("update")
        except Exception as error:
            session.fail(error)

    def _groups(self, optimizer, first_op):
        names = self.session.roles.names
        self.name_states(optimizer, names)
        for index, group in enumerate(optimizer.param_groups):
            self._group(optimizer, index, first_op, group, names)

    def name_states(self, optimizer, names):
        """Once a step, unless they are others by then."""
        key = (self.session.step, id(names), _sample(optimizer.state))
        if self.named.get(optimizer) == key:
            return
        self.named[optimizer] = key
        for p, state in list(optimizer.state.items()):
            if not isinstance(state, dict):
                continue
            name = names.get(id(p), "?")
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    self.session.roles.name(value, library.STATE, library.IS_STATE, "optimizer.%s:%s" % (key, name), p)

    def _group(self, optimizer, index, first_op, group, names):
        members = [(names.get(id(p), "?"), local(p), local(p.grad)) for p in group["params"]]
        options = []
        for key, value in group.items():
            if key == "params":
                continue
            if isinstance(value, (tuple, list)):
                options += [("%s.%d" % (key, n), float(v)) for n, v in enumerate(value) if isinstance(v, (int, float))]
                continue
            number = number_of(value, self.session.devices)
            if number is not None:
                options.append((key, number))
        count = _count_in(optimizer.state, group)
        if count is not None:
            options.append(("state.step", float(count)))
        self.session.native.group(type(optimizer).__name__, index, first_op, members, options)


def _sample(state):
    """How many states there are, and which those of the first and last parameter are."""
    states = list(state.values())
    return len(states), tuple(id(value) for end in states[:1] + states[-1:] if isinstance(end, dict) for value in end.values())


def _count_in(states, group):
    """Steps that were counted for the first parameter of a group as a plain number, which no op shows."""
    state = states.get(group["params"][0]) if group["params"] else None
    counts = [state[key] for key in ("step", "steps", "t") if key in state] if isinstance(state, dict) else []
    return next((count for count in counts if type(count) is int), None)


def _stepping(frame):
    """The optimizers whose `step` is among the callers of this frame, innermost first."""
    found = []
    while frame is not None:
        if frame.f_code.co_name == "wrapper" and frame.f_code.co_filename.endswith("optim/optimizer.py"):
            found.append(variable_of(frame, "self"))
        frame = frame.f_back
    return found
