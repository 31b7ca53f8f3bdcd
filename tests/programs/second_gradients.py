"""A net of three layers whose GELU has its derivative written by hand in the second way, in all of them.

python second_gradients.py --all DIR      # first.lb, second.lb, wrong-slope.lb: there the derivative of layers.1 is another one"""

import math
import sys

import torch
from torch import nn

WIDTH = 16
ROOT_OF_TWO_BY_PI = math.sqrt(2 / math.pi)


class ByHand(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cubic):
        inner = torch.tanh(ROOT_OF_TWO_BY_PI * (x + 0.044715 * x**3))
        ctx.save_for_backward(x, inner)
        ctx.cubic = cubic
        return 0.5 * x * (1 + inner)

    @staticmethod
    def backward(ctx, gradient):
        x, inner = ctx.saved_tensors
        slope = ROOT_OF_TWO_BY_PI * (1 + ctx.cubic * 0.044715 * x**2)
        return gradient * (0.5 * (1 + inner) + 0.5 * x * (1 - inner**2) * slope), None


def followed(x):
    return 0.5 * x * (1 + torch.tanh(ROOT_OF_TWO_BY_PI * (x + 0.044715 * torch.pow(x, 3.0))))


class Layer(nn.Module):
    way, cubic = "first", 3

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        h = self.up(self.norm(x))
        return x + self.down(followed(h) if self.way == "first" else ByHand.apply(h, self.cubic))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.head = nn.ModuleList(Layer() for _ in range(3)), nn.Linear(WIDTH, 6)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def record(out, way, cubic):
    import lastbit.torch

    torch.manual_seed(3)
    net, x = Net(), torch.randn(8, WIDTH)
    for layer in net.layers:
        layer.way = way
    net.layers[1].cubic = cubic
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with lastbit.torch.capture(out, level="ops"):
        net(x).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, way, cubic in (("first", "first", 3), ("second", "second", 3), ("wrong-slope", "second", 2)):
        record(f"{sys.argv[2]}/{name}.lb", way, cubic)
