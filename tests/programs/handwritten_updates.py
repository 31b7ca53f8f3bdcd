"""Optimizers written by hand, each by two authors (written_twice.py); two steps each. A fault is a number, an op or a turn of the second."""

import math
import pathlib
import sys

import torch
import trainer_loops
import written_twice
from second_loops import loss_of
from trainer_loops import start, weights_of


def matrices_of(model):
    return [w for w in weights_of(model) if w.dim() == 2]


def gradients(model, opt, tokens):
    opt.zero_grad()
    loss_of(model, tokens).backward()


# ruff: noqa
def muon(model, opt, tokens, step, kept):
    def orthogonal(g):
        a, b, c = 3.4445, -4.7750, 2.0315
        x = g / (g.norm() + 1e-7)
        if g.size(0) > g.size(1):
            x = x.mT
        for _ in range(5):
            gram = x @ x.mT
            x = a * x + (b * gram + c * gram @ gram) @ x
        return x.mT if g.size(0) > g.size(1) else x

    gradients(model, opt, tokens)
    with torch.no_grad():
        for w in matrices_of(model):
            buffer = kept.setdefault(w, torch.zeros_like(w))
            buffer.lerp_(w.grad, 1 - 0.95)
            update = orthogonal(w.grad.lerp(buffer, 0.95))
            update *= max(1, w.size(0) / w.size(1)) ** 0.5
            w.mul_(1 - 0.02 * 0.1)
            w.add_(update, alpha=-0.02)


def muon_second(model, opt, tokens, step, kept):
    gradients(model, opt, tokens)
    for i, w in enumerate(matrices_of(model)):
        g = w.grad
        first = kept.get(i, torch.zeros_like(g))
        first = 0.95 * first + 0.05 * g
        kept[i] = first
        x = 0.95 * first + 0.05 * g
        tall = x.shape[0] > x.shape[1]
        x = x.t() if tall else x
        x = x / (torch.linalg.norm(x) + 1e-7)
        for _ in range(5):
            gram = torch.mm(x, x.t())
            poly = torch.addmm(gram, gram, gram, beta=-4.7750, alpha=2.0315)
            x = torch.addmm(x, poly, x, beta=3.4445)
        x = x.t() if tall else x
        x = x * math.sqrt(max(1.0, w.shape[0] / w.shape[1]))
        w.data.sub_(0.02 * x + 0.002 * w.data)


def adamw(model, opt, tokens, step, kept):
    gradients(model, opt, tokens)
    with torch.no_grad():
        for w in weights_of(model):
            m, v = kept.setdefault(w, (torch.zeros_like(w), torch.zeros_like(w)))
            m.lerp_(w.grad, 0.1)
            v.mul_(0.98).addcmul_(w.grad, w.grad, value=0.02)
            w.mul_(1 - 0.01 * 0.1)
            below = (v.sqrt() / math.sqrt(1 - 0.98 ** (step + 1))).add_(1e-5)
            w.addcdiv_(m, below, value=-0.01 / (1 - 0.9 ** (step + 1)))


def adamw_second(model, opt, tokens, step, kept):
    gradients(model, opt, tokens)
    for i, w in enumerate(weights_of(model)):
        g = w.grad.detach()
        m, v = kept.get(i, (0 * g, 0 * g))
        m = 0.9 * m + 0.1 * g
        v = 0.98 * v + 0.02 * g.square()
        kept[i] = m, v
        hat = m / (1 - 0.9 ** (step + 1))
        root = torch.sqrt(v / (1 - 0.98 ** (step + 1)))
        move = hat / (root + 1e-5)
        w.data -= 0.01 * (move + 0.1 * w.data)


def lion(model, opt, tokens, step, kept):
    gradients(model, opt, tokens)
    with torch.no_grad():
        for w in weights_of(model):
            m = kept.setdefault(w, torch.ones_like(w) * 1e-3)
            w.mul_(1 - 0.003 * 0.2)
            update = m.clone().mul_(0.9).add(w.grad, alpha=0.1).tanh_()
            w.add_(update, alpha=-0.003)
            m.mul_(0.99).add_(w.grad, alpha=0.01)


def lion_second(model, opt, tokens, step, kept):
    gradients(model, opt, tokens)
    for i, w in enumerate(weights_of(model)):
        if i not in kept:
            kept[i] = torch.full_like(w.data, 1e-3)
        c = torch.lerp(kept[i], w.grad, 0.1)
        shrunk = w.data * 0.9994
        w.data.copy_(shrunk - 0.003 * torch.tanh(c))
        kept[i] = torch.lerp(kept[i], w.grad, 0.01)


def adafactor(model, opt, tokens, step, kept):
    gradients(model, opt, tokens)
    with torch.no_grad():
        for w in matrices_of(model):
            squares = w.grad.square() + 1e-10
            rows, columns = squares.mean(1), squares.mean(0)
            factor = (rows / rows.mean()).unsqueeze(1) * columns.unsqueeze(0)
            update = w.grad / factor.sqrt()
            rms = update.norm() / update.numel() ** 0.5
            update.div_(torch.clamp(rms / 0.5, min=1.0))
            w.sub_(update, alpha=0.01)


def adafactor_second(model, opt, tokens, step, kept):
    gradients(model, opt, tokens)
    for w in matrices_of(model):
        squares = w.grad * w.grad + 1e-10
        by_row = squares.mean(dim=1, keepdim=True)
        by_column = squares.mean(dim=0, keepdim=True)
        scale = torch.rsqrt(by_row / by_row.mean()) * torch.rsqrt(by_column)
        update = w.grad * scale
        rms = torch.sqrt(torch.mean(update * update))
        update = update / torch.maximum(rms / 0.5, torch.ones(()))
        w.data.add_(update, alpha=-0.01)


FAULTS = {
    "muon": {
        "quintic": ("alpha=2.0315", "alpha=2.0135"),
        "linear": ("beta=3.4445", "beta=3.4455"),
        "cubic": ("beta=-4.7750", "beta=-4.7570"),
        "turns": ("range(5)", "range(6)"),
        "shape": ("x = x * math.sqrt(max(1.0, w.shape[0] / w.shape[1]))", "pass"),
        "plain": ("x = 0.95 * first + 0.05 * g", "x = first"),
        "decay": ("0.002 * w.data", "0.004 * w.data"),
        "rate": ("0.02 * x", "0.03 * x"),
    },
    "adamw": {
        "first": ("m = 0.9 * m + 0.1 * g", "m = 0.9 * m + 0.2 * g"),
        "second": ("0.02 * g.square()", "0.01 * g.square()"),
        "uncorrected": ("hat = m / (1 - 0.9 ** (step + 1))", "hat = m"),
        "eps": ("root + 1e-5", "root + 1e-3"),
        "decay": ("0.1 * w.data", "0.01 * w.data"),
        "coupled": ("g = w.grad.detach()", "g = w.grad.detach() + 0.1 * w.data"),
    },
    "lion": {
        "mixed": ("torch.lerp(kept[i], w.grad, 0.1)", "torch.lerp(kept[i], w.grad, 0.2)"),
        "decay": ("w.data * 0.9994", "w.data * 0.994"),
        "kept": ("kept[i] = torch.lerp(kept[i], w.grad, 0.01)", "kept[i] = torch.lerp(kept[i], w.grad, 0.05)"),
        "rate": ("0.003 * torch.tanh", "0.03 * torch.tanh"),
        "raw": ("torch.tanh(c)", "torch.sigmoid(c)"),
    },
    "adafactor": {
        "clip": ("rms / 0.5", "rms / 1.0"),
        "axis": ("torch.rsqrt(by_column)", "torch.rsqrt(by_row)"),
        "rate": ("alpha=-0.01", "alpha=-0.1"),
        "floor": ("w.grad * w.grad + 1e-10", "w.grad * w.grad + 1e-4"),
    },
}


def final(word):
    return trainer_loops.final(word, sys.modules[__name__])


if __name__ == "__main__":
    trainer_loops.record_each(sys.modules[__name__], pathlib.Path(sys.argv[1]), sys.argv[2:])
