"""Kernels that a program launches itself, past every op: Triton's, as `kernel[grid](…)`.

Each launch is recorded as an op of unknown contents, `triton::NAME`, with the arguments that the kernel's function names. The tensors
among them are read before it runs; those that its code may store through (kernel_writes.py) have new bytes after. Where a launch is
inside a registered op (`torch.library.triton_op`, `custom_op`), that op is what is recorded.

The outermost call counts: an autotuner tries a kernel many times, and its trials are part of the one launch that the program asked for.
"""

import functools
import sys
import threading

import torch

from . import kernel_writes
from .library import COMPOSITE, MUTABLE, WRITTEN

# Module -> what is wrapped there when it has been imported: class, and whether its method launches or gives what does. JITFunction has
# no `run` of its own before Triton 2.2, where each object makes one; the interpreter's objects make one to this day.
_LAUNCHES = {
    "triton.runtime.jit": (("JITFunction", "run"), ("KernelInterface", "__getitem__")),
    "triton.runtime.autotuner": (("Autotuner", "run"), ("Heuristics", "run")),
    "triton.runtime.interpreter": (("InterpretedFunction", "__getitem__"),),
}


class Kernels:
    def __init__(self, session):
        self.session = session
        self.here = threading.local()  # .inside: a launch is going on in this thread
        self.plans = set()  # functions that the recorder knows
        self.chosen = set()  # what was said of autotuners
        self.wrapped = set()  # classes

    def install(self):
        finder = _Finder(self)
        sys.meta_path.insert(0, finder)
        self.session.undo.append(lambda: sys.meta_path.remove(finder) if finder in sys.meta_path else None)
        for name in _LAUNCHES:
            self.imported(name)

    def imported(self, name):
        module = sys.modules.get(name)
        for kind, method in _LAUNCHES[name]:
            owner = getattr(module, kind, None)
            if owner is None or (name, kind) in self.wrapped:
                continue
            if kind == "KernelInterface" and "run" in vars(module.JITFunction):
                continue
            if self.session.replace(owner, method, self._launching if method == "run" else self._giving):
                self.wrapped.add((name, kind))

    def _launching(self, method):
        def run(kernel, *args, **kwargs):
            return self.launch(kernel, functools.partial(method, kernel), args, kwargs)

        return run

    def _giving(self, method):
        def getitem(kernel, grid):
            return functools.partial(self.launch_given, kernel, method(kernel, grid))

        return getitem

    def launch_given(self, *given, **kwargs):
        """Kernel, what launches it, its arguments; positional all, as a kernel may call an argument of its own anything."""
        return self.launch(given[0], given[1], given[2:], kwargs)

    def launch(self, kernel, run, args, kwargs):
        """Runs `run`, as the program would, and records what it was."""
        session = self.session
        if not session.live or torch.compiler.is_compiling() or kwargs.get("warmup") or getattr(self.here, "inside", False):
            return run(*args, **kwargs)
        if session.threads.modes_active() <= session.threads.inherited:  # inside of an op
            return run(*args, **kwargs)
        self.here.inside = True
        begun = None
        try:
            begun = self.begin(kernel, args, kwargs)
            out = run(*args, **kwargs)
        except BaseException:
            self.close(kernel, begun, failed=True)
            raise
        else:
            self.close(kernel, begun)
            return out
        finally:
            self.here.inside = False

    def begin(self, kernel, args, kwargs):
        """The number of the op; None where recording has ended."""
        session = self.session
        try:
            function, names = _function_of(kernel)
            if function not in self.plans:
                session.native.plan(_plan(kernel, function, names))
                self.plans.add(function)
            values = dict(zip(names, args))
            values.update((name, value) for name, value in kwargs.items() if name in names)
            session.escapes.settle(None)  # a kernel may have addresses beside its tensors
            begun = session.native.begin(function, (), {name: _plain(value) for name, value in values.items()})
            session.native.aside(True)
            return begun
        except Exception as error:
            session.fail(error)
            return None

    def close(self, kernel, begun, failed=False):
        session = self.session
        if begun is None:
            return
        try:
            session.native.aside(False)
            if not session.live:
                return
            if failed:
                session.native.failed_op(begun)
            else:
                session.native.end(begun, None, False)
                self.say_chosen(kernel)
        except Exception as error:
            session.fail(error)

    def say_chosen(self, kernel):
        """Which configuration an autotuner took: another one adds up in another order."""
        for layer in _layers(kernel):
            best = getattr(layer, "best_config", None)
            text = "triton::%s ran with %s" % (_function_of(kernel)[0].__name__, best)
            if best is not None and text not in self.chosen:
                self.chosen.add(text)
                self.session.noticed("autotuned", text)


class _Finder:
    """Finds nothing itself: it lets the others find a module of Triton and wraps what launches once that has run."""

    def __init__(self, kernels):
        self.kernels = kernels

    def find_spec(self, name, path=None, target=None):
        if name not in _LAUNCHES or self.kernels.session.dead:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                self.wrap(spec, name)
                return spec
        return None

    def wrap(self, spec, name):
        session, run = self.kernels.session, getattr(spec.loader, "exec_module", None)

        def exec_module(module):
            run(module)
            session.guarded(self.kernels.imported, name)

        try:
            if run is not None:
                spec.loader.exec_module = exec_module  # on this one loader
        except AttributeError as error:
            session.noticed("degraded", "kernels of %s are not seen: %s" % (name, error))


def _layers(kernel):
    """An autotuner around heuristics around a kernel, from the outside in, and the function at last."""
    seen = []
    while kernel is not None and len(seen) < 16:
        seen.append(kernel)
        kernel = getattr(kernel, "fn", None)
    return seen


def _function_of(kernel):
    layers = _layers(kernel)
    names = next((layer.arg_names for layer in layers if getattr(layer, "arg_names", None) is not None), ())
    return layers[-1], tuple(names)


def _plan(kernel, function, names):
    """As dispatch.describe makes it of an op."""
    written = kernel_writes.parameters(function, names)
    if written is None or _has_hooks(kernel):
        written = names
    return {
        "func": function,
        "callee": function,
        "name": "triton::" + function.__name__,
        "flags": COMPOSITE | (MUTABLE if written else 0),
        "arg_flags": bytes(WRITTEN if name in written else 0 for name in names),
        "names": names,
        "defaults": (None,) * len(names),
        "chance": -1,
        "non_blocking": -1,
        "writing_switch": -1,
    }


def _has_hooks(kernel):
    """Functions of the program that run before its kernel and may write to what it is given."""
    for layer in _layers(kernel):
        if getattr(layer, "pre_run_hooks", None) or getattr(layer, "user_defined_pre_hook", False) or getattr(layer, "reset_idx", None):
            return True
        if getattr(layer, "reset_to_zero", None) or any(getattr(c, "pre_hook", None) for c in getattr(layer, "configs", None) or ()):
            return True
    return False


def _plain(value):
    """An argument as the recorder takes it. Descriptors and reinterpreted tensors hold the tensor as `base`, constants their value."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    base = getattr(value, "base", None)
    if isinstance(base, torch.Tensor):
        return base
    if isinstance(value, (torch.Tensor, int, float, str, type(None), torch.dtype)):
        return value
    if type(value).__name__ == "constexpr":
        return _plain(value.value)
    return str(value) if type(value).__module__.startswith("triton.") else value
