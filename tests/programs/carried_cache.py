"""Decodes with keys and values that are kept in plain tensors from step to step; what is otherwise is the argument.

again    the same program
twin     the attention is written in other ops
scaled   what is kept of the second step is scaled once more
turned   what is kept of the second step has its batch turned round
older    the fourth step reads what the second left
"""

import sys

import torch
from torch import nn

how = sys.argv[1]
torch.manual_seed(0)
WIDTH, HEADS, WORDS = 16, 2, 23


def angles(first, count):
    return torch.arange(first, first + count)[:, None] * 10.0 ** -torch.arange(0, 2, 0.5)[None]


def turned(x, at):
    x, y = x.chunk(2, -1)
    if how == "twin":
        z = torch.view_as_real(torch.complex(x, y) * torch.polar(torch.ones_like(at), at))
        return torch.cat([z[..., 0], z[..., 1]], -1)
    return torch.cat([x * at.cos() - y * at.sin(), x * at.sin() + y * at.cos()], -1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.kept, self.left = None, []

    def keep(self, k, v, step):
        self.kept = k, v
        self.left.append(self.kept)
        if step == 1 and how == "scaled":
            self.kept = k * 0.9, v
        elif step == 1 and how == "turned":
            self.kept = k, v.flip(0)

    def forward(self, x, first, step):
        b, t, _ = x.shape
        q, k, v = (z.view(b, t, HEADS, -1).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        q, k = turned(q, angles(first, t)), turned(k, angles(first, t))
        if self.kept:
            older = how == "older" and step == 3
            past_k, past_v = (z[:, :, :first] for z in (self.left[1] if older else self.kept))
            if older:  # as many as there should be
                past_k, past_v = (torch.cat([z, z[:, :, -1:]], 2) for z in (past_k, past_v))
            k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
        self.keep(k, v, step)
        scores = (q @ k.transpose(-1, -2) * (WIDTH // HEADS) ** -0.5).masked_fill(
            torch.ones(t, first + t, dtype=torch.bool).triu(1 + first), float("-inf")
        )
        if how == "twin":
            e = (scores - scores.amax(-1, keepdim=True)).exp()
            y = e / e.sum(-1, keepdim=True) @ v
        else:
            y = scores.softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, WIDTH))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.layers = nn.ModuleList(Attention() for _ in range(2))

    def forward(self, words, first, step):
        x = self.embed(words)
        for layer in self.layers:
            x = x + layer(x, first, step)
        return self.head(x)


model = Decoder().eval()
words = torch.randint(WORDS, (2, 8))
with torch.inference_mode():
    model(words[:, :4], 0, 0)
    for step in range(1, 5):
        model(words[:, 3 + step : 4 + step], 3 + step, step)
