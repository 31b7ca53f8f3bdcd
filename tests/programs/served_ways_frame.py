"""What the programs of served_ways share: how a pair is built, and the two houses of parts.

Two people serve the same small language model. The first one's house is that of model files with separate projections and a batch
axis; the second one's packs tokens, merges projections, and carries the residual through its norms. A fault is one other expression
in one place of the second way; `bad("NAME")` stands on the faulty line. What is recorded is the serving of one request list."""

import math
import zlib
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, KV, SIZE, INNER, VOCAB = 32, 4, 2, 8, 40, 50
GROUP = HEADS // KV


class Fault(NamedTuple):
    """Where a fault lies.

    at: module of the second way that holds it ("" is the root's own code); also: its counterparts in the first way, and tables
    that a wrong index of the root's own code is handed to;
    first: a regular expression of lines that say in the first way what the fault says otherwise; near: of further exact lines of
    the second way; outside: what holds it when no layer does."""

    at: str
    also: tuple = ()
    first: str = ""
    near: str = ""
    outside: str = ""

    def line(self, name):
        return "|".join(x for x in (rf'bad\("{name}"\)', self.near, self.first) if x)


class Program(NamedTuple):
    first: type
    second: type
    requests: object
    faults: dict


class Part(nn.Module):
    """A module that may hold a fault."""

    fault = None

    def bad(self, name):
        return self.fault == name


class Kept:
    """Something that is no module and may hold a fault: a cache, a sampler. It has the fault of the module whose attribute it is."""

    fault = None

    def bad(self, name):
        return self.fault == name


def root_of(served):
    return getattr(served, "root", served)


def settle(root):
    """Draws every weight, the same in each dtype: norms near one, tables and matrices so that a layer neither dies nor explodes."""
    with torch.no_grad():
        for name, p in root.named_parameters():
            drawn = torch.randn(p.shape, dtype=torch.float32)
            if p.dim() == 1:
                norm = "norm" in name.lower() or "ln" in name
                p.copy_(0.2 * drawn + (1.0 if norm and name.endswith("weight") else 0.0))
            else:
                p.copy_(drawn * (0.7 if "embed" in name else 1.3 / math.sqrt(p.shape[-1])))


def plant(served, fault, at):
    part = root_of(served).get_submodule(at)
    part.fault = fault
    for kept in vars(part).values():
        if isinstance(kept, Kept):
            kept.fault = fault


def built(program, name, way, fault=None):
    """A way of a program in the default dtype, and its requests."""
    first = program.first()
    torch.manual_seed(zlib.crc32(name.encode()) % 10000)  # behind the constructors, whose draws depend on the dtype
    settle(root_of(first))
    root_of(first).to(torch.get_default_dtype()).eval()
    with torch.no_grad():
        getattr(first, "prepare", lambda: None)()
    requests = program.requests()
    if way == "first":
        return first, requests
    with torch.no_grad():
        second = program.second(first)
    root_of(second).to(torch.get_default_dtype()).eval()
    if fault:
        plant(second, fault, program.faults[fault].at)
    return second, requests


def tokens(*shape):
    return torch.randint(0, VOCAB, shape)


def one_request():
    return tokens(6), tokens(3)


def linear_of(weight, bias=None):
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    made.weight.copy_(weight)
    if bias is not None:
        made.bias.copy_(bias)
    return made


def table_of(weight):
    made = nn.Embedding(*weight.shape)
    made.weight.copy_(weight)
    return made


# ---- the first one's house


class NormA(nn.Module):
    def __init__(self, width=WIDTH, eps=1e-6):
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + self.variance_epsilon))


class MlpA(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(WIDTH, INNER, bias=False)
        self.down_proj = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x, **context):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def rotate_half(x):
    x1, x2 = x.chunk(2, -1)
    return torch.cat((-x2, x1), -1)


def cos_sin(positions, size=SIZE, base=10000.0):
    inverse = 1.0 / base ** (torch.arange(0, size, 2, device=positions.device) / size)
    angles = positions[..., None] * inverse
    angles = torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()


class AttentionA(nn.Module):
    """(batch, heads, time, size); each program says how keys are kept."""

    rotary = True

    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(WIDTH, HEADS * SIZE, bias=False), nn.Linear(WIDTH, KV * SIZE, bias=False)
        self.v_proj, self.o_proj = nn.Linear(WIDTH, KV * SIZE, bias=False), nn.Linear(HEADS * SIZE, WIDTH, bias=False)
        self.past = None

    def project(self, x, positions=None):
        shape = (*x.shape[:-1], -1, SIZE)
        q, k, v = (p(x).view(shape).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        if not self.rotary:
            return q, k, v
        cos, sin = (y.unsqueeze(-3) for y in cos_sin(positions))
        return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin, v

    def grown(self, k, v):
        if self.past is not None:
            k, v = torch.cat((self.past[0], k), 2), torch.cat((self.past[1], v), 2)
        self.past = k, v
        return k, v

    def attend(self, q, k, v, mask=None):
        k, v = (y.repeat_interleave(GROUP, 1) for y in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class GrownAttention(AttentionA):
    """Concatenates each step's keys to those before."""

    def forward(self, x, start):
        time = x.shape[1]
        q, k, v = self.project(x, torch.arange(start, start + time))
        return self.attend(q, *self.grown(k, v), tril(time, start + time, start))


class LayerA(nn.Module):
    names = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")

    def __init__(self, attention, mlp=MlpA, names=None):
        super().__init__()
        self.names = names or self.names
        for name, part in zip(self.names, (NormA(), attention(), NormA(), mlp())):
            self.add_module(name, part)

    def parts(self):
        return [getattr(self, name) for name in self.names]

    def forward(self, x, **context):
        norm, attention, norm2, mlp = self.parts()
        x = x + attention(norm(x), **context)
        return x + mlp(norm2(x), **context)


class BodyA(nn.Module):
    def __init__(self, *kinds, **names):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(LayerA(*kinds, **names) for _ in range(3))
        self.norm = NormA()

    def forward(self, x, **context):
        x = self.embed_tokens(x) if x.dtype == torch.long else x
        for layer in self.layers:
            x = layer(x, **context)
        return self.norm(x)


class LmA(nn.Module):
    """model.layers.1.self_attn and so on; `names` calls a layer's parts otherwise."""

    def __init__(self, *kinds, **names):
        super().__init__()
        self.model, self.lm_head = BodyA(*kinds, **names), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, x, **context):
        return self.lm_head(self.model(x, **context))

    def attentions(self):
        return [layer.parts()[1] for layer in self.model.layers]

    def serve(self, requests):
        """Prefill and forced decoding of one request."""
        prompt, forced = requests
        self.forget()
        logits = [self(prompt[None], start=0)[0, -1]]
        for t, token in enumerate(forced):
            logits.append(self(token.view(1, 1), start=len(prompt) + t)[0, -1])
        return torch.stack(logits)

    def forget(self):
        for attention in self.attentions():
            attention.past = None


# ---- the second one's house


class NormB(Part):
    """Adds the branch to the residual, and norms the sum: returns both."""

    def __init__(self, theirs):
        super().__init__()
        self.scale, self.eps = nn.Parameter(theirs.weight.clone()), 1e-6

    def forward(self, x, carried=None):
        x = x if carried is None else x + carried
        return F.rms_norm(x, x.shape[-1:], self.scale, 1e-3 if self.bad("norm-eps") else self.eps), x


class MlpB(Part):
    def __init__(self, theirs):
        super().__init__()
        self.w13 = linear_of(torch.cat((theirs.gate_proj.weight, theirs.up_proj.weight)))
        self.w2 = linear_of(theirs.down_proj.weight)

    def forward(self, x, **context):
        both = self.w13(x)
        gate, up = both.split(INNER, -1)
        gate, up = (up, gate) if self.bad("gate-and-up-exchanged") else (gate, up)
        return self.w2(gate * torch.sigmoid(gate) * up)


class AttentionB(Part):
    """Packed tokens (n, heads, size), one merged projection, and a table of cosines and sines."""

    rotary = True

    def __init__(self, theirs):
        super().__init__()
        self.qkv = linear_of(torch.cat([p.weight for p in (theirs.q_proj, theirs.k_proj, theirs.v_proj)]))
        self.wo = linear_of(theirs.o_proj.weight)
        angles = torch.outer(torch.arange(64), 10000.0 ** (torch.arange(0, SIZE, 2) / -SIZE))
        self.register_buffer("table", torch.cat((angles.cos(), angles.sin()), -1))

    def turned(self, x, positions):
        c, s = self.table[positions].unsqueeze(1).chunk(2, -1)
        a, b = x[..., : SIZE // 2], x[..., SIZE // 2 :]
        return torch.cat((a * c - b * s, b * c + a * s), -1)

    def project(self, x, positions=None):
        q, k, v = self.qkv(x).split((HEADS * SIZE, KV * SIZE, KV * SIZE), -1)
        q, k, v = q.unflatten(-1, (HEADS, SIZE)), k.unflatten(-1, (KV, SIZE)), v.unflatten(-1, (KV, SIZE))
        return (self.turned(q, positions), self.turned(k, positions), v) if self.rotary else (q, k, v)

    def mixed(self, q, k, v, allowed=None):
        """Heads in groups: (n, kv, group, size) against (m, kv, size)."""
        q = q.unflatten(1, (KV, GROUP))
        scores = torch.einsum("nkgs,mks->kgnm", q, k) / math.sqrt(SIZE)
        if allowed is not None:
            scores = scores.masked_fill(~allowed, -torch.inf)
        return torch.einsum("kgnm,mks->nkgs", scores.softmax(-1), v).flatten(1)


class WrittenAttention(AttentionB):
    """Writes each step's keys into rows of a buffer."""

    def __init__(self, theirs):
        super().__init__(theirs)
        self.register_buffer("rows", torch.zeros(2, 16, KV, SIZE))

    def forward(self, x, start):
        end = start + len(x)
        q, self.rows[0, start:end], self.rows[1, start:end] = self.project(x, torch.arange(start, end))
        return self.wo(self.mixed(q, *self.rows[:, :end], tril(len(x), end, start)))


class LayerB(nn.Module):
    names = ("ln1", "attn", "ln2", "ffn")

    def __init__(self, theirs, attention, mlp, names):
        super().__init__()
        self.names = names or self.names
        norm, attn, norm2, ffn = theirs.parts()
        for name, part in zip(self.names, (NormB(norm), attention(attn), NormB(norm2), mlp(ffn))):
            self.add_module(name, part)

    def parts(self):
        return [getattr(self, name) for name in self.names]

    def forward(self, x, carried, **context):
        norm, attention, norm2, mlp = self.parts()
        x, carried = norm(x, carried)
        x, carried = norm2(attention(x, **context), carried)
        return mlp(x, **context), carried


class LmB(Part):
    """blocks.1.attn and so on; `stack` and `names` call them otherwise."""

    def __init__(self, theirs, attention, mlp=MlpB, stack="blocks", names=None):
        super().__init__()
        self.tok, self.stack = table_of(theirs.model.embed_tokens.weight), stack
        self.add_module(stack, nn.ModuleList(LayerB(layer, attention, mlp, names) for layer in theirs.model.layers))
        self.ln_f, self.out = NormB(theirs.model.norm), linear_of(theirs.lm_head.weight)

    def attentions(self):
        return [layer.parts()[1] for layer in getattr(self, self.stack)]

    def hidden(self, x, **context):
        x, carried = (self.tok(x) if x.dtype == torch.long else x), None
        for layer in getattr(self, self.stack):
            x, carried = layer(x, carried, **context)
        return self.ln_f(x, carried)[0]

    def forward(self, x, **context):
        return self.out(self.hidden(x, **context))

    def serve(self, requests):
        prompt, forced = requests
        rows = [self(prompt, start=0)[-1]]
        for place, token in enumerate(forced, len(prompt)):
            rows.append(self(token[None], start=place)[-1])
        return torch.stack(rows)


def tril(rows, columns=None, ahead=0):
    return torch.ones(rows, columns or rows, dtype=torch.bool).tril(ahead)


HF = "model.layers.1."
ATTN, NORM2, MLP = (HF + "self_attn",), (HF + "post_attention_layernorm",), (HF + "mlp",)
