"""Orders, precisions, named kernels and threads of the rows that sum; and rows that only another device calls by their name."""

import ctypes as C
import math
import pathlib

import numpy as np
import op_harness as H
import pytest
import test_ops_torch as T
import torch

KINDS = [
    "sequential",
    "pairwise",
    "cascade",
    "blocked",
    "splitk",
    "lanes",
    "butterfly",
    "exact",
    "numpy",
    "torch",
    "tensorcore",
    "tree",
    "streamk",
    "dpbf16",
    "torchdot",
    "halved",
    "folded",
    "eights",
    "tdpbf16",
]
ORDERS = [
    ("sequential", 0, 0),
    ("pairwise", 0, 0),
    ("cascade", 8, 0),
    ("cascade", 16, 0),
    ("cascade", 1, 0),
    ("blocked", 5, 0),
    ("blocked", 64, 0),
    ("splitk", 3, 0),
    ("splitk", 3, 0x021),
    ("lanes", 4, 0),
    ("butterfly", 32, 4),
    ("exact", 0, 0),
    ("numpy", 0, 0),
    ("torch", 2, 0),
    ("dpbf16", 16, 0),
    ("torchdot", 0, 0),
    ("halved", 16, 0),
    ("eights", 0, 0),
    ("tdpbf16", 1, 0),
    ("tdpbf16", 3, 0),
]
HEAD, ALIGNED, AFTER, AGAIN, PAIRS, ROUNDED = (1 << i for i in range(6))  # options of folded; aligned's number is from bit 8 on
FOLDED = {
    "folded:4,aligned:0,tail:after,rounded": ("folded", 4, ALIGNED | AFTER | ROUNDED),
    "folded:8,pairs": ("folded", 8, PAIRS),
    "folded:4,aligned:3,tail:after,rounded": ("folded", 4, ALIGNED | AFTER | ROUNDED | 3 << 8),
    "folded:16,head:1,tail:again": ("folded", 16, HEAD | AGAIN),
    "folded:16,rounded": ("folded", 16, ROUNDED),
    "folded:4,head:1,tail:after,rounded": ("folded", 4, HEAD | AFTER | ROUNDED),
}
ROW_ORDERS = {**FOLDED, "eights": ("eights", 0, 0), "lanes:1": ("lanes", 1, 0), "sequential": ("sequential", 0, 0)}
ORDERS += FOLDED.values()
BF16 = H.DTYPES[torch.bfloat16]


class Schedule(C.Structure):
    _fields_ = [("kind", C.c_int), ("size", C.c_int64), ("vector", C.c_int64), ("tree", C.c_void_p)]


def method(order=None, kernel=None, compute=0, accumulate=0):
    m = H.Method()
    m.kernel = kernel.encode() if kernel else None
    m.compute, m.accumulate = compute, accumulate
    if order:
        m.keep = Schedule(KINDS.index(order[0]), *order[1:])
        m.schedule = C.addressof(m.keep)
    return m


def run(name, values, shapes, how=None, dtype=torch.float32):
    results = [torch.full(s, 77, dtype=dtype) for s in shapes]
    H.run(H.rows()[f"aten::{name}"], values, results, method=how)
    return results


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


SUMMING = [n for n in T.NUMERIC if T.ROWS[n].contents.flags & (H.REDUCTION | H.MATMUL) and not T.ROWS[n].contents.flags & (H.EXACT | H.DISCONTINUOUS)]


@pytest.mark.parametrize("name", SUMMING)
def test_every_order_stays_inside_the_bound(name):
    """Any order of the same terms obeys the row's bound; so does OpenBLAS where the row offers it."""
    H.set_limits()
    found = [c for c in T.cases(name, seed=4) if c.expected[0] is not None and c.expected[0].dtype == torch.float32][::4][:6]
    for case in found:
        shadow = case.exact()
        twin = case.twin(shadow)
        hows = [method(order) for order in ORDERS]
        if "openblas" in case.row.contents.text("kernels"):
            hows.append(method(kernel="openblas"))
        for how in hows:
            got = case.blanks()
            H.run(case.row, case.values(), got, method=how)
            terms = H.terms(case.row, case.values(), got)
            for g, y, w in zip(got, shadow, twin):
                if g is not None and g.dtype.is_floating_point:
                    bad = T.outside(case.row, g, y, w, g.dtype, terms)
                    assert not bool(bad.any()), f"{how.kernel} {getattr(how, 'keep', None)} in {name}({case})"


def test_orders_give_other_bits():
    x = randn(3, 1000)
    sums = {tuple(run("sum.dim_IntList", [x, [1], False, None], [(3,)], method(o))[0].tolist()) for o in ORDERS}
    assert len(sums) >= 6
    a, b = randn(4, 300), randn(300, 5, seed=1)
    products = {tuple(run("mm", [a, b], [(4, 5)], method(o))[0].flatten().tolist()) for o in ORDERS}
    assert len(products) >= 6


def test_blocked_product_is_the_sum_of_its_blocks():
    a, b = randn(7, 100), randn(100, 9, seed=1)
    blocked = run("mm", [a, b], [(7, 9)], method(("blocked", 32, 0)))[0]
    total = torch.zeros(7, 9)
    for k in range(0, 100, 32):
        total = total + run("mm", [a[:, k : k + 32], b[k : k + 32]], [(7, 9)])[0]
    assert torch.equal(blocked, total)


def test_the_default_product_is_a_chain_of_fma():
    a, b = randn(5, 40), randn(40, 6, seed=1)
    got = run("mm", [a, b], [(5, 6)])[0]
    for i in range(5):
        for j in range(6):
            acc = 0.0
            for k in range(40):  # the product of two f32 is exact in f64; adding it rounds once more, far below f32
                acc = float(torch.tensor(float(a[i, k]) * float(b[k, j]) + acc, dtype=torch.float64).float())
            assert got[i, j].item() == acc


def test_compute_rounds_inputs_and_accumulate_rounds_sums():
    a, b = randn(5, 40), randn(40, 6, seed=1)
    narrow = run("mm", [a, b], [(5, 6)], method(compute=BF16))[0]
    assert torch.equal(narrow, run("mm", [a.bfloat16().float(), b.bfloat16().float()], [(5, 6)])[0])
    x = torch.ones(1, 300)
    assert run("sum.dim_IntList", [x, [1], False, None], [(1,)], method(("sequential", 0, 0), accumulate=BF16))[0].item() == 256
    assert run("mm", [x, torch.ones(300, 1)], [(1, 1)], method(accumulate=BF16))[0].item() == 256


def test_torch_sums_have_torch_bits():
    """Many shapes and strides: one thread, the order of torch's own loops."""
    generator = torch.Generator().manual_seed(3)
    torch.set_num_threads(1)
    for trial in range(300):
        ndim = int(torch.randint(1, 5, (), generator=generator))
        shape = [int(torch.randint(1, [300, 60, 20, 9][ndim - 1], (), generator=generator)) for _ in range(ndim)]
        dtype = [torch.float32, torch.bfloat16, torch.float16][trial % 3]
        order = torch.randperm(ndim, generator=generator).tolist()
        x = torch.randn(shape, generator=generator).to(dtype).permute(order)
        dims = [d for d in range(ndim) if bool(torch.randint(0, 2, (), generator=generator))]
        keep = bool(torch.randint(0, 2, (), generator=generator))
        for name, op in (("sum.dim_IntList", torch.ops.aten.sum.dim_IntList), ("mean.dim", torch.ops.aten.mean.dim)):
            expected = op(x, dims, keep)
            got = torch.empty_strided(expected.shape, expected.stride(), dtype=dtype)
            H.run(H.rows()[f"aten::{name}"], [x, dims, keep, None], [got])
            assert torch.equal(got, expected), (name, list(x.shape), x.stride(), dims, keep, dtype)


THREADED = {
    "sum.dim_IntList": lambda: [randn(300, 700), [0], False, None],
    "mean.dim": lambda: [randn(300, 700), [1], False, None],
    "_softmax": lambda: [randn(300, 700), 1, False],
    "_log_softmax_backward_data": lambda: [randn(300, 700), randn(300, 700, seed=1), 1, torch.float32],
    "mm": lambda: [randn(150, 200), randn(200, 170, seed=1)],
    "bmm": lambda: [randn(6, 50, 90), randn(6, 90, 70, seed=1)],
    "native_layer_norm": lambda: [randn(300, 700), [700], randn(700, seed=1), randn(700, seed=2), 1e-5],
    "native_layer_norm_backward": lambda: [
        randn(300, 700),
        randn(300, 700, seed=1),
        [700],
        randn(300, 1, seed=2),
        randn(300, 1, seed=3).abs(),
        randn(700, seed=4),
        randn(700),
        [True] * 3,
    ],
    "amax": lambda: [randn(300, 700), [0], False],
    "cumsum": lambda: [randn(300, 700), 1, None],
    "embedding": lambda: [randn(500, 300), torch.arange(600).view(2, 300) % 500, -1, False, False],
    "_scaled_dot_product_flash_attention_for_cpu": lambda: [*(randn(2, 3, 130, 32, seed=s) for s in range(3)), 0.0, True, None, None],
    "convolution": lambda: [randn(2, 8, 40, 40), randn(16, 8, 3, 3, seed=1), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1],
}


@pytest.mark.parametrize("name", THREADED)
def test_bits_do_not_depend_on_the_number_of_threads(name):
    values = THREADED[name]()
    op = H.torch_op(f"aten::{name}")
    blanks = [T.blank_like(t) for t in T.tensors(op(*values[: len([p for p in op._schema.arguments if not p.kwarg_only])]))]
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        given = T.mapped(values, lambda t: t.to(dtype) if t.dtype == torch.float32 else t)
        for threads in (1, 2, 5):
            H.set_limits(threads=threads)
            fresh = [T.blank_like(t, dtype) for t in blanks]
            H.run(H.rows()[f"aten::{name}"], given, fresh)
            results.append(fresh)
            for one, other in zip(results[-1], results[len(results) - 1 - (1, 2, 5).index(threads)]):
                assert torch.equal(T.bits(one), T.bits(other)), (dtype, threads)
    H.set_limits()


# ---- names that other devices record ------------------------------------------------------------------------------------


def attention_inputs():
    q, k, v = (randn(2, 3, 33, 16, seed=s) for s in range(3))
    y, lse = run("_scaled_dot_product_flash_attention_for_cpu", [q, k, v, 0.0, True, None, None], [(2, 3, 33, 16), (2, 3, 33)])
    return q, k, v, y, lse, randn(2, 3, 33, 16, seed=7)


def test_cuda_attention_names_compute_the_same():
    q, k, v, y, lse, _ = attention_inputs()
    shapes = [(2, 3, 33, 16), (2, 3, 33)]
    for name, values in (("flash", [q, k, v, 0.0, True, False, None]), ("cudnn", [q, k, v, None, True, 0.0, True, False, None])):
        got = run(f"_scaled_dot_product_{name}_attention", values, shapes)
        assert torch.equal(got[0], y) and torch.equal(got[1], lse)
    got = run("_scaled_dot_product_efficient_attention", [q, k, v, None, True, 0.0, True, None], [shapes[0], (2, 3, 64)])
    assert torch.equal(got[0], y) and torch.equal(got[1][:, :, :33], lse) and bool(torch.isinf(got[1][:, :, 33:]).all())


def test_cuda_attention_backward_names_compute_the_same():
    q, k, v, y, lse, g = attention_inputs()
    shapes = [tuple(q.shape)] * 3
    expected = run("_scaled_dot_product_flash_attention_for_cpu_backward", [g, q, k, v, y, lse, 0.0, True, None, None], shapes)
    nothing = torch.zeros(0, dtype=torch.int64)
    for name, values in (
        ("flash", [g, q, k, v, y, lse, nothing, nothing, 33, 33, 0.0, True, nothing, nothing, None]),
        ("efficient", [g, q, k, v, None, y, lse, nothing, nothing, 0.0, [True] * 3 + [False], True, None]),
        ("cudnn", [g, q, k, v, y, lse, nothing, nothing, None, nothing, nothing, 33, 33, 0.0, True, None]),
    ):
        for a, b in zip(run(f"_scaled_dot_product_{name}_attention_backward", values, shapes), expected):
            assert torch.equal(a, b), name


def test_grouped_query_attention_repeats_key_and_value_heads():
    q, k, v = randn(2, 6, 9, 8), randn(2, 2, 11, 8, seed=1), randn(2, 2, 11, 8, seed=2)
    wide = [t.repeat_interleave(3, 1) for t in (k, v)]
    shapes = [(2, 6, 9, 8), (2, 6, 9)]
    name = "_scaled_dot_product_flash_attention_for_cpu"
    y, lse = run(name, [q, k, v, 0.0, False, None, None], shapes)
    assert torch.equal(y, run(name, [q, *wide, 0.0, False, None, None], shapes)[0])
    g = randn(2, 6, 9, 8, seed=5)
    dq, dk, dv = run(name + "_backward", [g, q, k, v, y, lse, 0.0, False, None, None], [(2, 6, 9, 8), (2, 2, 11, 8), (2, 2, 11, 8)])
    full = run(name + "_backward", [g, q, *wide, y, lse, 0.0, False, None, None], [(2, 6, 9, 8), (2, 6, 11, 8), (2, 6, 11, 8)])
    assert torch.equal(dq, full[0])
    assert torch.allclose(dk, full[1].view(2, 2, 3, 11, 8).sum(2), atol=1e-5)


def test_dropout_in_attention_is_not_computed():
    q = randn(1, 1, 4, 8)
    with pytest.raises(H.Unsupported):
        run("_scaled_dot_product_flash_attention_for_cpu", [q, q, q, 0.1, False, None, None], [(1, 1, 4, 8), (1, 1, 4)])


def test_batch_norm_that_writes_its_running_statistics():
    """As the interpreter calls it: results, then the new running mean and variance."""
    x, gamma, beta = randn(6, 3, 5), randn(3, seed=1), randn(3, seed=2)
    mean, var = randn(3, seed=3), randn(3, seed=4).abs()
    new_mean, new_var = mean.clone(), var.clone()
    expected = torch.ops.aten._native_batch_norm_legit(x, gamma, beta, new_mean, new_var, True, 0.1, 1e-5)
    got = run("_native_batch_norm_legit", [x, gamma, beta, mean, var, True, 0.1, 1e-5], [(6, 3, 5)] + [(3,)] * 4)
    for a, b in zip(got, [*expected, new_mean, new_var]):
        assert torch.allclose(a, b, rtol=1e-6, atol=1e-6)


def test_rms_norm_backward_is_the_derivative():
    x = randn(4, 9).double().requires_grad_()
    gamma = randn(9, seed=1).double().requires_grad_()
    g = randn(4, 9, seed=2).double()
    rstd = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    (x * rstd * gamma).backward(g)
    dx, dgamma = run(
        "_fused_rms_norm_backward", [g, x.detach(), [9], rstd.detach(), gamma.detach(), [True, True]], [(4, 9), (9,)], dtype=torch.float64
    )
    assert torch.allclose(dx, x.grad, rtol=1e-12, atol=1e-12) and torch.allclose(dgamma, gamma.grad, rtol=1e-12, atol=1e-12)
    assert not math.isnan(float(dx.sum()))


@pytest.mark.parametrize("n", [7, 8, 100, 129, 1000, 8191, 8192, 100003])
def test_numpy_is_what_numpy_does(n):
    x = randn(n, seed=n)
    (y,) = run("sum", [x, None], [()], method(("numpy", 0, 0)))
    assert y.item() == x.numpy().sum().item()


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_torch_is_what_torch_does_with_as_many_threads(threads, count):
    threads(count)
    for n in (1000, 32767, 32768, 65537, 100003):
        x = randn(n, seed=n)
        (y,) = run("sum", [x, None], [()], method(("torch", count, 0)))
        assert y.item() == x.sum().item(), n


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("k", [64, 500, 700, 1000, 1024, 1100])
def test_torch_is_what_mkl_does_with_as_many_threads(threads, count, k):
    """Read off from MKL on Intel's processors with AVX-512. (On AMD's it halves k beyond 192 and takes blocks of 192 beyond 384.)"""
    if (
        not torch.backends.mkl.is_available()
        or torch.backends.cpu.get_cpu_capability() != "AVX512"
        or "GenuineIntel" not in pathlib.Path("/proc/cpuinfo").read_text()
    ):
        pytest.skip("known of MKL with AVX-512 on Intel's processors only")
    threads(count)
    a, b = randn(48, k, seed=k), randn(k, 64, seed=k + 1)
    (y,) = run("mm", [a, b], [(48, 64)], method(("torch", count, 0)))
    assert torch.equal(y, a @ b)


NARROW = [(48, 64, 64), (1, 64, 343), (33, 17, 512), (96, 48, 576), (5, 3, 9)]  # m, n, k


@pytest.mark.parametrize("m,n,k", NARROW)
def test_dpbf16_is_what_onednn_does_with_avx512_bf16(threads, m, n, k):
    processor = pathlib.Path("/proc/cpuinfo").read_text()
    if "avx512_bf16" not in processor or "amx_bf16" in processor:
        pytest.skip("another instruction multiplies bf16 here")
    threads(1)
    a, b = randn(m, k, seed=k).bfloat16(), randn(k, n, seed=k + 1).bfloat16()
    (y,) = run("mm", [a, b], [(m, n)], method(("dpbf16", 512, 0)), dtype=torch.bfloat16)
    assert torch.equal(y, a @ b)


def cancelling(m, n, k):
    """Factors whose products cancel each other, k even: what the sums leave is the rounding of their order alone, and bf16 keeps its bits."""
    half, order = k // 2, torch.randperm(k, generator=torch.Generator().manual_seed(k))
    a, b = randn(m, half, seed=k).bfloat16(), randn(half, n, seed=k + 1).bfloat16()
    return torch.cat([a, -a], 1)[:, order].contiguous(), torch.cat([b, b])[order].contiguous()


@pytest.mark.parametrize("m,n", [(40, 64), (16, 16), (96, 48), (4, 64)])
def test_tdpbf16_is_what_onednn_does_with_amx(threads, m, n):
    """Whatever k: one share or several, and tiles of 32 terms or of fewer where k divides evenly. All but a few sums tell orders apart."""
    if "amx_bf16" not in pathlib.Path("/proc/cpuinfo").read_text():
        pytest.skip("no matrix unit multiplies bf16 here")
    threads(1)
    for k in (20, 32, 38, 40, 44, 62, 72, 80, 100, 104, 264, 300, 500, 576, 700, 768, 1000, 1500):
        a, b = cancelling(m, n, k)
        ours = [run("mm", [a, b], [(m, n)], method(("tdpbf16", shares, 0)), dtype=torch.bfloat16)[0] for shares in range(1, 9)]
        assert any(torch.equal(y, a @ b) for y in ours), (m, n, k)
        (chains,) = run("mm", [a, b], [(m, n)], method(("sequential", 0, 0)), dtype=torch.bfloat16)
        assert k < 200 or (chains != a @ b).double().mean() > 0.5, (m, n, k)


@pytest.mark.parametrize("m,n,k", NARROW)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_torchdot_is_what_torch_does_without_onednn(threads, monkeypatch, m, n, k, dtype):
    threads(1)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    a, w = randn(m, k, seed=k).to(dtype), randn(n, k, seed=k + 1).to(dtype)
    expected = torch.nn.functional.linear(a, w)
    (y,) = run("mm", [a, w.t()], [(m, n)], method(("torchdot", 0, 0)), dtype=dtype)
    assert torch.equal(y, expected)


# ---- kernels for one row ---------------------------------------------------------------------------------------------------


def fma(x, y, acc):  # exact in f64 but for the addition, which is rounded far below f32
    return (x.astype(np.float64) * y.astype(np.float64) + acc.astype(np.float64)).astype(np.float32)


def folded(lanes):
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [a + b for a, b in zip(lanes[:half], lanes[half:])]
    return lanes[0]


def emulated(order, x, b):
    """The sum of every column as schedule.h says it, one column after the other, with nothing of the engine."""
    kind, size, options = order
    k, n = b.shape
    zero = np.float32(0)
    rounded = kind == "lanes" or options & ROUNDED

    def take(acc, terms, y, round_it=False):
        for i in terms:
            acc = np.float32(acc + x[i] * y[i]) if rounded or round_it else fma(x[i], y[i], acc)
        return acc

    def to_lanes(lanes, terms, y):
        return [take(acc, terms[i :: len(lanes)], y) for i, acc in enumerate(lanes)]

    def fold(lanes):
        return folded([a + b for a, b in zip(lanes[::2], lanes[1::2])] if options & PAIRS else lanes)

    def eights(y):
        sum, i = zero, 0
        for i in range(0, k - k % 8, 8):
            sum = take(take(sum, [i + 6], y), [i + 4], y)
            sum = sum + take(zero, [i + 7, i + 5], y)
            sum = sum + (take(zero, [i + 2, i], y) + take(zero, [i + 3, i + 1], y))
        return take(sum, range(k - k % 8, k), y)

    def column(j, y):
        last = j - (n - n % 4) if options & (AFTER | AGAIN) else -1  # of the last few: which
        second = last == 1 and n % 4 > 1
        head = 1 if options & HEAD else (k - 1 - (options >> 8)) % size + 1 if options & ALIGNED else 0
        if last >= 0 and options & AFTER:
            head = size - (options >> 8) if options & ALIGNED else head
            body = (k - min(head, k)) // (2 * size) * 2 * size
            first = [take(zero, range(min(head, k)), y)] + [zero] * (size * (1 if second else 2) - 1)
            return take(fold(to_lanes(first, range(min(head, k), min(head, k) + body), y)), range(min(head, k) + body, k), y)
        head = min(head, k)
        if last >= 0:
            wide = 0 if second else (k - head) // (2 * size) * 2 * size
            lanes = to_lanes([zero] * 2 * size, range(head, head + wide), y)
            lanes = [a + b for a, b in zip(lanes[:size], lanes[size:])]
            return take(fold(to_lanes(lanes, range(head + wide, k), y)), range(head), y, round_it=True)
        body = (k - head) // size * size if options & (AFTER | AGAIN) else k - head
        sum = fold(to_lanes([take(zero, range(head), y)] + [zero] * (size - 1), range(head, head + body), y))
        if options & AGAIN and head + body < k:
            return fold(to_lanes([sum] + [zero] * (size - 1), range(head + body, k), y))
        return take(sum, range(head + body, k), y)

    if kind == "eights":
        return np.array([eights(b[:, j]) if j < n - n % 16 else take(zero, range(k), b[:, j]) for j in range(n)])
    if kind != "folded":
        return np.array([take(zero, range(k), b[:, j]) for j in range(n)])
    return np.array([column(j, b[:, j]) for j in range(n)])


@pytest.mark.parametrize("name", ROW_ORDERS)
def test_orders_of_kernels_for_one_row_are_what_they_say(name):
    for k, n in [(1, 4), (2, 17), (5, 6), (16, 7), (17, 21), (33, 6), (40, 23), (67, 7), (97, 18), (130, 5)]:
        a, b = randn(2, k, seed=k), randn(k, n, seed=n)
        (y,) = run("mm", [a, b], [(2, n)], method(ROW_ORDERS[name]))
        expected = np.stack([emulated(ROW_ORDERS[name], row.numpy(), b.numpy()) for row in a])
        assert np.array_equal(y.numpy(), expected), (k, n)


@pytest.mark.parametrize(
    "most,k,blocks",
    [
        (192, 192, [192]),
        (192, 193, [96, 96, 1]),
        (192, 383, [191, 191, 1]),
        (192, 384, [192, 192]),
        (192, 500, [192, 192, 116]),
        (192, 577, [192, 192, 192, 1]),
        (64, 100, [50, 50]),
    ],
)
def test_halved_cuts_where_it_says(most, k, blocks):
    """Blocks of their own, added in order."""
    a, b = randn(5, k, seed=k), randn(k, 9, seed=k + 1)
    (y,) = run("mm", [a, b], [(5, 9)], method(("halved", most, 0)))
    parts = [run("mm", [x.contiguous(), z], [(5, 9)])[0] for x, z in zip(a.split(blocks, 1), b.split(blocks))]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    assert torch.equal(y, total)


def live_order(lastbit, folder, layout, k, rows, monkeypatch):
    """The name under which `lastbit order` finds the product that torch has here, None where it finds none for all outputs: then each order
    that was found is told as a tree, and of outputs without one it is said why."""
    (folder / "live.py").write_text("""
import torch
def plain(a, b): return torch.mm(a, b)
def transposed(a, b): return torch.mm(a, b.t().contiguous().t())
""")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    done = lastbit.probe_product(layout, k, rows, 64, "--threads", 1)
    assert sum(group["positions"] for group in done["groups"]) == (rows * 64 if done["sample"] is None else len(done["sample"]))
    for group in done["groups"]:
        told = group["name"] or group["tree"] or group["reason"]
        assert told and (group["outcome"] == "tree") == (group["reason"] is None), group
        assert group["name"] in (group["names"] or [None]) and group["confirmed"] <= group["tried"], group
    group = done["groups"][0]
    return group["name"] if len(done["groups"]) == 1 and group["confirmed"] == group["tried"] else None


@pytest.mark.parametrize("layout", ["plain", "transposed"])
def test_rows_have_the_bits_of_the_library_s_kernel(lastbit, tmp_path, threads, monkeypatch, layout):
    """The order is found at one shape; it holds at all others, in mm, addmm, linear and bmm. Other kernels keep one order at one shape alone."""
    name = live_order(lastbit, tmp_path, layout, 43, 1, monkeypatch)
    if name not in ROW_ORDERS:
        return
    threads(1)
    for k in (5, 16, 33, 64, 77, 128, 193, 384, 576, 1024):
        for n in (4, 5, 6, 7, 31, 64, 250, 576):
            a, b = randn(1, k, seed=k), randn(k, n, seed=n)
            w = b.t().contiguous()
            (y,) = run("mm", [a, b], [(1, n)], method(ROW_ORDERS[name]))
            products = {"mm": a @ b} if layout == "plain" else {"mm": a @ w.t(), "linear": torch.nn.functional.linear(a, w)}
            if k * n >= 400:  # torch's own loops multiply smaller batches
                second = b[None] if layout == "plain" else w.t()[None]
                products["bmm"] = torch.bmm(a[None], second)[0]
            for product, expected in products.items():
                assert torch.equal(y, expected), (name, product, k, n)


@pytest.mark.parametrize("count", [1, 2])
def test_halved_is_what_mkl_does_where_the_processor_is_not_intel_s(lastbit, tmp_path, threads, monkeypatch, count):
    name = live_order(lastbit, tmp_path, "plain", 579, 48, monkeypatch)
    if name not in ("halved:192", "blocked:192"):  # MKL on Intel's, which test_torch_is_what_mkl_does_with_as_many_threads asks
        return
    threads(count)
    for k in (64, 192, 193, 383, 384, 385, 500, 577, 1000):
        for m, n in ((16, 16), (4, 64), (65, 65), (12, 300)):
            a, b = randn(m, k, seed=k), randn(k, n, seed=k + 1)
            (y,) = run("mm", [a, b], [(m, n)], method(("halved", 192, 0)))
            assert torch.equal(y, a @ b), (m, n, k)
            assert torch.equal(y, a @ b.t().contiguous().t()), (m, n, k)


def test_pairs_and_folds_add_up_as_they_say():
    """Terms that tell the order: in f32 a 1 beside 2^24 is lost, and two of them are not if they meet first."""
    big, ones = 2.0**24, torch.ones(1, 1)

    def summed(x, order):
        return run("mm", [torch.tensor([x]), ones.expand(len(x), 1).contiguous()], [(1, 1)], method(order))[0].item()

    assert summed([big, 1, 1, 0], ("dpbf16", 512, 0)) == big  # ((1 + big) + 0) + 1
    assert summed([1, 1, big, 0], ("dpbf16", 512, 0)) == big + 2
    assert summed([0, 0, big, 0, 1, 1], ("dpbf16", 2, 0)) == big + 2  # the pair is a chain of its own
    assert summed([0, 0, big, 0, 1, 1], ("dpbf16", 4, 0)) == big + 2
    assert summed([0, 0, big, 0, 1, 0, 1, 0], ("dpbf16", 4, 0)) == big + 2
    assert summed([0, 0, big, 0, 1, 0, 1, 0], ("dpbf16", 8, 0)) == big
    # tdpbf16: in a tile even terms meet even ones, odd ones odd ones; then they meet each other, then the sum before them
    assert summed([big, 1, 0, 1], ("tdpbf16", 1, 0)) == big + 2
    assert summed([big, 0, 1, 0, 1, 0], ("tdpbf16", 1, 0)) == big
    assert summed([big] + [0] * 33 + [1, 1] + [0] * 29, ("tdpbf16", 1, 0)) == big + 2  # 65 terms: tiles of 32, 32 and 1
    assert summed([1] + [0] * 19 + [big] + [0] * 18 + [1], ("tdpbf16", 1, 0)) == big  # 40 terms: two tiles of 20
    assert summed([big] + [0] * 63 + [1] + [0] * 31 + [1] + [0] * 31, ("tdpbf16", 1, 0)) == big
    assert summed([big] + [0] * 63 + [1] + [0] * 31 + [1] + [0] * 31, ("tdpbf16", 2, 0)) == big + 2
    lanes = [big] + [0] * 31 + [1] + [0] * 15 + [1] + [0] * 79  # accumulators 0, 32 and 48
    assert summed(lanes, ("torchdot", 0, 0)) == big  # (0 + 32) + (16 + 48)
    lanes[16], lanes[32] = 1, 0
    assert summed(lanes, ("torchdot", 0, 0)) == big + 2


@pytest.mark.parametrize("shares, edge, shape", [(3, 16, (40, 50, 200)), (7, 32, (64, 33, 330)), (1, 128, (20, 20, 500)), (100, 64, (64, 64, 128))])
def test_stream_k_cuts_tiles_where_shares_end(shares, edge, shape):
    """Every tile is the sum, in order, of the chains between the borders of equal shares of all steps of 32 terms."""
    m, n, k = shape
    a, b = randn(m, k), randn(k, n, seed=1)
    (ours,) = run("mm", [a, b], [(m, n)], method(("streamk", shares, edge)))
    each, columns = -(-k // 32), -(-n // edge)
    steps = -(-m // edge) * columns * each
    shares = min(shares, steps)
    borders = [c * (steps // shares) + min(c, steps % shares) for c in range(shares + 1)]
    expected = torch.empty(m, n)
    for t in range(steps // each):
        rows, cols = slice(t // columns * edge, (t // columns + 1) * edge), slice(t % columns * edge, (t % columns + 1) * edge)
        cuts = sorted({t * each, (t + 1) * each, *(c for c in borders if t * each < c < (t + 1) * each)})
        for i, (first, last) in enumerate(zip(cuts, cuts[1:])):
            terms = slice((first - t * each) * 32, (last - t * each) * 32)
            x, y = a[rows, terms].contiguous(), b[terms, cols].contiguous()
            (part,) = run("mm", [x, y], [(x.shape[0], y.shape[1])])
            expected[rows, cols] = part if i == 0 else expected[rows, cols] + part
    assert torch.equal(ours, expected)
    (plain,) = run("mm", [a, b], [(m, n)])
    assert torch.equal(ours, plain) == all(c % each == 0 for c in borders)
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="torch's vectors have another width here")
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_norms_have_torchs_bits(threads, count):
    """Squares of dense rows in eight lanes and what is left over; everything else term by term, in a piece per thread."""
    threads(count)
    g = torch.Generator().manual_seed(3)
    how = method(("torch", count, 0)) if count > 1 else None
    for size in (1, 3, 6, 12, 15, 100, 399, 40000, 102401):
        x, gaps = torch.randn(size, generator=g), torch.randn(size, 3, generator=g)[:, 1:]
        for values, p in ((x, 1), (x, 2), (gaps, 1), (gaps, 2)):
            (y,) = run("linalg_vector_norm", (values, p, None, False, None), [()], how)
            assert y == torch.linalg.vector_norm(values, p), (size, p, values.shape)
    (y,) = run("linalg_vector_norm", (gaps, 2, [0], False, None), [(2,)])
    assert torch.equal(y, torch.linalg.vector_norm(gaps, 2, dim=0))
