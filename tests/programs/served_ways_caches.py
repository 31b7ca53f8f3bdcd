"""Programs of served_ways about what is kept between steps: caches of keys and values, whole, paged, in a ring, in int8."""

import math

import torch
from served_ways_frame import (
    ATTN,
    GROUP,
    HEADS,
    HF,
    INNER,
    KV,
    MLP,
    NORM2,
    SIZE,
    VOCAB,
    WIDTH,
    AttentionA,
    AttentionB,
    Fault,
    Kept,
    LmA,
    LmB,
    MlpB,
    NormB,
    Program,
    linear_of,
    one_request,
    table_of,
    tokens,
    tril,
)
from torch import nn

PROGRAMS = {}

# ---- transformers' Llama with its growing cache, or a static cache with index_copy_


class HfLlama:
    def __init__(self):
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = dict(vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=3)
        heads = dict(num_attention_heads=HEADS, num_key_value_heads=KV, rms_norm_eps=1e-6, max_position_embeddings=64)
        self.root = LlamaForCausalLM(LlamaConfig(**sizes, **heads, attn_implementation="sdpa", tie_word_embeddings=False))

    def serve(self, requests):
        prompt, forced = requests
        answer = self.root(prompt, use_cache=True)
        logits = [answer.logits[:, -1]]
        for token in forced.unbind(1):
            answer = self.root(token[:, None], past_key_values=answer.past_key_values, use_cache=True)
            logits.append(answer.logits[:, -1])
        return torch.stack(logits, 1)


class StaticNorm(NormB):
    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + (1e-4 if self.bad("norm-eps") else 1e-6))
        return self.scale * wide.to(x.dtype)


class StaticAttention(AttentionB):
    slots = 12

    def __init__(self, theirs):
        super().__init__(theirs)
        inverse = 1.0 / 10000.0 ** (torch.arange(0, SIZE, 2).to(torch.float32) / SIZE)
        angles = torch.outer(torch.arange(64).to(torch.float32), inverse)
        self.table = torch.cat((angles.cos(), angles.sin()), -1).to(torch.get_default_dtype())
        for name in ("kept_k", "kept_v"):
            self.register_buffer(name, torch.zeros(2, self.slots, KV, SIZE))

    def forward(self, x, start):
        slots = torch.arange(start, start + x.shape[1])
        places = slots + 1 if self.bad("decode-position-one-late") and start else slots
        rows = slots - 1 if self.bad("cache-row-overwritten") and start else slots
        q, k, v = self.qkv(x).split((HEADS * SIZE, KV * SIZE, KV * SIZE), -1)
        q, raw, v = q.unflatten(-1, (HEADS, SIZE)), k.unflatten(-1, (KV, SIZE)), v.unflatten(-1, (KV, SIZE))
        q, k = torch.stack([self.turned(y, places) for y in q]), torch.stack([self.turned(y, places) for y in raw])
        k = raw if self.bad("decode-key-unrotated") and start else k
        self.kept_k.index_copy_(1, rows, k)
        self.kept_v.index_copy_(1, rows, v)
        k, v = (y.repeat(1, 1, GROUP, 1) if self.bad("kv-heads-interleaved") else y.repeat_interleave(GROUP, 2) for y in (self.kept_k, self.kept_v))
        ends = slots - 1 if self.bad("mask-one-short") and start else slots
        allowed = torch.arange(self.slots) <= ends[:, None]
        scores = torch.einsum("bthd,bshd->bhts", q, k) * SIZE**-0.5
        scores = torch.where(allowed, scores, -torch.inf)
        return self.wo(torch.einsum("bhts,bshd->bthd", scores.softmax(-1), v).flatten(2))


class StaticBlock(nn.Module):
    def __init__(self, theirs):
        super().__init__()
        self.ln1, self.attn = StaticNorm(theirs.input_layernorm), StaticAttention(theirs.self_attn)
        self.ln2, self.ffn = StaticNorm(theirs.post_attention_layernorm), MlpB(theirs.mlp)

    def forward(self, x, start):
        x = x + self.attn(self.ln1(x), start)
        return x + self.ffn(self.ln2(x))


class StaticLlama(nn.Module):
    def __init__(self, theirs):
        super().__init__()
        theirs = theirs.root
        self.wte, self.ln_f = table_of(theirs.model.embed_tokens.weight), StaticNorm(theirs.model.norm)
        self.blocks = nn.ModuleList(StaticBlock(layer) for layer in theirs.model.layers)
        self.unembed = linear_of(theirs.lm_head.weight)

    def forward(self, ids, start):
        x = self.wte(ids)
        for block in self.blocks:
            x = block(x, start)
        return self.unembed(self.ln_f(x[:, -1]))

    def serve(self, requests):
        prompt, forced = requests
        logits, start = [self(prompt, 0)], prompt.shape[1]
        for token in forced.unbind(1):
            logits.append(self(token[:, None], start))
            start += 1
        return torch.stack(logits, 1)


def growing_requests():
    return tokens(2, 6), tokens(2, 3)


B_ATTN = "blocks.1.attn"
PROGRAMS["growing-static"] = Program(
    HfLlama,
    StaticLlama,
    growing_requests,
    {
        "decode-position-one-late": Fault(B_ATTN, ATTN),
        "cache-row-overwritten": Fault(B_ATTN, ATTN, near="index_copy_"),
        "decode-key-unrotated": Fault(B_ATTN, ATTN),
        "kv-heads-interleaved": Fault(B_ATTN, ATTN),
        "mask-one-short": Fault(B_ATTN, ATTN, near="allowed = "),
        "norm-eps": Fault("blocks.1.ln2", NORM2),
        "gate-and-up-exchanged": Fault("blocks.1.ffn", MLP, near="self.w2"),
    },
)

# ---- a contiguous cache per request, or pages of a pool with block tables


class SlicedAttention(AttentionA):
    def forward(self, x, start):
        time = x.shape[1]
        q, k, v = self.project(x, torch.arange(start, start + time))
        if self.past is None:
            self.past = torch.zeros(1, KV, 16, SIZE), torch.zeros(1, KV, 16, SIZE)
        for kept, fresh in zip(self.past, (k, v)):
            kept[:, :, start : start + time] = fresh
        k, v = (kept[:, :, : start + time] for kept in self.past)
        return self.attend(q, k, v, tril(time, start + time, start))


class SlicedLm(LmA):
    def __init__(self):
        super().__init__(SlicedAttention)

    def serve(self, requests):
        rows = []
        for prompt, forced in requests:
            self.forget()
            rows.append(self(prompt[None], start=0)[0, -1])
            for t, token in enumerate(forced):
                rows.append(self(token.view(1, 1), start=len(prompt) + t)[0, -1])
        return torch.stack(rows)


PAGE = 4


class PagedAttention(AttentionB):
    def __init__(self, theirs):
        super().__init__(theirs)
        self.register_buffer("pool", torch.zeros(2, 9, PAGE, KV, SIZE))

    def forward(self, x, tables, starts, lengths):
        """x: the new tokens of all requests, one after another; each request has lengths[i] of them behind starts[i]."""
        places = torch.cat([torch.arange(s, s + n) for s, n in zip(starts, lengths)])
        owners = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
        q, k, v = self.project(x, places)
        slots = places + 1 if self.bad("slot-one-late") else places
        pages, offsets = tables[owners, slots // PAGE], slots % PAGE
        self.pool[0, pages, offsets] = k
        self.pool[1, pages, offsets] = v
        answers = []
        for i, (rows, start, n) in enumerate(zip(q.split(lengths), starts, lengths)):
            end = start + n
            table = tables[i, : (end + PAGE - 1) // PAGE]
            table = table.flip(0) if self.bad("pages-reversed") else table
            table = tables[(i + 1) % len(tables), : len(table)] if self.bad("table-of-other-request") else table
            seen = self.pool[:, table].flatten(1, 2)[:, :end]
            ends = torch.arange(start, end) - (1 if self.bad("context-one-short") and start else 0)
            k, v = (seen[1], seen[1]) if self.bad("values-for-keys") else seen
            answers.append(self.mixed(rows, k, v, torch.arange(end) <= ends[:, None]))
        return self.wo(torch.cat(answers))


class PagedLm(LmB):
    def __init__(self, theirs):
        super().__init__(theirs, PagedAttention)

    def serve(self, requests):
        tables = torch.tensor([[5, 2, 7, 1], [3, 6, 0, 8]])
        prompts, starts = [prompt for prompt, _ in requests], [0] * len(requests)
        lengths = [len(prompt) for prompt in prompts]
        steps, batch = [], torch.cat(prompts)
        for t in range(4):
            last = torch.tensor(lengths).cumsum(0) - 1
            steps.append(self(batch, tables=tables, starts=starts, lengths=lengths)[last])
            starts, lengths = [s + n for s, n in zip(starts, lengths)], [1] * len(requests)
            batch = torch.stack([forced[t] for _, forced in requests]) if t < 3 else None
        return torch.stack(steps, 1).flatten(0, 1)


def paged_requests():
    return [(tokens(7), tokens(3)), (tokens(5), tokens(3))]


PROGRAMS["contiguous-paged"] = Program(
    SlicedLm,
    PagedLm,
    paged_requests,
    {
        "slot-one-late": Fault(B_ATTN, ATTN, near=r"self\.pool\[[01], pages|pages, offsets ="),
        "pages-reversed": Fault(B_ATTN, ATTN, near="seen = "),
        "table-of-other-request": Fault(B_ATTN, ATTN, near="seen = "),
        "context-one-short": Fault(B_ATTN, ATTN, near="torch.arange\\(end\\) <= ends"),
        "values-for-keys": Fault(B_ATTN, ATTN),
        "norm-eps": Fault("blocks.1.ln2", NORM2),
    },
)

# ---- a sliding window with sinks: a full cache under a mask, or a ring of slots

WINDOW = 4


class SinkAttention(AttentionA):
    def __init__(self):
        super().__init__()
        self.sinks = nn.Parameter(torch.zeros(HEADS))

    def forward(self, x, start):
        time = x.shape[1]
        q, k, v = self.project(x, torch.arange(start, start + time))
        k, v = (y.repeat_interleave(GROUP, 1) for y in self.grown(k, v))
        scores = q @ k.mT / math.sqrt(SIZE)
        rows, columns = torch.arange(start, start + time)[:, None], torch.arange(start + time)
        scores = scores.masked_fill((columns > rows) | (columns <= rows - WINDOW), -torch.inf)
        sinks = self.sinks.view(1, -1, 1, 1).expand(len(x), -1, time, 1)
        weights = torch.cat((scores, sinks), -1).softmax(-1)[..., :-1]
        return self.o_proj((weights @ v).transpose(1, 2).flatten(2))


class SinkLm(LmA):
    def __init__(self):
        super().__init__(SinkAttention)


class Ring(Kept):
    """WINDOW slots of keys and values, and the position that lies in each (-1: none yet)."""

    def __init__(self):
        self.k, self.v = torch.zeros(WINDOW, KV, SIZE), torch.zeros(WINDOW, KV, SIZE)
        self.places = torch.full((WINDOW,), -1)

    def put(self, place, k, v):
        slot = place % (WINDOW - 1 if self.bad("ring-one-slot-short") else WINDOW)
        self.k[slot], self.v[slot], self.places[slot] = k, v, place

    def usable(self, place):
        oldest = place - WINDOW + (2 if self.bad("window-one-short") else 1)
        return torch.ones(WINDOW, dtype=torch.bool) if self.bad("empty-slots-seen") else (self.places >= max(oldest, 0))


class RingAttention(AttentionB):
    def __init__(self, theirs):
        super().__init__(theirs)
        self.sink, self.ring = nn.Parameter(theirs.sinks.clone()), Ring()

    def forward(self, x, start):
        places = torch.arange(start, start + len(x))
        spots = places % WINDOW if self.bad("position-of-slot") else places
        q, k, v = self.project(x, spots)
        rows = []
        for t in range(len(x)):
            self.ring.put(start + t, k[t], v[t])
            scores = torch.einsum("kgs,mks->kgm", q[t].view(KV, GROUP, SIZE), self.ring.k) / SIZE**0.5
            powers = scores.exp() * self.ring.usable(start + t)
            sink = self.sink.roll(1) if self.bad("sink-of-other-head") else self.sink
            total = powers.sum(-1) + (0 if self.bad("sink-dropped") else sink.exp().view(KV, GROUP))
            rows.append(torch.einsum("kgm,mks->kgs", powers / total[..., None], self.ring.v).flatten())
        return self.wo(torch.stack(rows))


class RingLm(LmB):
    def __init__(self, theirs):
        super().__init__(theirs, RingAttention)


PROGRAMS["window-ring"] = Program(
    SinkLm,
    RingLm,
    one_request,
    {
        "ring-one-slot-short": Fault(B_ATTN, ATTN, near=r"self\.k\[slot\]"),
        "window-one-short": Fault(B_ATTN, ATTN, "columns <= rows - WINDOW", near="self.places >= max"),
        "empty-slots-seen": Fault(B_ATTN, ATTN),
        "position-of-slot": Fault(B_ATTN, ATTN),
        "sink-of-other-head": Fault(B_ATTN, ATTN, "sinks = self.sinks"),
        "sink-dropped": Fault(B_ATTN, ATTN, r"torch\.cat\(\(scores, sinks"),
    },
)

# ---- a cache of keys and values in int8: dequantised whole, or its scales folded into scores and weights


class Int8Attention(AttentionA):
    """A scale for each token and head, from its largest size."""

    def forward(self, x, start):
        time = x.shape[1]
        q, k, v = self.project(x, torch.arange(start, start + time))
        scales = [y.abs().amax(-1, keepdim=True) / 127 for y in (k, v)]
        codes = [torch.clamp(torch.round(y / s), -127, 127).to(torch.int8) for y, s in zip((k, v), scales)]
        fresh = [*codes, *scales]
        self.past = fresh if self.past is None else [torch.cat(pair, 2) for pair in zip(self.past, fresh)]
        k, v = (code.to(x.dtype) * scale for code, scale in zip(self.past[:2], self.past[2:]))
        return self.attend(q, k, v, tril(time, start + time, start))


class Int8Lm(LmA):
    def __init__(self):
        super().__init__(Int8Attention, names=("norm1", "attn", "norm2", "mlp"))


class FoldedAttention(AttentionB):
    def __init__(self, theirs):
        super().__init__(theirs)
        self.register_buffer("codes", torch.zeros(2, 16, KV, SIZE, dtype=torch.int8))
        self.register_buffer("sizes", torch.zeros(2, 16, KV))

    def forward(self, x, start):
        q, k, v = self.project(x, torch.arange(start, start + len(x)))
        end, both = start + len(x), torch.stack((k, v))
        sizes = both.abs().amax((2, 3) if self.bad("scale-of-all-heads") else 3) / 127
        sizes = sizes.unsqueeze(-1).expand(2, len(x), KV) if sizes.dim() == 2 else sizes
        scaled = both / sizes[..., None]
        codes = scaled.trunc() if self.bad("cut-in-place-of-rounded") else scaled.round()
        codes = codes.clamp(-64, 63) if self.bad("saturates-early") else codes
        self.codes[:, start:end], self.sizes[:, start:end] = codes.to(torch.int8), sizes
        of_keys, of_values = self.sizes.flip(0)[:, :end] if self.bad("scales-exchanged") else self.sizes[:, :end]
        of_values = of_values.roll(1, 0) if self.bad("scale-of-token-before") else of_values
        codes = self.codes[:, :end].to(x.dtype)
        codes = codes - 1 if self.bad("zero-point-off-by-one") else codes
        scores = torch.einsum("nkgs,mks->kgnm", q.unflatten(1, (KV, GROUP)), codes[0]) * of_keys.T[:, None, None] * SIZE**-0.5
        weights = scores.masked_fill(~tril(len(x), end, start), -torch.inf).softmax(-1) * of_values.T[:, None, None]
        return self.wo(torch.einsum("kgnm,mks->nkgs", weights, codes[1]).flatten(1))


class FoldedLm(LmB):
    def __init__(self, theirs):
        super().__init__(theirs, FoldedAttention)


PROGRAMS["int8-cache"] = Program(
    Int8Lm,
    FoldedLm,
    one_request,
    {
        "scale-of-all-heads": Fault(B_ATTN, (HF + "attn",), "scales = ", near="sizes = "),
        "cut-in-place-of-rounded": Fault(B_ATTN, (HF + "attn",), r"torch\.round"),
        "saturates-early": Fault(B_ATTN, (HF + "attn",), r"torch\.clamp"),
        "scales-exchanged": Fault(B_ATTN, (HF + "attn",)),
        "scale-of-token-before": Fault(B_ATTN, (HF + "attn",)),
        "zero-point-off-by-one": Fault(B_ATTN, (HF + "attn",)),
        "gate-and-up-exchanged": Fault("blocks.1.ffn", MLP, near="self.w2"),
    },
)
