"""A PyTorch program that records itself, as a server of runs (forked_runs.py).

    recorded_model.py FOLDER ops|auto|ring

A run prints each loss and a digest of what was learnt, and ends with 7 whatever the recorder does. Calls of the libraries that FAILING_ONLY
names fail as the server is told; everything else of the program has what it asks for."""

import contextlib
import hashlib
import os
import shutil
import sys

import lastbit.torch
import torch
from forked_runs import serve

FOLDER, WAY = sys.argv[1:]


def train(folder):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    options = {"ring": 2} if WAY == "ring" else {"level": WAY}
    with lastbit.torch.capture(folder, **options) as recording:
        for step in range(4):
            loss = model(torch.randn(4, 8)).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            recording.scalar("loss", loss)
            print("step", step, loss.item().hex())
        if WAY == "ring":
            recording.trigger("a test")
    print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())


# What is loaded late, and looked up once, is there when the runs begin.
with open(os.devnull, "w") as unseen, contextlib.redirect_stdout(unseen), contextlib.redirect_stderr(unseen):
    train(FOLDER + ".warm")
shutil.rmtree(FOLDER + ".warm")
serve(lambda: train(FOLDER))
