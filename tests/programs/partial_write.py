"""Three steps of a small network. `--write`: behind the last update something writes a part of a parameter, or one that no optimizer
has. `--cast`: what is between the layers is rounded to that type and back."""

import argparse

import torch
from torch import nn

WRITES = {
    "rows": lambda net: net.down.weight[3:5].zero_(),
    "columns": lambda net: net.down.weight[:, 7].mul_(2),
    "element": lambda net: net.up.bias[5].fill_(7),
    "third": lambda net: net.down.weight[3:5].mul_(1 / 3),
    "by three": lambda net: net.down.weight[3:5].div_(3),
    "same": lambda net: net.down.weight[3:5].mul_(1),
    "frozen": lambda net: net.shift.add_(1),
}
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--write", choices=WRITES)
parser.add_argument("--cast", choices=["float8_e5m2", "bfloat16"])
args = parser.parse_args()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.shift = nn.Parameter(torch.zeros(32), requires_grad=False)

    def forward(self, x):
        h = torch.relu(self.up(x) + self.shift)
        if args.cast:
            h = h.to(getattr(torch, args.cast)).to(h.dtype)
        return self.down(h)


torch.set_num_threads(1)
torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1, momentum=0.9, foreach=False)
x = torch.randn(8, 16)
for step in range(3):
    loss = (net(x) - x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if args.write and step == 2:
        with torch.no_grad():
            WRITES[args.write](net)
print(f"loss {loss.item():.6f}")
