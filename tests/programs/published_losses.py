"""Losses in the manner of published trainers, each of two authors (written_twice.py); two steps each. The model and its batches are those of second_losses.py.

CPO, APO, SPPO, online DPO's JS divergence, PPO with a KL estimate in the reward (TRL); loss-free z and entropy terms, poly-1, label-wise sigmoid (torchtune, timm); NT-Xent and circle
losses (Lightning); Sinkhorn-free distillation of hidden states and of attention (transformers); quantile and Tweedie (Lightning forecasting); a router's load balance by two formulas."""

import math
import pathlib
import sys

import second_losses
import torch
import torch.nn.functional as F
import trainer_losses
from second_losses import B, T, V


# ruff: noqa
def cpo(model, other, inputs, targets, labels, mask, extra):
    logps = torch.gather(model(inputs).log_softmax(-1), 2, targets.unsqueeze(2)).squeeze(2)
    sums = (logps * mask).sum(-1)
    chosen, rejected = sums[:2], sums[2:]
    losses = -F.logsigmoid(0.2 * (chosen - rejected))
    nll = -(logps[:2] * mask[:2]).sum() / mask[:2].sum()
    return losses.mean() + 0.5 * nll


def cpo_second(model, other, inputs, targets, labels, mask, extra):
    nll = F.cross_entropy(model(inputs).transpose(1, 2), labels, reduction="none")
    score = -nll.sum(1)
    gap = score.view(2, 2)[0] - score.view(2, 2)[1]
    preference = F.softplus(gap * -0.2).mean()
    anchor = nll[:2].sum() / mask[:2].sum()
    return preference + anchor * 0.5


def apo(model, other, inputs, targets, labels, mask, extra):
    def logps(net):
        return (torch.gather(net(inputs).log_softmax(-1), 2, targets.unsqueeze(2)).squeeze(2) * mask).sum(-1)

    policy = logps(model)
    with torch.no_grad():
        reference = logps(other)
    ratios = policy - reference
    losses_chosen = 1 - F.sigmoid(0.1 * ratios[:2])
    losses_rejected = F.sigmoid(0.1 * ratios[2:])
    return (losses_chosen + losses_rejected).mean()


def apo_second(model, other, inputs, targets, labels, mask, extra):
    with torch.no_grad():
        base = other(inputs)
    both = torch.stack([model(inputs), base])
    lp = both - both.logsumexp(-1, keepdim=True)
    picked = lp.gather(-1, targets.expand(2, B, T).unsqueeze(-1)).squeeze(-1)
    picked = torch.where(mask, picked, 0.0).sum(-1)
    reward = (picked[0] - picked[1]) * 0.1
    good, bad = reward.chunk(2)
    up = torch.sigmoid(-good)
    down = 1 / (1 + torch.exp(-bad))
    return torch.mean(up + down)


def poly(model, other, inputs, targets, labels, mask, extra):
    logits = model(inputs).flatten(0, 1)
    ce = F.cross_entropy(logits, targets.flatten(), reduction="none")
    pt = (F.one_hot(targets.flatten(), V) * logits.softmax(-1)).sum(-1)
    return (ce + 2.0 * (1 - pt)).mean()


def poly_second(model, other, inputs, targets, labels, mask, extra):
    logp = F.log_softmax(model(inputs), dim=-1)
    at = logp.gather(-1, targets[:, :, None]).squeeze()
    p = at.exp()
    extra_term = 2.0 - 2.0 * p
    return -at.mean() + extra_term.mean()


def entropy_bonus(model, other, inputs, targets, labels, mask, extra):
    dist = torch.distributions.Categorical(logits=model(inputs))
    log_prob = dist.log_prob(targets)
    advantage = (extra - extra.mean()) / (extra.std() + 1e-8)
    pg = -(log_prob * advantage)
    return (pg * mask).sum() / mask.sum() - 0.05 * (dist.entropy() * mask).sum() / mask.sum()


def entropy_bonus_second(model, other, inputs, targets, labels, mask, extra):
    logits = model(inputs)
    z = torch.logsumexp(logits, -1, keepdim=True)
    p = torch.exp(logits - z)
    entropy = z.squeeze(-1) - (p * logits).sum(-1)
    chosen = (logits - z).gather(2, targets[..., None]).squeeze(2)
    centred = extra - extra.mean()
    scale = torch.sqrt(centred.pow(2).sum() / (extra.numel() - 1)) + 1e-8
    weighted = chosen * (centred / scale)
    total = weighted + 0.05 * entropy
    return -total[mask].mean()


def ntxent(model, other, inputs, targets, labels, mask, extra):
    model(inputs)
    z = F.normalize(model.hidden.mean(1), dim=-1)
    cov = torch.mm(z, z.t())
    sim = torch.exp(cov / 0.5)
    neg = sim.sum(dim=-1) - torch.exp(torch.ones(B) / 0.5)
    pos = torch.exp((z * z.roll(2, 0)).sum(-1) / 0.5)
    return -torch.log(pos / (neg + 1e-6)).mean()


def ntxent_second(model, other, inputs, targets, labels, mask, extra):
    model(inputs)
    h = model.hidden.sum(1) / T
    h = h / h.norm(dim=1, keepdim=True)
    scores = (h @ h.T) * 2.0
    near = scores[torch.arange(B), (torch.arange(B) + 2) % B]
    apart = scores.masked_fill(torch.eye(B, dtype=torch.bool), -math.inf)
    below = apart.exp().sum(1) + 1e-6
    return (below.log() - near).mean()


def hidden_match(model, other, inputs, targets, labels, mask, extra):
    student = model(inputs)
    with torch.no_grad():
        teacher = other(inputs)
    keep = mask.unsqueeze(-1).expand_as(model.hidden)
    s = torch.masked_select(model.hidden, keep).view(-1, model.hidden.size(-1))
    t = torch.masked_select(other.hidden, keep).view(-1, model.hidden.size(-1))
    cos = F.cosine_embedding_loss(s, t, torch.ones(s.size(0)), reduction="mean")
    kl = F.kl_div(F.log_softmax(student / 2.0, -1), F.softmax(teacher / 2.0, -1), reduction="sum") * 4.0 / (B * T)
    return 0.3 * cos + 0.7 * kl


def hidden_match_second(model, other, inputs, targets, labels, mask, extra):
    y = model(inputs)
    with torch.no_grad():
        goal = other(inputs)
    angle = (model.hidden * other.hidden).sum(-1) / (model.hidden.norm(dim=-1) * other.hidden.norm(dim=-1))
    turned = ((1 - angle) * mask).sum() / mask.sum()
    soft = torch.softmax(goal * 0.5, -1)
    gap = soft.log() - torch.log_softmax(y * 0.5, -1)
    divergence = (soft * gap).sum(-1).mean()
    return 0.3 * turned + 2.8 * divergence


def quantile(model, other, inputs, targets, labels, mask, extra):
    y = model.value(model_hidden(model, inputs)).squeeze(-1)
    losses = []
    for q in (0.1, 0.5, 0.9):
        errors = extra - y
        losses.append(torch.max((q - 1) * errors, q * errors).unsqueeze(-1))
    return 2 * torch.cat(losses, dim=-1).mean()


def quantile_second(model, other, inputs, targets, labels, mask, extra):
    guess = model.value(model_hidden(model, inputs))[..., 0]
    miss = (extra - guess)[..., None]
    levels = torch.tensor([0.1, 0.5, 0.9])
    below = F.relu(miss)
    above = F.relu(-miss)
    pinball = levels * below + (1 - levels) * above
    return pinball.sum(-1).mean() * 2 / 3


def model_hidden(model, inputs):
    model(inputs)
    return model.hidden


def router(model, other, inputs, targets, labels, mask, extra):
    logits = model(inputs)
    ce = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    gates = F.softmax(logits[..., :4].flatten(0, 1), dim=-1)
    _, chosen = torch.topk(gates, 2, dim=-1)
    tokens_per_expert = F.one_hot(chosen, 4).float().mean(0)
    balance = (tokens_per_expert * gates.mean(0).unsqueeze(0)).sum() * 4
    z = torch.logsumexp(logits[..., :4], -1).square().mean()
    return ce + 0.02 * balance + 0.001 * z


def router_second(model, other, inputs, targets, labels, mask, extra):
    y = model(inputs)
    token = F.nll_loss(y.log_softmax(-1).transpose(1, 2), targets, reduction="none")
    main = token[mask].mean()
    scores = y[:, :, :4].reshape(B * T, 4)
    probs = scores.exp() / scores.exp().sum(1, keepdim=True)
    picked = torch.zeros_like(probs).scatter(1, probs.topk(2, dim=1).indices, 1.0)
    share = picked.sum(0) / (B * T)
    even = 4 * torch.dot(share, probs.sum(0) / (B * T))
    large = scores.exp().sum(1).log().pow(2).sum() / (B * T)
    return main + 0.02 * even + 1e-3 * large


FAULTS = {
    "cpo": {
        "beta": ("gap * -0.2", "gap * -0.1"),
        "all": ("anchor = nll[:2].sum()", "anchor = nll.sum()"),
        "weight": ("anchor * 0.5", "anchor * 1.0"),
        "pairs": ("score.view(2, 2)[0] - score.view(2, 2)[1]", "score.view(2, 2)[:, 0] - score.view(2, 2)[:, 1]"),
    },
    "apo": {
        "down": ("1 / (1 + torch.exp(-bad))", "1 / (1 + torch.exp(bad))"),
        "mask": ("torch.where(mask, picked, 0.0).sum(-1)", "picked.sum(-1)"),
        "beta": ("(picked[0] - picked[1]) * 0.1", "(picked[0] - picked[1]) * 0.3"),
    },
    "poly": {
        "eps": ("2.0 - 2.0 * p", "1.0 - 1.0 * p"),
        "log": ("p = at.exp()", "p = at.exp().square()"),
    },
    "entropy_bonus": {
        "sign": ("weighted + 0.05 * entropy", "weighted - 0.05 * entropy"),
        "base": ("scale = torch.sqrt(centred.pow(2).sum() / (extra.numel() - 1)) + 1e-8", "scale = torch.sqrt(centred.pow(2).sum() / 4) + 1e-8"),
        "plain": ("chosen * (centred / scale)", "chosen * (extra / scale)"),
        "rows": ("-total[mask].mean()", "-total.mean()"),
    },
    "ntxent": {
        "tau": ("(h @ h.T) * 2.0", "(h @ h.T) * 4.0"),
        "self": ("scores.masked_fill(torch.eye(B, dtype=torch.bool), -math.inf)", "scores"),
        "next": ("(torch.arange(B) + 2) % B", "(torch.arange(B) + 1) % B"),
    },
    "hidden_match": {
        "square": ("0.3 * turned + 2.8 * divergence", "0.3 * turned + 0.7 * divergence"),
        "temp": ("torch.softmax(goal * 0.5, -1)", "torch.softmax(goal * 0.7, -1)"),
        "masked": ("((1 - angle) * mask).sum() / mask.sum()", "(1 - angle).mean()"),
    },
    "quantile": {
        "turned": ("above = F.relu(-miss)", "above = F.relu(miss)"),
        "levels": ("torch.tensor([0.1, 0.5, 0.9])", "torch.tensor([0.1, 0.5, 0.8])"),
        "sum": ("* 2 / 3", "* 2"),
    },
    "router": {
        "one": ("probs.topk(2, dim=1)", "probs.topk(1, dim=1)"),
        "coef": ("0.02 * even", "0.01 * even"),
        "z": ("scores.exp().sum(1).log().pow(2)", "scores.exp().sum(1).log().abs()"),
    },
}


def final(word):
    return trainer_losses.final(word, sys.modules[__name__])


if __name__ == "__main__":
    second_losses.record_each(sys.modules[__name__], pathlib.Path(sys.argv[1]), sys.argv[2:])
