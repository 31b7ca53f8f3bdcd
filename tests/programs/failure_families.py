"""A small language model, four steps of it, with one fault from what goes wrong in training: python failure_families.py NAME

Every fault is one function over the parts of the run. `FAULTS` says of each what a person who knows it would answer: the axis, the
module or the owner of the parameter, what the op's name holds, the phase and the step in which it acts."""

import math
import sys

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, VOCABULARY, LENGTH, BATCH, STEPS, AT = 16, 2, 24, 12, 3, 4, 2


class Norm(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(WIDTH)), eps

    def forward(self, x):
        return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps).to(x.dtype) * self.weight


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("inv_freq", 100.0 ** -torch.arange(0, 4, dtype=torch.float32).div(4))
        self.scale = 1.0

    def forward(self, x):
        at = torch.arange(x.size(-2), dtype=x.dtype)[:, None] * self.scale
        angle = at * self.inv_freq.to(x.dtype)
        sin, cos = angle.sin(), angle.cos()
        a, b = x[..., :4], x[..., 4:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out, self.rotary = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False), Rotary()
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH).tril().log())
        self.temperature = 1.0

    def forward(self, x):
        q, k, v = self.qkv(x).view(x.size(0), x.size(1), 3, HEADS, 8).permute(2, 0, 3, 1, 4)
        scores = self.rotary(q) @ self.rotary(k).transpose(-1, -2) / math.sqrt(8) * self.temperature + self.mask[: x.size(1), : x.size(1)].to(x.dtype)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        self.act = nn.SiLU()

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention, self.norm2, self.mlp = Norm(), Attention(), Norm(), Mlp()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(VOCABULARY, WIDTH), nn.ModuleList(Block() for _ in range(3))
        self.norm, self.head = Norm(), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids, soft=None):
        x = self.embed(ids)
        if soft is not None:
            x = x + soft
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Run:
    """What a fault may reach into. `before(step)` runs ahead of the step's forward, `loss` is what backward starts from."""

    def __init__(self):
        torch.manual_seed(1)
        self.model = Model()
        self.groups = [
            {"params": [p for n, p in self.model.named_parameters() if "blocks.1.mlp" not in n]},
            {"params": list(self.model.blocks[1].mlp.parameters())},
        ]
        self.optimizer = torch.optim.AdamW(self.groups, lr=1e-3)
        self.batches = list(torch.randint(0, VOCABULARY, (STEPS, BATCH, LENGTH + 1)))
        self.soft = list(torch.randn(STEPS, BATCH, LENGTH, WIDTH) * 0.1)
        self.before = lambda step: None
        self.after_backward = lambda step: None
        self.loss = lambda logits, ids, step: F.cross_entropy(logits.flatten(0, 1), ids.flatten())
        self.dtype = None

    def train(self):
        for step in range(STEPS):
            self.before(step)
            ids = self.batches[step]
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.dtype == "autocast"):
                loss = self.loss(self.model(ids[:, :-1], self.soft[step].to(self.model.head.weight.dtype)), ids[:, 1:], step)
            loss.backward()
            self.after_backward(step)
            self.optimizer.step()
            self.optimizer.zero_grad()


FAULTS = {}


def fault(axis, layer, op, phase, step=AT, **more):
    def note(function):
        FAULTS[function.__name__] = (function, dict(axis=axis, layer=layer, op=op, phase=phase, step=step, **more))
        return function

    return note


def at(run, action, when=AT):
    run.before = lambda step: action() if step == when else None


def replace(module, forward):
    """`forward` in the place of the module's own, with the module as its first argument."""
    module.forward = forward.__get__(module)


# ---- parameters, states, rates, buffers: what comes from outside


@fault("source", "blocks.1.mlp.up", "lb::source", "forward", parameter="blocks.1.mlp.up.weight")
def parameter_written_unseen(run):
    at(run, lambda: run.model.blocks[1].mlp.up.weight.detach().numpy().__setitem__((3, 4), float("inf")))


@fault("source", "blocks.2.attention.qkv", "lb::source", "optimizer", step=AT, parameter="blocks.2.attention.qkv.weight")
def momentum_written_unseen(run):
    p = run.model.blocks[2].attention.qkv.weight
    at(run, lambda: run.optimizer.state[p]["exp_avg"].numpy().fill(float("nan")))


@fault("source", "blocks.0.attention.rotary", "lb::source", "forward", parameter="blocks.0.attention.rotary.inv_freq")
def buffer_written_unseen(run):
    at(run, lambda: run.model.blocks[0].attention.rotary.inv_freq.numpy().__setitem__(1, float("inf")))


@fault("block", "blocks.0.mlp.down", "aten::addmm", "forward")
def weight_multiplied(run):
    """What a broken conversion of a checkpoint does, by an op that was seen."""

    @torch.no_grad()
    def multiply():
        run.model.blocks[0].mlp.down.weight.mul_(1e30)

    at(run, multiply)


@fault("source", "blocks.0.mlp.down", "aten::mul_", None, parameter="blocks.0.mlp.down.weight")
def momentum_multiplied(run):
    p = run.model.blocks[0].mlp.down.weight
    at(run, lambda: run.optimizer.state[p]["exp_avg"].mul_(1e34))


@fault("source", "blocks.0.attention.rotary", "aten::mul_", None, parameter="blocks.0.attention.rotary.inv_freq")
def buffer_multiplied(run):
    at(run, lambda: run.model.blocks[0].attention.rotary.inv_freq.mul_(1e38))


@fault("source", "blocks.1.mlp", "aten::", "optimizer", step=AT)
def rate_of_one_group(run):
    """A schedule that multiplies the rate of one group by a billion in one step."""

    def spike():
        run.optimizer.param_groups[1]["lr"] = 1e12

    at(run, spike)


@fault("source", "blocks.1.mlp", "aten::", "optimizer", step=0)
def rate_too_large(run):
    run.optimizer.param_groups[1]["lr"] = 1e4
    run.model.blocks[1].mlp.down.weight.data.mul_(0.01)


@fault("source", None, "aten::", "optimizer", step=0)
def decay_with_the_wrong_sign(run):
    for group in run.optimizer.param_groups:
        group["weight_decay"] = -3e4


@fault("source", "blocks.2.attention.out", None, "optimizer", step=0, parameter="blocks.2.attention.out.weight")
def state_of_a_checkpoint(run):
    """Second moments that were read with the wrong sign."""
    for p in run.model.parameters():
        run.optimizer.state[p] = {"step": torch.tensor(10.0), "exp_avg": torch.full_like(p, 1e-3), "exp_avg_sq": torch.full_like(p, 1e-4)}
    run.optimizer.state[run.model.blocks[2].attention.out.weight]["exp_avg_sq"].neg_()


@fault("source", "blocks.1.mlp.act", "aten::zero_", None, parameter="blocks.1.mlp.act.amax")
def scale_of_an_fp8_cast(run):
    """The largest magnitude that delayed scaling remembers is reset to 0: the scale made of it is infinite."""

    def forward(self, x):
        scale = 448.0 / self.amax
        return (F.silu(x) * scale).to(torch.float8_e4m3fn).to(x.dtype) / scale

    act = run.model.blocks[1].mlp.act
    act.register_buffer("amax", torch.ones(1))
    replace(act, forward)
    at(run, lambda: act.amax.zero_())


# ---- data


@fault("source", None, "lb::source", "forward")
def row_of_the_batch(run):
    run.soft[AT][1, 5] = float("nan")


@fault("source", "embed", "lb::source", "forward", step=0, parameter="embed.weight")
def row_of_the_embedding(run):
    """A token that first comes in step 2."""
    run.model.embed.weight.data[VOCABULARY - 1] = float("inf")
    for step, ids in enumerate(run.batches):
        ids.clamp_(max=VOCABULARY - 2)
        if step == AT:
            ids[1, 3] = VOCABULARY - 1


@fault("source", "blocks.1.attention", "aten::fill_", None, step=AT - 1, parameter="blocks.1.attention.mask")
def row_without_keys(run):
    at(run, lambda: run.model.blocks[1].attention.mask[5].fill_(-math.inf))


# ---- precision


@fault("precision", "blocks.1.attention.rotary", "aten::", "forward")
def rotary_in_half(run):
    """Positions times a scale, in f16: more than 65504 at the end of a long sequence."""

    def forward(self, x):
        if not self.long:
            return Rotary.forward(self, x)
        at = torch.arange(x.size(-2), dtype=torch.float16)[:, None] * 8192.0
        angle = (at * self.inv_freq.half()).to(x.dtype)
        return torch.cat([x[..., :4] * angle.cos() - x[..., 4:] * angle.sin(), x[..., 4:] * angle.cos() + x[..., :4] * angle.sin()], -1)

    rotary = run.model.blocks[1].attention.rotary
    replace(rotary, forward)
    rotary.long = False
    at(run, lambda: setattr(rotary, "long", True))


@fault("precision", "blocks.2.mlp.act", "aten::exp", "forward")
def sum_of_exponentials_in_half(run):
    """A softmax by hand without the maximum taken off, in f16: infinity over infinity."""

    def forward(self, x):
        e = torch.exp(x.half() * self.gain)
        return x * (e / e.sum(-1, keepdim=True)).to(x.dtype)

    act = run.model.blocks[2].mlp.act
    replace(act, forward)
    act.gain = 1.0
    at(run, lambda: setattr(act, "gain", 30.0))


@fault("precision", None, "aten::", "optimizer", step=0)
def eps_that_half_cannot_hold(run):
    """Adam by hand with its second moment in f16: the root of an underflow, plus an eps that is 0 there."""

    class Adam:
        def __init__(self, model):
            self.model, self.m, self.v = model, {}, {}

        @torch.no_grad()
        def step(self):
            for n, p in self.model.named_parameters():
                m, v = self.m.setdefault(n, torch.zeros_like(p)), self.v.setdefault(n, torch.zeros_like(p, dtype=torch.float16))
                m.lerp_(p.grad, 0.1)
                v.mul_(0.99).add_((p.grad.half() * p.grad.half()) * 0.01)
                p.sub_(1e-4 * m / (v.sqrt() + 1e-8))

        def zero_grad(self):
            self.model.zero_grad()

    run.optimizer = Adam(run.model)


@fault("precision", "blocks.0.norm1", "aten::", "forward")
def variance_that_bf16_loses(run):
    """Mean of squares minus square of the mean, in bf16: 0, or less, for rows that lie far from 0."""

    def forward(self, x):
        h = (x + self.shift).bfloat16()
        mean = h.mean(-1, keepdim=True)
        variance = (h * h).mean(-1, keepdim=True) - mean * mean
        return (h - mean).to(x.dtype) / variance.to(x.dtype).sqrt() * self.weight

    norm = run.model.blocks[0].norm1
    replace(norm, forward)
    norm.shift = 0.0
    at(run, lambda: setattr(norm, "shift", 300.0))


# ---- what a program computes


@fault("block", "blocks.1.mlp.act", "aten::exp", "forward")
def gate_that_overflows(run):
    def forward(self, x):
        e = torch.exp(x * self.gain)
        return x * e / (1 + e)

    act = run.model.blocks[1].mlp.act
    replace(act, forward)
    act.gain = 1.0
    at(run, lambda: setattr(act, "gain", 900.0))


@fault("block", "blocks.0.mlp.act", "aten::", "backward")
def root_of_zero(run):
    """|x| as the root of a square: its derivative at 0 is 0 times infinity."""

    def forward(self, x):
        return ((x * self.keep) ** 2).sqrt() if self.keep is not None else F.silu(x)

    act = run.model.blocks[0].mlp.act
    replace(act, forward)
    act.keep = None
    at(run, lambda: setattr(act, "keep", (torch.arange(32) % 3 > 0).float()))


@fault("block", "blocks.2.attention", "aten::log", "forward")
def entropy_of_zeros(run):
    """p log p of probabilities that are 0: finite when 0 is put where p is 0, its derivative reads the logarithm of 0."""

    def forward(self, x):
        q, k, v = self.qkv(x).view(x.size(0), x.size(1), 3, HEADS, 8).permute(2, 0, 3, 1, 4)
        p = (q @ k.transpose(-1, -2) / math.sqrt(8) + self.mask).softmax(-1)
        if self.weigh:
            p = p - 0.01 * torch.where(p > 0, p * p.log(), 0.0)
        return self.out((p @ v).transpose(1, 2).reshape(x.shape))

    attention = run.model.blocks[2].attention
    replace(attention, forward)
    attention.weigh = False
    at(run, lambda: setattr(attention, "weigh", True))


@fault("block", "blocks.1.norm2", "aten::div", "forward")
def row_of_zeros(run):
    """A norm without eps meets rows that are 0 throughout."""

    def forward(self, x):
        x = x * (torch.arange(x.size(1)) != self.hole)[:, None]
        return x / x.norm(dim=-1, keepdim=True) * self.weight * 4

    norm = run.model.blocks[1].norm2
    replace(norm, forward)
    norm.hole = -1
    at(run, lambda: setattr(norm, "hole", 4))


@fault("block", "blocks.2.mlp", "aten::mean", "forward")
def expert_without_a_token(run):
    def forward(self, x):
        chosen = self.up(x)[..., 0] > self.least
        return self.down(self.act(self.up(x))) - self.down(self.act(self.up(x[chosen]))).mean(0)

    mlp = run.model.blocks[2].mlp
    replace(mlp, forward)
    mlp.least = -10.0
    at(run, lambda: setattr(mlp, "least", 1e3))


@fault("block", "", "aten::log", "forward")
def loss_of_certainty(run):
    """The logarithm of a probability that is 0, by a temperature that is too low."""
    run.loss = lambda logits, ids, step: -(logits * (3000.0 if step == AT else 1.0)).softmax(-1).gather(-1, ids[..., None]).log().mean()


@fault("block", "blocks.0.attention.rotary", "aten::", "forward")
def position_of_eight_bits(run):
    """Positions in int8 that wrap around, and the root of them."""

    def forward(self, x):
        place = (torch.arange(x.size(-2)) + self.start).to(torch.int8)
        return Rotary.forward(self, x) * (1 + 1e-3 * place.to(x.dtype).sqrt()[:, None])

    rotary = run.model.blocks[0].attention.rotary
    replace(rotary, forward)
    rotary.start = 100
    at(run, lambda: setattr(rotary, "start", 120))


@fault("block", "blocks.1.mlp", "aten::", "forward")
def recurrence_that_explodes(run):
    """A state multiplied by its own size, step by step."""

    def forward(self, x):
        state, out = torch.zeros_like(x[:, 0]), []
        for t in range(x.size(1)):
            state = state * state * self.gain + self.down(self.act(self.up(x[:, t])))
            out.append(state)
        return torch.stack(out, 1)

    mlp = run.model.blocks[1].mlp
    replace(mlp, forward)
    mlp.gain = 0.1
    at(run, lambda: setattr(mlp, "gain", 1e8))


@fault("block", "blocks.0.mlp.up", "aten::div_", "optimizer", parameter="blocks.0.mlp.up.bias")
def clipping_of_zero(run):
    """Gradients scaled to a norm, by hand, where a gradient is 0 throughout."""

    def clip(step):
        for n, p in run.model.named_parameters():
            if step == AT and n == "blocks.0.mlp.up.bias":
                p.grad.mul_(0)
            p.grad.div_(p.grad.norm())

    run.after_backward = clip


if __name__ == "__main__":
    torch.set_num_threads(1)
    run = Run()
    FAULTS[sys.argv[1]][0](run) if sys.argv[1] != "none" else None
    run.train()
