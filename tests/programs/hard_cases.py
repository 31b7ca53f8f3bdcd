"""A small residual model whose runs go wrong in ways that are easily blamed on the wrong place: hard_cases.py CASE.

underflow     f16 weights underflow to 0 in `score`; the 0/0 is `blend`'s, three layers on
spike         one learning rate is 1e32 in step 1; weights stay finite, step 2 overflows
two-blocks    an expert's product and a scan's exp overflow, each by itself enough
two-axes      attention scores overflow in f16, and the scan's exp in f32
range         attention scores overflow in f16: bf16 and f32 both cure
precision     a difference of like numbers is lost in f16: f32 cures, bf16 does not
hidden        the backward of sqrt at 0 is infinite; a sanitiser turns it into 0 before anyone looks
skipped       a loss scaler meets infinite gradients and skips the step, as it should
mask          attention masks, and the output itself holds -inf for tokens that are not allowed: nothing is wrong
batch-nan     one element of step 2's batch is NaN
batch-huge    step 2's batch is 1e30 times too large
labels        step 2's labels are all ignored: the mean over none of them is 0/0
bytes         somebody writes 1e30 over one row of a weight through NumPy in step 2
none
"""

import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

CASE = sys.argv[1] if len(sys.argv) > 1 else "none"
B, T, D, V, STEPS = 2, 8, 16, 32, 4


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)

    def forward(self, x, step):
        q, k, v = self.qkv(x).chunk(3, -1)
        if CASE in ("range", "two-axes") and step == 2:
            scores = ((q * 3e3).half() @ (k * 3e3).half().transpose(-1, -2)).float() / 9e6
        else:
            scores = q @ k.transpose(-1, -2)
        future = torch.ones(T, T, dtype=torch.bool).triu(1)
        weights = torch.softmax((scores / D**0.5).masked_fill(future, float("-inf")), -1)
        return self.out(weights @ v)


class Experts(nn.Module):
    """Two experts, chosen by top-1."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(D, 2, bias=False)
        self.experts = nn.ModuleList(nn.Linear(D, D, bias=False) for _ in range(2))

    def forward(self, x, step):
        flat = x.flatten(0, 1)
        probability, choice = self.router(flat).softmax(-1).topk(1)
        out = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            rows = (choice[:, 0] == i).nonzero()[:, 0]
            y = expert(flat[rows])
            if CASE == "two-blocks" and step == 2 and i == 0:
                y = y * 1e30 * 1e30
            out = out.index_add(0, rows, y * probability[rows])
        return out.view_as(x)


class SelectiveScan(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.out = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)

    def forward(self, x, step):
        decay = -F.softplus(self.gate(x)).cumsum(1)
        if CASE in ("two-blocks", "two-axes") and step == 2:
            decay = decay * 40
            return self.out((x * (-decay).exp()).cumsum(1) * decay.exp())
        return self.out((x * decay.exp()).cumsum(1))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x, step):
        h = self.up(x)
        if CASE == "precision" and step == 2:
            near = (1 + h.abs() * 1e-4).half()  # all of it is 1 in f16, and in bf16
            h = h / (near.float() - 1)
        if CASE == "hidden" and step == 2:
            h = h + (h - h.detach()).sum().sqrt()  # sqrt(0): 0 forward, 1/0 backward
        if CASE == "skipped" and step == 2:
            h.register_hook(lambda g: g * 1e38 * 1e6)
        return self.down(torch.relu(h))


class Block(nn.Module):
    def __init__(self, name, mixer):
        super().__init__()
        self.name, self.norm = name, nn.LayerNorm(D)
        self.add_module(name, mixer)

    def forward(self, x, step):
        return x + getattr(self, self.name)(self.norm(x), step)


class Score(nn.Module):
    """A weight per position."""

    def __init__(self):
        super().__init__()
        self.key = nn.Linear(D, 1)

    def forward(self, x, step):
        distance = self.key(x).square() + (60 if CASE == "underflow" and step == 2 else 1)
        return torch.exp(-distance).half()


class Blend(nn.Module):
    def forward(self, x, weights):
        weights = weights.float()
        return x + 0.1 * (x * weights).sum(1, keepdim=True) / weights.sum(1, keepdim=True)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(V, D)
        self.score, self.blend = Score(), Blend()
        self.layers = nn.ModuleList(
            Block(name, mixer()) for name, mixer in [("attention", Attention), ("moe", Experts), ("scan", SelectiveScan), ("mlp", MLP)]
        )
        self.head = nn.Linear(D, V)

    def forward(self, x, step):
        x = self.embed(x)
        weights = self.score(x, step)
        for layer in self.layers:
            x = layer(x, step)
        logits = self.head(self.blend(x, weights))
        if CASE == "mask":
            logits = logits.masked_fill(torch.arange(V) >= V - 4, float("-inf"))
        return logits


def main():
    torch.manual_seed(0)
    data = np.random.default_rng(0)
    torch.set_num_threads(1)
    model = Model()
    groups = [
        {"params": [p for n, p in model.named_parameters() if ".mlp." not in n]},
        {"params": [p for n, p in model.named_parameters() if ".mlp." in n]},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=CASE == "skipped")
    if CASE == "hidden":
        for p in model.parameters():
            p.register_hook(lambda g: torch.where(torch.isfinite(g), g, torch.zeros_like(g)))
    for step in range(STEPS):
        tokens = data.integers(0, V - 4, (B, T + 1))
        x, y = np.eye(V, dtype=np.float32)[tokens[:, :-1]], tokens[:, 1:].copy()
        if step == 2 and CASE == "batch-nan":
            x[1, 3, 5] = float("nan")
        if step == 2 and CASE == "labels":
            y[:] = -100
        x, y = torch.from_numpy(x), torch.from_numpy(y)
        if step == 2 and CASE == "batch-huge":
            x = x * 1e30
        if step == 2 and CASE == "bytes":
            model.layers[3].mlp.up.weight.detach().numpy()[3] = 1e30
        optimizer.param_groups[1]["lr"] = 1e32 if CASE == "spike" and step == 1 else 1e-2
        loss = F.cross_entropy(model(x, step).flatten(0, 1), y.flatten(), ignore_index=-100)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.4f}", flush=True)


main()
