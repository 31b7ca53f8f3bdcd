"""Selective scans and dispatches of tokens: found in recorded models however they are written, every kernel with the bits of the same
order in NumPy, inside its bound, and near the recurrence in f64 by torch."""

import numpy as np
import pytest
import torch
from composites import bound_ratio, compute, same_bits
from swapped import ROOT, replayed
from test_composites import f32, fma, rounded
from test_fused_attention import exp

SAMPLE = "samples/hybrid_lm.py"
TURNED, TIME_FIRST, DRIVEN = 128, 64, 256


# ---- in recordings ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model, how",
    [
        ("mamba", "steps"),
        ("mamba2", "chunks"),
        pytest.param("falcon_h1", "chunks", marks=pytest.mark.full),
        pytest.param("jamba", "steps", marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("dtype", ["fp32", "bf16", pytest.param("autocast", marks=pytest.mark.full)])
def test_scans_of_models_are_found(steps, model, how, dtype):
    step = steps("--model", model, "--dtype", dtype, "--steps", "1")
    scans = step.of("selective_scan")
    assert len(scans) == (1 if model == "jamba" else 2)
    for c in scans:
        recorded, candidates = c.outputs()[0], c.candidates()
        assert ("bmm" in " ".join(c.ops)) and (how == "steps") == ("aten::stack" in c.ops)
        assert ("chunked:8" in candidates) == (how == "chunks")
        torch.testing.assert_close(
            c.run("eager")[0].float(), recorded.float(), rtol=2e-2 if dtype != "fp32" else 1e-5, atol=1e-3 if dtype != "fp32" else 1e-6
        )
        for kernel in candidates[1:]:
            torch.testing.assert_close(
                c.run(kernel)[0].float(), recorded.float(), rtol=3e-2 if dtype != "fp32" else 1e-4, atol=3e-3 if dtype != "fp32" else 1e-6
            )
        if how == "steps" and dtype == "bf16":  # every y is one product in f32 over a state rounded to bf16 just before
            assert same_bits(c.run("sequential,read:t")[0], recorded) and not same_bits(c.run("sequential")[0], recorded)


@pytest.mark.parametrize("fault", [(), ("--fault", "scan-overflow")], ids=["differences", "factored"])
def test_the_pairs_of_the_sample_are_found(steps, fault):
    step = steps("--steps", "1", *fault, program=SAMPLE)
    (c,) = step.of("selective_scan")
    assert c.layer == "layers.2.scan" and c.ops[-1] == "aten::bmm" and ("aten::tril" in c.ops) == bool(fault) and c.inputs()[4] is not None
    for kernel in c.candidates():
        torch.testing.assert_close(c.run(kernel)[0], c.outputs()[0], rtol=1e-4 if fault else 1e-5, atol=1e-4 if fault else 1e-5)


@pytest.mark.parametrize("kernel", ["sequential", "chunked:64"])
def test_a_scan_that_overflows_is_finite_without_its_factors(lastbit, tmp_path, kernel):
    """The forward of the sample whose culprit is exp(-c): the recurrence never leaves what f32 can hold."""
    select = ("--steps", "2", "--mode", "chained", "--select", "phase=forward&layers.2.scan/(aten::bmm|fused)")
    capture = f"{ROOT}/samples/scan-overflow.lbz"
    for options, finite in (((), False), (("--fuse", f"selective_scan={kernel}"), True)):
        _, written = replayed(lastbit, capture, tmp_path, *select, *options, expect=(0, 125))
        assert written.tensors[max(written.tensors)].isfinite().all().item() == finite


def test_the_scan_that_was_found_is_the_models(steps):
    """exp(e) h + dt B u by torch in f64, from the recorded inputs by their roles."""
    e, u, b, c, dt, *_ = steps("--steps", "1", program=SAMPLE).of("selective_scan")[0].inputs()
    batch, heads, time = e.shape
    u, b, c = u.view(batch, heads, time, -1).double(), b.transpose(1, 2)[:, None].double(), c[:, None].double()
    h, y = torch.zeros(batch, heads, u.shape[-1], b.shape[-1], dtype=torch.float64), []
    for t in range(time):
        drive = dt.reshape(batch, heads, time)[:, :, t, None, None].double() * u[:, :, t, :, None] * b[:, :, t, None]
        h = e[:, :, t, None, None].double().exp() * h + drive
        y.append((h * c[:, :, t, None]).sum(-1))
    recorded = steps("--steps", "1", program=SAMPLE).of("selective_scan")[0].outputs()[0]
    torch.testing.assert_close(torch.stack(y, 2).flatten(0, 1).float(), recorded, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "arguments, kernel",
    [
        (("--model", "mamba", "--steps", "2"), "blocks:4x2"),
        (("--model", "mamba2", "--steps", "2"), "chunked:5"),
        (("--model", "mamba2", "--steps", "2"), "sequential,state:bf16"),
    ],
)
def test_a_chain_with_a_fused_scan_goes_on_to_the_end(lastbit, recordings, tmp_path, arguments, kernel):
    capture = recordings(*arguments)
    chain = ("--mode", "chained")
    plain, before = replayed(lastbit, capture, tmp_path, *chain, "--select", "phase=optimizer")
    fused, after = replayed(lastbit, capture, tmp_path, *chain, "--fuse", f"selective_scan={kernel}", "--select", "phase=optimizer")
    assert fused["swaps"][0]["touched"] == 4 and fused["verdict"] == "swapped" and fused["verdicts"]["diverged"] == 0
    assert fused["ops"]["total"] < plain["ops"]["total"]
    moved = [
        ((t.double() - before.tensors[k].double()).norm() / before.tensors[k].double().norm().clamp(min=1e-30)).item()
        for k, t in after.tensors.items()
        if t.is_floating_point() and t.numel() > 1
    ]
    assert 0 < max(moved) < 0.5 and np.median(moved) < 1e-2


LOOPS = "tests/programs/scan_loops.py"
WRITTEN = [
    "loop_minimal",
    "loop_channels_first",
    "loop_inside",
    "loop_with_skip",
    "loop_in_another_order",
    "loop_of_states",
    "loop_of_states_by_elements",
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_loops_over_time_are_found_and_look_alikes_are_not(steps, dtype):
    """Each once, in the module that is named for it; with the roles that the recurrence, in f64 by torch, has."""
    found = steps("--dtype", dtype, program=LOOPS).of("selective_scan")
    assert sorted(c.layer for c in found) == sorted(WRITTEN)
    for c in found:
        (e, u, b, cc, dt, a, skip, *_), recorded = c.inputs(), c.outputs()[0]
        inside = c.layer in ("loop_inside", "loop_with_skip", "loop_in_another_order")
        assert (a is not None) == (dt is not None) == (b is not None) == inside and (skip is not None) == (c.layer in WRITTEN[3:5])
        assert bool(c.row.flags & DRIVEN) != inside and bool(c.row.flags & TIME_FIRST) == (c.layer != "loop_channels_first")
        assert same_bits(c.run("eager")[0], recorded) or dtype == "float32"  # MKL's products of f32 have an order of their own
        if inside:
            e, drive = dt.double()[..., None] * a.double(), dt.double()[..., None] * b.double()[:, :, None] * u.double()[..., None]
        else:
            e, drive = e.double(), u.double()
            if c.layer == "loop_channels_first":
                e, drive = e.transpose(1, 2), drive.transpose(1, 2)
        h, y = torch.zeros_like(e[:, 0]), []
        for t in range(e.shape[1]):
            h = e[:, t].exp() * h + drive[:, t]
            y.append((h * cc.double()[:, t, None]).sum(-1) + (skip.double() * u.double()[:, t] if skip is not None else 0))
        exact = torch.stack(y, 2 if c.layer == "loop_channels_first" else 1)
        wide = {"rtol": 1e-5, "atol": 1e-5} if dtype == "float32" else {"rtol": 6e-2, "atol": 3e-2}
        recorded = recorded.view_as(exact)  # a product of matrices has a last dimension of one
        torch.testing.assert_close(recorded.double(), exact, **wide)
        assert not [k for k in c.candidates() if k.startswith("chunked")]  # a decay for every state
        for kernel in c.candidates()[1:]:
            ours = c.run(kernel, outputs=[torch.empty(recorded.shape)])[0]
            if "state" not in kernel and "read" not in kernel:
                torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5, msg=lambda m: f"{c.layer} {kernel}: {m}")
            assert bound_ratio("selective_scan", kernel, c.inputs(), [ours], flags=c.row.flags) <= 1


@pytest.mark.parametrize("kernel", ["sequential", "blocks:4x2,fma:on"])
def test_loops_over_time_are_replaced(lastbit, recordings, kernel):
    """One kernel for every loop, and the step goes on through backward."""
    capture = recordings("--dtype", "float32", program=LOOPS)
    answer = lastbit.json("replay", capture, "--mode", "chained", "--fuse", f"selective_scan={kernel}", expect=0)
    assert answer["swaps"][0]["touched"] == len(WRITTEN) and answer["verdict"] == "swapped" and answer["verdicts"]["diverged"] == 0


# ---- bits --------------------------------------------------------------------------------------------------------------------------

B, H, T, P, N = 2, 3, 21, 4, 5


def draw(dtype, seed=0):
    """e (B, H, T), u (B, H, T, P), b, c (B, 1, T, N), dt (B, H, T)."""
    g = torch.Generator().manual_seed(seed)
    dt = torch.rand(B, H, T, generator=g) * 0.5
    return -dt * torch.rand(B, H, 1, generator=g) * 4, *(torch.randn(B, n, T, k, generator=g).to(dtype) for n, k in ((H, P), (1, N), (1, N))), dt


def recurrence(e, drive, c, add, state=lambda x: x, read=lambda x: x):
    """e (…, T, 1 or N), drive and c (…, T, N): y (…, T)."""
    h, y = np.zeros_like(drive[..., 0, :]), []
    for t in range(T):
        h = state(add(np.broadcast_to(exp(e[..., t, :]), h.shape), h, drive[..., t, :]))
        total = np.zeros(h.shape[:-1], f32)
        for n in range(h.shape[-1]):
            total = add(c[..., t, n], read(h)[..., n], total)
        y.append(total)
    return np.stack(y, -1)


def plain(a, b, c):
    return a * b + c


def fused(a, b, c):
    return fma(*np.broadcast_arrays(a, b, c))


def spread(e, u, b, c, dt):
    """Everything as (B, H, P, T, N)."""
    e, u, b, c, dt = (t.float().numpy() for t in (e, u, b, c, dt))
    x = (dt[..., None] * u).transpose(0, 1, 3, 2)[..., None]
    b, c = (np.broadcast_to(t[:, :, None], (B, H, P, T, N)) for t in (b, c))
    return np.broadcast_to(e[:, :, None, :, None], (B, H, P, T, 1)), x * b, np.ascontiguousarray(c)


def scan_of_blocks(a, d, threads, items, add):
    """Along the last axis: the states; associative pairs in cub's order."""

    def then(x, y):
        return y[0] * x[0], add(y[0], x[1], y[1])

    one, out, before = (np.ones_like(a[..., 0]), np.zeros_like(d[..., 0])), np.zeros_like(d), None
    item = lambda i: (a[..., i], d[..., i]) if i < T else one  # noqa: E731
    for start in range(0, T, threads * items):
        sums = []
        for k in range(threads):
            s = item(start + k * items)
            for i in range(1, items):
                s = then(s, item(start + k * items + i))
            sums.append(s)
        total = None
        for first in range(0, threads, 32):
            warp = sums[first : first + 32]
            for distance in (1, 2, 4, 8, 16):
                warp = [then(warp[i - distance], s) if i >= distance else s for i, s in enumerate(warp)]
            for lane in range(len(warp)):
                parts = [p for p in (before, total, warp[lane - 1] if lane else None) if p is not None]
                s = None
                for p in reversed(parts):
                    s = p if s is None else then(p, s)
                for i in range(items):
                    at = start + (first + lane) * items + i
                    if at < T:
                        s = item(at) if s is None else then(s, item(at))
                        out[..., at] = s[1]
            total = warp[-1] if total is None else then(total, warp[-1])
        before = total if before is None else then(before, total)
    return out


def in_chunks(e, x, b, c, size, add, state=lambda x: x, pairs=lambda x: x):
    """Of one head: e (T), x (T, P), b, c (T, N): y (T, P)."""
    y, kept = np.zeros((T, P), f32), np.zeros((P, N), f32)
    for first in range(0, T, size):
        part = range(first, min(first + size, T))
        sums = {}
        for t in part:
            sums[t] = (sums[t - 1] if t > first else f32(0)) + e[t]
        for t in part:
            for s in range(first, t + 1):
                pair = f32(0)
                for n in range(N):
                    pair = add(c[t, n], b[s, n], pair)
                pair = pairs(np.asarray(pair * exp(np.asarray([sums[t] - sums[s]]))[0], f32))
                y[t] = add(pair, x[s], y[t])
            if first:
                from_state = np.zeros(P, f32)
                for n in range(N):
                    from_state = add(c[t, n], kept[:, n], from_state)
                y[t] = y[t] + from_state * exp(np.asarray([sums[t]]))[0]
        last, fresh = sums[part[-1]], np.zeros((P, N), f32)
        for s in part:
            fresh = add(x[s][:, None], (b[s] * exp(np.asarray([last - sums[s]]))[0])[None], fresh)
        kept = state(add(exp(np.asarray([last]))[0], kept, fresh))
    return y


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_scans_have_the_bits_of_their_orders(dtype):
    inputs = draw(dtype)
    e, drive, c = spread(*inputs)
    t16 = lambda q: rounded(q, torch.bfloat16)  # noqa: E731
    narrow = (lambda q: rounded(q, dtype)) if dtype == torch.bfloat16 else lambda q: q  # noqa: E731
    expected = {
        "sequential": recurrence(e, drive, c, plain),
        "sequential,fma:on": recurrence(e, drive, c, fused),
        "sequential,state:bf16": recurrence(e, drive, c, plain, state=t16),
        "sequential,read:t": recurrence(e, drive, c, plain, read=narrow),
    }
    for threads, items, add in ((4, 2, plain), (33, 1, plain), (8, 3, fused)):
        a = np.broadcast_to(exp(np.ascontiguousarray(e)), drive.shape)
        states = np.moveaxis(scan_of_blocks(np.moveaxis(a, 3, 4), np.moveaxis(drive, 3, 4), threads, items, add), 4, 3)
        y = np.zeros(drive.shape[:-1], f32)
        for n in range(N):
            y = add(c[..., n], states[..., n], y)
        expected[f"blocks:{threads}x{items}" + (",fma:on" if add is fused else "")] = y
    ee, u, b, cc, dt = (t.float().numpy() for t in inputs)
    for name, size, options in (
        ("chunked:8", 8, {}),
        ("chunked:64", 64, {}),
        ("chunked:8,fma:on", 8, {"add": fused}),
        ("chunked:8,state:bf16", 8, {"state": t16}),
        ("chunked:8,pairs:t", 8, {"pairs": narrow}),
    ):
        heads = [
            in_chunks(ee[i, j], dt[i, j, :, None] * u[i, j], b[i, 0], cc[i, 0], size, **{"add": plain, **options}).T
            for i in range(B)
            for j in range(H)
        ]
        expected[name] = np.stack(heads).reshape(B, H, P, T)
    e, u, b, c, dt = inputs
    seen = set()
    for kernel, y in expected.items():
        out = compute("selective_scan", kernel, [e, u, b, c, dt], [torch.empty(B, H, T, P)])[0]
        assert same_bits(out, torch.from_numpy(np.ascontiguousarray(y.transpose(0, 1, 3, 2)))), kernel
        ratio = bound_ratio("selective_scan", kernel, [e, u, b, c, dt], [out])
        assert ratio <= 1, (kernel, ratio)
        seen.add(out.numpy().tobytes())
    assert len(seen) >= len(expected) - (2 if dtype == torch.float32 else 0)  # in f32 there is no narrower type of C


def test_layouts_of_a_scan_are_one_scan():
    e, u, b, c, dt = draw(torch.float32)
    for kernel in ("sequential", "blocks:4x2", "chunked:8"):
        y = compute("selective_scan", kernel, [e, u, b, c, dt], [torch.empty(B, H, T, P)])[0]
        turned = compute(
            "selective_scan", kernel, [e, u.flatten(0, 1), b[:, 0].transpose(1, 2), c[:, 0], dt[:, :, None]], [torch.empty(B * H, T, P)], flags=TURNED
        )[0]
        assert same_bits(turned.view_as(y), y)
        swap = lambda t: t.transpose(1, 2)  # noqa: E731
        first = compute(
            "selective_scan", kernel, [swap(e), swap(u), swap(b), swap(c), swap(dt)], [torch.full((B, T + 3, H, P), 7.0)], flags=TIME_FIRST
        )[0]
        assert same_bits(swap(first[:, :T]).contiguous(), y) and not first[:, T:].any()
        per_head = compute("selective_scan", kernel, [e, u, b.expand(-1, H, -1, -1), c.expand(-1, H, -1, -1), dt], [torch.empty(B, H, T, P)])[0]
        assert same_bits(per_head, y)
    drive = (dt[..., None] * u[..., :1]) * b
    each = e[..., None].expand(-1, -1, -1, N)
    for kernel in ("sequential", "blocks:4x2"):
        driven = compute("selective_scan", kernel, [each, drive, None, c], [torch.empty(B, H, T)], flags=DRIVEN)[0]
        assert same_bits(
            driven, compute("selective_scan", kernel, [e, u[..., :1].contiguous(), b, c, dt], [torch.empty(B, H, T, 1)])[0][..., 0].contiguous()
        )


# ---- dispatches ----------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def moe(recordings):
    return recordings("--model", "qwen3_moe", "--steps", "1")


def test_dispatches_are_found_with_every_spelling(steps):
    for step, layers in ((steps("--model", "qwen3_moe", "--steps", "1"), 2), (steps("--steps", "1", "--experts-kind", "grouped", program=SAMPLE), 1)):
        found = step.of("dispatch")
        assert len(found) == layers
        for c in found:
            (x, ids), (y, _, order, tokens) = c.inputs()[:2], c.outputs()
            slots = int(c.numbers[0])
            assert slots == 2 and same_bits(y, x[tokens]) and torch.equal(ids[order], ids.sort().values)
            assert same_bits(c.run("eager")[0], y)
            y, rows, order, tokens = c.run(
                "stable", outputs=[torch.empty_like(y), torch.empty_like(ids), torch.empty_like(order), torch.empty_like(order)]
            )
            assert torch.equal(order, ids.sort(stable=True).indices) and torch.equal(rows, ids.sort().values)
            assert same_bits(y, x[order // slots]) and torch.equal(tokens, order // slots)
    assert not steps("--steps", "1", program=SAMPLE).of("dispatch")  # a loop over the experts has no such order


def test_orders_of_a_dispatch():
    g = torch.Generator().manual_seed(1)
    x, ids = torch.randn(40, 6, generator=g).bfloat16(), torch.randint(0, 5, (120,), generator=g)
    orders = {}
    for kernel in ("stable", "reversed", "shuffled:1", "shuffled:2"):
        y, rows, order = compute("dispatch", kernel, [x, ids], [torch.empty(120, 6).bfloat16(), torch.empty_like(ids), torch.empty_like(ids)], [3])
        assert torch.equal(order.sort().values, torch.arange(120)) and torch.equal(ids[order], rows) and torch.equal(rows, ids.sort().values)
        assert same_bits(y, x[order // 3])
        orders[kernel] = order
    assert torch.equal(orders["stable"], ids.sort(stable=True).indices)
    assert torch.equal(orders["reversed"], torch.cat([o.flip(0) for o in orders["stable"].split(ids.bincount().tolist())]))
    assert len({tuple(o.tolist()) for o in orders.values()}) == 4


@pytest.mark.parametrize("kernel", ["reversed", "shuffled:3"])
def test_the_order_of_a_dispatch_does_not_reach_what_is_put_back(lastbit, moe, tmp_path, kernel):
    """Rows of a grouped product do not know of each other, and each goes back to its slot."""
    select = ("--mode", "chained", "--select", "layer=lm_head")
    plain, before = replayed(lastbit, moe, tmp_path, *select)
    fused, after = replayed(lastbit, moe, tmp_path, *select, "--fuse", f"dispatch={kernel}")
    forward = min(before.tensors)
    assert fused["swaps"][0]["touched"] == 2 and same_bits(before.tensors[forward], after.tensors[forward])
    _, rows = replayed(lastbit, moe, tmp_path, "--mode", "chained", "--fuse", f"dispatch={kernel}", "--select", "op=aten::index.Tensor")
    _, same = replayed(lastbit, moe, tmp_path, "--mode", "chained", "--select", "op=aten::index.Tensor")
    assert any(not same_bits(t, same.tensors[k]) for k, t in rows.tensors.items())
