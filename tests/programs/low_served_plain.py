"""Programs of low_served without quantisation: whole models in bf16 and fp16, f32 beside half, and islands of f32 on one side."""

import math

import torch
import torch.nn.functional as F
from low_served_frame import (
    ATTN,
    B_ATTN,
    GROUP,
    HALF,
    HEADS,
    INNER,
    KV,
    SIZE,
    VOCAB,
    WIDTH,
    AttentionA,
    AttentionB,
    Fault,
    LmA,
    LmB,
    MlpA,
    MlpB,
    NormA,
    Part,
    Program,
    Rows,
    held,
    linear_of,
    table_of,
    tril,
    two_requests,
    up,
)
from torch import nn

PROGRAMS = {}
ROOT = "the root's own code"


class Whole(nn.Module):
    """Serves a request by one forward over prompt and forced tokens."""

    def serve(self, requests):
        return torch.cat([self(torch.cat(pair)[None])[0, len(pair[0]) - 1 :] for pair in requests])


class Stepped(Part):
    """Serves a request by prefill and decoding."""

    serve = LmB.serve


# ---- GPT-2 in fp16: merged Conv1D and LayerNorm, or kernels by head, statistics from two moments in f32


class Conv1D(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(inputs, outputs)), nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).unflatten(0, x.shape[:-1])


class GptAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn, self.c_proj = Conv1D(WIDTH, 3 * WIDTH), Conv1D(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for y in self.c_attn(x).split(WIDTH, -1))
        return self.c_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class GptMlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_fc, self.c_proj = Conv1D(WIDTH, INNER), Conv1D(INNER, WIDTH)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class GptBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.attn, self.ln_2, self.mlp = nn.LayerNorm(WIDTH), GptAttention(), nn.LayerNorm(WIDTH), GptMlp()

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(Whole):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(16, WIDTH)
        self.h, self.ln_f = nn.ModuleList(GptBlock() for _ in range(2)), nn.LayerNorm(WIDTH)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


class MomentNorm(Part):
    def __init__(self, theirs):
        super().__init__()
        self.scale, self.shift = held(theirs.weight), held(theirs.bias)

    def forward(self, x):
        y = up(x)
        mean, square = y.mean(-1, keepdim=True), y.square().mean(-1, keepdim=True)
        spread = square if self.bad("mean-left-in-variance") else square - mean.square()
        y = (y - mean) * torch.rsqrt(spread + (1e-2 if self.bad("norm-eps") else 1e-5))
        y = y.to(x.dtype) * self.scale
        return y if self.bad("norm-bias-left-out") else y + self.shift


class KernelAttention(Part):
    def __init__(self, theirs):
        super().__init__()
        kernels = theirs.c_attn.weight.unflatten(1, (3, HEADS, SIZE))
        self.kernel = held(kernels.permute(1, 2, 0, 3))
        self.bias = held(theirs.c_attn.bias.unflatten(0, (3, HEADS, 1, SIZE)))
        self.out, self.out_bias = held(theirs.c_proj.weight.unflatten(0, (HEADS, SIZE))), held(theirs.c_proj.bias)
        self.rows = Rows()

    def forward(self, x, start):
        bias = self.bias.flip(0) if self.bad("biases-in-wrong-order") else self.bias
        q, k, v = (torch.einsum("nw,chws->chns", x, self.kernel) + bias).transpose(1, 2)
        k, v = self.rows.put(start, k, v)
        scores = torch.einsum("nhs,mhs->hnm", q, k)
        scores = scores if self.bad("scale-left-out") else scores / math.sqrt(SIZE)
        ahead = start - 1 if self.bad("mask-one-short") and start else start
        weights = torch.where(tril(len(x), len(k), ahead), scores, torch.finfo(x.dtype).min).softmax(-1)
        return torch.einsum("hnm,mhs,hsw->nw", weights, v, self.out) + self.out_bias


class KernelMlp(Part):
    def __init__(self, theirs):
        super().__init__()
        self.wi, self.bi, self.wo, self.bo = (held(y) for part in (theirs.c_fc, theirs.c_proj) for y in (part.weight, part.bias))

    def forward(self, x):
        x = x @ self.wi + self.bi
        if self.bad("activation-by-sigmoid"):
            return x * torch.sigmoid(1.702 * x) @ self.wo + self.bo
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        return (0.5 * x * (1 + torch.tanh(inner))) @ self.wo + self.bo


class KernelBlock(nn.Module):
    def __init__(self, theirs):
        super().__init__()
        self.pre, self.attention = MomentNorm(theirs.ln_1), KernelAttention(theirs.attn)
        self.mid, self.channels = MomentNorm(theirs.ln_2), KernelMlp(theirs.mlp)

    def forward(self, x, start):
        x = self.attention(self.pre(x), start).add(x)
        return self.channels(self.mid(x)).add(x)


class KernelGpt(Stepped):
    def __init__(self, theirs):
        super().__init__()
        self.table, self.spots = held(theirs.wte.weight), held(theirs.wpe.weight)
        self.stack, self.last = nn.ModuleList(KernelBlock(block) for block in theirs.h), MomentNorm(theirs.ln_f)

    def forward(self, ids, start):
        late = 1 if self.bad("decode-position-one-late") and start else 0
        x = self.table[ids] + self.spots[start + late : start + late + len(ids)]
        for block in self.stack:
            x = block(x, start)
        return self.last(x) @ self.table.T


PROGRAMS["gpt-half"] = Program(
    Gpt,
    KernelGpt,
    two_requests,
    {
        "mean-left-in-variance": Fault("stack.1.mid", ("h.1.ln_2",), near=r"torch\.rsqrt\(spread", subtle=True),
        "norm-bias-left-out": Fault("stack.0.pre", ("h.0.ln_1",)),
        "norm-eps": Fault("stack.0.pre", ("h.0.ln_1",)),
        "biases-in-wrong-order": Fault("stack.1.attention", ("h.1.attn",)),
        "scale-left-out": Fault("stack.1.attention", ("h.1.attn",), near=r"torch\.where\(tril"),
        "mask-one-short": Fault("stack.1.attention", ("h.1.attn",), near=r"torch\.where\(tril"),
        "activation-by-sigmoid": Fault("stack.1.channels", ("h.1.mlp",), "approximate", near=r"1\.702 \* x", subtle=True),
        "decode-position-one-late": Fault("", ("wpe",), r"self\.wpe\(", near=r"self\.spots\[", outside=ROOT),
    },
    (HALF, HALF),
)

# ---- Gemma-2 in bf16: norms, softmax and caps in f32, or nothing wide at all

CAP, FINAL_CAP, QUERY, WINDOW = 3.0, 6.0, 32, 3


class PlusOneNorm(NormA):
    def forward(self, x):
        y = up(x)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (y * (1.0 + up(self.weight))).to(x.dtype)


class GemmaAttention(AttentionA):
    window = None

    def attend(self, q, k, v):
        k, v = (y.repeat_interleave(GROUP, 1) for y in (k, v))
        scores = up(torch.matmul(q, k.mT)) * QUERY**-0.5
        scores = torch.tanh(scores / CAP) * CAP
        allowed = tril(q.shape[2])
        if self.window:
            allowed = allowed & ~tril(q.shape[2], ahead=-self.window)
        weights = scores.masked_fill(~allowed, -torch.inf).softmax(-1).to(q.dtype)
        return self.o_proj((weights @ v).transpose(1, 2).flatten(2))


class GemmaMlp(MlpA):
    def forward(self, x):
        return self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))


class GemmaLayer(nn.Module):
    def __init__(self, attention, mlp, norm):
        super().__init__()
        self.input_layernorm, self.self_attn, self.post_attention_layernorm = norm(), attention(), norm()
        self.pre_feedforward_layernorm, self.mlp, self.post_feedforward_layernorm = norm(), mlp(), norm()

    def forward(self, x):
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x)))
        return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))


class Gemma(LmA):
    kinds = (GemmaAttention, GemmaMlp, PlusOneNorm, GemmaLayer)

    def prepare(self):
        self.model.layers[0].self_attn.window = WINDOW
        for part in self.modules():
            if isinstance(part, PlusOneNorm):
                part.weight.sub_(0.8)

    def forward(self, ids):
        x = self.model.embed_tokens(ids)
        x = x * torch.tensor(math.sqrt(WIDTH)).to(x.dtype)
        for layer in self.model.layers:
            x = layer(x)
        logits = up(self.lm_head(self.model.norm(x)))
        return FINAL_CAP * torch.tanh(logits / FINAL_CAP)


class FoldedNorm(Part):
    """Holds 1 + weight, and all of it in the dtype of its input."""

    def __init__(self, theirs):
        super().__init__()
        self.gain = held(1 + up(theirs.weight))

    def forward(self, x):
        if self.bad("norm-left-out"):
            return x * self.gain
        gain = self.gain - 1 if self.bad("plus-one-missing") else self.gain
        return x * (x * x).mean(-1, keepdim=True).add(1e-6).rsqrt() * gain


class NarrowAttention(AttentionB):
    def __init__(self, theirs):
        super().__init__(theirs)
        self.window = theirs.window

    def mixed(self, q, k, v):
        n, m = len(q), len(k)
        scores = torch.einsum("nkgs,mks->kgnm", q.unflatten(1, (KV, GROUP)), k)
        scores = scores / math.sqrt(SIZE if self.bad("scale-of-head-size") else QUERY)
        scores = scores if self.bad("score-cap-left-out") else CAP * torch.tanh(scores / CAP)
        behind = torch.arange(m - n, m)[:, None] - torch.arange(m)
        window = 16 if self.window is None or self.bad("window-left-out") else self.window
        window = window - 1 if self.bad("window-one-short") else window
        window = WINDOW if self.bad("window-in-full-layer") else window
        scores = scores.masked_fill((behind < 0) | (behind >= window), -torch.inf)
        return torch.einsum("kgnm,mks->nkgs", scores.softmax(-1), v).flatten(1)


class NarrowMlp(MlpB):
    def forward(self, x):
        gate, up_ = self.w13(x).split(INNER, -1)
        gate = F.silu(gate) if self.bad("activation-of-other-model") else F.gelu(gate, approximate="tanh")
        return self.w2(gate * up_)


class NarrowBlock(Part):
    def __init__(self, theirs):
        super().__init__()
        self.norm_a, self.attn, self.norm_b = (
            FoldedNorm(theirs.input_layernorm),
            NarrowAttention(theirs.self_attn),
            FoldedNorm(theirs.post_attention_layernorm),
        )
        self.norm_c, self.ffn = FoldedNorm(theirs.pre_feedforward_layernorm), NarrowMlp(theirs.mlp)
        self.norm_d = FoldedNorm(theirs.post_feedforward_layernorm)

    def forward(self, x, start):
        x = self.norm_b(self.attn(self.norm_a(x), start)) + x
        return self.norm_d(self.ffn(self.norm_c(x))) + x


class NarrowGemma(Stepped):
    def __init__(self, theirs):
        super().__init__()
        self.tok = table_of(theirs.model.embed_tokens.weight)
        self.blocks = nn.ModuleList(NarrowBlock(layer) for layer in theirs.model.layers)
        self.last, self.out = FoldedNorm(theirs.model.norm), linear_of(theirs.lm_head.weight)

    def forward(self, ids, start):
        x = self.tok(ids)
        x = x if self.bad("embedding-unscaled") else x * WIDTH**0.5
        for block in self.blocks:
            x = block(x, start)
        logits = self.out(self.last(x))
        return logits if self.bad("final-cap-left-out") else torch.tanh(logits / FINAL_CAP) * FINAL_CAP


GEMMA = "model.layers.0.self_attn"
PROGRAMS["gemma-islands"] = Program(
    Gemma,
    NarrowGemma,
    two_requests,
    {
        "plus-one-missing": Fault("blocks.1.norm_c", ("model.layers.1.pre_feedforward_layernorm",), r"1\.0 \+ up"),
        "norm-left-out": Fault("blocks.1.norm_b", ("model.layers.1.post_attention_layernorm",), near=r"return x \* self\.gain$"),
        "scale-of-head-size": Fault("blocks.0.attn", (GEMMA,), "QUERY"),
        "score-cap-left-out": Fault(B_ATTN, ATTN, r"scores / CAP\) \* CAP", near=r"scores\.masked_fill\(\(behind"),
        "window-left-out": Fault("blocks.0.attn", (GEMMA,), "self.window", near="behind >= window"),
        "window-one-short": Fault("blocks.0.attn", (GEMMA,), "self.window", near="behind >= window"),
        "window-in-full-layer": Fault(B_ATTN, ATTN, "self.window", near="behind >= window"),
        "activation-of-other-model": Fault("blocks.1.ffn", ("model.layers.1.mlp",), subtle=True),
        "embedding-unscaled": Fault("", ("",), r"math\.sqrt\(WIDTH\)", outside=ROOT),
        "final-cap-left-out": Fault("", ("",), "FINAL_CAP \\*", outside=ROOT),
    },
    seed=6,
)
