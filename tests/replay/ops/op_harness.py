"""ctypes mirror of replay/kernel/ops.h: runs one op of the table on torch tensors' memory."""

import ctypes as C
import math
import os
import pathlib

import torch

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(os.environ.get("LASTBIT_BUILD", ROOT / "build" / "release"))
MAX_DIMS = 16

# Codes of include/lastbit/dtype.h, which are part of the file format.
DTYPES = {
    torch.float64: 1,
    torch.float32: 2,
    torch.bfloat16: 3,
    torch.float16: 4,
    torch.float8_e4m3fn: 5,
    torch.float8_e5m2: 6,
    torch.float8_e4m3fnuz: 7,
    torch.float8_e5m2fnuz: 8,
    torch.float8_e8m0fnu: 9,
    torch.complex64: 12,
    torch.complex128: 13,
    torch.int8: 14,
    torch.int16: 15,
    torch.int32: 16,
    torch.int64: 17,
    torch.uint8: 18,
    torch.bool: 22,
}

NONE, TENSOR, TENSORS, INT, FLOAT, BOOL, DTYPE, STRING, NUMBERS = range(9)
PLAIN, INPLACE, OUT, FOREACH, FOREACH_INPLACE, MUTATES = range(6)
(EXACT, ELEMENTWISE, REDUCTION, MATMUL, DISCONTINUOUS, RANDOM, VIEW, UNDEFINED, DECISION, HOST, COLLECTIVE) = (1 << k for k in range(11))
FACTORS = 1 << 24


class Layout(C.Structure):
    _fields_ = [("ndim", C.c_int32), ("offset", C.c_int64), ("shape", C.c_int64 * MAX_DIMS), ("stride", C.c_int64 * MAX_DIMS)]


class Tensor(C.Structure):
    _fields_ = [("data", C.c_void_p), ("dtype", C.c_uint8), ("layout", Layout)]


class Operand(C.Structure):
    _fields_ = [
        ("tag", C.c_int),
        ("count", C.c_uint32),
        ("tensor", Tensor),
        ("tensors", C.POINTER(Tensor)),
        ("i", C.c_int64),
        ("f", C.c_double),
        ("string", C.c_char_p),
        ("ints", C.POINTER(C.c_int64)),
        ("floats", C.POINTER(C.c_double)),
    ]


class Method(C.Structure):
    _fields_ = [
        ("kernel", C.c_char_p),
        ("schedule", C.c_void_p),
        ("compute", C.c_uint8),
        ("accumulate", C.c_uint8),
        ("tf32", C.c_uint8),
        ("cast", C.c_void_p),
        ("exact", C.c_bool),
    ]


class Row(C.Structure):
    _fields_ = [
        ("name", C.c_char_p),
        ("args", C.c_char_p),
        ("kernel", C.c_void_p),
        ("twin", C.c_void_p),
        ("roundings", C.c_float),
        ("roundings_per_term", C.c_float),
        ("terms", C.c_uint32),
        ("flags", C.c_uint32),
        ("factors", C.c_uint8 * 4),
        ("kernels", C.c_char_p),
        ("samples", C.c_char_p),
        ("complex", C.c_void_p),
    ]

    def text(self, field):
        value = getattr(self, field)
        return value.decode() if value else ""

    def names(self):
        """Of the args, without the marks behind them."""
        return [arg.rstrip("!?[]%") for arg in self.text("args").split()]


def load():
    found = sorted(BUILD.glob("**/libop_harness.so"))
    if not found:
        raise FileNotFoundError(f"libop_harness.so is not under {BUILD}: cmake --build --preset release")
    lib = C.CDLL(str(found[0]))
    lib.harness_rows.argtypes = [C.POINTER(C.POINTER(C.POINTER(Row)))]
    lib.harness_rows.restype = C.c_uint32
    lib.harness_find.argtypes = [C.c_char_p, C.POINTER(C.c_int)]
    lib.harness_find.restype = C.POINTER(Row)
    lib.harness_run.argtypes = [C.POINTER(Row), C.c_int, C.POINTER(Operand), C.c_uint32, C.POINTER(Tensor), C.c_uint32, C.POINTER(Method), C.c_char_p]
    lib.harness_terms.argtypes = [C.POINTER(Row), C.POINTER(Operand), C.c_uint32, C.POINTER(Tensor), C.c_uint32]
    lib.harness_terms.restype = C.c_double
    lib.harness_complete.argtypes = [C.POINTER(Row), C.POINTER(Operand), C.c_uint32, C.POINTER(Tensor), C.c_uint32, C.c_char_p]
    lib.harness_ratios.argtypes = [C.POINTER(Row), C.POINTER(Operand), C.c_uint32, C.POINTER(Tensor), C.c_uint32, C.POINTER(C.c_void_p), C.c_char_p]
    lib.harness_roundings.argtypes = [C.POINTER(Row), C.POINTER(Operand), C.c_uint32, C.POINTER(Tensor), C.c_uint32, C.POINTER(C.c_int)]
    lib.harness_roundings.restype = C.c_double
    lib.harness_cuda.argtypes = [C.c_int]
    lib.harness_allows.argtypes = [C.POINTER(Row), C.POINTER(Operand), C.c_uint32, C.POINTER(Tensor), C.c_uint32, C.c_uint32]
    lib.harness_factorisation.argtypes = [C.c_char_p, C.POINTER(Operand), C.c_uint32, C.POINTER(Tensor), C.c_uint32]
    lib.harness_factorisation.restype = C.c_double
    sizes = (C.c_uint64 * 4)()
    lib.harness_sizes(sizes)
    assert list(sizes) == [C.sizeof(t) for t in (Tensor, Operand, Row, Method)], "op_harness.py is behind replay/kernel/ops.h"
    return lib


LIB = load()


def rows():
    """All rows of the table by full name."""
    pointer = C.POINTER(C.POINTER(Row))()
    n = LIB.harness_rows(C.byref(pointer))
    return {pointer[k].contents.text("name"): pointer[k] for k in range(n)}


def find(name):
    """(row pointer or None, form) of a name as torch spells it, "aten::add_.Tensor"."""
    form = C.c_int()
    row = LIB.harness_find(name.encode(), C.byref(form))
    return (row if row else None), form.value


def set_limits(isa=2, threads=1):
    LIB.harness_limit(isa, threads)


def set_cuda(cuda):
    """Whether the calls that follow were recorded on CUDA (lb_call.cuda)."""
    LIB.harness_cuda(int(cuda))


def allows(row, values, recorded, i=0):
    """Whether result `i`, were nothing but the statistics of recorded[i] known, could lie within the bound."""
    operands = Operands(values)
    mirrors = (Tensor * max(len(recorded), 1))(*[tensor(r) for r in recorded])
    allowed = LIB.harness_allows(row, operands.array, operands.count, mirrors, len(recorded), i)
    assert allowed >= 0
    return bool(allowed)


def best_isa():
    return LIB.harness_best_isa()


def tensor(t):
    """A mirror of t; the caller keeps t alive. None gives the empty tensor, a result that is not wanted."""
    m = Tensor()
    if t is None:
        return m
    m.data = t.data_ptr() or 1  # empty tensors have no memory, yet they are there
    m.dtype = DTYPES[t.dtype]
    m.layout.ndim = t.dim()
    for k in range(t.dim()):
        m.layout.shape[k] = t.shape[k]
        m.layout.stride[k] = t.stride(k)
    return m


class Operands:
    """Args as lb_operand[], and what keeps their memory alive."""

    def __init__(self, values):
        self.keep = []
        self.array = (Operand * max(len(values), 1))()
        self.count = len(values)
        for k, value in enumerate(values):
            self.set(self.array[k], value)

    def set(self, o, value):
        if value is None:
            o.tag = NONE
        elif isinstance(value, torch.Tensor):
            o.tag, o.tensor = TENSOR, tensor(value)
            self.keep.append(value)
        elif isinstance(value, bool):
            o.tag, o.i, o.f = BOOL, int(value), float(value)
        elif isinstance(value, int):
            o.tag, o.i, o.f = INT, value, float(value)
        elif isinstance(value, float):
            finite = value == value and abs(value) < 2.0**63
            o.tag, o.f, o.i = FLOAT, value, int(value) if finite else 0
        elif isinstance(value, torch.dtype):
            o.tag, o.i = DTYPE, DTYPES[value]
        elif isinstance(value, (list, tuple)):
            self.set_list(o, value)
        else:
            o.tag, o.string = STRING, str(value).encode()

    def set_list(self, o, value):
        o.count = len(value)
        if any(isinstance(v, torch.Tensor) for v in value):
            o.tag = TENSORS
            array = (Tensor * len(value))(*[tensor(v) for v in value])
            o.tensors = array
        else:
            o.tag = NUMBERS
            array = (C.c_double * max(len(value), 1))(*[float(v) for v in value])
            ints = (C.c_int64 * max(len(value), 1))(*[int(v) if abs(v) < 2.0**63 else 0 for v in value])
            o.floats, o.ints = array, ints
            self.keep.append(ints)
        self.keep += [array, list(value)]


class Unsupported(Exception):
    pass


def run(row, values, results, twin=False, method=None):
    """Fills `results` (torch tensors, or None) from `values`, args in schema order. Raises Unsupported or RuntimeError."""
    operands = Operands(values)
    mirrors = (Tensor * max(len(results), 1))(*[tensor(r) for r in results])
    message = C.create_string_buffer(512)
    status = LIB.harness_run(row, int(twin), operands.array, operands.count, mirrors, len(results), C.byref(method) if method else None, message)
    if status == -7:
        raise Unsupported(message.value.decode())
    if status:
        raise RuntimeError(message.value.decode())


def run_branch(row, values, results, branch):
    """`run` of a row that follows `branch`, what was recorded of each result."""
    operands = Operands(values)
    mirrors, recorded = ((Tensor * max(len(t), 1))(*[tensor(r) for r in t]) for t in (results, branch))
    message = C.create_string_buffer(512)
    status = LIB.harness_run_branch(row, operands.array, operands.count, mirrors, len(results), recorded, message)
    if status:
        raise (Unsupported if status == -7 else RuntimeError)(message.value.decode())
    return results


def terms(row, values, results):
    operands = Operands(values)
    mirrors = (Tensor * max(len(results), 1))(*[tensor(r) for r in results])
    return LIB.harness_terms(row, operands.array, operands.count, mirrors, len(results))


def is_exact(row, values, results):
    """Whether results of this call must have the same bits."""
    operands, exact = Operands(values), C.c_int()
    mirrors = (Tensor * max(len(results), 1))(*[tensor(r) for r in results])
    LIB.harness_roundings(row, operands.array, operands.count, mirrors, len(results), C.byref(exact))
    return bool(exact.value)


def ratios(row, values, recorded):
    """Per recorded result a tensor of its shape: how much of its bound each element uses (NaN: it has none), None for None."""
    operands = Operands(values)
    mirrors = (Tensor * max(len(recorded), 1))(*[tensor(r) for r in recorded])
    found = [None if r is None else torch.full(r.shape, math.nan, dtype=torch.float64) for r in recorded]
    pointers = (C.c_void_p * max(len(recorded), 1))(*[0 if f is None else f.data_ptr() for f in found])
    message = C.create_string_buffer(512)
    status = LIB.harness_ratios(row, operands.array, operands.count, mirrors, len(recorded), pointers, message)
    if status == -7:
        raise Unsupported(message.value.decode())
    if status:
        raise RuntimeError(message.value.decode())
    return found


def residual(name, values, recorded):
    """How much of what it is allowed the worst residual of a factorisation uses (NaN: nothing can be said): a FACTORS row is judged by it alone."""
    operands = Operands(values)
    mirrors = (Tensor * max(len(recorded), 1))(*[tensor(r) for r in recorded])
    return LIB.harness_factorisation(name.encode(), operands.array, operands.count, mirrors, len(recorded))


def torch_op(name):
    """torch.ops.aten.add.Tensor for "aten::add.Tensor"; None when this torch has no such op."""
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")
    except (AttributeError, RuntimeError):
        return None


def in_schema_order(op, args, kwargs):
    """The values of all parameters of the schema, defaults filled in: what a recorded op carries."""
    values = []
    for k, parameter in enumerate(op._schema.arguments):
        if k < len(args):
            values.append(args[k])
        elif parameter.name in kwargs:
            values.append(kwargs[parameter.name])
        else:
            values.append(parameter.default_value)
    return values
