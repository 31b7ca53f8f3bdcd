"""Ops outside every module: which phase they are of. Each loop says it of its own lines, through a log of what torch ran."""

import textwrap

import pytest
import recorded

torch = pytest.importorskip("torch")

# `with phase("optimizer"):` around lines of a loop logs their ops, as a block of names with the phase that they should get.
HEAD = """
import contextlib, json, sys, torch
from torch.utils._python_dispatch import TorchDispatchMode
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 6))
params = list(model.parameters())
data = lambda: torch.randn(3, 4)
log = []
class Log(TorchDispatchMode):
    def __init__(self, name):
        super().__init__(); log.append((name, []))
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.namespace == "aten": log[-1][1].append(func._schema.name)
        return out
phase = Log
import atexit, os
atexit.register(lambda: json.dump(log, open(os.environ["PHASES"], "w")))
"""

SGD_BY_HAND = """
momentum = [torch.zeros_like(p) for p in params]
for _ in range(3):
    loss = model(data())
    with phase("forward"):
        loss = (loss - 1).square().mean()
    loss.backward()
    with phase("optimizer"), torch.no_grad():
        for p, m in zip(params, momentum):
            p.mul_(1 - 1e-3)
            m.mul_(0.9)
            m.add_(p.grad)
            p.sub_(0.1 * m)
            p.grad = None
"""
LION = """
state = [torch.zeros_like(p) for p in params]
@torch.no_grad()
def lion():
    for p, m in zip(params, state):
        update = (m * 0.9).add_(p.grad, alpha=0.1).sign_()
        p.add_(update, alpha=-1e-3)
        m.mul_(0.99).add_(p.grad, alpha=0.01)
        p.grad.zero_()
for _ in range(3):
    y = model(data())
    with phase("forward"):
        loss = torch.nn.functional.cross_entropy(y, torch.tensor([0, 1, 2]))
    loss.backward()
    with phase("optimizer"): lion()
"""
MUON = """
buffers = {}
@torch.no_grad()
def muon():
    for p in params:
        if p.ndim < 2:
            p.data.add_(p.grad, alpha=-1e-3); p.grad = None
            continue
        b = buffers.setdefault(p, torch.zeros_like(p))
        b.lerp_(p.grad, 0.05)
        g = p.grad.lerp(b, 0.95).bfloat16()
        g = g / (g.norm() + 1e-7)
        for a, b_, c in [(3.4445, -4.7750, 2.0315)] * 3:
            A = g @ g.T
            g = a * g + (b_ * A + c * A @ A) @ g
        p.add_(g.to(p.dtype), alpha=-0.02 * max(1, p.size(0) / p.size(1)) ** 0.5)
        p.grad = None
for _ in range(2):
    loss = model(data()).square().mean()
    loss.backward()
    with phase("optimizer"): muon()
"""
ADAM_BY_HAND_WITHOUT_NO_GRAD = """
m, v, t = [torch.zeros_like(p) for p in params], [torch.zeros_like(p) for p in params], torch.tensor(0.0)
for _ in range(3):
    y = model(data())
    with phase("forward"):
        loss = y.logsumexp(-1).mean() + sum(p.square().sum() for p in params) * 1e-4
    loss.backward()
    with phase("optimizer"):
        t += 1
        c1, c2 = 1 - 0.9 ** t, 1 - 0.99 ** t
        for p, a, b in zip(params, m, v):
            a.mul_(0.9).add_(p.grad, alpha=0.1)
            b.mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
            p.data.sub_(1e-3 * (a / c1) / ((b / c2).sqrt() + 1e-8))
            p.grad.detach_(); p.grad.zero_()
"""
EMA = """
opt = torch.optim.AdamW(params, lr=1e-2)
import copy
average = copy.deepcopy(model)
shadow = [p.detach().clone() for p in params]
plain = {n: p.detach().clone() for n, p in model.named_parameters()}
for _ in range(3):
    loss = model(data()).square().mean()
    loss.backward(); opt.step(); opt.zero_grad()
    with phase("optimizer"), torch.no_grad():
        for a, p in zip(average.parameters(), params): a.mul_(0.9).add_(p, alpha=0.1)
        torch._foreach_lerp_(shadow, params, 0.1)
    with phase("optimizer"):
        for n, p in model.named_parameters(): plain[n] = plain[n] * 0.9 + p.data * 0.1
    with torch.no_grad():
        y = model(data())
        with phase("other"):
            (y.argmax(-1) == torch.tensor(1)).float().mean()
"""
CLIPPING = """
opt = torch.optim.SGD(params, lr=1e-2)
for _ in range(3):
    y = model(data())
    with torch.no_grad():
        with phase("other"): (y.argmax(-1) == 1).sum()
    loss = y.square().mean()
    loss.backward()
    with phase("optimizer"):
        norm = torch.stack([p.grad.norm() for p in params]).norm()
        scale = (0.1 / (norm + 1e-6)).clamp(max=1.0)
        for p in params: p.grad.mul_(scale)
    opt.step()
    with phase("optimizer"), torch.no_grad():
        for p in params: p.clamp_(-0.5, 0.5)
    opt.zero_grad()
"""
CLOSURE = """
opt = torch.optim.LBFGS(params, max_iter=3)
x = data()
def closure():
    opt.zero_grad()
    y = model(x)
    with phase("forward"): loss = (y - 1).square().mean() + params[0].square().sum() * 1e-3
    loss.backward()
    return loss
for _ in range(2): opt.step(closure)
"""
CONTRASTIVE = """
opt = torch.optim.AdamW(params)
for _ in range(2):
    for _ in range(2):
        a, b = model(data()), model(data())
        with phase("forward"):
            a, b = (z / z.norm(dim=-1, keepdim=True) for z in (a, b))
            loss = torch.nn.functional.cross_entropy(a @ b.T * 10, torch.arange(3))
        loss.backward()
    opt.step(); opt.zero_grad()
"""
GRADIENTS_OF_ITS_OWN = """
for _ in range(2):
    loss = model(data()).square().mean()
    gradients = torch.autograd.grad(loss, params)
    with phase("optimizer"), torch.no_grad():
        for p, g in zip(params, gradients): p.sub_(g * 0.1)
"""
WRITTEN_WITHOUT_LOOKING_AT_IT = """
opt = torch.optim.SGD(params, lr=0.1)
for n in range(2):
    model(data()).sum().backward(); opt.step(); opt.zero_grad()
    if n == 0:
        with phase("optimizer"): params[0].data[1, 2] = 3.0
"""
LOOPS = {name: code for name, code in list(globals().items()) if name.isupper() and isinstance(code, str) and name not in ("HEAD",)}


@pytest.mark.parametrize("loop", LOOPS)
def test_the_phase_of_an_op_outside_modules_is_what_the_loop_does_there(loop, tmp_path):
    recorded.run(HEAD + textwrap.dedent(LOOPS[loop]), tmp_path / "run.lb", PHASES=str(tmp_path / "log.json"), level="stats")
    import json

    log = json.load(open(tmp_path / "log.json"))
    capture = recorded.Recorded(tmp_path / "run.lb")
    ops = [
        (program.step, program.name(op).partition(".")[0], recorded.PHASES[op.phase])
        for program in capture.programs[0].values()
        for op in program.ops
        if program.layer(op) == "" and program.name(op) != "lb::source"
    ]
    at = 0
    for phase, names in log:
        while [name for _, name, _ in ops[at : at + len(names)]] != names:
            at += 1
            assert at < len(ops), (phase, names)
        # What only looks at a parameter's bytes in another way is of no importance.
        assert {p for _, name, p in ops[at : at + len(names)] if name not in ("aten::detach", "aten::alias", "aten::t")} == {phase}, ops[
            at : at + len(names)
        ]
        at += len(names)
    assert log
    assert capture.table("coverage")["unseen_writes"] == 0
    backward = [p for _, n, p in ops if p == "backward"]
    assert backward
