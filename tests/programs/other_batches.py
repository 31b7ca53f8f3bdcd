"""A product, a mean, a softmax, a norm and decoding attention on a batch of any size: the same 64 rows, or 4 sequences, in turn."""

import sys

import torch
from torch import nn

rows, sequences = int(sys.argv[1]), int(sys.argv[2])
HEADS, KEYS, SIZE = 8, 1024, 16


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(-1, keepdim=True)


class Attention(nn.Module):
    def forward(self, q, k, v):
        return nn.functional.scaled_dot_product_attention(q, k, v)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm = nn.Linear(1024, 1024, bias=False), nn.RMSNorm(1024)
        self.mean, self.attention, self.head = Mean(), Attention(), nn.Softmax(-1)

    def forward(self, x, logits, q, k, v):
        return self.norm(self.up(x)), self.mean(x), self.attention(q, k, v), self.head(logits)


def in_turn(x, n):
    return x[torch.arange(n) % len(x)]


torch.manual_seed(0)
torch.set_num_threads(1)
model = Model()
x, logits = torch.randn(64, 1024), torch.randn(64, 2048) * 3
q, k, v = torch.randn(4, HEADS, 1, SIZE), torch.randn(4, HEADS, KEYS, SIZE), torch.randn(4, HEADS, KEYS, SIZE)
with torch.no_grad():
    model(in_turn(x, rows), in_turn(logits, rows), *(in_turn(t, sequences) for t in (q, k, v)))
