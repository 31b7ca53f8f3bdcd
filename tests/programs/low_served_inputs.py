"""Programs of low_served with a second input: an encoder's text, attended across, and an image's patches before the text."""

import math

import torch
import torch.nn.functional as F
from low_served_frame import (
    ATTN,
    B_ATTN,
    BRAIN,
    FULL,
    GROUP,
    HALF,
    HEADS,
    KV,
    SIZE,
    VOCAB,
    WIDTH,
    AttentionA,
    AttentionB,
    Fault,
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
    linear_of,
    plain,
    table_of,
    tokens,
    tril,
)
from torch import nn

PROGRAMS = {}
ROOT = "the root's own code"

# ---- an encoder and a decoder (T5): f32, one pair at a time, beside bf16 with padded sources and keys that are kept

BUCKETS, FURTHEST = 8, 12
INSIDE = HEADS * SIZE


def buckets(away, both_sides):
    """T5's buckets of key place minus query place."""
    count, shift = BUCKETS, torch.zeros_like(away)
    if both_sides:
        count = count // 2
        shift, away = (away > 0) * count, away.abs()
    else:
        away = (-away).clamp(min=0)
    exact = count // 2
    grown = exact + (torch.log(away.clamp(min=1) / exact) / math.log(FURTHEST / exact) * (count - exact)).long()
    return shift + torch.where(away < exact, away, grown.clamp(max=count - 1))


class T5Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = plain(WIDTH, INSIDE), plain(WIDTH, INSIDE), plain(WIDTH, INSIDE)
        self.o = plain(INSIDE, WIDTH)

    def forward(self, x, source=None, bias=None):
        source = x if source is None else source
        q, k, v = (p(y).unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for p, y in ((self.q, x), (self.k, source), (self.v, source)))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
        return self.o(y.transpose(1, 2).flatten(2))


class T5Layer(nn.Module):
    def __init__(self, crossed):
        super().__init__()
        self.SelfAttention, self.layer_norm = T5Attention(), NormA()
        if crossed:
            self.EncDecAttention, self.cross_layer_norm = T5Attention(), NormA()
        self.wi, self.wo, self.ff_layer_norm = plain(WIDTH, 48), plain(48, WIDTH), NormA()

    def forward(self, x, bias, source=None):
        x = x + self.SelfAttention(self.layer_norm(x), bias=bias)
        if source is not None:
            x = x + self.EncDecAttention(self.cross_layer_norm(x), source)
        return x + self.wo(torch.relu(self.wi(self.ff_layer_norm(x))))


class T5Stack(nn.Module):
    """The first layer's table of biases serves all."""

    def __init__(self, crossed):
        super().__init__()
        self.block, self.final_layer_norm = nn.ModuleList(T5Layer(crossed) for _ in range(2)), NormA()
        self.relative_attention_bias, self.crossed = nn.Embedding(BUCKETS, HEADS), crossed

    def forward(self, x, source=None):
        index = torch.arange(x.shape[1])
        bias = self.relative_attention_bias(buckets(index - index[:, None], not self.crossed)).permute(2, 0, 1)
        if self.crossed:
            bias = bias.masked_fill(~tril(len(index)), -torch.inf)
        for layer in self.block:
            x = layer(x, bias, source)
        return self.final_layer_norm(x)


class T5(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared, self.encoder, self.decoder = nn.Embedding(VOCAB, WIDTH), T5Stack(False), T5Stack(True)

    def prepare(self):
        for stack in (self.encoder, self.decoder):
            stack.relative_attention_bias.weight.mul_(8)
            for part in stack.modules():
                if isinstance(part, T5Attention):
                    part.q.weight.mul_(0.4)  # T5 has no scale of scores: its queries are small

    def serve(self, requests):
        rows = []
        for text, forced in requests:
            source = self.encoder(self.shared(text)[None])
            x = self.decoder(self.shared(torch.cat((forced.new_zeros(1), forced)))[None], source)
            rows.append(F.linear(x[0] * WIDTH**-0.5, self.shared.weight))
        return torch.cat(rows)


class SelfPart(Part):
    """(batch, time, width); of a decoder, keys are kept."""

    def __init__(self, theirs, table, both_sides):
        super().__init__()
        self.qkv, self.out = linear_of(theirs.q.weight, theirs.k.weight, theirs.v.weight), linear_of(theirs.o.weight)
        self.table, self.both_sides, self.kept = held(table.T), both_sides, None

    def bias(self, start, end):
        index = torch.arange(end)
        rows = index[:1] if self.bad("decode-bias-of-first-row") and start else index[start:]
        both = not self.both_sides if self.bad("buckets-of-other-stack") else self.both_sides
        away = rows[:, None] - index if self.bad("buckets-turned-round") else index - rows[:, None]
        return self.table[:, buckets(away, both)]

    def forward(self, x, start, allowed):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, SIZE)).unbind(2)
        if not self.both_sides:
            k, v = (k, v) if start == 0 else (torch.cat(pair, 1) for pair in zip(self.kept, (k, v)))
            self.kept = k, v
        scores = torch.einsum("bnhs,bmhs->bhnm", q, k)
        scores = scores / math.sqrt(SIZE) if self.bad("scores-scaled") else scores
        scores = scores if self.bad("position-bias-left-out") else scores + self.bias(start, k.shape[1])
        weights = scores.masked_fill(~allowed[:, None], -torch.inf).softmax(-1)
        return self.out(torch.einsum("bhnm,bmhs->bnhs", weights, v).flatten(2))


class CrossPart(Part):
    """Keys and values of the sources are projected once."""

    def __init__(self, theirs):
        super().__init__()
        self.q, self.kv, self.out = linear_of(theirs.q.weight), linear_of(theirs.k.weight, theirs.v.weight), linear_of(theirs.o.weight)

    def keep(self, source, real):
        k, v = self.kv(source).unflatten(-1, (2, HEADS, SIZE)).unbind(2)
        k, v = (k, k) if self.bad("values-from-keys") else (k, v)
        self.real = torch.ones_like(real) if self.bad("source-padding-seen") else real
        self.kept = torch.stack((k, v))

    def forward(self, x):
        k, v = self.kept.roll(1, 1) if self.bad("source-of-other-request") else self.kept
        scores = torch.einsum("bnhs,bmhs->bhnm", self.q(x).unflatten(-1, (HEADS, SIZE)), k)
        weights = scores.masked_fill(~self.real[:, None, None], torch.finfo(x.dtype).min).softmax(-1)
        return self.out(torch.einsum("bhnm,bmhs->bnhs", weights, v).flatten(2))


class PairBlock(Part):
    def __init__(self, theirs, table, crossed):
        super().__init__()
        self.n1, self.own, self.n3 = NormB(theirs.layer_norm), SelfPart(theirs.SelfAttention, table, not crossed), NormB(theirs.ff_layer_norm)
        if crossed:
            self.n2, self.cross = NormB(theirs.cross_layer_norm), CrossPart(theirs.EncDecAttention)
        self.up, self.down = linear_of(theirs.wi.weight), linear_of(theirs.wo.weight)

    def forward(self, x, start, allowed):
        x = x + self.own(self.n1(x)[0], start, allowed)
        if hasattr(self, "cross"):
            x = x + self.cross(self.n2(x)[0])
        return x + self.down(self.up(self.n3(x)[0]).clamp(min=0))


class PairEngine(Part):
    def __init__(self, theirs):
        super().__init__()
        self.tok = table_of(theirs.shared.weight)
        stacks = [(stack.block, stack.relative_attention_bias.weight, stack.crossed) for stack in (theirs.encoder, theirs.decoder)]
        self.enc, self.dec = (nn.ModuleList(PairBlock(layer, table, crossed) for layer in block) for block, table, crossed in stacks)
        self.enc_norm, self.dec_norm = NormB(theirs.encoder.final_layer_norm), NormB(theirs.decoder.final_layer_norm)

    def encode(self, texts):
        length = max(len(text) for text in texts)
        real = torch.arange(length) < torch.tensor([len(text) for text in texts])[:, None]
        x = self.tok(torch.stack([F.pad(text, (0, length - len(text))) for text in texts]))
        for block in self.enc:
            x = block(x, 0, real[:, None].expand(-1, length, -1))
        x = x if self.bad("source-unnormed") else self.enc_norm(x)[0]
        for block in self.dec:
            block.cross.keep(x, real)

    def serve(self, requests):
        self.encode([text for text, _ in requests])
        forced = torch.stack([tokens_ for _, tokens_ in requests])
        rows = []
        for t, ids in enumerate(F.pad(forced, (1, 0)).unbind(1)):
            x = self.tok(ids[:, None])
            for block in self.dec:
                x = block(x, t, torch.ones(len(x), 1, t + 1, dtype=torch.bool))
            x = self.dec_norm(x)[0][:, 0]
            rows.append((x if self.bad("head-unscaled") else x / math.sqrt(WIDTH)) @ self.tok.weight.T)
        return torch.stack(rows, 1).flatten(0, 1)


DEC, CROSS = ("dec.1.own", ("decoder.block.1.SelfAttention",)), ("dec.1.cross", ("decoder.block.1.EncDecAttention",))
ENC = "enc.1.own", ("encoder.block.1.SelfAttention",)
PROGRAMS["encoder-decoder"] = Program(
    T5,
    PairEngine,
    lambda: [(tokens(8), tokens(3)), (tokens(4), tokens(3))],
    {
        "decode-bias-of-first-row": Fault(*DEC, near=r"away = "),
        "buckets-of-other-stack": Fault(*ENC, "buckets\\(index - index", near=r"buckets\(away, both\)"),
        "buckets-turned-round": Fault(*ENC, "buckets\\(index - index", near=r"buckets\(away, both\)"),
        "scores-scaled": Fault(*ENC, "scale=1.0"),
        "position-bias-left-out": Fault(*DEC),
        "values-from-keys": Fault(*CROSS, near=r"torch\.stack\(\(k, v\)\)"),
        "source-padding-seen": Fault(*CROSS, near="self\\.real\\[:, None"),
        "source-of-other-request": Fault(*CROSS, near=r"bnhs,bmhs->bhnm"),
        "source-unnormed": Fault("", ("encoder", "encoder.final_layer_norm"), r"self\.final_layer_norm\(x", outside=ROOT),
        "head-unscaled": Fault("", ("",), r"WIDTH\*\*-0\.5", outside=ROOT),
    },
    (FULL, BRAIN),
    seed=5,
)

# ---- patches of an image before the text: a convolution and one mask (fp16), or unfolded rows of pixels and kept keys (bf16)

PATCH, SIDE, MEAN, SPREAD = 4, 12, 0.4, 0.3
PATCHES = (SIDE // PATCH) ** 2


class PrefixAttention(AttentionA):
    def attend(self, q, k, v):
        k, v = (y.repeat_interleave(GROUP, 1) for y in (k, v))
        allowed = tril(q.shape[2])
        allowed[:, :PATCHES] = True
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class Vision(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch_embedding = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.position_embedding = nn.Embedding(PATCHES, WIDTH)
        self.linear_1, self.linear_2 = nn.Linear(WIDTH, 48), nn.Linear(48, WIDTH)

    def prepare(self):
        self.position_embedding.weight.mul_(4)
        self.patch_embedding.weight.mul_(0.4)

    def forward(self, pixels):
        kind = self.patch_embedding.weight.dtype
        x = self.patch_embedding(((pixels - MEAN) / SPREAD).to(kind)[None]).flatten(2).transpose(1, 2)
        return self.linear_2(F.gelu(self.linear_1(x + self.position_embedding.weight)))


class VisionLm(LmA):
    kinds = (PrefixAttention, MlpA, NormA, LayerA)

    def __init__(self):
        super().__init__()
        self.vision = Vision()

    def serve(self, requests):
        rows = []
        for pixels, prompt, forced in requests:
            text = self.model.embed_tokens(torch.cat((prompt, forced))[None]) * math.sqrt(WIDTH)
            x = torch.cat((self.vision(pixels), text), 1)
            for layer in self.model.layers:
                x = layer(x)
            rows.append(self.lm_head(self.model.norm(x))[0, PATCHES + len(prompt) - 1 :])
        return torch.cat(rows)


class UnfoldedVision(Part):
    def __init__(self, theirs):
        super().__init__()
        kernel = theirs.patch_embedding.weight.permute(0, 2, 3, 1).flatten(1)  # pixels by row, column, then colour
        self.patch, self.places = linear_of(kernel, bias=theirs.patch_embedding.bias), held(theirs.position_embedding.weight)
        self.fc1, self.fc2 = (linear_of(p.weight, bias=p.bias) for p in (theirs.linear_1, theirs.linear_2))

    def forward(self, pixels):
        pixels = pixels - MEAN if self.bad("spread-left-out") else (pixels - MEAN) * (1 / SPREAD)
        pixels = pixels.flip(0) if self.bad("colours-reversed") else pixels
        grid = pixels.unflatten(1, (-1, PATCH)).unflatten(3, (-1, PATCH))  # colour, row of patches, row, column of patches, column
        if self.bad("patches-by-column"):
            grid = grid.transpose(1, 3)
        last = (0, 2, 4) if self.bad("colour-before-row") else (2, 4, 0)
        rows = grid.permute(1, 3, *last).flatten(2).flatten(0, 1).to(self.patch.weight.dtype)
        x = self.patch(rows)
        x = x if self.bad("patch-places-left-out") else x + self.places
        x = self.fc1(x)
        x = torch.relu(x) if self.bad("projector-relu") else 0.5 * x * (1 + torch.erf(x * 2**-0.5))
        return self.fc2(x)


class PrefixedAttention(AttentionB):
    def mixed(self, q, k, v):
        n, m = len(q), len(k)
        allowed = tril(n, m, m - n)
        allowed[:, : 0 if self.bad("prefix-causal") else PATCHES] |= True
        if self.bad("prefix-unseen-in-decoding") and n == 1:
            allowed[:, :PATCHES] = False
        scores = torch.einsum("nkgs,mks->nkgm", q.unflatten(1, (KV, GROUP)), k) * SIZE**-0.5
        weights = torch.where(allowed[:, None, None], scores, -torch.inf).softmax(-1)
        return torch.einsum("nkgm,mks->nkgs", weights, v).flatten(1)

    def places(self, start, n):
        places = super().places(start, n)
        return places - PATCHES + 1 if self.bad("text-places-without-prefix") and start else places


class PrefixEngine(LmB):
    kinds = (PrefixedAttention, MlpB, NormB)

    def __init__(self, theirs):
        super().__init__(theirs)
        self.eyes = UnfoldedVision(theirs.vision)

    def logits(self, x, start):
        carried = None
        for block in self.blocks:
            x, carried = block(x, carried, start)
        return self.out(self.ln_f(x[-1:], carried[-1:])[0])[0]

    def serve(self, requests):
        rows, scale = [], WIDTH**0.5
        for pixels, prompt, forced in requests:
            seen = self.eyes(pixels)
            seen = seen * scale if self.bad("patches-scaled-as-text") else seen
            text = self.tok(prompt) if self.bad("text-unscaled") else self.tok(prompt) * scale
            rows.append(self.logits(torch.cat((seen, text)), 0))
            for place, token in enumerate(forced, PATCHES + len(prompt)):
                rows.append(self.logits(self.tok(token[None]) * scale, place))
        return torch.stack(rows)


def pictures():
    return [(torch.rand(3, SIDE, SIDE, dtype=torch.float32).to(torch.get_default_dtype()), tokens(n), tokens(2)) for n in (3, 2)]


EYES, VISION = "eyes", ("vision",)
PROGRAMS["patch-prefix"] = Program(
    VisionLm,
    PrefixEngine,
    pictures,
    {
        "spread-left-out": Fault(EYES, VISION, "/ SPREAD"),
        "colours-reversed": Fault(EYES, VISION),
        "patches-by-column": Fault(EYES, VISION, near=r"grid\.transpose\(1, 3\)"),
        "colour-before-row": Fault(EYES, VISION, near="rows = grid"),
        "patch-places-left-out": Fault(EYES, VISION, "self.position_embedding.weight"),
        "projector-relu": Fault(EYES, VISION, "F.gelu"),
        "prefix-causal": Fault("blocks.0.attn", ("model.layers.0.self_attn",), "PATCHES\\] = True", near=r"torch\.where\(allowed\[:, None"),
        "prefix-unseen-in-decoding": Fault(B_ATTN, ATTN, near=r"allowed\[:, :PATCHES\] = False"),
        "text-places-without-prefix": Fault(B_ATTN, ATTN),
        "patches-scaled-as-text": Fault("", ("",), "self.vision\\(pixels", outside=ROOT),
        "text-unscaled": Fault("", ("",), "math.sqrt\\(WIDTH", outside=ROOT),
    },
    (HALF, BRAIN),
)
