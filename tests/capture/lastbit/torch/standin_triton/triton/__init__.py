"""A stand-in for Triton where it cannot be had: kernels are launched by the same interface and run as plain Python, and they write to the
memory of tensors where PyTorch does not see it. STANDIN_TRITON says whose interface: 2.1 (each kernel makes its own `run`) or 3."""

from . import language
from .runtime.autotuner import Config, autotune
from .runtime.jit import jit

__all__ = ["Config", "autotune", "cdiv", "jit", "language"]


def cdiv(a, b):
    return -(-a // b)
