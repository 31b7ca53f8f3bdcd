"""A small GPT as people write one, and what makes such runs fail: the case is the first argument.

Nothing here knows of lastbit. Custom losses, masks, clipping by hand, an optimizer's epsilon, half-precision parameters, a
weight that was loaded broken: causes outside the residual blocks as often as in them.
"""

import math
import sys

import torch
import torch.nn.functional as F
from torch import nn

case = sys.argv[1]
torch.manual_seed(0)
torch.set_num_threads(1)
D, H, V, T, B = 32, 2, 64, 8, 2


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(D))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.w


def rotated(q, pos):
    half = q.shape[-1] // 2
    f = 10000 ** (-torch.arange(half) / half)
    a = pos[:, None] * f
    if case == "rope":  # positions scaled in half precision
        a = (pos.half()[:, None] * 1e5 * f.half()).float()
    x, y = q[..., :half], q[..., half:]
    return torch.cat([x * a.cos() - y * a.sin(), x * a.sin() + y * a.cos()], -1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x, mask):
        b, t, _ = x.shape
        q, k, v = (z.view(b, t, H, D // H).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        if case not in ("half", "autocast"):
            q, k = rotated(q, torch.arange(t).float()), rotated(k, torch.arange(t).float())
        a = (q @ k.transpose(-1, -2) / math.sqrt(D // H)).masked_fill(mask, float("-inf"))
        return self.out((a.softmax(-1) @ v).transpose(1, 2).reshape(b, t, D))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.proj = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x):
        return self.proj(F.gelu(self.fc(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2, self.attn, self.mlp = Norm(), Norm(), Attention(), MLP()

    def forward(self, x, mask):
        x = x + self.attn(self.n1(x), mask)
        return x + self.mlp(self.n2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.blocks, self.norm = nn.Embedding(V, D), nn.ModuleList(Block() for _ in range(3)), Norm()
        self.head = nn.Linear(D, V, bias=False)

    def forward(self, idx, mask):
        x = self.emb(idx)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


def loss_of(logits, y, step):
    losses = F.cross_entropy(logits.flatten(0, 1).float(), y.flatten(), reduction="none").view(B, T)
    if case == "log-zero" and step == 2:
        return -(40 * logits).softmax(-1).gather(-1, y[..., None]).log().mean()
    if case == "entropy":  # p log p, sharp from step 2 on
        p = (logits * (1 if step < 2 else 200)).softmax(-1)
        return losses.mean() + 0.01 * (p * p.log()).sum(-1).mean()
    if case == "empty-mask":
        valid = torch.zeros(B, T) if step == 2 else torch.ones(B, T)
        return (losses * valid).sum() / valid.sum()
    return losses.mean() * (0 if case == "clip-zero" and step == 2 else 1)


def clip_by_hand(model):
    norm = torch.sqrt(sum(p.grad.pow(2).sum() for p in model.parameters()))
    for p in model.parameters():
        p.grad.mul_(1 / norm)


def break_weights(model, step):
    with torch.no_grad():
        if case == "bad-weight" and step == 0:
            model.blocks[1].attn.out.weight[3, 7] = float("inf")
        if case == "huge-weight" and step == 0:
            model.blocks[2].mlp.fc.weight[5] = 1e38
        if case == "autocast" and step == 2:
            model.blocks[1].attn.qkv.weight.mul_(400)


def main():
    model = GPT()
    break_weights(model, 0)
    if case == "half":
        model = model.half()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=0.0 if case == "adam-eps" else 1e-8)
    if case == "lr":
        optimizer = torch.optim.SGD(model.parameters(), lr=3e4)
    generator = torch.Generator().manual_seed(1)
    for step in range(4):
        idx = torch.randint(0, V, (B, T + 1), generator=generator)
        mask = torch.ones(T, T, dtype=torch.bool).triu(1)
        if step:
            break_weights(model, step)
        with torch.autocast("cpu", dtype=torch.float16, enabled=case == "autocast"):
            logits = model(idx[:, :-1], mask)
        loss = loss_of(logits, idx[:, 1:], step)
        loss.backward()
        if case == "clip-zero":
            clip_by_hand(model)
        optimizer.step()
        optimizer.zero_grad()
        print(step, float(loss))


main()
