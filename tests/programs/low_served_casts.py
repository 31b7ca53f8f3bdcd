"""Programs of low_served in which the place of a cast matters: positions far into a document, wide residuals, scores of forked samples."""

import math

import torch
import torch.nn.functional as F
from low_served_frame import (
    ATTN,
    B_ATTN,
    DOWN,
    FULL,
    GATE_UP,
    GROUP,
    HALF,
    KV,
    QKV,
    SIZE,
    WIDTH,
    AttentionA,
    AttentionB,
    Fault,
    FlatNormA,
    Kept,
    LayerA,
    LmA,
    LmB,
    MlpA,
    MlpB,
    NormA,
    NormB,
    Part,
    Program,
    held,
    rotate_half,
    tokens,
    tril,
    two_requests,
    up,
)

PROGRAMS = {}

# ---- a piece of text 1,000 tokens into a document, frequencies stretched by parts (Llama 3): bf16, angles in f32

FAR, BASE, FACTOR, LOW, HIGH, TRAINED = 1000, 500.0, 4.0, 1.0, 4.0, 64


def stretched(size):
    """Low frequencies divided by FACTOR, high ones left, those between mixed."""
    frequencies = 1.0 / BASE ** (torch.arange(0, size, 2) / size)
    turns = TRAINED * frequencies / (2 * math.pi)
    mix = ((turns - LOW) / (HIGH - LOW)).clamp(0, 1)
    return (1 - mix) * frequencies / FACTOR + mix * frequencies


class FarAttention(AttentionA):
    def forward(self, x):
        q, k, v = self.split(x)
        angles = torch.arange(FAR, FAR + x.shape[1])[:, None] * stretched(SIZE)
        angles = torch.cat((angles, angles), -1)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        return self.attend(q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin, v)


class FarLm(LmA):
    kinds = (FarAttention, MlpA, FlatNormA, LayerA)


class FarAttentionB(AttentionB):
    def frequencies(self):
        plain = BASE ** -torch.linspace(0, 1 - 2 / SIZE, SIZE // 2)
        if self.bad("stretching-left-out"):
            return plain
        waves = 2 * math.pi / plain
        slow, fast = waves > TRAINED / LOW, waves < TRAINED / HIGH
        slow, fast = (fast, slow) if self.bad("slow-and-fast-exchanged") else (slow, fast)
        smooth = (TRAINED / waves - LOW) / (HIGH - LOW)
        between = ((1 - smooth) / FACTOR + smooth) * plain
        return torch.where(slow, plain * FACTOR if self.bad("factor-inverted") else plain / FACTOR, torch.where(fast, plain, between))

    def table(self, start, n):
        places = torch.arange(start + FAR, start + FAR + n)
        places = places - FAR if self.bad("decode-position-without-offset") and start else places
        frequencies = self.frequencies()
        if self.bad("positions-in-brain"):
            places = places.to(torch.bfloat16).to(frequencies.dtype)
        angles = torch.outer(places, frequencies)
        if self.bad("angles-in-brain"):
            angles = angles.to(torch.bfloat16).to(angles.dtype)
        return angles[:, None].cos(), angles[:, None].sin()

    def forward(self, x, start):
        q, k, v = self.split(x)
        cos, sin = self.table(start, len(x))
        turned = []
        for y in (q, k):
            a, b = up(y).chunk(2, -1)
            turned.append(torch.cat((a * cos - b * sin, a * sin + b * cos), -1).to(x.dtype))
        return self.wo(self.mixed(turned[0], *self.rows.put(start, turned[1], v)))


class FarEngine(LmB):
    kinds = (FarAttentionB, MlpB, NormB)


PROGRAMS["far-positions"] = Program(
    FarLm,
    FarEngine,
    two_requests,
    {
        "stretching-left-out": Fault(B_ATTN, ATTN, near=r"plain = BASE", subtle=True),
        "slow-and-fast-exchanged": Fault(B_ATTN, ATTN, near=r"torch\.where\(slow"),
        "factor-inverted": Fault(B_ATTN, ATTN),
        "decode-position-without-offset": Fault(B_ATTN, ATTN, near=r"torch\.outer\(places, frequencies"),
        "positions-in-brain": Fault(B_ATTN, ATTN, near="places.to\\(torch.bfloat16"),
        "angles-in-brain": Fault(B_ATTN, ATTN, near="angles.to\\(torch.bfloat16"),
    },
    seed=5,
)

# ---- weights that fp16 holds, and an outlying channel: an f32 model, or fp16 weights that each product takes up to f32

OUTLIER = 60.0


class OutlierLm(LmA):
    def prepare(self):
        self.model.embed_tokens.weight.mul_(4)
        self.model.embed_tokens.weight[:, 3] = OUTLIER
        for norm in self.modules():
            if isinstance(norm, NormA):  # what the outlier takes from the other channels, the weights give back
                norm.weight.mul_(10)
                norm.weight[3] = 0.05
        for p in self.parameters():
            p.copy_(p.to(torch.float16))

    def forward(self, ids):
        x = self.model.embed_tokens(ids) * math.sqrt(WIDTH)
        for layer in self.model.layers:
            x = layer(x)
        return self.lm_head(self.model.norm(x))


class Upcast(Part):
    def __init__(self, *theirs):
        super().__init__()
        self.stored = held(torch.cat([t.weight for t in theirs]))

    def forward(self, x):
        x = x.to(torch.float16).to(x.dtype) if self.bad("input-in-half") else x
        stored = self.stored.to(torch.bfloat16) if self.bad("weight-by-way-of-brain") else self.stored
        y = F.linear(x, stored.to(x.dtype))
        return y.to(torch.bfloat16).to(y.dtype) if self.bad("product-in-brain") else y


class UpcastNorm(NormB):
    def forward(self, x, carried=None):
        x = x if carried is None else x + carried
        x = x.to(torch.bfloat16).to(x.dtype) if self.bad("residual-in-brain") else x
        squares = x.square()
        squares = squares.to(torch.float16).to(x.dtype) if self.bad("squares-in-half") else squares
        squares = squares.clamp(max=65504) if self.bad("squares-clamped-to-half") else squares
        mean = squares.sum(-1, keepdim=True) if self.bad("sum-for-mean") else squares.mean(-1, keepdim=True)
        return x / torch.sqrt(mean + self.eps) * up(self.scale), x


class UpcastAttention(AttentionB):
    linear = Upcast

    def mixed(self, q, k, v):
        n, m = len(q), len(k)
        scores = torch.einsum("nkgs,mks->kgnm", q.unflatten(1, (KV, GROUP)), k) / math.sqrt(SIZE)
        scores = scores.to(torch.bfloat16).to(q.dtype) if self.bad("scores-in-brain") else scores
        powers = torch.exp(scores - scores.amax(-1, keepdim=True)).masked_fill(~tril(n, m, m - n), 0)
        total = powers.sum(-1, keepdim=True)
        powers = powers.to(torch.float8_e4m3fn).to(q.dtype) if self.bad("powers-in-fp8") else powers
        return torch.einsum("kgnm,mks->nkgs", powers / total, v).flatten(1)


class UpcastMlp(MlpB):
    linear = Upcast


class UpcastEngine(LmB):
    kinds = (UpcastAttention, UpcastMlp, UpcastNorm)

    def forward(self, ids, start):
        scale = 5.65625 if self.bad("embedding-scale-in-brain") else WIDTH**0.5  # the nearest in bf16
        x, carried = up(self.tok(ids)) * scale, None
        for block in self.blocks:
            x, carried = block(x, carried, start)
        logits = F.linear(self.ln_f(x, carried)[0], up(self.out.weight))
        return logits.to(torch.bfloat16).to(logits.dtype) if self.bad("logits-in-brain") else logits


NORM = "blocks.1.ln2", ("model.layers.1.post_attention_layernorm",)
PROGRAMS["half-stored"] = Program(
    OutlierLm,
    UpcastEngine,
    two_requests,
    {
        "input-in-half": Fault("blocks.1.ffn.w2", DOWN),
        "weight-by-way-of-brain": Fault("blocks.1.ffn.w13", GATE_UP),
        "product-in-brain": Fault("blocks.1.attn.qkv", QKV),
        "residual-in-brain": Fault(*NORM, near=r"x \+ carried"),
        "squares-in-half": Fault(*NORM),
        "squares-clamped-to-half": Fault(*NORM),
        "sum-for-mean": Fault(*NORM, r"y\.pow\(2\)\.mean"),
        "scores-in-brain": Fault(B_ATTN, ATTN),
        "powers-in-fp8": Fault(B_ATTN, ATTN, near="powers / total"),
        "logits-in-brain": Fault("", ("",), outside="the root's own code"),
        "embedding-scale-in-brain": Fault("", ("",), r"math\.sqrt\(WIDTH", r"\* scale, None", outside="the root's own code"),
    },
    (FULL, HALF),
)

# ---- scores of several samples of one prompt (GRPO), each up to its end: one forward a sample, or one prefill that is forked

END, TEMPERATURE, SAMPLES = 0, 0.5, 3


class SampleTrainer(LmA):
    kinds = (AttentionA, MlpA, NormA, LayerA)

    def serve(self, requests):
        """Mean score of each sample, and the scores of its tokens, zeros behind its end."""
        told = []
        for prompt, samples in requests:
            for sample in samples:
                ended = torch.cumsum(sample == END, 0)
                seen = (ended == 0) | ((ended == 1) & (sample == END))
                logits = up(self(torch.cat((prompt, sample))[None]))[0, len(prompt) - 1 : -1] / TEMPERATURE
                scores = logits.log_softmax(-1).gather(1, sample[:, None])[:, 0] * seen
                told.append(torch.cat((scores, scores.sum(0, keepdim=True) / seen.sum())))
        return torch.cat(told)


class ForkedAttention(AttentionB):
    """One request's keys, (samples, slots, heads, size), forked behind the prompt."""

    def fork(self, length, samples):
        length = length - 1 if self.bad("fork-without-last-token") else length
        self.grown = [y[:length].expand(samples, -1, -1, -1) for y in self.rows.kept]

    def forward(self, x, start):
        if start == 0:
            return super().forward(x, start)
        q, k, v = self.split(x)
        places = self.places(start, 1).expand(len(x))
        angles = places[:, None, None] * 10000.0 ** (torch.arange(0, SIZE, 2) / -SIZE)
        q, k = (self.spun(y, angles) for y in (q, k))
        if self.bad("key-of-first-sample"):
            k = k[:1].expand_as(k)
        self.grown = [torch.cat((old, y[:, None]), 1) for old, y in zip(self.grown, (k, v))]
        keys, values = (y.roll(1, 0) for y in self.grown) if self.bad("rows-of-other-sample") else self.grown
        scores = torch.einsum("nkgs,nmks->nkgm", q.unflatten(1, (KV, GROUP)), keys) / math.sqrt(SIZE)
        return self.wo(torch.einsum("nkgm,nmks->nkgs", scores.softmax(-1), values).flatten(1))

    def spun(self, x, angles):
        a, b = up(x).chunk(2, -1)
        return torch.cat((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), -1).to(x.dtype)


class Scores(Kept):
    def of_tokens(self, logits, tokens_):
        logits = up(logits)
        total = logits.logsumexp(-1) / TEMPERATURE if self.bad("total-cooled-behind") else (logits / TEMPERATURE).logsumexp(-1)
        return logits.gather(1, tokens_[:, None])[:, 0] / TEMPERATURE - total

    def told(self, scores, samples):
        """scores, samples: (samples, time)."""
        behind = torch.cumsum(samples == END, 1)
        seen = behind == 0 if self.bad("end-itself-left-out") else behind - (samples == END).long() == 0
        scores = scores if self.bad("scores-behind-end-kept") else torch.where(seen, scores, 0.0)
        lengths = torch.full((len(samples),), samples.shape[1]) if self.bad("mean-over-padded-length") else seen.sum(1)
        return torch.cat((scores, (scores.sum(1) / lengths)[:, None]), 1).flatten()


class ForkedEngine(LmB):
    kinds = (ForkedAttention, MlpB, NormB)

    def __init__(self, theirs):
        super().__init__(theirs)
        self.scores = Scores()

    def serve(self, requests):
        told = []
        for prompt, samples in requests:
            logits = self(prompt, 0)[-1].expand(len(samples), -1)
            for block in self.blocks:
                block.attn.fork(len(prompt), len(samples))
            rows = []
            for t, token in enumerate(samples.unbind(1)):
                rows.append(self.scores.of_tokens(logits, token))
                logits = self(token, len(prompt) + t)
            told.append(self.scores.told(torch.stack(rows, 1), samples))
        return torch.cat(told)


def sampled_requests():
    requests = [(tokens(n), torch.randint(1, 60, (SAMPLES, 5))) for n in (6, 4)]
    for i, (_, samples) in enumerate(requests):
        samples[0, 2 + i], samples[1, 3] = END, END
    return requests


SCORES = "the scoring of tokens, no layer"
PROGRAMS["forked-samples"] = Program(
    SampleTrainer,
    ForkedEngine,
    sampled_requests,
    {
        "fork-without-last-token": Fault(B_ATTN, ATTN, near="self.grown = \\[y"),
        "key-of-first-sample": Fault(B_ATTN, ATTN, near="k = k\\[:1\\]"),
        "rows-of-other-sample": Fault(B_ATTN, ATTN),
        "total-cooled-behind": Fault("", ("",), "log_softmax", outside=SCORES),
        "end-itself-left-out": Fault("", ("",), "seen = \\(ended", outside=SCORES),
        "scores-behind-end-kept": Fault("", ("",), "\\* seen", outside=SCORES),
        "mean-over-padded-length": Fault("", ("",), "seen.sum\\(\\)", outside=SCORES),
    },
    seed=1,
)
