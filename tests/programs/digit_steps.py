"""Steps of a small model that lose digits, each recorded by itself: digit_steps.py FOLDER NAME… writes FOLDER/NAME.lb. A name says where
they are lost, and behind `right_` how the same is done without losing them."""

import pathlib
import sys

import lastbit.torch
import torch
import torch.nn.functional as F

VOCABULARY, WIDTH, HEADS, TOKENS = 64, 32, 2, 320


class RMSNorm(torch.nn.Module):
    def __init__(self, d, name):
        super().__init__()
        self.weight, self.name = torch.nn.Parameter(torch.ones(d)), name

    def forward(self, x):
        if self.name == "norm_bf16":
            small = x.bfloat16()
            return (small * torch.rsqrt(small.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight.bfloat16()).to(x.dtype)
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.weight.to(x.dtype)


class Spread(torch.nn.Module):
    """A norm by hand, of numbers far from zero."""

    def __init__(self, name):
        super().__init__()
        self.name = name

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        if self.name == "variance_of_squares":
            squares = (x * x).mean(-1, keepdim=True)
            variance = squares - mean * mean
        else:
            variance = (x - mean).pow(2).mean(-1, keepdim=True)
        return (x - mean) * torch.rsqrt(variance + 1e-5)


def phases(name, tokens, d):
    frequencies = 10000.0 ** -(torch.arange(0, d, 2) / d)
    positions = torch.arange(tokens)
    if name == "rope_bf16":
        angles = positions.bfloat16()[:, None] * frequencies.bfloat16()
    else:
        angles = positions.float()[:, None] * frequencies
    return angles.cos(), angles.sin()


class Attention(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.name = name
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH, bias=False), torch.nn.Linear(WIDTH, WIDTH, bias=False)

    def turn(self, x, cos, sin):
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, HEADS, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        cos, sin = (y.to(q.dtype) for y in phases(self.name, t, d // HEADS))
        y = F.scaled_dot_product_attention(self.turn(q, cos, sin) * 3, self.turn(k, cos, sin), v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class Experts(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.name = name
        self.router = torch.nn.Linear(WIDTH, 8, bias=False)
        self.up, self.down = (torch.nn.Parameter(torch.randn(8, WIDTH, WIDTH) / WIDTH**0.5) for _ in range(2))

    def forward(self, x):
        if self.name == "router_bf16":
            scores = F.linear(x.bfloat16(), self.router.weight.bfloat16())
        else:
            scores = self.router(x)
        weights, chosen = scores.float().softmax(-1).topk(2)
        gate = torch.zeros(*x.shape[:-1], 8).scatter(-1, chosen, weights).to(x.dtype)
        if "twice" in self.name:  # as a loss that balances experts does, which is told of another number of them as well
            self.counts = [F.one_hot(scores.float().softmax(-1).topk(k)[1], 8).sum((0, 1, 2)) for k in (2, 3)]
        h = torch.einsum("btd,edf->btef", x, self.up).relu()
        return torch.einsum("btef,efd,bte->btd", h, self.down, gate)


def to_eight(x, scale, limit):
    """A cast to e4m3fn with the scale of an earlier step, and back."""
    return ((x * scale).clamp(-limit, limit).to(torch.float8_e4m3fn)).to(x.dtype) / scale


class Model(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.name = name
        self.wte = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.norm, self.attention, self.last = RMSNorm(WIDTH, name), Attention(name), RMSNorm(WIDTH, "")
        self.spread = Spread(name) if "variance" in name else torch.nn.Identity()
        self.mixture = Experts(name) if "router" in name else torch.nn.Identity()
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.wte(ids)
        x = x + self.attention(self.norm(x))
        if "variance" in self.name:
            x = self.spread(x + 100)
        if "router" in self.name:
            x = x + self.mixture(x)
        if "eight" in self.name:
            scale = 448 / x.detach().abs().amax() * (16 if self.name == "eight_stale" else 1e-6 if self.name == "eight_small" else 1)
            x = x + (to_eight(x.detach(), scale, 448) - x.detach())
        return self.head(self.last(x))


def loss_of(name, logits, ids):
    logits, targets = logits[:, :-1].reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1)
    if name == "entropy_bf16":
        return F.cross_entropy(logits.bfloat16(), targets).float()
    return F.cross_entropy(logits.float(), targets) * (2.0**-18 if name == "scale_low" else 1)


def rate_of(name):
    return {"adamw_small_rate": 1e-8, "right_adamw_small_rate": 1e-8}.get(name, 6e-4)


class Master:
    """AdamW on a copy of the parameters in f32, which are copied back."""

    def __init__(self, parameters, rate):
        self.narrow = list(parameters)
        self.wide = [p.detach().float().requires_grad_() for p in self.narrow]
        self.inner = torch.optim.AdamW(self.wide, lr=rate)

    def step(self):
        for wide, narrow in zip(self.wide, self.narrow):
            wide.grad = narrow.grad.float()
        self.inner.step()
        with torch.no_grad():
            for wide, narrow in zip(self.wide, self.narrow):
                narrow.copy_(wide)

    def zero_grad(self):
        for p in self.narrow:
            p.grad = None


class Compensated(torch.optim.Optimizer):
    """Plain descent that keeps what each addition rounds, and adds it the next time."""

    def __init__(self, parameters, rate):
        super().__init__(parameters, dict(lr=rate))
        self.rest = {p: torch.zeros_like(p) for group in self.param_groups for p in group["params"]}

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                update, before = self.rest[p] - group["lr"] * p.grad, p.clone()
                p.add_(update)
                self.rest[p].copy_(update - (p - before))


def optimizer_of(name, model):
    if name == "adamw_master":
        return Master(model.parameters(), rate_of(name))
    if name == "adamw_compensated":
        return Compensated(model.parameters(), rate_of(name))
    eps = 1e-4 if name == "adamw_half" else 1e-8
    return torch.optim.AdamW(model.parameters(), lr=rate_of(name), eps=eps, foreach="foreach" in name, fused="fused" in name)


def model_of(name):
    torch.manual_seed(0)
    model = Model(name)
    if name.startswith("adamw") or name == "sums_bf16":
        model = model.to(torch.float16 if name == "adamw_half" else torch.bfloat16)
    return model


def batch_of(name):
    return torch.randint(0, VOCABULARY, (1, TOKENS if "rope" in name or "router" in name else 24))


def exact_loss(name):
    """Of the recorded batch, by a model in f64."""
    model = model_of(name).double()
    ids = batch_of(name)
    for norm in (model.norm, model.last):
        norm.forward = lambda x, w=norm.weight: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w
    model.attention.turn = lambda x, cos, sin: Attention.turn(model.attention, x, *(y.double() for y in model.angles))
    wide = torch.arange(ids.shape[1]).double()[:, None] * (10000.0 ** -(torch.arange(0, WIDTH // HEADS, 2) / (WIDTH // HEADS))).double()
    model.angles = wide.cos(), wide.sin()
    with torch.no_grad():
        return F.cross_entropy(model(ids)[:, :-1].reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1)).item()


def unmoved(name, steps):
    """Per parameter the elements that steps of AdamW were to move, and did not."""
    model = model_of(name)
    optimizer, count = optimizer_of(name, model), dict.fromkeys((n for n, _ in model.named_parameters()), 0)
    for _ in range(steps):
        ids = batch_of(name)
        loss_of(name, model(ids), ids).backward()
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        optimizer.step()
        for n, p in model.named_parameters():
            if p.grad is not None:
                moves = (p.grad != 0) | (optimizer.state[p]["exp_avg"] != 0) | (before[n] != 0)
                count[n] += int((moves & (p == before[n])).sum())
        optimizer.zero_grad()
    return count


def train(name, out, steps):
    model = model_of(name)
    optimizer = optimizer_of(name, model)
    start = {"scale_low": 2.0**4, "scale_high": 2.0**26, "right_scale": 2.0**14}.get(name)
    scaler = torch.amp.GradScaler("cpu", init_scale=start or 1.0, enabled=start is not None)
    with lastbit.torch.capture(out, level="layers" if name.endswith("_layers") else "ops") as capture:
        for step in range(steps):
            batches = [batch_of(name) for _ in range(32 if "sums" in name else 1)]
            with capture.step(step):
                for ids in batches:
                    with torch.autocast("cpu", torch.float16, enabled=start is not None):
                        logits = model(ids)
                    scaler.scale(loss_of(name, logits, ids)).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()


if __name__ == "__main__":
    for name in sys.argv[2:]:
        train(name, pathlib.Path(sys.argv[1]) / f"{name}.lb", 3 if "adamw" in name else 1)
