"""Programs of low_served whose mixers are no attention: a state-space model and a gated delta rule, parallel or step by step."""

import torch
import torch.nn.functional as F
from low_served_frame import (
    HALF,
    HEADS,
    SIZE,
    VOCAB,
    WIDTH,
    Fault,
    Kept,
    NormA,
    NormB,
    Part,
    Program,
    held,
    linear_of,
    plain,
    table_of,
    tril,
    two_requests,
    up,
)
from low_served_plain import Stepped, Whole
from torch import nn

PROGRAMS = {}


class MixerLayer(nn.Module):
    def __init__(self, mixer):
        super().__init__()
        self.norm, self.mixer = NormA(), mixer()

    def forward(self, x):
        return x + self.mixer(self.norm(x))


class MixerLm(Whole):
    mixer = None

    def __init__(self):
        super().__init__()
        self.embeddings, self.layers = nn.Embedding(VOCAB, WIDTH), nn.ModuleList(MixerLayer(self.mixer) for _ in range(2))
        self.norm_f, self.lm_head = NormA(), plain(WIDTH, VOCAB)

    def forward(self, ids):
        x = self.embeddings(ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm_f(x))


class MixerBlock(nn.Module):
    def __init__(self, theirs, mixer):
        super().__init__()
        self.ln, self.mix = NormB(theirs.norm), mixer(theirs.mixer)

    def forward(self, x, carried, start):
        x, carried = self.ln(x, carried)
        return self.mix(x, start), carried


class MixerEngine(Stepped):
    mixer = None

    def __init__(self, theirs):
        super().__init__()
        self.tok, self.blocks = table_of(theirs.embeddings.weight), nn.ModuleList(MixerBlock(layer, self.mixer) for layer in theirs.layers)
        self.last, self.out = NormB(theirs.norm_f), linear_of(theirs.lm_head.weight)

    def forward(self, ids, start):
        x, carried = self.tok(ids), None
        for block in self.blocks:
            x, carried = block(x, carried, start)
        return self.out(self.last(x, carried)[0])


# ---- a state-space mixer (Mamba-2): one masked product over the request, or a state and a window of inputs that each step moves on

STATE, TAPS = 6, 4
INSIDE = HEADS * SIZE
CHANNELS = INSIDE + 2 * STATE


class ParallelSpace(nn.Module):
    def __init__(self):
        super().__init__()
        self.in_proj, self.out_proj = plain(WIDTH, INSIDE + CHANNELS + HEADS), plain(INSIDE, WIDTH)
        self.conv1d = nn.Conv1d(CHANNELS, CHANNELS, TAPS, groups=CHANNELS, padding=TAPS - 1)
        self.dt_bias, self.A_log, self.D = (nn.Parameter(torch.zeros(HEADS)) for _ in range(3))
        self.norm = NormA(INSIDE)

    def prepare(self):
        self.dt_bias.mul_(4)
        self.D.mul_(4)

    def forward(self, x):
        time = x.shape[1]
        gate, inner, dt = self.in_proj(x).split((INSIDE, CHANNELS, HEADS), -1)
        inner = F.silu(self.conv1d(inner.transpose(1, 2))[..., :time].transpose(1, 2))
        inner, b, c = up(inner).split((INSIDE, STATE, STATE), -1)
        inner = inner.unflatten(-1, (HEADS, SIZE))
        dt = F.softplus(up(dt) + up(self.dt_bias))
        decay = torch.cumsum(-dt * torch.exp(up(self.A_log)), 1)
        between = (decay[:, :, None] - decay[:, None]).masked_fill(~tril(time)[None, ..., None], -torch.inf).exp()
        weights = torch.einsum("btn,bsn,btsh->bths", c, b, between)
        y = torch.einsum("bths,bsh,bshp->bthp", weights, dt, inner) + up(self.D)[:, None] * inner
        y = y.flatten(2).to(x.dtype)
        return self.out_proj(self.norm(y * F.silu(gate)))


class ParallelSpaceLm(MixerLm):
    mixer = ParallelSpace


class SpaceState(Kept):
    """Of the request that is served: the last inputs (TAPS - 1, channels), and (heads, size, STATE)."""

    def clear(self, like):
        self.window, self.state = like.new_zeros(TAPS - 1, CHANNELS), up(like).new_zeros(HEADS, SIZE, STATE)

    def begin(self, start, like):
        if start == 0:
            kept = getattr(self, "state", None)
            self.clear(like)
            self.state = kept if self.bad("state-of-request-before") and kept is not None else self.state
        elif self.bad("window-lost-behind-prefill"):
            self.window = torch.zeros_like(self.window)


class SteppedSpace(Part):
    wide = ("dt_bias", "a", "skip")

    def __init__(self, theirs):
        super().__init__()
        z, x, b, c, dt = theirs.in_proj.weight.split((INSIDE, INSIDE, STATE, STATE, HEADS))
        self.wz, self.wxbc, self.wdt, self.wo = linear_of(z), linear_of(x, b, c), linear_of(dt), linear_of(theirs.out_proj.weight)
        self.taps, self.tap_bias = held(theirs.conv1d.weight[:, 0].T), held(theirs.conv1d.bias)
        self.a, self.dt_bias, self.skip = held(-torch.exp(up(theirs.A_log))), held(theirs.dt_bias), held(theirs.D)
        self.norm, self.kept = NormB(theirs.norm), SpaceState()

    def step(self, row, dt):
        """One token's channels before the convolution, and its step sizes: its outputs by head, in f32."""
        window = torch.cat((self.kept.window, row[None]))
        self.kept.window = window[1:]
        taps = self.taps.flip(0) if self.bad("taps-reversed") else self.taps
        row = up(F.silu((window * taps).sum(0) + self.tap_bias))
        x, b, c = row.split((INSIDE, STATE, STATE))
        b, c = (c, b) if self.bad("input-and-output-exchanged") else (b, c)
        x = x.view(HEADS, SIZE)
        decay = torch.exp(self.a if self.bad("decay-without-step") else dt * self.a)
        fresh = torch.einsum("hp,n->hpn", x if self.bad("input-without-step") else x * dt[:, None], b)
        self.kept.state = self.kept.state * decay[:, None, None] + fresh
        y = self.kept.state @ c
        return y if self.bad("skip-left-out") else torch.addcmul(y, self.skip[:, None], x)

    def forward(self, x, start):
        self.kept.begin(start, x)
        steps = up(self.wdt(x))
        steps = steps if self.bad("step-bias-left-out") else steps + self.dt_bias
        steps = steps.exp() if self.bad("step-by-exponential") else torch.log1p(steps.exp())
        y = torch.stack([self.step(row, dt) for row, dt in zip(self.wxbc(x), steps)]).flatten(1).to(x.dtype)
        gate = F.silu(self.wz(x))
        return self.wo(self.norm(y)[0] * gate if self.bad("gate-behind-norm") else self.norm(y * gate)[0])


class SteppedSpaceLm(MixerEngine):
    mixer = SteppedSpace


MIX, MIXER = "blocks.1.mix", ("layers.1.mixer",)
PROGRAMS["state-space"] = Program(
    ParallelSpaceLm,
    SteppedSpaceLm,
    two_requests,
    {
        "state-of-request-before": Fault(MIX, MIXER, near=r"self\.kept\.state \* decay"),
        "window-lost-behind-prefill": Fault(MIX, MIXER, near="window = torch.cat"),
        "taps-reversed": Fault(MIX, MIXER, near="window \\* taps"),
        "input-and-output-exchanged": Fault(MIX, MIXER, near=r"fresh = torch\.einsum|self\.kept\.state @ c"),
        "decay-without-step": Fault(MIX, MIXER, "decay = torch.cumsum"),
        "input-without-step": Fault(MIX, MIXER, "bths,bsh,bshp"),
        "skip-left-out": Fault(MIX, MIXER, "up\\(self.D\\)", subtle=True),
        "step-bias-left-out": Fault(MIX, MIXER, "F.softplus"),
        "step-by-exponential": Fault(MIX, MIXER, "F.softplus"),
        "gate-behind-norm": Fault(MIX, MIXER, "self.norm\\(y \\* F.silu"),
    },
    seed=4,
)

# ---- a gated delta rule (Qwen3-Next): a triangular system for the request, or a state that each token corrects


class ParallelDelta(nn.Module):
    def __init__(self):
        super().__init__()
        self.in_proj_qkvz, self.in_proj_ba = plain(WIDTH, 4 * INSIDE), plain(WIDTH, 2 * HEADS)
        self.A_log, self.dt_bias = nn.Parameter(torch.zeros(HEADS)), nn.Parameter(torch.zeros(HEADS))
        self.norm, self.out_proj = NormA(SIZE), plain(INSIDE, WIDTH)

    def prepare(self):
        self.dt_bias.mul_(4)

    def forward(self, x):
        q, k, v, z = (y.unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for y in self.in_proj_qkvz(x).chunk(4, -1))
        b, a = up(self.in_proj_ba(x)).transpose(1, 2).chunk(2, 1)
        q, k = F.normalize(up(q), dim=-1, eps=1e-6) * SIZE**-0.5, F.normalize(up(k), dim=-1, eps=1e-6)
        beta = torch.sigmoid(b)[..., None]
        decay = torch.cumsum(-torch.exp(up(self.A_log))[:, None] * F.softplus(a + up(self.dt_bias)[:, None]), -1)
        between = (decay[..., None] - decay[..., None, :]).masked_fill(~tril(x.shape[1]), -torch.inf).exp()
        system = torch.eye(x.shape[1]) + beta * (between * (k @ k.mT)).tril(-1)
        written = torch.linalg.solve_triangular(system, beta * up(v), upper=False)
        y = ((q @ k.mT) * between @ written).to(x.dtype)
        return self.out_proj((self.norm(y) * F.silu(z)).transpose(1, 2).flatten(2))


class ParallelDeltaLm(MixerLm):
    mixer = ParallelDelta


class Memory(Kept):
    def begin(self, start):
        if start == 0:
            self.state = torch.zeros(HEADS, SIZE, SIZE)


class SteppedDelta(Part):
    """State (heads, key, value)."""

    wide = ("rate", "shift")

    def __init__(self, theirs):
        super().__init__()
        self.qkvz, self.ba, self.wo = (linear_of(p.weight) for p in (theirs.in_proj_qkvz, theirs.in_proj_ba, theirs.out_proj))
        self.rate, self.shift = held(torch.exp(up(theirs.A_log))), held(theirs.dt_bias)
        self.norm, self.memory = NormB(theirs.norm), Memory()

    def unit(self, x):
        return x * torch.rsqrt(x.square().sum(-1, keepdim=True))

    def corrected(self, k, v, beta, decay):
        """The state behind one token."""
        state = self.memory.state
        kept = state if self.bad("decay-left-out") else state * decay[:, None, None]
        recalled = torch.einsum("hk,hkv->hv", k, state if self.bad("recalled-before-decay") else kept)
        missing = v if self.bad("correction-left-out") else v - recalled
        missing = missing if self.bad("beta-left-out") else missing * beta[:, None]
        return kept + k[..., None] * missing[:, None]

    def forward(self, x, start):
        self.memory.begin(start)
        q, k, v, z = self.qkvz(x).view(len(x), 4, HEADS, SIZE).unbind(1)
        b, a = up(self.ba(x)).unflatten(-1, (2, HEADS)).unbind(1)
        b, a = (a, b) if self.bad("gates-exchanged") else (b, a)
        q = self.unit(up(q)) / SIZE**0.5
        k = up(k) * SIZE**-0.5 if self.bad("keys-not-of-unit-length") else self.unit(up(k))
        beta = b.clamp(0, 1) if self.bad("beta-without-sigmoid") else b.sigmoid()
        decays = torch.exp(-self.rate * F.softplus(a if self.bad("step-bias-left-out") else a + self.shift))
        rows = []
        for t in range(len(x)):
            before = self.memory.state
            self.memory.state = self.corrected(k[t], up(v[t]), beta[t], decays[t])
            read = before if self.bad("read-before-write") else self.memory.state
            rows.append(torch.einsum("hk,hkv->hv", q[t], read))
        y = self.norm(torch.stack(rows).to(x.dtype))[0]
        y = y * torch.sigmoid(z) if self.bad("gate-by-sigmoid") else y * z * torch.sigmoid(z)
        return self.wo(y.flatten(1))


class SteppedDeltaLm(MixerEngine):
    mixer = SteppedDelta


PROGRAMS["delta-rule"] = Program(
    ParallelDeltaLm,
    SteppedDeltaLm,
    two_requests,
    {
        "decay-left-out": Fault(MIX, MIXER, "between = "),
        "recalled-before-decay": Fault(MIX, MIXER, "system = "),
        "correction-left-out": Fault(MIX, MIXER, "system = "),
        "beta-left-out": Fault(MIX, MIXER, "solve_triangular"),
        "gates-exchanged": Fault(MIX, MIXER, "b, a = up", near=r"b\.sigmoid\(\)|decays = "),
        "keys-not-of-unit-length": Fault(MIX, MIXER, "F.normalize"),
        "beta-without-sigmoid": Fault(MIX, MIXER, r"torch\.sigmoid\(b\)"),
        "step-bias-left-out": Fault(MIX, MIXER, "F.softplus"),
        "read-before-write": Fault(MIX, MIXER, near="hk,hkv->hv"),
        "gate-by-sigmoid": Fault(MIX, MIXER, "F.silu\\(z"),
    },
    (HALF, HALF),
    seed=4,
)
