"""Losses as a library gives them and as people write them again (written_twice.py); two steps each.

A loss is a function of the model, a frozen other one, inputs, targets (and labels: the same, -100 where the mask is not), the mask, and normal numbers.
"""

import math
import pathlib
import sys

import lastbit.torch
import torch
import torch.nn.functional as F
import written_twice
from torch import nn

VOCABULARY, WIDTH, LENGTH, BATCH = 40, 16, 12, 4
V, T, B = VOCABULARY, LENGTH, BATCH


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.register_buffer("later", torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1))

    def forward(self, x):
        q, k, v = (t.view(BATCH, LENGTH, 2, -1).transpose(1, 2) for t in self.qkv(self.before(x)).chunk(3, -1))
        weights = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(self.later, -math.inf).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(VOCABULARY, WIDTH), nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head, self.value = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False), nn.Linear(WIDTH, 1)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        self.hidden = self.norm(x)
        return self.head(self.hidden)


# ruff: noqa


def cross_entropy(model, other, inputs, targets, labels, mask, extra):
    logits = model(inputs)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def cross_entropy_second(model, other, inputs, targets, labels, mask, extra):
    logits = model(inputs)
    logp = logits.log_softmax(-1)
    picked = logp.gather(-1, targets[..., None])[..., 0]
    kept = picked * mask
    return -kept.sum() / mask.sum()


def masked_cross_entropy(model, other, inputs, targets, labels, mask, extra):
    logits = model(inputs)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def masked_cross_entropy_second(model, other, inputs, targets, labels, mask, extra):
    logits = model(inputs)
    top = logits.amax(-1, keepdim=True).detach()
    lse = (logits - top).exp().sum(-1).log() + top[..., 0]
    at = logits.gather(-1, targets[..., None]).squeeze(-1)
    per_token = torch.where(mask, lse - at, torch.zeros(()))
    return per_token.sum() / mask.sum()


def label_smoothing(model, other, inputs, targets, labels, mask, extra):
    logits = model(inputs)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)


def label_smoothing_second(model, other, inputs, targets, labels, mask, extra):
    logp = F.log_softmax(model(inputs), -1)
    nll = -logp.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    flat = -logp.mean(-1)
    both = 0.9 * nll + 0.1 * flat
    return both[mask].mean()


def z_loss(model, other, inputs, targets, labels, mask, extra):
    logits = model(inputs)
    z = torch.logsumexp(logits, -1)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten()) + 1e-2 * z.pow(2).mean()


def z_loss_second(model, other, inputs, targets, labels, mask, extra):
    logits = model(inputs)
    z = logits.exp().sum(-1).log()
    per = (z - logits.gather(-1, targets[..., None])[..., 0]) * mask
    zl = z.square().mean()
    return per.sum() / mask.sum() + 0.01 * zl


def focal(model, other, inputs, targets, labels, mask, extra):
    logits = model(inputs)
    ce = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    p = torch.exp(-ce)
    return ((1 - p) ** 2 * ce).mean()


def focal_second(model, other, inputs, targets, labels, mask, extra):
    probabilities = model(inputs).softmax(-1)
    at = probabilities.gather(-1, targets[..., None])
    weight = (1.0 - at).pow(2.0)
    return (-weight * at.log()).mean()


def distillation(model, other, inputs, targets, labels, mask, extra):
    student = model(inputs)
    with torch.no_grad():
        teacher = other(inputs)
    kl = F.kl_div(F.log_softmax(student / 2, -1), F.log_softmax(teacher / 2, -1), log_target=True, reduction="none").sum(-1)
    return 4 * kl.mean() * 0.5 + 0.5 * F.cross_entropy(student.flatten(0, 1), targets.flatten())


def distillation_second(model, other, inputs, targets, labels, mask, extra):
    s = model(inputs)
    with torch.no_grad():
        t = other(inputs)
    p = torch.softmax(t * 0.5, -1)
    logq = torch.log_softmax(s * 0.5, -1)
    kl = (p * (p.log() - logq)).sum(-1)
    hard = -s.log_softmax(-1).gather(-1, targets[..., None]).mean()
    return 0.5 * hard + 0.5 * 2**2 * kl.mean()


def dpo(model, other, inputs, targets, labels, mask, extra):
    def logps(m):
        return F.log_softmax(m(inputs), -1).gather(-1, targets[..., None])[..., 0].mul(mask).sum(-1)

    policy = logps(model)
    with torch.no_grad():
        reference = logps(other)
    ratio = policy - reference
    return -F.logsigmoid(0.1 * (ratio[:2] - ratio[2:])).mean()


def dpo_second(model, other, inputs, targets, labels, mask, extra):
    logits = model(inputs)
    with torch.no_grad():
        base = other(inputs)
    ours = -F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    theirs = -F.cross_entropy(base.transpose(1, 2), targets, reduction="none")
    chosen = ((ours[:2] - theirs[:2]) * mask[:2]).sum(1)
    rejected = ((ours[2:] - theirs[2:]) * mask[2:]).sum(1)
    margin = 0.1 * (chosen - rejected)
    return F.softplus(-margin).sum() / 2


def ppo(model, other, inputs, targets, labels, mask, extra):
    logp = model(inputs).log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    old = (logp + 0.3 * extra).detach()
    adv = (extra - extra.mean()) / extra.std()
    ratio = torch.exp(logp - old)
    a, b = ratio * adv, torch.clamp(ratio, 0.8, 1.2) * adv
    return -(torch.min(a, b) * mask).sum() / mask.sum()


def ppo_second(model, other, inputs, targets, labels, mask, extra):
    dist = torch.distributions.Categorical(logits=model(inputs))
    new = dist.log_prob(targets)
    before = new.detach() + extra * 0.3
    centred = extra - extra.sum() / extra.numel()
    adv = centred / (centred.square().sum() / (centred.numel() - 1)).sqrt()
    r = (new - before).exp()
    clipped = r.clip(1 - 0.2, 1 + 0.2)
    loss = torch.maximum(-adv * r, -adv * clipped)
    return loss[mask].mean()


def grpo(model, other, inputs, targets, labels, mask, extra):
    logp = model(inputs).log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    with torch.no_grad():
        ref = other(inputs).log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    rewards = extra.sum(1)
    adv = ((rewards - rewards.mean()) / (rewards.std() + 1e-4))[:, None]
    d = ref - logp
    k3 = d.exp() - d - 1
    per = -(torch.exp(logp - logp.detach()) * adv - 0.04 * k3)
    return ((per * mask).sum(1) / mask.sum(1)).mean()


def grpo_second(model, other, inputs, targets, labels, mask, extra):
    logits = model(inputs)
    with torch.no_grad():
        base = other(inputs)
    new = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)
    ref = base.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - base.logsumexp(-1)
    reward = extra.sum(-1)
    adv = (reward - reward.mean()).div(reward.std().add(1e-4))
    ratio = (new - new.detach()).exp()
    kl = torch.expm1(ref - new) - (ref - new)
    token = 0.04 * kl - ratio * adv.unsqueeze(1)
    weight = mask / mask.sum(1, keepdim=True)
    return (token * weight).sum() / B


def clipped_value(model, other, inputs, targets, labels, mask, extra):
    model(inputs)
    v = model.value(model.hidden)[..., 0]
    old = v.detach() + 0.2 * extra
    ret = extra.cumsum(1)
    clipped = old + (v - old).clamp(-0.1, 0.1)
    return 0.5 * torch.max((v - ret) ** 2, (clipped - ret) ** 2).mul(mask).sum() / mask.sum()


def clipped_value_second(model, other, inputs, targets, labels, mask, extra):
    model(inputs)
    value = model.value(model.hidden).squeeze(-1)
    before = value.detach() + extra * 0.2
    target = torch.cumsum(extra, -1)
    near = torch.minimum(torch.maximum(value, before - 0.1), before + 0.1)
    worst = torch.maximum(F.mse_loss(value, target, reduction="none"), F.mse_loss(near, target, reduction="none"))
    return worst[mask].mean() / 2


def advantages(model, other, inputs, targets, labels, mask, extra):
    model(inputs)
    v = model.value(model.hidden)[..., 0]
    with torch.no_grad():
        adv, last = torch.zeros_like(v), torch.zeros(B)
        for t in reversed(range(T)):
            after = v[:, t + 1] if t + 1 < T else torch.zeros(B)
            delta = extra[:, t] + 0.99 * after - v[:, t]
            last = delta + 0.99 * 0.95 * last
            adv[:, t] = last
        ret = adv + v
    return F.mse_loss(v, ret)


def advantages_second(model, other, inputs, targets, labels, mask, extra):
    model(inputs)
    v = model.value(model.hidden).squeeze(-1)
    with torch.no_grad():
        after = torch.cat([v[:, 1:], v.new_zeros(B, 1)], 1)
        delta = extra + 0.99 * after - v
        out, carry = [], 0.0
        for t in range(T - 1, -1, -1):
            carry = delta[:, t] + 0.9405 * carry
            out.insert(0, carry)
        goal = torch.stack(out, 1) + v
    return (v - goal).square().mean()


def contrastive(model, other, inputs, targets, labels, mask, extra):
    h = model(inputs)[:, -1]
    with torch.no_grad():
        t = other(inputs)[:, -1]
    a, b = F.normalize(h, dim=-1), F.normalize(t, dim=-1)
    s = a @ b.T / 0.07
    y = torch.arange(B)
    return (F.cross_entropy(s, y) + F.cross_entropy(s.T, y)) / 2


def contrastive_second(model, other, inputs, targets, labels, mask, extra):
    x = model(inputs)[:, -1, :]
    with torch.no_grad():
        z = other(inputs)[:, -1, :]
    x = x / x.norm(dim=-1, keepdim=True)
    z = z / z.norm(dim=-1, keepdim=True)
    sim = torch.einsum("id,jd->ij", x, z) * (1 / 0.07)
    rows = -sim.log_softmax(1).diagonal()
    columns = -sim.log_softmax(0).diagonal()
    return 0.5 * (rows.mean() + columns.mean())


def reward_model(model, other, inputs, targets, labels, mask, extra):
    model(inputs)
    r = model.value(model.hidden[:, -1])[:, 0]
    return -F.logsigmoid(r[:2] - r[2:] - 0.5).mean() + 0.01 * (r**2).mean()


def reward_model_second(model, other, inputs, targets, labels, mask, extra):
    model(inputs)
    reward = model.value(model.hidden)[:, -1].flatten()
    good, bad = reward.chunk(2)
    ranking = torch.log1p(torch.exp(bad - good + 0.5)).mean()
    centre = reward.pow(2).mean()
    return ranking + 0.01 * centre


def variational(model, other, inputs, targets, labels, mask, extra):
    h = model(inputs)
    mu, logvar = h[..., :8], h[..., 8:16]
    z = mu + torch.exp(0.5 * logvar) * extra[..., None]
    rec = F.mse_loss(z.mean(-1), extra)
    kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=-1).mean()
    return rec + 0.1 * kl


def variational_second(model, other, inputs, targets, labels, mask, extra):
    mean, lv, _ = model(inputs).split([8, 8, V - 16], -1)
    std = (lv / 2).exp()
    sample = torch.addcmul(mean, std, extra.unsqueeze(-1))
    rec = (sample.mean(-1) - extra).square().mean()
    q = torch.distributions.Normal(mean, std)
    kl = torch.distributions.kl_divergence(q, torch.distributions.Normal(0.0, 1.0)).sum(-1)
    return rec + 0.1 * kl.mean()


def diffusion(model, other, inputs, targets, labels, mask, extra):
    h = model(inputs)
    t = (targets.float() + 0.5) / V
    alpha, sigma = torch.cos(t * math.pi / 2), torch.sin(t * math.pi / 2)
    v = h[..., 0]
    goal = alpha * extra - sigma * h[..., 1].detach()
    snr = (alpha / sigma) ** 2
    w = torch.clamp(snr, max=5.0) / (snr + 1)
    return (w * (v - goal) ** 2).mean()


def diffusion_second(model, other, inputs, targets, labels, mask, extra):
    out = model(inputs)
    angle = (targets + 0.5) * (math.pi / (2 * V))
    c, s = angle.cos(), angle.sin()
    x = out[:, :, 1].detach()
    goal = c * extra - s * x
    snr = c.square() / s.square()
    weight = torch.minimum(snr, torch.tensor(5.0)) / (1 + snr)
    error = F.mse_loss(out[:, :, 0], goal, reduction="none")
    return (error * weight).sum() / error.numel()


def binary(model, other, inputs, targets, labels, mask, extra):
    x = model(inputs)[..., :5]
    y = F.one_hot(targets % 5, 5).float()
    return F.binary_cross_entropy_with_logits(x, y, pos_weight=torch.full((5,), 2.0))


def binary_second(model, other, inputs, targets, labels, mask, extra):
    x = model(inputs)[..., :5]
    y = torch.zeros_like(x).scatter_(-1, (targets % 5)[..., None], 1.0)
    positive = 2.0 * y * F.softplus(-x)
    negative = (1 - y) * F.softplus(x)
    return (positive + negative).mean()


def huber(model, other, inputs, targets, labels, mask, extra):
    x = model(inputs)[..., 0]
    return F.huber_loss(x, extra, delta=0.7) + F.l1_loss(x, extra) * 0.1


def huber_second(model, other, inputs, targets, labels, mask, extra):
    d = model(inputs)[..., 0] - extra
    a = d.abs()
    quadratic = torch.minimum(a, torch.tensor(0.7))
    linear = a - quadratic
    return (0.5 * quadratic**2 + 0.7 * linear).mean() + 0.1 * a.mean()


def entropy(model, other, inputs, targets, labels, mask, extra):
    logits = model(inputs)
    p = F.softmax(logits, -1)
    ent = -(p * torch.log(p)).sum(-1)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten()) - 0.01 * ent.mean()


def entropy_second(model, other, inputs, targets, labels, mask, extra):
    logits = model(inputs)
    logp = logits - logits.logsumexp(-1, keepdim=True)
    entropy = -(logp.exp() * logp).sum(-1)
    nll = F.nll_loss(logp.flatten(0, 1), targets.flatten())
    return nll - 0.01 * entropy.mean()


def triplet(model, other, inputs, targets, labels, mask, extra):
    h = model(inputs).mean(1)
    a, p, n = h[0:1], h[1:2], h[2:3]
    return F.triplet_margin_loss(a, p, n, margin=30.0) + 0.1 * (1 - F.cosine_similarity(h[:2], h[2:])).mean()


def triplet_second(model, other, inputs, targets, labels, mask, extra):
    h = model(inputs).sum(1) / T
    near = ((h[0] - h[1] + 1e-6) ** 2).sum().sqrt()
    far = ((h[0] - h[2] + 1e-6) ** 2).sum().sqrt()
    u, w = h[:2], h[2:]
    cosine = (u * w).sum(-1) / (u.norm(dim=-1) * w.norm(dim=-1))
    return (near - far + 30.0).clamp_min(0) + 0.1 * (1 - cosine).mean()


def balance(model, other, inputs, targets, labels, mask, extra):
    logits = model(inputs)
    gate = logits[..., :4].softmax(-1)
    top = gate.topk(2, -1).indices
    f = F.one_hot(top, 4).float().sum(-2).mean((0, 1))
    aux = 4 * (f * gate.mean((0, 1))).sum()
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten()) + 0.02 * aux


def balance_second(model, other, inputs, targets, labels, mask, extra):
    logits = model(inputs)
    gate = torch.softmax(logits[..., :4].reshape(-1, 4), dim=-1)
    _, chosen = torch.topk(gate, 2)
    count = torch.bincount(chosen.flatten(), minlength=4)
    share = count / gate.shape[0]
    aux = 4 * torch.dot(share, gate.sum(0) / gate.shape[0])
    return F.cross_entropy(logits.view(-1, V), targets.reshape(-1)) + 0.02 * aux


def r_drop(model, other, inputs, targets, labels, mask, extra):
    a, b = model(inputs), model(inputs.flip(0)).flip(0)
    lp, lq = a.log_softmax(-1), (b * 1.3).log_softmax(-1)
    kl = 0.5 * (F.kl_div(lp, lq, reduction="batchmean", log_target=True) + F.kl_div(lq, lp, reduction="batchmean", log_target=True))
    return F.nll_loss(lp.flatten(0, 1), targets.flatten()) + kl


def r_drop_second(model, other, inputs, targets, labels, mask, extra):
    a = model(inputs)
    b = model(inputs.flip(0)).flip(0)
    p, q = a.softmax(-1), (1.3 * b).softmax(-1)
    kl = ((p - q) * (p.log() - q.log())).sum() / B / 2
    return F.cross_entropy(a.flatten(0, 1), targets.flatten()) + kl


def gradient_penalty(model, other, inputs, targets, labels, mask, extra):
    x = model.embed(inputs).detach().requires_grad_()
    h = x
    for b in model.blocks:
        h = b(h)
    score = model.value(model.norm(h)).mean()
    (gx,) = torch.autograd.grad(score, x, create_graph=True)
    return (gx.flatten(1).norm(2, dim=1) * 50 - 1).pow(2).mean() + score


def gradient_penalty_second(model, other, inputs, targets, labels, mask, extra):
    leaf = model.embed(inputs).detach().requires_grad_(True)
    out = leaf
    for block in model.blocks:
        out = block(out)
    s = model.value(model.norm(out)).mean()
    grad = torch.autograd.grad(s, [leaf], create_graph=True)[0]
    length = (grad * grad).sum((1, 2)).sqrt() * 50
    return ((length - 1) ** 2).mean() + s


def mixup(model, other, inputs, targets, labels, mask, extra):
    x = model(inputs)
    lam = 0.3
    y = F.one_hot(targets, V).float()
    soft = lam * y + (1 - lam) * y.flip(0)
    return F.cross_entropy(x.flatten(0, 1), soft.flatten(0, 1))


def mixup_second(model, other, inputs, targets, labels, mask, extra):
    x = model(inputs).flatten(0, 1)
    first = F.cross_entropy(x, targets.flatten())
    second = F.cross_entropy(x, targets.flip(0).flatten())
    return 0.3 * first + 0.7 * second


def simpo(model, other, inputs, targets, labels, mask, extra):
    lp = F.log_softmax(model(inputs), -1).gather(-1, targets[..., None])[..., 0]
    avg = (lp * mask).sum(1) / mask.sum(1)
    m = 2.0 * (avg[:2] - avg[2:]) - 0.5
    return -F.logsigmoid(m).mean()


def simpo_second(model, other, inputs, targets, labels, mask, extra):
    nll = F.cross_entropy(model(inputs).mT, labels, reduction="none")
    length = (labels != -100).sum(-1)
    score = -nll.sum(-1) / length
    win, lose = score[:2], score[2:]
    z = 2.0 * (win - lose) - 0.5
    return -z.sigmoid().log().mean()


FAULTS = {
    "cross_entropy": {
        "all": ("/ mask.sum()", "/ mask.numel()"),
        "nomask": ("kept = picked * mask", "kept = picked * 1.0"),
        "shift": ("gather(-1, targets[..., None])", "gather(-1, inputs[..., None])"),
        "temp": ("logits.log_softmax(-1)", "(logits / 0.9).log_softmax(-1)"),
    },
    "masked_cross_entropy": {
        "rows": ("per_token.sum() / mask.sum()", "(per_token.sum(1) / mask.sum(1)).mean()"),
        "nodetachexp": (".exp().sum(-1).log()", ".exp().sum(-1).log1p()"),
    },
    "label_smoothing": {
        "eps": ("0.9 * nll + 0.1 * flat", "0.8 * nll + 0.2 * flat"),
        "sum": ("0.9 * nll + 0.1 * flat", "nll + 0.1 * flat"),
        "flat": ("-logp.mean(-1)", "-logp.sum(-1) / (V - 1)"),
    },
    "z_loss": {
        "coef": ("0.01 * zl", "0.001 * zl"),
        "max": ("zl = z.square()", "zl = logits.amax(-1).square()"),
        "masked": ("z.square().mean()", "z.square()[mask].mean()"),
        "abs": ("z.square().mean()", "z.abs().mean()"),
    },
    "focal": {
        "gamma": ("pow(2.0)", "pow(1.0)"),
        "detached": ("(1.0 - at).pow(2.0)", "(1.0 - at.detach()).pow(2.0)"),
        "alpha": ("(-weight *", "(-0.25 * weight *"),
    },
    "distillation": {
        "t2": ("0.5 * 2**2 * kl", "0.5 * kl"),
        "temp": ("t * 0.5", "t * 0.4"),
        "reverse": ("(p * (p.log() - logq))", "(logq.exp() * (logq - p.log()))"),
        "batch": ("kl.mean()", "kl.sum() / B"),
        "alpha": ("0.5 * hard", "0.3 * hard"),
    },
    "dpo": {
        "beta": ("0.1 * (chosen", "0.2 * (chosen"),
        "avg": ("* mask[:2]).sum(1)", "* mask[:2]).sum(1) / mask[:2].sum(1)"),
        "noref": ("(ours[2:] - theirs[2:])", "(ours[2:])"),
        "hinge": ("F.softplus(-margin)", "(1 - margin).relu()"),
        "sum": (".sum() / 2", ".sum() / 4"),
    },
    "ppo": {
        "max": ("torch.maximum(-adv * r, -adv * clipped)", "torch.minimum(-adv * r, -adv * clipped)"),
        "std": ("(centred.numel() - 1)", "centred.numel()"),
        "row": ("loss[mask].mean()", "((loss * mask).sum(1) / mask.sum(1)).mean()"),
        "centre": ("extra - extra.sum() / extra.numel()", "extra - extra.mean(1, keepdim=True)"),
    },
    "grpo": {
        "k1": ("torch.expm1(ref - new) - (ref - new)", "new - ref"),
        "k2": ("torch.expm1(ref - new) - (ref - new)", "(ref - new).square() / 2"),
        "beta": ("0.04 * kl", "0.01 * kl"),
        "dr": ("(reward - reward.mean()).div(reward.std().add(1e-4))", "(reward - reward.mean())"),
        "token": ("mask / mask.sum(1, keepdim=True)", "mask / mask.sum() * B"),
        "refsign": ("torch.expm1(ref - new) - (ref - new)", "torch.expm1(new - ref) - (new - ref)"),
    },
    "clipped_value": {
        "half": ("worst[mask].mean() / 2", "worst[mask].mean()"),
        "min": ("worst = torch.maximum(", "worst = torch.minimum("),
        "range": ("before + 0.1)", "before + 0.2)"),
        "huber": ("F.mse_loss(value, target", "F.smooth_l1_loss(value, target"),
    },
    "advantages": {
        "lam": ("0.9405 * carry", "0.9 * carry"),
        "gamma": ("extra + 0.99 * after", "extra + 1.0 * after"),
        "boot": ("v.new_zeros(B, 1)", "v[:, -1:]"),
        "nov": ("torch.stack(out, 1) + v", "torch.stack(out, 1)"),
    },
    "contrastive": {
        "oneway": ("(rows.mean() + columns.mean())", "(rows.mean() + rows.mean())"),
        "tau": ("(1 / 0.07)", "(1 / 0.1)"),
        "norm": ("x / x.norm(dim=-1, keepdim=True)", "x / x.norm(p=1, dim=-1, keepdim=True)"),
        "axis": ("sim.log_softmax(0)", "sim.log_softmax(1)"),
    },
    "reward_model": {
        "margin": ("bad - good + 0.5", "bad - good"),
        "swap": ("bad - good + 0.5", "good - bad + 0.5"),
        "centre": ("reward.pow(2).mean()", "reward.mean().pow(2)"),
        "last": ("model.value(model.hidden)[:, -1]", "model.value(model.hidden)[:, -2]"),
    },
    "variational": {
        "std": ("(lv / 2).exp()", "lv.exp()"),
        "mean": (".sum(-1)\n", ".mean(-1)\n"),
        "prior": ("Normal(0.0, 1.0)", "Normal(0.0, 2.0)"),
        "beta": ("0.1 * kl.mean()", "kl.mean()"),
    },
    "diffusion": {
        "eps": ("c * extra - s * x", "extra - 0 * s * x"),
        "gamma": ("torch.tensor(5.0)", "torch.tensor(1.0)"),
        "snr": ("/ (1 + snr)", "/ snr"),
        "half": ("(targets + 0.5)", "(targets + 0.0)"),
        "sqrt": ("c.square() / s.square()", "c / s"),
    },
    "binary": {
        "pos": ("2.0 * y", "1.0 * y"),
        "class": ("(targets % 5)", "((targets + 1) % 5)"),
        "sum": ("(positive + negative).mean()", "(positive + negative).sum(-1).mean()"),
    },
    "huber": {
        "delta": ("0.7 * linear", "1.0 * linear"),
        "l1": ("0.1 * a.mean()", "0.1 * a.square().mean()"),
        "q": ("0.5 * quadratic**2", "quadratic**2"),
    },
    "entropy": {
        "sign": ("nll - 0.01", "nll + 0.01"),
        "det": ("-(logp.exp() * logp)", "-(logp.exp().detach() * logp)"),
        "mean": ("(logp.exp() * logp).sum(-1)", "(logp.exp() * logp).mean(-1)"),
    },
    "triplet": {
        "margin": ("far + 30.0", "far + 20.0"),
        "sq": ("near = ((h[0] - h[1] + 1e-6) ** 2).sum().sqrt()", "near = ((h[0] - h[1] + 1e-6) ** 2).sum()"),
        "cos": ("(u * w).sum(-1) / (u.norm(dim=-1) * w.norm(dim=-1))", "(u * w).sum(-1)"),
    },
    "balance": {
        "k": ("torch.topk(gate, 2)", "torch.topk(gate, 1)"),
        "n": ("aux = 4 *", "aux = 2 *"),
        "div": ("count / gate.shape[0]", "count / count.sum()"),
        "coef": ("0.02 * aux", "0.01 * aux"),
    },
    "r_drop": {
        "scale": ("/ B / 2", "/ B"),
        "temp": ("1.3 * b", "1.2 * b"),
        "oneside": ("(p - q) *", "p *"),
    },
    "gradient_penalty": {
        "one": ("(length - 1)", "length"),
        "mean": ("(grad * grad).sum((1, 2))", "(grad * grad).mean((1, 2))"),
        "nograph": ("create_graph=True)[0]", "create_graph=True)[0].detach()"),
    },
    "mixup": {
        "lam": ("0.3 * first + 0.7 * second", "0.7 * first + 0.3 * second"),
        "flip": ("targets.flip(0)", "targets.roll(1, 0)"),
    },
    "simpo": {
        "len": ("-nll.sum(-1) / length", "-nll.sum(-1) / T"),
        "beta": ("2.0 * (win", "1.0 * (win"),
        "gamma": ("- 0.5", "+ 0.5"),
    },
}


def draw_batches():
    drawn = torch.Generator().manual_seed(5)
    for _ in range(2):
        tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), generator=drawn)
        yield tokens, torch.rand(BATCH, LENGTH, generator=drawn) > 0.3, torch.randn(BATCH, LENGTH, generator=drawn)


def start():
    """The model, another one beside it, and the optimizer."""
    torch.manual_seed(0)
    model, other = Model(), Model()
    for p in model.parameters():
        p.data.mul_(1.7)
    return model, other, torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)


def run(compute, model, other, optimizer, tokens, mask, extra):
    """One training step by a loss."""
    labels = tokens[:, 1:].masked_fill(~mask, -100)
    loss = compute(model, other, tokens[:, :-1], tokens[:, 1:], labels, mask, extra)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss


def record_each(program, folder, words):
    for word in words:
        compute = written_twice.function_of(program, word)
        model, other, optimizer = start()
        with lastbit.torch.capture(str(folder / f"{word}.lb"), level="ops") as capture:
            for step, batch in enumerate(draw_batches()):
                with capture.step(step):
                    run(compute, model, other, optimizer, *batch)


if __name__ == "__main__":
    record_each(sys.modules[__name__], pathlib.Path(sys.argv[1]), sys.argv[2:])
