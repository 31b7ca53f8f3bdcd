"""A model in one process, in two micro-batches, or as two stages of a pipeline: pipeline_twin.py [scale | weight], under torchrun or not.

`scale`: what layer 2 gives is larger by a percent; `weight`: its weight is. Pipelining keeps the names of the model's parameters."""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import ScheduleGPipe, SplitPoint, pipeline

FAULT = sys.argv[1] if len(sys.argv) > 1 else ""


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.head = nn.Linear(16, 8)

    def forward(self, x):
        for n, layer in enumerate(self.layers):
            x = torch.tanh(layer(x) * 1.01 if FAULT == "scale" and n == 2 else layer(x))
        return self.head(x)


def optimizer_of(module):
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Net()
    if FAULT == "weight":
        model.layers[2].weight.data *= 1.01
    x, y = torch.randn(8, 16), torch.randint(8, (8,))
    if "RANK" not in os.environ:
        optimizer = optimizer_of(model)
        for _ in range(2):
            for rows, labels in zip(x.chunk(2), y.chunk(2)):
                (F.cross_entropy(model(rows), labels) / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
        return
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    stage = pipeline(model, mb_args=(x[:4],), split_spec={"layers.2": SplitPoint.BEGINNING}).build_stage(rank, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=F.cross_entropy)
    optimizer = optimizer_of(stage.submod)
    for _ in range(2):
        schedule.step(*([x] if rank == 0 else []), **({"target": y, "losses": []} if rank == 1 else {}))
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
