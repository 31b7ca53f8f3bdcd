import ctypes
import functools
import inspect
import os

import numpy as np

from .. import language


class KernelInterface:
    def __getitem__(self, grid):
        if "run" in vars(self):
            return functools.partial(self.run, grid=grid)
        return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)


def memory_of(argument):
    if not hasattr(argument, "data_ptr"):
        return argument
    floats = (ctypes.c_float * argument.numel()).from_address(argument.data_ptr())
    return language.Pointer(np.frombuffer(floats, dtype=np.float32))


class JITFunction(KernelInterface):
    def __init__(self, fn):
        self.fn = fn
        self.arg_names = list(inspect.signature(fn).parameters)
        self.__module__ = fn.__module__
        if os.environ.get("STANDIN_TRITON") == "2.1":
            self.run = functools.partial(_launch, self)

    if os.environ.get("STANDIN_TRITON") != "2.1":

        def run(self, *args, grid, warmup, **kwargs):
            return _launch(self, *args, grid=grid, warmup=warmup, **kwargs)

    def __call__(self, *args):
        return self.fn(*args)


def _launch(kernel, *args, grid, warmup=False, num_warps=4, **kwargs):
    given = {**dict(zip(kernel.arg_names, args)), **kwargs}
    for program in range((grid(given) if callable(grid) else grid)[0]):
        language.program = program
        kernel.fn(**{name: memory_of(value) for name, value in given.items()})


def jit(fn):
    return JITFunction(fn)
