"""What the programs of low_served share: how a pair is built in its precisions, and the two houses of parts.

The first one's house is a trainer's: separate projections, a batch axis, one forward over a whole request. The second one's is an
engine's: packed rows, merged projections, a residual carried through the norms, prefill and then decoding out of a cache. Each
side has its dtype; `up` makes an island in f32, and leaves f64 alone, so that both ways are one function in f64. A fault is one
other expression in one place of the second way; `bad("NAME")` stands on the faulty line."""

import math
import zlib
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, KV, SIZE, INNER, VOCAB = 32, 4, 2, 8, 48, 61
GROUP = HEADS // KV
HALF, BRAIN, FULL = torch.float16, torch.bfloat16, torch.float32


class Fault(NamedTuple):
    """Where a fault lies.

    at: module of the second way that holds it ("" is the root's own code); also: its counterparts in the first way; first: a
    regular expression of lines that say in the first way what the fault says otherwise; near: of further lines of the second
    way; outside: what holds it when no layer does; subtle: its effect is less than 10 times the innocent gap."""

    at: str
    also: tuple = ()
    first: str = ""
    near: str = ""
    outside: str = ""
    subtle: bool = False

    def line(self, name):
        return "|".join(x for x in (rf'bad\("{name}"\)', self.near, self.first) if x)


class Program(NamedTuple):
    """dtypes: of the parameters of the first and of the second way; seed: of its draws, one at which no near tie of a choice flips."""

    first: type
    second: type
    requests: object
    faults: dict
    dtypes: tuple = (BRAIN, BRAIN)
    seed: int = 0


class Part(nn.Module):
    """A module that may hold a fault; parameters named in `wide` stay in f32."""

    fault = None
    wide = ()

    def bad(self, name):
        return self.fault == name


class Kept:
    """Something that is no module and may hold a fault: a cache, a sampler. It has the fault of the module whose attribute it is."""

    fault = None

    def bad(self, name):
        return self.fault == name


def up(x):
    """In f32; what is in f64 stays."""
    return x if x.dtype == torch.float64 else x.float()


def gain(name, shape):
    """Tables small beside what layers add, attention so sharp that masks and positions matter, logits so wide that scores differ."""
    if any(word in name for word in ("embed", "wte", "wpe")):
        return 0.2
    return (1.7 if "att" in name else 3.0 if "lm_head" in name else 1.5) / math.sqrt(min(shape[-2:]))


def settle(root):
    """Draws every parameter: norms near one, tables and matrices so that a layer neither dies nor explodes."""
    with torch.no_grad():
        for name, p in root.named_parameters():
            drawn = torch.randn(p.shape, dtype=torch.float32)
            if p.dim() == 1:
                norm = "norm" in name.lower() or "ln" in name
                p.copy_(0.3 * drawn + (1.0 if norm and name.endswith("weight") else 0.0))
            else:
                p.copy_(drawn * gain(name, p.shape))


def cast(root, dtype):
    """Parameters to the dtype of their way, but for those that their module keeps wide; in f64, all of them."""
    for part in root.modules():
        for name, p in part.named_parameters(recurse=False):
            if name not in getattr(part, "wide", ()):
                p.data = p.data.to(dtype)
    return root.eval()


def plant(root, fault, at):
    part = root.get_submodule(at)
    part.fault = fault
    for kept in vars(part).values():
        if isinstance(kept, Kept):
            kept.fault = fault


def built(program, name, way, fault=None):
    """A way of a program and its requests: in its own precision, or in f64 where that is the default dtype."""
    wide = torch.get_default_dtype() == torch.float64
    first = program.first()
    torch.manual_seed(zlib.crc32(name.encode()) % 10000 + program.seed)  # behind the constructors, whose draws depend on the dtype
    settle(first)
    dtypes = [torch.float64] * 2 if wide else program.dtypes
    cast(first, dtypes[0])
    with torch.no_grad():
        for part in first.modules():
            getattr(part, "prepare", lambda: None)()
        requests = program.requests()
        if way == "first":
            return first, requests
        second = cast(program.second(first), dtypes[1])
    if fault:
        plant(second, fault, program.faults[fault].at)
    return second, requests


def tokens(*shape):
    return torch.randint(0, VOCAB, shape)


def two_requests():
    """Pairs of a prompt and of the tokens that are forced after it."""
    return [(tokens(6), tokens(3)), (tokens(4), tokens(3))]


def linear_of(*weights, bias=None):
    """One layer of the rows of several weights."""
    weight = torch.cat([w.detach() for w in weights])
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    made.weight.data.copy_(weight)
    if bias is not None:
        made.bias.data.copy_(bias)
    return made


def merged(*theirs):
    return linear_of(*[t.weight for t in theirs])


def table_of(weight):
    made = nn.Embedding(*weight.shape)
    made.weight.data.copy_(weight)
    return made


def held(values):
    return nn.Parameter(up(values.detach()).clone())


def plain(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


def tril(rows, columns=None, ahead=0):
    return torch.ones(rows, columns or rows, dtype=torch.bool).tril(ahead)


# ---- the first one's house


class NormA(Part):
    """Its statistics in f32, as trainers write it."""

    def __init__(self, width=WIDTH, eps=1e-6):
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        y = up(x)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * y.to(x.dtype)


class FlatNormA(NormA):
    """All in the dtype of its input."""

    def forward(self, x):
        return x / (x.square().mean(-1, keepdim=True) + self.variance_epsilon).sqrt() * self.weight


class MlpA(nn.Module):
    linear = staticmethod(plain)

    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = self.linear(WIDTH, INNER), self.linear(WIDTH, INNER)
        self.down_proj = self.linear(INNER, WIDTH)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def rotate_half(x):
    x1, x2 = x.chunk(2, -1)
    return torch.cat((-x2, x1), -1)


def rotary(x, positions, base=10000.0):
    """(batch, heads, time, size), angles in f32 and cosines in the dtype of x."""
    size = x.shape[-1]
    angles = positions[..., None] / base ** (torch.arange(0, size, 2) / size)
    angles = torch.cat((angles, angles), -1)
    return x * angles.cos().to(x.dtype) + rotate_half(x) * angles.sin().to(x.dtype)


class AttentionA(nn.Module):
    """(batch, heads, time, size), over whole requests."""

    linear = staticmethod(plain)

    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj = self.linear(WIDTH, HEADS * SIZE), self.linear(WIDTH, KV * SIZE)
        self.v_proj, self.o_proj = self.linear(WIDTH, KV * SIZE), self.linear(HEADS * SIZE, WIDTH)

    def split(self, x):
        return (p(x).unflatten(-1, (-1, SIZE)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))

    def forward(self, x):
        q, k, v = self.split(x)
        places = torch.arange(x.shape[1])
        return self.attend(rotary(q, places), rotary(k, places), v)

    def attend(self, q, k, v):
        k, v = (y.repeat_interleave(GROUP, 1) for y in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=tril(q.shape[2]))
        return self.o_proj(y.transpose(1, 2).flatten(2))


class LayerA(nn.Module):
    def __init__(self, attention, mlp, norm):
        super().__init__()
        self.input_layernorm, self.self_attn = norm(), attention()
        self.post_attention_layernorm, self.mlp = norm(), mlp()

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class BodyA(nn.Module):
    def __init__(self, attention, mlp, norm, layer):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(layer(attention, mlp, norm) for _ in range(2))
        self.norm = norm()

    def forward(self, ids):
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class LmA(nn.Module):
    """model.layers.1.self_attn and so on; `kinds` are the classes of its parts."""

    kinds = (AttentionA, MlpA, NormA, LayerA)

    def __init__(self):
        super().__init__()
        self.model, self.lm_head = BodyA(*self.kinds), plain(WIDTH, VOCAB)

    def forward(self, ids):
        return self.lm_head(self.model(ids))

    def serve(self, requests):
        """Logits behind the prompt and behind each forced token, from one forward over each request."""
        return torch.cat([self(torch.cat(pair)[None])[0, len(pair[0]) - 1 :] for pair in requests])


# ---- the second one's house


class NormB(Part):
    """Adds the branch to the residual, and norms the sum: returns both."""

    def __init__(self, theirs):
        super().__init__()
        self.scale, self.eps = held(theirs.weight), theirs.variance_epsilon

    def forward(self, x, carried=None):
        x = x if carried is None else x + carried
        y = F.rms_norm(x, x.shape[-1:], self.scale, 1e-2 if self.bad("norm-eps") else self.eps)
        return y, (y if self.bad("residual-after-norm") else x)


class MlpB(Part):
    linear = staticmethod(merged)

    def __init__(self, theirs):
        super().__init__()
        self.w13, self.w2 = self.linear(theirs.gate_proj, theirs.up_proj), self.linear(theirs.down_proj)

    def forward(self, x):
        gate, up_ = self.w13(x).split(INNER, -1)
        gate, up_ = (up_, gate) if self.bad("gate-and-up-exchanged") else (gate, up_)
        return self.w2(gate * torch.sigmoid(gate) * up_)


class Rows(Kept):
    """Keys and values of the request that is served, a row for each token."""

    def __init__(self):
        self.kept = [None, None]

    def put(self, start, *fresh):
        at = start - 1 if self.bad("cache-row-overwritten") and start else start
        for i, y in enumerate(fresh):
            if start == 0:
                self.kept[i] = y.new_zeros(16, *y.shape[1:])
            self.kept[i][at : at + len(y)] = y
        return [y[: start + len(fresh[0])] for y in self.kept[: len(fresh)]]


def turned(x, positions, base=10000.0):
    """(rows, heads, size), halves apart, turned in f32."""
    size = x.shape[-1]
    angles = torch.outer(positions, base ** (torch.arange(0, size, 2) / -size))[:, None]
    a, b = up(x[..., : size // 2]), up(x[..., size // 2 :])
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1).to(x.dtype)


class AttentionB(Part):
    """Packed rows (n, heads, size), one merged projection, a cache of rows."""

    linear = staticmethod(merged)

    def __init__(self, theirs):
        super().__init__()
        self.qkv, self.wo = self.linear(theirs.q_proj, theirs.k_proj, theirs.v_proj), self.linear(theirs.o_proj)
        self.rows = Rows()

    def split(self, x):
        q, k, v = self.qkv(x).split((HEADS * SIZE, KV * SIZE, KV * SIZE), -1)
        return q.unflatten(-1, (HEADS, SIZE)), k.unflatten(-1, (KV, SIZE)), v.unflatten(-1, (KV, SIZE))

    def places(self, start, n):
        late = 1 if self.bad("decode-position-one-late") and start else 0
        return torch.arange(start + late, start + late + n)

    def forward(self, x, start):
        q, k, v = self.split(x)
        places, base = self.places(start, len(x)), 100.0 if self.bad("rope-base") else 10000.0
        q, k = turned(q, places, base), turned(k, places, base)
        return self.wo(self.mixed(q, *self.rows.put(start, k, v)))

    def mixed(self, q, k, v):
        """Heads in groups: (n, kv, group, size) against (m, kv, size); the rows of q are the last ones."""
        n, m = len(q), len(k)
        q = q.unflatten(1, (GROUP, KV)).transpose(1, 2) if self.bad("kv-heads-tiled") else q.unflatten(1, (KV, GROUP))
        size = WIDTH if self.bad("scale-of-width") else SIZE
        scores = torch.einsum("nkgs,mks->kgnm", q, k) * size**-0.5
        allowed = tril(n, m, m - n - 1 if self.bad("mask-one-short") and n == 1 else m - n)
        weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
        return torch.einsum("kgnm,mks->nkgs", weights, v).flatten(1)


class LayerB(nn.Module):
    def __init__(self, theirs, attention, mlp, norm):
        super().__init__()
        self.ln1, self.attn = norm(theirs.input_layernorm), attention(theirs.self_attn)
        self.ln2, self.ffn = norm(theirs.post_attention_layernorm), mlp(theirs.mlp)

    def forward(self, x, carried, start):
        x, carried = self.ln1(x, carried)
        x, carried = self.ln2(self.attn(x, start), carried)
        return self.ffn(x), carried


class LmB(Part):
    """blocks.1.attn and so on; `kinds` are the classes of its parts."""

    kinds = (AttentionB, MlpB, NormB)

    def __init__(self, theirs):
        super().__init__()
        self.tok = table_of(theirs.model.embed_tokens.weight)
        self.blocks = nn.ModuleList(LayerB(layer, *self.kinds) for layer in theirs.model.layers)
        self.ln_f, self.out = self.kinds[2](theirs.model.norm), linear_of(theirs.lm_head.weight)

    def hidden(self, ids, start):
        x, carried = self.tok(ids), None
        for block in self.blocks:
            x, carried = block(x, carried, start)
        return self.ln_f(x, carried)[0]

    def forward(self, ids, start):
        return self.out(self.hidden(ids, start))

    def serve(self, requests):
        rows = []
        for prompt, forced in requests:
            rows.append(self(prompt, 0)[-1])
            for place, token in enumerate(forced, len(prompt)):
                rows.append(self(token[None], place)[-1])
        return torch.stack(rows)


HF = "model.layers.1."
ATTN, NORM1, NORM2, MLP = (HF + "self_attn",), (HF + "input_layernorm",), (HF + "post_attention_layernorm",), (HF + "mlp",)
B_ATTN, B_FFN = "blocks.1.attn", "blocks.1.ffn"
QKV, OUT = tuple(f"{HF}self_attn.{p}_proj" for p in "qkv"), (HF + "self_attn.o_proj",)
GATE_UP, DOWN = (HF + "mlp.gate_proj", HF + "mlp.up_proj"), (HF + "mlp.down_proj",)

# Faults that any program of these houses may hold.
TILED = Fault(B_ATTN, ATTN, "repeat_interleave", near="scores = ")
LATE = Fault(B_ATTN, ATTN, near=r"torch\.arange\(start \+ late")
BASE = Fault(B_ATTN, ATTN, near=r"torch\.outer\(positions, base")
SHORT = Fault(B_ATTN, ATTN, near="masked_fill")
EPS = Fault("blocks.0.ln1", ("model.layers.0.input_layernorm",))
RESIDUAL = Fault("blocks.1.ln2", NORM2, near=r"x \+ carried")
EXCHANGED = Fault(B_FFN, MLP, near=r"self\.w2\(gate")
