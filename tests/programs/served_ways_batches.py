"""Programs of served_ways about how requests share a batch: packed, in chunks behind a prefix, at different positions, with adapters of their own."""

import math

import torch
import torch.nn.functional as F
from served_ways_frame import (
    ATTN,
    GROUP,
    HEADS,
    HF,
    KV,
    NORM2,
    SIZE,
    WIDTH,
    AttentionA,
    AttentionB,
    Fault,
    LmA,
    LmB,
    Part,
    Program,
    tokens,
    tril,
)
from torch import nn

PROGRAMS = {}

# ---- a ragged batch padded on the left, or packed: soft caps, tied and scaled embeddings, norms of 1 + w (Gemma's manner)

CAP, FINAL_CAP = 2.0, 6.0


class UnitNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x):
        return x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


class CappedAttention(AttentionA):
    def forward(self, x, positions, mask):
        q, k, v = self.project(x, positions)
        k, v = (y.repeat_interleave(GROUP, 1) for y in (k, v))
        scores = torch.matmul(q, k.transpose(2, 3)) * SIZE**-0.5
        scores = torch.tanh(scores / CAP) * CAP
        weights = torch.softmax(scores + mask, dim=-1)
        return self.o_proj(torch.matmul(weights, v).transpose(1, 2).flatten(2))


class PaddedGemma(LmA):
    def __init__(self):
        super().__init__(CappedAttention)
        del self.lm_head

    def forward(self, ids, **context):
        x = self.model.embed_tokens(ids) * WIDTH**0.5
        logits = self.model(x, **context) @ self.model.embed_tokens.weight.T
        return torch.tanh(logits / FINAL_CAP) * FINAL_CAP

    def serve(self, requests):
        longest = max(map(len, requests))
        real = torch.stack([torch.arange(longest) >= longest - len(r) for r in requests])
        ids = torch.stack([F.pad(r, (longest - len(r), 0)) for r in requests])
        positions = (real.long().cumsum(1) - 1).clamp(min=0)
        allowed = tril(longest)[None] & real[:, None, :] | torch.eye(longest, dtype=torch.bool)
        mask = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.get_default_dtype()).min)
        return self(ids, positions=positions, mask=mask[:, None])[:, -1]


class PackedAttention(AttentionB):
    def forward(self, x, ends):
        starts = torch.cat((ends.new_zeros(1), ends[:-1]))
        index = torch.arange(len(x))
        owner = torch.searchsorted(ends, index, right=not self.bad("border-in-next-request"))
        q, k, v = self.project(x, index - starts[owner])
        q = self.turned(q, starts[owner]) if self.bad("positions-of-queries-run-on") else q
        k, v = (y.repeat(1, GROUP, 1) if self.bad("kv-heads-interleaved") else y.repeat_interleave(GROUP, 1) for y in (k, v))
        scores = torch.einsum("nhd,mhd->hnm", q / SIZE**0.5, k)
        scores = scores if self.bad("softcap-left-out") else CAP * (scores / CAP).tanh()
        allowed = (index <= index[:, None]) & (True if self.bad("other-requests-seen") else owner == owner[:, None])
        return self.wo(torch.einsum("hnm,mhd->nhd", scores.masked_fill(~allowed, -torch.inf).softmax(-1), v).flatten(1))


class PackedGemma(LmB):
    def __init__(self, theirs):
        theirs.lm_head = theirs.model.embed_tokens
        super().__init__(theirs, PackedAttention, stack="layers", names=("pre_attn", "attention", "pre_ff", "ff"))
        del self.out, theirs.lm_head

    def forward(self, ids, ends):
        x = self.tok(ids) if self.bad("embedding-unscaled") else self.tok(ids) * math.sqrt(WIDTH)
        rows = self.hidden(x, ends=ends)[ends - 2 if self.bad("logits-of-wrong-row") else ends - 1]
        logits = F.linear(rows, self.tok.weight)
        return logits if self.bad("final-softcap-left-out") else FINAL_CAP * (logits / FINAL_CAP).tanh()

    def serve(self, requests):
        return self(torch.cat(requests), torch.tensor([len(r) for r in requests]).cumsum(0))


def ragged_requests():
    return [tokens(4), tokens(7), tokens(5)]


ROOT = "the root's own code, no layer"
PACKED = "layers.1.attention"
PROGRAMS["padded-packed"] = Program(
    PaddedGemma,
    PackedGemma,
    ragged_requests,
    {
        "positions-of-queries-run-on": Fault(PACKED, ATTN),
        "border-in-next-request": Fault(PACKED, ATTN),
        "kv-heads-interleaved": Fault(PACKED, ATTN),
        "softcap-left-out": Fault(PACKED, ATTN, r"scores = torch\.tanh\(scores / CAP"),
        "other-requests-seen": Fault(PACKED, ATTN),
        "logits-of-wrong-row": Fault("", outside=ROOT),
        "final-softcap-left-out": Fault("", ("",), r"torch\.tanh\(logits / FINAL_CAP", outside=ROOT),
        "embedding-unscaled": Fault("", ("",), r"embed_tokens\(ids\) \*", outside=ROOT),
    },
)

# ---- a prompt prefilled whole, or in chunks behind a shared prefix; keys and queries are normed


class NormedAttention(AttentionA):
    def __init__(self):
        super().__init__()
        self.q_norm, self.k_norm = nn.RMSNorm(SIZE, eps=1e-6), nn.RMSNorm(SIZE, eps=1e-6)

    def project(self, x, positions=None):
        q, k, v = (p(x).unflatten(-1, (-1, SIZE)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        self.rotated = self.q_norm(q), self.k_norm(k), v
        return self.spin(positions)

    def spin(self, positions):
        q, k, v = self.rotated
        angles = positions[:, None] / 10000.0 ** (torch.arange(0, SIZE, 2) / SIZE)
        turn = torch.polar(torch.ones_like(angles), angles)
        q, k = (torch.view_as_real(torch.complex(*y.chunk(2, -1)) * turn).transpose(-1, -2).flatten(-2) for y in (q, k))
        return q, k, v

    def forward(self, x):
        q, k, v = self.project(x, torch.arange(x.shape[1]))
        k, v = (y.repeat_interleave(GROUP, 1) for y in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class WholeLm(LmA):
    def __init__(self):
        super().__init__(NormedAttention, names=("ln_1", "attn", "ln_2", "mlp"))

    def serve(self, requests):
        return torch.stack([self(r[None])[0, -1] for r in requests])


class ChunkedAttention(AttentionB):
    def __init__(self, theirs):
        super().__init__(theirs)
        self.qn, self.kn = nn.Parameter(theirs.q_norm.weight.clone()), nn.Parameter(theirs.k_norm.weight.clone())
        self.prefixes, self.run = {}, []

    def forward(self, x, start, prefix, keep):
        n = len(x)
        q, k, v = self.qkv(x).split((HEADS * SIZE, KV * SIZE, KV * SIZE), -1)
        q, k, v = q.unflatten(-1, (HEADS, SIZE)), k.unflatten(-1, (KV, SIZE)), v.unflatten(-1, (KV, SIZE))
        q = q if self.bad("query-unnormed") else F.rms_norm(q, (SIZE,), self.qn, 1e-6)
        k = F.rms_norm(k, (SIZE,), self.qn if self.bad("key-norm-of-queries") else self.kn, 1e-6)
        places = torch.arange(n) + (0 if self.bad("chunk-position-from-zero") else start)
        q, k = self.turned(q, places), self.turned(k, places)
        if keep is not None:
            self.prefixes[keep] = [(k, v)]
        chosen = (prefix + 1) % len(self.prefixes) if self.bad("prefix-of-other-request") and start else prefix
        self.run = [] if start == 0 else (self.prefixes[chosen] if start == 4 else self.run)
        self.run = [*self.run, (k, v)]
        keys, values = (torch.cat(y) for y in zip(*self.run))
        first = 1 if self.bad("oldest-token-unseen") and start else 0
        index = torch.arange(start + n)
        ends = index[start:] - (1 if self.bad("chunk-sees-one-too-few") and start else 0)
        return self.wo(self.mixed(q, keys, values, (index <= ends[:, None]) & (index >= first)))


class ChunkedLm(LmB):
    def __init__(self, theirs):
        super().__init__(theirs, ChunkedAttention, stack="h", names=("norm_in", "mixer", "norm_mid", "channels"))

    def serve(self, requests):
        logits, seen = [], []
        for request in requests:
            head = request[:4].tolist()
            if head not in seen:
                seen.append(head)
                self(request[:4], start=0, prefix=len(seen) - 1, keep=len(seen) - 1)
            for start in range(4, len(request), 3):
                row = self(request[start : start + 3], start=start, prefix=seen.index(head), keep=None)[-1]
            logits.append(row)
        return torch.stack(logits)


def prefixed_requests():
    one, other = tokens(4), tokens(4)
    return [torch.cat((one, tokens(5))), torch.cat((other, tokens(4))), torch.cat((one, tokens(6)))]


CHUNKED, WHOLE = "h.1.mixer", (HF + "attn",)
PROGRAMS["whole-chunked"] = Program(
    WholeLm,
    ChunkedLm,
    prefixed_requests,
    {
        "query-unnormed": Fault(CHUNKED, WHOLE, r"self\.q_norm\("),
        "key-norm-of-queries": Fault(CHUNKED, WHOLE, r"self\.k_norm\("),
        "chunk-position-from-zero": Fault(CHUNKED, WHOLE),
        "prefix-of-other-request": Fault(CHUNKED, WHOLE, near=r"self\.prefixes\[chosen\]|keys, values ="),
        "oldest-token-unseen": Fault(CHUNKED, WHOLE, near="index >= first"),
        "chunk-sees-one-too-few": Fault(CHUNKED, WHOLE, near="index <= ends"),
        "norm-eps": Fault("h.1.norm_mid", (HF + "ln_2",)),
    },
)

# ---- requests one after another, or continuous batching of three at different positions; ALiBi in place of rotary positions


class SlopedAttention(AttentionA):
    rotary = False

    def forward(self, x):
        q, k, v = self.project(x)
        start = 0 if self.past is None else self.past[0].shape[2]
        k, v = self.grown(k, v)
        slopes = 2.0 ** (-8.0 * torch.arange(1, HEADS + 1) / HEADS)
        away = torch.arange(k.shape[2]) - torch.arange(start, k.shape[2])[:, None]
        bias = (slopes.view(-1, 1, 1) * away).masked_fill(away > 0, -torch.inf)
        return self.attend(q, k, v, bias)


class SlopedLm(LmA):
    def __init__(self):
        super().__init__(SlopedAttention)

    def serve(self, requests):
        rows = []
        for prompt, forced in requests:
            self.forget()
            rows.append(self(prompt[None])[0, -1])
            rows += [self(token.view(1, 1))[0, -1] for token in forced]
        return torch.stack(rows)


class SlotAttention(AttentionB):
    """A cache with a row for each request; a decode step serves all rows at once, whatever their lengths."""

    rotary = False

    def __init__(self, theirs):
        super().__init__(theirs)
        self.register_buffer("kept", torch.zeros(2, 3, 16, KV, SIZE))
        self.register_buffer("slopes", torch.tensor([0.25, 0.0625, 0.015625, 0.00390625]))

    def forward(self, x, rows, lengths):
        """x (requests, time, width), rows (requests), lengths (requests): tokens that each row held before."""
        q, k, v = self.project(x)
        places = lengths[:, None] + torch.arange(x.shape[1])
        written = (places - 1).clamp(min=0) if self.bad("new-row-overwrites-last") else places
        self.kept[0, rows[:, None], written], self.kept[1, rows[:, None], written] = k, v
        rows = (rows + 1) % 3 if self.bad("row-of-neighbour") and len(rows) > 1 else rows
        keys, values = (y.repeat_interleave(GROUP, 2) for y in self.kept[:, rows])
        index = torch.arange(keys.shape[1])
        away = index - places[:, :, None]
        slopes = self.slopes.flip(0) if self.bad("slopes-of-wrong-heads") else self.slopes
        ends = places.max() if self.bad("mask-of-longest") else places[:, None, :, None]
        away = -away if self.bad("distance-counted-up") else away
        scores = torch.einsum("bthd,bshd->bhts", q, keys) / SIZE**0.5
        scores = scores + slopes[:, None, None] * away[:, None]
        scores = torch.where(index <= ends, scores, -torch.inf)
        return self.wo(torch.einsum("bhts,bshd->bthd", torch.softmax(scores, -1), values).flatten(2))


class SlotLm(LmB):
    def __init__(self, theirs):
        super().__init__(theirs, SlotAttention, names=("rms_a", "attention", "rms_b", "glu"))

    def serve(self, requests):
        answers = [[] for _ in requests]
        held = torch.zeros(len(requests), dtype=torch.long)
        for i, (prompt, _) in enumerate(requests):
            answers[i].append(self(prompt[None], rows=torch.tensor([i]), lengths=held[i : i + 1])[0, -1])
            held[i] = len(prompt)
        for t in range(3):
            batch = torch.stack([forced[t] for _, forced in requests])[:, None]
            for answer, row in zip(answers, self(batch, rows=torch.arange(len(requests)), lengths=held)):
                answer.append(row[-1])
            held = held + 1
        return torch.stack(sum(answers, []))


def three_requests():
    return [(tokens(n), tokens(3)) for n in (5, 8, 3)]


SLOT = "blocks.1.attention"
PROGRAMS["one-by-one-continuous"] = Program(
    SlopedLm,
    SlotLm,
    three_requests,
    {
        "new-row-overwrites-last": Fault(SLOT, ATTN, near=r"self\.kept\[0, rows"),
        "row-of-neighbour": Fault(SLOT, ATTN, near="keys, values = "),
        "slopes-of-wrong-heads": Fault(SLOT, ATTN, "slopes = 2", near=r"slopes\[:, None, None\]"),
        "mask-of-longest": Fault(SLOT, ATTN, near="index <= ends"),
        "distance-counted-up": Fault(SLOT, ATTN, near=r"slopes\[:, None, None\]"),
        "norm-eps": Fault("blocks.1.rms_b", NORM2),
    },
)

# ---- several adapters: merged into the weights for each request, or gathered in one batch

ADAPTERS = ((2, 6.0), (4, 4.0))


class Adapted(nn.Linear):
    """Two low-rank adapters; `merge` writes the weight that one request is served with."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs, bias=False)
        self.lora_A = nn.ParameterList(torch.zeros(r, inputs) for r, _ in ADAPTERS)
        self.lora_B = nn.ParameterList(torch.zeros(outputs, r) for r, _ in ADAPTERS)
        self.active = None

    def forward(self, x):
        weight = self.weight
        if self.active is not None:
            rank, alpha = ADAPTERS[self.active]
            weight = weight + (alpha / rank) * (self.lora_B[self.active] @ self.lora_A[self.active])
        return F.linear(x, weight)


class AdaptedAttention(AttentionA):
    def __init__(self):
        super().__init__()
        self.q_proj, self.v_proj = Adapted(WIDTH, HEADS * SIZE), Adapted(WIDTH, KV * SIZE)

    def forward(self, x):
        q, k, v = self.project(x, torch.arange(x.shape[1]))
        return self.attend(q, k, v, tril(x.shape[1]))


class AdaptedLm(LmA):
    def __init__(self):
        super().__init__(AdaptedAttention)

    def serve(self, requests):
        rows = []
        for prompt, adapter in requests:
            for part in self.modules():
                if isinstance(part, Adapted):
                    part.active = adapter
            rows.append(self(prompt[None])[0, -1])
        return torch.stack(rows)


class GatheredAdapters(Part):
    """Stacked adapters, their ranks padded; index 0 of the stack is the base model's zeros."""

    def __init__(self, theirs):
        super().__init__()
        down, up, factors = [torch.zeros(4, WIDTH)], [torch.zeros(len(theirs.weight), 4)], [0.0]
        for (rank, alpha), a, b in zip(ADAPTERS, theirs.lora_A, theirs.lora_B):
            down.append(F.pad(a, (0, 0, 0, 4 - rank)))
            up.append(F.pad(b, (0, 4 - rank)))
            factors.append(alpha / rank)
        self.shrink, self.expand = nn.Parameter(torch.stack(down)), nn.Parameter(torch.stack(up))
        self.register_buffer("factors", torch.tensor(factors))
        self.register_buffer("alphas", torch.tensor([0.0, *(alpha for _, alpha in ADAPTERS)]))

    def forward(self, x, adapters):
        """x (requests, time, width), adapters (requests)."""
        adapters = adapters.roll(1) if self.bad("adapter-of-other-request") else adapters
        adapters = adapters.clamp(min=1) if self.bad("base-request-adapted") else adapters
        low = torch.bmm(x, self.shrink[adapters].transpose(1, 2))
        factors = self.alphas / 4 if self.bad("alpha-over-padded-rank") else self.factors
        factors = factors * factors if self.bad("alpha-over-rank-twice") else factors
        low = low * factors[adapters][:, None, None]
        up = self.expand[adapters.flip(0) if self.bad("up-of-other-request") else adapters]
        return torch.bmm(low, up.transpose(1, 2))


class GatheredAttention(AttentionB):
    def __init__(self, theirs):
        super().__init__(theirs)
        self.lora_q, self.lora_v = GatheredAdapters(theirs.q_proj), GatheredAdapters(theirs.v_proj)

    def forward(self, x, adapters):
        places = torch.arange(x.shape[1])
        q, k, v = self.qkv(x).split((HEADS * SIZE, KV * SIZE, KV * SIZE), -1)
        q = q + self.lora_q(x, adapters)
        changed = self.lora_v(x, adapters)
        k = k + changed if self.bad("value-adapter-on-keys") else k
        v = v if self.bad("value-adapter-on-keys") else v + changed
        rows = []
        for mine, key, value in zip(q.unflatten(-1, (HEADS, SIZE)), k.unflatten(-1, (KV, SIZE)), v.unflatten(-1, (KV, SIZE))):
            rows.append(self.mixed(self.turned(mine, places), self.turned(key, places), value, tril(len(mine))))
        return self.wo(torch.stack(rows))


class GatheredLm(LmB):
    def __init__(self, theirs):
        super().__init__(theirs, GatheredAttention)

    def serve(self, requests):
        adapters = torch.tensor([0 if adapter is None else adapter + 1 for _, adapter in requests])
        return self(torch.stack([prompt for prompt, _ in requests]), adapters=adapters)[:, -1]


def adapted_requests():
    return [(tokens(5), adapter) for adapter in (1, None, 0)]


LORA_Q, LORA_V = ("blocks.1.attn.lora_q", (HF + "self_attn.q_proj",)), ("blocks.1.attn.lora_v", (HF + "self_attn.v_proj",))
PROGRAMS["adapters-gathered"] = Program(
    AdaptedLm,
    GatheredLm,
    adapted_requests,
    {
        "adapter-of-other-request": Fault(*LORA_Q, near=r"self\.shrink\["),
        "base-request-adapted": Fault(*LORA_V, near=r"self\.shrink\["),
        "alpha-over-padded-rank": Fault(*LORA_Q, "alpha / rank", near="low = low"),
        "alpha-over-rank-twice": Fault(*LORA_V, "alpha / rank", near="low = low"),
        "up-of-other-request": Fault(*LORA_Q, near="torch.bmm\\(low"),
        "value-adapter-on-keys": Fault("blocks.1.attn", ATTN),
    },
)
