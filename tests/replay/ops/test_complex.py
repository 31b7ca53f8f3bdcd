"""Rows called with complex numbers, against torch: bits where the row is exact, elsewhere ours and torch's within the bound of each part."""

import ctypes as C

import op_harness as H
import op_samples
import pytest
import torch
from op_samples_complex import complex_tensor

H.LIB.harness_roundings.argtypes = [C.POINTER(H.Row), C.POINTER(H.Operand), C.c_uint32, C.POINTER(H.Tensor), C.c_uint32, C.POINTER(C.c_int)]
H.LIB.harness_roundings.restype = C.c_double


def real(t):
    return torch.view_as_real(t.resolve_conj()) if t.is_complex() else t


def wide(t):
    return t.to(torch.complex128) if t.is_complex() else t.double() if t.is_floating_point() else t


def roundings(row, values, results):
    operands = H.Operands(values)
    mirrors = (H.Tensor * max(len(results), 1))(*[H.tensor(r) for r in results])
    exact = C.c_int()
    return H.LIB.harness_roundings(row, operands.array, operands.count, mirrors, len(results), C.byref(exact)), bool(exact.value)


def inside(value, y, twin, factor):
    """The bound of ops.h, of each part."""
    u, step = (2.0**-24, 2.0**-23) if real(value).dtype == torch.float32 else (2.0**-53, 2.0**-52)
    half_ulp = 0.5 * step * torch.exp2(torch.floor(torch.log2(y.abs().clamp(min=1e-300))))
    return bool(((real(value).double() - y).abs() <= half_ulp + (u + 2.0**-52) * factor * twin + 1e-44).all())


def calls():
    draw = op_samples.Draw(11)
    for dtype in (torch.complex64, torch.complex128):

        def z(*shape):
            return complex_tensor(draw, shape, dtype)

        a, b, row = z(3, 4, 5), z(3, 4, 5), z(5)
        yield "mul.Tensor", (a, b)
        yield "mul.Tensor", (a.transpose(0, 2), z(5, 4, 3))
        yield "mul.Tensor", (z(2, 16, 4, 4), z(16, 4)[None, :, None])  # a rotary embedding's
        yield "mul.Tensor", (a, row.real.clone())
        yield "mul.Tensor", (a, 2.5)
        yield "add.Tensor", (a, b)
        yield "add.Tensor", (a, row)
        yield "add.Tensor", (a, row.real.clone())
        yield "add.Tensor", (a, 0.25)
        yield "add.Tensor", (a, 3)
        yield "sub.Tensor", (a, b)
        yield "sub.Tensor", (a, 0.25)
        yield "neg", (a,)
        yield "abs", (a,)
        yield "sum", (a,)
        yield "sum.dim_IntList", (a, [1], False)
        yield "mean", (a,)
        yield "mean.dim", (a, [0, 2], True)
        yield "clone", (a.transpose(0, 1),)
        yield "cat", ([a, b], 1)
        yield "stack", ([a, b], 1)
        yield "zeros_like", (a,)
        yield "ones_like", (a,)
        yield "full_like", (a, -2.5)
        yield "fill.Scalar", (a.transpose(0, 1), 3)
        yield "copy", (a, row)
        yield "_conj_physical", (a,)
        yield "complex", (a.real.clone(), a.imag.clone())
        yield "mul.Scalar", (a, 2.5)
        yield "div.Tensor", (a, b)
        yield "div.Tensor", (a, row.real.clone())
        yield "div.Tensor", (a * 1e30, b * 1e-3)
        yield "div.Scalar", (a, 3.0)
        yield "sgn", (torch.cat([a, torch.zeros_like(a)]),)
        yield "exp", (a,)
        yield "mm", (z(4, 7), z(7, 5))
        yield "mm", (z(7, 4).t(), z(5, 7).t())
        yield "bmm", (a, z(3, 5, 6))
        yield "bmm", (z(3, 4, 40), z(3, 2, 40).mT)
        yield "roll", (a, [1, -2], [0, 2])
        yield "flip", (a, [0, 2])
        yield "triu", (a, 1)
        yield "slice_backward", (z(3, 2, 5), [3, 4, 5], 1, 1, 3, 1)
        yield "select_backward", (z(3, 5), [3, 4, 5], 1, -1)
        yield "constant_pad_nd", (a, [1, 2], 0)
        yield "diag_embed", (row,)
        yield "polar", (a.real.abs(), 100 * a.imag)


@pytest.mark.parametrize("name,args", [pytest.param(*c, id=f"{c[0]}-{k}") for k, c in enumerate(calls())])
def test_complex_numbers_are_computed_as_torch_does(name, args):
    H.set_limits()
    op, (row, _) = H.torch_op("aten::" + name), H.find("aten::" + name)
    expected = op(*args)
    values = H.in_schema_order(op, list(args), {})
    got = torch.full_like(expected, 7)
    H.run(row, values, [got])
    factor, exact = roundings(row, values, [got])
    if exact:
        assert torch.equal(real(got), real(expected))
        return
    shadow = torch.zeros_like(wide(expected))
    H.run(row, values, [shadow])
    theirs = op(*[wide(v) if isinstance(v, torch.Tensor) else v for v in args])
    assert torch.allclose(real(shadow), real(theirs), rtol=1e-12, atol=1e-14)
    twin = torch.zeros_like(shadow)
    try:
        H.run(row, values, [twin], twin=True)
        twin = real(twin)
    except RuntimeError:
        twin = real(shadow).abs()
    assert inside(got, real(shadow), twin, factor) and inside(expected, real(shadow), twin, factor)


def test_what_has_no_complex_kernel_is_refused():
    row, _ = H.find("aten::tanh")
    z = torch.ones(3, dtype=torch.complex64)
    with pytest.raises(H.Unsupported, match="complex"):
        H.run(row, [z], [torch.empty_like(z)])


def test_a_product_with_a_wrong_part_is_outside_the_bound():
    """The fault that proves that each part is judged: + bd instead of - bd in the real one. The decoy, another rounding, is not."""
    row, _ = H.find("aten::mul.Tensor")
    a, b = complex_tensor(op_samples.Draw(3), (64,)), complex_tensor(op_samples.Draw(4), (64,))
    a, b = a / a.abs().max(), b / b.abs().max()
    shadow, twin = torch.zeros(64, dtype=torch.complex128), torch.zeros(64, dtype=torch.complex128)
    H.run(row, [a, b], [shadow])
    H.run(row, [a, b], [twin], twin=True)
    factor, exact = roundings(row, [a, b], [torch.zeros_like(a)])
    assert not exact
    plain = torch.complex(a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real)
    wrong = torch.complex(a.real * b.real + a.imag * b.imag, plain.imag)
    assert inside(plain, real(shadow), real(twin), factor) and not inside(wrong, real(shadow), real(twin), factor)
