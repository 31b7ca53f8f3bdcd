"""Two ranks that each post a receive before they compute what the other waits for: python posted_receives.py. Every step sends two messages
with one tag and one with another, and receives that with the other tag first."""

import os

import gloo_group
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


class Exchange(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8, 8))

    def forward(self, x):
        other = 1 - dist.get_rank()
        into = [torch.empty(4, 8) for _ in range(3)]
        waiting = [dist.irecv(into[2], other, tag=7), dist.irecv(into[0], other), dist.irecv(into[1], other)]
        y = x @ self.weight
        parts = [y, y * 2, y.tanh()]
        waiting += [dist.isend(parts[0], other), dist.isend(parts[1], other), dist.isend(parts[2], other, tag=7)]
        z = y * y
        for work in waiting:
            work.wait()
        return z + into[0] - into[1] * into[2]


def work(rank):
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(rank)
    model = Exchange()
    for _ in range(2):
        with torch.no_grad():
            model(torch.randn(4, 8))
    gloo_group.leave()


if __name__ == "__main__":
    gloo_group.choose_port()
    mp.spawn(work, nprocs=2)
