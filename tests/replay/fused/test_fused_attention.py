"""Fused attention, softmax and MoE finalise: found in recorded models, `eager` with the recorded bits, every kernel with the bits of the
same computation written here in NumPy, within its running bound; and torch's CPU flash attention, bit by bit."""

import ctypes
import pathlib

import composites as K
import numpy as np
import pytest
import torch
from composites import bound_ratio, compute, same_bits
from test_composites import f32, f64, fma, rounded

MODEL = ("--dtype", "bf16", "--steps", "1")


# ---- found in models -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model, arguments, kernel",
    [
        ("llama", [], "flash-cpu"),
        ("llama", ["--attention", "eager"], "unfused"),
        ("gemma2", [], "unfused"),
        ("gpt_oss", [], "unfused"),
        pytest.param("t5", [], None, marks=pytest.mark.full),
        pytest.param("gpt2", ["--attention", "eager"], "unfused", marks=pytest.mark.full),
    ],
)
def test_every_attention_of_a_model_is_found(steps, model, arguments, kernel):
    step = steps("--model", model, *MODEL, *arguments)
    found = step.of("attention")
    assert len(found) == {"t5": 6}.get(model, 2)
    for c in found:
        recorded = c.outputs()[0]
        if "softmax" in " ".join(c.ops) and model != "t5":  # torch's exponential in f32 is not the rounded one, which 16 bits hide
            assert same_bits(c.run("eager")[0], recorded), c.layer
        if kernel:
            assert same_bits(c.run(kernel)[0], recorded), c.layer
            same = [t for t in c.candidates() if same_bits(c.run(t)[0], recorded)]
            assert same == (["flash-cpu"] if kernel == "flash-cpu" else ["eager", "unfused"])


@pytest.mark.parametrize("experts", ["eager", "grouped_mm", pytest.param("batched_mm", marks=pytest.mark.full)])
def test_every_finalise_of_a_model_is_found(steps, experts):
    arguments = ["--experts", experts] if experts != "grouped_mm" else []
    step = steps("--model", "qwen3_moe", *MODEL, *arguments)
    found = step.of("finalise")
    assert len(found) == 2
    for c in found:
        recorded = c.outputs()[0]
        same = [t for t in c.candidates() if same_bits(c.run(t)[0], recorded)]
        # two slots: one addition, so orders and the type of the sum cannot be told apart; products can
        assert {"eager", "batched", "index_add", "slots"} <= set(same) and "batched-f32" not in same and "ranks:2" not in same


# ---- attention in NumPy --------------------------------------------------------------------------------------------------------


def chain(a, b, add=None):
    """a (m, k) b (k, n): acc = fma(a, b, acc) over k."""
    acc = np.zeros((a.shape[0], b.shape[1]), f32)
    for p in range(a.shape[1]):
        acc = fma(np.broadcast_to(a[:, p : p + 1], acc.shape), np.broadcast_to(b[p : p + 1], acc.shape), acc)
    return acc


def exp(x):
    return np.exp(x.astype(f64)).astype(f32)


def cascade(x):
    return torch.from_numpy(np.ascontiguousarray(x)).sum(-1).numpy()


def one_head(q, k, v, scale, mask, kind, dtype, block=None, slices=1, p_narrow=True, divide=False):
    q, k, v = (t.float().numpy() for t in (q, k, v))
    narrow = lambda x: rounded(x, dtype)  # noqa: E731
    if kind == "math":
        root = f32(np.sqrt(scale))
        s = chain(q * root, (k * root).T) + (mask if mask is not None else f32(0))
        p = exp(s - s.max(-1, keepdims=True))
        return chain(p / cascade(p)[:, None], v)
    if kind == "unfused":
        s = narrow(narrow(chain(q, k.T)) * f32(scale))
        if mask is not None:
            s = narrow(s + mask)
        p = exp(s - s.max(-1, keepdims=True))
        return chain(narrow(p / cascade(p)[:, None]), v)

    def online(first, last):
        m = np.full(q.shape[0], -np.inf, f32)
        total = np.zeros(q.shape[0], f32)
        out = None
        for at in range(first, last, block or last - first):
            end = min(last, at + (block or last - first))
            s = chain(q, k[at:end].T) * f32(scale)
            if mask is not None:
                s = s + mask[:, at:end]
            new = np.maximum(m, s.max(-1))
            p = exp(s - new[:, None])
            a = exp(m - new)
            part = chain(narrow(p) if p_narrow else p, v[at:end])
            total = cascade(p) if out is None else total * a + cascade(p)
            out = part if out is None else out * a[:, None] + part
            m = new
        y = out / total[:, None] if divide else out * (f32(1) / total)[:, None]
        return y, np.log(total.astype(f64)).astype(f32) + m

    if slices == 1:
        return online(0, k.shape[0])[0]
    step = -(-k.shape[0] // slices)
    divide = True
    parts = [online(i, min(i + step, k.shape[0])) for i in range(0, k.shape[0], step)]
    lse = np.stack([p[1] for p in parts])
    top = lse.max(0)
    total = np.zeros_like(top)
    for row in lse:
        total = total + exp(row - top)
    whole = np.log(total.astype(f64)).astype(f32) + top
    y = np.zeros_like(parts[0][0])
    for part, row in zip(parts, lse):
        y = fma(np.broadcast_to(exp(row - whole)[:, None], y.shape), part[0], y)
    return y


def attention(q, k, v, scale, mask, dtype, **options):
    """(batches, heads, queries, size); fewer heads of k and v serve groups."""
    out = torch.empty(*q.shape[:-1], v.shape[-1], dtype=dtype)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            g = h // (q.shape[1] // k.shape[1])
            m = None if mask is None else mask[b, min(h, mask.shape[1] - 1)].float().numpy()
            out[b, h] = torch.from_numpy(one_head(q[b, h], k[b, g], v[b, g], scale, m, dtype=dtype, **options)).to(dtype)
    return out


def drawn(dtype, queries=12, keys=40, heads=4, kv=2, size=16, seed=0):
    g = torch.Generator().manual_seed(seed)
    shape = lambda n, t: torch.randn(2, n, t, size, generator=g).to(dtype)  # noqa: E731
    return shape(heads, queries), shape(kv, keys), shape(kv, keys)


KERNELS = {
    "flash": dict(kind="flash", block=512),
    "flash:16": dict(kind="flash", block=16),
    "flash:8,p:f32": dict(kind="flash", block=8, p_narrow=False),
    "flash:16,end:divide": dict(kind="flash", block=16, divide=True),
    "unfused": dict(kind="unfused"),
    "math": dict(kind="math"),
    "splitkv:2": dict(kind="splitkv", slices=2),
    "splitkv:4,p:f32": dict(kind="splitkv", slices=4, p_narrow=False),
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_attention_has_the_bits_of_its_blocks(dtype, masked):
    q, k, v = drawn(dtype)
    mask = (torch.randn(2, 1, 12, 40) * 2).to(dtype) if masked else None
    different = set()
    for kernel, options in KERNELS.items():
        y = compute("attention", kernel, [q, k, v, mask], [torch.empty_like(q)], [0.25, 4])[0]
        assert same_bits(y, attention(q, k, v, 0.25, mask, dtype, **options)), kernel
        assert bound_ratio("attention", kernel, [q, k, v, mask], [y], [0.25, 4]) <= 1, kernel
        different.add(y.view(torch.uint8).numpy().tobytes())
    assert len(different) >= (6 if dtype == torch.float32 else 5)


def test_layouts_and_masks_say_the_same():
    """Keys turned, heads repeated, masks of bools, causal: other ways to hand over one attention."""
    q, k, v = drawn(torch.bfloat16, 40, 40)
    plain = lambda *inputs, flags=0: compute("attention", "flash:16", list(inputs), [torch.empty_like(q)], [0.25, 4], flags)[0]  # noqa: E731
    keep = torch.ones(40, 40, dtype=torch.bool).tril()
    hidden = torch.zeros(1, 1, 40, 40).masked_fill(~keep, float("-inf"))
    expected = plain(q, k, v, hidden)
    assert same_bits(plain(q, k, v, keep[None, None]), expected) and same_bits(plain(q, k, v, flags=1), expected)
    wide = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    assert same_bits(plain(q, *wide, hidden), expected)
    assert same_bits(plain(q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), v.flatten(0, 1), hidden, flags=2).view_as(q), expected)
    everything = compute("attention", "flash:16", [q, k, v, torch.zeros(40, 40, dtype=torch.bool)], [torch.empty_like(q)], [0.25, 4])[0]
    assert torch.equal(everything, torch.zeros_like(q))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_sinks_are_scores_without_a_value(dtype):
    """Every kernel inside its bound of gpt_oss' formula in f64; a sink of -inf is none; flash may begin with it or add it at the end."""
    q, k, v = drawn(dtype, 40, 48)
    sinks = torch.tensor([0.5, -2.0, 3.0, float("-inf")]).to(dtype).reshape(1, -1, 1, 1)
    mask = torch.zeros(1, 1, 40, 48, dtype=dtype).masked_fill(~torch.ones(40, 48, dtype=torch.bool).tril(4), float("-inf"))
    wide = [t.double().repeat_interleave(4 // t.shape[1], 1) for t in (q, k, v)]
    s = torch.cat([wide[0] @ wide[1].transpose(2, 3) * 0.25 + mask.double(), sinks.double().expand(q.shape[0], -1, 40, -1)], -1)
    expected = torch.softmax(s, -1)[..., :-1] @ wide[2]
    results = {}
    for kernel in (
        "unfused",
        "math",
        "flash:512",
        "flash:16",
        "flash:16,sink:first",
        "flash:16,exp:2",
        "flash:16,exp:2,sink:first",
        "splitkv:3,block:16",
    ):
        inputs, y = [q, k, v, mask, sinks], torch.empty_like(q)
        results[kernel] = compute("attention", kernel, inputs, [y], [0.25, 4])[0]
        assert bound_ratio("attention", kernel, inputs, [y], [0.25, 4]) <= 1, kernel
        torch.testing.assert_close(
            y.double(), expected, rtol=2e-2 if dtype == torch.bfloat16 else 2e-5, atol=2e-2 if dtype == torch.bfloat16 else 2e-6
        )
        without = compute("attention", kernel, [q, k, v, mask], [torch.empty_like(q)], [0.25, 4])[0]
        assert torch.equal(without[:, 3], y[:, 3]) or kernel in ("unfused", "math"), kernel  # one more term in a sum of its own order
        assert not torch.equal(without[:, 2], y[:, 2]), kernel
    exact = compute("attention", "flash", [*(t.double() for t in (q, k, v)), mask.double(), sinks.double()], [torch.empty_like(expected)], [0.25, 4])[
        0
    ]
    torch.testing.assert_close(exact, expected, rtol=1e-13, atol=1e-13)
    if dtype == torch.float32:
        assert not torch.equal(results["flash:16"], results["flash:16,sink:first"])


def is_intel_to_mkl():
    """MKL's own answer, which also is another's where a library that was loaded first gives it."""
    for name in (None, pathlib.Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"):
        if ask := getattr(ctypes.CDLL(name), "mkl_serv_intel_cpu_true", None):
            return bool(ask())
    return "GenuineIntel" in pathlib.Path("/proc/cpuinfo").read_text()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_flash_cpu_is_torch(dtype):
    """The bits of torch's kernel, log-sum-exps of f32 included, while MKL takes products in one piece (see schedule.h, torch:N). On Intel's
    processors its products of bf16 are in orders of its own, with AMX and without: few elements show it, each within its bound."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("torch's vectors have another width here")
    shapes = [(16, 16, 16, False), (32, 64, 32, False), (40, 40, 64, True)]
    if is_intel_to_mkl():  # elsewhere MKL cuts products of more than 192 terms
        shapes += [(16, 400, 32, False), (16, 560, 32, False)]
    for queries, keys, size, causal in shapes:
        q, k, v = drawn(dtype, queries, keys, 2, 2, size, keys)
        expected, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
        y, log_sum = compute("attention", "flash-cpu", [q, k, v], [torch.empty_like(expected), torch.empty_like(lse)], [size**-0.5, 2], int(causal))[
            :2
        ]
        if dtype == torch.bfloat16 and is_intel_to_mkl():
            assert (y != expected).float().mean() < 5e-3, (queries, keys)
            assert bound_ratio("attention", "flash-cpu", [q, k, v], [expected], [size**-0.5, 2], int(causal)) <= 1, (queries, keys)
        else:
            assert same_bits(y, expected), (queries, keys)
        torch.testing.assert_close(log_sum, lse, rtol=3e-7, atol=1e-6)
        decoy = compute("attention", "flash:512", [q, k, v], [torch.empty_like(expected)], [size**-0.5, 2], int(causal))[0]
        assert not torch.equal(decoy, expected)


def test_tensor_cores_can_take_the_products():
    q, k, v = drawn(torch.float16, size=64)
    outputs = [
        compute("attention", f"flash:32,gemm:{g}", [q, k, v], [torch.empty_like(q)], [0.125, 4])[0]
        for g in ("sequential", "tensorcore:v100", "tensorcore:h100")
    ]
    assert not torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[1], outputs[2])
    for y in outputs:
        torch.testing.assert_close(y, outputs[0], rtol=2e-2, atol=1e-3)


# ---- softmax ------------------------------------------------------------------------------------------------------------------------


def softmax(x, kind, block=1):
    if kind != "online":
        top = x.max(-1, keepdims=True)
        p = exp(x - top)
        if kind == "warp":
            lanes = [sum_rows(p[:, i::32]) for i in range(32)]
            while len(lanes) > 1:
                lanes = [a + b for a, b in zip(lanes[: len(lanes) // 2], lanes[len(lanes) // 2 :])]
            total = lanes[0]
        else:
            total = sum_rows(p) if kind == "sequential" else cascade(p)
        return p / total[:, None]
    top = np.full(x.shape[0], -np.inf, f32)
    total = np.zeros(x.shape[0], f32)
    for at in range(0, x.shape[1], block):
        part = x[:, at : at + block]
        new = np.maximum(top, part.max(-1))
        total = total * exp(top - new) + cascade(exp(part - new[:, None]))
        top = new
    return exp(x - top[:, None]) / total[:, None]


def sum_rows(p):
    total = np.zeros(p.shape[0], f32)
    for column in p.T:
        total = total + column
    return total


def test_softmax_has_the_bits_of_its_passes():
    x = torch.randn(30, 300, generator=torch.Generator().manual_seed(1)) * 4
    different = set()
    for kernel, options in {
        "two-pass": ("cascade",),
        "two-pass,sum:sequential": ("sequential",),
        "online": ("online",),
        "online:64": ("online", 64),
        "warp": ("warp",),
    }.items():
        y = compute("softmax", kernel, [x], [torch.empty_like(x)])[0]
        assert same_bits(y, torch.from_numpy(softmax(x.numpy(), *options))), kernel
        assert bound_ratio("softmax", kernel, [x], [y]) <= 1
        different.add(y.numpy().tobytes())
    assert len(different) == 5


# ---- MoE finalise --------------------------------------------------------------------------------------------------------------------


def experts(dtype, tokens=24, slots=6, hidden=64, n=16, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens * slots, hidden, generator=g).to(dtype)
    weights = torch.rand(tokens, slots, generator=g)
    ids = torch.stack([torch.randperm(n, generator=g)[:slots] for _ in range(tokens)])
    return x, weights, ids


def finalise(x, weights, ids, dtype, order="slot", product="f32", total="f32", weight="f32"):
    tokens, slots = ids.shape
    x = x.float().numpy().reshape(tokens, slots, -1)
    w = weights.float().numpy()
    w = rounded(w, dtype) if weight == "t" else w
    by_slot = np.arange(slots)[:: -1 if order == "last" else 1]
    picks = np.argsort(ids.numpy(), -1, kind="stable") if order == "expert" else np.tile(by_slot, (tokens, 1))
    y = np.zeros((tokens, x.shape[-1]), f32)
    for j in range(slots):
        row = np.arange(tokens)
        p = x[row, picks[:, j]] * w[row, picks[:, j]][:, None]
        y = y + (rounded(p, dtype) if product == "t" else p)
        y = rounded(y, dtype) if total == "t" else y
    return torch.from_numpy(y).to(dtype)


FINALISE = {
    "index_add": dict(order="expert", product="t", total="t"),
    "batched": dict(product="t"),
    "batched-f32": {},
    "score-bf16": dict(product="t", total="t", weight="t"),
    "slots": dict(product="t", total="t"),
    "batched-f32,order:expert": dict(order="expert"),
    "batched,weight:t": dict(product="t", weight="t"),
    "slots,order:last": dict(order="last", product="t", total="t"),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_finalise_has_the_bits_of_its_order_and_roundings(dtype):
    x, w, ids = experts(dtype)
    tokens, slots = ids.shape
    shuffle = torch.randperm(tokens * slots, generator=torch.Generator().manual_seed(2))
    where = torch.empty_like(shuffle)
    where[shuffle] = torch.arange(tokens * slots)  # row of each token and slot once rows are shuffled
    chosen = [ids.eq(e).nonzero() for e in range(16)]
    listed = [t for e in chosen if len(e) for t in (x.view(tokens, slots, -1)[e[:, 0], e[:, 1]], e[:, 0].contiguous(), e[:, 1].contiguous())]
    different = {}
    for kernel, options in FINALISE.items():
        expected = finalise(x, w, ids, dtype, **options)
        out = lambda: [torch.empty_like(expected)]  # noqa: E731, B023
        y = compute("finalise", kernel, [x, w, None, ids], out(), [slots], 4)[0]
        assert same_bits(y, expected), kernel
        shuffled = compute("finalise", kernel, [x[shuffle], w.flatten()[shuffle], where.view(tokens, slots), ids], out(), [slots])[0]
        assert same_bits(shuffled, expected), kernel
        by_expert = compute("finalise", kernel, [None, w, *[None] * 6, *listed], out(), [slots], 4)[0]
        assert same_bits(by_expert, expected), kernel
        assert bound_ratio("finalise", kernel, [x, w, None, ids], [y], [slots], 4) <= 1, kernel
        different[y.view(torch.uint8).numpy().tobytes()] = kernel
    assert len(different) >= 7  # in f32 the order of six terms rarely shows in 16 bits


def test_ranks_send_what_they_added():
    """DeepEP: every rank's own sum goes out in 16 bits; nodes round once more."""
    x, w, ids = experts(torch.bfloat16)
    tokens, slots = ids.shape
    for kernel, ranks, nodes in (("ranks:4", 4, 1), ("ranks:8x2", 8, 2)):
        y = np.zeros((tokens, 64), f32)
        for node in range(nodes):
            inside = np.zeros_like(y)
            for rank in range(node * ranks // nodes, (node + 1) * ranks // nodes):
                part = np.zeros_like(y)
                for e in range(rank * 16 // ranks, (rank + 1) * 16 // ranks):
                    for t, s in ids.eq(e).nonzero().tolist():
                        part[t] = part[t] + x.view(tokens, slots, -1)[t, s].float().numpy() * w[t, s].numpy()
                inside = inside + rounded(part, torch.bfloat16)
            y = y + (rounded(inside, torch.bfloat16) if nodes > 1 else inside)
        ours = compute("finalise", kernel, [x, w, None, ids], [torch.empty(tokens, 64, dtype=torch.bfloat16)], [slots], 4)[0]
        assert same_bits(ours, torch.from_numpy(y).bfloat16()), kernel


def test_an_order_by_experts_needs_their_numbers():
    x, w, ids = experts(torch.bfloat16)
    with pytest.raises(K.Refused, match="LB_ERR_UNSUPPORTED"):
        compute("finalise", "index_add", [x, w], [torch.empty(24, 64, dtype=torch.bfloat16)], [6], 4)
    with pytest.raises(K.Refused, match="LB_ERR_INVALID"):
        compute("finalise", "ranks:3x2", [x, w, None, ids], [torch.empty(24, 64, dtype=torch.bfloat16)], [6], 4)
