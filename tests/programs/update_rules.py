"""Updates that two people write: torch's optimizers or a class of one's own, and functions over dictionaries, lists and flat vectors.

    python update_rules.py --confirm                 # in float64: both agree to 1e-9, and a fault moves more than 1e-6
    python update_rules.py FOLDER WORD...            # NAME.lb, NAME-second.lb, NAME-second-FAULT.lb: steps of training

NAME(net) gives a step, a function of tokens and the number of the step, and a function that gives the weights as they then are."""

import math
import pathlib
import sys
import unittest.mock

import torch
import torch.nn.functional as F
import written_twice
from torch import nn

WORDS, WIDTH, LENGTH, ROWS = 20, 8, 8, 4


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        q, k, v = self.qkv(self.norm(x)).unsqueeze(1).chunk(3, -1)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0])
        x = x + self.down(F.gelu(self.up(x)))
        return self.head(self.last(x))


def loss_of(net, tokens):
    return F.cross_entropy(net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def normed(x, scale, bias):
    x = x - x.mean(-1, keepdim=True)
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-5) * scale + bias


def logits_from(w, tokens):
    """The same net of a dictionary of weights."""
    x = w["embed.weight"][tokens]
    q, k, v = (normed(x, w["norm.weight"], w["norm.bias"]) @ w["qkv.weight"].T).chunk(3, -1)
    scores = q @ k.mT / math.sqrt(WIDTH)
    t = torch.arange(x.shape[1])
    scores = torch.where(t[:, None] >= t, scores, -math.inf)
    x = x + torch.softmax(scores, -1) @ v @ w["out.weight"].T + w["out.bias"]
    h = x @ w["up.weight"].T + w["up.bias"]
    h = 0.5 * h * (1 + torch.erf(h / math.sqrt(2)))
    x = x + h @ w["down.weight"].T + w["down.bias"]
    return normed(x, w["last.weight"], w["last.bias"]) @ w["head.weight"].T


def loss_from(w, tokens):
    return -torch.log_softmax(logits_from(w, tokens[:, :-1]), -1).gather(-1, tokens[:, 1:, None]).mean()


def copied(net):
    return {name: p.detach().clone() for name, p in net.named_parameters()}


def graded(w, tokens):
    """Loss and gradients, as dictionaries hold them."""
    w = {name: x.detach().requires_grad_() for name, x in w.items()}
    loss = loss_from(w, tokens)
    return loss, dict(zip(w, torch.autograd.grad(loss, list(w.values()))))


def zeros(w):
    return {name: torch.zeros_like(x) for name, x in w.items()}


def flat(tensors):
    return torch.cat([x.reshape(-1) for x in tensors])


def pieces(vector, net):
    sizes = [p.numel() for p in net.parameters()]
    return {name: x.view_as(p) for x, (name, p) in zip(vector.split(sizes), net.named_parameters())}


def library_step(net, opt, before=lambda n: None, after=lambda n: None):
    def step(tokens, n):
        opt.zero_grad()
        loss = loss_of(net, tokens)
        loss.backward()
        before(n)
        opt.step()
        after(n)
        return loss

    return step, lambda: list(net.parameters())


# ruff: noqa
def adamw_groups(net):
    matrices = [p for p in net.parameters() if p.dim() > 1]
    vectors = [p for p in net.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    opt = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95), foreach=True)
    return library_step(net, opt, before=lambda n: nn.utils.clip_grad_norm_(net.parameters(), 0.5, foreach=True))


def adamw_groups_second(net):
    w = copied(net)
    m, v = zeros(w), zeros(w)

    def step(tokens, n):
        nonlocal w, m, v
        loss, g = graded(w, tokens)
        total = torch.sqrt(sum((x * x).sum() for x in g.values()))
        g = {k: x * torch.clamp(0.5 / (total + 1e-6), max=1.0) for k, x in g.items()}
        m = {k: 0.9 * m[k] + 0.1 * g[k] for k in w}
        v = {k: 0.95 * v[k] + 0.05 * g[k] ** 2 for k in w}
        m_hat = {k: m[k] / (1 - 0.9 ** (n + 1)) for k in w}
        v_hat = {k: v[k] / (1 - 0.95 ** (n + 1)) for k in w}
        decay = {k: 0.1 if w[k].dim() > 1 else 0.0 for k in w}
        w = {k: w[k] - 0.01 * (m_hat[k] / (torch.sqrt(v_hat[k]) + 1e-8) + decay[k] * w[k]) for k in w}
        return loss

    return step, lambda: list(w.values())


def adamw_flat(net):
    opt = torch.optim.AdamW(net.parameters(), lr=0.01, betas=(0.9, 0.95), weight_decay=0.1, foreach=False)
    return library_step(net, opt)


def adamw_flat_second(net):
    p = flat(net.parameters()).detach().clone()
    m, v = torch.zeros_like(p), torch.zeros_like(p)

    def step(tokens, n):
        loss, g = graded(pieces(p, net), tokens)
        g = flat(g.values())
        m.mul_(0.9).add_(g, alpha=0.1)
        v.mul_(0.95).add_(g * g, alpha=0.05)
        rate = 0.01 * math.sqrt(1 - 0.95 ** (n + 1)) / (1 - 0.9 ** (n + 1))
        eps = 1e-8 * math.sqrt(1 - 0.95 ** (n + 1))
        p.mul_(1 - 0.001)
        p.sub_(rate * m / (v.sqrt() + eps))
        return loss

    return step, lambda: list(pieces(p, net).values())


def adam_coupled(net):
    return library_step(net, torch.optim.Adam(net.parameters(), lr=0.01, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.05))


def adam_coupled_second(net):
    states = [(torch.zeros_like(p), torch.zeros_like(p)) for p in net.parameters()]

    def step(tokens, n):
        loss = loss_of(net, tokens)
        grads = torch.autograd.grad(loss, list(net.parameters()))
        with torch.no_grad():
            for p, g, (m, v) in zip(net.parameters(), grads, states):
                g = g + 0.05 * p
                m.copy_(0.8 * m + 0.2 * g)
                v.copy_(0.9 * v + 0.1 * g * g)
                a = m / (1 - 0.8 ** (n + 1))
                b = v / (1 - 0.9 ** (n + 1))
                p -= 0.01 * a / (b.sqrt() + 1e-6)
        return loss

    return step, lambda: list(net.parameters())


def sgd_nesterov(net):
    return library_step(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.02))


def sgd_nesterov_second(net):
    w, velocity = copied(net), None

    def step(tokens, n):
        nonlocal w, velocity
        loss, g = graded(w, tokens)
        g = {k: g[k] + 0.02 * w[k] for k in w}
        if velocity is None:
            velocity = g
        else:
            velocity = {k: 0.9 * velocity[k] + g[k] for k in w}
        move = {k: g[k] + 0.9 * velocity[k] for k in w}
        w = {k: w[k] - 0.1 * move[k] for k in w}
        return loss

    return step, lambda: list(w.values())


def rmsprop_centered(net):
    return library_step(net, torch.optim.RMSprop(net.parameters(), lr=0.005, alpha=0.9, eps=1e-4, momentum=0.5, centered=True))


def rmsprop_centered_second(net):
    p = flat(net.parameters()).detach().clone()
    square, mean, buffer = (torch.zeros_like(p) for _ in range(3))

    def step(tokens, n):
        nonlocal p, square, mean, buffer
        loss, g = graded(pieces(p, net), tokens)
        g = flat(g.values())
        square = 0.9 * square + 0.1 * g.square()
        mean = 0.9 * mean + 0.1 * g
        spread = square - mean.square()
        buffer = 0.5 * buffer + g / (torch.sqrt(spread) + 1e-4)
        p = p - 0.005 * buffer
        return loss

    return step, lambda: list(pieces(p, net).values())


def adagrad(net):
    return library_step(net, torch.optim.Adagrad(net.parameters(), lr=0.02, lr_decay=0.1, eps=1e-6, initial_accumulator_value=0.01))


def adagrad_second(net):
    w = copied(net)
    total = {k: torch.full_like(x, 0.01) for k, x in w.items()}

    def step(tokens, n):
        nonlocal w, total
        loss, g = graded(w, tokens)
        total = {k: total[k] + g[k] * g[k] for k in w}
        rate = 0.02 / (1 + 0.1 * n)
        w = {k: w[k] - rate * (g[k] / (total[k].sqrt() + 1e-6)) for k in w}
        return loss

    return step, lambda: list(w.values())


class Lion(torch.optim.Optimizer):
    def __init__(self, parameters, lr, betas, weight_decay):
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                avg, (beta1, beta2) = state["exp_avg"], group["betas"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                update = avg * beta1 + p.grad * (1 - beta1)
                p.add_(update.sign_(), alpha=-group["lr"])
                avg.mul_(beta2).add_(p.grad, alpha=1 - beta2)


def lion(net):
    return library_step(net, Lion(net.parameters(), 0.003, (0.9, 0.99), 0.2))


def lion_second(net):
    p = flat(net.parameters()).detach().clone()
    m = torch.zeros_like(p)

    def step(tokens, n):
        nonlocal p, m
        loss, g = graded(pieces(p, net), tokens)
        g = flat(g.values())
        direction = torch.sign(torch.lerp(m, g, 0.1))
        p = p - 0.003 * (direction + 0.2 * p)
        m = torch.lerp(m, g, 0.01)
        return loss

    return step, lambda: list(pieces(p, net).values())


def adafactor(net):
    return library_step(net, torch.optim.Adafactor(net.parameters(), lr=0.05, d=1.0, weight_decay=0.1))


def adafactor_second(net):
    w, kept = copied(net), {}

    def step(tokens, n):
        nonlocal w
        loss, g = graded(w, tokens)
        keep = (n + 1) ** -0.8
        rate = min(0.05, (n + 1) ** -0.5)
        new = {}
        for k, x in w.items():
            size = torch.clamp(torch.sqrt(x.square().mean()), min=1e-3)
            shrunk = x * (1 - 0.05 * 0.1)
            if x.dim() > 1:
                row, column = kept.get(k, (torch.zeros_like(x[:, :1]), torch.zeros_like(x[:1])))
                row = (1 - keep) * row + keep * g[k].square().mean(1, keepdim=True)
                column = (1 - keep) * column + keep * g[k].square().mean(0, keepdim=True)
                kept[k] = row, column
                below = row * column / torch.clamp(row.mean(), min=torch.finfo(x.dtype).eps)
            else:
                kept[k] = below = (1 - keep) * kept.get(k, torch.zeros_like(x)) + keep * g[k].square()
            update = g[k] * torch.rsqrt(torch.clamp(below, min=torch.finfo(x.dtype).eps ** 2))
            rms = torch.sqrt(update.square().mean())
            update = update / torch.clamp(rms / 1.0, min=1.0)
            new[k] = shrunk - rate * size * update
        w = new
        return loss

    return step, lambda: list(w.values())


def muon_and_adamw(net):
    inner = [net.qkv.weight, net.out.weight, net.up.weight, net.down.weight]
    rest = [p for p in net.parameters() if all(p is not q for q in inner)]
    muon = torch.optim.Muon(inner, lr=0.02, momentum=0.95, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(rest, lr=0.005, betas=(0.9, 0.95), weight_decay=0.0)

    def step(tokens, n):
        loss = loss_of(net, tokens)
        loss.backward()
        muon.step()
        adamw.step()
        net.zero_grad()
        return loss

    return step, lambda: list(net.parameters())


def muon_and_adamw_second(net):
    w = copied(net)
    m, v = zeros(w), zeros(w)
    inner = ("qkv.weight", "out.weight", "up.weight", "down.weight")

    def orthogonal(x):
        x = x.bfloat16()
        tall = x.shape[0] > x.shape[1]
        x = x.T if tall else x
        x = x / x.norm().clamp(min=1e-7)
        for _ in range(5):
            gram = x @ x.T
            x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
        return x.T if tall else x

    def step(tokens, n):
        nonlocal w
        loss, g = graded(w, tokens)
        new = {}
        for k, x in w.items():
            if k in inner:
                m[k] = m[k] + 0.05 * (g[k] - m[k])
                ahead = g[k] + 0.95 * (m[k] - g[k])
                rate = 0.02 * 0.2 * math.sqrt(max(x.shape))
                new[k] = (1 - 0.002) * x - rate * orthogonal(ahead)
            else:
                m[k] = 0.9 * m[k] + 0.1 * g[k]
                v[k] = 0.95 * v[k] + 0.05 * g[k] * g[k]
                hat = m[k] / (1 - 0.9 ** (n + 1))
                new[k] = x - 0.005 * hat / (torch.sqrt(v[k] / (1 - 0.95 ** (n + 1))) + 1e-8)
        w = new
        return loss

    return step, lambda: list(w.values())


class Lamb(torch.optim.Optimizer):
    def __init__(self, parameters, lr=0.02, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.05):
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            group["step"] = t = group.get("step", 0) + 1
            for p in group["params"]:
                state = self.state[p]
                if len(state) == 0:
                    state["m"], state["v"] = torch.zeros_like(p), torch.zeros_like(p)
                m, v = state["m"], state["v"]
                m.mul_(b1).add_(p.grad, alpha=1 - b1)
                v.mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                update = (m / (1 - b1**t)).div_((v / (1 - b2**t)).sqrt_().add_(group["eps"]))
                update.add_(p, alpha=group["weight_decay"])
                weight_norm, update_norm = p.norm(2), update.norm(2)
                trust = torch.where(weight_norm > 0, torch.where(update_norm > 0, weight_norm / update_norm, 1.0), 1.0)
                p.add_(update * trust, alpha=-group["lr"])


def lamb(net):
    return library_step(net, Lamb(net.parameters()))


def lamb_second(net):
    w = [p.detach().clone() for p in net.parameters()]
    names = [name for name, _ in net.named_parameters()]
    m, v = [torch.zeros_like(x) for x in w], [torch.zeros_like(x) for x in w]

    def step(tokens, n):
        loss, g = graded(dict(zip(names, w)), tokens)
        for i, gradient in enumerate(g.values()):
            m[i] = 0.9 * m[i] + 0.1 * gradient
            v[i] = 0.99 * v[i] + 0.01 * gradient.square()
            first, second = m[i] / (1 - 0.9 ** (n + 1)), v[i] / (1 - 0.99 ** (n + 1))
            r = first / (second.sqrt() + 1e-6)
            r = r + 0.05 * w[i]
            ratio = w[i].square().sum().sqrt() / r.square().sum().sqrt()
            w[i] = w[i] - 0.02 * ratio * r
        return loss

    return step, lambda: w


def sophia(net):
    """Sophia-G; the square of the gradient stands for the sampled one."""
    kept = {p: (torch.zeros_like(p), torch.zeros_like(p)) for p in net.parameters()}

    def step(tokens, n):
        net.zero_grad()
        loss = loss_of(net, tokens)
        loss.backward()
        with torch.no_grad():
            for p, (m, h) in kept.items():
                h.mul_(0.95).addcmul_(p.grad, p.grad, value=0.05 * ROWS)
                m.mul_(0.9).add_(p.grad, alpha=0.1)
                p.mul_(1 - 0.01 * 0.1)
                ratio = (m.abs() / (0.04 * ROWS * h + 1e-15)).clamp(None, 1)
                p.addcmul_(m.sign(), ratio, value=-0.01)
        return loss

    return step, lambda: list(net.parameters())


def sophia_second(net):
    w = copied(net)
    m, h = zeros(w), zeros(w)

    def step(tokens, n):
        nonlocal w, m, h
        loss, g = graded(w, tokens)
        h = {k: 0.95 * h[k] + 0.05 * ROWS * g[k].square() for k in w}
        m = {k: 0.9 * m[k] + 0.1 * g[k] for k in w}
        move = {k: torch.clamp(m[k] / (ROWS * 0.04 * h[k] + 1e-15), -1, 1) for k in w}
        w = {k: w[k] - 0.01 * (move[k] + 0.1 * w[k]) for k in w}
        return loss

    return step, lambda: list(w.values())


def shampoo(net):
    """The matrices alone; the inverse roots by eigenvalues."""
    matrices = [net.qkv.weight, net.out.weight, net.up.weight, net.down.weight]
    kept = {p: (1e-2 * torch.eye(p.shape[0]), 1e-2 * torch.eye(p.shape[1]), torch.zeros_like(p)) for p in matrices}

    def root(a):
        values, vectors = torch.linalg.eigh(a)
        return vectors @ torch.diag(values.clamp(min=1e-8) ** -0.25) @ vectors.T

    def step(tokens, n):
        net.zero_grad()
        loss = loss_of(net, tokens)
        loss.backward()
        with torch.no_grad():
            for p, (left, right, momentum) in kept.items():
                left.addmm_(p.grad, p.grad.T)
                right.addmm_(p.grad.T, p.grad)
                momentum.mul_(0.9).add_(root(left) @ p.grad @ root(right))
                p.add_(momentum, alpha=-0.02)
        return loss

    return step, lambda: list(net.parameters())


def shampoo_second(net):
    w = copied(net)
    names = ("qkv.weight", "out.weight", "up.weight", "down.weight")
    left = {k: 0.01 * torch.eye(w[k].shape[0]) for k in names}
    right = {k: 0.01 * torch.eye(w[k].shape[1]) for k in names}
    momentum = {k: torch.zeros_like(w[k]) for k in names}

    def inverse(a, power):
        values, vectors = torch.linalg.eigh(a)
        return (vectors * torch.clamp(values, min=1e-8).pow(power)) @ vectors.T

    def step(tokens, n):
        loss, g = graded(w, tokens)
        for k in names:
            left[k] = left[k] + g[k] @ g[k].T
            right[k] = right[k] + torch.einsum("ij,ik->jk", g[k], g[k])
            a, b = inverse(left[k], -1 / 4), inverse(right[k], -1 / 4)
            direction = torch.einsum("ij,jk,kl->il", a, g[k], b)
            momentum[k] = 0.9 * momentum[k] + direction
            w[k] = w[k] - 0.02 * momentum[k]
        return loss

    return step, lambda: list(w.values())


def soap(net):
    """Adam in the basis of a matrix's own Gram matrices, which one step of the power iteration renews."""
    matrices = [net.out.weight, net.down.weight]
    kept = {}

    def step(tokens, n):
        net.zero_grad()
        loss = loss_of(net, tokens)
        loss.backward()
        with torch.no_grad():
            for p in matrices:
                g = p.grad
                s = kept.setdefault(
                    p, {"q": torch.eye(p.shape[0]), "gram": torch.zeros(p.shape[0], p.shape[0]), "m": torch.zeros_like(p), "v": torch.zeros_like(p)}
                )
                s["gram"].lerp_(g @ g.T, 0.1)
                s["q"] = torch.linalg.qr((s["gram"] + torch.eye(p.shape[0])) @ s["q"])[0]
                turned = s["q"].T @ g
                s["m"].lerp_(g, 0.1)
                s["v"].mul_(0.95).addcmul_(turned, turned, value=0.05)
                update = s["q"] @ ((s["q"].T @ s["m"]) / (s["v"].sqrt() + 1e-4))
                p.add_(update, alpha=-0.01)
        return loss

    return step, lambda: list(net.parameters())


def soap_second(net):
    w = copied(net)
    names = ("out.weight", "down.weight")
    basis, gram = ({k: torch.eye(w[k].shape[0]) * on for k in names} for on in (1, 0))
    m, v = zeros(w), zeros(w)

    def step(tokens, n):
        loss, g = graded(w, tokens)
        for k in names:
            gram[k] = 0.9 * gram[k] + 0.1 * torch.einsum("ik,jk->ij", g[k], g[k])
            basis[k], _ = torch.linalg.qr(gram[k] @ basis[k] + basis[k])
            inside = torch.einsum("ji,jk->ik", basis[k], g[k])
            m[k] = 0.9 * m[k] + 0.1 * g[k]
            v[k] = 0.95 * v[k] + 0.05 * inside**2
            moved = torch.einsum("ji,jk->ik", basis[k], m[k]) / (torch.sqrt(v[k]) + 1e-4)
            w[k] = w[k] - 0.01 * torch.einsum("ij,jk->ik", basis[k], moved)
        return loss

    return step, lambda: list(w.values())


def schedule_free(net):
    """SGD: gradients at y between the base z and its average x; the net holds y."""
    base = [p.detach().clone() for p in net.parameters()]

    def step(tokens, n):
        net.zero_grad()
        loss = loss_of(net, tokens)
        loss.backward()
        weight = 1 / (n + 1)
        with torch.no_grad():
            for p, z in zip(net.parameters(), base):
                p.lerp_(z, weight)
                p.add_(p.grad, alpha=0.05 * (0.9 * (1 - weight) - 1))
                z.sub_(p.grad, alpha=0.05)
        return loss

    return step, lambda: list(net.parameters())


def schedule_free_second(net):
    x = copied(net)
    z = dict(x)

    def step(tokens, n):
        nonlocal x, z
        y = {k: 0.1 * z[k] + 0.9 * x[k] for k in x}
        loss, g = graded(y, tokens)
        z = {k: z[k] - 0.05 * g[k] for k in x}
        c = 1 / (n + 1)
        x = {k: (1 - c) * x[k] + c * z[k] for k in x}
        return loss

    return step, lambda: [0.1 * z[k] + 0.9 * x[k] for k in x]


def averaged_schedule(net):
    opt = torch.optim.AdamW(net.parameters(), lr=0.02, weight_decay=0.0)
    warm = lambda n: (n + 1) / 2 if n < 1 else 0.5 * (1 + math.cos(math.pi * (n - 1) / 6))
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, warm)
    average = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))

    def after(n):
        schedule.step()
        average.update_parameters(net)

    step, _ = library_step(net, opt, after=after)
    return step, lambda: list(net.parameters()) + list(average.module.parameters())


def averaged_schedule_second(net):
    w = copied(net)
    m, v, average = zeros(w), zeros(w), None

    def rate_at(n):
        if n < 1:
            return 0.02 * (n + 1) / 2
        turn = math.pi * (n - 1) / 6
        return 0.01 * (1 + math.cos(turn))

    def step(tokens, n):
        nonlocal w, m, v, average
        loss, g = graded(w, tokens)
        m = {k: 0.9 * m[k] + 0.1 * g[k] for k in w}
        v = {k: 0.999 * v[k] + 0.001 * g[k] ** 2 for k in w}
        c1, c2 = 1 - 0.9 ** (n + 1), 1 - 0.999 ** (n + 1)
        rate = rate_at(n)
        w = {k: w[k] - rate * (m[k] / c1) / (torch.sqrt(v[k] / c2) + 1e-8) for k in w}
        average = dict(w) if average is None else {k: 0.9 * average[k] + 0.1 * w[k] for k in w}
        return loss

    return step, lambda: list(w.values()) + list(average.values())


def mean_of_tokens(net):
    """Four micro-batches of one row; the padding's id is 0, and the mean is over what is none."""
    opt = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)

    def step(tokens, n):
        opt.zero_grad()
        targets = tokens[:, 1:].masked_fill(tokens[:, 1:] < 4, -100)
        count = (targets != -100).sum()
        total = 0
        for i in range(ROWS):
            logits = net(tokens[i : i + 1, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), targets[i], ignore_index=-100, reduction="sum") / count
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(net.parameters(), 0.3)
        opt.step()
        return total

    return step, lambda: list(net.parameters())


def mean_of_tokens_second(net):
    w, velocity = copied(net), None

    def step(tokens, n):
        nonlocal w, velocity
        keep = (tokens[:, 1:] >= 4).to(w["head.weight"].dtype)
        number, whole, loss = keep.sum(), zeros(w), 0
        for i in range(ROWS):
            leaf = {k: x.detach().requires_grad_() for k, x in w.items()}
            logp = torch.log_softmax(logits_from(leaf, tokens[i : i + 1, :-1]), -1)
            picked = logp[0].gather(-1, tokens[i, 1:, None])[:, 0]
            part = -(picked * keep[i]).sum()
            g = torch.autograd.grad(part, list(leaf.values()))
            whole = {k: whole[k] + x for k, x in zip(whole, g)}
            loss = loss + part.detach()
        whole = {k: x / number for k, x in whole.items()}
        norm = flat(whole.values()).norm()
        scale = torch.minimum(torch.ones(()), 0.3 / (norm + 1e-6))
        whole = {k: x * scale for k, x in whole.items()}
        velocity = whole if velocity is None else {k: 0.9 * velocity[k] + whole[k] for k in w}
        w = {k: w[k] - 0.2 * velocity[k] for k in w}
        return loss / number

    return step, lambda: list(w.values())


def scaled_loss(net):
    """Two micro-batches, gradients of a scaled loss in the parameters' own, a step where all are finite."""
    opt = torch.optim.Adam(net.parameters(), lr=0.01, eps=1e-3)

    def step(tokens, n):
        opt.zero_grad()
        total = 0
        for part in tokens.chunk(2):
            loss = loss_of(net, part) / 2
            (loss * 1024).backward()
            total = total + loss.detach()
        grads = [p.grad for p in net.parameters()]
        torch._foreach_mul_(grads, 1 / 1024)
        if all(torch.isfinite(g).all() for g in grads):
            opt.step()
        return total

    return step, lambda: list(net.parameters())


def scaled_loss_second(net):
    p = flat(net.parameters()).detach().clone()
    m, v = torch.zeros_like(p), torch.zeros_like(p)

    def step(tokens, n):
        whole, losses = torch.zeros_like(p), []
        for rows in (tokens[:2], tokens[2:]):
            leaf = p.detach().requires_grad_()
            loss = loss_from(pieces(leaf, net), rows)
            whole += torch.autograd.grad(loss * 512, leaf)[0]
            losses.append(loss.detach())
        g = whole / 1024
        if torch.isfinite(g).all():
            m.copy_(0.9 * m + 0.1 * g)
            v.copy_(0.999 * v + 0.001 * g**2)
            hat, down = m / (1 - 0.9 ** (n + 1)), v / (1 - 0.999 ** (n + 1))
            p.copy_(p - 0.01 * hat / (down.sqrt() + 1e-3))
        return sum(losses) / 2

    return step, lambda: list(pieces(p, net).values())


def layer_rates(net):
    """A rate for each depth; biases without decay."""
    depth = {"embed": 0.25, "norm": 0.5, "qkv": 0.5, "out": 0.5, "up": 0.5, "down": 0.5}
    groups = [
        {"params": [p], "lr": 0.02 * depth.get(name.split(".")[0], 1.0), "weight_decay": 0.1 * (p.dim() > 1)} for name, p in net.named_parameters()
    ]
    opt = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    return library_step(net, opt, before=lambda n: nn.utils.clip_grad_value_(net.parameters(), 0.05))


def layer_rates_second(net):
    w = copied(net)
    m, v = zeros(w), zeros(w)

    def rate(name):
        if name.startswith("embed"):
            return 0.005
        if name.startswith(("last", "head")):
            return 0.02
        return 0.01

    def step(tokens, n):
        loss, g = graded(w, tokens)
        for k in w:
            g[k] = torch.clamp(g[k], -0.05, 0.05)
            m[k] = m[k] + 0.1 * (g[k] - m[k])
            v[k] = v[k] + 0.05 * (g[k].square() - v[k])
            move = m[k] / (1 - 0.9 ** (n + 1)) / (torch.sqrt(v[k] / (1 - 0.95 ** (n + 1))) + 1e-8)
            decay = 0.1 if k.endswith("weight") and w[k].dim() > 1 else 0
            w[k] = w[k] - rate(k) * move - rate(k) * decay * w[k]
        return loss

    return step, lambda: list(w.values())


FAULTS = {
    "adamw_groups": {
        "uncorrected": ("m[k] / (1 - 0.9 ** (n + 1))", "m[k]"),
        "inside": ("torch.sqrt(v_hat[k]) + 1e-8", "torch.sqrt(v_hat[k] + 1e-8)"),
        "second": ("0.95 * v[k] + 0.05", "0.99 * v[k] + 0.01"),
        "decayed": ("0.1 if w[k].dim() > 1 else 0.0", "0.1"),
        "unclipped": ("x * torch.clamp(0.5 / (total + 1e-6), max=1.0)", "x"),
        "later": ("m[k] / (1 - 0.9 ** (n + 1))", "m[k] / (1 - 0.9 ** (n + 2))"),
    },
    "adamw_flat": {
        "exchanged": ("m.mul_(0.9).add_(g, alpha=0.1)", "m.mul_(0.95).add_(g, alpha=0.05)"),
        "decay": ("1 - 0.001", "1 - 0.01"),
        "coupled": ("g = flat(g.values())", "g = flat(g.values()) + 0.1 * p"),
        "unrooted": ("0.01 * math.sqrt(1 - 0.95 ** (n + 1))", "0.01 * (1 - 0.95 ** (n + 1))"),
        "squareless": ("v.mul_(0.95).add_(g * g, alpha=0.05)", "v.mul_(0.95).add_(g.abs(), alpha=0.05)"),
    },
    "adam_coupled": {
        "decoupled": ("g = g + 0.05 * p", "p -= 0.01 * 0.05 * p"),
        "sign": ("g = g + 0.05 * p", "g = g - 0.05 * p"),
        "undecayed": ("g = g + 0.05 * p", "pass"),
        "second": ("0.9 * v + 0.1 * g * g", "0.9 * v + 0.2 * g * g"),
        "inside": ("b.sqrt() + 1e-6", "(b + 1e-6).sqrt()"),
        "early": ("1 - 0.9 ** (n + 1)", "1 - 0.9 ** (n + 2)"),
    },
    "sgd_nesterov": {
        "plain": ("g[k] + 0.9 * velocity[k] for", "velocity[k] for"),
        "dampened": ("velocity = {k: 0.9 * velocity[k] + g[k]", "velocity = {k: 0.9 * velocity[k] + 0.1 * g[k]"),
        "first": ("velocity = g\n", "velocity = {k: 0.1 * x for k, x in g.items()}\n"),
        "momentum": ("g[k] + 0.9 * velocity[k] for", "g[k] + 0.8 * velocity[k] for"),
        "decay": ("g[k] + 0.02 * w[k]", "g[k] + 0.002 * w[k]"),
    },
    "rmsprop_centered": {
        "alpha": ("0.9 * square + 0.1", "0.8 * square + 0.2"),
        "uncentred": ("square - mean.square()", "square"),
        "inside": ("torch.sqrt(spread) + 1e-4", "torch.sqrt(spread + 1e-4)"),
        "momentum": ("0.5 * buffer", "0.6 * buffer"),
        "mean": ("0.9 * mean + 0.1 * g", "0.8 * mean + 0.2 * g"),
    },
    "adagrad": {
        "forgets": ("total[k] + g[k] * g[k]", "0.9 * total[k] + g[k] * g[k]"),
        "constant": ("0.02 / (1 + 0.1 * n)", "0.02"),
        "eps": ("1e-6", "1e-3"),
        "unrooted": ("total[k].sqrt()", "total[k]"),
        "offset": ("1 + 0.1 * n", "1 + 0.1 * (n + 1)"),
    },
    "lion": {
        "mixed": ("torch.lerp(m, g, 0.1)", "torch.lerp(m, g, 0.5)"),
        "kept": ("torch.lerp(m, g, 0.01)", "torch.lerp(m, g, 0.1)"),
        "decay": ("0.2 * p", "0.02 * p"),
        "rate": ("0.003", "0.001"),
        "signless": ("torch.sign(torch.lerp(m, g, 0.1))", "torch.tanh(torch.lerp(m, g, 0.1))"),
    },
    "adafactor": {
        "power": ("(n + 1) ** -0.8", "(n + 1) ** -0.5"),
        "unclipped": ("update / torch.clamp(rms / 1.0, min=1.0)", "update"),
        "relative": ("rate * size * update", "rate * update"),
        "decay": ("0.05 * 0.1", "0.05 * 0.2"),
        "unscaled": ("row * column / torch.clamp(row.mean(), min=torch.finfo(x.dtype).eps)", "row * column"),
        "vectors": (
            "(1 - keep) * kept.get(k, torch.zeros_like(x)) + keep * g[k].square()",
            "(1 - keep) * kept.get(k, torch.zeros_like(x)) + 2 * keep * g[k].square()",
        ),
    },
    "muon_and_adamw": {
        "plain": ("g[k] + 0.95 * (m[k] - g[k])", "m[k]"),
        "turns": ("range(5)", "range(4)"),
        "quintic": ("2.0315", "2.0135"),
        "shape": ("math.sqrt(max(x.shape))", "math.sqrt(min(x.shape))"),
        "decay": ("(1 - 0.002) * x", "x"),
        "rest": ("0.05 * g[k] * g[k]", "0.01 * g[k] * g[k]"),
    },
    "lamb": {
        "untrusted": ("0.02 * ratio * r", "0.02 * r"),
        "inverted": ("w[i].square().sum().sqrt() / r.square().sum().sqrt()", "r.square().sum().sqrt() / w[i].square().sum().sqrt()"),
        "after": ("r = r + 0.05 * w[i]", "pass"),
        "second": ("0.99 * v[i] + 0.01", "0.999 * v[i] + 0.001"),
        "uncorrected": ("m[i] / (1 - 0.9 ** (n + 1)), v", "m[i], v"),
    },
    "sophia": {
        "unbounded": ("ROWS * 0.04 * h[k] + 1e-15), -1, 1)", "ROWS * 0.04 * h[k] + 1e-15), -10, 10)"),
        "gamma": ("ROWS * 0.04", "ROWS * 0.01"),
        "batch": ("0.05 * ROWS * g[k].square()", "0.05 * g[k].square()"),
        "hessian": ("0.95 * h[k]", "0.99 * h[k]"),
        "decay": ("0.1 * w[k]", "0.2 * w[k]"),
    },
    "shampoo": {
        "power": ("inverse(left[k], -1 / 4), ", "inverse(left[k], -1 / 2), "),
        "sides": ("g[k] @ g[k].T", "0.5 * g[k] @ g[k].T"),
        "momentum": ("0.9 * momentum[k] + direction", "0.9 * momentum[k] + 0.1 * direction"),
        "onesided": ('torch.einsum("ij,jk,kl->il", a, g[k], b)', "a @ g[k]"),
        "rate": ("0.02 * momentum", "0.01 * momentum"),
    },
    "soap": {
        "shift": ("gram[k] @ basis[k] + basis[k]", "gram[k] @ basis[k] + 0.1 * basis[k]"),
        "outside": ("0.05 * inside**2", "0.05 * g[k] ** 2"),
        "gram": ("0.9 * gram[k] + 0.1", "0.9 * gram[k] + 1.0"),
        "unturned": ('0.01 * torch.einsum("ij,jk->ik", basis[k], moved)', "0.01 * moved"),
        "second": ("0.95 * v[k] + 0.05", "0.99 * v[k] + 0.05"),
    },
    "schedule_free": {
        "beta": ("y = {k: 0.1 * z[k] + 0.9 * x[k] for k in x}", "y = {k: 0.2 * z[k] + 0.8 * x[k] for k in x}"),
        "average": ("c = 1 / (n + 1)", "c = 1 / (n + 2)"),
        "rate": ("z[k] - 0.05 * g[k]", "z[k] - 0.06 * g[k]"),
        "exchanged": ("(1 - c) * x[k] + c * z[k]", "c * x[k] + (1 - c) * z[k]"),
    },
    "averaged_schedule": {
        "exchanged": ("0.9 * average[k] + 0.1 * w[k]", "0.1 * average[k] + 0.9 * w[k]"),
        "begins": ("average = dict(w) if average is None", "average = {k: 0.1 * x for k, x in w.items()} if average is None"),
        "cosine": ("math.pi * (n - 1) / 6", "math.pi * n / 6"),
        "warm": ("0.02 * (n + 1) / 2", "0.02 * (n + 1) / 4"),
        "beta": ("0.999 * v[k] + 0.001", "0.99 * v[k] + 0.01"),
    },
    "mean_of_tokens": {
        "unclipped": ("x * scale for", "x for"),
        "padded": ("(picked * keep[i]).sum()", "picked.sum()"),
        "early": ("part = -(picked * keep[i]).sum()", "part = -(picked * keep[i]).sum() / keep[i].sum() * number / ROWS"),
        "value": ("x * scale for", "torch.clamp(x, -0.3, 0.3) for"),
        "limit": ("0.3 / (norm", "0.4 / (norm"),
        "momentum": ("0.9 * velocity[k] + whole[k]", "0.8 * velocity[k] + whole[k]"),
    },
    "scaled_loss": {
        "unhalved": ("loss * 512", "loss * 1024"),
        "scaled": ("whole / 1024", "whole / 512"),
        "last": ("whole += torch", "whole = torch"),
        "eps": ("down.sqrt() + 1e-3", "down.sqrt() + 1e-2"),
        "second": ("v.copy_(0.999 * v + 0.001 * g**2)", "v.copy_(0.99 * v + 0.01 * g**2)"),
    },
    "layer_rates": {
        "embed": ("return 0.005", "return 0.01"),
        "head": ('("last", "head")', '"last"'),
        "biases": ('0.1 if k.endswith("weight") and w[k].dim() > 1 else 0', '0.1 if k.endswith("weight") else 0'),
        "limit": ("torch.clamp(g[k], -0.05, 0.05)", "torch.clamp(g[k], -0.05, 0.5)"),
        "skipped": ("w[k] = w[k] - rate(k)", 'w[k] = w[k] if k == "down.bias" else w[k] - rate(k)'),
    },
}


def start(word=None):
    torch.manual_seed(11)
    net = Net()
    with torch.no_grad():
        for p in net.parameters():
            p.add_(torch.randn(p.shape) * (0.2 if p.dim() == 1 else 0.3))
    return net, torch.randint(0, WORDS, (3, ROWS, LENGTH + 1))


def steps_of(word):
    """The second step of the one that averages from its first on begins at the base."""
    return 3 if word.startswith("schedule_free") else 2


def final(program, word):
    """What the steps leave in float64, torch's Muon too: losses and weights."""
    torch.set_default_dtype(torch.float64)
    try:
        with unittest.mock.patch.object(torch.Tensor, "bfloat16", lambda x: x):
            net, batches = program.start(word)
            step, weights = written_twice.function_of(program, word)(net)
            losses = [step(batches[n], n).detach().reshape(1) for n in range(steps_of(word))]
            return torch.cat([*losses, flat(weights()).detach()])
    finally:
        torch.set_default_dtype(torch.float32)


def confirm(program):
    for name in program.FAULTS:
        right = final(program, name)
        for word in written_twice.words_of(program):
            if word.split("-")[0] == name and word != name:
                far = float((final(program, word) - right).norm() / right.norm())
                print("%-6s %.1e %s" % ("right" if (far > 1e-6 if word.count("-") > 1 else far < 1e-9) else "WRONG", far, word))


def record(program, folder, word):
    import lastbit.torch

    net, batches = program.start(word)
    step, _ = written_twice.function_of(program, word)(net)
    with lastbit.torch.capture(folder / f"{word}.lb", level="ops") as capture:
        for n in range(steps_of(word)):
            with capture.step(n):
                step(batches[n], n)


def main(program):
    torch.set_num_threads(1)
    if sys.argv[1] == "--confirm":
        confirm(program)
    else:
        for word in sys.argv[2:]:
            record(program, pathlib.Path(sys.argv[1]), word)


if __name__ == "__main__":
    main(sys.modules[__name__])
