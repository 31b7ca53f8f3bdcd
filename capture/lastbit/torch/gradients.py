"""Which gradients a backward left at parameters, and whether they are there still: a step that a scaler or a guard skips is seen by
nothing else than that they are zeroed or replaced before the next forward.

No hook sees `p.grad = None` and `p.grad.zero_()`, so the gradients are looked at when the next outermost forward begins. No
reference to a gradient is kept: holding one would change what autograd does. Which there are is asked of Threads.gradients_of, by which
none is read that another thread's backward may set; what cannot be asked is not known, and says nothing.
"""

import sys
import weakref

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .devices import is_capturing
from .frames import variable_of
from .objects import local

_MANY = 32
_FEW = 1 << 16  # elements of a gradient that is looked at
_SAMPLE = 16  # of a parameter


class Gradients:
    def __init__(self, gradients_of):
        self.gradients_of = gradients_of
        self.left = {}  # id(parameter) -> (weak reference, storage of its gradient, version of it)

    def remember(self, parameters):
        """A backward has ended. Of many gradients some speak for all: they are zeroed together."""
        self.left = {}
        found = self.gradients_of(parameters) or []
        for p, grad in found[:: max(1, len(found) // _MANY)]:
            try:
                self.left[id(p)] = (weakref.ref(p), *_state(grad))
            except (RuntimeError, NotImplementedError, AttributeError):
                pass  # a gradient without a storage of its own (sparse)

    def forget(self):
        self.left = {}

    def took(self, parameters):
        """These were zeroed or set to None. True when that were the last ones."""
        if not self.left:
            return False
        taken = set(map(id, parameters))
        self.left = {key: gradient for key, gradient in self.left.items() if key not in taken}
        return not self.left

    def are_gone(self):
        """Whether all of them were zeroed or replaced. What is gone is forgotten."""
        if not self.left:
            return False
        found = self.gradients_of([p for p in (ref() for ref, _, _ in self.left.values()) if p is not None])
        if found is None:
            return False
        there = {id(p): grad for p, grad in found}
        try:
            for key, (_, storage, version) in list(self.left.items()):
                grad = there.get(key)
                if grad is not None:
                    now, since = _state(grad)
                    if now == storage and (since == version or is_capturing() or not _is_zero(grad)):
                        return False
                del self.left[key]
        except (RuntimeError, NotImplementedError, AttributeError):
            self.left = {}
            return False
        return True


class Weights:
    """Whether parameters were written since a backward: a program without an optimizer updates them by itself. Writes through `p.data`
    count no version, so that of tensors on the CPU a few elements are looked at, too."""

    def __init__(self, gradients_of):
        self.gradients_of = gradients_of
        self.seen = {}  # id(parameter) -> (weak reference, storage, version, a few elements)

    def remember(self, parameters):
        found = [p for p, _ in self.gradients_of(parameters) or ()]
        self.seen = {}
        for p in found[:: max(1, len(found) // _MANY)]:
            try:
                self.seen[id(p)] = (weakref.ref(p), *_state(p), _some_of(p))
            except (RuntimeError, NotImplementedError, AttributeError):
                pass  # a parameter without a storage of its own

    def are_written(self):
        """What was seen is forgotten when it was."""
        if is_capturing():
            return False
        try:
            for ref, storage, version, some in self.seen.values():
                p = ref()
                if p is not None and (_state(p) != (storage, version) or not _is_equal(_some_of(p), some)):
                    self.seen = {}
                    return True
        except (RuntimeError, NotImplementedError, AttributeError):
            self.seen = {}
        return False


def is_differentiated_later():
    """Whether what runs now, without gradients, is the forward of an autograd.Function that the program calls with gradients: the adjoint
    method of an ODE, a reversible network, reentrant checkpoints. Its backward computes the gradients."""
    frame, found = sys._getframe(1), False
    while frame is not None and frame.f_back is not None:
        if frame.f_back.f_code is _APPLY:  # the outermost counts: those inside it run without gradients
            found = _is_recorded(frame)
        frame = frame.f_back
    return found


_APPLY = torch.autograd.Function.apply.__func__.__code__


def _is_recorded(frame):
    """Of the frame of a Function's forward: autograd links the node to its inputs' where gradients are computed, and only there."""
    names = frame.f_code.co_varnames[: frame.f_code.co_argcount] if frame.f_code.co_argcount else frame.f_code.co_varnames[:1]
    context = variable_of(frame, names[0]) if names else None
    if hasattr(context, "next_functions"):
        return bool(context.next_functions)
    return any(isinstance(a, torch.Tensor) and a.requires_grad for a in variable_of(frame.f_back, "args") or ())


def _state(grad):
    grad = local(grad)
    return grad.untyped_storage()._cdata, grad._version


def _is_zero(grad):
    """Clipping and unscaling write to gradients as well. Not recorded, and of a large one only a part. While a graph is captured it
    is not asked: that would spoil the capture."""
    with _disable_current_modes(), torch.no_grad():
        return not bool(local(grad).detach().flatten()[:_FEW].count_nonzero())


def _some_of(p):
    """Elements from all of its storage; None where reading them would wait for a device."""
    p = local(p)
    if p.device.type != "cpu":
        return None
    with _disable_current_modes(), torch.no_grad():
        n = p.untyped_storage().nbytes() // p.element_size()
        apart = max(1, n // _SAMPLE)
        return p.detach().as_strided((min(_SAMPLE, n),), (apart,), 0).clone()


def _is_equal(x, y):
    if x is None or y is None:
        return x is y
    with _disable_current_modes(), torch.no_grad():
        return torch.equal(x, y)
