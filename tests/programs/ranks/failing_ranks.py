"""Four ranks under DDP, one of which spoils the others: the case is the first argument."""

import sys

import gloo_group
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn


def main(rank, world, folder, case):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(10 + rank)
    for step in range(3):
        x, y = torch.randn(8, 16, generator=generator), torch.randint(0, 4, (8,), generator=generator)
        if case == "nan-data" and rank == 2 and step == 1:
            x[3, 5] = float("nan")
        if case == "huge-data" and rank == 1 and step == 1:
            x *= 1e37  # gradients stay finite; their squares do not, on every rank
        loss = F.cross_entropy(model(x), y)
        if case == "log" and rank == 3 and step == 1:
            loss = loss + torch.log(F.relu(-loss))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    gloo_group.leave()


if __name__ == "__main__":
    mp.spawn(main, args=(4, sys.argv[2], sys.argv[1]), nprocs=4)
