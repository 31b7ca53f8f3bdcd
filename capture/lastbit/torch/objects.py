"""Objects of Python and torch as the recorder is told of them: what it is given once, and what it asks about the rest."""

import ctypes
import struct

import torch

Tensor = torch.Tensor


def dtypes():
    """{torch.dtype: its name in an archive}"""
    found = {}
    for name in dir(torch):
        dtype = getattr(torch, name)
        if isinstance(dtype, torch.dtype):
            text = str(dtype).replace("torch.", "")
            found[dtype] = "uint8" if text == "float4_e2m1fn_x2" else text  # torch counts pairs: bytes
    return found


def given():
    """What the recorder needs of Python and torch, but for the callbacks; see LB_PYTHON_OBJECTS in capture/binding/python_binding.h."""
    storage = torch.UntypedStorage
    for name in ("_weak_ref", "_expired", "_free_weak_ref"):
        if getattr(storage, name, None) is None:
            raise RuntimeError("this torch has no UntypedStorage.%s: storages could not be told apart" % name)
    return dict(
        none=None,
        true_=True,
        false_=False,
        not_implemented=NotImplemented,
        empty=(),
        exception=Exception,
        tensor=Tensor,
        parameter=torch.nn.Parameter,
        int_=int,
        float_=float,
        bool_=bool,
        str_=str,
        list=list,
        tuple=tuple,
        dict=dict,
        size=torch.Size,
        dtype=torch.dtype,
        complex_=complex,
        untyped_storage=Tensor.untyped_storage,
        data_ptr=Tensor.data_ptr,
        storage_offset=Tensor.storage_offset,
        stride=Tensor.stride,
        nbytes=storage.nbytes,
        hold=getattr(storage, "_new_with_weak_ptr", None),
        weak_ref=storage._weak_ref,
        expired=storage._expired,
        free_weak_ref=storage._free_weak_ref,
        grad_enabled=torch.is_grad_enabled,
        inference_enabled=torch.is_inference_mode_enabled,
        dtypes=dtypes(),
    )


def samples():
    """Tensors of every kind that a program holds, each with the address of its implementation and of its storage."""
    matrix = torch.zeros(4, 6, device="cpu")
    tensors = [
        matrix,
        matrix.t(),
        matrix[1:, 2],
        matrix[3, 3],
        torch.zeros(0, device="cpu"),
        torch.nn.Parameter(matrix[1:]),
        torch.zeros(2, 3, 1, device="cpu").expand(2, 3, 5),
    ]
    for name in (
        "bool uint8 int8 int16 int32 int64 float64 float16 bfloat16 complex64 complex128 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz"
    ).split():
        if hasattr(torch, name):
            tensors.append(torch.empty(3, dtype=getattr(torch, name), device="cpu"))
    return [(t, t._cdata, t.untyped_storage()._cdata) for t in tensors]


# ---- what the recorder asks


def local(t):
    """What lies on this rank of a tensor that is spread over several (DTensor)."""
    return getattr(t, "_local_tensor", t)


# Where the numbers of a sparse tensor stand comes first, the numbers themselves last.
_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def instead(t):
    """A tensor whose bytes cannot be had in one piece: the one inside it, the list of those that it is made of, or what it was as a text."""
    inside = local(t)
    if inside is not t:
        return inside
    if t.is_nested and t.layout == torch.strided:
        return [t._nested_tensor_size(), t._nested_tensor_strides(), t._nested_tensor_storage_offsets(), t.values()]
    if t.layout in _PARTS:
        return [getattr(t, part)() for part in _PARTS[t.layout]]
    try:
        shape = tuple(t.shape)
    except RuntimeError:  # nested tensors have none
        shape = "nested"
    return "tensor %s %s %s" % (shape, t.dtype, t.layout)


def plain(a):
    """An argument of an unusual type as a usual one."""
    if isinstance(a, bool):
        return bool(a)
    if isinstance(a, (torch.device, torch.layout, torch.memory_format, torch.dtype)):
        return str(a)
    if isinstance(a, (int, torch.SymInt, torch.SymBool)):
        return int(a)
    if isinstance(a, (float, torch.SymFloat)):
        return float(a)
    if isinstance(a, str):
        return str(a)
    if isinstance(a, (list, tuple)):
        return list(a)
    return "<%s>" % type(a).__name__  # generators, script objects: neither comparable nor copyable


def fields(a):
    """What a module's argument or result holds, or None."""
    if isinstance(a, dict):  # also the output classes of transformers
        return list(a.values())
    if isinstance(a, (list, tuple)):
        return list(a)
    names = getattr(a, "__dataclass_fields__", None)
    return [getattr(a, name, None) for name in names] if names else None


# ---- numbers

_SCALARS = {torch.float32: "f", torch.float64: "d", torch.float16: "e"}


def number_of(t, devices):
    """The number in a one-element tensor, read from its memory without running an op that the program would see; None when it has none."""
    if isinstance(t, (int, float)):
        return float(t)
    try:
        t = local(t)
        if not isinstance(t, Tensor) or t.numel() != 1:
            return None
        data = ctypes.string_at(t.data_ptr(), t.element_size()) if t.is_cpu else devices.bytes_of(t)
        if t.dtype == torch.bfloat16:
            return struct.unpack("f", b"\0\0" + data)[0]
        return float(struct.unpack(_SCALARS[t.dtype], data)[0])
    except (KeyError, RuntimeError, NotImplementedError, TypeError):
        return None
