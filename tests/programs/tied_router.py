"""A mixture of experts whose ops do not depend on the routing: experts are gathered per slot. --tie makes two experts' rows of the
last router alike but for a few roundings."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--tie", action="store_true")
args = parser.parse_args()


class Router(nn.Module):
    def __init__(self, width, experts):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, width) * width**-0.5)

    def forward(self, rows):
        return F.linear(rows, self.weight).softmax(-1).topk(2, -1)


class MoE(nn.Module):
    def __init__(self, width, experts=8):
        super().__init__()
        self.router = Router(width, experts)
        self.experts = nn.Parameter(torch.randn(experts, width, width) * width**-0.5)

    def forward(self, x):
        weights, ids = self.router(x)
        y = torch.einsum("tkij,tj->tki", self.experts[ids], x)
        return x + (F.silu(y) * weights[..., None]).sum(1)


class Model(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.moes = nn.ModuleList(MoE(width) for _ in range(2))
        self.head = nn.Linear(width, 16)

    def forward(self, x):
        x = self.first(x)
        for moe in self.moes:
            x = moe(x)
        return self.head(x)


torch.manual_seed(0)
torch.set_num_threads(1)
model, x, y = Model(), torch.randn(256, 64), torch.randint(0, 16, (256,))
if args.tie:
    with torch.no_grad():
        rows = model.moes[1].router.weight
        rows[:2] *= 3  # so that one of the two is often among the best, and the other beside it
        rows[1] = rows[0] * (1 + 2.0**-23)
        rows[2:] *= 0.5
loss = F.cross_entropy(model(x), y)
loss.backward()
print(loss.item())
