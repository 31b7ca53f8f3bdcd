"""Inputs that a module is given in one piece or in two: cut_input.py train | train micro | decode | decode split

train   scores a batch without gradients, then learns from it, whole or in micro-batches: slices of slices, with holes between them
decode  a recurrent model reads a prompt, in one call or in two, and goes on by itself"""

import sys

import torch
from torch import nn

HOW, CUT = sys.argv[1], len(sys.argv) > 2
torch.manual_seed(3)
torch.set_num_threads(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.recurrent, self.head = nn.Embedding(17, 12), nn.GRU(12, 12, batch_first=True), nn.Linear(12, 17)

    def forward(self, tokens, state=None):
        hidden, state = self.recurrent(self.tokens(tokens), state)
        return self.head(hidden), state


def scores(model, tokens):
    return model(tokens[:, :-1])[0].log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]


def train(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(2):
        tokens, gains = torch.randint(17, (8, 12)), torch.randn(8, 1)
        with torch.no_grad():
            before = scores(model, tokens)
        for _ in range(2):
            optimizer.zero_grad()
            for rows in [slice(0, 4), slice(4, 8)] if CUT else [slice(0, 8)]:
                ((scores(model, tokens[rows]) - before[rows]).exp() * -gains[rows]).sum().div(8).backward()
            optimizer.step()


@torch.no_grad()
def decode(model):
    prompt, state = torch.randint(17, (2, 8)), None
    for part in prompt.split([5, 3] if CUT else [8], dim=1):
        logits, state = model(part, state)
    for _ in range(4):
        logits, state = model(logits[:, -1:].argmax(-1), state)


train(Model()) if HOW == "train" else decode(Model().eval())
