"""Sums whose order depends on --threads or on who computes them (--how)."""
import argparse

import numpy
import torch

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--rows", type=int, default=1)
parser.add_argument("--inner", type=int, default=64, help="terms of the products")
parser.add_argument("--how", choices=["torch", "numpy", "blocked"], default="torch")
args = parser.parse_args()
torch.set_num_threads(args.threads)
torch.manual_seed(0)
a, x = torch.randn(48, args.inner), torch.randn(100000)


def numpy_sum(rows, dim, keepdim=False, dtype=None):
    return torch.tensor(rows.numpy().sum(tuple(dim) or None))


def blocked_sum(rows, dim, keepdim=False, dtype=None):
    total = numpy.zeros(rows.shape[:-1], numpy.float32)
    for start in range(0, rows.shape[-1], 512):
        total += numpy.add.accumulate(rows.numpy()[..., start:start + 512], -1)[..., -1]
    return torch.tensor(total)


library = torch.library.Library("aten", "IMPL")
if args.how != "torch":
    library.impl("sum.dim_IntList", {"numpy": numpy_sum, "blocked": blocked_sum}[args.how], "CPU")


class Sums(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(args.inner, 64))

    def forward(self, a, x):
        return (a @ self.weight)[0, 0] * (x.sum() if args.rows == 1 else x.view(args.rows, -1).sum(1))


model = Sums()
with torch.no_grad():
    print(model(a, x).flatten()[0].item())
