"""Fused layer norm, gated activations, rotary embedding, routers and cross-entropy: found in recorded models, `eager` with the recorded
bits, every kernel with the bits of the same computation in NumPy and inside its running bound."""

import composites as K
import numpy as np
import pytest
import torch
from composites import bound_ratio, compute, same_bits
from test_composites import balanced, f32, f64, fma, rounded, sum_in_order
from test_fused_attention import cascade, chain, exp

MODEL = ("--dtype", "bf16", "--steps", "1")
COUNTS = {
    "llama": {"rope": 4, "swiglu": 2, "gate_up": 2, "cross_entropy": 1},
    "qwen3_moe": {"rope": 4, "swiglu": 2, "router": 2, "cross_entropy": 1},
    "gemma2": {"rope": 4, "swiglu": 2, "gate_up": 2, "cross_entropy": 1},
    "gpt2": {"layer_norm": 5, "cross_entropy": 1},
    "gpt_oss": {"router": 2, "cross_entropy": 1},
}
SAME = {"rope": "rounded", "swiglu": "rounded"}


@pytest.mark.parametrize(
    "model",
    [
        "llama",
        "qwen3_moe",
        pytest.param("gemma2", marks=pytest.mark.full),
        pytest.param("gpt2", marks=pytest.mark.full),
        pytest.param("gpt_oss", marks=pytest.mark.full),
    ],
)
def test_every_part_of_a_model_is_found(steps, model):
    step = steps("--model", model, *MODEL)
    found = {kind: step.of(kind) for kind in ("layer_norm", "rope", "swiglu", "gate_up", "router", "cross_entropy")}
    assert {kind: len(rows) for kind, rows in found.items() if rows} == COUNTS[model]
    for kind, rows in found.items():
        for c in rows:
            recorded = c.outputs()[0]
            assert all(t.isfinite().all() for t in c.run(c.candidates()[1])[:1])
            if kind in SAME:  # what is rounded to 16 bits at every op has the recorded bits
                assert same_bits(c.run("eager")[0], recorded) and same_bits(c.run(SAME[kind])[0], recorded), (kind, c.layer)
            elif kind == "gate_up":  # torch's bf16 products add up in an order of the machine's
                assert same_bits(c.run("eager")[0], c.run("rounded")[0])
                torch.testing.assert_close(c.run("eager")[0], recorded, rtol=3e-2, atol=1e-4)
            else:
                torch.testing.assert_close(c.run("eager")[0], recorded, rtol=1e-5, atol=1e-6)


def close_to_one(kind, kernel, inputs, outputs, numbers=(), flags=0):
    ratio = bound_ratio(kind, kernel, inputs, outputs, numbers, flags)
    assert ratio <= 1, (kind, kernel, ratio)


# ---- layer norm --------------------------------------------------------------------------------------------------------------


def layer_norm(x, w, b, eps, one_pass=False, add=cascade, affine=False):
    n = f32(x.shape[-1])
    m = add(x) / n
    v = add(x * x) / n - m * m if one_pass else add((x - m[:, None]) * (x - m[:, None])) / n
    r = f32(1) / np.sqrt(np.maximum(v, f32(0)) + f32(eps))
    if affine:
        return (x * r[:, None] + (-r * m)[:, None]) * w + b, m, r
    y = (x - m[:, None]) * r[:, None]
    return fma(y, np.broadcast_to(w, y.shape), np.broadcast_to(b, y.shape)), m, r


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_layer_norm_has_the_bits_of_its_passes(dtype):
    g = torch.Generator().manual_seed(0)
    x, w, b = (torch.randn(40, 384, generator=g) * 2 + 3).to(dtype), torch.randn(384, generator=g).to(dtype), torch.randn(384, generator=g).to(dtype)
    args = [t.float().numpy() for t in (x, w, b)]
    in_order = lambda q: sum_in_order(q.T)  # noqa: E731
    different = set()
    for kernel, options in {
        "two-pass": {},
        "one-pass": {"one_pass": True},
        "two-pass,sum:sequential": {"add": in_order},
        "two-pass,apply:affine": {"affine": True},
        "one-pass,sum:pairwise": {"one_pass": True, "add": lambda q: balanced(q.T)},
    }.items():
        out = [torch.empty_like(x), torch.empty(40, 1), torch.empty(40, 1)]
        compute("layer_norm", kernel, [x, w, b], out, [1e-5])
        y, m, r = layer_norm(*args, 1e-5, **options)
        assert same_bits(out[0], torch.from_numpy(y).to(dtype)) and same_bits(out[1], torch.from_numpy(m[:, None].copy())), kernel
        assert same_bits(out[2], torch.from_numpy(r[:, None].copy())), kernel
        close_to_one("layer_norm", kernel, [x, w, b], out, [1e-5])
        different.add(K.bits(out[0]).numpy().tobytes())
    assert len(different) >= (5 if dtype == torch.float32 else 2)
    y, mean, rstd = torch.native_layer_norm(x, (384,), w, b, 1e-5)
    ours = compute("layer_norm", "welford", [x, w, b], [torch.empty_like(x), torch.empty_like(mean), torch.empty_like(rstd)], [1e-5])
    assert same_bits(ours[0], y) and same_bits(ours[1], mean) and same_bits(ours[2], rstd)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_welford_has_torchs_bits_in_every_row(dtype):
    """Thousands of rows: how chunks are joined shows in one of a hundred."""
    g = torch.Generator().manual_seed(2)
    for size in (20, 300, 384, 720, 1000, 1280, 4096):
        x = torch.randn(2000, size, generator=g).to(dtype)
        _, mean, rstd = torch.native_layer_norm(x, (size,), None, None, 1e-5)
        outputs = [torch.empty_like(x), torch.empty_like(mean, dtype=torch.float32), torch.empty_like(rstd, dtype=torch.float32)]
        ours = compute("layer_norm", "welford", [x], outputs, [1e-5])
        assert same_bits(ours[1].to(mean.dtype), mean) and same_bits(ours[2].to(rstd.dtype), rstd), size


def test_layer_norm_with_std_and_eps_behind_it():
    """(x - mean) / (std + eps), with torch's std of n - 1; against torch, and by bits."""
    g = torch.Generator().manual_seed(1)
    x, w, b = torch.randn(40, 96, generator=g) * 2 + 3, torch.randn(96, generator=g), torch.randn(96, generator=g)
    x[3] = 7  # no spread at all
    numbers = [1e-3, 1, 1]
    expected = w * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-3) + b
    for kernel in ("two-pass", "one-pass", "welford", "two-pass,apply:affine"):
        out = compute("layer_norm", kernel, [x, w, b], [torch.empty_like(x), torch.empty(40, 1), torch.empty(40, 1)], numbers)
        torch.testing.assert_close(out[0], expected, rtol=1e-4, atol=1e-4)
        close_to_one("layer_norm", kernel, [x, w, b], out[:1], numbers)
    q = x.numpy()
    m = cascade(q) / f32(96)
    r = f32(1) / (np.sqrt(cascade((q - m[:, None]) * (q - m[:, None])) / f32(95)) + f32(1e-3))
    y = fma((q - m[:, None]) * r[:, None], np.broadcast_to(w.numpy(), q.shape), np.broadcast_to(b.numpy(), q.shape))
    ours = compute("layer_norm", "two-pass", [x, w, b], [torch.empty_like(x)], numbers)[0]
    assert same_bits(ours, torch.from_numpy(y)) and not same_bits(
        ours, compute("layer_norm", "two-pass", [x, w, b], [torch.empty_like(x)], [1e-3, 1, 0])[0]
    )


# ---- gated activations ----------------------------------------------------------------------------------------------------------


def activated(x, act):
    x = x.astype(f64)
    if act == 0:
        return (x / (1 + np.exp(-x))).astype(f32)
    t = torch.from_numpy(x)
    return torch.nn.functional.gelu(t, approximate="none" if act == 1 else "tanh").numpy().astype(f32)


@pytest.mark.parametrize("act", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_gates_round_where_they_say(dtype, act):
    g = torch.Generator().manual_seed(act)
    gate, up = ((torch.randn(50, 128, generator=g) * 2).to(dtype) for _ in range(2))
    a, b = gate.float().numpy(), up.float().numpy()
    for kernel, y in {"fused": activated(a, act) * b, "rounded": rounded(activated(a, act), dtype) * b}.items():
        ours = compute("swiglu", kernel, [gate, up], [torch.empty_like(gate)], [act])[0]
        assert same_bits(ours, torch.from_numpy(y).to(dtype)), kernel
        beside = compute("swiglu", kernel, [torch.cat([gate, up], -1)], [torch.empty_like(gate)], [act])[0]
        assert same_bits(beside, ours)
        close_to_one("swiglu", kernel, [gate, up], [ours], [act])
    assert not same_bits(compute("swiglu", "fused", [gate, up], [torch.empty_like(gate)], [act])[0], ours)


def test_products_with_gates_round_where_they_say():
    g = torch.Generator().manual_seed(5)
    x, wg, wu = (torch.randn(*s, generator=g).bfloat16() for s in ((20, 48), (48, 32), (48, 32)))
    a, b = chain(x.float().numpy(), wg.float().numpy()), chain(x.float().numpy(), wu.float().numpy())
    bf = lambda t: rounded(t, torch.bfloat16)  # noqa: E731
    kernels = {"fused": activated(bf(a), 0) * bf(b), "rounded": bf(activated(bf(a), 0)) * bf(b), "epilogue": activated(a, 0) * b}
    seen = set()
    for kernel, y in kernels.items():
        ours = compute("gate_up", kernel, [x, wg, wu], [torch.empty(20, 32, dtype=torch.bfloat16)], [0])[0]
        assert same_bits(ours, torch.from_numpy(y).bfloat16()), kernel
        close_to_one("gate_up", kernel, [x, wg, wu], [ours], [0])
        seen.add(K.bits(ours).numpy().tobytes())
    halves = [chain(x.float().numpy()[:, i : i + 24], w.float().numpy()[i : i + 24]) for w in (wg, wu) for i in (0, 24)]
    split = activated(halves[0] + halves[1], 0) * (halves[2] + halves[3])
    ours = compute("gate_up", "epilogue,gemm:splitk:2", [x, wg, wu], [torch.empty(20, 32)], [0])[0]
    assert same_bits(ours, torch.from_numpy(split)) and len(seen) == 3


# ---- rotary embedding --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_ropes_round_where_they_say(dtype):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 20, 16, generator=g).to(dtype)
    angle = torch.randn(1, 1, 20, 8, generator=g).repeat(1, 1, 1, 2)
    c, s = angle.cos(), angle.sin()
    turned = torch.cat([-x[..., 8:], x[..., :8]], -1).float().numpy()
    v, cn, sn = x.float().numpy(), *(np.broadcast_to(t.numpy(), x.shape) for t in (c, s))
    t = lambda q: rounded(q, dtype)  # noqa: E731
    kernels = {
        "fused": v * cn + turned * sn,
        "rounded": t(v * cn) + t(turned * sn),
        "fused,fma:on": fma(v, cn, turned * sn),
        "fused,table:t": v * t(cn) + turned * t(sn),
    }
    for kernel, y in kernels.items():
        ours = compute("rope", kernel, [x, c, s], [torch.empty_like(x)])[0]
        assert same_bits(ours, torch.from_numpy(np.ascontiguousarray(y)).to(dtype)), kernel
        close_to_one("rope", kernel, [x, c, s], [ours])


# ---- routers -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalised", [False, True])
def test_routers_choose_and_weigh(normalised):
    logits = torch.randn(60, 16, generator=torch.Generator().manual_seed(3)).bfloat16()
    x = logits.float().numpy()
    p = exp(x - x.max(-1, keepdims=True))
    p = p / cascade(p)[:, None]
    ids = np.argsort(-p, -1, kind="stable")[:, :4]
    w = np.take_along_axis(p, ids, -1)
    if normalised:
        w = w / cascade(w)[:, None]
    out = [torch.empty(60, 4), torch.empty(60, 4, dtype=torch.int64)]
    compute("router", "softmax-topk", [logits], out, [4], 8 * normalised)
    assert np.array_equal(out[1].numpy(), ids) and same_bits(out[0], torch.from_numpy(w))
    close_to_one("router", "softmax-topk", [logits], out, [4], 8 * normalised)
    chosen = np.take_along_axis(x, ids, -1)
    q = exp(chosen - chosen.max(-1, keepdims=True))
    alone = compute("router", "topk-softmax", [logits], [torch.empty(60, 4)], [4], 8)[0]
    assert same_bits(alone, torch.from_numpy(q / cascade(q)[:, None])) and not same_bits(alone, out[0])


# ---- cross-entropy ----------------------------------------------------------------------------------------------------------------------


def online(x, block):
    top, total = np.full(x.shape[0], -np.inf, f32), np.zeros(x.shape[0], f32)
    for at in range(0, x.shape[1], block):
        part = x[:, at : at + block]
        new = np.maximum(top, part.max(-1))
        total = cascade(exp(part - new[:, None])) if at == 0 else total * exp(top - new) + cascade(exp(part - new[:, None]))
        top = new
    return np.log(total.astype(f64)).astype(f32) + top


def test_losses_have_the_bits_of_their_passes():
    g = torch.Generator().manual_seed(0)
    logits, target = torch.randn(70, 300, generator=g) * 3, torch.randint(0, 300, (70,), generator=g)
    target[::9] = -100
    keep = target.numpy() >= 0
    x, t = logits.numpy()[keep], target.numpy()[keep]
    top = x.max(-1)
    log_sum = np.log(cascade(exp(x - top[:, None])).astype(f64)).astype(f32)
    picked = x[np.arange(len(t)), t]
    rows = {"two-pass": -(picked - top - log_sum), "online:64": online(x, 64) - picked, "online": online(x, 1) - picked}
    values = set()
    for kernel, each in rows.items():
        for order, total in {"": sum_in_order(each[:, None])[0], ",rows:cascade": cascade(each[None])[0]}.items():
            for flags, expected in ((0, total / f32(len(t))), (16, total)):
                ours = compute("cross_entropy", kernel + order, [logits, target], [torch.empty(())], [-100], flags)[0]
                assert same_bits(ours, torch.tensor(expected)), (kernel, order)
                close_to_one("cross_entropy", kernel + order, [logits, target], [ours], [-100], flags)
                values.add(ours.item())
    assert len(values) >= 4
    torch.testing.assert_close(
        torch.nn.functional.cross_entropy(logits, target), compute("cross_entropy", "online", [logits, target], [torch.empty(())], [-100])[0]
    )


# ---- Newton-Schulz ------------------------------------------------------------------------------------------------------------------------

COEFFICIENTS = (3.4445, -4.775, 2.0315)


def newton_schulz(x, steps, kernel, dtype):
    t = (lambda q: rounded(q, dtype)) if kernel != "f32" else (lambda q: q)  # noqa: E731
    a, b, c = map(f32, COEFFICIENTS)
    x = x.float().numpy()
    for _ in range(steps):
        gram = t(chain(x, x.T))
        if kernel.startswith("separate"):
            square = t(chain(t(c * gram), gram)) if "first" in kernel else t(c * t(chain(gram, gram)))
            update = t(t(b * gram) + square)
            x = t(t(a * x) + t(chain(update, x)))
        else:
            update = t(b * gram + c * chain(gram, gram))
            x = t(a * x + chain(update, x))
    return torch.from_numpy(x).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_newton_schulz_rounds_where_it_says(dtype):
    x = torch.randn(12, 20, generator=torch.Generator().manual_seed(0))
    x = (x / x.norm()).to(dtype)
    seen = set()
    for kernel in ("addmm", "separate", "separate,scale:first", "f32"):
        y = compute("newton_schulz", kernel, [x], [torch.empty_like(x)], [5, *COEFFICIENTS * 5])[0]
        assert same_bits(y, newton_schulz(x, 5, kernel, dtype)), kernel
        close_to_one("newton_schulz", kernel, [x], [y], [5, *COEFFICIENTS * 5])
        seen.add(K.bits(y).numpy().tobytes())
    assert len(seen) == (4 if dtype == torch.bfloat16 else 2)


def test_newton_schulz_and_attention_of_the_sample_are_found(lastbit, recordings, steps):
    """The hybrid sample: Muon written op by op, attention that fills what it hides, experts one after the other."""
    step = steps("--steps", "1", program="samples/hybrid_lm.py")
    found = step.of("newton_schulz")
    optimised = {c.outputs()[0].shape for c in found}
    assert len(found) == 19 and (32, 96) in optimised and len(step.of("attention")) == 2 and len(step.of("finalise")) == 1
    for c in found:
        assert (
            c.numbers[:4] == [5, *COEFFICIENTS]
            and same_bits(c.run("eager")[0], c.outputs()[0])
            and same_bits(c.run("separate,scale:first")[0], c.outputs()[0])
        )
        assert not same_bits(c.run("addmm")[0], c.outputs()[0]) and not same_bits(c.run("f32")[0], c.outputs()[0])
    for c in step.of("attention"):
        torch.testing.assert_close(c.run("flash:4")[0].view_as(c.outputs()[0]), c.outputs()[0], rtol=1e-5, atol=1e-6)
    capture = recordings("--steps", "1", program="samples/hybrid_lm.py")
    answer = lastbit.json("replay", capture, "--mode", "chained", "--force-decisions", "--fuse", "newton_schulz=f32", expect=0)
    assert answer["swaps"][0]["touched"] == 19 and answer["verdict"] == "swapped"
