"""Two stages of a model on two ranks, by torch.distributed.pipelining: torchrun --nproc-per-node 2 pipeline.py

A stage is sent through uninitialised memory once, to learn the shapes of what it gives."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

torch.manual_seed(0)
torch.set_num_threads(1)
WIDTH, ROWS, PARTS = 16, 8, 2


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    layers = [nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, WIDTH)) for _ in range(2)]
    module = layers[rank]
    # What an allocator hands out is whatever stood there before: here, mostly, what is no number.
    spoilt = [torch.full((ROWS // PARTS, WIDTH), float("nan")) for _ in range(64)]
    del spoilt
    stage = PipelineStage(module, rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, PARTS, loss_fn=lambda y, t: (y - t).square().mean())
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    for x, y in zip(torch.randn(3, ROWS, WIDTH), torch.randn(3, ROWS, WIDTH)):
        schedule.step(*([x] if rank == 0 else []), **({"target": y} if rank == 1 else {}))
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
