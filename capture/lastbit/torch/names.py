"""What tensors are called: parameters and buffers by their module's path, states by their optimizer, the rest by who holds them.

A name is the path from the outermost module that the program calls. Modules that are called by a part of them (a LightningModule, an
agent with an actor and a critic) and modules that are not called at all (an average of the weights) nobody hands us: they are found
among the objects that Python's garbage collector knows, rarely, and no reference to them is kept.
"""

import gc
import sys
import time
import weakref

import torch

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


def of_main(tensors):
    """{id: name} of those of these tensors that the program itself holds, in a variable or in a list or dict in one."""
    wanted, names = {id(t) for t in tensors}, {}
    for variable, value in list(vars(sys.modules.get("__main__", sys)).items()):
        if variable.startswith("__"):
            continue
        held = {"": value}
        if type(value) is dict:
            held = value
        elif type(value) in (list, tuple):
            held = dict(enumerate(value))
        for key, t in list(held.items()):
            if id(t) in wanted and isinstance(key, (str, int)):
                names.setdefault(id(t), variable if key == "" else "%s.%s" % (variable, key))
    return names
