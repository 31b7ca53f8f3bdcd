"""A module that is called twice a step; its inputs are made while the step before is still going on. The argument says nothing."""

import torch
from torch import nn

torch.manual_seed(2)
net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    x = torch.randn(5, 6)
    one, other = x + 0.1 * torch.randn(5, 6), x + 0.1 * torch.randn(5, 6)
    y = net(one)
    with torch.no_grad():
        wanted = net(other)
    optimizer.zero_grad()
    (y - wanted).square().mean().backward()
    optimizer.step()
