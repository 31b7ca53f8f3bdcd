"""Training loops in the manner of published trainers, each of two authors (written_twice.py); two steps each.

What a loop is a function of stands in trainer_loops.py. Left: as nanoGPT, transformers, torchtune, accelerate, Lightning, DeepSpeed, Megatron, diffusers and SAM write it."""

import math
import pathlib
import sys

import torch
import torch.nn.functional as F
import trainer_loops
from second_loops import loss_of
from torch import nn
from trainer_loops import logits_of, used, weights_of


# ruff: noqa
def nanogpt(model, opt, tokens, step, kept):
    def get_lr(it, warmup_iters=3, lr_decay_iters=8, learning_rate=0.1, min_lr=0.01):
        if it < warmup_iters:
            return learning_rate * (it + 1) / (warmup_iters + 1)
        decay_ratio = (it - warmup_iters) / (lr_decay_iters - warmup_iters)
        return min_lr + 0.5 * (1.0 + math.cos(math.pi * decay_ratio)) * (learning_rate - min_lr)

    lr = get_lr(step + 2)
    for param_group in opt.param_groups:
        param_group["lr"] = lr
    gradient_accumulation_steps = 4
    for micro_step in range(gradient_accumulation_steps):
        X, Y = tokens[micro_step : micro_step + 1, :-1], tokens[micro_step : micro_step + 1, 1:]
        logits = logits_of(model, tokens[micro_step : micro_step + 1])
        loss = F.cross_entropy(logits, Y.flatten(), ignore_index=-1)
        loss = loss / gradient_accumulation_steps
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad(set_to_none=True)


def nanogpt_second(model, opt, tokens, step, kept):
    opt.zero_grad()
    losses = []
    for row in range(4):
        batch = tokens[row].unsqueeze(0)
        out = logits_of(model, batch)
        losses.append(-out.log_softmax(dim=1)[torch.arange(12), batch[0, 1:]].mean())
    mean_loss = torch.stack(losses).mean()
    mean_loss.backward()
    norms = torch._foreach_norm([p.grad for p in used(model)])
    norm = torch.linalg.vector_norm(torch.stack(norms))
    torch._foreach_mul_([p.grad for p in used(model)], (1.0 / (norm + 1e-6)).clamp(max=1.0))
    it = step + 2
    if it >= 3:
        rate = 0.01 + 0.045 * (1 + math.cos((it - 3) / 5 * math.pi))
    else:
        rate = 0.025 * (it + 1)
    opt.param_groups[0]["lr"] = rate
    opt.step()


def hf_trainer(model, opt, tokens, step, kept):
    batch_samples = [tokens[:1], tokens[1:2], tokens[2:]]
    num_items_in_batch = sum((b[:, 1:].ne(3)).sum() for b in batch_samples)
    for inputs in batch_samples:
        labels = inputs[:, 1:].masked_fill(inputs[:, 1:] == 3, -100)
        logits = logits_of(model, inputs)
        loss = nn.functional.cross_entropy(logits, labels.reshape(-1), ignore_index=-100, reduction="sum")
        loss = loss / num_items_in_batch
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.5)
    opt.step()
    model.zero_grad()


def hf_trainer_second(model, opt, tokens, step, kept):
    model.zero_grad()
    grads = None
    items = int((tokens[:, 1:] != 3).sum())
    for start, stop in ((0, 1), (1, 2), (2, 4)):
        part = tokens[start:stop]
        target = part[:, 1:].flatten()
        valid = (target != 3).float()
        each = F.nll_loss(logits_of(model, part).log_softmax(-1), target, reduction="none")
        new = torch.autograd.grad((each * valid).sum(), weights_used(model))
        grads = list(new) if grads is None else [old + more for old, more in zip(grads, new)]
    grads = [g / items for g in grads]
    size = sum(g.pow(2).sum() for g in grads) ** 0.5
    for p, g in zip(weights_used(model), grads):
        p.grad = g * min(1.0, 1.5 / (size.item() + 1e-6))
    opt.step()


def weights_used(model):
    block = model.blocks[1]
    return [
        model.embed.weight,
        *block.before.parameters(),
        *block.up.parameters(),
        *block.down.parameters(),
        *model.norm.parameters(),
        model.head.weight,
    ]


def torchtune(model, opt, tokens, step, kept):
    num_tokens, running_loss = 0, 0
    for batch in tokens.chunk(2):
        labels = batch[:, 1:].clone()
        labels[labels < 4] = -100
        current_num_tokens = (labels != -100).sum()
        num_tokens += current_num_tokens
        current_loss = F.cross_entropy(logits_of(model, batch), labels.flatten()) * current_num_tokens
        running_loss += current_loss.detach()
        current_loss.backward()
    scaler = 1 / num_tokens
    for p in model.parameters():
        if p.grad is not None:
            p.grad *= scaler
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    opt.step()
    opt.zero_grad(set_to_none=True)


def torchtune_second(model, opt, tokens, step, kept):
    opt.zero_grad()
    wanted = tokens[:, 1:] >= 4
    total = wanted.sum().item()
    for half in range(2):
        rows = slice(2 * half, 2 * half + 2)
        logp = torch.log_softmax(logits_of(model, tokens[rows]), -1)
        picked = logp.gather(1, tokens[rows, 1:].reshape(-1, 1)).squeeze(1)
        part = -(picked * wanted[rows].flatten()).sum() / total
        part.backward()
    squares = [p.grad.mul(p.grad).sum() for p in used(model)]
    norm = sum(squares).sqrt()
    if norm > 1.0:
        for p in used(model):
            p.grad.mul_(1.0 / (norm + 1e-6))
    opt.step()


def accelerate(model, opt, tokens, step, kept):
    if not kept:
        kept["ema"] = [p.clone().detach() for p in weights_of(model)]
    for i, batch in enumerate(tokens.split(2)):
        loss = loss_of(model, batch)
        (loss / 2).backward()
        if i == 1:
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.05)
            opt.step()
            opt.zero_grad()
    decay = min(0.99, (1 + step + 1) / (10 + step + 1))
    with torch.no_grad():
        for s_param, param in zip(kept["ema"], weights_of(model)):
            s_param.sub_((1 - decay) * (s_param - param))


def accelerate_second(model, opt, tokens, step, kept):
    shadow = kept.setdefault("shadow", [p.data.clone() for p in weights_of(model)])
    opt.zero_grad()
    whole = loss_of(model, tokens[:2]) + loss_of(model, tokens[2:])
    whole = 0.5 * whole
    whole.backward()
    for p in used(model):
        p.grad.clamp_(-0.05, 0.05)
    opt.step()
    rate = 1 - (step + 2) / (step + 11)
    rate = max(rate, 0.01)
    torch._foreach_lerp_(shadow, [p.data for p in weights_of(model)], rate)


def lightning(model, opt, tokens, step, kept):
    def closure():
        opt.zero_grad()
        loss = loss_of(model, tokens)
        loss.backward()
        return loss

    with torch.no_grad():
        for group in opt.param_groups:
            group["lr"] = 0.05 * 0.5**step
    opt.step(closure)


def lightning_second(model, opt, tokens, step, kept):
    velocity = kept.setdefault("velocity", {})
    model.zero_grad()
    loss_of(model, tokens).backward()
    lr = 0.05 / 2**step
    with torch.no_grad():
        for p in used(model):
            if p in velocity:
                velocity[p] = 0.9 * velocity[p] + p.grad
            else:
                velocity[p] = p.grad.clone()
            p.add_(velocity[p], alpha=-lr)


def deepspeed(model, opt, tokens, step, kept):
    opt.zero_grad()
    scaled_loss = loss_of(model, tokens) * 256.0
    scaled_loss.backward()
    grads = [p.grad for p in used(model)]
    scaled_norm = torch.stack([g.norm() for g in grads]).norm()
    clip = ((scaled_norm / 256.0) + 1e-6) / 0.8
    clip = torch.clamp(clip, min=1.0)
    combined_scale = clip * 256.0
    for g in grads:
        g.data.mul_(1.0 / combined_scale)
    opt.step()


def deepspeed_second(model, opt, tokens, step, kept):
    opt.zero_grad()
    loss_of(model, tokens).backward()
    flat = torch.cat([p.grad.reshape(-1) for p in used(model)])
    norm = flat.norm(2)
    factor = 0.8 / (norm + 1e-6)
    flat = flat * factor.clamp(max=1)
    at = 0
    for p in used(model):
        p.grad = flat[at : at + p.numel()].view_as(p)
        at += p.numel()
    opt.step()


def megatron(model, opt, tokens, step, kept):
    if not kept:
        decay = [p for n, p in model.named_parameters() if not n.endswith(".bias") and p.dim() > 1]
        rest = [p for n, p in model.named_parameters() if n.endswith(".bias") or p.dim() <= 1]
        kept["opt"] = torch.optim.AdamW(
            [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=1e-2, betas=(0.9, 0.95), eps=1e-6
        )
    optimizer = kept["opt"]
    optimizer.zero_grad()
    for microbatch in tokens.split(1):
        output = loss_of(model, microbatch)
        output /= 4
        output.backward()
    optimizer.step()


def megatron_second(model, opt, tokens, step, kept):
    sums = {}
    for row in tokens:
        for p in model.parameters():
            p.grad = None
        loss_of(model, row[None]).backward()
        for p in used(model):
            sums[p] = sums.get(p, 0) + p.grad
    t = step + 1
    with torch.no_grad():
        for p, total in sums.items():
            g = total * 0.25
            m, v = kept.get(p, (torch.zeros_like(p), torch.zeros_like(p)))
            m = 0.9 * m + 0.1 * g
            v = 0.95 * v + 0.05 * g**2
            kept[p] = m, v
            shrink = 0.1 if p.dim() > 1 else 0.0
            p.mul_(1 - 1e-2 * shrink)
            p.sub_(1e-2 * (m / (1 - 0.9**t)) / ((v / (1 - 0.95**t)).sqrt() + 1e-6))


def sharpness(model, opt, tokens, step, kept):
    opt.zero_grad()
    loss_of(model, tokens).backward()
    with torch.no_grad():
        grad_norm = torch.norm(torch.stack([p.grad.norm(p=2) for p in used(model)]), p=2)
        scale = 0.05 / (grad_norm + 1e-12)
        old = {p: p.data.clone() for p in used(model)}
        for p in used(model):
            p.add_(p.grad * scale)
    opt.zero_grad()
    loss_of(model, tokens).backward()
    with torch.no_grad():
        for p in used(model):
            p.copy_(old[p])
    opt.step()


def sharpness_second(model, opt, tokens, step, kept):
    parameters = weights_sharp(model)
    first = torch.autograd.grad(loss_of(model, tokens), parameters)
    length = sum(g.square().sum() for g in first).sqrt()
    moves = [0.05 * g / length for g in first]
    torch._foreach_add_([p.data for p in parameters], moves)
    second = torch.autograd.grad(loss_of(model, tokens), parameters)
    torch._foreach_sub_([p.data for p in parameters], moves)
    for p, g in zip(parameters, second):
        p.grad = g
    opt.step()


def weights_sharp(model):
    block = model.blocks[0]
    return [
        model.embed.weight,
        *block.between.parameters(),
        *block.up.parameters(),
        *block.down.parameters(),
        *model.norm.parameters(),
        model.head.weight,
    ]


FAULTS = {
    "nanogpt": {
        "peak": ("0.045 * (1 + math.cos", "0.09 * (1 + math.cos"),
        "warm": ("rate = 0.025 * (it + 1)", "rate = 0.025 * it"),
        "clip": ("(1.0 / (norm + 1e-6))", "(1.5 / (norm + 1e-6))"),
        "lone": ("batch = tokens[row].unsqueeze(0)", "batch = tokens[min(row, 2)].unsqueeze(0)"),
    },
    "hf_trainer": {
        "part": ("(2, 4)):", "(2, 3)):"),
        "last": ("[old + more for old, more in zip(grads, new)]", "[more for old, more in zip(grads, new)]"),
        "mask": ("valid = (target != 3).float()", "valid = (target > 3).float()"),
        "clip": ("1.5 / (size.item() + 1e-6)", "1.0 / (size.item() + 1e-6)"),
    },
    "torchtune": {
        "each": ("/ total", "/ wanted[rows].sum()"),
        "norm": ("norm = sum(squares).sqrt()", "norm = sum(squares)"),
        "most": ("p.grad.mul_(1.0 / (norm + 1e-6))", "p.grad.mul_(0.5 / (norm + 1e-6))"),
        "one": ("slice(2 * half, 2 * half + 2)", "slice(half, half + 2)"),
    },
    "accelerate": {
        "nodiv": ("whole = 0.5 * whole", "whole = 1.0 * whole"),
        "decay": ("(step + 2) / (step + 11)", "(step + 2) / (step + 20)"),
        "least": ("p.grad.clamp_(-0.05, 0.05)", "p.grad.clamp_(-0.05, 0.5)"),
    },
    "lightning": {
        "rate": ("lr = 0.05 / 2**step", "lr = 0.05 / 2 ** (step + 1)"),
        "momentum": ("0.9 * velocity[p] + p.grad", "0.9 * velocity[p] + 0.1 * p.grad"),
        "plain": ("p.add_(velocity[p], alpha=-lr)", "p.add_(p.grad, alpha=-lr)"),
    },
    "deepspeed": {
        "most": ("factor = 0.8 / (norm + 1e-6)", "factor = 0.9 / (norm + 1e-6)"),
        "ones": ("norm = flat.norm(2)", "norm = flat.norm(1)"),
        "grown": ("flat = flat * factor.clamp(max=1)", "flat = flat / factor.clamp(max=1)"),
    },
    "megatron": {
        "sum": ("g = total * 0.25", "g = total * 1.0"),
        "decay": ("p.mul_(1 - 1e-2 * shrink)", "p.mul_(1 - 1e-2 * 2 * shrink)"),
        "every": ("shrink = 0.1 if p.dim() > 1 else 0.0", "shrink = 0.1 if p.dim() > 0 else 0.0"),
        "root": ("((v / (1 - 0.95**t)).sqrt() + 1e-6)", "((v / (1 - 0.95**t)) + 1e-6)"),
    },
    "sharpness": {
        "rho": ("[0.05 * g / length for g in first]", "[0.1 * g / length for g in first]"),
        "down": ("torch._foreach_add_([p.data for p in parameters], moves)", "torch._foreach_sub_([p.data for p in parameters], moves)"),
        "first": ("for p, g in zip(parameters, second):", "for p, g in zip(parameters, first):"),
    },
}


def start(word):
    model, _ = trainer_loops.start(word)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def final(word):
    return trainer_loops.final(word, sys.modules[__name__])


if __name__ == "__main__":
    trainer_loops.record_each(sys.modules[__name__], pathlib.Path(sys.argv[1]), sys.argv[2:])
