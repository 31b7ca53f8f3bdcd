"""The other side of `lastbit replay --backend torch`: runs single ops in PyTorch, on the CPU.

    lastbit.backend_server [MODULE …]

The modules are imported first: they define custom ops, and may lie in the current folder. From file descriptor 0 it reads calls: the length of a text (4 bytes,
little-endian), the text as JSON {"op": "space::name.overload", "args": […] in the order of the schema}, and the bytes of its tensors,
each {"tensor": [dtype, shape]} in the text. It answers on descriptor 1: a word that is 0, then a word with the number of tensors, and
for each a word that is 0 where there is none, the dtype (16 bytes), the number of bytes (8) and the bytes: results, then written
arguments. A first word of 1 is followed by the length of an error text and the text. The first answer comes unasked, without tensors.
What ops print goes to stderr.
"""

import importlib
import json
import os
import struct
import sys
import traceback

import torch

from lastbit.order_server import Pipe

DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "e4m3fn": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def find(name):
    space, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, space), base, None) if hasattr(torch.ops, space) else None
    if packet is None:
        raise LookupError(f"PyTorch has no op {name} here: name the module that defines it with --backend-import")
    return getattr(packet, overload or "default")


def read(pipe, given):
    """An argument with its dtypes and tensors in place."""
    if isinstance(given, list):
        return [read(pipe, one) for one in given]
    if not isinstance(given, dict):
        return given
    if "dtype" in given:
        return DTYPES[given["dtype"]]
    dtype, shape = given["tensor"]
    made = torch.empty(shape, dtype=DTYPES[dtype])
    size = made.numel() * made.element_size()
    data = pipe.read(size)
    if size:
        made.view(-1).view(torch.uint8).copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    return made


class Call:
    def __init__(self, text, given):
        self.op = find(text["op"])
        schema = self.op._schema
        values = [self.value(v, str(a.type)) for v, a in zip(given, schema.arguments)]
        writes = [a.alias_info is not None and a.alias_info.is_write for a in schema.arguments]
        self.written = [v for v, is_written in zip(values, writes) if is_written and v is not None]  # an optional state may be absent
        self.args = [v for v, a in zip(values, schema.arguments) if not a.kwarg_only]
        self.kwargs = {a.name: v for v, a in zip(values, schema.arguments) if a.kwarg_only}

    def value(self, given, kind):
        if isinstance(given, list):
            return [self.value(v, kind) for v in given]
        if isinstance(given, (int, float)) and not isinstance(given, bool):
            return float(given) if "float" in kind else bool(given) if "bool" in kind else given
        if isinstance(given, str):
            return float(given) if given in ("nan", "inf", "-inf") and "str" not in kind else given
        return given

    def run(self):
        result = self.op(*self.args, **self.kwargs)
        fresh = []
        for one, declared in zip(result if isinstance(result, (list, tuple)) else [result], self.op._schema.returns):
            if declared.alias_info is None:
                fresh += one if isinstance(one, (list, tuple)) else [one]
        for one in self.written:
            fresh += one if isinstance(one, (list, tuple)) else [one]
        return fresh


def answer(pipe, tensors):
    parts = [struct.pack("<II", 0, len(tensors))]
    for one in tensors:
        if not isinstance(one, torch.Tensor):
            parts.append(struct.pack("<I", 0))
            continue
        dense = one.detach().cpu().contiguous()
        data = dense.view(-1).view(torch.uint8).numpy().tobytes() if dense.numel() else b""
        parts.append(struct.pack("<I16sQ", 1, NAMES[dense.dtype].encode(), len(data)) + data)
    pipe.write(b"".join(parts))  # whole or not at all: an error is an answer, too


def refuse(pipe):
    text = traceback.format_exc().strip().splitlines()[-1].encode()[:400]
    pipe.write(struct.pack("<II", 1, len(text)) + text)


def main():
    asked, answers = Pipe(0), Pipe(os.dup(1))
    os.dup2(2, 1)
    try:
        for module in sys.argv[1:]:
            importlib.import_module(module)
        answer(answers, [])
    except Exception:
        refuse(answers)
        sys.exit(1)
    while True:
        size = asked.read(4)
        if len(size) < 4:
            return
        text = json.loads(asked.read(struct.unpack("<I", size)[0]))
        try:
            given = [read(asked, one) for one in text["args"]]
        except Exception:
            refuse(answers)
            sys.exit(1)  # what was not read would be taken for the next call
        try:
            with torch.no_grad():
                answer(answers, Call(text, given).run())
        except Exception:
            refuse(answers)


if __name__ == "__main__":
    main()
