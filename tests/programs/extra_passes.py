"""A training step in which one side evaluates once more, or runs a micro-batch twice, beside a fault.

    python extra_passes.py FOLDER WORD...    # FOLDER/WORD.lb: a step of two micro-batches

A word is SIDE-EXTRA-FAULT: library or other (states_apart.py), an evaluation under no_grad before, between (forward and backward) or after (the update), one
on the batch of the step itself (same), a micro-batch twice (repeated), or none; a fault of the side, also of the library's."""

import pathlib
import sys

import lastbit.torch
import torch
from states_apart import Trainer, batch, carried_over, loss_of


def evaluate(trainer, n):
    with torch.no_grad():
        return loss_of(trainer.model(batch(n)), batch(n))


def step(trainer, n, extra):
    if extra == "before":
        evaluate(trainer, 100 + n)
    if extra == "same":
        evaluate(trainer, n)
    for part in batch(n).chunk(2):
        loss = loss_of(trainer.model(part), part) / 2
        if extra == "between":
            evaluate(trainer, 100 + n)
        loss.backward()
    if extra == "repeated":
        (loss_of(trainer.model(part), part) / 2).backward()
    trainer.optimizer.step()
    if extra == "after":
        evaluate(trainer, 100 + n)
    for p in trainer.learnt.values():
        p.grad = None
    return loss


def record(folder, word):
    side, extra, fault = (*word.split("-"), "none", "none")[:3]
    trainer = Trainer(side, "adamw", None if fault == "none" else fault)
    first = Trainer("library", "adamw")
    weights = {name: p.detach() for name, p in first.learnt.items()}
    if side == "other":
        weights = carried_over(weights)
    trainer.take(weights, {}, 0)
    with lastbit.torch.capture(str(folder / f"{word}.lb"), level="ops") as capture:
        with capture.step(0):
            capture.scalar("loss", step(trainer, 0, extra))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for word in sys.argv[2:]:
        record(pathlib.Path(sys.argv[1]), word)
