"""The tables that `formats_test_dtype FOLDER` writes, against torch's eager casts and ml_dtypes, pattern by pattern."""

import subprocess

import ml_dtypes
import numpy as np
import pytest
import torch
from conftest import BUILD

TORCH = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "e4m3fn": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "e5m2fnuz": torch.float8_e5m2fnuz,
    "e8m0": torch.float8_e8m0fnu,
    "c64": torch.complex64,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "u8": torch.uint8,
    "u16": torch.uint16,
    "u64": torch.uint64,
    "u32": torch.uint32,
    "bool": torch.bool,
}
ML = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "e4m3fn": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "e8m0": ml_dtypes.float8_e8m0fnu,
    "e2m1": ml_dtypes.float4_e2m1fn,
}


def inputs():
    """f32 and f64 around every boundary: all bf16 patterns, every fp8/f16 value's midpoints, neighbours, random bits."""
    rng = np.random.default_rng(3)
    values = np.concatenate(
        [
            np.arange(2**k, dtype=np.uint16 if k == 16 else np.uint8).view(t).astype(np.float64)
            for t, k in (
                (np.float16, 16),
                (ml_dtypes.float8_e4m3fn, 8),
                (ml_dtypes.float8_e5m2, 8),
                (ml_dtypes.float8_e4m3fnuz, 8),
                (ml_dtypes.float8_e5m2fnuz, 8),
            )
        ]
    )
    values = np.unique(values[np.isfinite(values)])
    middles = (values[1:] + values[:-1]) / 2
    bf16 = np.arange(2**16, dtype=np.uint32) << 16
    ties = (bf16 | 0x8000).view(np.float32)
    x = np.concatenate([v.astype(np.float32) for v in (values, middles)])
    x = np.concatenate(
        [
            x,
            np.nextafter(x, np.float32(np.inf)),
            np.nextafter(x, np.float32(-np.inf)),
            bf16.view(np.float32),
            ties,
            (bf16 | 0x8001).view(np.float32),
            (bf16 | 0x7FFF).view(np.float32),
            rng.integers(0, 2**32, 100_000, dtype=np.uint32).view(np.float32),
            np.float32([0, -0.0, np.inf, -np.inf, np.nan, 448, 464, 465, 480, 1e9, 65519, 65520, 61439, 61440]),
        ]
    )
    with np.errstate(invalid="ignore", over="ignore"):
        y = np.concatenate(
            [
                x.astype(np.float64)[:400_000],
                middles,
                np.nextafter(middles, np.inf),
                np.nextafter(middles, 0),
                rng.integers(0, 2**63, 50_000, dtype=np.uint64).view(np.float64),
                rng.normal(size=50_000) * 10.0 ** rng.integers(-12, 12, 50_000),
            ]
        )
    return x, y


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    program = BUILD / "tests" / "formats_test_dtype"
    if not program.exists():
        pytest.fail(f"{program} is not built")
    folder = tmp_path_factory.mktemp("dtype")
    x, y = inputs()
    assert len(x) < 2**20 and len(y) < 2**20
    x.tofile(folder / "inputs.f32")
    y.tofile(folder / "inputs.f64")
    subprocess.run([program, folder], check=True)
    return folder, x, y


def codes(tensor):
    if tensor.dtype == torch.complex64:
        return tensor.view(torch.float32).view(torch.int32).numpy()
    size = tensor.element_size()
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]).numpy()


def same(name, got, want, value_of):
    """Equal bits, or NaN on both sides."""
    different = np.flatnonzero(got != want)
    nan = np.isnan(value_of(got[different])) & np.isnan(value_of(want[different]))
    bad = different[~nan]
    assert len(bad) == 0, f"{name}: {len(bad)} differ, first at {bad[:5]}: {got[bad[:5]]} instead of {want[bad[:5]]}"


@pytest.mark.parametrize("name", [n for n in TORCH if n in ML])
def test_every_code_has_torchs_value(tables, name):
    folder, _, _ = tables
    got = np.fromfile(folder / f"{name}.values", np.float32)
    bits = np.arange(len(got)).astype(np.int16 if len(got) > 256 else np.uint8)
    want = torch.from_numpy(bits).view(TORCH[name]).to(torch.float32).numpy()
    assert len(got) in (256, 65536)
    same(name, got.view(np.int32), want.view(np.int32), lambda v: v.view(np.float32))


@pytest.mark.parametrize("name", list(ML))
def test_every_code_has_the_value_of_ml_dtypes(tables, name):
    folder, _, _ = tables
    got = np.fromfile(folder / f"{name}.values", np.float32)
    bits = np.arange(len(got)).astype(np.uint16 if len(got) > 256 else np.uint8)
    want = bits.view(ML[name]).astype(np.float32)
    same(name, got.view(np.int32), want.view(np.int32), lambda v: v.view(np.float32))


def in_range(name, values):
    """Integers out of range are undefined behaviour in torch too."""
    info = torch.iinfo(TORCH[name])
    with np.errstate(invalid="ignore"):
        whole = np.trunc(values.astype(np.float64))
        top = float(info.max) if info.bits < 64 else float(info.max) * (1 - 2**-53)
        return (whole >= info.min) & (whole <= top)


@pytest.mark.parametrize("source", ["f32", "f64"])
@pytest.mark.parametrize("name", list(TORCH))
def test_casts_are_torchs(tables, name, source):
    folder, x, y = tables
    given = x if source == "f32" else y
    want = codes(torch.from_numpy(given.copy()).to(TORCH[name]))
    got = np.fromfile(folder / f"{name}.from_{source}", want.dtype)
    assert got.shape == want.shape
    if name[0] in "iu":
        kept = in_range(name, given)
        assert kept.any() and np.array_equal(got[kept], want[kept])
    elif name == "bool":
        assert np.array_equal(got, want)
    else:
        dtype = torch.float32 if name == "c64" else TORCH[name]
        same(name, got, want, lambda v: torch.from_numpy(v.copy()).view(dtype).to(torch.float32).numpy())


@pytest.mark.parametrize("name", [n for n in ML if n not in ("e8m0", "e2m1")])
def test_exact_cast_of_f64_is_ml_dtypes(tables, name):
    """ml_dtypes rounds f64 to f8 once; bf16 it takes through f32, so there exactness is checked by distance."""
    folder, _, y = tables
    width = np.uint16 if name in ("bf16", "f16") else np.uint8
    got = np.fromfile(folder / f"{name}.exact_from_f64", width)
    with np.errstate(over="ignore", invalid="ignore"):
        want = y.astype(ML[name]).view(width)
        if name == "bf16":
            a, b = got.view(ML[name]).astype(np.float64), want.view(ML[name]).astype(np.float64)
            finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(y)
            assert (np.abs(a - y)[finite] <= np.abs(b - y)[finite]).all()
            return
    same(name, got, want, lambda v: v.view(ML[name]).astype(np.float32))


def test_e2m1_packs_the_low_nibble_first(tables):
    folder, x, _ = tables
    packed = np.fromfile(folder / "e2m1.from_f32", np.uint8)
    got = np.stack([packed & 15, packed >> 4], 1).reshape(-1)[: len(x)]
    with np.errstate(invalid="ignore", over="ignore"):
        want = x.astype(ML["e2m1"]).view(np.uint8)
    assert np.array_equal(got[~np.isnan(x)], want[~np.isnan(x)])
