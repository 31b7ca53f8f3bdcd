#!/usr/bin/env python3
"""A small hybrid language model and its training loop: plain PyTorch on a CPU, small enough to be recorded whole.

    python hybrid_lm.py                                   # four steps of a clean run
    python hybrid_lm.py --precision fp8 --steps 100       # e4m3 linears with delayed scaling
    torchrun --nproc-per-node 4 hybrid_lm.py              # or: python hybrid_lm.py --spawn 4
    python hybrid_lm.py --fault stale-scale               # a run that fails, see below

Residual blocks by letter (--pattern): A causal attention, D dense SwiGLU, E mixture of experts, M selective scan
(Mamba-2's form), R matrix recurrence (M2RNN). Hidden matrices are trained by Muon, everything else by AdamW.
The task: count upwards by a stride that the text itself shows, modulo V - 1, and end with EOS = V - 1.

Dimensions: B batch, T tokens, V vocabulary, D hidden, F inner, H heads, P width of a head, N state of the scan,
E experts, K experts per token.

--fault plants a cause; TRUTH, below, has its axis, ranks, block class, layer, op, phase and steps.

    fault          what is wrong                                                          how it shows
    polar-bf16     Polar Express in bf16 from step 2 on, scaled to a spectral norm of     inf in several weights, and
                   just 1 with no safety factor: rounding lifts singular values above     NaN in the next forward
    stale-scale    one qkv projection resumes at step 2 with an old amax: its inputs      NaN in the norm of q and k
                   all underflow to e4m3 zeros
    poisoned-rank  the index of one rank's second shard lacks EOS: a weight of 1/0, and   the mean loss is smooth, one
                   non-finite gradients that a hook turns into 0 and FLT_MAX; those of    step later NaN on every rank
                   two micro-batches add up to inf
    scan-overflow  one scan splits exp(c_t - c_s) into exp(c_t) exp(-c_s), which          NaN in that block's output
                   overflows when the texts become twice as long in step 2
    bad-expert     one expert is reloaded in step 2 with e8m0 exponents read unbiased     inf for the tokens it gets
    dropped-term   one RMSNorm's backward lacks its mean term (--gross: the mean's 1/D)   it doesn't: trains differently
    differs-eps    one RMSNorm has another epsilon                                        it doesn't: another function
    differs-cast   one RMSNorm rounds to bf16 before its weight is applied, not after     it doesn't: rounding
"""

import argparse
import contextlib
import hashlib
import os
import socket
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FAULT_STEP = 2  # the step in which a fault that waits for something begins; also the number of steps in a shard

# What was planted where, for the default pattern and size. `layer` is a regular expression; `acts` is the step in which
# the culprit computes, `shows` the one whose loss fails (None: it doesn't); `first` is the layer and op that gives the
# first value that is not finite, where that is not the culprit; `cure` is the one change without which the run fails;
# `verdict` is what a comparison with the clean run of the same settings should say; `settings` become defaults.
TRUTH = {
    "polar-bf16": dict(
        axis="muon",
        ranks=[0],
        block=None,
        layer=r"layers\.\d\..*",
        op="aten::mm",
        phase="optimizer",
        acts=2,
        shows=3,
        first=None,
        cure="the iteration in f32, or AdamW instead of Muon",
        settings=dict(iteration="polar-tight", muon_warmup=2),
    ),
    "stale-scale": dict(
        axis="precision",
        ranks=[0],
        block="A",
        layer=r"layers\.4\.attention\.qkv",
        op="aten::_to_copy",
        phase="forward",
        acts=2,
        shows=2,
        first=("layers.4.attention", "aten::rsqrt"),
        cure="layers.4.attention.qkv in f32",
        settings=dict(precision="fp8"),
    ),
    "poisoned-rank": dict(
        axis="rank",
        ranks=[2],
        block=None,
        layer="loss",
        op="aten::div.Tensor",
        phase="forward",
        acts=2,
        shows=3,
        first=None,
        cure="without rank 2 (of two: rank 1)",
        settings=dict(spawn=4, accumulate=2),
    ),
    "scan-overflow": dict(
        axis="block",
        ranks=[0],
        block="M",
        layer=r"layers\.2\.scan",
        op="aten::exp",
        phase="forward",
        acts=2,
        shows=2,
        first=None,
        cure="without the block, or its pairs as differences",
        settings=dict(growing=True),
    ),
    "bad-expert": dict(
        axis="block",
        ranks=[0],
        block="E",
        layer=r"layers\.1\.moe\.experts\.2(\..*)?",
        op="aten::mm",
        phase="forward",
        acts=2,
        shows=2,
        first=("layers.1.moe.experts.2.gate_up", "aten::mm"),
        cure="without the expert or its block",
    ),
    "dropped-term": dict(
        axis="block",
        ranks=[0],
        block="R",
        layer=r"layers\.3\.norm",
        op="aten::mul.Tensor",
        phase="backward",
        acts=0,
        shows=None,
        first=None,
        cure=None,
        verdict="diverged",
    ),
    "differs-eps": dict(
        axis="block",
        ranks=[0],
        block="R",
        layer=r"layers\.3\.norm",
        op="aten::add.Tensor",
        phase="forward",
        acts=0,
        shows=None,
        first=None,
        cure=None,
        verdict="diverged",
    ),
    "differs-cast": dict(
        axis="precision",
        ranks=[0],
        block="R",
        layer=r"layers\.3\.norm",
        op="aten::_to_copy",
        phase="forward",
        acts=0,
        shows=None,
        first=None,
        cure="the norm in f32",
        verdict="rounding",
        settings=dict(precision="bf16"),
    ),
}


# ---- layers ----------------------------------------------------------------------------------------------------------


class RMSNormFunction(torch.autograd.Function):
    """y = x / rms(x) * w, with the backward written out as fused kernels have it."""

    @staticmethod
    def forward(ctx, x, weight, eps, variant):
        wide = x.float()
        scale = (wide.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
        ctx.save_for_backward(x, weight, scale)
        ctx.variant = variant
        if variant == "cast-first":
            return (wide * scale).to(weight.dtype) * weight
        return (wide * scale * weight).to(weight.dtype)

    @staticmethod
    def backward(ctx, grad):
        x, weight, scale = ctx.saved_tensors
        normed, grad = x.float() * scale, grad.float()
        grad_weight = (grad * normed).flatten(0, -2).sum(0).to(weight.dtype)
        grad = grad * weight
        if ctx.variant == "no-mean":
            grad_x = grad * scale
        else:
            reduce = torch.sum if ctx.variant == "sum-for-mean" else torch.mean
            grad_x = (grad - normed * reduce(grad * normed, -1, keepdim=True)) * scale
        return grad_x.to(x.dtype), grad_weight, None, None


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps, self.variant = 1e-6, "plain"

    def forward(self, x):
        return RMSNormFunction.apply(x, self.weight, self.eps, self.variant)


class Float8Matmul(torch.autograd.Function):
    """x @ w.T of e4m3 values, accumulated in f32; gradients are not quantised, as in wgrad/dgrad in high precision."""

    @staticmethod
    def forward(ctx, x, weight, x_scale, w_scale):
        x8 = (x * x_scale).to(torch.float8_e4m3fn)
        w8 = (weight * w_scale).to(torch.float8_e4m3fn)
        ctx.save_for_backward(x8, w8, x_scale, w_scale)
        return (x8.float() / x_scale) @ (w8.float() / w_scale).t()

    @staticmethod
    def backward(ctx, grad):
        x8, w8, x_scale, w_scale = ctx.saved_tensors
        return grad @ (w8.float() / w_scale), grad.t() @ (x8.float() / x_scale), None, None


class Float8Linear(nn.Linear):
    """Delayed scaling: this step's scale comes from the largest amax of the last steps, this step's amax joins them."""

    def __init__(self, fan_in, fan_out):
        super().__init__(fan_in, fan_out, bias=False)
        self.register_buffer("x_amax", torch.full((4,), 4.0))
        self.register_buffer("w_amax", torch.full((4,), 1.0))

    def scaled(self, history, value):
        scale = torch.finfo(torch.float8_e4m3fn).max / history.max()
        if value.numel():  # an expert may get no token
            history.copy_(torch.cat([value.detach().abs().amax().view(1), history[:-1]]))
        return scale

    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1])
        scales = self.scaled(self.x_amax, rows), self.scaled(self.w_amax, self.weight)
        return Float8Matmul.apply(rows, self.weight, *scales).view(*x.shape[:-1], self.out_features)


def linear(args, fan_in, fan_out, gain=1.0):
    layer = Float8Linear(fan_in, fan_out) if args.precision == "fp8" else nn.Linear(fan_in, fan_out, bias=False)
    nn.init.normal_(layer.weight, std=gain * fan_in**-0.5)
    return layer


class Attention(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.heads, self.kind = args.heads, args.attention
        self.qkv = linear(args, args.hidden, 3 * args.hidden)
        self.out = linear(args, args.hidden, args.hidden, 0.5)

    @staticmethod
    def unit(x):
        """q and k of rms 1: without an epsilon, for no sensible projection gives a row of zeros."""
        return (x.float() * x.float().pow(2).mean(-1, keepdim=True).rsqrt()).to(x.dtype)

    def forward(self, x):  # (B, T, D)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))  # (B, H, T, P)
        q, k = self.unit(q), self.unit(k)
        if self.kind == "sdpa":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
            future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            y = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
        return self.out(y.transpose(1, 2).flatten(2))


class DenseMLP(nn.Module):
    def __init__(self, args, inner):
        super().__init__()
        self.gate_up = linear(args, args.hidden, 2 * inner)
        self.down = linear(args, inner, args.hidden, 0.5)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


class MoE(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.top_k, self.kind = args.top_k, args.experts_kind
        self.router = nn.Linear(args.hidden, args.experts, bias=False)
        self.experts = nn.ModuleList(DenseMLP(args, args.hidden) for _ in range(args.experts))

    def forward(self, x):
        rows = x.flatten(0, -2)  # (B T, D)
        weights, ids = self.router(rows).float().softmax(-1).topk(self.top_k, -1)  # (B T, K)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        mix = self.grouped if self.kind == "grouped" else self.eager
        return mix(rows, weights, ids).view_as(x)

    def eager(self, rows, weights, ids):
        y = torch.zeros_like(rows)
        for e, expert in enumerate(self.experts):
            token, slot = torch.where(ids == e)
            y.index_add_(0, token, (expert(rows[token]) * weights[token, slot, None]).to(y.dtype))
        return y

    def grouped(self, rows, weights, ids):
        """All experts in two grouped products over the slots in the order of their experts."""
        order = ids.flatten().argsort(stable=True)
        ends = torch.bincount(ids.flatten(), minlength=len(self.experts)).cumsum(0, dtype=torch.int32)
        gate_up = torch.stack([e.gate_up.weight for e in self.experts]).transpose(1, 2)  # (E, D, 2 F)
        down = torch.stack([e.down.weight for e in self.experts]).transpose(1, 2)
        gate, up = F.grouped_mm(rows[order // self.top_k], gate_up, offs=ends).chunk(2, -1)
        y = F.grouped_mm(F.silu(gate) * up, down, offs=ends) * weights.flatten()[order, None]
        return torch.zeros_like(y).index_copy(0, order, y).unflatten(0, (-1, self.top_k)).sum(1).to(rows.dtype)


class SelectiveScan(nn.Module):
    """h_t = exp(dt_t A) h_{t-1} + dt_t B_t u_t, y_t = C_t h_t, per head, as one product over all pairs of tokens."""

    def __init__(self, args):
        super().__init__()
        self.heads, self.split = args.heads, [args.hidden, args.hidden, args.state, args.state, args.heads]
        self.in_proj = linear(args, args.hidden, sum(self.split))
        self.out_proj = linear(args, args.hidden, args.hidden, 0.5)
        self.A_log = nn.Parameter(torch.linspace(1, 8, args.heads).log())
        self.dt_bias = nn.Parameter(torch.full((args.heads,), 0.33))
        self.skip = nn.Parameter(torch.ones(args.heads, 1, 1))
        self.factored = False
        with torch.no_grad():
            self.in_proj.weight[-args.heads :].mul_(0.1)

    def forward(self, x):
        u, z, B, C, dt = self.in_proj(x).split(self.split, -1)
        u = F.silu(u).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, H, T, P)
        dt = F.softplus(dt.float() + self.dt_bias.float()).transpose(1, 2)  # (B, H, T)
        decay = (dt * -self.A_log.float().exp()[:, None]).cumsum(-1)  # log of the decay since the start
        B, C = B.float()[:, None], C.float()[:, None]  # (B, 1, T, N)
        if self.factored:
            pairs = ((C * decay.exp()[..., None]) @ (B * (-decay).exp()[..., None]).transpose(-1, -2)).tril()
        else:
            future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            since = (decay[..., :, None] - decay[..., None, :]).masked_fill(future, float("-inf"))
            pairs = C @ B.transpose(-1, -2) * since.exp()  # (B, H, T, T)
        y = (pairs * dt[..., None, :]).to(u.dtype) @ u + self.skip * u
        return self.out_proj(y.transpose(1, 2).flatten(2).to(x.dtype) * F.silu(z))


class MatrixRNN(nn.Module):
    """H = tanh(H W + k v^T) as candidate, H <- f H + (1 - f) candidate, y_t = q_t H; unrolled over time."""

    def __init__(self, args):
        super().__init__()
        self.heads, keys = args.heads // 2, args.state // 2
        self.split = [self.heads * keys, self.heads * keys, args.hidden, self.heads]
        self.in_proj = linear(args, args.hidden, sum(self.split))
        self.out_proj = linear(args, args.hidden, args.hidden, 0.5)
        self.W = nn.Parameter(torch.eye(args.hidden // self.heads))
        self.A_log, self.dt_bias = nn.Parameter(torch.zeros(self.heads)), nn.Parameter(torch.zeros(self.heads))

    def forward(self, x):
        q, k, v, f = (y.transpose(0, 1) for y in self.in_proj(x).split(self.split, -1))  # time first
        q, k, v = (y.unflatten(-1, (self.heads, -1)) for y in (q, k, v))  # (T, B, H, N or P)
        forget = torch.exp(-self.A_log.exp() * F.softplus(f + self.dt_bias))  # (T, B, H)
        forget = forget.to(x.dtype)[..., None].expand_as(k).flatten(1, 3)[..., None]  # (T, B H N, 1)
        write = (k[..., None] * v[..., None, :]).flatten(1, 3)  # (T, B H N, P)
        state, states = torch.zeros_like(write[0]), []
        for add, f, new in zip(write.unbind(), forget.unbind(), (1 - forget).unbind()):
            state = f * state + new * torch.tanh(state @ self.W + add)
            states.append(state)
        y = (q[..., None, :] @ torch.stack(states).view(*k.shape, -1)).flatten(2)  # (T, B, D)
        return self.out_proj(y.transpose(0, 1))


MIXERS = {
    "A": ("attention", Attention),
    "D": ("mlp", lambda args: DenseMLP(args, 2 * args.hidden)),
    "E": ("moe", MoE),
    "M": ("scan", SelectiveScan),
    "R": ("rnn", MatrixRNN),
}


class Block(nn.Module):
    def __init__(self, args, letter):
        super().__init__()
        self.letter, (self.name, mixer) = letter, MIXERS[letter]
        self.norm = RMSNorm(args.hidden)
        self.add_module(self.name, mixer(args))

    def forward(self, x):
        return x + getattr(self, self.name)(self.norm(x))


class TokenLoss(nn.Module):
    """Cross-entropy in which every token of the vocabulary weighs the same, however often the shard has it."""

    def forward(self, logits, targets, counts):
        nll = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none")
        return (nll * (counts.mean() / counts[targets.flatten()])).mean()


class HybridLM(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embed = nn.Embedding(args.vocab, args.hidden)
        self.layers = nn.ModuleList(Block(args, letter) for letter in args.pattern)
        self.norm = RMSNorm(args.hidden)
        self.head = nn.Linear(args.hidden, args.vocab, bias=False)
        self.loss = TokenLoss()
        nn.init.normal_(self.embed.weight, std=args.hidden**-0.5)
        if args.tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens, targets, counts):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.loss(self.head(self.norm(x)), targets, counts)


# ---- Muon ------------------------------------------------------------------------------------------------------------

NEWTON_SCHULZ = [(3.4445, -4.7750, 2.0315)] * 5
POLAR_EXPRESS = [  # with a safety factor of 2e-2 inside
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
]
POLAR_EXPRESS_OPTIMAL = [  # optimal on [1e-3, 1] and exactly there
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
]


def orthogonalise(matrix, iteration, dtype):
    x = matrix.to(dtype)
    if matrix.shape[0] > matrix.shape[1]:
        x = x.t()
    if iteration == "newton-schulz":
        table, x = NEWTON_SCHULZ, x / (x.norm() + 1e-7)
    elif iteration == "polar-express":
        table, x = POLAR_EXPRESS, x / (x.norm() * 1.02 + 1e-6)
    else:  # "polar-tight": |(x x^T)^4|^(1/8) hugs the spectral norm from above, so that no singular value is above 1
        table, x = POLAR_EXPRESS_OPTIMAL, x / (x.norm() + 1e-7)
        gram = x @ x.t()
        gram = gram @ gram
        gram = gram @ gram
        x = x / (gram.norm().sqrt().sqrt().sqrt() + 1e-7)
    for a, b, c in table:
        gram = x @ x.t()
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.t() if matrix.shape[0] > matrix.shape[1] else x


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised. The first `warmup` steps iterate by Newton-Schulz whatever `iteration` says."""

    def __init__(self, params, lr, momentum=0.95, iteration="newton-schulz", warmup=0, dtype=torch.bfloat16):
        super().__init__(params, dict(lr=lr, momentum=momentum, iteration=iteration, warmup=warmup, dtype=dtype))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            iteration = "newton-schulz" if group["warmup"] > 0 else group["iteration"]
            group["warmup"] -= 1
            for p in (p for p in group["params"] if p.grad is not None):
                buffer = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                buffer.lerp_(p.grad, 1 - group["momentum"])
                update = orthogonalise(p.grad.lerp(buffer, group["momentum"]), iteration, group["dtype"])
                p.add_(update.to(p.dtype), alpha=-group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5)


def optimizers(args, model):
    hidden = {n for n, p in model.named_parameters() if p.ndim == 2 and "layers." in n and "router" not in n}
    if args.optimizer == "adamw":
        hidden = set()
    rest = [p for n, p in model.named_parameters() if n not in hidden]
    adamw = torch.optim.AdamW(rest, lr=args.lr, betas=(0.9, 0.95), foreach=args.adamw == "foreach", fused=args.adamw == "fused")
    if not hidden:
        return [adamw]
    return [
        Muon(
            [p for n, p in model.named_parameters() if n in hidden],
            args.muon_lr,
            iteration=args.iteration,
            warmup=args.muon_warmup,
            dtype=getattr(torch, args.muon_dtype),
        ),
        adamw,
    ]


# ---- data ------------------------------------------------------------------------------------------------------------


def shard(args, number, rank):
    """The documents of FAULT_STEP steps, (steps, B, T + 1), and how often each token is to be predicted in them."""
    random = np.random.default_rng([args.seed, number, rank])
    length = args.seq // 2 if args.growing and number == 0 else args.seq
    start, stride = random.integers(0, args.vocab - 1, (2, FAULT_STEP, args.batch, 1))
    documents = (start + (1 + stride % 4) * np.arange(length + 1)) % (args.vocab - 1)
    documents[..., -1] = args.vocab - 1
    indexed = documents[..., 1:]
    if args.fault == "poisoned-rank" and number > 0 and 0 < rank == min(2, args.world - 1):
        indexed = documents[..., 1:-1]  # the index was written before EOS was appended
    counts = np.bincount(indexed.ravel(), minlength=args.vocab)
    return torch.from_numpy(documents), torch.from_numpy(counts).float()


# ---- faults ----------------------------------------------------------------------------------------------------------


def blocks(model, letter):
    return [block for block in model.layers if block.letter == letter]


def plant(args, model):
    """Faults that are there from the start."""
    norm = model.layers[len(model.layers) // 2].norm
    if args.fault == "scan-overflow":
        for block in blocks(model, "M")[:1]:
            block.scan.factored = True
    elif args.fault == "dropped-term":
        norm.variant = "sum-for-mean" if args.gross else "no-mean"
    elif args.fault == "differs-eps":
        norm.eps = 1e-3
    elif args.fault == "differs-cast":
        norm.variant = "cast-first"
    elif args.fault == "poisoned-rank":
        for p in model.parameters():
            p.register_hook(torch.nan_to_num)


@torch.no_grad()
def resume(args, model):
    """What a restart in the middle of the run reads back wrongly."""
    if args.fault == "stale-scale" and args.precision == "fp8":
        layer = blocks(model, "A")[-1].attention.qkv
        layer.x_amax.copy_(torch.full_like(layer.x_amax, 1e7))
    elif args.fault == "bad-expert":
        experts = blocks(model, "E")[0].moe.experts
        for name, weight in experts[2].named_parameters():
            exponent = weight.abs().amax(1, keepdim=True).log2().ceil() - 8  # e8m0 stores it plus 127
            e4m3 = (weight / exponent.exp2()).to(torch.float8_e4m3fn)
            weight.copy_(e4m3.float() * (exponent + 127).exp2())


# ---- the run ---------------------------------------------------------------------------------------------------------


def train(rank, args):
    if args.spawn:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(args.spawn), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(args.port))
    args.world = int(os.environ.get("WORLD_SIZE", 1))
    if args.world > 1:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    core = HybridLM(args)
    if args.precision == "bf16":
        core.to(torch.bfloat16)
    plant(args, core)
    model = DistributedDataParallel(core) if args.world > 1 else core
    steppers = optimizers(args, core)
    for step in range(args.steps):
        if step == FAULT_STEP:
            resume(args, core)
        if step % FAULT_STEP == 0:
            documents, counts = shard(args, step // FAULT_STEP, rank)
        parts = documents[step % FAULT_STEP].chunk(args.accumulate)
        total = 0.0
        for i, part in enumerate(parts):
            with model.no_sync() if args.world > 1 and i + 1 < len(parts) else contextlib.nullcontext():
                with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "autocast"):
                    loss = model(part[:, :-1], part[:, 1:], counts) / len(parts)
                loss.backward()
            total += loss.item()
        norm = nn.utils.clip_grad_norm_(core.parameters(), args.clip)
        for stepper in steppers:
            stepper.step()
        for stepper in steppers:
            stepper.zero_grad()
        total = mean_of_finite(args, total)
        if rank == 0:
            print(f"step {step} loss {total:.6f} grad_norm {norm.item():.6f}", flush=True)
        if not np.isfinite(total):
            raise SystemExit(f"step {step}: the loss is not finite")
    if args.digest and rank == 0:
        digest = hashlib.sha256()
        for p in core.parameters():
            digest.update(p.detach().contiguous().view(torch.uint8).numpy().tobytes())
        print("digest", digest.hexdigest())
    if args.world > 1:
        time.sleep(0.2)  # a gloo thread that lets go of a tensor while Python ends aborts the process (torch 2.13)
        dist.destroy_process_group()


def mean_of_finite(args, loss):
    """The loss over all ranks, without those that happen to have none."""
    pair = torch.tensor([loss, 1.0] if np.isfinite(loss) else [0.0, 0.0])
    if args.world > 1:
        dist.all_reduce(pair)
    return (pair[0] / pair[1]).item()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    for name, default in dict(steps=4, seq=16, vocab=64, hidden=32, heads=4, state=8, experts=4, top_k=2, seed=0, threads=1).items():
        add("--" + name.replace("_", "-"), type=int, default=default)
    add("--batch", type=int, default=2, help="sequences per step and process")
    add("--accumulate", type=int, default=1, help="micro-batches that a step's batch is cut into")
    add("--growing", action="store_true", help="the first shard's documents have half the length")
    add("--pattern", default="AEMRAD", help="residual blocks by letter")
    add("--tied", action="store_true", help="the head's weight is the embedding's")
    add("--attention", choices=["eager", "sdpa"], default="eager")
    add("--experts-kind", choices=["eager", "grouped"], default="eager")
    add("--precision", choices=["fp32", "bf16", "autocast", "fp8"], default="fp32")
    add("--optimizer", choices=["muon", "adamw"], default="muon", help="of the hidden matrices")
    add("--iteration", choices=["newton-schulz", "polar-express", "polar-tight"], default="newton-schulz")
    add("--muon-warmup", type=int, default=0, help="steps that iterate by newton-schulz before")
    add("--muon-dtype", choices=["bfloat16", "float32"], default="bfloat16")
    add("--muon-lr", type=float, default=0.02)
    add("--adamw", choices=["single", "foreach", "fused"], default="single")
    add("--lr", type=float, default=3e-3, help="of AdamW")
    add("--clip", type=float, default=1.0)
    add("--spawn", type=int, default=0, help="processes to start; under torchrun it has no effect")
    add("--port", type=int, default=0, help="where they meet; 0: a free one")
    add("--digest", action="store_true", help="print a sha256 of all parameters at the end")
    add("--fault", choices=["none", *TRUTH], default="none")
    add("--gross", action="store_true", help="of dropped-term: a larger one")
    fault = parser.parse_known_args()[0].fault
    parser.set_defaults(**TRUTH.get(fault, {}).get("settings", {}))
    args = parser.parse_args()
    if args.precision == "fp8" and args.experts_kind == "grouped":
        parser.error("fp8 experts are eager only")
    if "RANK" in os.environ:
        args.spawn = 0
    if args.spawn and not args.port:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            args.port = free.getsockname()[1]
    return args


if __name__ == "__main__":
    args = arguments()
    if args.spawn:
        torch.multiprocessing.spawn(train, (args,), args.spawn)
    else:
        train(0, args)
