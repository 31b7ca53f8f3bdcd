"""Composites through ctypes (composite_harness.c): what a recorded step is made of, and their kernels on torch tensors."""

import ctypes as C
import dataclasses

import op_harness as H
import torch

INPUTS, OUTPUTS, NUMBERS, TEXT = 8, 4, 32, 96
ABSENT = 2**32 - 1
TORCH = {code: dtype for dtype, code in H.DTYPES.items()}
EXACT = torch.float64


class Row(C.Structure):
    _fields_ = [
        ("kind", C.c_int32),
        ("n_ops", C.c_uint32),
        ("flags", C.c_uint32),
        ("inputs", C.c_uint32 * INPUTS),
        ("outputs", C.c_uint32 * OUTPUTS),
        ("numbers", C.c_double * NUMBERS),
        ("ops", C.POINTER(C.c_uint32)),
        ("list", C.POINTER(C.c_uint32)),
        ("n_list", C.c_uint32),
        ("name", C.c_char_p),
        ("layer", C.c_char_p),
        ("class_name", C.c_char_p),
    ]


LIB = H.LIB
LIB.composites_open.restype = C.c_void_p
LIB.composites_op.restype = C.c_char_p
for name in ("close", "n", "row", "op", "value", "run", "candidates"):
    getattr(LIB, f"composites_{name}").argtypes = {
        "close": [C.c_void_p],
        "n": [C.c_void_p],
        "row": [C.c_void_p, C.c_uint32, C.POINTER(Row)],
        "op": [C.c_void_p, C.c_uint32],
        "value": [C.c_void_p, C.c_uint32, C.POINTER(H.Tensor), C.c_char_p],
        "run": [C.c_void_p, C.c_uint32, C.c_char_p, C.POINTER(H.Tensor), C.POINTER(H.Tensor), C.c_char_p],
        "candidates": [C.c_void_p, C.c_uint32, C.c_void_p, C.c_uint32],
    }[name]
LIB.composites_open.argtypes = [C.c_char_p, C.c_int64, C.c_char_p]
LIB.composites_compute.argtypes = [
    C.c_char_p,
    C.c_char_p,
    C.c_int,
    C.POINTER(C.c_double),
    C.c_uint32,
    C.POINTER(H.Tensor),
    C.c_uint32,
    C.POINTER(H.Tensor),
    C.c_char_p,
]


def tensors(given, room):
    array = (H.Tensor * max(room, len(given)))()
    for i, t in enumerate(given):
        if t is not None:
            array[i] = H.tensor(t)
    return array


class Refused(Exception):
    pass


def compute(kind, kernel, inputs, outputs, numbers=(), flags=0, twin=False):
    """Runs a kernel by the name of its kind; outputs are filled and returned."""
    message = C.create_string_buffer(512)
    numbers = (C.c_double * NUMBERS)(*numbers)
    status = LIB.composites_compute(
        kind.encode(),
        kernel.encode(),
        twin,
        numbers,
        flags,
        tensors(inputs, INPUTS),
        max(len(inputs) - INPUTS, 0),
        tensors(outputs, OUTPUTS),
        message,
    )
    if status:
        raise Refused(message.value.decode())
    return outputs


def bound_ratio(kind, kernel, inputs, outputs, numbers=(), flags=0):
    """The worst error of what a kernel gives over its running bound: half an ulp, and u times the twin."""
    blank = [None if t is None or not t.dtype.is_floating_point else torch.zeros(t.shape, dtype=EXACT) for t in outputs]
    exact = compute(kind, kernel, inputs, [None if b is None else b.clone() for b in blank], numbers, flags)
    twin = compute(kind, kernel, inputs, [None if b is None else b.clone() for b in blank], numbers, flags, twin=True)
    worst = 0.0
    for t, e, w in zip(outputs, exact, twin):
        if t is None or e is None:
            continue
        half_ulp = torch.finfo(t.dtype).eps / 2 * e.abs().clamp(min=torch.finfo(t.dtype).tiny)
        worst = max(worst, ((t.double() - e).abs() / (half_ulp + 2.0**-24 * w.abs())).max().item())
    return worst


@dataclasses.dataclass
class Composite:
    step: "Step"
    index: int
    row: Row

    @property
    def kind(self):
        return self.row.name.decode()

    @property
    def layer(self):
        return self.row.layer.decode()

    @property
    def ops(self):
        return [LIB.composites_op(self.step.handle, self.row.ops[i]).decode() for i in range(self.row.n_ops)]

    @property
    def numbers(self):
        return list(self.row.numbers)

    def inputs(self):
        return [self.step.value(v) for v in [*self.row.inputs, *self.row.list[: self.row.n_list]]]

    def outputs(self):
        return [self.step.value(v) for v in self.row.outputs]

    def run(self, kernel, inputs=None, outputs=None):
        message = C.create_string_buffer(512)
        inputs = self.inputs() if inputs is None else inputs
        outputs = [None if t is None else torch.empty_like(t) for t in self.outputs()] if outputs is None else outputs
        status = LIB.composites_run(self.step.handle, self.index, kernel.encode(), tensors(inputs, INPUTS), tensors(outputs, OUTPUTS), message)
        if status:
            raise Refused(message.value.decode())
        return outputs

    def candidates(self):
        texts = (C.c_char * TEXT * 4096)()
        n = LIB.composites_candidates(self.step.handle, self.index, texts, 4096)
        return [bytes(texts[i]).split(b"\0")[0].decode() for i in range(n)]


class Step:
    """The composites of one recorded step."""

    def __init__(self, capture, step=0):
        message = C.create_string_buffer(512)
        self.handle = LIB.composites_open(str(capture).encode(), step, message)
        assert self.handle, message.value.decode()
        self.all = []
        for i in range(LIB.composites_n(self.handle)):
            row = Row()
            LIB.composites_row(self.handle, i, row)
            self.all.append(Composite(self, i, row))

    def of(self, kind):
        return [c for c in self.all if c.kind == kind]

    def value(self, row):
        """A copy of the recorded elements, with its strides where they are dense."""
        if row == ABSENT:
            return None
        message, t = C.create_string_buffer(512), H.Tensor()
        assert LIB.composites_value(self.handle, row, t, message) == 0, message.value.decode()
        shape, stride = list(t.layout.shape[: t.layout.ndim]), list(t.layout.stride[: t.layout.ndim])
        reach = 1 + sum((n - 1) * s for n, s in zip(shape, stride)) if all(shape) else 0
        dtype = TORCH[t.dtype]
        size = torch.empty(0, dtype=dtype).element_size()
        flat = torch.frombuffer(bytearray(C.string_at(t.data, reach * size)), dtype=dtype) if reach else torch.empty(0, dtype=dtype)
        return flat.as_strided(shape, stride)


def bits(t):
    return t.contiguous().reshape(-1).view(torch.uint8)


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))
