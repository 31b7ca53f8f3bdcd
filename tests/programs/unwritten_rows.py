"""Steps of a layer of experts whose output is made by torch.empty: unwritten_rows.py FOLDER NAME… writes FOLDER/NAME.lb, fresh memory
filled with NaN. A name says which rows some kernel leaves unwritten, and what becomes of them."""

import pathlib
import sys

import lastbit.torch
import torch
import torch.nn.functional as F


class Experts(torch.autograd.Function):
    """Tokens sorted by expert, each group multiplied by its expert's matrix; `lost`: rows behind the last group are left as they are."""

    @staticmethod
    def forward(ctx, x, weights, counts, lost):
        out = torch.empty(x.shape[0], weights.shape[-1])
        first = 0
        for weight, count in zip(weights, counts, strict=True):
            out[first : first + count] = x[first : first + count] @ weight
            first += count
        if not lost:
            out[first:] = 0
        ctx.save_for_backward(x, weights)
        ctx.counts = counts
        return out

    @staticmethod
    def backward(ctx, g):
        x, weights = ctx.saved_tensors
        gx, gw, first = torch.zeros_like(x), torch.empty_like(weights), 0
        for i, count in enumerate(ctx.counts):
            rows = slice(first, first + count)
            gx[rows] = g[rows] @ weights[i].T
            if count or not Model.lost_expert:
                gw[i] = x[rows].T @ g[rows]
            first += count
        return gx, gw, None, None


class Model(torch.nn.Module):
    lost_expert = False

    def __init__(self, name, d=8):
        super().__init__()
        self.name = name
        self.up = torch.nn.Linear(d, d)
        self.experts = torch.nn.Parameter(torch.randn(4, d, d) / d)

    def forward(self, x):
        h = F.relu(self.up(x))
        counts = [5, 0, 4, 3] if self.name in ("tail_lost", "tail_masked", "tail_written") else [6, 0, 5, 5]
        y = Experts.apply(h, self.experts, counts, self.name in ("tail_lost", "tail_masked"))
        if self.name == "tail_masked":
            y = torch.where((torch.arange(len(x)) < sum(counts))[:, None], y, 0.0)
        if self.name == "sum_into_empty":
            total = torch.empty(8)
            total.add_(y.sum(0))
            y = y + total
        return y


def train(name, out):
    torch.manual_seed(0)
    Model.lost_expert = name == "expert_lost"
    model, x = Model(name), torch.randn(16, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with lastbit.torch.capture(out, level="ops", poison=True) as capture, capture.step(0):
        model(x).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    for name in sys.argv[2:]:
        train(name, pathlib.Path(sys.argv[1]) / f"{name}.lb")
