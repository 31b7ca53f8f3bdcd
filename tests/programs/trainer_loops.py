"""Training loops as trainers spell them, each of two authors (written_twice.py); two steps each.

A loop is a function of the model, its optimizer, the tokens, the step, and a dictionary that outlives the step (averages, buffers, a schedule)."""

import math
import pathlib
import sys

import lastbit.torch
import second_losses
import torch
import torch.nn.functional as F
import written_twice
from second_losses import draw_batches
from second_loops import loss_of
from torch import nn


def logits_of(model, tokens):
    x = model.embed(tokens[:, :-1])
    block = model.blocks[1]
    x = x + block.down(F.silu(block.up(block.before(x))))
    return model.head(model.norm(x)).flatten(0, 1)


def used(model):
    return [p for p in model.parameters() if p.grad is not None]


def weights_of(model):
    """Of what loss_of reads."""
    block = model.blocks[0]
    return [model.embed.weight, block.up.weight, block.up.bias, block.down.weight, block.down.bias, model.head.weight]


# ruff: noqa
def micro_steps(model, opt, tokens, step, kept):
    def get_lr(it):
        if it < 1:
            return 0.02 * (it + 1) / (1 + 1)
        ratio = (it - 1) / (10 - 1)
        return 0.002 + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (0.02 - 0.002)

    for group in opt.param_groups:
        group["lr"] = get_lr(step)
    for part in tokens.split(2):
        logits = logits_of(model, part)
        loss = F.cross_entropy(logits, part[:, 1:].flatten())
        loss = loss / 2
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 2.5)
    opt.step()
    opt.zero_grad(set_to_none=True)


def micro_steps_second(model, opt, tokens, step, kept):
    warm = (step + 1) / 2
    decayed = 0.002 + 0.009 * (1 + math.cos(math.pi * (step - 1) / 9))
    opt.param_groups[0]["lr"] = 0.02 * warm if step < 1 else decayed
    opt.zero_grad()
    for i in range(2):
        rows = tokens[2 * i : 2 * i + 2]
        logp = logits_of(model, rows).log_softmax(-1)
        nll = -logp.gather(1, rows[:, 1:].reshape(-1, 1)).mean()
        (nll * 0.5).backward()
    total = torch.stack([p.grad.square().sum() for p in used(model)]).sum().sqrt()
    coefficient = torch.clamp(2.5 / (total + 1e-6), max=1.0)
    for p in used(model):
        p.grad = p.grad * coefficient
    opt.step()


def items(model, opt, tokens, step, kept):
    count = sum((part[:, 1:] > 9).sum() for part in tokens.split([1, 3]))
    for part in tokens.split([1, 3]):
        labels = part[:, 1:].masked_fill(part[:, 1:] <= 9, -100)
        loss = F.cross_entropy(logits_of(model, part), labels.flatten(), reduction="sum") / count
        loss.backward()
    opt.step()
    opt.zero_grad()


def items_second(model, opt, tokens, step, kept):
    opt.zero_grad()
    seen = 0
    for part in (tokens[:1], tokens[1:]):
        targets = part[:, 1:].flatten()
        keep = targets > 9
        losses = F.cross_entropy(logits_of(model, part), targets, reduction="none")
        (losses * keep).sum().backward()
        seen = seen + keep.sum()
    for p in used(model):
        p.grad.div_(seen)
    opt.step()


def unscaled(model, opt, tokens, step, kept):
    opt.zero_grad()
    loss = loss_of(model, tokens)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 2.5)
    opt.step()


def unscaled_second(model, opt, tokens, step, kept):
    opt.zero_grad()
    loss = loss_of(model, tokens) * 512.0
    loss.backward()
    gradients = [p.grad for p in used(model)]
    for g in gradients:
        g.mul_(1 / 512)
    norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in gradients]))
    for g in gradients:
        g.mul_(torch.clamp(2.5 / (norm + 1e-6), max=1.0))
    opt.step()


def averaged(model, opt, tokens, step, kept):
    ema = kept.setdefault("ema", [p.detach().clone() for p in model.parameters()])
    opt.zero_grad()
    loss_of(model, tokens).backward()
    opt.step()
    with torch.no_grad():
        for e, p in zip(ema, model.parameters()):
            e.lerp_(p, 1 - 0.9)


def averaged_second(model, opt, tokens, step, kept):
    if not kept:
        kept.update({name: p.detach().clone() for name, p in model.named_parameters()})
    loss = loss_of(model, tokens)
    opt.zero_grad()
    loss.backward()
    opt.step()
    decay = 0.9
    for name, p in model.named_parameters():
        kept[name].mul_(decay)
        kept[name].add_(p.detach() * 0.1)


def scheduled(model, opt, tokens, step, kept):
    if not kept:
        kept["schedule"] = torch.optim.lr_scheduler.LambdaLR(opt, lambda it: (it + 1) / 3 if it < 3 else max(0.0, (10 - it) / 7))
    loss_of(model, tokens).backward()
    opt.step()
    kept["schedule"].step()
    opt.zero_grad()


def scheduled_second(model, opt, tokens, step, kept):
    opt.zero_grad()
    loss_of(model, tokens).backward()
    progress = min((step + 1) / 3, 1.0)
    for group in opt.param_groups:
        group["lr"] = 0.01 * progress
    opt.step()


def descent(model, opt, tokens, step, kept):
    model.zero_grad()
    for part in tokens.chunk(2):
        (loss_of(model, part) / 2).backward()
    with torch.no_grad():
        for p in weights_of(model):
            p -= 0.1 * (p.grad + 0.01 * p)


def descent_second(model, opt, tokens, step, kept):
    weights = weights_of(model)
    total = [torch.zeros_like(w) for w in weights]
    for part in (tokens[:2], tokens[2:]):
        gradients = torch.autograd.grad(loss_of(model, part), weights)
        for t, g in zip(total, gradients):
            t.add_(g)
    for w, t in zip(weights, total):
        decayed = w.detach() * 0.999
        w.data = decayed - 0.05 * t


def adam(model, opt, tokens, step, kept):
    weights = weights_of(model)
    if not kept:
        kept["m"], kept["v"] = [torch.zeros_like(w) for w in weights], [torch.zeros_like(w) for w in weights]
    model.zero_grad()
    for part in tokens.chunk(2):
        (loss_of(model, part) / 2).backward()
    with torch.no_grad():
        for w, m, v in zip(weights, kept["m"], kept["v"]):
            m.mul_(0.9).add_(w.grad, alpha=0.1)
            v.mul_(0.99).addcmul_(w.grad, w.grad, value=0.01)
            above, below = m / (1 - 0.9 ** (step + 1)), (v / (1 - 0.99 ** (step + 1))).sqrt() + 1e-6
            w.addcdiv_(above, below, value=-0.01)


def adam_second(model, opt, tokens, step, kept):
    names = weights_of(model)
    one, two = tokens[:2], tokens[2:]
    loss = 0.5 * loss_of(model, one) + 0.5 * loss_of(model, two)
    gradients = torch.autograd.grad(loss, names)
    for i, (w, g) in enumerate(zip(names, gradients)):
        first, second = kept.get(i, (torch.zeros_like(w), torch.zeros_like(w)))
        first = first + 0.1 * (g - first)
        second = second + 0.01 * (g * g - second)
        kept[i] = first.detach(), second.detach()
        rate = 0.01 / (1 - 0.9 ** (step + 1))
        root = second.sqrt() / math.sqrt(1 - 0.99 ** (step + 1))
        w.data.sub_(rate * first / (root + 1e-6))


def groups(model, opt, tokens, step, kept):
    if not kept:
        decay = [p for p in model.parameters() if p.dim() >= 2]
        rest = [p for p in model.parameters() if p.dim() < 2]
        kept["opt"] = torch.optim.AdamW([{"params": decay, "weight_decay": 0.2}, {"params": rest, "weight_decay": 0.0}], lr=5e-3)
    model.zero_grad()
    loss_of(model, tokens).backward()
    kept["opt"].step()


def groups_second(model, opt, tokens, step, kept):
    opt.zero_grad()
    loss_of(model, tokens).backward()
    for g in opt.param_groups:
        g["weight_decay"], g["lr"] = 0.0, 5e-3
    for p in used(model):
        matrix = p.dim() >= 2
        p.data.mul_(1 - 5e-3 * 0.2 * matrix)
    opt.step()


def main_grads(model, opt, tokens, step, kept):
    opt.zero_grad()
    for part in tokens.chunk(4):
        loss = loss_of(model, part) / 4
        loss.backward()
    opt.step()


def main_grads_second(model, opt, tokens, step, kept):
    buffers = {}
    for row in tokens:
        loss_of(model, row[None]).backward()
        for p in used(model):
            buffers[p] = buffers[p] + p.grad if p in buffers else p.grad.clone()
            p.grad = None
    for p, total in buffers.items():
        p.grad = total / len(tokens)
    opt.step()
    opt.zero_grad()


def each_clipped(model, opt, tokens, step, kept):
    opt.zero_grad()
    loss_of(model, tokens).backward()
    for p in used(model):
        nn.utils.clip_grad_norm_([p], 0.5)
    opt.step()


def each_clipped_second(model, opt, tokens, step, kept):
    opt.zero_grad()
    loss_of(model, tokens).backward()
    with torch.no_grad():
        for p in used(model):
            size = p.grad.square().sum().sqrt()
            most = 0.5 / (size + 1e-6)
            p.grad.copy_(p.grad * torch.minimum(most, torch.ones(())))
    opt.step()


def lookahead(model, opt, tokens, step, kept):
    slow = kept.setdefault("slow", [p.detach().clone() for p in model.parameters()])
    opt.zero_grad()
    loss_of(model, tokens).backward()
    opt.step()
    with torch.no_grad():
        for s, p in zip(slow, model.parameters()):
            s.add_(p - s, alpha=0.5)
            p.copy_(s)


def lookahead_second(model, opt, tokens, step, kept):
    opt.zero_grad()
    before = [p.detach().clone() for p in model.parameters()]
    loss_of(model, tokens).backward()
    opt.step()
    for p, b in zip(model.parameters(), before):
        p.data = (p.data + b) * 0.5


FAULTS = {
    "micro_steps": {
        "nodiv": ("(nll * 0.5).backward()", "nll.backward()"),
        "late": ("warm = (step + 1) / 2", "warm = (step + 2) / 2"),
        "norm": ("torch.clamp(2.5 /", "torch.clamp(1.0 /"),
        "firsthalf": ("tokens[2 * i : 2 * i + 2]", "tokens[0:2]"),
    },
    "items": {
        "means": ("(losses * keep).sum().backward()", "((losses * keep).sum() / keep.sum()).backward()"),
        "all": ("seen = seen + keep.sum()", "seen = seen + keep.numel()"),
        "last": ("seen = seen + keep.sum()", "seen = keep.sum()"),
        "unmasked": ("(losses * keep).sum().backward()", "losses.sum().backward()"),
    },
    "unscaled": {
        "kept": ("g.mul_(1 / 512)", "g.mul_(1 / 256)"),
        "before": ("2.5 / (norm + 1e-6)", "2.5 / (512 * norm + 1e-6)"),
        "sum": ("torch.linalg.vector_norm(torch.stack([g.norm() for g in gradients]))", "torch.stack([g.norm() for g in gradients]).sum()"),
    },
    "averaged": {
        "decay": ("decay = 0.9", "decay = 0.99"),
        "new": ("p.detach() * 0.1", "p.detach() * 0.2"),
        "gradient": ("p.detach() * 0.1", "p.detach().sign() * 0.1"),
    },
    "scheduled": {
        "late": ("(step + 1) / 3", "(step + 2) / 3"),
        "peak": ("0.01 * progress", "0.02 * progress"),
        "squared": ("0.01 * progress", "0.01 * progress**2"),
    },
    "descent": {
        "nodiv": ("decayed - 0.05 * t", "decayed - 0.1 * t"),
        "decay": ("w.detach() * 0.999", "w.detach() * 0.99"),
        "last": ("t.add_(g)", "t.copy_(g)"),
        "same": ("(tokens[:2], tokens[2:])", "(tokens[:2], tokens[:2])"),
    },
    "adam": {
        "nodiv": ("0.5 * loss_of(model, one) + 0.5 * loss_of(model, two)", "loss_of(model, one) + loss_of(model, two)"),
        "beta": ("first + 0.1 * (g - first)", "first + 0.2 * (g - first)"),
        "bias": ("rate = 0.01 / (1 - 0.9 ** (step + 1))", "rate = 0.01 / (1 - 0.9 ** (step + 2))"),
        "eps": ("(root + 1e-6)", "(root + 1e-3)"),
        "square": ("(g * g - second)", "(g.abs() - second)"),
    },
    "groups": {
        "norms": ("p.dim() >= 2", "p.dim() >= 1"),
        "decay": ("5e-3 * 0.2 * matrix", "5e-3 * 0.1 * matrix"),
        "lr": ("0.0, 5e-3", "0.0, 4e-3"),
    },
    "main_grads": {
        "sum": ("total / len(tokens)", "total / 1"),
        "last": ("buffers[p] + p.grad if p in buffers else p.grad.clone()", "p.grad.clone()"),
        "kept": ("p.grad = None", "pass"),
    },
    "each_clipped": {
        "most": ("0.5 / (size", "1.0 / (size"),
        "mean": ("p.grad.square().sum().sqrt()", "p.grad.square().mean().sqrt()"),
        "always": ("torch.minimum(most, torch.ones(()))", "most"),
    },
    "lookahead": {
        "alpha": ("(p.data + b) * 0.5", "(p.data + b) * 0.6"),
        "none": ("(p.data + b) * 0.5", "(p.data + b) - b"),
        "old": ("(p.data + b) * 0.5", "p.data * 0.8 + b * 0.2"),
    },
}


def start(word):
    """Adam hides what scales all gradients."""
    model, _, optimizer = second_losses.start()
    if word.split("-")[0] in ("micro_steps", "items", "unscaled", "main_grads", "each_clipped"):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer


def tensors_in(kept):
    if isinstance(kept, torch.Tensor):
        return [kept.detach().flatten()]
    values = kept.values() if isinstance(kept, dict) else kept if isinstance(kept, (list, tuple)) else ()
    return [t for value in values for t in tensors_in(value)]


def final(word, program=None):
    """What two steps in float64 leave: parameters, and averages of them."""
    program = program or sys.modules[__name__]
    torch.set_default_dtype(torch.float64)
    try:
        loop, kept = written_twice.function_of(program, word), {}
        model, optimizer = program.start(word)
        for step, (tokens, _, _) in enumerate(draw_batches()):
            loop(model, optimizer, tokens, step, kept)
        averages = tensors_in(kept) if word.startswith(("averaged", "accelerate")) else []
        return torch.cat([p.detach().flatten() for p in model.parameters()] + averages)
    finally:
        torch.set_default_dtype(torch.float32)


def record_each(program, folder, words):
    for word in words:
        loop = written_twice.function_of(program, word)
        model, optimizer = program.start(word)
        kept = {}
        with lastbit.torch.capture(str(folder / f"{word}.lb"), level="ops") as capture:
            for step, (tokens, _, _) in enumerate(draw_batches()):
                with capture.step(step):
                    loop(model, optimizer, tokens, step, kept)


if __name__ == "__main__":
    record_each(sys.modules[__name__], pathlib.Path(sys.argv[1]), sys.argv[2:])
