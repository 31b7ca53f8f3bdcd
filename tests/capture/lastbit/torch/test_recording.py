"""What is recorded is what torch computed: an independent mode above ours sees the same ops and clones their tensors."""

import textwrap

import pytest
import recorded
from conftest import ROOT

torch = pytest.importorskip("torch")

PRELUDE = """
import sys
sys.path.insert(0, %r)
import torch
torch.set_num_threads(1)
torch.manual_seed(1)
""" % str(ROOT / "capture")

ORACLE = """
import lastbit.torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only, tree_leaves

def copy(x):
    return tree_map_only(torch.Tensor, lambda t: t.detach().clone(), x)

class Oracle(TorchDispatchMode):
    def __init__(self):
        self.seen = []
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "profiler":
            return func(*args, **(kwargs or {}))
        with torch.utils._python_dispatch._disable_current_modes():
            before = [copy(t) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        out = func(*args, **(kwargs or {}))
        with torch.utils._python_dispatch._disable_current_modes():
            after = [copy(t) for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        self.seen.append((func._schema.name + ("." + func._schema.overload_name if func._schema.overload_name else ""), before, after))
        return out
"""

MODELS = {
    "mlp": """
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=%s)
def step():
    loss = torch.nn.functional.cross_entropy(model(torch.randn(5, 8)), torch.randint(0, 4, (5,)))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step(); opt.zero_grad()
    return loss.item()
""",
}
MODELS["foreach"] = MODELS["mlp"] % "True"
MODELS["mlp"] = MODELS["mlp"] % "False"
MODELS["convolution in bf16, slices, in-place, indexing"] = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv1d(4, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm1d(8)
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.out = torch.nn.Linear(8, 5)
    def forward(self, x, mask):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.norm(self.conv(x)).transpose(1, 2)
            h = h + self.attention(h, h, h, need_weights=False)[0]
        h = h.float()
        cache = torch.empty(h.shape[0], 7, 8)
        cache[:, :4] = h[:, 2:6].detach()
        cache[:, 4:] = 1.5
        y = torch.zeros_like(h)
        y.index_add_(1, torch.tensor([0, 2, 2]), h[:, :3])
        y[:, 1::2] += cache[:, :3].mean()
        return self.out(y.masked_fill(mask[..., None], 0.0)[:, -1])
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
def step():
    x = torch.randn(2, 4, 6)
    loss = model(x, mask=x[:, 0] > 1).logsumexp(-1).mean()
    loss.backward()
    opt.step(); opt.zero_grad(set_to_none=False)
    return loss.item()
"""
MODELS["checkpointing, custom autograd, routing by top-k"] = """
from torch.utils.checkpoint import checkpoint
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g
class Router(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = torch.nn.Linear(8, 4)
    def forward(self, h):
        logits = self.proj(h)
        w, ids = logits.softmax(-1).topk(2)
        return logits, w / w.sum(-1, keepdim=True), ids
class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.router = Router()
        self.experts = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))
    def forward(self, h):
        _, w, ids = self.router(h)
        out = torch.zeros_like(h)
        for e, expert in enumerate(self.experts):
            token, slot = (ids == e).nonzero(as_tuple=True)
            if len(token):
                out.index_add_(0, token, expert(h[token]) * w[token, slot, None])
        return out
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())
        self.moe = Experts()
    def forward(self, x):
        h = checkpoint(self.inner, x, use_reentrant=False)
        return Square.apply(h + self.moe(h))
model = Net()
opt = torch.optim.Adam(model.parameters(), fused=True)
def step():
    loss = model(torch.randn(6, 8)).sum()
    loss.backward()
    opt.step(); opt.zero_grad()
    return loss.item()
"""


@pytest.mark.parametrize("model", MODELS)
def test_every_op_has_the_bits_that_torch_had(model, tmp_path):
    code = (
        PRELUDE
        + ORACLE
        + MODELS[model]
        + textwrap.dedent("""
        oracle = []
        with lastbit.torch.capture(%r, level="ops") as cap:
            for n in range(3):
                with cap.step(n), Oracle() as o:
                    step()
                oracle.append(o.seen)
        torch.save(oracle, %r)
    """)
        % (str(tmp_path / "run.lb"), str(tmp_path / "oracle.pt"))
    )
    recorded.run(code)
    oracle = torch.load(tmp_path / "oracle.pt", weights_only=False)
    capture = recorded.Recorded(tmp_path / "run.lb")
    assert capture.steps == [0, 1, 2]
    for step, seen in enumerate(oracle):
        program = capture.programs[0][step]
        assert program.complete and program.level == 3
        ops = [op for op in program.ops if program.name(op) != "lb::source"]
        assert [program.name(op) for op in ops] == [name for name, _, _ in seen]
        for op, (name, before, after) in zip(ops, seen):
            view = op.flags & recorded.VIEW  # reads no bytes
            check(program, name, program.inputs(op), before, view)
            check(program, name, [v for v in program.results(op) if v != recorded.NONE], after, view)
    assert not capture.table("coverage")["notes"]


def check(program, name, values, tensors, view):
    assert len(values) == len(tensors), name
    for v, t in zip(values, tensors):
        assert program.shape(v) == list(t.shape), name
        if program.values[v].flags & recorded.UNDEFINED or (view and not program.has(v)):
            continue
        got = program.tensor(v)
        assert got.dtype == t.dtype and same_bits(got, t), (name, v)
        digest = program.digest(v)
        assert digest == (0, 0) or digest == digest_of(program, t, v), name


def same_bits(a, b):
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.contiguous().view(width), b.contiguous().view(width))


def digest_of(program, t, v):
    """The C library's own digest of torch's tensor."""
    import ctypes

    t = t.contiguous()
    layout = recorded.Layout(t.ndim, 0)
    for d in range(t.ndim):
        layout.shape[d], layout.stride[d] = t.shape[d], t.stride(d)
    tensor = recorded.Tensor(t.data_ptr(), program.values[v].dtype, layout)
    d = program.capture.lib.lb_digest_tensor(ctypes.byref(tensor))
    return (d.hi, d.lo)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("level", ["stats", "ops"])
def test_bits_with_and_without_capture_are_equal(model, level, tmp_path):
    program = tmp_path / "train.py"
    program.write_text(
        "import torch\ntorch.set_num_threads(1)\ntorch.manual_seed(1)\n"
        + MODELS[model]
        + textwrap.dedent("""
        losses = [step() for _ in range(5)]
        print(losses, [p.detach().view(torch.int32).sum().item() for p in model.parameters()])
    """)
    )
    plain = recorded.run("exec(open(%r).read())" % str(program))
    captured = recorded.run("exec(open(%r).read())" % str(program), tmp_path / "run.lb", level=level)
    assert plain == captured
    capture = recorded.Recorded(tmp_path / "run.lb")
    assert capture.steps == [0, 1, 2, 3, 4]
    assert all(q.complete for q in capture.programs[0].values())


def test_tensors_are_the_same_by_torchs_c_interface_and_by_python(tmp_path):
    """The short way to what a tensor is, and the long one that other versions of torch are left."""
    shown = []
    for way in "0", "1":
        out, _, _ = recorded.run(
            """
            import torch
            import lastbit.torch.session as sessions

            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)).to(torch.bfloat16)
            opt = torch.optim.AdamW(model.parameters())
            for _ in range(2):
                x = torch.randn(3, 6).to(torch.bfloat16)
                y = model(x.t().contiguous().t())[:, 0].float().mean()
                (y + x[1:, 2].sum() + torch.zeros(0).sum() + x.to(torch.complex64).abs().sum()).backward()
                opt.step()
                opt.zero_grad()
            print(sessions.current.shortcut)
        """,
            tmp_path / way,
            shortcut=way,
        )
        assert out.strip() == str(way == "1")
        capture = recorded.Recorded(tmp_path / way)
        shown.append([program.show() for program in capture.programs[0].values()])
    assert shown[0] == shown[1] and len(shown[0]) == 2
