"""Trains on tokens of two shards, twice: sharded_tokens.py ALIKE OTHER. In OTHER the second shard comes from another tokenizer."""

import sys

import lastbit.torch
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
for out, other in zip(sys.argv[1:], (False, True)):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(600, 8), nn.Linear(8, 600))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.distributions.Exponential(0.02)
    with lastbit.torch.capture(out, level="sources") as capture:
        for step in range(48):
            late = step >= 36
            ids = draw.sample((16, 33)).long().clamp(max=599)
            if late and other:
                ids = 599 - ids
            with capture.step(step, shard="part-1.bin" if late else "part-0.bin"):
                loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                capture.scalar("loss", loss)
