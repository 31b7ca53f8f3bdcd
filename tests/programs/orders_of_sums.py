"""Sums whose order depends on the number of threads or on who computes them. Each CASE is HOW:THREADS:ROWS:INNER and a forward pass
of its own: who adds (torch, numpy, blocked), on how many threads, how many rows are summed, terms of the products."""

import argparse

import numpy
import torch

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("case", nargs="+")
args = parser.parse_args()


def numpy_sum(rows, dim, keepdim=False, dtype=None):
    return torch.tensor(rows.numpy().sum(tuple(dim) or None))


def blocked_sum(rows, dim, keepdim=False, dtype=None):
    total = numpy.zeros(rows.shape[:-1], numpy.float32)
    for start in range(0, rows.shape[-1], 512):
        total += numpy.add.accumulate(rows.numpy()[..., start : start + 512], -1)[..., -1]
    return torch.tensor(total)


class Sums(torch.nn.Module):
    def forward(self, a, x):
        return (a @ self.weight)[0, 0] * (x.sum() if self.rows == 1 else x.view(self.rows, -1).sum(1))


model = Sums()
for case in args.case:
    how, threads, rows, inner = (part if i == 0 else int(part) for i, part in enumerate(case.split(":")))
    library = torch.library.Library("aten", "IMPL")
    if how != "torch":
        library.impl("sum.dim_IntList", {"numpy": numpy_sum, "blocked": blocked_sum}[how], "CPU")
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    a, x = torch.randn(48, inner), torch.randn(100000)
    model.rows, model.weight = rows, torch.nn.Parameter(torch.randn(inner, 64))
    with torch.no_grad():
        print(model(a, x).flatten()[0].item())
    library._destroy()
