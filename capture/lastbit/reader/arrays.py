"""Elements of a value as NumPy and torch see them, in the capture's memory. Neither is imported before it is asked for."""

import ctypes
from typing import Any, Dict, Tuple

from .layout import Error, Report, Tensor, check


class _Held:
    """What NumPy takes an array from (`__array_interface__`), and keeps as the array's base: it holds the memory."""

    __slots__ = ("memory", "__array_interface__")

    def __init__(self, memory: Any, interface: Dict[str, Any]) -> None:
        self.memory, self.__array_interface__ = memory, interface


def _layout(tensor: Tensor) -> Tuple[Tuple[int, ...], Tuple[int, ...]]:
    n = tensor.layout.ndim
    return tuple(tensor.layout.shape[:n]), tuple(tensor.layout.stride[:n])


def _is_empty(shape: Tuple[int, ...]) -> bool:
    return 0 in shape


def numpy_array(value: Any, tensor: Tensor) -> Any:
    import numpy

    library, (shape, strides) = value.step.memory.library, _layout(tensor)
    bits, typestr, fields = library.lb_dtype_bits(tensor.dtype), library.lb_dtype_numpy(tensor.dtype).decode(), None
    if bits < 8:
        raise Error("%r: NumPy has no elements of %d bits; tobytes() has them, two to a byte" % (value, bits), "LB_ERR_UNSUPPORTED")
    if not typestr:
        name = value.dtype
        fields = [("real", "<f2"), ("imag", "<f2")] if name == "c32" else [(name, "<u%d" % (bits // 8))]
        typestr = "|V%d" % (bits // 8)
    interface: Dict[str, Any] = {
        "version": 3,
        "typestr": typestr,
        "shape": shape,
        "strides": tuple(stride * (bits // 8) for stride in strides) if not _is_empty(shape) else None,
        "data": (tensor.data, True),
    }
    if fields:
        interface["descr"] = fields
    array = numpy.asarray(_Held(value.step.memory, interface))
    return array.view(numpy.dtype(fields)) if fields and array.dtype.names is None else array


def _span(shape: Tuple[int, ...], strides: Tuple[int, ...]) -> int:
    """Elements from the first to the last that strides which are not negative reach, both included."""
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides))


def torch_tensor(value: Any, tensor: Tensor, copy: bool) -> Any:
    import torch

    library, (shape, strides) = value.step.memory.library, _layout(tensor)
    dtype, bits = getattr(torch, library.lb_dtype_torch(tensor.dtype).decode(), None), library.lb_dtype_bits(tensor.dtype)
    if dtype is None or bits < 8:
        raise Error("%r: this torch (%s) has no elements of %s; tobytes() has them" % (value, torch.__version__, value.dtype), "LB_ERR_UNSUPPORTED")
    if _is_empty(shape):
        return torch.empty_strided(shape, [max(stride, 0) for stride in strides], dtype=dtype)
    if any(stride < 0 and size > 1 for size, stride in zip(shape, strides)):
        return torch.frombuffer(bytearray(gathered(value, tensor)), dtype=torch.uint8).view(dtype).reshape(shape)
    strides = tuple(max(stride, 0) for stride in strides)
    buffer: Any = (ctypes.c_char * (_span(shape, strides) * bits // 8)).from_address(tensor.data)
    buffer.memory = value.step.memory  # torch holds the buffer for as long as a tensor has its storage
    view = torch.frombuffer(buffer, dtype=torch.uint8).view(dtype).as_strided(shape, strides)
    return view.clone() if copy else view


def gathered(value: Any, tensor: Tensor) -> bytes:
    library, (shape, _) = value.step.memory.library, _layout(tensor)
    elements = 1
    for size in shape:
        elements *= size
    memory, report = ctypes.create_string_buffer(-(-elements * library.lb_dtype_bits(tensor.dtype) // 8) or 1), Report()
    if not elements:
        return b""
    check(library.lb_tensor_gather(ctypes.byref(tensor), memory, ctypes.byref(report)), report)
    return memory.raw
