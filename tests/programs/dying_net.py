"""A net that learns for three steps, or dies on the way: python dying_net.py [--at STEP] [--part forward|backward] [--how kill|raise]"""

import argparse
import os
import signal

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--at", type=int, default=-1)
parser.add_argument("--part", default="forward")
parser.add_argument("--how", default="kill")
asked = parser.parse_args()


def end(part, step):
    if (part, step) != (asked.part, asked.at):
        return
    if asked.how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError("this run ends here")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x, step):
        y = torch.relu(self.up(x))
        end("forward", step)
        return self.down(y)


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    net(torch.randn(4, 8), step).square().mean().backward()
    end("backward", step)
    optimizer.step()
    optimizer.zero_grad()
