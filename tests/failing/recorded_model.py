"""A PyTorch program that records itself, as a server of runs (failing_runs.Server): each run is a fork of this process, which has PyTorch loaded.

    recorded_model.py FOLDER ops|auto|ring

A run prints each loss and a digest of what was learnt, and ends with 7 whatever the recorder does. Calls of the libraries that FAILING_ONLY
names fail as the server is told; everything else of the program has what it asks for."""

import contextlib
import ctypes
import hashlib
import os
import shutil
import signal
import sys
import traceback

import lastbit.torch
import torch

OWN_CODE = 7
FOLDER, WAY = sys.argv[1:]
host = ctypes.CDLL(None)


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


def run(kind, first, last, seconds):
    for fd, name in ((1, "FAILING_OUT"), (2, "FAILING_ERR")):
        os.dup2(os.open(os.environ[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), fd)
    code = 1
    try:
        signal.alarm(int(seconds))
        host.failing_host_choose(kind.encode(), ctypes.c_long(int(first)), ctypes.c_long(int(last)))
        train(FOLDER)
        code = OWN_CODE
    except BaseException:  # of the recorder, or of what it did to the program
        traceback.print_exc()
    host.failing_host_choose(b"none", ctypes.c_long(0), ctypes.c_long(0))
    sys.stdout.flush()
    os._exit(code)


# What is loaded late, and looked up once, is there when the runs begin.
with open(os.devnull, "w") as unseen, contextlib.redirect_stdout(unseen), contextlib.redirect_stderr(unseen):
    train(FOLDER + ".warm")
shutil.rmtree(FOLDER + ".warm")
asked, answered = map(int, os.environ["MODEL_PIPES"].split())
counts = (ctypes.c_long * 2)()
with os.fdopen(asked) as lines, os.fdopen(answered, "w") as answers:
    for line in lines:
        host.failing_host_choose(b"", ctypes.c_long(0), ctypes.c_long(0))
        child = os.fork()
        if not child:
            run(*line.split())
        _, status = os.waitpid(child, 0)
        host.failing_host_counts(counts)
        print(status, *counts, file=answers, flush=True)
