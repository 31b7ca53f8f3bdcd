"""Two ranks with batches of different sizes whose batch norm goes over both, as SyncBatchNorm does on CUDA; two steps of training.

The gradients and running statistics are those of an ordinary batch norm of the joined batch. `--wrong`: one rank's gradient of the
second step is off in one element.
"""

import argparse
import os
import sys

import torch
import torch.distributed as dist
from gloo_group import choose_port, leave
from torch import nn
from torch.nn.modules._functions import SyncBatchNorm

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import cuda_kernels  # noqa: E402

SIZES = (6, 10)


class Synced(nn.BatchNorm2d):
    """nn.SyncBatchNorm refuses inputs that are not on an accelerator."""

    def forward(self, x):
        world, running = dist.group.WORLD, (self.running_mean, self.running_var)
        return SyncBatchNorm.apply(x, self.weight, self.bias, *running, self.eps, self.momentum, world, dist.get_world_size())


def batches(dtype, step):
    x = torch.randn(sum(SIZES), 3, 5, 5, generator=torch.Generator().manual_seed(step)) * 2 + 3
    return x.to(dtype).split(SIZES)


def model_of(norm, dtype):
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 4, 3).to(dtype), norm(4), nn.ReLU(), nn.Conv2d(4, 2, 1).to(dtype))


def loss_of(y):
    return y.float().pow(2).sum() / 100


def train(model, mine, dtype, share):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        loss_of(model(mine(batches(dtype, step)))).backward()
        for p in model.parameters() if share else ():
            dist.all_reduce(p.grad)
        optimizer.step()
        optimizer.zero_grad()


def run(rank, args):
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.set_num_threads(1)
    dtype = getattr(torch, args.dtype)
    if args.wrong and rank == 1:
        cuda_kernels.plant("batch_norm_backward_elemt", call=1)
    model = model_of(Synced, dtype)
    train(model, lambda parts: parts[rank], dtype, True)
    if rank == 0 and dtype == torch.float32 and not args.wrong:
        whole = model_of(nn.BatchNorm2d, dtype)
        train(whole, torch.cat, dtype, False)
        for (name, one), other in zip(model.state_dict().items(), whole.state_dict().values()):
            if "num_batches" not in name:  # a count, which nn.BatchNorm2d keeps in its forward
                torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-6)
    leave()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--wrong", action="store_true")
    choose_port()
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    torch.multiprocessing.spawn(run, (parser.parse_args(),), nprocs=2)
