"""Programs of low_served in which one side is in f32 and the other's weights are cast to bf16 or fp16: parallel residuals with a
partial rotary, and ALiBi."""

import math

import torch
import torch.nn.functional as F
from low_served_frame import (
    BRAIN,
    FULL,
    HALF,
    HEADS,
    INNER,
    SIZE,
    VOCAB,
    WIDTH,
    Fault,
    Part,
    Program,
    Rows,
    held,
    linear_of,
    plain,
    rotary,
    table_of,
    tril,
    two_requests,
    up,
)
from low_served_plain import ROOT, Stepped, Whole
from torch import nn

PROGRAMS = {}

# ---- GPT-NeoX in f32, queries, keys and values interleaved by head: beside bf16 with three projections and turned pairs

TURNED, BASE = 4, 50.0


class NeoxAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query_key_value, self.dense = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.query_key_value(x).unflatten(-1, (HEADS, 3 * SIZE)).transpose(1, 2).split(SIZE, -1)
        places = torch.arange(x.shape[1])
        q, k = (torch.cat((rotary(y[..., :TURNED], places, BASE), y[..., TURNED:]), -1) for y in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.dense(y.transpose(1, 2).flatten(2))


class NeoxMlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense_h_to_4h, self.dense_4h_to_h = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x):
        return self.dense_4h_to_h(F.gelu(self.dense_h_to_4h(x)))


class NeoxLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.mlp = NeoxAttention(), NeoxMlp()

    def forward(self, x):
        return self.mlp(self.post_attention_layernorm(x)) + self.attention(self.input_layernorm(x)) + x


class Neox(Whole):
    def __init__(self):
        super().__init__()
        self.embed_in, self.layers = nn.Embedding(VOCAB, WIDTH), nn.ModuleList(NeoxLayer() for _ in range(2))
        self.final_layer_norm, self.lm_head = nn.LayerNorm(WIDTH), plain(WIDTH, VOCAB)

    def forward(self, ids):
        x = self.embed_in(ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.final_layer_norm(x))


class Centred(Part):
    def __init__(self, theirs):
        super().__init__()
        self.g, self.b = held(theirs.weight), held(theirs.bias)

    def forward(self, x):
        x = x if self.bad("mean-not-taken-off") else x - x.mean(-1, keepdim=True)
        root = x.square().mean(-1, keepdim=True).sqrt() if self.bad("mean-not-taken-off") else (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return x / root * self.g + self.b


class PairedAttention(Part):
    """Partial rotary by complex numbers."""

    def __init__(self, theirs):
        super().__init__()
        weights, biases = theirs.query_key_value.weight.view(HEADS, 3, SIZE, WIDTH), theirs.query_key_value.bias.view(HEADS, 3, SIZE)
        self.wq, self.wk, self.wv = (linear_of(weights[:, i].flatten(0, 1), bias=biases[:, i].flatten()) for i in range(3))
        self.wo, self.rows = linear_of(theirs.dense.weight, bias=theirs.dense.bias), Rows()

    def spun(self, x, places):
        size = 2 * TURNED if self.bad("rotary-over-whole-head") else TURNED
        exponents = torch.arange(0, size, 2) / (SIZE if self.bad("frequencies-of-whole-head") else size)
        angles = torch.outer(places, (10000.0 if self.bad("rotary-base") else BASE) ** -exponents)[:, None]
        halves = (x[..., :size:2], x[..., 1:size:2]) if self.bad("neighbours-for-halves") else (x[..., : size // 2], x[..., size // 2 : size])
        y = torch.complex(*(up(y).contiguous() for y in halves)) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat((y.real.to(x.dtype), y.imag.to(x.dtype), x[..., size:]), -1)

    def forward(self, x, start):
        q, k, v = (p(x).unflatten(-1, (HEADS, SIZE)) for p in (self.wq, self.wk, self.wv))
        places = torch.arange(start, start + len(x))
        k, v = self.rows.put(start, self.spun(k, places), v)
        scores = torch.einsum("nhs,mhs->nhm", self.spun(q, places), k) / SIZE**0.5
        scores = torch.where(tril(len(x), len(k), start)[:, None], scores, -torch.inf)
        return self.wo(torch.einsum("nhm,mhs->nhs", torch.softmax(scores, -1), v).flatten(1))


class PairedBlock(Part):
    def __init__(self, theirs):
        super().__init__()
        self.na, self.att, self.nm = Centred(theirs.input_layernorm), PairedAttention(theirs.attention), Centred(theirs.post_attention_layernorm)
        wide, back = theirs.mlp.dense_h_to_4h, theirs.mlp.dense_4h_to_h
        self.fc1, self.fc2 = linear_of(wide.weight, bias=wide.bias), linear_of(back.weight, bias=back.bias)

    def forward(self, x, start):
        y = x + self.att(self.na(x), start)
        mid = self.na(x) if self.bad("one-norm-for-both") else self.nm(y if self.bad("residual-in-sequence") else x)
        hidden = self.fc1(mid)
        hidden = F.relu(hidden) if self.bad("activation-relu") else hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
        return y + self.fc2(hidden)


class PairedNeox(Stepped):
    def __init__(self, theirs):
        super().__init__()
        self.tok, self.layer = table_of(theirs.embed_in.weight), nn.ModuleList(PairedBlock(layer) for layer in theirs.layers)
        self.end, self.unembed = Centred(theirs.final_layer_norm), linear_of(theirs.lm_head.weight)

    def forward(self, ids, start):
        x = self.tok(ids)
        for block in self.layer:
            x = block(x, start)
        return self.unembed(self.end(x))


SPUN, WHOLE = "layer.1.att", ("layers.1.attention",)
PROGRAMS["neox-brain"] = Program(
    Neox,
    PairedNeox,
    two_requests,
    {
        "mean-not-taken-off": Fault("layer.1.nm", ("layers.1.post_attention_layernorm",), subtle=True),
        "rotary-over-whole-head": Fault(SPUN, WHOLE, "TURNED", near=r"exponents = |halves = "),
        "frequencies-of-whole-head": Fault(SPUN, WHOLE),
        "rotary-base": Fault(SPUN, WHOLE),
        "neighbours-for-halves": Fault(SPUN, WHOLE, near=r"torch\.complex\("),
        "one-norm-for-both": Fault("layer.1", ("layers.1", "layers.1.mlp"), "post_attention_layernorm\\(x"),
        "residual-in-sequence": Fault("layer.1", ("layers.1", "layers.1.mlp"), "post_attention_layernorm\\(x"),
        "activation-relu": Fault("layer.1", ("layers.1.mlp",), "F.gelu", subtle=True),
    },
    (FULL, BRAIN),
    seed=8,
)

# ---- ALiBi in f32 with a norm behind the embedding (BLOOM), beside fp16 with the bias of keys alone (MPT), in one matrix product


class BloomAttention(NeoxAttention):
    def forward(self, x):
        q, k, v = self.query_key_value(x).unflatten(-1, (HEADS, 3, SIZE)).permute(3, 0, 2, 1, 4)
        slopes = 2.0 ** (-8.0 / HEADS * torch.arange(1, HEADS + 1))
        index = torch.arange(x.shape[1])
        bias = -slopes.view(-1, 1, 1) * (index[:, None] - index).clamp(min=0)
        scores = (q @ k.mT / math.sqrt(SIZE) + bias).masked_fill(~tril(x.shape[1]), -torch.inf)
        return self.dense((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class BloomLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm, self.self_attention = nn.LayerNorm(WIDTH), BloomAttention()
        self.post_attention_layernorm, self.mlp = nn.LayerNorm(WIDTH), NeoxMlp()

    def forward(self, x):
        x = x + self.self_attention(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Bloom(Whole):
    def __init__(self):
        super().__init__()
        self.word_embeddings, self.word_embeddings_layernorm = nn.Embedding(VOCAB, WIDTH), nn.LayerNorm(WIDTH)
        self.h, self.ln_f = nn.ModuleList(BloomLayer() for _ in range(2)), nn.LayerNorm(WIDTH)

    def prepare(self):
        self.word_embeddings.weight.mul_(0.1)  # as small as they are drawn in practice: eps counts

    def forward(self, ids):
        x = self.word_embeddings_layernorm(self.word_embeddings(ids))
        for layer in self.h:
            x = layer(x)
        return F.linear(self.ln_f(x), self.word_embeddings.weight)


class LayerNorm(Part):
    def __init__(self, theirs):
        super().__init__()
        self.weight, self.bias = held(theirs.weight), held(theirs.bias)

    def forward(self, x):
        eps = 1e-3 if self.bad("norm-eps") else 1e-5
        if self.bad("eps-outside-root"):
            x = x - x.mean(-1, keepdim=True)
            return x / (x.square().mean(-1, keepdim=True).sqrt() + eps) * self.weight + self.bias
        bias = None if self.bad("norm-bias-left-out") else self.bias
        return F.layer_norm(x, (WIDTH,), self.weight, bias, eps)


class KeyBiasAttention(Part):
    """Softmax does not see what is added to a whole row: the bias is slope times the key's place."""

    def __init__(self, theirs):
        super().__init__()
        weights, biases = theirs.query_key_value.weight.view(HEADS, 3, -1), theirs.query_key_value.bias.view(HEADS, 3, -1)
        self.Wqkv = linear_of(weights.transpose(0, 1).reshape(3 * WIDTH, WIDTH), bias=biases.transpose(0, 1).flatten())
        self.out_proj, self.rows = linear_of(theirs.dense.weight, bias=theirs.dense.bias), Rows()

    def slopes(self):
        last = 4 if self.bad("slopes-of-other-range") else 8
        powers = 2.0 ** -torch.linspace(last / HEADS, last, HEADS)
        return powers.flip(0) if self.bad("slopes-reversed") else powers

    def forward(self, x, start):
        y = self.Wqkv(x)
        y = y.unflatten(-1, (HEADS, 3, SIZE)).transpose(1, 2) if self.bad("chunks-by-head") else y.unflatten(-1, (3, HEADS, SIZE))
        q, k, v = y.unbind(1)
        k, v = self.rows.put(start, k, v)
        index = torch.arange(len(k))
        index = index * 0 if self.bad("decode-without-bias") and start else index
        index = -index if self.bad("bias-of-wrong-sign") else index
        bias = (self.slopes()[:, None] * index).to(x.dtype)[:, None]
        scores = torch.baddbmm(bias.expand(-1, len(x), -1), q.transpose(0, 1) * SIZE**-0.5, k.permute(1, 2, 0))
        scores = scores.masked_fill(~tril(len(x), len(k), start), torch.finfo(x.dtype).min)
        return self.out_proj(torch.bmm(scores.softmax(-1), v.transpose(0, 1)).transpose(0, 1).flatten(1))


class KeyBiasBlock(nn.Module):
    def __init__(self, theirs):
        super().__init__()
        self.norm_1, self.attn = LayerNorm(theirs.input_layernorm), KeyBiasAttention(theirs.self_attention)
        self.norm_2, self.ffn = LayerNorm(theirs.post_attention_layernorm), nn.Module()
        self.ffn.up_proj = linear_of(theirs.mlp.dense_h_to_4h.weight, bias=theirs.mlp.dense_h_to_4h.bias)
        self.ffn.down_proj = linear_of(theirs.mlp.dense_4h_to_h.weight, bias=theirs.mlp.dense_4h_to_h.bias)

    def forward(self, x, start):
        x = x + self.attn(self.norm_1(x), start)
        return x + self.ffn.down_proj(F.gelu(self.ffn.up_proj(self.norm_2(x))))


class KeyBiasLm(Stepped):
    def __init__(self, theirs):
        super().__init__()
        self.wte, self.emb_norm = table_of(theirs.word_embeddings.weight), LayerNorm(theirs.word_embeddings_layernorm)
        self.blocks, self.norm_f = nn.ModuleList(KeyBiasBlock(layer) for layer in theirs.h), LayerNorm(theirs.ln_f)

    def forward(self, ids, start):
        x = self.wte(ids)
        x = x if self.bad("embedding-norm-left-out") else self.emb_norm(x)
        for block in self.blocks:
            x = block(x, start)
        return self.norm_f(x) @ self.wte.weight.t()


KEYED, SLOPED = "blocks.1.attn", ("h.1.self_attention",)
PROGRAMS["alibi-half"] = Program(
    Bloom,
    KeyBiasLm,
    two_requests,
    {
        "norm-eps": Fault("emb_norm", ("word_embeddings_layernorm",), near="F.layer_norm"),
        "eps-outside-root": Fault("emb_norm", ("word_embeddings_layernorm",), near=r"sqrt\(\) \+ eps|x = x - x\.mean", subtle=True),
        "norm-bias-left-out": Fault("blocks.1.norm_2", ("h.1.post_attention_layernorm",)),
        "slopes-of-other-range": Fault(KEYED, SLOPED, "slopes = 2", near=r"torch\.linspace\(last"),
        "slopes-reversed": Fault(KEYED, SLOPED, "slopes = 2", near=r"self\.slopes\(\)\["),
        "chunks-by-head": Fault(KEYED, SLOPED, "q, k, v = self.query_key_value"),
        "decode-without-bias": Fault(KEYED, SLOPED, near=r"self\.slopes\(\)\["),
        "bias-of-wrong-sign": Fault(KEYED, SLOPED, "bias = -slopes", near=r"self\.slopes\(\)\["),
        "embedding-norm-left-out": Fault("", ("",), r"word_embeddings_layernorm\(self", outside=ROOT),
    },
    (FULL, HALF),
)
