"""A mixture of experts twice: one process that goes through its experts in a loop, and ranks that have some experts and a part of the batch each, and hand each
other tokens (all-to-all, in uneven parts). Same weights, same tokens.

python two_experts.py [--fault wrong_order|unweighted]
"""

import argparse
import os

import gloo_group
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

WIDTH, INNER, EXPERTS, TOKENS = 16, 24, 4, 32

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--fault", choices=["wrong_order", "unweighted"])
args = parser.parse_args()
torch.set_num_threads(1)
world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))


class Exchange(torch.autograd.Function):
    """Rows to other ranks; gradients come back."""

    @staticmethod
    def forward(ctx, x, given, taken):
        ctx.splits = given, taken
        out = x.new_empty(sum(taken), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), taken, given)
        return out

    @staticmethod
    def backward(ctx, gradient):
        given, taken = ctx.splits
        out = gradient.new_empty(sum(given), gradient.shape[1])
        dist.all_to_all_single(out, gradient.contiguous(), given, taken)
        return out, None, None


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x):
        return self.down(functional.silu(self.up(x)))


class Mixture(nn.Module):
    """Each token goes to one expert, weighted."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows = (chosen == i).nonzero()[:, 0]
            out = out.index_add(0, rows, expert(x[rows]) * weights[rows, None])
        return out


class SharedMixture(nn.Module):
    """The same, its experts shared out."""

    def __init__(self, whole):
        super().__init__()
        self.gate = whole.router
        self.mine = whole.experts[rank * EXPERTS // world : (rank + 1) * EXPERTS // world]

    def forward(self, x):
        each = EXPERTS // world
        weights, chosen = self.gate(x).softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        counts = torch.bincount(chosen, minlength=EXPERTS)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        given, taken = counts.view(world, each).sum(1).tolist(), theirs.view(world, each).sum(1).tolist()
        rows = Exchange.apply(x[order], given, taken)
        done, at = [], 0
        for peer in theirs.view(world, each).tolist():
            for expert, n in zip(reversed(self.mine) if args.fault == "wrong_order" else self.mine, peer):
                done.append(expert(rows[at : at + n]))
                at += n
        back = Exchange.apply(torch.cat(done), taken, given)
        back = back * (weights[order, None].detach().round() + weights[order, None] * 0 if args.fault == "unweighted" else weights[order, None])
        return torch.zeros_like(x).index_add(0, order, back)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.mixture, self.last = nn.Linear(WIDTH, WIDTH), Mixture(), nn.Linear(WIDTH, 1)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        return self.last(x + self.mixture(x))


def main():
    if world > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Model()
    x, y = torch.randn(TOKENS, WIDTH), torch.randn(TOKENS, 1)
    if world > 1:
        model.mixture = SharedMixture(model.mixture)
        x, y = x.chunk(world)[rank], y.chunk(world)[rank]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    loss = (model(x) - y).square().mean()
    loss.backward()
    for name, p in model.named_parameters():
        if world > 1:
            if "mine" not in name:
                dist.all_reduce(p.grad)
            p.grad /= world
    optimizer.step()
    optimizer.zero_grad()
    if world > 1:
        gloo_group.leave()


main()
