"""Optimizers: the phase, the parameter groups with names, states; the gradient norm where it is clipped; the loss."""
import torch

from . import library
from .objects import local, number_of


def _same(function):
    """A function of its own that does the same: each place that is replaced is put back by itself."""

    def call(*args, **kwargs):
        return function(*args, **kwargs)

    return call


class Optimizers:
    def __init__(self, session):
        self.session = session
        self.handles = []
        self.first_op = 0
        self.exist = False  # an optimizer was made

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
        self._wrap_clipping()
        self._wrap_backward()

    def remove(self):
        for handle in self.handles:
            handle.remove()
        self.handles = []

    def _note_construction(self, cls, hook_each):
        """An optimizer that exists but has not stepped keeps a step open. `hook_each`: its steps are seen by hooks of its own."""
        optimizers = self

        def make(init):
            def __init__(self, *args, **kwargs):
                optimizers.exist = True
                init(self, *args, **kwargs)
                if hook_each:
                    optimizers.handles += [self.register_step_pre_hook(optimizers.before),
                                           self.register_step_post_hook(optimizers.after)]

            return __init__

        self.session.replace(cls, "__init__", make)

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

        def make(original):
            def backward(tensors, *args, **kwargs):
                if session.dead or torch.compiler.is_compiling():
                    return original(tensors, *args, **kwargs)
                session.bring_in()
                if session.backward(True) == 1 and session.live:
                    session.loss(tensors)
                try:
                    return original(tensors, *args, **kwargs)
                finally:
                    if session.backward(False) == 0 and session.live:
                        self.name_gradients()

            return backward

        session.replace(torch.autograd, "backward", make)

    def name_gradients(self):
        session = self.session
        try:
            names = session.parameter_names()
            for ref in session.modules.roots:
                root = ref()
                for p in root.parameters() if root is not None else ():
                    if p.grad is not None:
                        session.role(p.grad, library.OTHER_SOURCE, library.IS_GRADIENT, names.get(id(p), "?"))
        except Exception as error:
            session.fail(error)

    # ---- steps

    def before(self, optimizer, args, kwargs):
        if torch.compiler.is_compiling():
            return
        session = self.session
        session.optimizer_depth += 1
        self.exist = True
        if not session.live:
            return
        try:
            session.bring_in()
            session.trains()
            self.first_op = session.native.next_op()
            self._states(optimizer, session.parameter_names())
        except Exception as error:
            session.fail(error)

    def after(self, optimizer, args, kwargs):
        if torch.compiler.is_compiling():
            return
        session = self.session
        session.optimizer_depth = max(0, session.optimizer_depth - 1)
        session.optimizer_stepped = True
        if not session.live:
            return
        try:
            names = session.parameter_names()
            self._states(optimizer, names)
            for index, group in enumerate(optimizer.param_groups):
                self._group(type(optimizer).__name__, index, group, names)
        except Exception as error:
            session.fail(error)

    def _states(self, optimizer, names):
        for p, state in optimizer.state.items():
            if not isinstance(state, dict):
                continue
            name = names.get(id(p), "?")
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    self.session.role(value, library.STATE, library.IS_STATE, "optimizer.%s:%s" % (key, name))

    def _group(self, class_name, index, group, names):
        members = [(names.get(id(p), "?"), local(p), local(p.grad)) for p in group["params"]]
        options = []
        for key, value in group.items():
            if key == "params":
                continue
            if isinstance(value, (tuple, list)):
                options += [("%s.%d" % (key, n), float(v)) for n, v in enumerate(value) if isinstance(v, (int, float))]
                continue
            number = number_of(value)
            if number is not None:
                options.append((key, number))
        self.session.native.group(class_name, index, self.first_op, members, options)
