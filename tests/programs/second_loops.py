"""Training loops written twice (written_twice.py): clipping, micro-batches, a schedule, decay, a scaled loss; two steps each."""

import pathlib
import sys

import lastbit.torch
import torch
import torch.nn.functional as F
import written_twice
from second_losses import draw_batches, start
from torch import nn


def loss_of(model, tokens):
    x = model.embed(tokens[:, :-1])
    block = model.blocks[0]
    x = x + block.down(F.gelu(block.up(block.between(x))))
    return F.cross_entropy(model.head(model.norm(x)).flatten(0, 1), tokens[:, 1:].flatten())


# ruff: noqa
def clip(model, opt, tokens, step):
    opt.zero_grad()
    loss = loss_of(model, tokens)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    opt.step()
    loss.item()


def clip_second(model, opt, tokens, step):
    opt.zero_grad()
    loss = loss_of(model, tokens)
    loss.backward()
    total = 0
    for p in model.parameters():
        if p.grad is None:
            continue
        total = total + p.grad.pow(2).sum()
    norm = total.sqrt()
    scale = 0.5 / (norm + 1e-6)
    scale = torch.clamp(scale, max=1.0)
    for p in model.parameters():
        if p.grad is not None:
            p.grad.mul_(scale)
    opt.step()
    loss.item()


def accum(model, opt, tokens, step):
    opt.zero_grad()
    for half in tokens.chunk(2):
        loss = loss_of(model, half) / 2
        loss.backward()
    opt.step()
    loss.item()


def accum_second(model, opt, tokens, step):
    for p in model.parameters():
        p.grad = None
    halves = [tokens[:2], tokens[2:]]
    for half in halves:
        loss_of(model, half).backward()
    for p in model.parameters():
        if p.grad is not None:
            p.grad.div_(2)
    opt.step()


def whole(model, opt, tokens, step):
    opt.zero_grad()
    loss = loss_of(model, tokens)
    loss.backward()
    opt.step()
    loss.item()


def whole_second(model, opt, tokens, step):
    opt.zero_grad()
    total = 0
    for row in tokens:
        total = total + loss_of(model, row[None]) / 4
    total.backward()
    opt.step()
    total.item()


def warm(model, opt, tokens, step):
    for g in opt.param_groups:
        g["lr"] = 1e-2 * min(1, (step + 1) / 4)
    opt.zero_grad()
    loss_of(model, tokens).backward()
    opt.step()


def warm_second(model, opt, tokens, step):
    opt.zero_grad(set_to_none=False)
    loss = loss_of(model, tokens)
    loss.backward()
    rate = (step + 1) / 4 * 0.01
    opt.param_groups[0]["lr"] = rate
    opt.step()


def decay(model, opt, tokens, step):
    opt.param_groups[0]["weight_decay"] = 0.0
    opt.zero_grad()
    loss = loss_of(model, tokens)
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1 - 1e-2 * 0.1)
    opt.step()


def decay_second(model, opt, tokens, step):
    opt.param_groups[0]["weight_decay"] = 0.1
    opt.zero_grad()
    loss_of(model, tokens).backward()
    for p in model.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    opt.step()


def value(model, opt, tokens, step):
    opt.zero_grad()
    loss_of(model, tokens).backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.01)
    opt.step()


def value_second(model, opt, tokens, step):
    opt.zero_grad()
    loss_of(model, tokens).backward()
    for p in model.parameters():
        if p.grad is None:
            continue
        p.grad = torch.minimum(torch.maximum(p.grad, torch.tensor(-0.01)), torch.tensor(0.01))
    opt.step()


def scaled(model, opt, tokens, step):
    opt.zero_grad()
    loss = loss_of(model, tokens)
    loss.backward()
    opt.step()


def scaled_second(model, opt, tokens, step):
    opt.zero_grad()
    (loss_of(model, tokens) * 1024).backward()
    for p in model.parameters():
        if p.grad is not None:
            p.grad /= 1024
    opt.step()


def frozen(model, opt, tokens, step):
    opt.zero_grad()
    loss = loss_of(model, tokens)
    loss.backward()
    model.embed.weight.grad = None
    opt.step()


def frozen_second(model, opt, tokens, step):
    opt.zero_grad()
    model.embed.weight.requires_grad_(False)
    loss_of(model, tokens).backward()
    opt.step()


FAULTS = {
    "clip": {"max": ("0.5 /", "0.1 /"), "l1": ("p.grad.pow(2).sum()", "p.grad.abs().sum()"), "eps": ("1e-6", "1e-2")},
    "accum": {
        "nodiv": ("p.grad.div_(2)", "p.grad.div_(1)"),
        "last": ("loss_of(model, half).backward()", "model.zero_grad(); loss_of(model, half).backward()"),
        "same": ("[tokens[:2], tokens[2:]]", "[tokens[:2], tokens[:2]]"),
    },
    "whole": {"quarter": ("/ 4", "/ 2"), "drop": ("for row in tokens:", "for row in tokens[:3]:")},
    "warm": {"off": ("(step + 1) / 4", "step / 4 + 0.1"), "peak": ("* 0.01", "* 0.02")},
    "decay": {"coefficient": ("= 0.1", "= 0.2")},
    "value": {"max": ("torch.tensor(0.01))", "torch.tensor(0.02))"), "onesided": ("torch.maximum(p.grad, torch.tensor(-0.01))", "p.grad")},
    "scaled": {"unscaled": ("/= 1024", "/= 512")},
    "frozen": {"other": ("model.embed.weight", "model.head.weight")},
}


def main(folder, words):
    for word in words:
        loop = written_twice.function_of(sys.modules[__name__], word)
        model, _, optimizer = start()
        with lastbit.torch.capture(str(folder / f"{word}.lb"), level="ops") as capture:
            for step, (tokens, _, _) in enumerate(draw_batches()):
                with capture.step(step):
                    loop(model, optimizer, tokens, step)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
