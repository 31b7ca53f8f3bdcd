"""A compiled network that overflows in f16 before a tap, or the same without the tap."""

import sys

import lastbit.torch
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)

    def forward(self, x):
        y = (self.first(x).half() * 3e4 * 10).float()
        if "--no-tap" not in sys.argv:
            y = lastbit.torch.tap("large", y)
        return self.head(torch.tanh(y) * y)


torch.manual_seed(0)
net = Net()
step, optimizer = torch.compile(net), torch.optim.SGD(net.parameters(), 0.1)
for _ in range(2):
    step(torch.randn(4, 8)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
