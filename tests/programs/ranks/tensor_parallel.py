"""Three steps of a small residual network, its block split over the processes as tensor parallelism does: the first linear by columns,
the second by rows, with one all-reduce behind it forward and one backward. `--fault`: before step 2 the last
rank's part of a weight is lost."""

import argparse
import os

import gloo_group
import torch
import torch.distributed as dist
from torch import nn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--ranks", type=int, default=1)
parser.add_argument("--fault", choices=["up", "down"], help="a weight of the second block")
args = parser.parse_args()


def reduced(x):
    if dist.is_initialized():
        x = x.clone()
        dist.all_reduce(x)
    return x


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return reduced(x)

    @staticmethod
    def backward(ctx, g):
        return g


class Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        return reduced(g)


class Block(nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.up, self.down = nn.Linear(32, 64 // args.ranks, bias=False), nn.Linear(64 // args.ranks, 32, bias=False)
        share = slice(rank * 64 // args.ranks, (rank + 1) * 64 // args.ranks)
        torch.manual_seed(1)  # the shards drew other numbers of their own
        whole = torch.randn(64, 32) / 8, torch.randn(32, 64) / 8
        with torch.no_grad():
            self.up.weight.copy_(whole[0][share]), self.down.weight.copy_(whole[1][:, share])

    def forward(self, x):
        return x + Reduce.apply(self.down(torch.relu(self.up(Spread.apply(self.norm(x))))))


def work(rank):
    torch.set_num_threads(1)
    if args.ranks > 1:
        dist.init_process_group("gloo", rank=rank, world_size=args.ranks)
    torch.manual_seed(0)
    model = nn.Sequential(Block(rank), Block(rank), nn.Linear(32, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    x, y = torch.randn(16, 32), torch.randint(0, 8, (16,))
    for step in range(3):
        if args.fault and step == 2 and rank == args.ranks - 1:
            with torch.no_grad():
                getattr(model[1], args.fault).weight.zero_()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0:
        print(f"loss {loss.item():.6f}")
    if args.ranks > 1:
        gloo_group.leave()


work(int(os.environ.get("RANK", "0")))
