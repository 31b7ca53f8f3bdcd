"""Sums that a model writes by hand: python written_sums.py WHAT:HOW …, each a forward pass, and so a step, of its own.

WHAT: "experts" adds up what eight experts give, "slices" the products of eight slices of k, "loss" the losses of four chunks. HOW: in which
order, or with which fault."""

import sys

import torch
from torch import nn


def in_sequence(parts):
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def in_place(parts):
    total = torch.zeros_like(parts[0])
    for part in parts:
        total += part
    return total


def in_pairs(parts):
    while len(parts) > 1:
        parts = [parts[i] + parts[i + 1] if i + 1 < len(parts) else parts[i] for i in range(0, len(parts), 2)]
    return parts[0]


SUMS = {
    "sequence": in_sequence,
    "reverse": lambda parts: in_sequence(parts[::-1]),
    "in-place": in_place,
    "pairs": in_pairs,
    "stack": lambda parts: torch.stack(parts).sum(0),
    "dropped": lambda parts: in_sequence(parts[:-1]),
    "twice": lambda parts: in_sequence(parts + parts[-1:]),
    "scaled": lambda parts: in_sequence(parts[:-1] + [parts[-1] * 1.01]),
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.Parameter(torch.randn(8, 16, 16) / 4)
        self.gate, self.norm = nn.Linear(16, 8), nn.LayerNorm(16)
        self.slices = nn.Parameter(torch.randn(64, 16) / 8)

    def forward(self, what, how, x):
        add_up = SUMS[how.partition("/")[0]]
        if what == "experts":
            gates = torch.softmax(self.gate(x), -1)
            return self.norm(add_up([gates[:, i : i + 1] * (x @ self.experts[i]) for i in range(8)]))
        if what == "slices":
            wide = torch.cat([x, x.tanh(), x * x, x.sin()], -1)
            return self.norm(add_up([part @ weight for part, weight in zip(wide.split(8, -1), self.slices.split(8, 0))]))
        losses = nn.functional.cross_entropy(self.gate(9 * x), torch.arange(len(x)) % 8, reduction="none")
        if how == "stack":
            return losses.mean()
        return add_up([chunk.sum() for chunk in losses.chunk(4)]) / len(x)


torch.manual_seed(0)
torch.set_num_threads(1)
model, x = Model(), torch.randn(48, 16)
for word in sys.argv[1:]:
    with torch.no_grad():
        model(*word.split(":"), x)
