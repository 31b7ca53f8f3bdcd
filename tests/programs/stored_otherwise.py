"""One decoder of four layers, and the same that stores its weights in another way: names, layouts and numbers are other ones, the function is not.

python stored_otherwise.py [--other] [--groups] [--pairs] [--turned] [--one-plus] [--padded] [--sliced] [--fault exchanged|eps] [--train]
"""

import argparse

import torch
from torch import nn
from torch.nn import functional

WIDTH, LAYERS, HEADS, INNER, WORDS, PADDED, LENGTH = 48, 4, 4, 72, 53, 64, 10
SIZE = WIDTH // HEADS

parser = argparse.ArgumentParser()
for name in ("other", "groups", "pairs", "turned", "one-plus", "padded", "sliced", "train"):
    parser.add_argument(f"--{name}", action="store_true")
parser.add_argument("--fault", choices=["exchanged", "eps"])
options = parser.parse_args()

generator = torch.Generator().manual_seed(0)


def drawn(*shape, scale=0.15):
    return torch.randn(*shape, generator=generator) * scale


WEIGHTS = [
    {name: drawn(WIDTH, WIDTH) for name in "qkvo"}
    | {f"{name}_bias": drawn(WIDTH) for name in "qkvo"}
    | {"gate": drawn(INNER, WIDTH), "up": drawn(INNER, WIDTH), "down": drawn(WIDTH, INNER)}
    | {"before": 1 + drawn(WIDTH), "between": 1 + drawn(WIDTH)}
    for _ in range(LAYERS)
]
TABLE, LAST = drawn(WORDS, WIDTH, scale=1.0), 1 + drawn(WIDTH)
ANGLES = torch.outer(torch.arange(float(LENGTH)), 10000 ** -(torch.arange(0, SIZE, 2) / SIZE))
IDS = torch.randint(0, WORDS, (2, LENGTH), generator=torch.Generator().manual_seed(1))


def parameter(tensor):
    return nn.Parameter(tensor.contiguous().clone())


class Linear(nn.Module):
    """A weight by rows of outputs, or by columns of them."""

    def __init__(self, weight, bias=None, turned=False):
        super().__init__()
        self.turned, self.weight = turned, parameter(weight.T if turned else weight)
        self.bias = None if bias is None else parameter(bias)

    def forward(self, x):
        weight = self.weight.T if self.turned else self.weight
        return functional.linear(x, weight, self.bias)


class Norm(nn.Module):
    def __init__(self, gain, one_plus=False, eps=1e-6):
        super().__init__()
        self.one_plus, self.eps, self.gain = one_plus, eps, parameter(gain - 1 if one_plus else gain)

    def forward(self, x):
        gain = 1 + self.gain if self.one_plus else self.gain
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * gain


def attend(q, k, v):
    scores = (q @ k.transpose(-1, -2)) / SIZE**0.5
    mask = torch.full((LENGTH, LENGTH), -torch.inf).triu(1)
    return ((scores + mask).softmax(-1) @ v).transpose(1, 2).reshape(2, LENGTH, WIDTH)


def turn_halves(t):
    a, b = t.chunk(2, -1)
    return torch.cat([a * ANGLES.cos() - b * ANGLES.sin(), b * ANGLES.cos() + a * ANGLES.sin()], -1)


def turn_pairs(t):
    a, b = t[..., 0::2], t[..., 1::2]
    return torch.stack([a * ANGLES.cos() - b * ANGLES.sin(), b * ANGLES.cos() + a * ANGLES.sin()], -1).flatten(-2)


def as_pairs(t):
    return t.reshape(HEADS, 2, SIZE // 2, -1).transpose(1, 2).reshape(t.shape)


class Plain(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.input_norm, self.post_norm = Norm(w["before"]), Norm(w["between"])
        self.query, self.key, self.value, self.out = (Linear(w[n], w[f"{n}_bias"]) for n in "qkvo")
        self.gate, self.up, self.down = (Linear(w[n]) for n in ("gate", "up", "down"))

    def forward(self, x):
        y = self.input_norm(x)
        q, k, v = (f(y).view(2, LENGTH, HEADS, SIZE).transpose(1, 2) for f in (self.query, self.key, self.value))
        x = x + self.out(attend(turn_halves(q), turn_halves(k), v))
        y = self.post_norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Other(nn.Module):
    def __init__(self, w, layer):
        super().__init__()
        w = dict(w)
        if options.pairs:
            w |= {name: as_pairs(w[name]) for name in ("q", "k", "q_bias", "k_bias")}
        if options.fault == "exchanged" and layer == 2:
            w["gate"], w["up"] = w["up"], w["gate"]
        self.pre = Norm(w["before"], options.one_plus)
        self.post = Norm(w["between"], options.one_plus, 1e-2 if options.fault == "eps" and layer == 1 else 1e-6)
        self.c, self.o = Linear(self.join(w, ""), self.join(w, "_bias"), options.turned), Linear(w["o"], w["o_bias"], options.turned)
        self.wi, self.wo = Linear(torch.cat([w["gate"], w["up"]])), Linear(w["down"])

    @staticmethod
    def join(w, suffix):
        three = [w[n + suffix] for n in "qkv"]
        if options.groups:
            return torch.stack([t.reshape(HEADS, SIZE, *t.shape[1:]) for t in three], 1).reshape(3 * WIDTH, *three[0].shape[1:])
        return torch.cat(three)

    def forward(self, x):
        y = self.c(self.pre(x))
        y = y.view(2, LENGTH, HEADS, 3, SIZE).permute(3, 0, 2, 1, 4) if options.groups else y.view(2, LENGTH, 3, HEADS, SIZE).permute(2, 0, 3, 1, 4)
        turn = turn_pairs if options.pairs else turn_halves
        x = x + self.o(attend(turn(y[0]), turn(y[1]), y[2]))
        gate, up = self.wi(self.post(x)).chunk(2, -1)
        return x + self.wo(functional.silu(gate) * up)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        rows = torch.cat([TABLE, torch.zeros(PADDED - WORDS, WIDTH)]) if options.padded else TABLE
        layers = [Other(w, i) if options.other else Plain(w) for i, w in enumerate(WEIGHTS)]
        if options.other:
            self.wte, self.h, self.ln_f = parameter(rows), nn.ModuleList(layers), Norm(LAST, options.one_plus)
        else:
            self.tokens, self.layers, self.norm = parameter(rows), nn.ModuleList(layers), Norm(LAST)

    def forward(self, ids):
        table, layers, last = (self.wte, self.h, self.ln_f) if options.other else (self.tokens, self.layers, self.norm)
        x = table[ids]
        for layer in layers:
            x = layer(x)
        scores = last(x) @ table.T
        return scores[..., :WORDS] if options.sliced else scores


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
for _ in range(2 if options.train else 1):
    if not options.train:
        with torch.no_grad():
            model(IDS)
        break
    loss = functional.cross_entropy(model(IDS)[:, :-1].reshape(2 * (LENGTH - 1), -1), IDS[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
