"""Experts of one process computed at once or in groups whose parts are added up: grouped_experts.py GROUPS [early].

`early`: the activation behind the experts is taken of each part, not of their sum.
"""

import functools
import sys

import torch

groups, early = int(sys.argv[1]), "early" in sys.argv


class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Parameter(torch.randn(4, 16, 32) * 0.2)
        self.down = torch.nn.Parameter(torch.randn(4, 32, 16) * 0.2)

    def forward(self, x, weight, first, last):
        h = torch.relu(torch.einsum("td,edf->etf", x, self.up[first:last]))
        return torch.einsum("etf,efd,te->td", h, self.down[first:last], weight[:, first:last])


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.router = torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
        self.experts, self.post = Experts(), torch.nn.Tanh()

    def forward(self, h):
        x = self.norm(h)
        weight, size = torch.softmax(self.router(x), -1), 4 // groups
        parts = [self.experts(x, weight, g * size, (g + 1) * size) for g in range(groups)]
        if early:
            parts = [self.post(part) for part in parts]
        whole = functools.reduce(torch.add, parts)
        return h + (whole if early else self.post(whole))


torch.manual_seed(0)
net = torch.nn.Sequential(Block(), Block(), torch.nn.Linear(16, 8))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
x, y = torch.randn(12, 16), torch.randint(0, 8, (12,))
torch.nn.functional.cross_entropy(net(x), y).backward()
optimizer.step()
