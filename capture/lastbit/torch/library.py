"""The C recorder, loaded by ctypes. No torch C++ ABI is involved, and no Python header was compiled in.

Its calls are builtin functions of its own making (capture/binding/python_recording.c and python_program.c say what each takes):
calling one costs what a method of a list costs, and failures arrive as exceptions. `bind` gives them all as attributes of
one object.
"""

import ctypes
import os
import types

from .. import library_path

VIEW, MUTABLE, RANDOM, DECISION, UNDEFINED, RECOMPUTE, COLLECTIVE, COMPOSITE = (1 << n for n in range(8))

WRITTEN, OVERWRITTEN, CHANGED, INT_MEANS_FLOAT = 1, 2, 4, 128

PARAMETER, STATE, BATCH, OTHER_SOURCE = 1, 2, 3, 9
IS_PARAMETER, IS_GRADIENT, IS_STATE, IS_INPUT = 1 << 3, 1 << 4, 1 << 5, 1 << 6


class Failed(Exception):
    """The recorder refused; `status` is its lb_status."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


def load():
    """The library itself, for what is not a call of a running recording."""
    return ctypes.CDLL(library_path())


def beneath_nccl():
    """The library beneath NCCL (lastbit/nccl.h) where this process has it by now: preloaded, or opened by a path; else None."""
    for name, how in ((None, os.RTLD_LAZY), (os.environ.get("LASTBIT_NCCL_SHIM"), os.RTLD_LAZY | os.RTLD_NOLOAD)):
        try:
            library = ctypes.CDLL(name, mode=how)
            library.lb_nccl_join.argtypes = [ctypes.c_int]
            library.lb_nccl_join.restype = None
            library.lb_nccl_last_order.restype = ctypes.c_char_p
            return library
        except (OSError, AttributeError):
            pass  # it is not there


def bind(objects):
    """The calls of one recording. `objects`: everything of Python that they need, by name (LB_PYTHON_OBJECTS)."""
    library = ctypes.PyDLL(library_path())
    library.lb_python_start.restype = ctypes.c_char_p
    missing = library.lb_python_start().decode()
    if missing:
        raise RuntimeError("this Python has no %s: only CPython is supported" % missing)
    library.lb_python_bind.restype = ctypes.py_object
    library.lb_python_bind.argtypes = [ctypes.py_object]
    return types.SimpleNamespace(**library.lb_python_bind(objects))
