"""What watches each of two ranks after some steps: dispatch modes, hooks of all modules, threads of lastbit."""

import os

import gloo_group
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as modes


def names_of_threads():
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm") as name:
            yield name.read().strip()


def work(rank, ranks):
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK=str(rank), WORLD_SIZE=str(ranks))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        y = model(torch.randn(4, 16))
        inside = len(modes())
        y.pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    hooks = len(nn.modules.module._global_forward_pre_hooks) + len(nn.modules.module._global_forward_hooks)
    ours = sum(name.startswith("lastbit") for name in names_of_threads())
    os.write(1, f"rank {rank}: {inside} modes, {hooks} hooks, {ours} threads\n".encode())
    gloo_group.leave()


if __name__ == "__main__":
    gloo_group.choose_port()
    mp.spawn(work, (2,), nprocs=2)
