"""Three gloo processes that train copies of one model; each gradient goes around a ring of messages, as all-reduces are written by hand."""

import os

import gloo_group
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def ring_sum(number, rank):
    """What was received is added, and sent on."""
    mine, got = number.clone(), torch.empty_like(number)
    for _ in range(2):
        sending = dist.isend(mine, (rank + 1) % 3)
        dist.recv(got, (rank - 1) % 3)
        sending.wait()
        number += got
        mine, got = got, torch.empty_like(number)


def work(rank):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=3)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    for step in range(3):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * step + rank))
        model(x).square().mean().backward()
        for p in model.parameters():
            ring_sum(p.grad, rank)
        optimizer.step()
        optimizer.zero_grad()
    gloo_group.leave()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    gloo_group.choose_port()
    mp.spawn(work, nprocs=3)
