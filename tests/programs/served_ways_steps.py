"""Programs of served_ways about how steps follow each other: states, drafts and beams."""

import torch
import torch.nn.functional as F
from served_ways_frame import (
    ATTN,
    GROUP,
    HEADS,
    HF,
    KV,
    SIZE,
    VOCAB,
    WIDTH,
    AttentionB,
    Fault,
    GrownAttention,
    LmA,
    LmB,
    NormA,
    Part,
    Program,
    linear_of,
    one_request,
    tokens,
    tril,
)
from torch import nn

PROGRAMS = {}
ROOT = "the root's own code, no layer"

# ---- a state-space mixer: all tokens at once by a matrix of decays, or a state that goes from step to step

STATE, TAPS = 4, 3


class MatrixMixer(nn.Module):
    """Scalar decay per head (Mamba 2), in its quadratic form."""

    def __init__(self):
        super().__init__()
        self.in_proj = nn.Linear(WIDTH, 2 * WIDTH + 2 * STATE + HEADS, bias=False)
        self.conv1d = nn.Conv1d(WIDTH + 2 * STATE, WIDTH + 2 * STATE, TAPS, groups=WIDTH + 2 * STATE, padding=TAPS - 1)
        self.dt_bias, self.A_log, self.D = (nn.Parameter(torch.zeros(HEADS)) for _ in range(3))
        self.norm, self.out_proj = NormA(), nn.Linear(WIDTH, WIDTH, bias=False)
        self.past = None

    def forward(self, x):
        z, xbc, dt = self.in_proj(x).split((WIDTH, WIDTH + 2 * STATE, HEADS), -1)
        xbc = F.silu(self.conv1d(xbc.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        x, b, c = xbc.split((WIDTH, STATE, STATE), -1)
        x, dt = x.unflatten(-1, (HEADS, -1)), F.softplus(dt + self.dt_bias)
        run = (-dt * self.A_log.exp()).cumsum(1)
        decay = torch.exp(run[:, :, None] - run[:, None]).masked_fill(~tril(x.shape[1])[..., None], 0)
        y = torch.einsum("btn,bsn,btsh,bsh,bshd->bthd", c, b, decay, dt, x) + self.D[:, None] * x
        return self.out_proj(self.norm(y.flatten(2) * F.silu(z)))


class MatrixLm(LmA):
    def __init__(self):
        super().__init__(MatrixMixer, names=("norm", "mixer", "norm_f", "mlp"))

    def serve(self, requests):
        return self(torch.cat(requests)[None])[0, len(requests[0]) - 1 :]


class RecurrentMixer(Part):
    def __init__(self, theirs):
        super().__init__()
        self.w_in, self.w_out = linear_of(theirs.in_proj.weight), linear_of(theirs.out_proj.weight)
        self.taps, self.tap_bias = nn.Parameter(theirs.conv1d.weight[:, 0].clone()), nn.Parameter(theirs.conv1d.bias.clone())
        self.dt_bias, self.rate = nn.Parameter(theirs.dt_bias.clone()), nn.Parameter(theirs.A_log.clone())
        self.skip, self.gain = nn.Parameter(theirs.D.clone()), nn.Parameter(theirs.norm.weight.clone())
        self.register_buffer("window", torch.zeros(TAPS, len(self.taps)))
        self.register_buffer("state", torch.zeros(HEADS, WIDTH // HEADS, STATE))
        self.register_buffer("decay_before", torch.ones(HEADS))

    def step(self, x):
        z, mixed, dt = self.w_in(x).split((WIDTH, WIDTH + 2 * STATE, HEADS))
        self.window = self.window if self.bad("window-unshifted") else self.window.roll(-1, 0)
        self.window[-1] = mixed
        taps = self.taps.flip(1) if self.bad("taps-reversed") else self.taps
        mixed = F.silu((self.window * taps.T).sum(0) + self.tap_bias)
        x, b, c = mixed[:WIDTH].view(HEADS, -1), mixed[WIDTH:-STATE], mixed[-STATE:]
        dt = F.softplus(dt if self.bad("bias-of-step-left-out") else dt + self.dt_bias)
        decay = torch.exp(-dt * self.rate.exp())
        used = self.decay_before if self.bad("decay-of-token-before") else decay
        self.decay_before = decay
        self.state = self.state * used[:, None, None] + (dt[:, None] * x)[..., None] * b
        y = self.state @ c
        y = (y if self.bad("skip-left-out") else y + self.skip[:, None] * x).flatten()
        gate = F.silu(z)
        normed = F.rms_norm(y if self.bad("gate-behind-norm") else y * gate, (WIDTH,), self.gain, 1e-6)
        return normed * gate if self.bad("gate-behind-norm") else normed

    def forward(self, x):
        return self.w_out(torch.stack([self.step(row) for row in x]))


class RecurrentLm(LmB):
    def __init__(self, theirs):
        super().__init__(theirs, RecurrentMixer, stack="backbone", names=("ln", "ssm", "ln_ff", "ff"))

    def serve(self, requests):
        prompt, forced = requests
        return torch.cat([self(prompt)[-1:], *(self(token[None]) for token in forced)])


SSM = ("backbone.1.ssm", (HF + "mixer",))
PROGRAMS["scan-recurrent"] = Program(
    MatrixLm,
    RecurrentLm,
    one_request,
    {
        "window-unshifted": Fault(*SSM, near="self.window\\[-1\\]|mixed = F.silu"),
        "taps-reversed": Fault(*SSM, near="mixed = F.silu"),
        "bias-of-step-left-out": Fault(*SSM, r"softplus\(dt \+"),
        "decay-of-token-before": Fault(*SSM, near="self.state = "),
        "skip-left-out": Fault(*SSM, r"self\.D\[:"),
        "gate-behind-norm": Fault(*SSM, r"self\.norm\(y", near="F.rms_norm"),
        "norm-eps": Fault("backbone.1.ln_ff", (HF + "norm_f",)),
    },
)

# ---- the gated delta rule: a state that each token corrects, or a chunk at once by a triangular solve


class CorrectedState(nn.Module):
    """Gated DeltaNet (Yang et al. 2024), token by token."""

    def __init__(self):
        super().__init__()
        self.in_proj_qkv, self.in_proj_ba = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, 2 * HEADS)
        self.norm, self.out_proj, self.past = nn.RMSNorm(SIZE, eps=1e-6), nn.Linear(WIDTH, WIDTH, bias=False), None

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (HEADS, SIZE)) for y in self.in_proj_qkv(x).chunk(3, -1))
        q, k = (y * torch.rsqrt(y.square().sum(-1, keepdim=True) + 1e-6) for y in (q, k))
        beta, rate = self.in_proj_ba(x).chunk(2, -1)
        beta, kept = beta.sigmoid(), torch.exp(-F.softplus(rate))
        state = torch.zeros(len(x), HEADS, SIZE, SIZE)
        rows = []
        for t in range(x.shape[1]):
            state = state * kept[:, t, :, None, None]
            recalled = (state * k[:, t, :, :, None]).sum(-2)
            state = state + k[:, t, :, :, None] * ((v[:, t] - recalled) * beta[:, t, :, None])[:, :, None]
            rows.append((state * q[:, t, :, :, None]).sum(-2) * SIZE**-0.5)
        return self.out_proj(self.norm(torch.stack(rows, 1)).flatten(2))


class CorrectedLm(LmA):
    def __init__(self):
        super().__init__(CorrectedState, names=("input_layernorm", "linear_attn", "post_attention_layernorm", "mlp"))

    def serve(self, requests):
        return self(torch.cat(requests)[None])[0, len(requests[0]) - 1 :]


class SolvedChunk(Part):
    def __init__(self, theirs):
        super().__init__()
        self.w_qkv, self.w_gates = linear_of(theirs.in_proj_qkv.weight), linear_of(theirs.in_proj_ba.weight, theirs.in_proj_ba.bias)
        self.gain, self.w_out = nn.Parameter(theirs.norm.weight.clone()), linear_of(theirs.out_proj.weight)
        self.register_buffer("memory", torch.zeros(HEADS, SIZE, SIZE))

    def forward(self, x):
        q, k, v = self.w_qkv(x).view(len(x), 3, HEADS, SIZE).permute(1, 2, 0, 3)
        q = q * (q.pow(2).sum(-1, keepdim=True) + 1e-6) ** -0.5 / SIZE**0.5
        k = k if self.bad("keys-of-any-length") else k * (k.pow(2).sum(-1, keepdim=True) + 1e-6) ** -0.5
        write, fade = self.w_gates(x).T.split(HEADS)
        write = torch.sigmoid(write)[..., None]
        run = -F.softplus(fade).cumsum(-1)
        run = F.pad(run[:, :-1], (1, 0)) if self.bad("decay-one-token-late") else run
        between = torch.exp((run[:, :, None] - run[:, None]).masked_fill(~tril(len(x)), -torch.inf))
        since = run.exp()[..., None]
        lower = (write * between * (k @ k.mT)).tril(-1)
        recalled = torch.zeros_like(v) if self.bad("memory-not-taken-off") else since * (k @ self.memory)
        fresh = torch.linalg.solve_triangular(torch.eye(len(x)) + lower, write * (v - recalled), upper=False)
        within = (between * (q @ k.mT)).tril(-1 if self.bad("own-token-left-out") else 0)
        y = (q @ self.memory if self.bad("memory-undecayed") else since * (q @ self.memory)) + within @ fresh
        left = between[:, -1, :, None]
        carried = self.memory if self.bad("carried-without-decay") else self.memory * since[:, -1:]
        self.memory = carried + (k * left).mT @ fresh
        return self.w_out(F.rms_norm(y, (SIZE,), self.gain, 1e-6).transpose(0, 1).flatten(1))


class SolvedLm(LmB):
    def __init__(self, theirs):
        super().__init__(theirs, SolvedChunk, stack="trunk", names=("pre_norm", "delta", "mid_norm", "mlp"))

    def serve(self, requests):
        prompt, forced = requests
        return torch.cat([self(prompt[:4])[:0], self(prompt[4:])[-1:], self(forced[:2]), self(forced[2:])])


DELTA = ("trunk.1.delta", (HF + "linear_attn",))
PROGRAMS["delta-chunked"] = Program(
    CorrectedLm,
    SolvedLm,
    one_request,
    {
        "keys-of-any-length": Fault(*DELTA, "torch.rsqrt\\(y.square"),
        "decay-one-token-late": Fault(*DELTA, near="between = |since = "),
        "memory-not-taken-off": Fault(*DELTA, r"v\[:, t\] - recalled", "solve_triangular"),
        "own-token-left-out": Fault(*DELTA, near=r"y = \("),
        "memory-undecayed": Fault(*DELTA, r"state = state \* kept"),
        "carried-without-decay": Fault(*DELTA, r"state = state \* kept", near=r"self\.memory = carried"),
        "gate-and-up-exchanged": Fault("trunk.1.mlp", (HF + "mlp",), near="self.w2"),
    },
)

# ---- decoding token by token, or drafts of three that one pass verifies; rejected rows are rolled back


class StepwiseLm(LmA):
    def __init__(self):
        super().__init__(GrownAttention, names=("ln_1", "attn", "ln_2", "mlp"))

    def serve(self, requests):
        return super().serve(requests[:2])


class VerifyingAttention(AttentionB):
    def __init__(self, theirs):
        super().__init__(theirs)
        self.register_buffer("rows", torch.zeros(2, 24, KV, SIZE))
        self.held = 0

    def forward(self, x, start):
        back = 0 if self.bad("rejected-rows-kept") else self.held - start
        start, n = self.held - back, len(x)
        places = torch.arange(start, start + n)
        places = places + 1 if self.bad("verified-positions-one-late") and n == 4 else places
        q, k, v = self.project(x, places)
        self.rows[0, start : start + n], self.rows[1, start : start + n] = k, v
        self.held = start + n
        allowed = tril(n, start + n, start)
        allowed = tril(n, start + n, start + 1) if self.bad("next-draft-seen") and n == 4 else allowed
        allowed = allowed & (torch.arange(start + n) != start) if self.bad("first-draft-unseen") and n == 4 else allowed
        keys, values = self.rows[:, : start + n]
        keys, values = (y.repeat(1, GROUP, 1) if self.bad("kv-heads-interleaved") else y.repeat_interleave(GROUP, 1) for y in (keys, values))
        scores = torch.matmul(q.transpose(0, 1), keys.permute(1, 2, 0)) / SIZE**0.5
        weights = torch.softmax(scores.masked_fill(~allowed, -torch.inf), -1)
        return self.wo(torch.matmul(weights, values.transpose(0, 1)).transpose(0, 1).flatten(1))


class VerifyingLm(LmB):
    """The token that the sampler takes is given (`forced`); `drafts` are what a small model foretold, right or wrong."""

    def __init__(self, theirs):
        super().__init__(theirs, VerifyingAttention)

    def serve(self, requests):
        prompt, forced, drafts = requests
        taken, told = 0, [self(prompt, start=0)[-1:]]
        for draft in drafts:
            rows = self(torch.cat((forced[taken : taken + 1], draft)), start=len(prompt) + taken)
            right = (draft == forced[taken + 1 : taken + 4]).long().cumprod(0).sum().item()
            told.append(rows.roll(1, 0)[: right + 1] if self.bad("logits-one-row-early") else rows[: right + 1])
            taken += right + 1
        return torch.cat(told)


def drafted_request():
    """Two drafts are right, then one; then all three."""
    prompt, forced = tokens(5), tokens(9)
    first, second, third = forced[1:4].clone(), forced[4:7].clone(), forced[6:9].clone()
    first[2], second[1] = (first[2] + 1) % VOCAB, (second[1] + 1) % VOCAB
    return prompt, forced, [first, second, third]


STEPWISE = (HF + "attn",)
PROGRAMS["stepwise-verified"] = Program(
    StepwiseLm,
    VerifyingLm,
    drafted_request,
    {
        "rejected-rows-kept": Fault("blocks.1.attn", STEPWISE, near=r"self\.rows\[0, start|start, n = "),
        "verified-positions-one-late": Fault("blocks.1.attn", STEPWISE),
        "next-draft-seen": Fault("blocks.1.attn", STEPWISE, near="masked_fill"),
        "first-draft-unseen": Fault("blocks.1.attn", STEPWISE, near="masked_fill"),
        "kv-heads-interleaved": Fault("blocks.1.attn", STEPWISE),
        "logits-one-row-early": Fault("", outside=ROOT),
    },
)

# ---- beams: the cache brought into the order of the beams, or a table of ancestors that attention reads

BEAMS = 3


class ReorderedLm(LmA):
    def __init__(self):
        super().__init__(GrownAttention)

    def serve(self, prompt):
        self.forget()
        logits = self(prompt[None], start=0)[:, -1]
        scores, ids = logits.log_softmax(-1)[0].topk(BEAMS)
        for attention in self.attentions():
            attention.past = [y.expand(BEAMS, -1, -1, -1) for y in attention.past]
        told = [scores]
        for t in range(3):
            logits = self(ids[:, None], start=len(prompt) + t)[:, -1]
            total = (scores[:, None] + torch.log_softmax(logits, -1)).flatten()
            scores, places = total.topk(BEAMS)
            parents, ids = torch.div(places, VOCAB, rounding_mode="floor"), places % VOCAB
            for attention in self.attentions():
                attention.past = [y.index_select(0, parents) for y in attention.past]
            told += [logits.flatten(), scores, ids.to(scores.dtype)]
        return torch.cat([*told, scores / (len(prompt) + 3) ** 0.8])


class AncestorAttention(AttentionB):
    def __init__(self, theirs):
        super().__init__(theirs)
        self.register_buffer("prompt", torch.zeros(2, 8, KV, SIZE))
        self.register_buffer("later", torch.zeros(2, 4, BEAMS, KV, SIZE))

    def forward(self, x, start, step, ancestors):
        """ancestors (steps so far, beams): the row of each step's keys that a beam descends from."""
        places = start + torch.zeros(len(x), dtype=torch.long) if step is not None else torch.arange(len(x))
        places = places - 1 if self.bad("position-of-last-step") and step is not None else places
        q, k, v = self.project(x, places)
        if step is None:
            self.prompt[0, : len(x)], self.prompt[1, : len(x)] = k, v
            return self.wo(self.mixed(q, k, v, tril(len(x))))
        self.later[0, step], self.later[1, step] = k, v
        length = start - step
        ancestors = torch.arange(BEAMS).expand_as(ancestors) if self.bad("order-of-beams-left-out") else ancestors
        ancestors = torch.cat((ancestors[1:], ancestors[-1:])) if self.bad("ancestors-of-next-step") else ancestors
        steps = torch.arange(len(ancestors))[:, None]
        begun = self.prompt[:, 1:length] if self.bad("first-prompt-row-unseen") else self.prompt[:, :length]
        keys, values = torch.cat((begun[:, :, None].expand(-1, -1, BEAMS, -1, -1), self.later[:, steps, ancestors]), 1)
        scores = torch.einsum("bkgs,mbks->bkgm", q.unflatten(1, (KV, GROUP)), keys) / SIZE**0.5
        return self.wo(torch.einsum("bkgm,mbks->bkgs", scores.softmax(-1), values).flatten(1))


class AncestorLm(LmB):
    def __init__(self, theirs):
        super().__init__(theirs, AncestorAttention, names=("norm1", "att", "norm2", "glu"))

    def serve(self, prompt):
        own = torch.arange(BEAMS)[None]
        scores, ids = F.log_softmax(self(prompt, start=0, step=None, ancestors=None)[-1], -1).topk(BEAMS)
        told, ancestors = [scores], own
        for t in range(3):
            logits = self(ids, start=len(prompt) + t, step=t, ancestors=ancestors)
            gained = logits if self.bad("logits-unnormalised") else logits - logits.logsumexp(-1, keepdim=True)
            gained = gained if self.bad("scores-not-added-up") else gained + scores[:, None]
            scores, places = gained.view(-1).topk(BEAMS)
            parents, ids = places // VOCAB, places % VOCAB
            ancestors = torch.cat((ancestors[:, parents], own))
            told += [logits.flatten(), scores, ids.to(scores.dtype)]
        length = t + 1 if self.bad("length-without-prompt") else len(prompt) + t + 1
        return torch.cat([*told, scores / length**0.8])


BEAM = "blocks.1.att"
PROGRAMS["beams-by-ancestors"] = Program(
    ReorderedLm,
    AncestorLm,
    lambda: tokens(6),
    {
        "position-of-last-step": Fault(BEAM, ATTN),
        "order-of-beams-left-out": Fault(BEAM, ATTN, near="keys, values = "),
        "ancestors-of-next-step": Fault(BEAM, ATTN, near="keys, values = "),
        "first-prompt-row-unseen": Fault(BEAM, ATTN, near="keys, values = "),
        "logits-unnormalised": Fault("", ("",), "log_softmax", outside="the search, no layer"),
        "scores-not-added-up": Fault("", ("",), "total = ", outside="the search, no layer"),
        "length-without-prompt": Fault("", ("",), r"\*\* 0\.8", r"\*\*0\.8", "the search, no layer"),
    },
)
