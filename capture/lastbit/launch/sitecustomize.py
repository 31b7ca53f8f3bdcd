"""Starts recording in every Python process under `lastbit record`, which puts this folder first on PYTHONPATH.

It runs before the program, in processes that will never import torch too. So it imports nothing that the interpreter
has not loaded already, waits on the import of torch, runs the sitecustomize that it hides, and lets no exception of its
own out: a recorder that cannot start says so in one line, and the program goes on as if we were not there.
"""

import os
import sys

_HERE = os.path.dirname(os.path.realpath(__file__))


_at = None  # process, and the file that says how far it is


def _reached(step):
    """The step that runs now, written ahead, since the process may be killed."""
    global _at
    if _at is None or _at[0] != os.getpid():
        path = os.path.join(os.environ["LASTBIT_OUT"], "launch.%d.at" % os.getpid())
        _at = os.getpid(), os.open(path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
    os.pwrite(_at[1], b"%-20d" % int(step), 0)


def _note(kind, text=""):
    """One line for `lastbit record`, which reads them when the program has ended. Appending a short line is atomic."""
    try:
        if kind == "at":
            _reached(text)
            return
        path = os.path.join(os.environ["LASTBIT_OUT"], "launch.log")
        line = "%s %d %s" % (kind, os.getpid(), " ".join(text.split())[:400])
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            os.write(file, line.encode("utf-8", "replace") + b"\n")
        finally:
            os.close(file)
    except Exception:
        pass


def _fail(error):
    text = "%s: %s" % (type(error).__name__, error)
    text = getattr(sys.modules.get("lastbit.secret_text"), "mask_text", str)(text)
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    _note("failed", text)
    try:
        sys.stderr.write("lastbit: nothing is recorded in process %d: %s\n" % (os.getpid(), text))
    except Exception:
        pass


_OTHERS = ("jax", "tensorflow", "paddle", "mlx", "mxnet")  # their ops are not seen, and `lastbit record` says so


def _start():
    """torch is there: hands over to the recorder. Loaded by its place, so that no other `lastbit` can be meant."""
    try:
        _note("torch")
        if sys.version_info < (3, 9):
            raise RuntimeError("Python 3.9 or newer is needed, this is %d.%d" % sys.version_info[:2])
        if "lastbit" not in sys.modules:
            import importlib.util

            folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
            spec = importlib.util.spec_from_file_location("lastbit", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder])
            package = importlib.util.module_from_spec(spec)
            sys.modules["lastbit"] = package
            spec.loader.exec_module(package)
        from importlib import import_module

        recorder = import_module("lastbit.torch")
        if hasattr(recorder, "autostart"):
            _autostart(recorder)
        else:  # the program imported it, and it torch: it is not whole yet
            recorder.when_whole = _autostart
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        _fail(error)


def _autostart(recorder):
    try:
        recorder.autostart(_note)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        _fail(error)


class _AfterTorch:
    """A finder that finds nothing itself: it lets the others find torch and adds one thing after its module has run."""

    def __init__(self):
        self.done = False

    def find_spec(self, name, path=None, target=None):
        if (name != "torch" and name not in _OTHERS) or self.done:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                self.wrap(spec.loader, name)
                return spec
        return None

    def wrap(self, loader, name):
        try:
            run = loader.exec_module

            def exec_module(module):
                run(module)
                if name != "torch":  # what it computes with, should torch never come
                    _note("framework", name)
                elif not self.done:  # a reload of torch starts nothing anew
                    self.done = True
                    if self in sys.meta_path:
                        sys.meta_path.remove(self)
                    _start()

            loader.exec_module = exec_module  # on this one loader: its class and everything else of it stay
        except Exception as error:
            _fail(error)


def _module_of(spec):
    """importlib.util.module_from_spec, from where it comes: importlib.util is loaded at start by some versions only."""
    bootstrap = sys.modules.get("_frozen_importlib")
    if not hasattr(bootstrap, "module_from_spec"):
        import importlib.util as bootstrap
    return bootstrap.module_from_spec(spec)


def _chain():
    """Runs the sitecustomize that this one hides; what it raises is the program's business, as it was before."""
    path = [entry for entry in sys.path if os.path.realpath(entry) != _HERE]
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        spec = find("sitecustomize", path) if find else None
        if spec is not None and spec.loader is not None:
            break
    else:
        return
    module = _module_of(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if os.environ.get("LASTBIT_OUT") and os.environ.get("LASTBIT_DISABLE") != "1":
    try:
        _note("python", "%d.%d.%d" % sys.version_info[:3])
        if "torch" in sys.modules:
            _start()
        elif sys.version_info >= (3, 4):  # any interpreter may find this file; an older one cannot have a torch we know
            sys.meta_path.insert(0, _AfterTorch())
    except Exception as _error:
        _fail(_error)
_chain()
