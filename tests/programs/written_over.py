"""failure_families.py's model, in which a parameter or a buffer is written over: python written_over.py HOW NAME STEP train|serve

train: between two of four steps. serve: before one of four forward passes without gradients, in a program that never trains."""

import sys

import failure_families
import numpy
import torch

INF = float("inf")
WRITES = {
    "element": lambda p: p.data.view(-1).__setitem__(3, INF),
    "row": lambda p: p.data.__setitem__(-1, INF),
    "times infinity": lambda p: p.data.mul_(INF),
    "filled": lambda p: p.data.view(-1)[1:3].fill_(INF),
    "copied from numpy": lambda p: p.data.copy_(torch.from_numpy(numpy.full(tuple(p.shape), numpy.nan, numpy.float32))),
    "unseen": lambda p: p.data.numpy().reshape(-1).__setitem__(2, INF),
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    how, name, step, what = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    run = failure_families.Run()
    over = dict(run.model.named_parameters()) | dict(run.model.named_buffers())
    failure_families.at(run, lambda: WRITES[how](over[name]), step)
    if what == "train":
        run.train()
    else:
        with torch.no_grad():
            for n, batch in enumerate(run.batches):
                run.before(n)
                run.model(batch[:, :-1])
