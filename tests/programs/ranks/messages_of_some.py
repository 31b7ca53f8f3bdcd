"""Three gloo processes, two of which exchange a message in the group of all, before all of them reduce."""

import os

import gloo_group
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=3)
    torch.manual_seed(rank)
    layer = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, foreach=False)
    for _ in range(2):
        x = torch.randn(4, 8)
        if rank == 0:
            dist.send(x, 1)
        if rank == 1:
            dist.recv(x, 0)
        layer(x).square().mean().backward()
        for p in layer.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
        optimizer.zero_grad()
    gloo_group.leave()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    gloo_group.choose_port()
    mp.spawn(work, nprocs=3)
