"""What tensors are called: parameters and buffers by their module's path, states by their optimizer, the rest by who holds them.

A name is the path from the outermost module that the program calls. Modules that are called by a part of them (a LightningModule, an
agent with an actor and a critic) and modules that are not called at all (an average of the weights) are not handed to us: they are found
among the objects that Python's garbage collector knows, rarely, and no reference to them is kept.
"""

import gc
import sys
import time
import weakref

import torch

from .frames import seen_in

_SEARCHES, _SECONDS = 12, 2.0  # of a process's objects, and for all of them together: one costs some tens of milliseconds


class Family:
    """Which module holds which."""

    def __init__(self):
        self.holders = {}  # id(module) -> (weak reference to it, weak reference to the module that holds it, under what name)
        self.tops = []  # weak references to modules that none holds
        self.searches, self.seconds = 0, 0.0

    def search(self, module=None):
        """Looks at all objects, where that may tell of a module that was not there the last time."""
        if self.searches >= _SEARCHES or self.seconds > _SECONDS or (module is not None and self._known(module) is not None):
            return
        began = time.monotonic()
        self.searches += 1
        found = [m for m in gc.get_objects() if issubclass(type(m), torch.nn.Module)]
        self.holders = {}
        for holder in found:
            for name, child in (vars(holder).get("_modules") or {}).items():
                if child is not None:
                    self.holders.setdefault(id(child), (weakref.ref(child), weakref.ref(holder), name))
        self.tops = [weakref.ref(m) for m in found if self._known(m) is None]
        self.seconds += time.monotonic() - began

    def _known(self, module):
        known = self.holders.get(id(module))
        return known if known is not None and known[0]() is module else None

    def path(self, module):
        """(The outermost module that holds it, its path from there). Holders that hold nothing else with parameters are wrappers:
        the path begins below them."""
        parts, top, seen = [], module, set()
        while id(top) not in seen:
            seen.add(id(top))
            known = self._known(top)
            holder = known[1]() if known is not None else None
            if holder is None:
                break
            parts.insert(0, (holder, known[2]))
            top = holder
        while parts and _is_wrapper(parts[0][0], parts[0][1]):
            parts.pop(0)
        return (parts[0][0] if parts else module), ".".join(name for _, name in parts)


def _is_wrapper(holder, name):
    own = any(p is not None for p in vars(holder).get("_parameters", {}).values())
    others = [m for n, m in holder._modules.items() if m is not None and n != name]
    return not own and all(next(m.parameters(), None) is None for m in others)


_VISITS, _ALL_VISITS, _DEPTH = 4000, 20000, 4  # objects that are looked into, of one function and of all; how far below a variable
_LONGEST = 4096  # lists and dicts with more are data


def held_by_program(frame):
    """[(name, tensor)] of what the program's variables hold, by themselves, in lists and dicts, or as attributes: of the functions that
    call `frame`, of the modules that these are of, and of the main module. Of several names the outermost function's counts, and main's
    before all."""
    from .lines import is_library

    main, found, seen = vars(sys.modules.get("__main__", sys)), {}, set()
    left = _ALL_VISITS
    while frame is not None and left > 0:
        if not is_library(frame.f_code.co_filename):
            if frame.f_code.co_name != "<module>":
                left -= seen_in(frame, lambda variables: _look_into(variables, found))
            if frame.f_globals is not main and id(frame.f_globals) not in seen:
                seen.add(id(frame.f_globals))
                left -= _look_into(frame.f_globals, found)
        frame = frame.f_back
    _look_into(main, found)
    return list(found.values())


def _look_into(variables, found):
    """How many objects were looked into."""
    here, left = {}, [_VISITS]
    for name, value in list(variables.items()):
        if isinstance(name, str) and not name.startswith(("__", ".")):
            _visit(value, name, here, left, 0)
    found.update(here)
    return _VISITS - left[0]


def _visit(value, name, found, left, depth):
    left[0] -= 1
    if left[0] < 0:
        return
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        found.setdefault(id(value), (name, value))
    elif depth < _DEPTH:
        for key, inner in _inside(value):
            _visit(inner, "%s.%s" % (name, key), found, left, depth + 1)


def _inside(value):
    """What a container or an object of a class of the program holds."""
    if isinstance(value, dict):
        return [(key, inner) for key, inner in list(value.items()) if isinstance(key, (str, int))] if len(value) <= _LONGEST else []
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value))
    if type(value) in (list, tuple):
        return list(enumerate(value)) if len(value) <= _LONGEST else []
    kind = type(value)
    if kind.__module__.partition(".")[0] in _NO_HOLDERS or isinstance(value, (type, torch.nn.Module)):
        return []
    try:
        return [] if hasattr(value, "__code__") or hasattr(value, "__func__") else list(vars(value).items())
    except TypeError:
        return []


_NO_HOLDERS = {"torch", "lastbit", "builtins", "numpy", "threading", "_thread", "logging", "argparse"}
