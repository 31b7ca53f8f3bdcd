"""Two blocks whose parameters all have shapes of their own, stepped three times by one of many optimizers: what belongs to a parameter
shows by its shape.

    python owned_updates.py NAME
"""

import sys

import torch
from torch import nn

torch.manual_seed(3)


class Block(nn.Module):
    def __init__(self, wide, tied):
        super().__init__()
        self.up, self.down = nn.Linear(6, wide, bias=tied), nn.Linear(wide, 6, bias=False)
        self.register_buffer("calls", torch.zeros(wide + 20))

    def forward(self, x):
        self.calls += 1
        return x + self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(9, True), Block(13, False)])
        self.head = nn.Linear(6, 17)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def orthogonal(g, steps=3):
    x = g.bfloat16()
    turned = x.size(0) > x.size(1)
    x = x.mT if turned else x
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
    return (x.mT if turned else x).to(g.dtype)


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * 0.1).add_(m.lerp(p.grad, 0.1).sign(), alpha=-group["lr"])
                m.lerp_(p.grad, 0.01)


class ByHand:
    """No class that PyTorch knows: plain code over a dictionary."""

    def __init__(self, model, rule):
        self.model, self.rule, self.state, self.norms = model, rule, {}, []

    @torch.no_grad()
    def step(self):
        for name, p in self.model.named_parameters():
            self.rule(p, p.grad, self.state.setdefault(name, torch.zeros_like(p)))

    def zero_grad(self):
        for p in self.model.parameters():
            p.grad = None


def lion(p, g, m):
    update = (0.9 * m + 0.1 * g).sign_()
    m.mul_(0.99).add_(g, alpha=0.01)
    p.mul_(0.9999)
    p.sub_(update * 1e-3)


def muon(p, g, m):
    m.mul_(0.9).add_(g)
    p.sub_(0.01 * (orthogonal(m) if p.ndim == 2 else m))


def replaced(p, g, m):
    p.data = p - 0.01 * g


class Averaged:
    """An exponential average of the weights beside the optimizer, and weight decay before it."""

    def __init__(self, model):
        self.model, self.inner = model, torch.optim.SGD(model.parameters(), lr=0.01)
        self.copies = [p.detach().clone() for p in model.parameters()]
        self.zero_grad = self.inner.zero_grad

    def step(self):
        with torch.no_grad():
            for p in self.model.parameters():
                p.sub_(p, alpha=1e-4)
        self.inner.step()
        with torch.no_grad():
            for copy, p in zip(self.copies, self.model.parameters()):
                copy.mul_(0.9).add_(p, alpha=0.1)


class AveragedByList(Averaged):
    def step(self):
        self.inner.step()
        torch._foreach_lerp_(self.copies, [p.detach() for p in self.model.parameters()], 0.1)


class MuonAndAdamW:
    def __init__(self, model):
        matrices = [p for p in model.parameters() if p.ndim == 2]
        self.parts = [torch.optim.Muon(matrices, lr=0.01), torch.optim.AdamW([p for p in model.parameters() if p.ndim != 2], lr=1e-3, foreach=True)]

    def step(self):
        for part in self.parts:
            part.step()

    def zero_grad(self):
        for part in self.parts:
            part.zero_grad()


def adamw(**how):
    return lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3, **how)


OPTIMIZERS = {
    "adamw-single": adamw(foreach=False),
    "adamw-foreach": adamw(foreach=True),
    "adamw-fused": adamw(fused=True),
    "adamw-tensor-rate": lambda model: torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-3), foreach=False),
    "amsgrad": adamw(foreach=True, amsgrad=True),
    "sgd-momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=True),
    "lion": lambda model: Lion(model.parameters()),
    "lion-by-hand": lambda model: ByHand(model, lion),
    "muon-by-hand": lambda model: ByHand(model, muon),
    "new-tensors": lambda model: ByHand(model, replaced),
    "muon": MuonAndAdamW,
    "averaged": Averaged,
    "averaged-list": AveragedByList,
    "adafactor": lambda model: torch.optim.Adafactor(model.parameters(), lr=1e-3),
    "rmsprop": lambda model: torch.optim.RMSprop(model.parameters(), lr=1e-3, foreach=True, momentum=0.9),
}


def main(name):
    clipped = name.endswith("+clip")
    model = Net()
    if name == "ddp":
        torch.distributed.init_process_group("gloo", init_method="env://", rank=0, world_size=1)
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = OPTIMIZERS["adamw-foreach" if name == "ddp" else name.removesuffix("+clip")](model)
    for batch in list(torch.randn(3, 5, 6)):  # all drawn before the first step
        model(batch).square().mean().backward()
        if clipped:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main(sys.argv[1])
