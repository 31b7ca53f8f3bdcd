"""One training step of a small model with an additive mask: masked_attention.py VALUE none|scale|order DTYPE [FACTOR].

scale: attention scores are multiplied by FACTOR, a fault. order: the same function with the division earlier."""

import math
import sys

import torch
from torch import nn

value, change, dtype = float(sys.argv[1]), sys.argv[2], getattr(torch, sys.argv[3])
torch.manual_seed(0)
torch.set_num_threads(1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x, mask):
        q, k, v = self.qkv(x).chunk(3, -1)
        if change == "order":
            scores = (q / math.sqrt(32)) @ k.transpose(1, 2)
        else:
            scores = q @ k.transpose(1, 2) / math.sqrt(32)
        if change == "scale":
            scores = scores * float(sys.argv[4])
        return self.out(torch.softmax(scores + mask, -1) @ v)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.mlp = Attention(), nn.Linear(32, 32)

    def forward(self, x, mask):
        x = x + self.attention(x, mask)
        return x + torch.relu(self.mlp(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.layers, self.head = nn.Embedding(64, 32), nn.ModuleList(Layer() for _ in range(2)), nn.Linear(32, 64)

    def forward(self, x, mask):
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h, mask)
        return self.head(h)


model = Model().to(dtype)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randint(0, 64, (2, 16))
mask = torch.zeros(16, 16, dtype=dtype).masked_fill(torch.ones(16, 16, dtype=torch.bool).triu(1), value)
loss = nn.functional.cross_entropy(model(x, mask).float().flatten(0, 1), x.flatten())
loss.backward()
optimizer.step()
