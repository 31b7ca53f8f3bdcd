"""Three sequences in one row, which the mask keeps apart, or (`padded`) a row for each. The argument says what one run does otherwise: `short`
leaves the last token out of the padded rows, `leaking` has a mask that does not, `count` divides the loss by another number, `doubled` has it
times two, `turned` flattens heads in another order. The loss is not read."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

HOW = sys.argv[1]
torch.manual_seed(4)


class Joined(nn.Module):
    def forward(self, heads):
        return (heads.transpose(-1, -2) if HOW == "turned" else heads).flatten(-2)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.pos, self.qkv, self.head = nn.Embedding(11, 8), nn.Embedding(6, 8), nn.Linear(8, 24), nn.Linear(8, 11)
        self.joined = Joined()

    def forward(self, tokens, positions, hidden):
        q, k, v = self.qkv(self.emb(tokens) + self.pos(positions)).chunk(3, -1)
        y = (q @ k.mT).masked_fill(hidden, float("-inf")).softmax(-1) @ v
        return self.head(self.joined(y.unflatten(-1, (2, 4))).tanh())


def packed(sequences):
    of = torch.cat([torch.full((len(s),), i) for i, s in enumerate(sequences)])
    positions = torch.cat([torch.arange(len(s)) for s in sequences])[None]
    labels = torch.cat([F.pad(s[1:], (0, 1), value=-100) for s in sequences])[None]
    hidden = torch.ones(len(of), len(of), dtype=torch.bool).triu(1)
    return torch.cat(sequences)[None], positions, hidden if HOW == "leaking" else hidden | (of[:, None] != of), labels


def padded(sequences):
    rows = torch.stack([F.pad(s, (0, 6 - len(s)), value=0) for s in sequences])
    labels = torch.stack([F.pad(s[1:], (0, 7 - len(s)), value=-100) for s in sequences])
    if HOW == "short":
        labels[0, len(sequences[0]) - 2] = -100
    return rows, torch.arange(6).expand(3, 6), torch.ones(6, 6, dtype=torch.bool).triu(1), labels


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(2):
    sequences = [torch.randint(0, 11, (n,)) for n in (5, 3 + step, 6)]
    *given, labels = (padded if HOW in ("padded", "short") else packed)(sequences)
    loss = F.cross_entropy(model(*given).flatten(0, 1), labels.flatten(), reduction="sum")
    optimizer.zero_grad()
    loss = loss / (15 if HOW == "count" else 11)
    (loss * 2 if HOW == "doubled" else loss).backward()
    optimizer.step()
