"""The other side of `lastbit order --python`: calls the user's function on batches of terms.

    lastbit.order_server --form FORM --dtype DTYPE [--arrays numpy|torch] [--threads N] MODULE:FUNCTION[(NAME=VALUE, …)]

It reads .npy arrays from file descriptor 0 in pairs — terms (calls, rows, n) and factors (n, columns) — and answers each pair
with one array of doubles (calls, results); an answer of bytes is an error text. The first answer comes unasked: no doubles, the
function is there. 16-bit floats that NumPy lacks travel as their bits. Descriptor 1 is the answer's alone: what the
function prints goes to stderr.
"""

import argparse
import ast
import importlib
import os
import sys
import traceback

import numpy as np


class Pipe:
    """No file to NumPy, which would seek in it."""

    def __init__(self, descriptor):
        self.descriptor = descriptor

    def read(self, n):
        parts = []
        while n > 0:
            part = os.read(self.descriptor, min(n, 1 << 20))
            if not part:
                break
            parts.append(part)
            n -= len(part)
        return b"".join(parts)

    def write(self, data):
        data = memoryview(data).cast("B")
        while data:
            data = data[os.write(self.descriptor, data) :]


def receive(pipe):
    return np.lib.format.read_array(pipe, allow_pickle=False)


def send(pipe, array):
    np.lib.format.write_array(pipe, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False)


def call_of(text):
    """A callable for "module:path.of.function" with literal keyword arguments, and the module's name."""
    module, _, path = text.partition(":")
    if not module or not path:
        raise ValueError(f"{text!r} is not MODULE:FUNCTION")
    node = ast.parse(path, mode="eval").body
    keywords = {}
    if isinstance(node, ast.Call):
        if node.args:
            raise ValueError("arguments are given by name: the terms come first")
        keywords = {k.arg: ast.literal_eval(k.value) for k in node.keywords}
        node = node.func
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        raise ValueError(f"{path!r} is not the path of a function")
    found = importlib.import_module(module)
    for name in [node.id, *reversed(names)]:
        found = getattr(found, name)
    return (lambda *arrays: found(*arrays, **keywords)), module


class Numpy:
    def __init__(self, dtype):
        if dtype == "bf16":
            import ml_dtypes  # noqa: F401  gives NumPy the dtype
        self.dtype = np.dtype({"f64": "f8", "f32": "f4", "f16": "f2", "bf16": "bfloat16"}[dtype])

    def empty(self, shape):
        return np.empty(shape, self.dtype)

    def fill(self, array, raw):
        array[...] = raw.view(self.dtype)

    def doubles(self, result):
        return np.asarray(result).astype(np.float64).ravel()


class Torch:
    def __init__(self, dtype):
        import torch

        self.torch = torch
        self.dtype = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype]

    def empty(self, shape):
        return self.torch.empty(shape, dtype=self.dtype)

    def fill(self, array, raw):
        given = raw.view(np.int16) if raw.dtype == np.uint16 else raw
        array.copy_(self.torch.from_numpy(given).view(self.dtype))

    def doubles(self, result):
        return self.torch.as_tensor(result).detach().cpu().double().numpy().ravel()


class Kernel:
    """The function on arrays that stay where they are from call to call: their alignment is part of what it does."""

    def __init__(self, function, form, arrays):
        self.function, self.form, self.arrays = function, form, arrays
        self.x = self.y = None

    def lay(self, terms, factors):
        _, rows, n = terms.shape
        if self.x is None:
            shape = {"sum": (n,), "dot": (n,), "rows": (rows, n), "columns": (n, rows), "matmul": (rows, n)}[self.form]
            self.x = self.arrays.empty(shape)
            self.y = self.arrays.empty((n,) if self.form == "dot" else factors.shape)
        if self.form in ("dot", "matmul"):
            self.arrays.fill(self.y, factors[:, 0].copy() if self.form == "dot" else factors)

    def __call__(self, terms, factors):
        self.lay(terms, factors)
        answers = []
        for one in terms:
            self.arrays.fill(self.x, one[0] if self.form in ("sum", "dot") else np.ascontiguousarray(one.T) if self.form == "columns" else one)
            answers.append(self.arrays.doubles(self.function(self.x, self.y) if self.form in ("dot", "matmul") else self.function(self.x)))
        expected = {"sum": 1, "dot": 1, "matmul": terms.shape[1] * factors.shape[1]}.get(self.form, terms.shape[1])
        if any(len(a) != expected for a in answers):
            raise ValueError(f"the function gave {len(answers[0])} numbers where {expected} sums were expected")
        return np.stack(answers)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--form", required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--arrays", choices=("numpy", "torch"))
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("function")
    options = parser.parse_args()
    asked, answers = Pipe(0), Pipe(os.dup(1))
    os.dup2(2, 1)
    try:
        function, module = call_of(options.function)
        arrays = (Torch if (options.arrays or module.partition(".")[0]) == "torch" else Numpy)(options.dtype)
        if options.threads and isinstance(arrays, Torch):
            arrays.torch.set_num_threads(options.threads)
        kernel = Kernel(function, options.form, arrays)
        send(answers, np.empty((0, 0)))
        while True:
            try:
                terms = receive(asked)
            except ValueError:  # the end of the pipe
                return
            send(answers, kernel(terms, receive(asked)))
    except Exception:
        text = traceback.format_exc().strip().splitlines()[-1]
        send(answers, np.frombuffer(text.encode(), np.uint8))
        sys.exit(1)


if __name__ == "__main__":
    main()
