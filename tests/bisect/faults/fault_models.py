"""Small programs as people write them, for pairs of runs of which one has a fault: GPT, mixer, MoE as an eager loop, GRU, convnet,
linear attention.

Each decision that a fault or an innocent change may take otherwise is an attribute or a method of a module (`eps`, `scale`, `act`,
`join`, `scores`, `mixed`, `finish`), so that one instance can be changed and its sisters stay. Nothing here knows of lastbit.

B batch, T positions, D width, V vocabulary, H heads, E experts."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(1 + 0.1 * torch.randn(width)), eps

    def square_mean(self, x):
        return x.pow(2).mean(-1, keepdim=True)

    def forward(self, x):
        return x * torch.rsqrt(self.square_mean(x) + self.eps) * self.weight


def norm_of(kind, width):
    return RMSNorm(width) if kind == "rms" else nn.LayerNorm(width)


def rotated(q, positions):
    half = q.shape[-1] // 2
    angle = positions[:, None].to(q.dtype) * 100.0 ** (-torch.arange(half, dtype=q.dtype) / half)
    x, y = q[..., :half], q[..., half:]
    return torch.cat([x * angle.cos() - y * angle.sin(), x * angle.sin() + y * angle.cos()], -1)


class Attention(nn.Module):
    """Causal, with rotary positions; keys and values of earlier calls where a cache is given."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.scale = heads, 1 / math.sqrt(width // heads)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def projected(self, x):
        return self.q(x), self.k(x), self.v(x)

    def positions(self, past, count):
        return torch.arange(past, past + count), torch.arange(past, past + count)

    def mask(self, rows, columns):
        return torch.ones(rows, columns, dtype=torch.bool).triu(1 + columns - rows)

    def weights(self, scores):
        return scores.softmax(-1)

    def attended(self, q, k, v):
        scores = q @ k.transpose(-1, -2) * self.scale
        return self.weights(scores.masked_fill(self.mask(q.shape[-2], k.shape[-2]), float("-inf"))) @ v

    def cached(self, cache, k, v):
        if cache is None:
            return k, v
        if cache:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        cache[:] = [k, v]
        return k, v

    def forward(self, x, cache=None):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.heads, d // self.heads).transpose(1, 2) for z in self.projected(x))
        rows, columns = self.positions(cache[0].shape[2] if cache else 0, t)
        q, k = rotated(q, rows), rotated(k, columns)
        k, v = self.cached(cache, k, v)
        return self.o(self.attended(q, k, v).transpose(1, 2).reshape(b, t, d))


class MLP(nn.Module):
    def __init__(self, width, hidden, gated):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(width, hidden), nn.SiLU() if gated else nn.GELU(), nn.Linear(hidden, width)
        self.gate = nn.Linear(width, hidden) if gated else None

    def mixed(self, x):
        return self.act(self.gate(x)) * self.up(x) if self.gate is not None else self.act(self.up(x))

    def forward(self, x):
        return self.down(self.mixed(x))


class MoE(nn.Module):
    """Each token goes to the best two of E experts, which run one after the other."""

    def __init__(self, width, hidden, experts=4, chosen=2):
        super().__init__()
        self.router, self.chosen = nn.Linear(width, experts, bias=False), chosen
        self.experts = nn.ModuleList(MLP(width, hidden, True) for _ in range(experts))

    def chances(self, logits):
        return logits.softmax(-1)

    def shares(self, weights):
        return weights / weights.sum(-1, keepdim=True)

    def expert(self, number):
        return self.experts[number]

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        weights, ids = self.chances(self.router(flat)).topk(self.chosen, -1)
        weights, y = self.shares(weights), torch.zeros_like(flat)
        for e in range(len(self.experts)):
            token, slot = (ids == e).nonzero(as_tuple=True)
            if len(token):
                part = self.expert(e)(flat[token]) * weights[token, slot, None]
                y = y.index_add(0, token, part.to(y.dtype))
        return y.view_as(x)


class LinearAttention(nn.Module):
    """A recurrence over positions: a state of D/H by D/H per head that decays."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.decay = nn.Parameter(torch.linspace(1, 3, heads))

    def kept(self):
        return torch.sigmoid(self.decay)[None, :, None, None]

    def updated(self, state, k, v):
        return state * self.kept() + k[..., :, None] * v[..., None, :]

    def forward(self, x, cache=None):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.heads, d // self.heads).transpose(1, 2) for z in (self.q(x), self.k(x), self.v(x)))
        k = F.elu(k) + 1
        state = torch.zeros(b, self.heads, d // self.heads, d // self.heads, dtype=k.dtype)
        rows = []
        for i in range(t):
            state = self.updated(state, k[:, :, i], v[:, :, i])
            rows.append((q[:, :, i, None] @ state)[:, :, 0])
        return self.o(torch.stack(rows, 2).transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, width, mixer, mlp, norm):
        super().__init__()
        self.n1, self.mixer, self.n2, self.mlp = norm_of(norm, width), mixer, norm_of(norm, width), mlp

    def join(self, x, y):
        return x + y

    def mix(self, x, cache):
        return self.mixer(self.n1(x)) if cache is None else self.mixer(self.n1(x), cache)

    def forward(self, x, cache=None):
        x = self.join(x, self.mix(x, cache))
        return self.join(x, self.mlp(self.n2(x)))


class Decoder(nn.Module):
    """GPT, MoE or linear attention, by what its blocks hold."""

    def __init__(self, kind, width, layers, heads=2, vocabulary=32, norm="rms"):
        super().__init__()
        self.emb = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            Block(
                width,
                LinearAttention(width, heads) if kind == "linear" else Attention(width, heads),
                MoE(width, width) if kind == "moe" and n else MLP(width, 2 * width, norm == "rms"),
                norm,
            )
            for n in range(layers)
        )
        self.norm, self.head = norm_of(norm, width), nn.Linear(width, vocabulary, bias=False)

    def finish(self, logits):
        return logits

    def called(self, block, x, cache):
        return block(x) if cache is None else block(x, cache)

    def forward(self, tokens, caches=None):
        x = self.emb(tokens)
        for n, block in enumerate(self.layers):
            x = self.called(block, x, caches[n] if caches else None)
        return self.finish(self.head(self.norm(x)))


class Mixing(nn.Module):
    """A layer over positions."""

    def __init__(self, length):
        super().__init__()
        self.over = nn.Linear(length, length)

    def forward(self, x):
        return self.over(x.transpose(1, 2)).transpose(1, 2)


class Mixer(nn.Module):
    def __init__(self, width, layers, length, classes=8):
        super().__init__()
        self.patch = nn.Linear(6, width)
        self.layers = nn.ModuleList(Block(width, Mixing(length), MLP(width, 2 * width, False), "layer") for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def finish(self, logits):
        return logits

    def pooled(self, x):
        return x.mean(1)

    def forward(self, x):
        x = self.patch(x)
        for block in self.layers:
            x = block(x)
        return self.finish(self.head(self.pooled(self.norm(x))))


class Cell(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gates, self.new = nn.Linear(2 * width, 2 * width), nn.Linear(2 * width, width)

    def updated(self, h, z, n):
        return (1 - z) * n + z * h

    def forward(self, x, h):
        z, r = torch.sigmoid(self.gates(torch.cat([x, h], -1))).chunk(2, -1)
        return self.updated(h, z, torch.tanh(self.new(torch.cat([x, r * h], -1))))


class GRU(nn.Module):
    def __init__(self, width, layers, vocabulary=32):
        super().__init__()
        self.emb, self.cells = nn.Embedding(vocabulary, width), nn.ModuleList(Cell(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def finish(self, logits):
        return logits

    def forward(self, tokens):
        x = self.emb(tokens)
        states, rows = [torch.zeros_like(x[:, 0]) for _ in self.cells], []
        for i in range(x.shape[1]):
            y = x[:, i]
            for n, cell in enumerate(self.cells):
                y = states[n] = cell(y, states[n])
            rows.append(y)
        return self.finish(self.head(self.norm(torch.stack(rows, 1))))


class ConvBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.depth = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.norm, self.point, self.act = nn.GroupNorm(2, channels), nn.Conv2d(channels, channels, 1), nn.ReLU()

    def join(self, x, y):
        return x + y

    def forward(self, x):
        return self.join(x, self.act(self.point(self.norm(self.depth(x)))))


class ConvNet(nn.Module):
    def __init__(self, channels, layers, classes=8):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 2, stride=2)
        self.layers, self.head = nn.ModuleList(ConvBlock(channels) for _ in range(layers)), nn.Linear(channels, classes)

    def finish(self, logits):
        return logits

    def pooled(self, x):
        return x.mean((2, 3))

    def forward(self, x):
        x = self.stem(x)
        for block in self.layers:
            x = block(x)
        return self.finish(self.head(self.pooled(x)))


class Tiny(nn.Module):
    """Two layers; a `chooser` says which class it is, and its logits leave the step in no other way."""

    def __init__(self, width, chooser=False):
        super().__init__()
        self.up, self.act, self.head, self.chooser = nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), chooser

    def finish(self, logits):
        return logits

    def whole(self, x):
        return self.finish(self.head(self.act(self.up(x))))

    def forward(self, x):
        y = self.whole(x)
        return y.argmax(-1) if self.chooser else y


OWN = ("gpt", "moe", "linear", "mixer", "gru", "convnet", "tiny", "chooser")


def build(name, draw):
    """A model of that kind, of a size that `draw` (random.Random) chooses; and what its batches are."""
    width, layers, length, norm = draw.choice([16, 24, 32]), draw.choice([2, 3]), draw.randint(5, 8), draw.choice(["rms", "layer"])
    if name in ("gpt", "moe", "linear"):
        return Decoder(name, width, layers, norm=norm), {"input": "tokens", "vocabulary": 32, "length": length}
    if name in ("tiny", "chooser"):
        return Tiny(width, name == "chooser"), {"input": "floats", "shape": (width,), "classes": width}
    if name == "gru":
        return GRU(width, layers), {"input": "tokens", "vocabulary": 32, "length": length}
    if name == "mixer":
        return Mixer(width, layers, length), {"input": "floats", "shape": (length, 6), "classes": 8}
    return ConvNet(width // 2, layers), {"input": "floats", "shape": (3, 8, 8), "classes": 8}
