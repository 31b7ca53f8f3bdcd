"""Stand-ins for packages that a published implementation imports and that none of its models needs, so that it is installed alone.

`absent` names such packages; `bare` enters a package without what its own __init__ imports."""

import contextlib
import importlib.abc
import importlib.machinery
import os
import sys
import types


class StandIn(types.ModuleType):
    """Gives a class that does nothing for whatever is imported from it."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        empty = dict(__class_getitem__=classmethod(lambda cls, item: cls), __init__=lambda self, *a, **k: None)
        made = type(name, (), {**empty, "__call__": lambda self, function=None, *a, **k: function})  # as a decorator, too
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


@contextlib.contextmanager
def absent(*names):
    finder = Finder(names)
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def bare(name):
    if name not in sys.modules:
        inside = name.replace(".", os.sep)
        places = [os.path.join(folder, inside) for folder in sys.path if os.path.isdir(os.path.join(folder, inside))]
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = places[:1]
        sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
