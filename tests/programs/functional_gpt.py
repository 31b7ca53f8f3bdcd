"""A language model as modules with an optimizer, and as functions of stacked weights that give new weights (as JAX programs do).

    python functional_gpt.py --all DIR             # first.lb, second.lb, FAULT.lb: one pass; train-….lb: two steps of training
    python functional_gpt.py --confirm             # in float64: both ways agree to 1e-9, and a fault moves more than 1e-6

The second way holds the weights of all layers in one tensor each, writes everything as sums over indices, takes gradients of functions, and
makes new weights and states in every step. Its weights are those of the first, transposed and stacked. A fault is one other expression of it."""

import math
import sys

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, SIZE, LAYERS, WORDS, LENGTH = 16, 4, 4, 3, 40, 10
RATE, DECAY, MOST = 0.01, 0.1, 0.5

MODEL_FAULTS = ("scale-by-width", "looks-ahead", "tanh-gelu", "norm-eps", "no-value-bias", "one-layer-less", "post-norm", "no-places")
STEP_FAULTS = ("no-correction", "decays-all", "unclipped", "eps-inside", "second-beta", "rate-of-next-step", "half-rate-of-embedding")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def stacked_weights(net):
    """All of the second way's weights, by name; of the blocks one tensor each, with the input's dimension first."""
    blocks = net.blocks
    qkv = torch.stack([b.qkv.weight.view(3, HEADS, SIZE, WIDTH).permute(3, 0, 1, 2) for b in blocks])
    weights = {
        "words": net.words.weight,
        "places": net.places.weight,
        "norm1_scale": torch.stack([b.norm1.weight for b in blocks]),
        "norm1_bias": torch.stack([b.norm1.bias for b in blocks]),
        "qkv": qkv,
        "qkv_bias": torch.stack([b.qkv.bias.view(3, HEADS, SIZE) for b in blocks]),
        "out": torch.stack([b.out.weight.view(WIDTH, HEADS, SIZE).permute(1, 2, 0) for b in blocks]),
        "out_bias": torch.stack([b.out.bias for b in blocks]),
        "norm2_scale": torch.stack([b.norm2.weight for b in blocks]),
        "norm2_bias": torch.stack([b.norm2.bias for b in blocks]),
        "up": torch.stack([b.up.weight.T for b in blocks]),
        "up_bias": torch.stack([b.up.bias for b in blocks]),
        "down": torch.stack([b.down.weight.T for b in blocks]),
        "down_bias": torch.stack([b.down.bias for b in blocks]),
        "norm_scale": net.norm.weight,
        "norm_bias": net.norm.bias,
        "head": net.head.weight.T,
    }
    return {name: w.detach().clone().contiguous() for name, w in weights.items()}


def normed(x, scale, bias, eps=1e-5):
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + eps) * scale + bias


def second_block(w, i, x, fault):
    own = fault if i == 1 else None
    h = x if own == "post-norm" else normed(x, w["norm1_scale"][i], w["norm1_bias"][i], 1e-2 if own == "norm-eps" else 1e-5)
    q, k, v = torch.einsum("btd,dchs->cbths", h, w["qkv"][i]) + w["qkv_bias"][i][:, None, None]
    v = v - w["qkv_bias"][i, 2] if own == "no-value-bias" else v
    scores = torch.einsum("bths,buhs->bhtu", q, k) / math.sqrt(WIDTH if own == "scale-by-width" else SIZE)
    t = torch.arange(x.shape[1])
    scores = torch.where(t[:, None] >= t[None] - int(own == "looks-ahead"), scores, torch.finfo(x.dtype).min)
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    weights = weights / weights.sum(-1, keepdim=True)
    x = x + torch.einsum("bhtu,buhs,hsd->btd", weights, v, w["out"][i]) + w["out_bias"][i]
    h = torch.einsum("btd,df->btf", normed(x, w["norm2_scale"][i], w["norm2_bias"][i]), w["up"][i]) + w["up_bias"][i]
    h = F.gelu(h, approximate="tanh" if own == "tanh-gelu" else "none")
    return x + torch.einsum("btf,fd->btd", h, w["down"][i]) + w["down_bias"][i]


def second_logits(w, tokens, fault):
    ones = F.one_hot(tokens, WORDS).to(w["words"].dtype)
    x = ones @ w["words"]
    x = x if fault == "no-places" else x + w["places"][: tokens.shape[1]]
    for i in range(LAYERS - (fault == "one-layer-less")):
        x = second_block(w, i, x, fault)
    return torch.einsum("btd,dw->btw", normed(x, w["norm_scale"], w["norm_bias"]), w["head"])


def second_loss(w, tokens, fault):
    logits, targets = second_logits(w, tokens[:, :-1], fault), tokens[:, 1:]
    chosen = torch.take_along_dim(logits, targets[..., None], -1)[..., 0]
    return (torch.logsumexp(logits, -1) - chosen).mean()


def rate_at(step):
    return RATE * min(1, (step + 1) / 4)


def first_step(net, optimizer, tokens, step):
    for group in optimizer.param_groups:
        group["lr"] = rate_at(step)
    optimizer.zero_grad()
    logits = net(tokens[:, :-1])
    F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    nn.utils.clip_grad_norm_(net.parameters(), MOST)
    optimizer.step()


def first_optimizer(net):
    matrices = [p for p in net.parameters() if p.dim() >= 2]
    vectors = [p for p in net.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), eps=1e-8)


VECTORS = ("norm1_scale", "norm1_bias", "qkv_bias", "out_bias", "norm2_scale", "norm2_bias", "up_bias", "down_bias", "norm_scale", "norm_bias")


def second_step(state, tokens, step, fault):
    """The weights and both moments behind a step, all of them new."""
    w, first, second = state
    w = {name: x.detach().requires_grad_() for name, x in w.items()}
    gradients = dict(zip(w, torch.autograd.grad(second_loss(w, tokens, fault), list(w.values()), materialize_grads=True)))
    with torch.no_grad():
        norm = torch.sqrt(sum(torch.sum(g * g) for g in gradients.values()))
        factor = torch.clamp(MOST / (norm + 1e-6), max=1.0)
        if fault == "unclipped":
            factor = torch.ones_like(factor)
        g = {name: x * factor for name, x in gradients.items()}
        beta = 0.99 if fault == "second-beta" else 0.95
        first = {name: 0.9 * first[name] + 0.1 * x for name, x in g.items()}
        second = {name: beta * second[name] + (1 - beta) * x * x for name, x in g.items()}
        t, rate = step + 1, rate_at(step + (fault == "rate-of-next-step"))
        corrected = 1.0 if fault == "no-correction" else 1 - 0.9**t
        new = {}
        for name, x in w.items():
            v = second[name] / (1 - beta**t)
            down = torch.sqrt(v + 1e-8) if fault == "eps-inside" else torch.sqrt(v) + 1e-8
            update = first[name] / corrected / down
            if name not in VECTORS or fault == "decays-all":
                update = update + DECAY * x
            new[name] = x - (rate / 2 if fault == "half-rate-of-embedding" and name == "words" else rate) * update
    return new, first, second


def built(dtype):
    torch.manual_seed(7)
    net = Gpt()
    with torch.no_grad():
        for p in net.parameters():
            p.add_(torch.randn(p.shape) * (0.3 if p.dim() == 1 else 0.15))
    return net.to(dtype), torch.randint(0, WORDS, (4, 3, LENGTH + 1))


def faults_of(trained):
    return STEP_FAULTS + ("tanh-gelu", "looks-ahead", "no-value-bias") if trained else MODEL_FAULTS


def pairs():
    """Way, fault, and whether it is trained."""
    for trained in (False, True):
        yield "first", None, trained
        for fault in (None, *faults_of(trained)):
            yield "second", fault, trained


def run(way, fault, trained, dtype):
    net, batches = built(dtype)
    weights = stacked_weights(net)
    if not trained:
        with torch.no_grad():
            tokens = batches[0][:, :-1]
            return [net(tokens) if way == "first" else second_logits(weights, tokens, fault)]
    optimizer = first_optimizer(net)
    state = weights, *({name: torch.zeros_like(x) for name, x in weights.items()} for _ in range(2))
    for step in range(2):
        if way == "first":
            first_step(net, optimizer, batches[step], step)
        else:
            state = second_step(state, batches[step], step, fault)
    return list((stacked_weights(net) if way == "first" else state[0]).values())


def confirm():
    for trained in (False, True):
        right = run("first", None, trained, torch.float64)
        for fault in (None, *faults_of(trained)):
            other = run("second", fault, trained, torch.float64)
            far = float(max((x - y).norm() / x.norm() for x, y in zip(right, other)))
            print("%-6s %.1e %s%s" % ("right" if (far > 1e-6 if fault else far < 1e-9) else "WRONG", far, "train-" * trained, fault or ""))


def record(out, way, fault, trained):
    import lastbit.torch

    net, batches = built(torch.float32)
    weights = stacked_weights(net)
    optimizer = first_optimizer(net)
    state = weights, *({name: torch.zeros_like(x) for name, x in weights.items()} for _ in range(2))
    with torch.set_grad_enabled(trained), lastbit.torch.capture(out, level="ops") as capture:
        for step in range(2 if trained else 1):
            with capture.step():  # neither modules nor an optimizer say where a step of the second way begins
                if not trained:
                    tokens = batches[0][:, :-1]
                    net(tokens) if way == "first" else second_logits(weights, tokens, fault)
                elif way == "first":
                    first_step(net, optimizer, batches[step], step)
                else:
                    state = second_step(state, batches[step], step, fault)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "--confirm":
        confirm()
    else:
        for way, fault, trained in pairs():
            record(f"{sys.argv[2]}/{'train-' * trained}{fault or way}.lb", way, fault, trained)
