"""Experts that take so many tokens and no more, and weights less their mean; what is otherwise is the argument.

again      the same program
twin       the mean of a weight is taken in other ops
room       an expert of the second layer takes fewer tokens
threshold  the second layer leaves out tokens whose share is lower than another number
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F

how = sys.argv[1]
torch.manual_seed(3)
WIDTH, EXPERTS = 12, 3


class Centred(nn.Linear):
    def forward(self, x):
        mean = self.weight.mean(1, keepdim=True).mean(0, keepdim=True) if how == "twin" else self.weight.mean()
        return F.linear(x, self.weight - mean, self.bias)


class Experts(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, EXPERTS), nn.ModuleList(Centred(WIDTH, WIDTH) for _ in range(EXPERTS))
        self.room = 7 if how == "room" and number else 9
        self.least = 0.4 if how == "threshold" and number else 0.35

    def forward(self, x):
        shares, ids = self.router(x).softmax(-1).max(-1)
        chosen = F.one_hot(ids, EXPERTS)
        place = ((chosen.cumsum(0) - 1) * chosen).sum(-1)
        taken = (place < self.room) & (shares > self.least)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            tokens = ((ids == number) & taken).nonzero()[:, 0]
            if len(tokens):
                y = y.index_add(0, tokens, expert(x[tokens]) * shares[tokens, None])
        return x + y


model = nn.Sequential(Experts(0), Experts(1), nn.Linear(WIDTH, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    loss = F.cross_entropy(model(torch.randn(24, WIDTH)), torch.randint(5, (24,)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
