"""Steps in which a NaN becomes a finite number, or is kept from doing so, each by its name: dropped_nan.py FOLDER NAME… writes FOLDER/NAME.lb."""

import pathlib
import sys

import lastbit.torch
import torch
import torch.nn.functional as F

WIDTH, ROWS = 8, 6


def largest_of_rows(x):
    """By comparisons that no NaN wins, as kernels begin with a number and keep what is larger."""
    largest = x[:, 0].abs()
    for column in x.abs().unbind(1):
        largest = torch.fmax(largest, column)
    return largest[:, None]


class NarrowGradient(torch.autograd.Function):
    """The gradient goes through 8 bits, each row with a scale of its own."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        scale = 448 / largest_of_rows(g)
        return (g * scale).to(torch.float8_e4m3fn).float() / scale


class Model(torch.nn.Module):
    """A row of its input is negative: the root of that is NaN."""

    def __init__(self, name):
        super().__init__()
        self.name, self.inner, self.head = name, torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        name, y = self.name, torch.sqrt(x)
        if name == "narrow_gradient":  # the roots of some of its numbers are NaN, and their gradients
            return torch.sqrt(NarrowGradient.apply(self.inner(x)))
        bad = (x < 0).any(1)
        if name == "scale_by_fmax":
            y = y / largest_of_rows(y).detach()
        if name == "scale_by_amax":
            y = y / y.abs().amax(1, keepdim=True).detach()
        if name == "finite_fmax":
            y = y / largest_of_rows(x).detach()
        if name == "sign_in_forward":
            y = torch.sign(y)
        if name == "where_isnan":
            y = torch.where(y.isnan(), 0.0, y)
        if name == "where_positive":
            y = torch.where(y > 0, y, 0.0)
        if name == "filled":
            y = y.masked_fill(bad[:, None], 0.0)
        if name == "written_over":
            y[bad] = 0.0
        if name == "to_num":
            y = torch.nan_to_num(y)
        if name == "summed_without":
            y = x.abs() + torch.nansum(y)
        if name == "other_rows":
            y = y[~bad]
        if name == "smallest":
            y = y.topk(2, dim=1, largest=False).values.repeat(1, WIDTH // 2)
        if name == "logged":
            self.log = float(largest_of_rows(y.detach()).mean())
        return self.head(self.inner(y))


def loss_of(name, model, x):
    y = model(x)
    if name == "ignored_rows":
        target = torch.where((x < 0).any(1), -100, 3)
        return F.cross_entropy(y, target)
    if name == "distance":
        return F.l1_loss(y, torch.ones_like(y))
    return y.square().mean()


def step_of(name, model, optimizer, scaler, x):
    loss = loss_of(name, model, x)
    (scaler.scale(loss) if name == "scaler" else loss).backward()
    if name == "signs":
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.sign(p.grad), alpha=-0.01)
    elif name == "clipped_by_fmin":
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        for p in model.parameters():
            p.grad.mul_(torch.fmin(torch.ones(()), 1 / norm))
        optimizer.step()
    elif name == "scaler":
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()


def train(name, out):
    torch.manual_seed(0)
    model, x = Model(name), torch.rand(ROWS, WIDTH) + 0.5
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    x[2, 5] = -1.0
    with lastbit.torch.capture(out, level="ops") as capture, capture.step(0):
        step_of(name, model, optimizer, scaler, x)


if __name__ == "__main__":
    for name in sys.argv[2:]:
        train(name, pathlib.Path(sys.argv[1]) / f"{name}.lb")
