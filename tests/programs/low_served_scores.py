"""Programs of low_served about scores: what a trainer computes in one forward, beside what an engine reports token by token."""

import math

import torch
import torch.nn.functional as F
from low_served_frame import (
    ATTN,
    B_ATTN,
    BASE,
    BRAIN,
    GROUP,
    HALF,
    KV,
    LATE,
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
    Program,
    tokens,
    turned,
    up,
)

PROGRAMS = {}
SCORING = "the scoring of tokens, no layer"

# ---- all in bf16: one forward over prompt and answer, or a batch padded on the left and decoded

TEMPERATURE = 0.7


class ScoringTrainer(LmA):
    kinds = (AttentionA, MlpA, FlatNormA, LayerA)

    def serve(self, requests):
        scores = []
        for prompt, answer in requests:
            logits = self(torch.cat((prompt, answer))[None])[0, len(prompt) - 1 : -1]
            scores.append((up(logits) / TEMPERATURE).log_softmax(-1).gather(1, answer[:, None])[:, 0])
        return torch.cat(scores)


class PaddedAttention(AttentionB):
    """(batch, time, width); keys lie in slots, those before a request's own first one are padding."""

    def forward(self, x, start, pads):
        batch, n = x.shape[:2]
        q, k, v = self.split(x)
        slots = torch.arange(start, start + n)
        places = slots - (0 if self.bad("decode-position-of-slot") and start else pads[:, None])
        q, k = (torch.stack([turned(y, at) for y, at in zip(z, places.expand(batch, n))]) for z in (q, k))
        if start == 0:
            self.kept = x.new_zeros(2, batch, 16, KV, SIZE)
        self.kept[0, :, slots], self.kept[1, :, slots] = k, v
        keys, values = self.kept[:, :, : start + n]
        if self.bad("rows-of-other-request") and start:
            keys, values = keys.roll(1, 0), values.roll(1, 0)
        index = torch.arange(start + n)
        first = torch.zeros_like(pads) if self.bad("padding-seen") else pads
        allowed = (index <= slots[:, None]) & (index >= first[:, None, None])
        allowed = allowed | (index == slots[:, None])
        scores = torch.einsum("btkgs,bmks->bkgtm", q.unflatten(2, (KV, GROUP)), keys) / math.sqrt(SIZE)
        weights = torch.where(allowed[:, None, None], scores, -torch.inf).softmax(-1)
        return self.wo(torch.einsum("bkgtm,bmks->btkgs", weights, values).flatten(2))


class PaddedRoot(LmB):
    def forward(self, ids, start, pads):
        x, carried = self.tok(ids), None
        for block in self.blocks:
            x, carried = block.ln1(x, carried)
            x, carried = block.ln2(block.attn(x, start, pads), carried)
            x = block.ffn(x)
        return self.out(self.ln_f(x[:, -1], carried[:, -1])[0])


class Scorer(Kept):
    def __call__(self, logits, token):
        logits = up(logits) / TEMPERATURE
        logits = logits / TEMPERATURE if self.bad("temperature-twice") else logits
        token = logits.argmax(-1) if self.bad("score-of-best-token") else token
        total = torch.logsumexp(logits * TEMPERATURE if self.bad("total-without-temperature") else logits, -1)
        return logits.gather(-1, token[:, None])[:, 0] - total


class ScoringEngine(PaddedRoot):
    kinds = (PaddedAttention, *LmB.kinds[1:])

    def __init__(self, theirs):
        super().__init__(theirs)
        self.scorer = Scorer()

    def serve(self, requests):
        longest = max(len(prompt) for prompt, _ in requests)
        pads = torch.tensor([longest - len(prompt) for prompt, _ in requests])
        batch = torch.stack([F.pad(prompt, (longest - len(prompt), 0)) for prompt, _ in requests])
        answers = torch.stack([answer for _, answer in requests])
        logits, scores = self(batch, 0, pads), []
        for t, token in enumerate(answers.T):
            scored = answers[:, min(t + 1, answers.shape[1] - 1)] if self.bad("score-of-next-token") else token
            scores.append(self.scorer(logits, scored))
            logits = self(token[:, None], longest + t, pads)
        return torch.stack(scores, 1).flatten()


def scored_requests():
    return [(tokens(n), tokens(4)) for n in (6, 2, 8)]


PROGRAMS["logprobs-padded"] = Program(
    ScoringTrainer,
    ScoringEngine,
    scored_requests,
    {
        "decode-position-of-slot": Fault(B_ATTN, ATTN),
        "rows-of-other-request": Fault(B_ATTN, ATTN, near=r"keys\.roll\(1, 0\)"),
        "padding-seen": Fault(B_ATTN, ATTN, near="allowed = "),
        "temperature-twice": Fault("", ("",), r"/ TEMPERATURE\)", outside=SCORING),
        "score-of-best-token": Fault("", ("",), r"\.gather\(1, answer", near=r"logits\.gather\(-1", outside=SCORING),
        "total-without-temperature": Fault("", ("",), "log_softmax", outside=SCORING),
        "score-of-next-token": Fault("", ("",), r"\.gather\(1, answer", near="self.scorer\\(", outside=SCORING),
    },
    seed=7,
)

# ---- a tied head, a scaled embedding, capped logits and the shares of the best few: fp16 beside bf16

CAP, BEST, COLD = 3.0, 8, 0.6


class CappedTrainer(LmA):
    def forward(self, ids):
        x = self.model.embed_tokens(ids) * math.sqrt(WIDTH)
        for layer in self.model.layers:
            x = layer(x)
        logits = F.linear(self.model.norm(x), self.model.embed_tokens.weight)
        return CAP * torch.tanh(up(logits) / CAP)

    def serve(self, requests):
        rows = []
        for prompt, answer in requests:
            logits = self(torch.cat((prompt, answer))[None])[0, len(prompt) - 1 :]
            logits = logits / COLD
            rows.append(torch.cat((logits.sort(descending=True).values[:, :BEST].softmax(-1), logits.softmax(-1)), -1))
        return torch.cat(rows)


class Shares(Kept):
    """Capped and cooled logits as probabilities: of the best few among themselves, and of all."""

    def __call__(self, logits):
        logits = up(logits)
        logits = logits / COLD if self.bad("cap-behind-temperature") else logits
        capped = logits if self.bad("softcap-left-out") else torch.tanh(logits / CAP) * CAP
        capped = capped if self.bad("cap-behind-temperature") else capped / COLD
        best = capped.topk(BEST // 2 if self.bad("half-of-the-best") else BEST).values
        shares = torch.exp(best - best[0])
        total = torch.exp(capped - best[0]).sum() if self.bad("total-over-all") else shares.sum()
        shares = F.pad(shares / total, (0, BEST - len(shares)))
        return torch.cat((shares, torch.exp(capped - torch.logsumexp(capped, 0))))


class CappedEngine(LmB):
    def __init__(self, theirs):
        super().__init__(theirs)
        self.shares, self.out = Shares(), None

    def forward(self, ids, start):
        scale = 1.0 if self.bad("embedding-unscaled") else WIDTH**0.5
        x, carried = self.tok(ids) * scale, None
        for block in self.blocks:
            x, carried = block(x, carried, start)
        x = self.ln_f(x[-1:], carried[-1:])[0]
        x = x * scale if self.bad("head-scaled-as-embedding") else x
        return (x @ self.tok.weight.T)[0]

    def serve(self, requests):
        rows = []
        for prompt, answer in requests:
            rows.append(self.shares(self(prompt, 0)))
            for place, token in enumerate(answer, len(prompt)):
                rows.append(self.shares(self(token[None], place)))
        return torch.stack(rows)


ROOT, SHARES = "the root's own code", "the sampler, no layer"
PROGRAMS["capped-shares"] = Program(
    CappedTrainer,
    CappedEngine,
    lambda: [(tokens(5), tokens(3)), (tokens(7), tokens(3))],
    {
        "cap-behind-temperature": Fault("", ("",), r"torch\.tanh\(up", outside=SHARES),
        "softcap-left-out": Fault("", ("",), r"torch\.tanh\(up", outside=SHARES),
        "half-of-the-best": Fault("", ("",), r":BEST", outside=SHARES),
        "total-over-all": Fault("", ("",), r"BEST\]\.softmax", near=r"shares / total", outside=SHARES),
        "embedding-unscaled": Fault("", ("",), r"math\.sqrt\(WIDTH\)", near=r"self\.tok\(ids\) \* scale", outside=ROOT),
        "head-scaled-as-embedding": Fault("", ("",), r"F\.linear\(self\.model\.norm", outside=ROOT),
        "rope-base": BASE,
        "decode-position-one-late": LATE._replace(subtle=True),
    },
    (HALF, BRAIN),
    seed=11,
)
