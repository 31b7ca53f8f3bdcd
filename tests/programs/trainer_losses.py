"""Losses as trainers for language models and diffusion spell them, each of two authors (written_twice.py); two steps each.

The model, its batches and what a loss is a function of are those of second_losses.py.
"""

import math
import pathlib
import sys

import second_losses
import torch
import torch.nn.functional as F
import written_twice
from second_losses import B, T, V

# ruff: noqa


def chunked(model, other, inputs, targets, labels, mask, extra):
    logits = model(inputs)
    total = torch.zeros(())
    for part, label in zip(logits.chunk(3, dim=1), labels.chunk(3, dim=1)):
        total = total + F.cross_entropy(part.flatten(0, 1), label.flatten(), ignore_index=-100, reduction="sum")
    return total / (labels != -100).sum()


def chunked_second(model, other, inputs, targets, labels, mask, extra):
    logits = model(inputs)
    shifted = logits - logits.max(-1, keepdim=True).values
    normalizer = shifted.exp().sum(-1)
    right = shifted.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    token_loss = normalizer.log() - right
    weights = mask.to(logits.dtype)
    weights = weights / weights.sum()
    return (token_loss * weights).sum()


def kto(model, other, inputs, targets, labels, mask, extra):
    def sequence_logps(logits):
        per_token = torch.gather(logits.log_softmax(-1), 2, targets.unsqueeze(2)).squeeze(2)
        return (per_token * mask).sum(-1)

    policy = sequence_logps(model(inputs))
    with torch.no_grad():
        reference = sequence_logps(other(inputs))
    kl = (policy[2:] - reference[2:]).mean().detach()
    chosen = 1 - F.sigmoid(0.1 * (policy[:2] - reference[:2] - kl))
    rejected = 1 - F.sigmoid(0.1 * (kl - (policy[2:] - reference[2:])))
    return torch.cat((1.33 * chosen, 1.0 * rejected), 0).mean()


def kto_second(model, other, inputs, targets, labels, mask, extra):
    logp = -F.cross_entropy(model(inputs).permute(0, 2, 1), labels, reduction="none").sum(1)
    with torch.no_grad():
        ref = -F.cross_entropy(other(inputs).permute(0, 2, 1), labels, reduction="none").sum(1)
    reward = logp - ref
    baseline = reward[2:].detach().mean()
    sign = torch.tensor([1.0, 1.0, -1.0, -1.0])
    value = torch.sigmoid(sign * (reward - baseline) * 0.1)
    weight = torch.tensor([1.33, 1.33, 1.0, 1.0])
    return (weight * (1 - value)).sum() / 4


def ipo(model, other, inputs, targets, labels, mask, extra):
    logps = torch.gather(model(inputs).log_softmax(-1), 2, targets[:, :, None])[:, :, 0]
    with torch.no_grad():
        base = torch.gather(other(inputs).log_softmax(-1), 2, targets[:, :, None])[:, :, 0]
    average = ((logps - base) * mask).sum(1) / mask.sum(1)
    chosen, rejected = average.chunk(2)
    return ((chosen - rejected) - 1 / (2 * 0.1)).pow(2).mean()


def ipo_second(model, other, inputs, targets, labels, mask, extra):
    ours = torch.distributions.Categorical(logits=model(inputs)).log_prob(targets)
    with torch.no_grad():
        theirs = torch.distributions.Categorical(logits=other(inputs)).log_prob(targets)
    ratio = torch.where(mask, ours - theirs, 0.0)
    lengths = mask.sum(-1)
    scores = ratio.sum(-1) / lengths
    gap = scores[:2] - scores[2:]
    return F.mse_loss(gap, torch.full_like(gap, 5.0))


def orpo(model, other, inputs, targets, labels, mask, extra):
    logits = model(inputs)
    logp = torch.gather(logits.log_softmax(-1), 2, targets.unsqueeze(-1)).squeeze(-1)
    average = (logp * mask).sum(-1) / mask.sum(-1)
    chosen, rejected = average[:2], average[2:]
    log_odds = (chosen - rejected) - (torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected)))
    ratio = F.logsigmoid(log_odds)
    nll = F.cross_entropy(logits[:2].flatten(0, 1), labels[:2].flatten())
    return nll - 0.2 * ratio.mean()


def orpo_second(model, other, inputs, targets, labels, mask, extra):
    out = model(inputs)
    token = F.cross_entropy(out.transpose(1, 2), labels, reduction="none")
    count = (labels != -100).sum(1)
    mean = token.sum(1) / count
    p = torch.exp(-mean)
    odds = p / (1 - p)
    preference = torch.log(odds[:2] / odds[2:])
    penalty = F.softplus(-preference).mean()
    supervised = token[:2].sum() / count[:2].sum()
    return supervised + 0.2 * penalty


def robust_dpo(model, other, inputs, targets, labels, mask, extra):
    def logps(m):
        return (m(inputs).log_softmax(-1).gather(2, targets[..., None]).squeeze(2) * mask).sum(1)

    policy = logps(model)
    with torch.no_grad():
        reference = logps(other)
    logits = (policy[:2] - policy[2:]) - (reference[:2] - reference[2:])
    losses = -F.logsigmoid(0.3 * logits) * (1 - 0.1) - F.logsigmoid(-0.3 * logits) * 0.1
    return losses.mean()


def robust_dpo_second(model, other, inputs, targets, labels, mask, extra):
    scores = []
    for net in (model, other):
        with torch.set_grad_enabled(net is model):
            y = net(inputs)
            picked = y.gather(-1, targets.unsqueeze(-1))[..., 0] - torch.logsumexp(y, -1)
            scores.append(torch.einsum("bt,bt->b", picked, mask.to(y.dtype)))
    reward = 0.3 * (scores[0] - scores[1])
    margin = reward[:2] - reward[2:]
    return F.binary_cross_entropy_with_logits(margin, torch.full_like(margin, 0.9))


def gspo(model, other, inputs, targets, labels, mask, extra):
    logp = model(inputs).log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    old = (logp + 0.2 * extra).detach()
    log_ratio = logp - old
    weight = ((log_ratio * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).unsqueeze(-1)
    coefficient = torch.exp(weight)
    adv = (extra[:, 0] - extra[:, 0].mean()).unsqueeze(1)
    one, two = coefficient * adv, torch.clamp(coefficient, 1 - 0.03, 1 + 0.04) * adv
    return -torch.min(one, two).mean()


def gspo_second(model, other, inputs, targets, labels, mask, extra):
    y = model(inputs)
    new = -F.cross_entropy(y.reshape(-1, V), targets.reshape(-1), reduction="none").view(B, T)
    behaviour = new.detach() + 0.2 * extra
    difference = (new - behaviour).masked_fill(~mask, 0.0)
    sequence = difference.sum(1).div(mask.sum(1))
    importance = sequence.exp()
    reward = extra[:, 0]
    advantage = reward - reward.sum() / B
    bounded = importance.clip(0.97, 1.04)
    objective = torch.minimum(importance * advantage, bounded * advantage)
    return -objective.sum() / B


def rloo(model, other, inputs, targets, labels, mask, extra):
    logp = model(inputs).log_softmax(-1).gather(-1, targets[..., None]).squeeze(-1)
    with torch.no_grad():
        ref = other(inputs).log_softmax(-1).gather(-1, targets[..., None]).squeeze(-1)
        score = extra.mean(1)
        kl = ((logp - ref) * mask).sum(1)
        reward = score - 0.05 * kl
        grouped = reward.view(2, 2)
        baseline = (grouped.sum(1, keepdim=True) - grouped) / (2 - 1)
        advantage = (grouped - baseline).flatten()
    return (-advantage * (logp * mask).sum(1)).mean()


def rloo_second(model, other, inputs, targets, labels, mask, extra):
    policy = (-F.cross_entropy(model(inputs).mT, targets, reduction="none") * mask).sum(1)
    with torch.no_grad():
        base = (-F.cross_entropy(other(inputs).mT, targets, reduction="none") * mask).sum(1)
    penalised = extra.sum(1) / T - 0.05 * (policy.detach() - base)
    mean_of_pair = penalised.reshape(2, 2).mean(1).repeat_interleave(2)
    centred = (penalised - mean_of_pair) * 2
    return -(centred * policy).sum() / B


def token_kl(model, other, inputs, targets, labels, mask, extra):
    student = model(inputs)
    with torch.no_grad():
        teacher = other(inputs)
    prob = F.softmax(teacher, dim=-1)
    logprob = F.log_softmax(student, dim=-1)
    x = torch.sum(prob * logprob, dim=-1).view(-1)
    m = mask.reshape(-1).int()
    kd = -torch.sum(x * m) / torch.sum(m)
    return 0.5 * kd + 0.5 * F.cross_entropy(student.flatten(0, 1), labels.flatten())


def token_kl_second(model, other, inputs, targets, labels, mask, extra):
    s = model(inputs)
    with torch.no_grad():
        t = other(inputs)
    kept_s = s[mask]
    kept_t = t[mask]
    soft = F.cross_entropy(kept_s, kept_t.softmax(-1))
    hard = F.cross_entropy(kept_s, targets[mask])
    return torch.lerp(hard, soft, 0.5)


def jensen(model, other, inputs, targets, labels, mask, extra):
    student = F.log_softmax(model(inputs) / 1.5, -1)
    with torch.no_grad():
        teacher = F.log_softmax(other(inputs) / 1.5, -1)
    mixture = torch.logsumexp(torch.stack([student + math.log(0.7), teacher + math.log(0.3)]), 0)
    kl_teacher = F.kl_div(mixture, teacher, reduction="none", log_target=True)
    kl_student = F.kl_div(mixture, student, reduction="none", log_target=True)
    jsd = 0.3 * kl_teacher + 0.7 * kl_student
    return jsd[mask].sum() / mask.sum()


def jensen_second(model, other, inputs, targets, labels, mask, extra):
    p = torch.softmax(model(inputs) / 1.5, -1)
    with torch.no_grad():
        q = torch.softmax(other(inputs) / 1.5, -1)
    m = 0.7 * p + 0.3 * q
    first = (p * (p.log() - m.log())).sum(-1)
    second = (q * (q / m).log()).sum(-1)
    divergence = 0.7 * first + 0.3 * second
    return (divergence * mask).sum() / mask.sum()


def flow(model, other, inputs, targets, labels, mask, extra):
    t = torch.sigmoid(extra.mean(1, keepdim=True))
    clean = other.embed(inputs)[..., 0].detach()
    noisy = (1.0 - t) * clean + t * extra
    prediction = model(inputs)[..., 0] * noisy
    target = extra - clean
    weighting = 2 / (math.pi * (1 - 2 * t + 2 * t**2))
    loss = torch.mean((weighting * (prediction - target) ** 2).reshape(B, -1), 1)
    return loss.mean()


def flow_second(model, other, inputs, targets, labels, mask, extra):
    time = 1 / (1 + torch.exp(-extra.sum(1) / T))
    time = time[:, None]
    with torch.no_grad():
        x0 = other.embed(inputs).select(-1, 0)
    xt = torch.lerp(x0, extra, time)
    velocity = model(inputs).select(-1, 0) * xt
    bell = math.pi * (time * time + (1 - time) * (1 - time))
    residual = velocity - (extra - x0)
    error = residual.square() / bell
    return 2 * error.mean()


def quantised(model, other, inputs, targets, labels, mask, extra):
    z = model(inputs)[..., :WIDE]
    code = other.embed(targets)[..., :WIDE].detach() + 0.0 * z
    book = F.embedding(targets, model.embed.weight)[..., :WIDE]
    commitment = F.mse_loss(z, book.detach())
    codebook = F.mse_loss(book, z.detach())
    straight = z + (book - z).detach()
    reconstruction = F.mse_loss(straight, code.detach())
    return reconstruction + codebook + 0.25 * commitment


def quantised_second(model, other, inputs, targets, labels, mask, extra):
    encoded = model(inputs)[..., :WIDE]
    goal = other.embed.weight[targets][..., :WIDE].detach()
    chosen = model.embed.weight[targets][..., :WIDE]
    away = (encoded - chosen.detach()).square().mean()
    toward = (encoded.detach() - chosen).square().mean()
    passed = chosen.detach() + encoded - encoded.detach()
    rebuilt = (passed - goal).square().mean()
    return rebuilt + toward + away * 0.25


def siglip(model, other, inputs, targets, labels, mask, extra):
    image = F.normalize(model(inputs)[:, -1], dim=-1)
    with torch.no_grad():
        text = F.normalize(other(inputs)[:, -1], dim=-1)
    logits = image @ text.t() * 10.0 - 2.0
    sign = 2 * torch.eye(B) - torch.ones(B, B)
    return -F.logsigmoid(sign * logits).sum() / B


def siglip_second(model, other, inputs, targets, labels, mask, extra):
    u = model(inputs)[:, -1]
    with torch.no_grad():
        v = other(inputs)[:, -1]
    similarity = F.cosine_similarity(u[:, None], v[None], dim=-1)
    score = 10.0 * similarity - 2.0
    pairs = F.binary_cross_entropy_with_logits(score, torch.eye(B), reduction="none")
    return pairs.sum(1).mean()


def barlow(model, other, inputs, targets, labels, mask, extra):
    one = model(inputs).flatten(0, 1)[:, :8]
    with torch.no_grad():
        two = other(inputs).flatten(0, 1)[:, :8]
    one = (one - one.mean(0)) / one.std(0)
    two = (two - two.mean(0)) / two.std(0)
    c = one.T @ two / one.shape[0]
    on = (torch.diagonal(c) - 1).pow(2).sum()
    off = c.pow(2).sum() - torch.diagonal(c).pow(2).sum()
    return on + 0.005 * off


def barlow_second(model, other, inputs, targets, labels, mask, extra):
    a = model(inputs)[..., :8].reshape(-1, 8)
    with torch.no_grad():
        b = other(inputs)[..., :8].reshape(-1, 8)
    n = a.size(0)
    variance, mean = torch.var_mean(a, 0)
    a = (a - mean) * variance.rsqrt()
    variance, mean = torch.var_mean(b, 0)
    b = (b - mean) * variance.rsqrt()
    correlation = torch.einsum("ni,nj->ij", a, b).div(n)
    delta = (correlation - torch.eye(8)).square()
    scale = torch.where(torch.eye(8) > 0, 1.0, 0.005)
    return (delta * scale).sum()


def dice(model, other, inputs, targets, labels, mask, extra):
    p = torch.sigmoid(model(inputs)[..., 0])
    y = mask.to(p.dtype)
    intersection = (p * y).sum(1)
    score = (2 * intersection + 1) / (p.sum(1) + y.sum(1) + 1)
    return (1 - score).mean() + F.binary_cross_entropy(p, y)


def dice_second(model, other, inputs, targets, labels, mask, extra):
    x = model(inputs)[..., 0]
    truth = mask.to(x.dtype)
    probability = x.sigmoid()
    overlap = torch.einsum("bt,bt->b", probability, truth)
    union = (probability + truth).sum(-1)
    coefficient = (2.0 * overlap + 1.0) / (union + 1.0)
    cross = x.clamp(min=0) - x * truth + torch.log1p(torch.exp(-x.abs()))
    return 1 - coefficient.sum() / B + cross.mean()


def dual_clip(model, other, inputs, targets, labels, mask, extra):
    logits = model(inputs)
    logp = logits.log_softmax(-1).gather(-1, targets[..., None]).squeeze(-1)
    old, advantages = logp.detach() - 0.9 * extra, extra.flip(1)
    approx = torch.clamp(logp - old, min=-20.0, max=20.0)
    ratio = torch.exp(approx)
    losses1 = -advantages * ratio
    losses2 = -advantages * torch.clamp(ratio, 1 - 0.2, 1 + 0.28)
    clip1 = torch.maximum(losses1, losses2)
    clip2 = torch.min(-advantages * 3.0, clip1)
    losses = torch.where(advantages < 0, clip2, clip1)
    pd = torch.nn.functional.softmax(logits, dim=-1)
    entropy = torch.logsumexp(logits, dim=-1) - torch.sum(pd * logits, dim=-1)
    return (losses * mask).sum() / mask.sum() - 0.01 * (entropy * mask).sum() / mask.sum()


def dual_clip_second(model, other, inputs, targets, labels, mask, extra):
    distribution = torch.distributions.Categorical(logits=model(inputs))
    current = distribution.log_prob(targets)
    former = current.detach() - extra * 0.9
    gain = torch.flip(extra, (1,))
    r = torch.exp(current - former)
    surrogate = torch.minimum(r * gain, r.clamp(0.8, 1.28) * gain)
    bounded = torch.maximum(surrogate, 3.0 * gain)
    chosen = torch.where(gain < 0, bounded, surrogate)
    bonus = distribution.entropy()
    objective = chosen + 0.01 * bonus
    return -objective[mask].mean()


def span(model, other, inputs, targets, labels, mask, extra):
    logits = model(inputs)[..., :2]
    start, end = logits.split(1, dim=-1)
    start, end = start.squeeze(-1).contiguous(), end.squeeze(-1).contiguous()
    first, last = targets[:, 0] % T, targets[:, 1] % T
    return (F.cross_entropy(start, first) + F.cross_entropy(end, last)) / 2


def span_second(model, other, inputs, targets, labels, mask, extra):
    y = model(inputs)
    begin = y[:, :, 0].log_softmax(1)
    finish = y[:, :, 1].log_softmax(1)
    rows = torch.arange(B)
    nll_begin = -begin[rows, targets[:, 0] % T]
    nll_finish = -finish[rows, targets[:, 1] % T]
    return 0.5 * (nll_begin.mean() + nll_finish.mean())


def several_tokens(model, other, inputs, targets, labels, mask, extra):
    logits = model(inputs)
    main = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    ahead = F.linear(model.hidden[:, :-1], model.embed.weight)
    aux = F.cross_entropy(ahead.flatten(0, 1), targets[:, 1:].flatten())
    return main + 0.3 * aux


def several_tokens_second(model, other, inputs, targets, labels, mask, extra):
    now = model(inputs)
    weight = model.embed.weight
    later = (model.hidden @ weight.T)[:, : T - 1]
    lp_now = now.log_softmax(-1).gather(2, targets.unsqueeze(2))
    lp_later = later.log_softmax(-1).gather(2, targets[:, 1:].unsqueeze(2))
    together = lp_now.sum() / (B * T) + 0.3 * lp_later.sum() / (B * (T - 1))
    return -together


def min_snr(model, other, inputs, targets, labels, mask, extra):
    betas = torch.linspace(1e-4, 0.02, V)
    cumulative = torch.cumprod(1 - betas, 0)
    a = cumulative[targets]
    snr = a / (1 - a)
    noise_pred = model(inputs)[..., 0]
    loss = F.mse_loss(noise_pred, extra, reduction="none")
    weights = torch.stack([snr, 5.0 * torch.ones_like(snr)], 0).min(0)[0] / snr
    return (loss * weights).mean()


def min_snr_second(model, other, inputs, targets, labels, mask, extra):
    b = 1e-4 + (0.02 - 1e-4) * torch.arange(V) / (V - 1)
    log_bar = torch.log1p(-b).cumsum(0)
    bar = log_bar.exp()[targets]
    ratio = bar / (1 - bar)
    eps = model(inputs)[..., 0]
    coefficient = torch.clamp(5.0 / ratio, max=1.0)
    squared = (extra - eps) * (extra - eps)
    return (coefficient * squared).sum() / (B * T)


WIDE = 8
FAULTS = {
    "chunked": {
        "all": ("weights / weights.sum()", "weights / weights.numel()"),
        "row": ("weights / weights.sum()", "weights / weights.sum(1, keepdim=True) / B"),
        "labels": ("targets.unsqueeze(-1)", "inputs.unsqueeze(-1)"),
        "mean": ("shifted.exp().sum(-1)", "shifted.exp().mean(-1)"),
    },
    "kto": {
        "beta": ("(reward - baseline) * 0.1", "(reward - baseline) * 0.2"),
        "weights": ("torch.tensor([1.33, 1.33, 1.0, 1.0])", "torch.tensor([1.0, 1.0, 1.33, 1.33])"),
        "graph": ("reward[2:].detach().mean()", "reward[2:].mean()"),
        "chosen": ("reward[2:].detach().mean()", "reward[:2].detach().mean()"),
    },
    "ipo": {
        "sum": ("ratio.sum(-1) / lengths", "ratio.sum(-1)"),
        "target": ("torch.full_like(gap, 5.0)", "torch.full_like(gap, 10.0)"),
        "mask": ("torch.where(mask, ours - theirs, 0.0)", "(ours - theirs)"),
        "huber": ("F.mse_loss(gap,", "F.smooth_l1_loss(gap,"),
    },
    "orpo": {
        "odds": ("p / (1 - p)", "p / (1 + p)"),
        "all": ("token[:2].sum() / count[:2].sum()", "token.sum() / count.sum()"),
        "lambda": ("0.2 * penalty", "0.1 * penalty"),
        "sum": ("p = torch.exp(-mean)", "p = torch.exp(-token.sum(1) / T)"),
    },
    "robust_dpo": {
        "smooth": ("torch.full_like(margin, 0.9)", "torch.full_like(margin, 1.0)"),
        "beta": ("reward = 0.3 *", "reward = 0.1 *"),
        "swap": ("reward[:2] - reward[2:]", "reward[2:] - reward[:2]"),
        "unmasked": ("picked, mask.to(y.dtype)", "picked, torch.ones(B, T)"),
    },
    "gspo": {
        "length": (".div(mask.sum(1))", ".div(T)"),
        "high": ("clip(0.97, 1.04)", "clip(0.97, 1.02)"),
        "std": ("reward - reward.sum() / B", "(reward - reward.mean()) / reward.std()"),
        "noclip": ("bounded * advantage", "importance * advantage"),
    },
    "rloo": {
        "loo": ("(penalised - mean_of_pair) * 2", "(penalised - mean_of_pair)"),
        "kl": ("- 0.05 * (policy", "- 0.5 * (policy"),
        "global": ("penalised.reshape(2, 2).mean(1).repeat_interleave(2)", "penalised.mean()"),
        "sign": ("-(centred * policy)", "(centred * policy)"),
    },
    "token_kl": {
        "half": ("torch.lerp(hard, soft, 0.5)", "torch.lerp(hard, soft, 0.7)"),
        "temp": ("kept_t.softmax(-1)", "(kept_t / 2).softmax(-1)"),
        "unmasked": ("F.cross_entropy(kept_s, targets[mask])", "F.cross_entropy(s.flatten(0, 1), targets.flatten())"),
    },
    "jensen": {
        "mixture": ("m = 0.7 * p + 0.3 * q", "m = 0.5 * p + 0.5 * q"),
        "weights": ("0.7 * first + 0.3 * second", "0.3 * first + 0.7 * second"),
        "reverse": ("(q * (q / m).log())", "(m * (m / q).log())"),
    },
    "flow": {
        "bell": ("(time * time + (1 - time) * (1 - time))", "(time + (1 - time) * (1 - time))"),
        "clean": ("(extra - x0)", "(x0 - extra)"),
        "reversed": ("torch.lerp(x0, extra, time)", "torch.lerp(extra, x0, time)"),
        "twice": ("return 2 * error", "return 1 * error"),
    },
    "quantised": {
        "beta": ("away * 0.25", "away * 1.0"),
        "swapped": ("(encoded - chosen.detach()).square()", "(encoded.detach() - chosen).square()"),
        "both": ("toward = (encoded.detach() - chosen)", "toward = (encoded - chosen)"),
        "straight": ("chosen.detach() + encoded - encoded.detach()", "chosen + 0.0 * encoded"),
    },
    "siglip": {
        "bias": ("10.0 * similarity - 2.0", "10.0 * similarity + 2.0"),
        "scale": ("10.0 * similarity", "5.0 * similarity"),
        "mean": ("pairs.sum(1).mean()", "pairs.mean()"),
        "positives": ("F.binary_cross_entropy_with_logits(score, torch.eye(B),", "F.binary_cross_entropy_with_logits(score, torch.eye(B).flip(0),"),
    },
    "barlow": {
        "off": ("torch.eye(8) > 0, 1.0, 0.005", "torch.eye(8) > 0, 1.0, 0.05"),
        "biased": ("torch.var_mean(a, 0)", "torch.var_mean(a, 0, correction=0)"),
        "abs": ("(correlation - torch.eye(8)).square()", "(correlation - torch.eye(8)).abs()"),
        "n": ("n = a.size(0)", "n = a.size(0) - 1"),
    },
    "dice": {
        "smooth": ("(2.0 * overlap + 1.0)", "(2.0 * overlap + 0.1)"),
        "square": ("(probability + truth).sum(-1)", "(probability.square() + truth).sum(-1)"),
        "one": ("(2.0 * overlap", "(1.0 * overlap"),
        "sign": ("- x * truth", "+ x * truth"),
    },
    "dual_clip": {
        "upper": ("r.clamp(0.8, 1.28)", "r.clamp(0.8, 1.2)"),
        "c": ("3.0 * gain", "2.0 * gain"),
        "bonus": ("chosen + 0.01 * bonus", "chosen - 0.01 * bonus"),
        "max": ("torch.minimum(r * gain", "torch.maximum(r * gain"),
        "rows": ("-objective[mask].mean()", "-((objective * mask).sum(1) / mask.sum(1)).mean()"),
    },
    "span": {
        "swap": ("finish[rows, targets[:, 1] % T]", "finish[rows, targets[:, 0] % T]"),
        "axis": ("y[:, :, 1].log_softmax(1)", "y[:, :, 1].log_softmax(0)"),
        "sum": ("return 0.5 * (", "return ("),
    },
    "several_tokens": {
        "weight": ("0.3 * lp_later", "0.1 * lp_later"),
        "same": ("targets[:, 1:].unsqueeze(2)", "targets[:, :-1].unsqueeze(2)"),
        "count": ("(B * (T - 1))", "(B * T)"),
        "detached": ("weight = model.embed.weight", "weight = model.embed.weight.detach()"),
    },
    "min_snr": {
        "gamma": ("5.0 / ratio", "1.0 / ratio"),
        "power": ("bar / (1 - bar)", "bar.sqrt() / (1 - bar)"),
        "unweighted": ("(coefficient * squared)", "(1.0 * squared)"),
        "end": ("(0.02 - 1e-4)", "(0.012 - 1e-4)"),
    },
}


def final(word, program=None):
    """What two steps in float64 leave: parameters and losses."""
    torch.set_default_dtype(torch.float64)
    try:
        compute, losses = written_twice.function_of(program or sys.modules[__name__], word), []
        model, other, optimizer = second_losses.start()
        for batch in second_losses.draw_batches():
            losses.append(second_losses.run(compute, model, other, optimizer, *batch).detach())
        return torch.cat([p.detach().flatten() for p in model.parameters()] + [loss.flatten() for loss in losses])
    finally:
        torch.set_default_dtype(torch.float32)


if __name__ == "__main__":
    second_losses.record_each(sys.modules[__name__], pathlib.Path(sys.argv[1]), sys.argv[2:])
