"""Attention by a cache, after one step of training. The argument says what one run does otherwise: `recomputed` gives the model all tokens
in place of the last and a cache, `late` does so from a position too far on, `narrow` draws whole numbers in 32 bits, `reseeded` others;
`calls` and `calls-recomputed` do not train, so that each call is a step."""

import sys

import torch
from torch import nn

HOW = sys.argv[1]
torch.manual_seed(3)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.pos, self.qkv, self.head = nn.Embedding(11, 8), nn.Embedding(12, 8), nn.Linear(8, 24), nn.Linear(8, 11)

    def forward(self, tokens, cache=None):
        past = cache[0].shape[1] if cache else 0
        positions = torch.arange(past, past + tokens.shape[1])
        q, k, v = self.qkv(self.emb(tokens) + self.pos(positions + (HOW == "late" and tokens.shape[1] > 4))).chunk(3, -1)
        if cache is not None:
            if cache:
                k, v = torch.cat([cache[0], k], 1), torch.cat([cache[1], v], 1)
            cache[:] = [k, v]
        hidden = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).triu(1 + past)
        return self.head((q @ k.mT).masked_fill(hidden, float("-inf")).softmax(-1) @ v)


model, tokens = Model(), torch.randint(0, 11, (2, 7))
if not HOW.startswith("calls"):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(tokens[:, :4]).square().mean().backward()
    draws = torch.Generator().manual_seed(6 if HOW == "reseeded" else 5)
    dither = torch.randint(0, 99, (11, 8), generator=draws, dtype=torch.int32 if HOW == "narrow" else torch.int64)
    with torch.no_grad():
        model.emb.weight.grad.add_(dither.float(), alpha=1e-3)
    optimizer.step()
with torch.no_grad():
    cache = []
    for end in range(4, 8):
        if HOW in ("recomputed", "late", "calls-recomputed"):
            model(tokens[:, :end])
        else:
            model(tokens[:, :4] if end == 4 else tokens[:, end - 1 : end], cache)
