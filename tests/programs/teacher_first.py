"""A teacher is called before the student. The argument says how its result is cut off: `no-grad` or `detached`; `detached-other`: with another
learning rate."""

import copy
import sys

import torch
from torch import nn

HOW = sys.argv[1]
torch.manual_seed(6)
student = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
teacher = copy.deepcopy(student).requires_grad_(False)
optimizer = torch.optim.SGD(student.parameters(), lr=0.2 if HOW == "detached-other" else 0.1)


def train_step():
    x = torch.randn(3, 4)
    if HOW == "no-grad":
        with torch.no_grad():
            wanted = teacher(x)
    else:
        wanted = teacher(x).detach()
    optimizer.zero_grad()
    (student(x + 0.1) - wanted).square().mean().backward()
    optimizer.step()


for _ in range(3):
    train_step()
