"""One call of an op of the table, made both ways: by torch, and by the row's kernel, its f64 evaluation and its twin.

test_ops_torch.py compares the two on samples, search_bounds.py looks for the inputs on which they are farthest apart.
"""

import op_harness as H
import op_references
import torch

JUNK = 0x5A

# (unit roundoff bits, exponent of the smallest subnormal)
FORMATS = {
    torch.float64: (53, -1074),
    torch.float32: (24, -149),
    torch.bfloat16: (8, -133),
    torch.float16: (11, -24),
    torch.float8_e4m3fn: (4, -9),
    torch.float8_e5m2: (3, -16),
    torch.float8_e4m3fnuz: (4, -10),
    torch.float8_e5m2fnuz: (3, -17),
}


# ---- calling both ----------------------------------------------------------------------------------------------------


def mapped(value, change):
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(v, change) for v in value)
    return value


def copied(t):
    """The same elements, strides and storage offset in memory of its own."""
    storage = t.untyped_storage().clone()
    return torch.empty(0, dtype=t.dtype).set_(storage, t.storage_offset(), t.size(), t.stride())


def widened(t):
    """As the exact shadow sees it. Integers stay; but torch computes float functions of integers in f32, so a result of them is no f64."""
    return t.double() if t.dtype.is_floating_point else t


def tensors(result):
    if isinstance(result, (list, tuple)):
        return [t for r in result for t in tensors(r)]
    return [result if isinstance(result, torch.Tensor) else None]


def blank_like(t, dtype=None):
    """Memory for a result with the layout of `t`, full of junk."""
    if t is None:
        return None
    r = torch.empty_strided(t.shape, t.stride(), dtype=dtype or t.dtype)
    r.untyped_storage().copy_(torch.full((r.untyped_storage().nbytes(),), JUNK, dtype=torch.uint8).untyped_storage())
    return r


def written(op, values):
    """The tensors that a call writes, in schema order, lists flattened."""
    found = []
    for parameter, value in zip(op._schema.arguments, values):
        if parameter.alias_info is not None and parameter.alias_info.is_write:
            found += tensors(value) if value is not None else []
    return found


def torch_result(op, args, kwargs):
    """What torch gives: its results, or for ops that only write, the written args afterwards. None where torch refuses."""
    args, kwargs = mapped(list(args), copied), {k: mapped(v, copied) for k, v in kwargs.items()}
    try:
        result = op(*args, **kwargs)
    except (RuntimeError, NotImplementedError, IndexError, ValueError, TypeError):
        return None
    if op._schema.is_mutable:  # results that are no written argument, then the written arguments
        fresh = [
            r for r, declared in zip(result if isinstance(result, (list, tuple)) else [result], op._schema.returns) if declared.alias_info is None
        ]
        return tensors(fresh) + written(op, H.in_schema_order(op, args, kwargs))
    return tensors(result)


class Case:
    """One sample with torch's result; `ours` runs the row on it."""

    def __init__(self, row, op, args, kwargs):
        self.row, self.op, self.args, self.kwargs = row, op, args, kwargs
        self.flags = row.contents.flags
        self.expected = torch_result(op, args, kwargs)

    def ours(self, values, results, twin=False):
        if self.flags & H.RANDOM:  # the draw is given
            for blank, known in list(zip(results, self.expected))[1:]:
                blank.copy_(known.abs() if twin and known.is_floating_point() else known)
        H.run(self.row, values, results, twin=twin)
        return results

    def values(self, change=lambda t: t):
        return mapped(H.in_schema_order(self.op, list(self.args), self.kwargs), change)

    def given(self, k):
        """Result k is a by-product, which the kernel does not see."""
        return self.flags >> 16 & 0xF <= k < (self.flags >> 16 & 0xF) + (self.flags >> 20 & 0xF)

    def blanks(self, wide=False):
        return [
            None if self.given(k) else blank_like(t, torch.float64 if wide and t is not None and t.dtype.is_floating_point else None)
            for k, t in enumerate(self.expected)
        ]

    def exact(self):
        """The value that the bound is about: the recorded inputs, computed in f64."""
        return self.ours(self.values(), self.blanks(wide=True))

    def shadow(self):
        """Every float tensor f64."""
        return self.ours(self.values(widened), self.blanks(wide=True))

    def torch_shadow(self):
        """torch's own result in f64, or that of its definition where torch has none in f64."""
        kwargs = {k: (torch.float64 if isinstance(v, torch.dtype) and v.is_floating_point else mapped(v, widened)) for k, v in self.kwargs.items()}
        args = mapped(list(self.args), widened)
        definition = op_references.SHADOWS.get(self.row.contents.text("name"))
        return tensors(op_references.Reference(self.op, definition)(*args, **kwargs)) if definition else torch_result(self.op, args, kwargs)

    def twin(self, shadow):
        if not self.row.contents.twin:
            return [None if s is None else s.double().abs() for s in shadow]
        results = [None if s is None else torch.zeros_like(s, dtype=torch.float64) for s in shadow]
        if all(r is None for r in results):
            return results
        return self.ours(self.values(), results, twin=True)

    def __str__(self):
        def show(v):
            if isinstance(v, torch.Tensor):
                return f"{str(v.dtype)[6:]}{list(v.shape)}{list(v.stride())}"
            return f"[{', '.join(map(show, v))}]" if isinstance(v, (list, tuple)) else repr(v)

        return ", ".join([show(a) for a in self.args] + [f"{k}={show(v)}" for k, v in self.kwargs.items()])


def callable_op(name):
    """torch's op, or what stands for it where this build of torch has no kernel."""
    op = H.torch_op(name)
    return op_references.Reference(op, op_references.REFERENCES[name]) if name in op_references.REFERENCES else op


# ---- comparing -------------------------------------------------------------------------------------------------------


def bits(t):
    if t.dtype.is_complex:
        t = torch.view_as_real(t)
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()]
    return t.contiguous().view(width) if t.dtype != torch.bool else t.contiguous().view(torch.uint8)


def not_a_number(t):
    if t.dtype.is_complex:
        t = torch.view_as_real(t)
    return torch.isnan(t.double()) if t.dtype.is_floating_point else torch.zeros(t.shape, dtype=torch.bool)


def same_bits(a, b):
    return (bits(a) == bits(b)) | (not_a_number(a) & not_a_number(b))


def half_ulp(y, dtype):
    precision, smallest = FORMATS[dtype]
    exponent = torch.floor(torch.log2(y.abs().clamp(min=5e-324)))
    spacing = torch.clamp(exponent - (precision - 1), min=smallest)
    return 0.5 * torch.exp2(spacing) * (1 + 1e-12)
