"""A small network whose RMS norm takes its mean by torch, or by additions of its own in a named order."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--order", choices=["torch", "sequence", "butterfly", "wrong"], default="torch")
parser.add_argument("--width", type=int, default=32)
args = parser.parse_args()


def in_sequence(x):
    total = x[..., 0]
    for i in range(1, x.shape[-1]):
        total = total + x[..., i]
    return total


def by_butterfly(x):
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = x[..., :half] + x[..., half:]
    return x[..., 0]


SUMS = {"sequence": in_sequence, "butterfly": by_butterfly, "wrong": lambda x: in_sequence(x[..., 1:])}


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, width))

    def forward(self, x):
        square = x * x
        mean = square.mean(-1) if args.order == "torch" else SUMS[args.order](square) / x.shape[-1]
        return x * torch.rsqrt(mean + 1e-6)[..., None] * self.weight


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(args.width, args.width), Norm(args.width), nn.Linear(args.width, 8))
with torch.no_grad():
    model(torch.randn(24, args.width))
