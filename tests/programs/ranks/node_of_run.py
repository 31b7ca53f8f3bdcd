"""One process of a run of two on two machines, as each machine starts its own: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say which."""

import os

import gloo_group
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

if __name__ == "__main__":
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(24, 40), nn.ReLU(), nn.Linear(40, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(100 + rank)
    for _ in range(3):
        model(torch.randn(6, 24, generator=data)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    gloo_group.leave()
