"""Tensors and arguments as the words of capture/wire.h, and the numbers that name storages.

A storage is named by a number of ours. Its address may be used again as soon as it is freed, so one weak reference per
storage keeps the address taken until the sweep at the end of a step; no tensor and no storage is ever held.
"""
import struct

import torch

from . import library

Tensor = torch.Tensor
Parameter = torch.nn.Parameter
_untyped = torch.UntypedStorage
_double = struct.Struct("d")
_int64 = struct.Struct("q")


def bits_of_double(x):
    return _int64.unpack(_double.pack(x))[0]


_packers = {}


def pack(words):
    """A list of integers as bytes."""
    n = len(words)
    packer = _packers.get(n)
    if packer is None:
        packer = _packers[n] = struct.Struct("%dq" % n)
    try:
        return packer.pack(*words)
    except struct.error:  # an unsigned 64-bit number
        return packer.pack(*[w - (1 << 64) if w >= 1 << 63 else max(w, -(1 << 63)) for w in words])


class Encoder:
    def __init__(self, wire):
        for name in ("_weak_ref", "_expired", "_free_weak_ref"):
            if getattr(_untyped, name, None) is None:
                raise RuntimeError("this torch has no UntypedStorage.%s: storages could not be told apart" % name)
        self.wire = wire
        self.numbers = {}  # address of the StorageImpl -> number
        self.next_number = 0
        self.codes = {}
        for name in dir(torch):
            dtype = getattr(torch, name)
            if isinstance(dtype, torch.dtype):
                code = wire.library.lb_dtype_parse(str(dtype).replace("torch.", "").encode())
                if str(dtype) == "torch.float4_e2m1fn_x2":  # torch counts pairs: bytes
                    code = self.codes.get(torch.uint8) or wire.library.lb_dtype_parse(b"uint8")
                if code:
                    self.codes[dtype] = code
        self.encoders = {
            int: self._int, float: self._float, bool: self._bool, type(None): self._none, str: self._string,
            list: self._list, tuple: self._list, torch.Size: self._list, torch.dtype: self._dtype, complex: self._complex,
            Tensor: self.tensor, Parameter: self.tensor,
        }

    # ---- storages

    def storage(self, tensor):
        """The number of a tensor's storage."""
        storage = tensor.untyped_storage()
        return self.numbers.get(storage._cdata) or self.new_storage(storage)

    def new_storage(self, storage):
        self.next_number += 1  # numbers begin at 1
        self.numbers[storage._weak_ref()] = self.next_number
        return self.next_number

    def sweep(self):
        """Forgets storages that are gone."""
        expired, free = _untyped._expired, _untyped._free_weak_ref
        gone = [address for address in self.numbers if expired(address)]
        numbers = []
        for address in gone:
            numbers.append(self.numbers.pop(address))
            free(address)
        if numbers and self.wire.recorder:
            self.wire.library.lb_wire_forget(self.wire.handle, pack(numbers), len(numbers))

    # ---- operands: each appends words to `w`

    def tensor(self, w, t):
        try:
            ndim = t.ndim
            if ndim > 16:  # LB_MAX_DIMS
                raise NotImplementedError
            storage = t.untyped_storage()
            number = self.numbers.get(storage._cdata)
            if number is None:
                number = self.new_storage(storage)
            if t.is_cpu:
                w += (1, number, t.data_ptr(), storage.nbytes(), t.storage_offset(), self.codes[t.dtype], 0, ndim,
                      *t.shape, *t.stride())
            else:
                w += (1, number, 0, storage.nbytes(), t.storage_offset(), self.codes[t.dtype], 1 if t.is_cuda else 2, ndim,
                      *t.shape, *t.stride())
        except (RuntimeError, NotImplementedError, KeyError, AttributeError):
            local = getattr(t, "_local_tensor", None)
            if local is not None and local is not t:
                self.tensor(w, local)
            else:  # sparse, quantized, fake, too many dimensions …: what it was is noted, its bytes are not seen
                try:
                    shape = tuple(t.shape)
                except RuntimeError:  # nested tensors have none
                    shape = "nested"
                self._string(w, "tensor %s %s %s" % (shape, t.dtype, t.layout))

    def operand(self, w, a):
        encode = self.encoders.get(type(a))
        if encode is not None:
            encode(w, a)
        elif isinstance(a, Tensor):
            self.tensor(w, a)
        elif isinstance(a, bool):
            self._bool(w, a)
        elif isinstance(a, int):
            self._int(w, int(a))
        elif isinstance(a, float):
            self._float(w, float(a))
        elif isinstance(a, (list, tuple)):
            self._list(w, a)
        elif isinstance(a, (torch.device, torch.layout, torch.memory_format)):
            self._string(w, str(a))
        elif isinstance(a, (torch.SymInt, torch.SymBool)):
            self._int(w, int(a))
        elif isinstance(a, torch.SymFloat):
            self._float(w, float(a))
        else:  # generators, script objects: neither comparable nor copyable
            self._string(w, "<%s>" % type(a).__name__)

    def _none(self, w, a):
        w.append(0)

    def _int(self, w, a):
        w += (2, a)

    def _float(self, w, a):
        w += (3, bits_of_double(a))

    def _bool(self, w, a):
        w += (4, 1 if a else 0)

    def _dtype(self, w, a):
        code = self.codes.get(a)
        if code:
            w += (5, code)
        else:
            self._string(w, str(a))

    def _string(self, w, a):
        w += (6, self.wire.string(a))

    def _list(self, w, a):
        w += (7, len(a))
        operand = self.operand
        for x in a:
            operand(w, x)

    def _complex(self, w, a):
        w += (8, bits_of_double(a.real), bits_of_double(a.imag))

    def tensors(self, values, limit=64):
        """Counted words of the tensors in nested arguments, in order."""
        w = [0]
        self._collect(w, values, 0, limit)
        return w

    def _collect(self, w, a, depth, limit):
        if isinstance(a, Tensor):
            before = len(w)
            if w[0] < limit:
                self.tensor(w, a)
                if w[before] == 1:
                    w[0] += 1
                else:
                    del w[before:]
        elif depth < 6:
            if isinstance(a, dict):  # also the output classes of transformers
                a = a.values()
            elif not isinstance(a, (list, tuple)):
                fields = getattr(a, "__dataclass_fields__", None)
                if not fields:
                    return
                a = [getattr(a, f, None) for f in fields]
            for x in a:
                self._collect(w, x, depth + 1, limit)


_SCALARS = {torch.float32: "f", torch.float64: "d", torch.float16: "e"}


def number_of(t):
    """The number in a one-element CPU tensor, read from its memory without running an op; None when it has none."""
    import ctypes

    if isinstance(t, (int, float)):
        return float(t)
    try:
        if hasattr(t, "_local_tensor"):
            t = t._local_tensor
        if not isinstance(t, Tensor) or t.numel() != 1 or not t.is_cpu:
            return None
        data = ctypes.string_at(t.data_ptr(), t.element_size())
        if t.dtype == torch.bfloat16:
            return struct.unpack("f", b"\0\0" + data)[0]
        return float(struct.unpack(_SCALARS[t.dtype], data)[0])
    except (KeyError, RuntimeError, NotImplementedError):
        return None
