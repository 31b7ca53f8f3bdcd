"""One decoder in the styles in which people write one, with a fault in its second block or none; all recorded by one process.

python block_styles.py FOLDER NAME...     NAME: the words of a style and a fault, joined by "-"; written to FOLDER/NAME.lb

Styles: norms by an op (norm), with the weight before the factor of the rows (weightfirst), or divided by a root (root); norm weights in the products behind
them (folded); other names for all (renamed); time before batch (time); one product for queries, keys and values (joint); the rotary table computed (computed), in a buffer of rows
(buffer), of rotations (rotations), or of rows rounded to bf16 (half); the weights of attention rounded to bf16 (coarse)."""

import math
import pathlib
import sys

import lastbit.torch
import torch
from torch import nn

WIDTH, LAYERS, HEADS, LENGTH, BATCH, LONGEST = 32, 3, 2, 6, 2, 64
SIZE = WIDTH // HEADS
FAULTS = ("eps", "smalleps", "noresidual", "normbehind", "transposed", "shiftedtable", "scale", "oneheadofkeys", "input")


class Norm(nn.Module):
    def __init__(self, style, gain, eps):
        super().__init__()
        self.style, self.eps = style, eps
        self.gain = None if "folded" in style else nn.Parameter(gain.clone())
        if "renamed" in style and self.gain is not None:
            self.weight, self.gain = self.gain, None

    def forward(self, x):
        gain = getattr(self, "weight", torch.ones(()) if self.gain is None else self.gain)
        if "root" in self.style:
            return x / (x.pow(2).mean(-1, keepdim=True) + self.eps).sqrt() * gain
        factor = (x.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        return x * gain * factor if "weightfirst" in self.style else gain * (x * factor)


class Block(nn.Module):
    def __init__(self, style, fault, of):
        super().__init__()
        self.style, self.fault = style, fault
        self.before = Norm(style, of["before"], 1e-6)
        self.between = Norm(style, of["between"], {"eps": 1e-2, "smalleps": 2e-5}.get(fault, 1e-6))
        folded = "folded" in style
        q, k, v = (of[p] * of["before"] if folded else of[p] for p in "qkv")
        for name, weight in (dict(joint=torch.cat([q, k, v])) if "joint" in style else dict(q=q, k=k, v=v)).items():
            self.add(name, weight)
        self.add("out", of["out"].T if fault == "transposed" else of["out"])
        self.add("up", of["up"] * of["between"] if folded else of["up"])
        self.add("down", of["down"])

    def add(self, name, weight):
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        with torch.no_grad():
            linear.weight.copy_(weight)
        setattr(self, self.called(name), linear)

    def called(self, name):
        return f"{name}_product" if "renamed" in self.style else name

    def __getattr__(self, name):
        return super().__getattr__(self.called(name) if name in ("joint", "q", "k", "v", "out", "up", "down") else name)

    def heads(self, x):
        """(batch, heads, time, size)"""
        x = x.unflatten(-1, (HEADS, SIZE))
        return x.permute(1, 2, 0, 3) if "time" in self.style else x.transpose(1, 2)

    def mixed(self, x, table):
        q, k, v = self.joint(x).chunk(3, -1) if "joint" in self.style else (self.q(x), self.k(x), self.v(x))
        q, k, v = self.heads(q), self.heads(k), self.heads(v)
        if self.fault == "oneheadofkeys":
            k = k[:, :1].expand_as(k)
        start = 1 if self.fault == "shiftedtable" else 0
        q, k = turned(q, [t[start : start + LENGTH] for t in table]), turned(k, [t[:LENGTH] for t in table])
        scores = q @ k.transpose(-1, -2) / math.sqrt(SIZE) * (1.01 if self.fault == "scale" else 1)
        mask = torch.full((LENGTH, LENGTH), -math.inf).triu(1)
        weights = (scores + mask).softmax(-1)
        y = (weights.bfloat16().float() if "coarse" in self.style else weights) @ v
        return self.out((y.permute(2, 0, 1, 3) if "time" in self.style else y.transpose(1, 2)).flatten(-2))

    def forward(self, x, table):
        mixed = self.mixed(self.before(x), table)
        x = mixed if self.fault == "noresidual" else x + mixed
        if self.fault == "normbehind":
            return x + self.between(self.down(torch.tanh(self.up(x))))
        return x + self.down(torch.tanh(self.up(self.between(x))))


def turned(x, rows):
    if len(rows) == 1:  # a matrix for each pair
        a = x.unflatten(-1, (2, SIZE // 2)).transpose(-1, -2)
        return (rows[0] * a.unsqueeze(-2)).sum(-1).transpose(-1, -2).flatten(-2)
    cos, sin = rows
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Decoder(nn.Module):
    def __init__(self, style, fault, weights):
        super().__init__()
        self.style, self.shifts = style, fault == "shiftedtable"
        blocks = nn.ModuleList(Block(style, fault if i == 1 else None, of) for i, of in enumerate(weights["blocks"]))
        self.add_module("layers" if "renamed" in style else "blocks", blocks)
        self.last, self.head = Norm([w for w in style if w != "folded"], weights["last"], 1e-6), nn.Linear(WIDTH, WIDTH, bias=False)
        with torch.no_grad():
            self.head.weight.copy_(weights["head"])
        self.register_buffer("frequencies", 1 / 10000 ** (torch.arange(0, SIZE, 2).float() / SIZE), persistent=False)
        cos, sin = angles(self.frequencies)
        if "half" in style:
            cos, sin = cos.bfloat16().float(), sin.bfloat16().float()
        if "buffer" in style or "half" in style:
            self.register_buffer("cos", cos.bfloat16() if "half" in style else cos, persistent=False)
            self.register_buffer("sin", sin.bfloat16() if "half" in style else sin, persistent=False)
        if "rotations" in style:
            self.register_buffer("rotations", torch.stack([cos, -sin, sin, cos], -1).unflatten(-1, (2, 2)), persistent=False)

    def table(self):
        if "buffer" in self.style or "half" in self.style:
            return self.cos.float(), self.sin.float()
        return (self.rotations,) if "rotations" in self.style else angles(self.frequencies, LENGTH + self.shifts)

    def forward(self, x):
        table, x = self.table(), x.transpose(0, 1) if "time" in self.style else x
        for block in self.layers if "renamed" in self.style else self.blocks:
            x = block(x, table)
        return self.head(self.last(x.transpose(0, 1) if "time" in self.style else x))


def angles(frequencies, length=LONGEST):
    grid = torch.outer(torch.arange(length).float(), frequencies)
    return grid.cos(), grid.sin()


def draw_weights():
    torch.manual_seed(0)
    shapes = dict(q=(WIDTH, WIDTH), k=(WIDTH, WIDTH), v=(WIDTH, WIDTH), out=(WIDTH, WIDTH), up=(2 * WIDTH, WIDTH), down=(WIDTH, 2 * WIDTH))
    blocks = [{name: torch.randn(shape) / math.sqrt(shape[1]) for name, shape in shapes.items()} for _ in range(LAYERS)]
    for of in blocks:
        of |= dict(before=torch.rand(WIDTH) + 0.5, between=torch.rand(WIDTH) + 0.5)
    return dict(blocks=blocks, last=torch.rand(WIDTH) + 0.5, head=torch.randn(WIDTH, WIDTH) / math.sqrt(WIDTH))


def main(folder, names):
    weights = draw_weights()
    given = torch.randn(BATCH, LENGTH, WIDTH)
    for name in names:
        words = name.split("-")
        fault = next((w for w in words if w in FAULTS), None)
        model = Decoder([w for w in words if w not in FAULTS], fault, weights)
        x = given * (1 + 0.01 * torch.arange(WIDTH)) if fault == "input" else given
        with torch.no_grad(), lastbit.torch.capture(str(folder / f"{name}.lb"), level="ops") as capture, capture.step(0):
            model(x)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
