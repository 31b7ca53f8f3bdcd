"""`explain` of norms: of gradients and of layers, by kernels of other block sizes, written out, and as rows of other batches."""

import pytest
import torch
from explained_pairs import own, record, record_pair, recorded_once

NORM = """
import sys, torch
torch.manual_seed(0)
H = 512
def butterfly(v, threads, vector):
    # Threads take `vector` consecutive terms in turn; xor exchange in warps of 32, then over the warps.
    n = v.shape[-1]
    rounds = n // (threads * vector)
    t = v.reshape(-1, rounds, threads, vector)
    acc = t[:, 0, :, 0]
    for r in range(rounds):
        for i in range(vector):
            if r or i: acc = acc + t[:, r, :, i]
    def warp(x):
        for offset in (16, 8, 4, 2, 1):
            x = x + x[..., torch.arange(32) ^ offset]
        return x[..., 0]
    sums = warp(acc.reshape(-1, threads // 32, 32))
    if threads == 32: return sums
    return warp(torch.nn.functional.pad(sums, (0, 32 - threads // 32)))[..., None]
class RMSNorm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(1 + torch.randn(H) / 8)
    def forward(self, x):
        if sys.argv[1] == "eager":
            mean = x.pow(2).mean(-1, keepdim=True)
        else:
            mean = butterfly(x.pow(2), int(sys.argv[1]), int(sys.argv[2])) / H
        return x * torch.rsqrt(mean + 1e-6) * self.weight
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = torch.nn.Linear(64, H, bias=False), RMSNorm(), torch.nn.Linear(H, 32, bias=False)
    def forward(self, x): return self.down(self.norm(self.up(x)))
m = Model()
with torch.no_grad(): m(torch.randn(64, 64))
"""


OPAQUE = """
import sys, torch
torch.manual_seed(0)
H, THREADS, VECTOR = 1024, 256, 4
@torch.library.custom_op("serving::norm", mutates_args=())
def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    # Each thread chains fma over its vector, warps exchange by xor, then one warp over the warps.
    v = x.float().double().reshape(-1, THREADS, VECTOR)
    acc = torch.zeros(v.shape[:2], dtype=torch.float32)
    for i in range(VECTOR):
        acc = (acc.double() + v[:, :, i] * v[:, :, i]).float()
    def warp(s):
        for offset in (16, 8, 4, 2, 1):
            s = s + s[..., torch.arange(32) ^ offset]
        return s[..., 0]
    total = warp(torch.nn.functional.pad(warp(acc.reshape(-1, THREADS // 32, 32)), (0, 32 - THREADS // 32)))
    scale = (1 / (total / H + 1e-6).double().sqrt()).float()
    return (x.float() * scale.reshape(-1, 1) * weight.float()).to(x.dtype)
class RMSNorm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(1 + torch.randn(H) / 8)
    def forward(self, x):
        if sys.argv[1] == "fused": return norm(x, self.weight)
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * y.to(x.dtype)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = torch.nn.Linear(64, H, bias=False), RMSNorm(), torch.nn.Linear(H, 32, bias=False)
    def forward(self, x): return self.down(self.norm(self.up(x)))
dtype = getattr(torch, sys.argv[2])
m = Model().to(dtype)
with torch.no_grad(): m(torch.randn(64, 64).to(dtype))
"""


CLIP = """
import sys, torch
how, threads, p = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
torch.manual_seed(0)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.mid, self.down = torch.nn.Linear(256, 400), torch.nn.Linear(400, 400), torch.nn.Linear(400, 256)
    def forward(self, x): return self.down(torch.relu(self.mid(torch.relu(self.up(x)))))
model = Model()
params = list(model.parameters())
opt = torch.optim.SGD(params, lr=0.1)
for step in range(2):
    model(torch.randn(64, 256)).pow(2).mean().backward()
    torch.set_num_threads(threads)
    if how in ("foreach", "loop"):
        torch.nn.utils.clip_grad_norm_(params, 0.01, norm_type=p, foreach=how == "foreach")
    else:
        grads = [q.grad for q in params]
        if how == "squares": total = torch.sqrt(sum(g.pow(2).sum() for g in grads))
        if how == "dropped": total = torch.stack(torch._foreach_norm(grads[:-1])).norm(2)
        for g in grads: g.mul_(torch.clamp(0.01 / (total + 1e-6), max=1.0))
    torch.set_num_threads(1)
    opt.step(); opt.zero_grad()
"""


LAYER_NORM = """
import sys, torch
torch.set_num_threads(int(sys.argv[1]))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.LayerNorm(256), torch.nn.Linear(256, 8))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    model(torch.randn(150, 256)).pow(2).mean().backward()
    opt.step(); opt.zero_grad()
"""


@pytest.fixture(scope="module")
def clips(lastbit, tmp_path_factory):
    return recorded_once(lastbit, tmp_path_factory.mktemp("clips"), CLIP)


@pytest.mark.parametrize(
    "one, other, first, schedule, elements",
    [
        ("foreach 1 1", "foreach 4 1", "torch:1", "torch:4", 12),
        ("foreach 4 1", "foreach 1 1", "torch:4", "torch:1", 12),
        ("foreach 1 1", "loop 3 1", "torch:1", "torch:3", 6),
        ("loop 3 1", "foreach 4 1", "torch:3", "torch:4", 6),
    ],
)
def test_norms_of_all_gradients_by_other_numbers_of_threads(lastbit, clips, one, other, first, schedule, elements):
    """clip_grad_norm_: one op over all gradients, or one per gradient; of those larger than a piece each thread adds a part."""
    found = own(lastbit.json("explain", "--phase", "optimizer", clips(one), clips(other), expect=1))
    assert {f["step"] for f in found} == {0, 1} and sum(f["elements"] for f in found) == elements
    for f in found:
        assert (f["cause"], f["first"], f["schedule"], f["proof"]) == ("order", first, schedule, "bits")
        assert f["matched"] == f["elements"] and f["excluded"] >= 12
        assert {f["op"], f["other_op"]} <= {"aten::_foreach_norm.Scalar", "aten::linalg_vector_norm"}
    # One norm may have another order by chance, all of them have one; a single thread adds one term after the other.
    also = [set(filter(None, f["also"].split("; "))) for f in found]
    assert set.intersection(*also) == ({"sequential"} if schedule == "torch:1" else set())


def test_a_norm_that_is_written_out(lastbit, clips):
    """The norm of norms against the root of all squares: torch's sum has another order than its norm. A norm that lacks a gradient is none
    of them, and nothing explains it."""
    foreach, squares, dropped = (clips(f"{how} 1 2") for how in ("foreach", "squares", "dropped"))
    assert not lastbit.json("explain", foreach, clips("loop 4 2"), expect=0)["findings"]
    for sides, turned in (((foreach, squares), False), ((squares, foreach), True)):
        found = own(lastbit.json("explain", "--phase", "optimizer", *sides, expect=1))
        assert [f["step"] for f in found] == [0, 1]
        for f in found:
            # ATen adds in another order without vector instructions; then this one number fits what else it may.
            if torch.backends.cpu.get_cpu_capability() != "DEFAULT":
                assert (f["cause"], f["schedule"], f["reversed"]) == ("order", "cascade:8", turned)
            assert f["proof"] == "bits"
            assert f["matched"] == f["elements"] == 1 and "aten::_foreach_norm.Scalar" in f["other_op" if turned else "op"]
    found = own(lastbit.json("explain", "--phase", "optimizer", foreach, dropped, expect=1))
    assert {(f["cause"], f["matched"]) for f in found} == {("unexplained", 0)} and all(f["excluded"] == f["tried"] >= 30 for f in found)


@pytest.mark.full
def test_the_backward_of_a_layer_norm_by_four_threads(lastbit, tmp_path):
    """Each thread adds up the gradients of its rows."""
    one, other = record_pair(lastbit, tmp_path, LAYER_NORM, ["1"], ["4"])
    for sides, names in (((one, other), ("torch:1", "torch:4")), ((other, one), ("torch:4", "torch:1"))):
        found = own(lastbit.json("explain", "--seconds", "60", *sides, expect=1))
        assert [f["step"] for f in found] == [0, 1]
        for f in found:
            assert (f["op"], f["cause"], f["proof"]) == ("aten::native_layer_norm_backward", "order", "bits")
            assert (f["first"], f["schedule"]) == names and f["matched"] == f["elements"] == 2 * 256
            assert f["schedule"] == "torch:1" or (not f["also"] and f["excluded"] >= 100)


@pytest.fixture(scope="module")
def norms(lastbit, tmp_path_factory):
    folder = tmp_path_factory.mktemp("norms")
    sides = {"eager": ["eager"], "32": ["32", "4"], "128": ["128", "4"]}
    return {name: record(lastbit, folder, f"norm{name}", NORM, *args) for name, args in sides.items()}


@pytest.mark.parametrize(
    "one, other, first, schedule",
    [
        ("eager", "32", "torch:1", "butterfly:32x4"),
        ("eager", "128", "torch:1", "butterfly:128x4"),
        ("32", "128", "butterfly:32x4", "butterfly:128x4"),
        ("128", "32", "butterfly:128x4", "butterfly:32x4"),
    ],
)
def test_norms_of_two_block_sizes(lastbit, norms, one, other, first, schedule):
    answer = lastbit.json("explain", norms[one], norms[other], "--seconds", "20", expect=1)
    (f,) = own(answer)
    assert (f["layer"], f["cause"], f["schedule"], f["proof"]) == ("norm", "order", schedule, "bits")
    assert f["first"] in (first, "own")
    assert f["matched"] == f["elements"] == 64 and f["excluded"] >= 40
    inherited = {f["layer"] for f in answer["findings"] if f["cause"] == "input"}
    assert inherited == {"norm", "down"}


def test_the_budget_of_one_change(lastbit, norms):
    """The change that was found, in a chained replay, gives every bit of the other run's output."""
    answer = lastbit.json("explain", "--budget", norms["eager"], norms["128"], expect=1)
    (budget,) = answer["budget"]
    assert [(r["cause"], r["schedule"], r["layer"]) for r in budget["rows"]] == [("order", "butterfly:128x4", "norm")]
    assert budget["differing"] == 0 and budget["elements"] == 64 * 32
    assert budget["rows"][0]["share"] == pytest.approx(1) and budget["together"] == pytest.approx(1)
    assert abs(budget["interaction"]) < 1e-9 and abs(budget["rest"]) < 1e-9
    norm, down = answer["layers"]
    assert (norm["layer"], norm["own"], down["layer"], down["own"], down["local"]) == ("norm", 1, "down", 0, None)
    assert 0 < norm["local"] < 1e-6 and 0 < down["total"] < 1e-6


@pytest.mark.full
def test_a_fused_norm_that_replay_does_not_know(lastbit, tmp_path):
    """A custom op is recorded whole; what it did inside is found from its bits alone."""
    eager, fused = (record(lastbit, tmp_path, name, OPAQUE, name, "float32") for name in ("hf", "fused"))
    answer = lastbit.json("explain", "--budget", "--seconds", "20", eager, fused, expect=1)
    (f,) = own(answer)
    assert (f["layer"], f["cause"], f["other_op"], f["proof"]) == ("norm", "kernel", "serving::norm", "bits")
    assert f["schedule"] == "rms_norm:butterfly:256x4x1" and f["matched"] == f["elements"] == 64 * 1024
    # Threads without a term change nothing; the same tree without fma, or other trees, are excluded.
    assert set(f["also"].split("; ")) <= {"rms_norm:butterfly:512x4x1", "rms_norm:butterfly:1024x4x1"} and f["excluded"] >= 100
    (budget,) = answer["budget"]
    assert budget["differing"] == 0 and budget["rows"][0]["share"] == pytest.approx(1)
    # In bf16 the last rounding hides the order: the cause stays, and the data is said not to tell kernels apart.
    for name in ("hf", "fused"):
        record(lastbit, tmp_path, f"{name}16", OPAQUE, name, "bfloat16")
    (f,) = own(lastbit.json("explain", "--seconds", "20", tmp_path / "hf16.lb", tmp_path / "fused16.lb", expect=1))
    assert (f["cause"], f["schedule"]) == ("precision", "f32") and "rms_norm:butterfly" in f["also"]


BY_HAND = """
import sys, torch
torch.manual_seed(0)
class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = (torch.nn.Parameter(one + torch.randn(512) / 8) for one in (1, 0))
    def forward(self, x):
        if sys.argv[1] == "torch": return torch.nn.functional.layer_norm(x, (512,), self.weight, self.bias, 1e-5)
        centred = x - x.mean(-1, keepdim=True)
        eps = float(sys.argv[2])
        return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + eps) * self.weight + self.bias
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = torch.nn.Linear(64, 512, bias=False), Norm(), torch.nn.Linear(512, 32, bias=False)
    def forward(self, x): return self.down(self.norm(self.up(x)))
model = Model()
with torch.no_grad(): model(torch.randn(64, 64))
"""


def test_a_layer_norm_by_hand_against_torchs(lastbit, tmp_path):
    """Nine ops on one side, one on the other: they are one layer norm, and torch's own kernel in their place gives its bits. With another
    eps they are another function, which no kernel explains."""
    ours, torchs, other = (
        record(lastbit, tmp_path, name, BY_HAND, *args)
        for name, args in {"hand": ("hand", "1e-5"), "one_op": ("torch",), "other": ("hand", "1e-3")}.items()
    )
    (f,) = own(lastbit.json("explain", ours, torchs, expect=1))
    assert (f["layer"], f["cause"], f["other_op"]) == ("norm", "kernel", "aten::native_layer_norm") and f["excluded"] >= 20
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":  # the order of ATen's kernel without vector instructions is not known
        assert (f["schedule"], f["proof"]) == ("the second side's own ops", "exact")
    else:
        assert (f["schedule"], f["proof"]) == ("layer_norm:welford", "bits") and f["matched"] == f["elements"] == 64 * 512
    assert {f["cause"] for f in own(lastbit.json("explain", other, torchs, expect=1))} == {"unexplained"}


def test_a_row_in_batches_of_other_sizes(lastbit, norms):
    """Our own kernels do not look at the batch; launch rules of fused norms do, and so may libraries."""
    eager = norms["eager"]
    answer = lastbit.json("explain", "--invariance", "layer=up|norm|down", eager, expect=(0, 1))
    rows = answer["invariance"]
    kernels = {(r["op"], r["kernel"]) for r in rows}
    assert {("aten::mm", "own"), ("aten::mm", "openblas"), ("aten::mean.dim", "own"), ("rms_norm", "butterfly,sms:132")} <= kernels
    assert not [r for r in rows if r["kernel"] == "own" and r["varies"]]
    for r in rows:
        assert [s["rows"] for s in r["sizes"]] == [1 << i for i in range(10)] and r["recorded"] == 64 and r["embedded"] == 64
        (recorded,) = [s for s in r["sizes"] if s["rows"] == 64]
        assert recorded["differing"] == 0 and r["varies"] == any(s["differing"] for s in r["sizes"])
    # 512 f32 columns are 128 threads: one block whatever the batch. With 1024 columns two blocks become one from some batch on.
    (fused,) = [r for r in rows if r["op"] == "rms_norm"]
    assert not fused["varies"]
    assert lastbit.run("explain", "--invariance", "layer=nothing", eager).returncode == 125
    assert lastbit.run("explain", "--invariance", "layer=up", eager, eager).returncode == 129


def test_the_launch_rule_of_a_fused_norm(lastbit, tmp_path):
    eager = record(lastbit, tmp_path, "eager", OPAQUE, "hf", "float32")
    for multiprocessors, first in ((132, 128), (16, 16)):
        (norm,) = lastbit.json("explain", "--invariance", "layer=norm&op=mul.Tensor", "--multiprocessors", multiprocessors, eager, expect=1)[
            "invariance"
        ]
        # tokens * 2 blocks > SMs: then one block of 256 threads, another tree than two of 128.
        sides = [{s["differing"] > 0 for s in norm["sizes"] if (s["rows"] >= first) == beyond} for beyond in (False, True)]
        recorded = norm["recorded"] >= first
        assert sides[recorded] == {False} and sides[not recorded] == {True}
