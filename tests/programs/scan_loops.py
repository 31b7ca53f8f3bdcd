"""Selective scans as loops over time, each in a module named for it: what the recognisers must find, and look-alikes that they must not."""

import argparse

import torch
from torch import nn

BATCH, TIME, CHANNELS, STATES = 2, 9, 6, 4


def zeros(x):
    return torch.zeros(BATCH, CHANNELS, STATES, dtype=x.dtype)


def whole(x, dt, a, b):
    return torch.exp(torch.einsum("bld,dn->bldn", dt, a)), torch.einsum("bld,bln,bld->bldn", dt, b, x)


def loop_minimal(x, dt, a, b, c, d):
    decay, drive = whole(x, dt, a, b)
    h, ys = zeros(x), []
    for i in range(TIME):
        h = decay[:, i] * h + drive[:, i]
        ys.append(torch.einsum("bdn,bn->bd", h, c[:, i, :]))
    return torch.stack(ys, dim=1) + x * d


def loop_channels_first(x, dt, a, b, c, d):
    decay, drive = (t.transpose(1, 2).contiguous() for t in (torch.einsum("bld,dn->bldn", dt, a), torch.einsum("bld,bln,bld->bldn", dt, b, x)))
    decay, drive = torch.exp(decay), drive * 1.5
    h, ys = zeros(x), []
    for i in range(TIME):
        h = drive[:, :, i] + h * decay[:, :, i]
        ys.append((h * c[:, i, None, :]).sum(-1))
    return torch.stack(ys, dim=2)


def states(x, dt, a, b):
    """As mamba.py has it: the states of all steps, then one sum."""
    decay, drive = torch.exp(dt.unsqueeze(-1) * a), dt.unsqueeze(-1) * b.unsqueeze(2) * x.unsqueeze(-1)
    h, hs = zeros(x), []
    for i in range(TIME):
        h = decay[:, i] * h + drive[:, i]
        hs.append(h)
    return torch.stack(hs, dim=1)


def loop_of_states(x, dt, a, b, c, d):
    return (states(x, dt, a, b) @ c.unsqueeze(-1)).squeeze(3) + d * x


def loop_of_states_by_elements(x, dt, a, b, c, d):
    return (states(x, dt, a, b) * c.unsqueeze(2)).sum(-1)


def no_own_steps(x, dt, a, b, c, d):
    return (states(x, dt, a, b) * c.flip(1).unsqueeze(2)[:, :1]).sum(-1)


def no_sum_over_channels(x, dt, a, b, c, d):
    return (states(x, dt, a, b) * c.unsqueeze(2)).sum(2)


def step(x, dt, a, b, c, d, i, h):
    h = torch.exp(dt[:, i, :, None] * a) * h + dt[:, i, :, None] * b[:, i, None, :] * x[:, i, :, None]
    return h, (h * c[:, i, None, :]).sum(-1)


def inside(one):
    def loop(x, dt, a, b, c, d):
        h, ys = zeros(x), []
        for i in range(TIME):
            h, y = one(x, dt, a, b, c, d, i, h)
            ys.append(y)
        return torch.stack(ys, 1)

    return loop


@inside
def loop_inside(x, dt, a, b, c, d, i, h):
    return step(x, dt, a, b, c, d, i, h)


@inside
def loop_with_skip(x, dt, a, b, c, d, i, h):
    h, y = step(x, dt, a, b, c, d, i, h)
    return h, y + d * x[:, i]


@inside
def loop_in_another_order(x, dt, a, b, c, d, i, h):
    delta = dt[:, i].unsqueeze(-1)
    h = (x[:, i].unsqueeze(-1) * delta) * b[:, i].unsqueeze(1) + h * torch.exp(a * delta)
    return h, x[:, i] * d + torch.einsum("bdn,bn->bd", h, c[:, i])


@inside
def no_exp(x, dt, a, b, c, d, i, h):
    h = (dt[:, i, :, None] * a) * h + dt[:, i, :, None] * b[:, i, None, :] * x[:, i, :, None]
    return h, (h * c[:, i, None, :]).sum(-1)


@inside
def no_dt(x, dt, a, b, c, d, i, h):
    h = torch.exp(dt[:, i, :, None] * a) * h + b[:, i, None, :] * x[:, i, :, None]
    return h, (h * c[:, i, None, :]).sum(-1)


@inside
def no_own_dt(x, dt, a, b, c, d, i, h):
    h = torch.exp(dt[:, i, :, None] * a) * h + dt[:, i - 1, :, None] * b[:, i, None, :] * x[:, i, :, None]
    return h, (h * c[:, i, None, :]).sum(-1)


@inside
def no_sum_over_states(x, dt, a, b, c, d, i, h):
    h, _ = step(x, dt, a, b, c, d, i, h)
    return h, (h * c[:, i, None, :]).mean(-1)


@inside
def no_skip_at_first(x, dt, a, b, c, d, i, h):
    h, y = step(x, dt, a, b, c, d, i, h)
    return h, y + d * x[:, i] if i else y


@inside
def no_skip_of_this_step(x, dt, a, b, c, d, i, h):
    h, y = step(x, dt, a, b, c, d, i, h)
    return h, y + d * x[:, 0]


@inside
def no_later_output(x, dt, a, b, c, d, i, h):
    h, y = step(x, dt, a, b, c, d, i, h)
    return h, (h * c[:, TIME - 1 - i, None, :]).sum(-1)


def no_zeros(x, dt, a, b, c, d):
    h, ys = torch.ones(BATCH, CHANNELS, STATES, dtype=x.dtype), []
    for i in range(TIME):
        h, y = step(x, dt, a, b, c, d, i, h)
        ys.append(y)
    return torch.stack(ys, 1)


def no_time_in_order(x, dt, a, b, c, d):
    h, ys = zeros(x), []
    for i in reversed(range(TIME)):
        h, y = step(x, dt, a, b, c, d, i, h)
        ys.append(y)
    return torch.stack(ys, 1)


def no_steps_in_order(x, dt, a, b, c, d):
    h, ys = zeros(x), []
    for i in range(TIME):
        h, y = step(x, dt, a, b, c, d, i, h)
        ys.append(y)
    return torch.stack(ys[::-1], 1)


LOOPS = [
    "loop_minimal",
    "loop_channels_first",
    "loop_inside",
    "loop_with_skip",
    "loop_in_another_order",
    "loop_of_states",
    "loop_of_states_by_elements",
]
NONE = [
    "no_exp",
    "no_dt",
    "no_own_dt",
    "no_sum_over_states",
    "no_skip_at_first",
    "no_skip_of_this_step",
    "no_later_output",
    "no_zeros",
    "no_time_in_order",
    "no_steps_in_order",
    "no_own_steps",
    "no_sum_over_channels",
]


class Loop(nn.Module):
    def __init__(self, function, dtype):
        super().__init__()
        self.function = function
        self.log = nn.Parameter(torch.rand(CHANNELS, STATES).to(dtype))
        self.skip = nn.Parameter(torch.randn(CHANNELS).to(dtype))

    def forward(self, x, dt, b, c):
        return self.function(x, dt, -torch.exp(self.log), b, c, self.skip)


class All(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        for name in LOOPS + NONE:
            self.add_module(name, Loop(globals()[name], dtype))

    def forward(self, *args):
        return sum(module(*args).float().square().sum() for module in self.children())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="float32")
    dtype = getattr(torch, parser.parse_args().dtype)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = All(dtype)
    x, dt = torch.randn(BATCH, TIME, CHANNELS).to(dtype).requires_grad_(), torch.rand(BATCH, TIME, CHANNELS).to(dtype)
    model(x, dt, torch.randn(BATCH, TIME, STATES).to(dtype), torch.randn(BATCH, TIME, STATES).to(dtype)).backward()
