"""A run that ends badly in step 7, whose batch is not finite: python crashing.py exception|abort|segv|term|nothing; with "kill",
under torchrun, one of the ranks is gone in step 7."""

import ctypes
import os
import signal
import sys
import time

import torch

END = 7


def end(how, rank):
    if how == "exception":
        raise ArithmeticError("the loss is not finite")
    if how == "abort":
        os.abort()
    if how == "segv":
        ctypes.string_at(8)
    if how == "term":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    if how == "kill" and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def main(how):
    rank = 0
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
    if how == "kill":
        torch.distributed.init_process_group("gloo")
        rank = torch.distributed.get_rank()
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(12):
        x = torch.randn(4, 8)
        if step == END and how != "kill":
            x[1, 2] = float("nan")
        loss = model(x).pow(2).mean()
        if step == END:
            end(how, rank)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main(sys.argv[1])
