"""`--step-at NAME`: the program's own word for where a step begins: a module, by its path or class, or a function.

A function is named as Python names it: `train_step`, `Trainer.training_step`, or with its module before it, `train.loop.train_step`.
It is replaced by one that says so before it calls it. The program's own functions come into being while it runs, so they are looked
for at each forward, backward and optimizer step until one is there; a call that runs already when it is found counts at once.
"""

import functools
import inspect
import sys


class Marks:
    def __init__(self, session, name):
        self.session = session
        self.name = name
        self.found = False  # a function of that name was replaced

    def met(self, modules, module):
        """A module is about to be called."""
        known = modules.entries.get(id(module))
        path = known[1] if known is not None and known[0]() is module else None
        if self.name in (path, type(module).__name__, type(module).__qualname__):
            self.hit()
        else:
            self.look()

    def hit(self):
        session = self.session
        if session.dead or session.threads.in_backward():
            return
        try:
            with session.lock:
                session.see("mark")
        except Exception as error:
            session.fail(error)

    def look(self):
        """Finds the function and puts ours in its place."""
        if self.found or not self.name:
            return
        for owner, attribute, function in self._candidates():
            self.found = True
            self.function = function
            self._replace(owner, attribute, function)
            self.catch_up()
            return

    function = None  # the program's own, once it was found

    def catch_up(self):
        """A call that began before the function was replaced counts at once."""
        if _is_running(self.function):
            self.hit()

    def _candidates(self):
        main = sys.modules.get("__main__")
        holders = [(main, self.name.split("."))] if main is not None else []
        parts = self.name.split(".")
        for n in range(len(parts) - 1, 0, -1):
            module = sys.modules.get(".".join(parts[:n]))
            if module is not None:
                holders.append((module, parts[n:]))
        for owner, path in holders:
            try:
                for name in path[:-1]:
                    owner = getattr(owner, name)
                function = getattr(owner, path[-1])
            except AttributeError:
                continue
            if callable(function) and not isinstance(function, type):
                yield owner, path[-1], function

    def _replace(self, owner, attribute, function):
        raw = inspect.getattr_static(owner, attribute)
        kind = type(raw) if isinstance(raw, (staticmethod, classmethod)) else None
        original = function if kind is None else raw.__func__

        @functools.wraps(original)
        def called(*args, **kwargs):
            self.hit()
            return original(*args, **kwargs)

        self._put(owner, attribute, called if kind is None else kind(called))
        for module in list(sys.modules.values()):  # `from train import train_step` made names of its own
            names = getattr(module, "__dict__", None)
            for name in [n for n, value in list(names.items()) if value is function] if isinstance(names, dict) else ():
                self._put(module, name, called)

    def _put(self, owner, name, ours):
        own, before = name in vars(owner), vars(owner).get(name)
        setattr(owner, name, ours)

        def undo():
            if vars(owner).get(name) is ours:
                setattr(owner, name, before) if own else delattr(owner, name)

        self.session.undo.append(undo)


def _is_running(function):
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    frame = sys._getframe(1)
    while frame is not None and code is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False
