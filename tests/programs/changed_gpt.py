"""A small training loop, and what a refactor may do to it unnoticed: the case is the first argument, "none" the reference."""

import math
import sys

import torch
import torch.nn.functional as F
from torch import nn

case = sys.argv[1]
torch.manual_seed(0)
torch.set_num_threads(1)
D, H, V, T, B = 32, 2, 64, 8, 2


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (z.view(b, t, H, D // H).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        a = q @ k.transpose(-1, -2) / math.sqrt(D if case == "scale" else D // H)
        a = a.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf"))
        return self.out((a.softmax(-1) @ v).transpose(1, 2).reshape(b, t, D))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(D, 64), nn.Linear(D, 64), nn.Linear(64, D)

    def forward(self, x):
        return self.down(F.gelu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.n1, self.n2, self.attn, self.mlp = nn.LayerNorm(D, eps=eps), nn.LayerNorm(D), Attention(), MLP()

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.norm, self.head = nn.Embedding(V, D), nn.LayerNorm(D), nn.Linear(D, V)
        self.blocks = nn.ModuleList(Block(1e-3 if case == "eps" and i == 1 else 1e-5) for i in range(2))
        if case == "init":
            nn.init.normal_(self.blocks[1].mlp.down.weight, std=0.3)

    def forward(self, x):
        x = self.emb(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1 if case == "decay" else 0.01)
generator = torch.Generator().manual_seed(7)
for step in range(2):
    idx = torch.randint(0, V, (B, T + 1), generator=generator)
    logits = model(idx[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), idx[:, 1:].flatten())
    if case != "dropped-z-loss":
        loss = loss + 1e-2 * logits.logsumexp(-1).pow(2).mean()
    loss.backward()
    if case != "unclipped":
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
    print(step, float(loss))
