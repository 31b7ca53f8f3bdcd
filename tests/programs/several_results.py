"""Two modules that compute the same, and give out several results of one shape, in another order and of other layers.

python several_results.py one|other|faulty
"""

import sys

import torch
from torch import nn

WIDTH = 16
torch.manual_seed(0)
weights = [torch.randn(WIDTH, WIDTH) / 4 for _ in range(3)]


class One(nn.Module):
    """Gives out its result, then what stood before the last layer, and how large that is."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        with torch.no_grad():
            for layer, weight in zip((self.first, self.second, self.third), weights):
                layer.weight.copy_(weight)

    def forward(self, x):
        x = nn.functional.gelu(self.first(x))
        hidden = nn.functional.silu(self.second(x))
        return self.third(hidden), hidden, torch.linalg.vector_norm(hidden, dim=1)


class Other(nn.Module):
    """Gives out all of its layers and what the other module does not compute, its result last."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ParameterList([w.T.contiguous() for w in weights])

    def forward(self, x):
        if torch.rand(1).item() < 0:  # a layer is never left out, but a number is drawn
            return x
        x = x @ self.layers[0]
        shown = [x * 0.5 * (1 + torch.erf(x / 2**0.5))]
        inner = shown[0] @ self.layers[1]
        shown.append(inner * torch.sigmoid(inner))
        return *shown, shown[0].cumsum(0), shown[1] @ self.layers[2] * (1.1 if sys.argv[1] == "faulty" else 1.0)


model = One() if sys.argv[1] == "one" else Other()
with torch.no_grad():
    model(torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1)))
