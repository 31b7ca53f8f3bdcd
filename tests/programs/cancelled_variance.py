"""Norms whose variance is the mean of the squares less the square of the mean: cancelled_variance.py f32|bf16.

From step 2 on the numbers lie around 4000; in float32 nothing of their variance is left then, and some come out negative.
"""

import sys

import torch

precision = sys.argv[1]


class Norm(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(n))

    def forward(self, x):
        x = x.float()
        middle = x.mean(-1, keepdim=True)
        squares = (x * x).mean(-1, keepdim=True)
        variance = squares - middle * middle
        return (x - middle) * torch.rsqrt(variance + 1e-5) * self.weight


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = Norm(64), torch.nn.Linear(64, 128), torch.nn.Linear(128, 64)

    def forward(self, h):
        return h + self.down(torch.relu(self.up(self.norm(h))))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Block() for _ in range(3))
        self.norm, self.head = torch.nn.LayerNorm(64), torch.nn.Linear(64, 8)

    def forward(self, h):
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h))


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for step in range(4):
    x = torch.randn(16, 64) + (4000 if step >= 2 else 0)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
        y = net(x)
    loss = torch.nn.functional.cross_entropy(y.float(), torch.randint(0, 8, (16,)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
