"""Tensor-core products against a model of their definition in Python's integers (replay/orders/tensor_core.h), bit for bit."""

import math
import struct

import op_harness as H
import pytest
import torch
from test_orders import method

# arch: {dtype: (terms of a fused sum, fraction bits kept below the largest exponent, fraction bits of the result)}
F16, BF16, TF32, E4M3, E5M2 = torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2
UNITS = {
    "v100": {F16: (4, 23, 23)},
    "a100": {F16: (8, 24, 23), BF16: (8, 24, 23), TF32: (4, 24, 23)},
    "ada": {F16: (8, 24, 23), BF16: (8, 24, 23), TF32: (4, 24, 23), E4M3: (16, 13, 13), E5M2: (16, 13, 13)},
    "h100": {F16: (16, 25, 23), BF16: (16, 25, 23), TF32: (8, 25, 23), E4M3: (32, 13, 13), E5M2: (32, 13, 13)},
    "h100-fp8": {E4M3: (32, 13, 13), E5M2: (32, 13, 13)},
    "b200": {F16: (16, 25, 23), BF16: (16, 25, 23), TF32: (8, 25, 23), E4M3: (32, 25, 23), E5M2: (32, 25, 23)},
}
CASES = [(arch, dtype) for arch, units in UNITS.items() for dtype in units]
LEAST = {F16: -14, BF16: -126, TF32: -126, E4M3: -6, E5M2: -14}


def parts(x, least):
    """x as an integer significand and the exponents of its last place and of its leading one (which may be empty)."""
    if x == 0:
        return 0, 0, None
    m, e = math.frexp(x)
    return int(m * 2**53), e - 53, max(e - 1, least)


def shifted(significand, places):
    """significand * 2^places, truncated towards zero."""
    size = abs(significand) << places if places >= 0 else abs(significand) >> -places
    return -size if significand < 0 else size


def rounded(total, unit, fraction, f16):
    """total * 2^unit as f32, truncated to `fraction` bits, or to the nearest f16."""
    if total == 0:
        return 0.0
    size, low = abs(total), unit
    precision, least, limit = (11, -24, 2.0**16) if f16 else (fraction + 1, -126 - fraction, 2.0**128)
    drop = max(size.bit_length() - precision, least - low, 0)
    kept, rest = size >> drop, size & ((1 << drop) - 1)
    if f16 and drop and (rest > 1 << (drop - 1) or (rest == 1 << (drop - 1) and kept & 1)):
        kept += 1
    y = math.ldexp(kept, low + drop)
    return math.copysign(math.inf if y >= limit else y, total)


def fused(acc, products, unit, f16, floor):
    terms, fraction, output = unit
    whole = [(sa * sb, la + lb, ea + eb) for (sa, la, ea), (sb, lb, eb) in products if sa and sb]
    s, low, e = parts(acc, -126)
    if s:
        whole.append((s, low, e))
    top = max([floor] + [e for _, _, e in whole])
    total = sum(shifted(s, low - (top - fraction)) for s, low, _ in whole)
    return rounded(total, top - fraction, output, f16)


def chain(a, b, unit, least, f16=False, floor=-133, promote=0):
    terms = unit[0]
    if promote:
        total = torch.zeros(())
        for p in range(0, len(a), promote):
            total = total + torch.tensor(chain(a[p : p + promote], b[p : p + promote], unit, least, f16, floor))
        return total.item()
    acc = 0.0
    pairs = [(parts(x, least), parts(y, least)) for x, y in zip(a, b)]
    for p in range(0, len(pairs), terms):
        acc = fused(acc, pairs[p : p + terms], unit, f16, floor)
    return acc


def truncated_to_tf32(x):
    return (x.view(torch.int32) >> 13 << 13).view(torch.float32)


def operands(dtype, m, k, n, seed, spread):
    g = torch.Generator().manual_seed(seed)

    def one(*shape):
        x = torch.randn(*shape, generator=g) * 2.0 ** torch.randint(-spread, spread + 1, shape, generator=g)
        x[torch.rand(*shape, generator=g) < 0.1] = 0
        return x.to(dtype)

    return one(m, k), one(k, n)


def values(dtype, x):
    x = x.float()
    return (truncated_to_tf32(x) if dtype is TF32 else x).tolist()


def product(arch, a, b, out=None, accumulate=0, promote=0):
    how = method(kernel=f"tensorcore:{arch}", accumulate=accumulate)
    if promote:
        how = method(("tensorcore", list(UNITS).index(arch), promote))
    got = [torch.full((a.shape[0], b.shape[1]), 77, dtype=out or torch.float32)]
    H.run(H.rows()["aten::mm"], [a, b], got, method=how)
    return got[0]


def bits(x):
    return struct.pack("<f", x)


@pytest.mark.parametrize("arch,dtype", CASES)
@pytest.mark.parametrize("spread", [0, 3, 9])
def test_a_product_has_the_bits_of_its_definition(arch, dtype, spread):
    m, k, n = 3, 75, 18
    a, b = operands(dtype, m, k, n, seed=spread, spread=spread)
    got = product(arch, a, b)
    x, y = values(dtype, a), values(dtype, b.t().contiguous())
    for i in range(m):
        for j in range(n):
            want = chain(x[i], y[j], UNITS[arch][dtype], LEAST[dtype])
            assert bits(got[i, j].item()) == bits(want), (i, j, got[i, j].item().hex(), want.hex())


@pytest.mark.parametrize("arch,dtype", [("a100", BF16), ("h100", TF32), ("b200", BF16)])
def test_products_far_below_the_normal_range(arch, dtype):
    """bf16 and tf32 reach 2^-252: the least exponent a sum is aligned at is -133."""
    a, b = operands(dtype, 2, 40, 17, seed=5, spread=6)
    a, b = (a.float() * 2.0**-60).to(dtype), (b.float() * 2.0**-78).to(dtype)
    got = product(arch, a, b)
    x, y = values(dtype, a), values(dtype, b.t().contiguous())
    for i in range(2):
        for j in range(17):
            assert bits(got[i, j].item()) == bits(chain(x[i], y[j], UNITS[arch][dtype], LEAST[dtype]))


@pytest.mark.parametrize("arch", ["v100", "a100", "h100", "b200"])
def test_f16_accumulators(arch):
    a, b = operands(F16, 3, 50, 17, seed=7, spread=3)
    got = product(arch, a, b, accumulate=H.DTYPES[F16])
    x, y = values(F16, a), values(F16, b.t().contiguous())
    for i in range(3):
        for j in range(17):
            want = chain(x[i], y[j], UNITS[arch][F16], -14, f16=True, floor=-15 if arch == "b200" else -133)
            assert bits(got[i, j].item()) == bits(want)


def test_promotion_adds_the_sums_of_short_chains():
    a, b = operands(E4M3, 2, 300, 17, seed=9, spread=2)
    got = product("h100-fp8", a, b, promote=128)
    x, y = values(E4M3, a), values(E4M3, b.t().contiguous())
    for i in range(2):
        for j in range(17):
            assert bits(got[i, j].item()) == bits(chain(x[i], y[j], UNITS["h100-fp8"][E4M3], -6, promote=128))
    assert not torch.equal(got, product("h100-fp8", a, b))


def test_long_products_and_strided_operands_in_other_ops():
    """The chain over 700 terms, read from transposed and padded memory; addmm, bmm and linear give the same bits."""
    g = torch.Generator().manual_seed(3)
    a, b = torch.randn(5, 900, generator=g).bfloat16()[:, 100:800], torch.randn(20, 700, generator=g).bfloat16().t()
    got, how = product("h100", a, b), method(kernel="tensorcore:h100")
    x, y = values(BF16, a), values(BF16, b.t())
    for i in (0, 4):
        for j in (0, 7, 19):
            assert bits(got[i, j].item()) == bits(chain(x[i], y[j], UNITS["h100"][BF16], -126))
    for name, args in (
        ("bmm", [a[None], b[None]]),
        ("linear", [a.contiguous(), b.t(), None]),
        ("linear", [a, b.t(), None]),
        ("addmm", [torch.zeros(5, 20, dtype=BF16), a, b, 1, 1]),
    ):
        out = [torch.empty(got[None].shape if name == "bmm" else got.shape, dtype=BF16)]
        H.run(H.rows()[f"aten::{name}"], args, out, method=how)
        assert torch.equal(out[0].view(got.shape), got.bfloat16()), name


def test_what_a_unit_does_not_multiply_is_not_computed():
    a, b = operands(BF16, 2, 8, 3, seed=1, spread=1)
    with pytest.raises(Exception, match="multiply"):
        product("v100", a, b)


def test_threads_and_instruction_sets_do_not_change_a_bit():
    a, b = operands(F16, 70, 300, 90, seed=11, spread=4)
    found = []
    for isa in range(H.best_isa() + 1):
        for threads in (1, 3):
            H.set_limits(isa=isa, threads=threads)
            found.append(product("h100", a, b))
    H.set_limits()
    assert all(torch.equal(f, found[0]) for f in found)
