"""Two small steps, recorded; with a second argument the second one overflows.

failing_model.py FOLDER [fails]"""

import sys

import lastbit.torch
import torch

torch.manual_seed(0)
fails = len(sys.argv) > 2
model = torch.nn.Linear(2, 2, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with lastbit.torch.capture(sys.argv[1], level="ops"):
    for step in range(2):
        loss = (model(torch.ones(2, 2)) * (1e30 if fails and step else 1)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
