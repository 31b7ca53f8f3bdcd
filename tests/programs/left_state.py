"""A weighted mean over the tokens so far, as a recurrence; the state behind the last token is for nothing. The argument says what one run does
otherwise: `stable` scales the state by the largest exponent, `decaying` forgets faster, `kept` and `kept-scaled` begin each step with the
state that the step before left, `scaled` of them with half of it."""

import sys

import torch
from torch import nn

HOW = sys.argv[1]
torch.manual_seed(8)


class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.key, self.value, self.decay = nn.Linear(6, 6), nn.Linear(6, 6), nn.Parameter(torch.linspace(-2, 0, 6))
        self.left = None

    def forward(self, x):
        k, v = self.key(x), self.value(x)
        w = -self.decay.exp() * (1.2 if HOW == "decaying" else 1)
        a, b = self.left if self.left is not None else (torch.zeros_like(k[:, 0]), torch.full_like(k[:, 0], 1e-3))
        top, rows = torch.zeros_like(a), []
        for t in range(x.shape[1]):
            if HOW == "stable":
                new = torch.maximum(top + w, k[:, t])
                old, now = (top + w - new).exp(), (k[:, t] - new).exp()
                a, b, top = old * a + now * v[:, t], old * b + now, new
            else:
                a, b = w.exp() * a + k[:, t].exp() * v[:, t], w.exp() * b + k[:, t].exp()
            rows.append(a / b)
        if HOW.startswith("kept"):
            self.left = (a.detach() * (0.5 if HOW == "kept-scaled" else 1), b.detach())
        return torch.stack(rows, 1)


model = nn.Sequential(nn.Linear(5, 6), Mean(), nn.Linear(6, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    x, wanted = torch.randn(2, 4, 5), torch.randn(2, 4, 3)
    optimizer.zero_grad()
    (model(x) - wanted).square().mean().backward()
    optimizer.step()
