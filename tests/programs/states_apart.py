"""A step from the middle of a training, of two implementations, whose weights and states differ as it begins: all by a little, one tensor, one layer.

    python states_apart.py FOLDER WORD...    # FOLDER/WORD.lb: steps 50000 and 50001

A word is SIDE-OPTIMIZER-APART-FAULT-PRECISION, of which the last ones may be left out: library-adamw-none, other-muon-all-scale. Both sides begin where
five steps of the library's side have led; then the weights and states of the words of APART are moved (MOVES)."""

import math
import pathlib
import sys

import lastbit.torch
import torch
import torch.nn.functional as F
from torch import nn

WORDS, WIDTH, HEADS, LAYERS, LENGTH, ROWS = 40, 16, 2, 3, 8, 4
FIRST = 50000


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.o_proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (project(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for project in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))


class Layer(nn.Module):
    fault = None

    def __init__(self):
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.gate_proj, self.up_proj, self.down_proj = (nn.Linear(*size, bias=False) for size in ((WIDTH, 32), (WIDTH, 32), (32, WIDTH)))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        y = self.norm2(x)
        if self.fault == "gelu":
            return x + self.down_proj(F.gelu(self.gate_proj(y)) * self.up_proj(y))
        return x + self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y))


class Library(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.layers = nn.Embedding(WORDS, WIDTH), nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.b, self.eps = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH)), 1e-5

    def forward(self, x):
        x = x - x.mean(-1, keepdim=True)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.w + self.b


class Block(nn.Module):
    def __init__(self, number, fault):
        super().__init__()
        self.fault = fault if number == 1 else None
        self.ln_a, self.ln_b = Scale(), Scale()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 64, bias=False), nn.Linear(32, WIDTH, bias=False)
        if self.fault == "eps":
            self.ln_b.eps = 1e-2

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(self.ln_a(x)).chunk(3, -1))
        scores = q @ k.mT * (WIDTH // HEADS) ** -0.5
        if self.fault == "scale":
            scores = scores * 1.1
        keep = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(1 if self.fault == "mask" else 0)
        mixed = scores.masked_fill(~keep, -math.inf).softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        gate, value = self.up(self.ln_b(x)).chunk(2, -1)
        if self.fault == "gelu":
            return x + self.down(F.gelu(gate) * value)
        return x + self.down(gate * torch.sigmoid(gate) * value)


class Other(nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.wte, self.h = nn.Embedding(WORDS, WIDTH), nn.ModuleList(Block(i, fault) for i in range(LAYERS))
        self.ln_f, self.lm_head = Scale(), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        x = self.wte(tokens)
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def carried_over(tensors):
    """Tensors by the library's names, as the other side has them: weights, or one state of each."""
    to = {"wte.weight": tensors["embed.weight"], "lm_head.weight": tensors["head.weight"]}
    to |= {"ln_f.w": tensors["norm.weight"], "ln_f.b": tensors["norm.bias"]}
    for i in range(LAYERS):
        of = {name.removeprefix(f"layers.{i}."): x for name, x in tensors.items() if name.startswith(f"layers.{i}.")}
        for kind in ("weight", "bias"):
            to[f"h.{i}.qkv.{kind}"] = torch.cat([of[f"attn.{p}_proj.{kind}"] for p in "qkv"])
            to[f"h.{i}.out.{kind}"] = of[f"attn.o_proj.{kind}"]
            for ours, theirs in (("ln_a", "norm1"), ("ln_b", "norm2")):
                to[f"h.{i}.{ours}.{kind[0]}"] = of[f"{theirs}.{kind}"]
        to[f"h.{i}.up.weight"] = torch.cat([of["gate_proj.weight"], of["up_proj.weight"]])
        to[f"h.{i}.down.weight"] = of["down_proj.weight"]
    return to


# ---- optimizers: torch's, and one that is written by hand


def orthogonal(m):
    x = m / (m.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


class Muon(torch.optim.Optimizer):
    """Of the weights of layers; the rest learns by momentum."""

    def __init__(self, named, lr=0.02):
        super().__init__([{"params": [p], "name": name} for name, p in named], {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                m.mul_(0.9).add_(p.grad)
                parts = 1
                if "qkv.weight" in group["name"]:
                    parts = 3
                if "up.weight" in group["name"]:
                    parts = 2
                update = m
                if p.dim() == 2 and "head" not in group["name"] and "embed" not in group["name"] and "wte" not in group["name"]:
                    update = torch.cat([orthogonal(x) for x in m.chunk(parts)])
                p.add_(update, alpha=-group["lr"])


class Hand:
    """Adam, AdamW and SGD as people write them: lists of tensors."""

    def __init__(self, rule, parameters, fault=None):
        self.rule, self.parameters, self.steps = rule, list(parameters), 0
        self.m = [torch.zeros_like(p) for p in self.parameters]
        self.v = [torch.zeros_like(p) for p in self.parameters] if rule != "sgd" else []
        self.fault = fault

    @torch.no_grad()
    def step(self):
        self.steps += 1
        second = 0.99 if self.fault == "beta" else 0.999
        for i, p in enumerate(self.parameters):
            if self.rule == "sgd":
                self.m[i].mul_(0.9).add_(p.grad)
                p.sub_(0.05 * self.m[i])
                continue
            gradient = p.grad + 0.1 * p if self.rule == "adam" else p.grad
            if self.rule == "adamw" and self.fault != "decay":
                p.mul_(1 - 1e-3 * 0.1)
            self.m[i].copy_(0.9 * self.m[i] + 0.1 * gradient)
            self.v[i].copy_(second * self.v[i] + (1 - second) * gradient * gradient)
            first = self.m[i] / (1 - 0.9**self.steps)
            p.sub_(1e-3 * first / ((self.v[i] / (1 - second**self.steps)).sqrt() + 1e-8))


STATES = {"sgd": ["momentum_buffer"], "muon": ["momentum_buffer"], "adam": ["exp_avg", "exp_avg_sq"], "adamw": ["exp_avg", "exp_avg_sq"]}


def library_optimizer(rule, named):
    named = list(named)
    parameters = [p for _, p in named]
    if rule == "muon":
        return Muon(named)
    if rule == "sgd":
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    kind = torch.optim.Adam if rule == "adam" else torch.optim.AdamW
    return kind(parameters, lr=1e-3, weight_decay=0.1)


def batch(n):
    return torch.randint(0, WORDS, (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(n))


def loss_of(logits, tokens):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1 : logits.shape[1]].flatten())


class Trainer:
    """A model, its optimizer, and in bf16 the weights in f32 that the optimizer has."""

    def __init__(self, side, rule, fault=None, precision="f32"):
        torch.manual_seed(0)
        self.side, self.rule, self.fault, self.precision = side, rule, fault, precision
        self.model = Library() if side == "library" else Other(fault)
        if side == "library":
            self.model.layers[1].fault = fault
            self.model.layers[1].norm2.eps = 1e-2 if fault == "eps" else 1e-5
        self.masters = None
        learnt = dict(self.model.named_parameters())
        if precision == "bf16":
            self.masters = learnt = {name: p.detach().clone().requires_grad_() for name, p in learnt.items()}
            self.model.to(torch.bfloat16)
        self.learnt = learnt
        by_hand = side == "other" and rule != "muon"
        self.optimizer = Hand(rule, learnt.values(), fault) if by_hand else library_optimizer(rule, learnt.items())

    def states(self):
        """By the state's name, and the parameter's."""
        if isinstance(self.optimizer, Hand):
            return dict(zip(STATES[self.rule], [dict(zip(self.learnt, x)) for x in (self.optimizer.m, self.optimizer.v)]))
        return {s: {name: self.optimizer.state[p][s] for name, p in self.learnt.items()} for s in STATES[self.rule]}

    def step(self, n):
        tokens = batch(n)
        loss = loss_of(self.model(tokens), tokens)
        loss.backward()
        if self.masters:
            for p, master in zip(self.model.parameters(), self.masters.values()):
                master.grad = p.grad.float()
                p.grad = None
        self.optimizer.step()
        for p in self.learnt.values():
            p.grad = None
        self.show()
        return loss

    @torch.no_grad()
    def show(self):
        if self.masters:
            for p, master in zip(self.model.parameters(), self.masters.values()):
                p.copy_(master)

    @torch.no_grad()
    def take(self, weights, states, steps):
        for name, p in self.learnt.items():
            p.copy_(weights[name])
        self.show()
        if isinstance(self.optimizer, Hand):
            self.optimizer.steps = steps
        for state, tensors in states.items():
            for name, x in tensors.items():
                if isinstance(self.optimizer, Hand):
                    self.states()[state][name].copy_(x)
                    continue
                held = self.optimizer.state[self.learnt[name]]
                held[state] = x.clone()
                if self.rule in ("adam", "adamw"):
                    held["step"] = torch.tensor(float(steps))


# What is moved, and by how much of it: a test of a tensor's name (the library's), and of "weight" or the state.
MOVES = {
    "none": (0, lambda name, kind: False),
    "all": (1e-5, lambda name, kind: True),
    "weights": (1e-5, lambda name, kind: kind == "weight"),
    "states": (1e-3, lambda name, kind: kind != "weight"),
    "far": (1e-2, lambda name, kind: True),
    "layer": (1e-3, lambda name, kind: name.startswith("layers.1.")),
    "tensor": (1e-2, lambda name, kind: name == "layers.1.down_proj.weight" and kind == "weight"),
    "third": (1e-2, lambda name, kind: name == "layers.1.attn.k_proj.weight" and kind == "weight"),
    "norm": (1e-2, lambda name, kind: name == "layers.1.norm2.weight" and kind == "weight"),
    "redrawn": (1.0, lambda name, kind: name == "layers.1.down_proj.weight" and kind == "weight"),
    "moment": (1e-2, lambda name, kind: name == "layers.1.down_proj.weight" and kind != "weight"),
    "lost": (0, lambda name, kind: False),
}


def moved(tensors, kind, how):
    g, (by, is_moved) = torch.Generator().manual_seed(7), MOVES[how]
    if how == "lost" and kind != "weight":
        return {name: torch.zeros_like(x) for name, x in tensors.items()}
    return {name: x * (1 + by * torch.randn(x.shape, generator=g)) if is_moved(name, kind) else x.clone() for name, x in tensors.items()}


def record(folder, word):
    side, rule, how, fault, precision = (*word.split("-"), *["", "", "none", "none", "f32"][len(word.split("-")) :])
    first = Trainer("library", rule, precision=precision)
    for n in range(5):
        first.step(n)
    weights = {name: p.detach() for name, p in first.learnt.items()}
    states = {s: {name: x.detach() for name, x in tensors.items()} for s, tensors in first.states().items()}
    weights, states = moved(weights, "weight", how), {s: moved(tensors, s, how) for s, tensors in states.items()}
    if side == "other":
        weights, states = carried_over(weights), {s: carried_over(tensors) for s, tensors in states.items()}
    trainer = Trainer(side, rule, None if fault == "none" else fault, precision)
    trainer.take(weights, states, 5)
    with lastbit.torch.capture(str(folder / f"{word}.lb"), level="ops") as capture:
        for n in range(2):
            with capture.step(FIRST + n):
                capture.scalar("loss", trainer.step(10 + n))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for word in sys.argv[2:]:
        record(pathlib.Path(sys.argv[1]), word)
