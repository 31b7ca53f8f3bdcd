"""One small net as two people write it: features last with products, or features first with convolutions over one place.

    python second_layouts.py OUT.lb rows|channels [FAULT]

Both begin with rows of features divided by their norms, choose the largest of four features in every block, and in the last block only the first
place is read by anybody: `channels` computes the others otherwise. FAULT: `gate` (another function in block 1) or `unscaled` (a factor left out
there)."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, PLACES, BLOCKS = 24, 7, 3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.key, self.out = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH // 4, WIDTH)
        self.norm, self.fault = nn.LayerNorm(WIDTH), None


class Rows(Block):
    def forward(self, x, last):
        h = self.into(self.norm(x))
        gate = torch.tanh(h[..., WIDTH : WIDTH + WIDTH // 4])
        best = h[..., :WIDTH].unflatten(-1, (4, -1)).max(-2).values * gate
        mixed = torch.softmax(self.key(x) @ x.transpose(1, 2) * 0.2, -1) @ best
        return x + self.out(mixed)


class Channels(Block):
    def forward(self, x, last):
        h = F.conv1d(self.norm(x).transpose(1, 2), self.into.weight[..., None], self.into.bias)
        best, gate = h.split([WIDTH, WIDTH], 1)
        gate = gate[:, : WIDTH // 4]
        gate = torch.relu(gate) if self.fault == "gate" else torch.tanh(gate)
        best = best.reshape(len(x), 4, -1, x.shape[1]).max(1).values * gate
        keys = self.key(x[:, :1] if last else x)
        scores = torch.einsum("bqd,bkd->bqk", keys, x) * (1.0 if self.fault == "unscaled" else 0.2)
        mixed = torch.einsum("bqk,bdk->bqd", torch.softmax(scores, -1), best)
        return x + self.out(mixed)  # of the last block the first place's, for every place


class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.gain = kind, nn.Parameter(torch.linspace(0.6, 1.4, WIDTH))
        self.blocks = nn.ModuleList((Rows if kind == "rows" else Channels)() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x):
        if self.kind == "rows":
            x = F.normalize(x, dim=-1) * WIDTH**0.5 * self.gain
        else:
            x = self.gain * x / x.square().mean(-1, keepdim=True).sqrt()
        for number, block in enumerate(self.blocks):
            x = block(x, number == BLOCKS - 1)
        return self.head(x[:, 0])


def main(out, kind, fault=None):
    import lastbit.torch

    torch.manual_seed(0)
    net = Net(kind)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(torch.randn(p.shape) * (0.1 if p.dim() == 1 else 0.3))
    net.blocks[1].fault = fault
    x = torch.randn(3, PLACES, WIDTH)
    with torch.no_grad(), lastbit.torch.capture(out, level="ops"):
        print("%.9g" % net(x).abs().sum())


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
