"""A few steps of SGD on two linear layers, with inputs whose size jumps from step to step.

tests/replay/precision/test_precision.py trains the same model again, its products quantised by recipes written out there.
"""

import argparse

import torch
from torch import nn

SIZES = [1.0, 6.0, 0.5, 2.0, 9.0]


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(48, 160), nn.SiLU(), nn.Linear(160, 24))


def batches():
    g = torch.Generator().manual_seed(1)
    for size in SIZES:
        yield torch.randn(40, 48, generator=g) * size, torch.randn(40, 24, generator=g)


def train(net, dtype=torch.float32):
    """The losses."""
    net.to(dtype)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, target in batches():
        loss = nn.functional.mse_loss(net(x.to(dtype)).float(), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    torch.set_num_threads(1)
    for value in train(model(), getattr(torch, parser.parse_args().dtype)):
        print(value)
