"""Objectives that two people write, by torch's functions and by hand, trained by one optimizer: the frame is that of update_rules.py."""

import math
import sys

import torch
import torch.nn.functional as F
import update_rules
from torch import nn
from update_rules import LENGTH, ROWS, WIDTH, WORDS, library_step

INSIDE, MIXED = LENGTH // 2, 6


class Net(update_rules.Net):
    """With heads for a value, for the token after the next one, and a layer of three experts."""

    def __init__(self):
        super().__init__()
        self.value, self.later = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, WORDS)
        self.router = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def hidden(self, tokens):
        x = self.embed(tokens)
        q, k, v = self.qkv(self.norm(x)).unsqueeze(1).chunk(3, -1)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0])
        return self.last(x + self.down(F.gelu(self.up(x))))

    def forward(self, tokens):
        return self.head(self.hidden(tokens))


def start(word=None):
    torch.manual_seed(13)
    net, other = Net(), Net()
    with torch.no_grad():
        for p in (*net.parameters(), *other.parameters()):
            p.add_(torch.randn(p.shape) * (0.2 if p.dim() == 1 else 0.3))
    net.__dict__["other"] = other.requires_grad_(False)
    net.__dict__["drawn"] = torch.randn(3, ROWS, LENGTH)
    return net, torch.randint(0, WORDS, (3, ROWS, LENGTH + 1))


def trained(net, objective):
    """A step in which the optimizer is one that a factor of all gradients does not escape."""
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

    def step(tokens, n):
        opt.zero_grad(set_to_none=True)
        loss = objective(tokens, n)
        loss.backward()
        opt.step()
        return loss

    return step, lambda: list(net.parameters())


# ruff: noqa
def smoothing(net):
    def objective(tokens, n):
        targets = tokens[:, 1:].masked_fill(tokens[:, 1:] < 4, -100)
        return F.cross_entropy(net(tokens[:, :-1]).transpose(1, 2), targets, ignore_index=-100, label_smoothing=0.1)

    return trained(net, objective)


def smoothing_second(net):
    def objective(tokens, n):
        logits, targets = net(tokens[:, :-1]), tokens[:, 1:]
        keep = targets >= 4
        logp = logits - logits.logsumexp(-1, keepdim=True)
        soft = torch.full_like(logp, 0.1 / WORDS)
        soft = soft + 0.9 * F.one_hot(targets, WORDS)
        each = -(soft * logp).sum(-1)
        return (each * keep).sum() / keep.sum()

    return trained(net, objective)


def two_heads(net):
    """The next token and the one after it, and the square of the normaliser."""

    def objective(tokens, n):
        hidden = net.hidden(tokens[:, :-1])
        logits = net.head(hidden)
        first = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        second = F.cross_entropy(net.later(hidden[:, :-1]).flatten(0, 1), tokens[:, 2:].flatten())
        z = torch.logsumexp(logits, dim=-1).pow(2).mean()
        return first + 0.3 * second + 1e-2 * z

    return trained(net, objective)


def two_heads_second(net):
    def chosen(logits, targets):
        z = logits.exp().sum(-1).log()
        picked = (logits * F.one_hot(targets, WORDS)).sum(-1)
        return z - picked, z

    def objective(tokens, n):
        h = net.hidden(tokens[:, :-1])
        now, z = chosen(net.head(h), tokens[:, 1:])
        after, _ = chosen(net.later(h)[:, :-1], tokens[:, 2:])
        return now.mean() + 0.01 * (z * z).mean() + 0.3 * after.mean()

    return trained(net, objective)


def focal(net):
    def objective(tokens, n):
        nll = F.cross_entropy(net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        return ((1 - torch.exp(-nll)) ** 2 * nll).mean()

    return trained(net, objective)


def focal_second(net):
    def objective(tokens, n):
        p = torch.softmax(net(tokens[:, :-1]), -1)
        p = p.gather(-1, tokens[:, 1:].unsqueeze(-1)).squeeze(-1)
        weight = (1 - p).square()
        return -(weight * p.log()).sum() / p.numel()

    return trained(net, objective)


def distillation(net):
    def objective(tokens, n):
        with torch.no_grad():
            taught = net.other(tokens[:, :-1])
        logits = net(tokens[:, :-1])
        soft = F.kl_div(F.log_softmax(logits / 2, -1), F.log_softmax(taught / 2, -1), log_target=True, reduction="none").sum(-1).mean()
        hard = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        return 0.7 * 2**2 * soft + 0.3 * hard

    return trained(net, objective)


def distillation_second(net):
    def objective(tokens, n):
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        teacher = torch.softmax(net.other(inputs) / 2.0, dim=-1)
        logits = net(inputs)
        student = torch.log_softmax(logits / 2.0, dim=-1)
        kl = (teacher * (teacher.log() - student)).sum(-1)
        nll = -torch.take_along_dim(torch.log_softmax(logits, -1), targets[..., None], -1)
        return 2.8 * kl.mean() + 0.3 * nll.mean()

    return trained(net, objective)


def preference(net):
    """DPO: the first half of the rows was chosen, the second was not; the last tokens are the answer."""

    def total(model, tokens):
        logp = F.log_softmax(model(tokens[:, :-1]), -1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
        return logp[:, INSIDE:].sum(-1)

    def objective(tokens, n):
        policy = total(net, tokens)
        with torch.no_grad():
            reference = total(net.other, tokens)
        ratio = (policy[:2] - policy[2:]) - (reference[:2] - reference[2:])
        return -F.logsigmoid(0.2 * ratio).mean()

    return trained(net, objective)


def preference_second(net):
    def objective(tokens, n):
        answer = (torch.arange(LENGTH) >= INSIDE).to(net.head.weight.dtype)
        logits = net(tokens[:, :-1])
        mine = logits.gather(-1, tokens[:, 1:, None])[..., 0] - torch.logsumexp(logits, -1)
        mine = (mine * answer).sum(1)
        logits = net.other(tokens[:, :-1]).detach()
        old = logits.gather(-1, tokens[:, 1:, None])[..., 0] - torch.logsumexp(logits, -1)
        old = (old * answer).sum(1)
        rewards = 0.2 * (mine - old)
        won, lost = rewards.chunk(2)
        return torch.log1p(torch.exp(lost - won)).mean()

    return trained(net, objective)


def clipped_policy(net):
    """PPO: the ratio and the value clipped, and the entropy."""

    def objective(tokens, n):
        inputs, actions, drawn = tokens[:, :-1], tokens[:, 1:], net.drawn[n].to(net.head.weight.dtype)
        hidden = net.hidden(inputs)
        policy = torch.distributions.Categorical(logits=net.head(hidden), validate_args=False)
        with torch.no_grad():
            before = torch.distributions.Categorical(logits=net.other(inputs), validate_args=False).log_prob(actions)
            old = net.other.value(net.other.hidden(inputs)).squeeze(-1)
        advantages = (drawn - drawn.mean()) / (drawn.std() + 1e-8)
        ratio = (policy.log_prob(actions) - before).exp()
        gain = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        values, wanted = net.value(hidden).squeeze(-1), drawn + old
        near = old + (values - old).clamp(-0.2, 0.2)
        error = 0.5 * torch.max(F.mse_loss(values, wanted, reduction="none"), F.mse_loss(near, wanted, reduction="none")).mean()
        return -gain + 0.5 * error - 0.02 * policy.entropy().mean()

    return trained(net, objective)


def clipped_policy_second(net):
    def objective(tokens, n):
        inputs, actions = tokens[:, :-1], tokens[:, 1:, None]
        drawn = net.drawn[n].to(net.head.weight.dtype)
        h = net.hidden(inputs)
        logp = torch.log_softmax(net.head(h), -1)
        with torch.no_grad():
            h_old = net.other.hidden(inputs)
            logp_old = torch.log_softmax(net.other.head(h_old), -1).gather(-1, actions)[..., 0]
            v_old = net.other.value(h_old)[..., 0]
        a = drawn - drawn.mean()
        a = a / (torch.sqrt(a.square().sum() / (a.numel() - 1)) + 1e-8)
        r = torch.exp(logp.gather(-1, actions)[..., 0] - logp_old)
        bounded = torch.minimum(torch.maximum(r, torch.tensor(0.8)), torch.tensor(1.2))
        policy_loss = torch.maximum(-a * r, -a * bounded).mean()
        v, returns = net.value(h)[..., 0], drawn + v_old
        v_near = v_old + torch.clamp(v - v_old, min=-0.2, max=0.2)
        value_loss = torch.maximum((v - returns) ** 2, (v_near - returns) ** 2).mean() / 2
        entropy = -(logp.exp() * logp).sum(-1).mean()
        return policy_loss + 0.5 * value_loss - 0.02 * entropy

    return trained(net, objective)


def group_policy(net):
    """GRPO: two groups of two answers, and the distance from the reference by its third estimator."""

    def objective(tokens, n):
        reward = net.drawn[n, :, 0].to(net.head.weight.dtype).view(2, 2)
        advantages = ((reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-4)).flatten()
        keep = (torch.arange(LENGTH) >= INSIDE).expand(ROWS, -1) & (tokens[:, 1:] >= 2)
        logp = -F.cross_entropy(net(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:], reduction="none")
        with torch.no_grad():
            reference = -F.cross_entropy(net.other(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:], reduction="none")
        ratio = torch.exp(logp - logp.detach())
        each = torch.min(ratio * advantages[:, None], ratio.clamp(0.8, 1.2) * advantages[:, None])
        distance = torch.exp(reference - logp) - (reference - logp) - 1
        return -(((each - 0.1 * distance) * keep).sum(1) / keep.sum(1)).mean()

    return trained(net, objective)


def group_policy_second(net):
    def objective(tokens, n):
        reward = net.drawn[n, :, 0].to(net.head.weight.dtype)
        pairs = reward.reshape(-1, 2)
        mean = pairs.mean(-1).repeat_interleave(2)
        spread = pairs.std(-1).repeat_interleave(2)
        a = (reward - mean) / (spread + 1e-4)
        labels = tokens[:, INSIDE + 1 :]
        keep = (labels >= 2).to(reward.dtype)
        logp = torch.log_softmax(net(tokens[:, :-1])[:, INSIDE:], -1).gather(-1, labels[..., None])[..., 0]
        old = torch.log_softmax(net.other(tokens[:, :-1])[:, INSIDE:], -1).gather(-1, labels[..., None])[..., 0]
        gain = a.unsqueeze(1) * torch.exp(logp - logp.detach())
        kl = torch.expm1(old - logp) - (old - logp)
        loss = 0.1 * kl - gain
        loss = (loss * keep).sum(-1) / keep.sum(-1)
        return loss.sum() / ROWS

    return trained(net, objective)


def contrastive(net):
    """Both halves of a row are a pair."""

    def objective(tokens, n):
        a, b = (F.normalize(net.hidden(half).mean(1), dim=-1) for half in (tokens[:, :4], tokens[:, 4:8]))
        similar = a @ b.T / 0.1
        labels = torch.arange(ROWS)
        return (F.cross_entropy(similar, labels) + F.cross_entropy(similar.T, labels)) / 2

    return trained(net, objective)


def contrastive_second(net):
    def objective(tokens, n):
        left, right = net.hidden(tokens[:, :4]), net.hidden(tokens[:, 4:8])
        left, right = left.sum(1) / 4, right.sum(1) / 4
        left = left / torch.sqrt((left * left).sum(-1, keepdim=True))
        right = right / torch.sqrt((right * right).sum(-1, keepdim=True))
        similar = torch.einsum("id,jd->ij", left, right) * 10
        across = torch.log_softmax(similar, 1).diagonal()
        down = torch.log_softmax(similar, 0).diagonal()
        return -0.5 * (across.mean() + down.mean())

    return trained(net, objective)


def balanced_experts(net):
    """Two of three experts; the loss of balance and that of the router's normaliser."""

    def objective(tokens, n):
        x = net.hidden(tokens[:, :-1]).flatten(0, 1)
        scores = net.router(x)
        probabilities = F.softmax(scores, -1)
        weights, chosen = probabilities.topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        y = torch.zeros_like(x)
        for i, expert in enumerate(net.experts):
            row, place = torch.where(chosen == i)
            y.index_add_(0, row, expert(x[row]) * weights[row, place, None])
        share = F.one_hot(chosen, 3).sum(1).to(x.dtype).mean(0)
        balance = 3 * (share * probabilities.mean(0)).sum()
        loss = F.cross_entropy(net.head(x + y), tokens[:, 1:].flatten())
        return loss + 0.05 * balance + 0.01 * torch.logsumexp(scores, -1).square().mean()

    return trained(net, objective)


def balanced_experts_second(net):
    def objective(tokens, n):
        x = net.hidden(tokens[:, :-1])
        scores = net.router(x)
        p = torch.softmax(scores, dim=-1)
        best = p.topk(2, dim=-1).indices
        used = F.one_hot(best, 3).sum(-2).to(x.dtype)
        gates = p * used
        gates = gates / gates.sum(-1, keepdim=True)
        each = torch.stack([expert(x) for expert in net.experts], -2)
        y = (each * gates[..., None]).sum(-2)
        balance = 3 * (used.mean((0, 1)) * p.mean((0, 1))).sum()
        z = scores.exp().sum(-1).log().square().mean()
        nll = -torch.log_softmax(net.head(x + y), -1).gather(-1, tokens[:, 1:, None]).mean()
        return nll + 0.05 * balance + 0.01 * z

    return trained(net, objective)


FAULTS = {
    "smoothing": {
        "others": ("0.1 / WORDS", "0.1 / (WORDS - 1)"),
        "padded": ("(each * keep).sum() / keep.sum()", "each.mean()"),
        "count": ("/ keep.sum()", "/ keep.numel()"),
        "eps": ("0.9 * F.one_hot", "0.8 * F.one_hot"),
    },
    "two_heads": {
        "shift": ("net.later(h)[:, :-1]", "net.later(h)[:, 1:]"),
        "weight": ("0.3 * after", "0.1 * after"),
        "unsquared": ("(z * z).mean()", "z.mean()"),
        "coefficient": ("0.01 *", "0.001 *"),
        "detached": ("0.3 * after.mean()", "0.3 * after.mean().detach()"),
    },
    "focal": {
        "gamma": ("(1 - p).square()", "(1 - p)"),
        "detached": ("weight = (1 - p).square()", "weight = (1 - p).square().detach()"),
        "exchanged": ("(1 - p).square()", "p.square()"),
        "mean": ("p.numel()", "p.shape[0]"),
    },
    "distillation": {
        "reversed": ("(teacher * (teacher.log() - student))", "(student.exp() * (student - teacher.log()))"),
        "square": ("2.8 * kl", "0.7 * kl"),
        "temperature": ("student = torch.log_softmax(logits / 2.0", "student = torch.log_softmax(logits / 1.0"),
        "teacher": ("net.other(inputs) / 2.0", "net.other(inputs) / 3.0"),
        "hard": ("0.3 * nll", "0.7 * nll"),
    },
    "preference": {
        "beta": ("0.2 * (mine - old)", "0.1 * (mine - old)"),
        "unreferenced": ("0.2 * (mine - old)", "0.2 * mine"),
        "exchanged": ("lost - won", "won - lost"),
        "mean": ("mine = (mine * answer).sum(1)", "mine = (mine * answer).sum(1) / answer.sum()"),
        "prompt": (">= INSIDE", ">= INSIDE - 1"),
    },
    "clipped_policy": {
        "raw": ("a = a / (torch.sqrt(a.square().sum() / (a.numel() - 1)) + 1e-8)", "pass"),
        "inverted": ("torch.exp(logp.gather(-1, actions)[..., 0] - logp_old)", "torch.exp(logp_old - logp.gather(-1, actions)[..., 0])"),
        "range": ("torch.tensor(1.2)", "torch.tensor(1.3)"),
        "least": ("torch.maximum(-a * r", "torch.minimum(-a * r"),
        "entropy": ("- 0.02 * entropy", "+ 0.02 * entropy"),
        "value": ("torch.maximum((v - returns) ** 2, (v_near - returns) ** 2)", "((v - returns) ** 2)"),
    },
    "group_policy": {
        "whole": ("pairs.mean(-1).repeat_interleave(2)", "reward.mean()"),
        "unscaled": ("(reward - mean) / (spread + 1e-4)", "(reward - mean)"),
        "first": ("torch.expm1(old - logp) - (old - logp)", "logp - old"),
        "tokens": ("loss = (loss * keep).sum(-1) / keep.sum(-1)", "loss = ROWS * (loss * keep).sum() / keep.sum() * torch.ones(ROWS) / ROWS"),
        "beta": ("0.1 * kl", "0.04 * kl"),
    },
    "contrastive": {
        "temperature": ("* 10", "* 5"),
        "oneway": ("-0.5 * (across.mean() + down.mean())", "-across.mean()"),
        "length": ("left / torch.sqrt((left * left).sum(-1, keepdim=True))", "left / math.sqrt(WIDTH)"),
        "axis": ("torch.log_softmax(similar, 0)", "torch.log_softmax(similar, 1)"),
    },
    "balanced_experts": {
        "weights": ("gates = gates / gates.sum(-1, keepdim=True)", "pass"),
        "balance": ("3 * (used", "(used"),
        "chosen": ("(used.mean((0, 1)) * p.mean((0, 1)))", "(p.mean((0, 1)) * p.mean((0, 1)))"),
        "z": ("0.01 * z", "0.02 * z"),
        "normaliser": ("scores.exp().sum(-1).log().square()", "scores.square().sum(-1)"),
    },
}


if __name__ == "__main__":
    update_rules.main(sys.modules[__name__])
