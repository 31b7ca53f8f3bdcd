"""Quantising against the recipes' public definitions, written here in torch and ml_dtypes:

[TE]   NVIDIA/TransformerEngine: common/recipe/__init__.py, common/recipe/delayed_scaling.cu, recipe_common.cuh
       compute_scale_from_amax, pytorch/custom_recipes/quantization_ref_{current_scaling,nvfp4}.py; of what is not finite its
       kernels: amax by fmaxf and __hmax (common/recipe/current_scaling.cu, common/cast/mxfp8/quantize_mxfp8.cuh),
       common/util/ptx_arch_spec.cuh float_to_e8m0, common/cast/nvfp4/core_nvfp4.cuh
[AO]   pytorch/ao: torchao/prototype/mx_formats/mx_tensor.py (to_mx, its FLOOR, CEIL, EVEN and, of finite numbers, RCEIL)
[OCP]  OCP Microscaling Formats (MX) Specification v1.0, 6.3
[DS]   DeepSeek-V3 technical report, 3.3.2: 1 x 128 tiles of activations, 128 x 128 blocks of weights
[NV]   "Pretraining Large Language Models with NVFP4", arXiv 2509.25149
"""

import json
import math
import subprocess

import ml_dtypes
import numpy as np
import pytest
import torch
from conftest import BUILD

F8 = {"e4m3fn": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "e4m3fnuz": torch.float8_e4m3fnuz, "e5m2fnuz": torch.float8_e5m2fnuz}
FLT_MAX = torch.finfo(torch.float32).max


def tensor(rows, k, seed=0, dtype=torch.float32):
    """Rows of very different size, some zeros, some outliers, one row of zeros, one block of tiny numbers."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, k, generator=g) * 10.0 ** torch.randint(-6, 6, (rows, 1), generator=g)
    x[torch.rand(rows, k, generator=g) < 0.05] = 0
    x[torch.rand(rows, k, generator=g) < 0.01] *= 300
    x[rows // 2] = 0
    x[rows // 3, : k // 2] = torch.randn(k // 2, generator=g) * 1e-40
    return x.to(dtype).float()


def ours(folder, argument, role, x, own="f32", wgrad=False, matrix_rows=0):
    source, result = folder / "in.f32", folder / "out.f32"
    x.numpy().astype(np.float32).tofile(source)
    program = BUILD / "tests" / "replay_test_quantiser"
    done = subprocess.run(
        [program, argument, role, own, str(int(wgrad)), str(x.shape[0]), str(x.shape[1]), str(matrix_rows or 0), source, result],
        check=True,
        capture_output=True,
        text=True,
    )
    loss = json.loads(done.stdout.replace("inf", "Infinity").replace("nan", "NaN"))
    return torch.from_numpy(np.fromfile(result, np.float32)).view_as(x), loss


def same(got, want):
    assert got.shape == want.shape
    equal = (got == want) | (got.isnan() & want.isnan())
    bad = (~equal).nonzero()
    assert not len(bad), f"{len(bad)} of {got.numel()} differ, first at {bad[0].tolist()}: {got[tuple(bad[0])]} for {want[tuple(bad[0])]}"


def cast(x, name):
    """To the values of a type, saturating; a NaN that it cannot hold is its largest value, as PTX's cvt.satfinite has it."""
    if name == "e2m1":
        x = x.nan_to_num(6.0, 6.0, -6.0)
        return torch.from_numpy(np.clip(x.numpy(), -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float32))
    top = torch.finfo(F8[name]).max
    return x.clamp(-top, top).to(F8[name]).float()


def largest(name):
    return 6.0 if name == "e2m1" else torch.finfo(F8[name]).max


def fmax_of(x, dim=None):
    """The largest magnitude as CUDA's fmaxf finds it: NaN is passed over."""
    size = x.abs().nan_to_num(0.0, math.inf)
    return size.amax() if dim is None else size.amax(dim, keepdim=True)


# ---- [TE] one scale per tensor ---------------------------------------------------------------------------------------


def te_scale(amax, top, pow2=False, largest_of_x=FLT_MAX):
    """compute_scale_from_amax: 1 for an amax of 0, infinity or NaN; too large a scale becomes the largest of x's type."""
    scale = torch.tensor(top, dtype=torch.float32) / amax
    scale = torch.where(torch.isinf(scale), torch.tensor(largest_of_x, dtype=torch.float32), scale)
    if pow2:
        scale = (scale.view(torch.int32) & -0x800000).view(torch.float32)
    return torch.where((amax == 0) | torch.isinf(amax) | torch.isnan(amax), torch.tensor(1.0), scale)


def te_current(x, name, pow2=False, largest_of_x=FLT_MAX, dim=None):
    """Per tensor, or along `dim`."""
    scale = te_scale(fmax_of(x, dim), largest(name), pow2, largest_of_x)
    return cast(x * scale, name) * (1 / scale)


def in_tiles(x, height, width, quantise, *more):
    """Applies `quantise` to rows that are tiles, cut off at the edges (padded by zeros, which no amax sees)."""
    rows, columns = -(-x.shape[0] // height), -(-x.shape[1] // width)

    def cut(y):
        y = torch.nn.functional.pad(y, (0, columns * width - x.shape[1], 0, rows * height - x.shape[0]))
        return y.view(rows, height, columns, width).transpose(1, 2).reshape(rows * columns, height * width)

    y = quantise(cut(x), *(cut(m) for m in more))
    return y.view(rows, columns, height, width).transpose(1, 2).reshape(rows * height, columns * width)[: x.shape[0], : x.shape[1]].contiguous()


@pytest.mark.parametrize("name", F8)
@pytest.mark.parametrize("rule", ["f32", "pow2"])
def test_current_scaling_is_transformer_engines(tmp_path, name, rule):
    x = tensor(37, 200)
    got, _ = ours(tmp_path, f"{name}:current,scale:{rule}", "input", x)
    same(got, te_current(x, name, rule == "pow2"))


@pytest.mark.parametrize("own", ["f32", "bf16", "f16"])
def test_a_tiny_tensor_gets_the_largest_scale_of_its_own_type(tmp_path, own):
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[own]
    x = torch.full((2, 64), {"f32": 1e-40, "bf16": 1e-40, "f16": 6e-8}[own]).to(dtype).float()
    top = 57344.0
    assert own == "f16" or top / x.max() == math.inf
    got, _ = ours(tmp_path, "e5m2:current", "input", x, own)
    same(got, te_current(x, "e5m2", largest_of_x=torch.finfo(dtype).max))


def test_hybrid_gives_gradients_e5m2_and_the_rest_e4m3(tmp_path):
    x = tensor(16, 64)
    for role, name in (("input", "e4m3fn"), ("weight", "e4m3fn"), ("gradient", "e5m2")):
        same(ours(tmp_path, "fp8-current", role, x)[0], te_current(x, name))


# ---- [TE] Float8BlockScaling, [DS] -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["pow2", "f32"])
@pytest.mark.parametrize("role,height", [("input", 1), ("gradient", 1), ("weight", 128)])
def test_block_scaling_is_transformer_engines_and_deepseeks(tmp_path, role, height, rule):
    x = tensor(300, 333, seed=1)
    want = in_tiles(x, height, 128, lambda tile: te_current(tile, "e4m3fn", rule == "pow2", dim=1))
    same(ours(tmp_path, f"fp8-block,scale:{rule}", role, x)[0], want)


@pytest.mark.parametrize("name", ["e4m3fn", "e5m2"])
@pytest.mark.parametrize("role,height", [("input", 1), ("weight", 128)])
def test_of_blocks_that_are_not_finite_one_nan_stays_one_and_infinity_saturates(tmp_path, role, height, name):
    x = tensor(200, 256, seed=9)
    x[3, 5], x[3, 200], x[150, 20], x[7] = math.nan, -math.inf, math.inf, 0
    x[160, 128:] = math.nan
    argument = f"fp8-block,forward:{name}"
    want = in_tiles(x, height, 128, lambda tile: te_current(tile, name, True, dim=1))
    got, loss = ours(tmp_path, argument, role, x)
    same(got, want)
    assert want.isnan().sum() == 129 and want[3, 200] == -largest(name) and want[150, 20] == largest(name)
    assert loss["nonfinite"] == 131 and loss["masked"] == 2 and loss["spoiled"] == 0


@pytest.mark.parametrize("bad,kept", [(math.nan, True), (math.inf, False)])
def test_one_scale_per_tensor_passes_nan_over_and_is_1_for_infinity(tmp_path, bad, kept):
    x = tensor(20, 64, seed=10)
    x[4, 4] = bad
    got, _ = ours(tmp_path, "fp8-current", "input", x)
    same(got, te_current(x, "e4m3fn"))
    x[4, 4] = 0
    assert bool(((got == te_current(x, "e4m3fn")) | (torch.arange(64) == 4)).all()) == kept


def test_square_blocks_do_not_reach_over_the_matrices_of_a_batch(tmp_path):
    x = tensor(3 * 100, 256, seed=2)
    want = torch.cat([ours(tmp_path, "fp8-block", "weight", part)[0] for part in x.split(100)])
    same(ours(tmp_path, "fp8-block", "weight", x, matrix_rows=100)[0], want)


# ---- [AO], [OCP] MX --------------------------------------------------------------------------------------------------


def mx_scale_byte(amax, name, rule):
    top, fraction = largest(name), {"e4m3fn": 3, "e5m2": 2, "e2m1": 1}[name]
    bits = amax.view(torch.int32)
    if rule == "rceil":
        descale = amax * torch.tensor(1.0 / top, dtype=torch.float32)
        exponent, mantissa = descale.view(torch.int32) >> 23, descale.view(torch.int32) & 0x7FFFFF
        up = torch.where(exponent == 0, mantissa > 0x400000, mantissa != 0)
        return torch.where(torch.isfinite(descale), exponent + up, torch.where(torch.isnan(descale), 0xFF, 0xFE))
    if rule == "even":
        bits = torch.where(torch.isnan(amax), bits, (bits + (1 << (23 - fraction - 1))) & -0x800000)
        amax = bits.view(torch.float32)
    exponent = ((bits >> 23) & 0xFF) - 127 - int(math.floor(math.log2(top)))
    if rule == "ceil":
        exponent = exponent + ((bits & 0x7FFFFF) != 0)
    return torch.where(torch.isfinite(amax), exponent.clamp(-127, 127) + 127, 255)


def mx(x, name, rule):
    def quantise(tile):
        amax = fmax_of(tile, 1) if rule == "rceil" else tile.abs().amax(1, keepdim=True)
        byte = mx_scale_byte(amax, name, rule).to(torch.float64)
        scale = torch.where(byte == 255, torch.nan, 2.0 ** (byte - 127))
        return (cast((tile.double() / scale).float(), name).double() * scale).float()

    return in_tiles(x, 1, 32, quantise)


@pytest.mark.parametrize("rule", ["floor", "ceil", "even", "rceil"])
@pytest.mark.parametrize("name", ["e4m3fn", "e5m2", "e2m1"])
def test_mx_scales_and_values_are_torchaos_and_transformer_engines(tmp_path, name, rule):
    x = tensor(60, 200, seed=3)
    x[7, 40] = math.inf
    x[9, 70] = math.nan
    x[11, 64:96] = 448
    x[12, 64:96] = 449
    argument = f"mxfp4,scale:{rule}" if name == "e2m1" else f"{name}:mx,scale:{rule}"
    got, loss = ours(tmp_path, argument, "input", x)
    want = mx(x, name, rule)
    same(got, want)
    assert loss["nonfinite"] == 2
    if rule != "rceil":  # both blocks of 32 are lost, and that is counted
        assert want[7, 32:64].isnan().all() and want[9, 64:96].isnan().all()
        assert loss["spoiled"] == 62 and loss["masked"] == 0
        return
    assert want[7, 40] == math.inf and (want[7, 32:40] == 0).all() and (want[7, 41:64] == 0).all()
    assert loss["spoiled"] == 0 and loss["masked"] == (name == "e2m1")
    beside = torch.cat([want[9, 64:70], want[9, 71:96]])
    assert beside.isfinite().all() and beside.abs().max() > 0
    assert want[9, 70].isfinite() if name == "e2m1" else want[9, 70].isnan()


def test_mxfp8_is_rceil_by_default_and_floor_where_asked(tmp_path):
    x = tensor(8, 64, seed=4)
    same(ours(tmp_path, "mxfp8", "weight", x)[0], mx(x, "e4m3fn", "rceil"))
    same(ours(tmp_path, "mxfp8,scale:floor", "weight", x)[0], mx(x, "e4m3fn", "floor"))
    assert not torch.equal(mx(x, "e4m3fn", "rceil"), mx(x, "e4m3fn", "floor"))


# ---- [TE], [NV] NVFP4 ------------------------------------------------------------------------------------------------


def nvfp4(x, square, uniform=None):
    """_quantize_blockwise_reference, and its decoding q * S * amax / (6 * 448). `uniform`: draws for stochastic rounding."""
    six, top, most = torch.tensor(6.0), torch.tensor(448.0), torch.tensor(FLT_MAX)
    amax = fmax_of(x)
    g = torch.minimum(top * six / amax, most)
    g = torch.where((amax == 0) | (g == 0), torch.tensor(1.0), g)  # compute_global_encode_scaling_factor_FP4

    def quantise(tile, *draws):
        scale = torch.minimum(fmax_of(tile, 1) * (g * torch.reciprocal(six)), most)
        scale = scale.clamp(-top, top).to(torch.float8_e4m3fn).float()
        scaled = (tile * torch.minimum(1.0 / (scale * (1.0 / g)), most)).clamp(-6, 6)
        q = stochastic_e2m1(scaled, *draws) if draws else cast(scaled, "e2m1")
        return q * scale * (amax / (six * top))

    return in_tiles(x, 16 if square else 1, 16, quantise, *([] if uniform is None else [uniform]))


@pytest.mark.parametrize("role", ["input", "weight"])
@pytest.mark.parametrize("weights", ["2d", "1d"])
def test_nvfp4_is_transformer_engines(tmp_path, role, weights):
    x = tensor(70, 150, seed=5)
    got, _ = ours(tmp_path, f"nvfp4,weights:{weights}", role, x)
    same(got, nvfp4(x, role == "weight" and weights == "2d"))


@pytest.mark.parametrize("bad", ["zeros", "nan", "inf", "all nan"])
def test_nvfp4_of_what_is_not_finite_or_all_zero(tmp_path, bad):
    x = tensor(32, 64, seed=11)
    if bad == "zeros":
        x[:] = 0
    elif bad == "all nan":
        x[:] = math.nan
    else:
        x[3, 20] = float(bad)
    got, loss = ours(tmp_path, "nvfp4", "input", x)
    same(got, nvfp4(x, False))
    if bad == "zeros":
        assert (got == 0).all()
    if bad == "nan":  # a number like any other afterwards: nothing but the count tells
        assert got.isfinite().all() and loss["masked"] == 1 and loss["spoiled"] == 0
    if bad == "inf":  # the tensor's own scale is infinite
        assert not got.isfinite().any() and loss["spoiled"] == x.numel() - 1


def hadamard(x, dtype):
    """_apply_rht: x @ (signs * H / 4), 16 at a time."""
    h = torch.ones(1, 1, dtype=torch.float64)
    while len(h) < 16:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    signs = torch.tensor([1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1], dtype=torch.float64)
    whole = x.shape[1] // 16 * 16
    y = x.clone()
    y[:, :whole] = (x[:, :whole].double().reshape(-1, 16) @ (signs[:, None] * h / 4)).float().to(dtype).float().reshape(len(x), whole)
    return y


@pytest.mark.parametrize("own", ["f32", "bf16"])
@pytest.mark.parametrize("role", ["input", "gradient"])
def test_nvfp4_rotates_the_factors_of_weight_gradients(tmp_path, role, own):
    dtype = torch.bfloat16 if own == "bf16" else torch.float32
    x = tensor(20, 64, seed=6, dtype=dtype)
    argument = "nvfp4,gradients:rne"
    same(ours(tmp_path, argument, role, x, own, wgrad=True)[0], nvfp4(hadamard(x, dtype), False))
    same(ours(tmp_path, argument + ",hadamard:off", role, x, own, wgrad=True)[0], nvfp4(x, False))
    same(ours(tmp_path, argument, role, x, own, wgrad=False)[0], nvfp4(x, False))


# ---- stochastic rounding, from an independent Philox4x32-10 ----------------------------------------------------------


def philox(key, n, counter=0):
    """Words 0 .. n-1 of blocks counter/4 on, by the round function of the paper (Salmon et al., SC'11) in Python integers."""
    words = []
    for block in range(counter // 4, (counter + n + 3) // 4):
        c = [block & 0xFFFFFFFF, block >> 32, 0, 0]
        k = [key & 0xFFFFFFFF, key >> 32]
        for _ in range(10):
            a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
            k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
        words += c
    return words[counter % 4 : counter % 4 + n]


def stochastic_e2m1(x, uniform):
    """Up with the probability of the discarded fraction."""
    grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    size = x.double().abs()
    low = torch.bucketize(size, grid, right=True) - 1
    high = (low + 1).clamp(max=7)
    fraction = torch.where(high > low, (size - grid[low]) / (grid[high] - grid[low]).clamp(min=1e-9), 0.0)
    up = uniform < (fraction * 2.0**32).floor()
    return torch.where(up, grid[high], grid[low]).float() * x.sign()


def test_stochastic_rounding_draws_the_words_of_philox(tmp_path):
    assert philox(0, 4) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]  # Random123's known answer
    x = tensor(12, 48, seed=7)
    seed = 0x123456789ABCDEF
    uniform = torch.tensor(philox(seed, x.numel()), dtype=torch.float64).view_as(x)
    got, _ = ours(tmp_path, f"nvfp4,gradients:stochastic:{seed}", "gradient", x)
    same(got, nvfp4(x, False, uniform))
    assert not torch.equal(got, nvfp4(x, False))


# ---- what a table says of it -----------------------------------------------------------------------------------------


def test_losses_are_what_torch_computes(tmp_path):
    x = tensor(40, 128, seed=8)
    got, loss = ours(tmp_path, "fp8-current", "input", x)
    error = (got.double() - x.double()).pow(2)
    assert loss["elements"] == x.numel()
    assert loss["amax"] == x.abs().max().item()
    assert loss["underflow"] == ((x != 0) & (got == 0)).sum().item() > 0
    assert loss["overflow"] == 0
    assert loss["mse"] == pytest.approx(error.mean().item(), rel=1e-12)
    assert loss["sqnr"] == pytest.approx(10 * math.log10(x.double().pow(2).sum() / error.sum()), rel=1e-12)
    _, loss = ours(tmp_path, "compute:e4m3fn", "input", x)
    assert loss["overflow"] == (x.abs() >= 464).sum().item() > 0
