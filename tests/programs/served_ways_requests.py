"""Programs of served_ways about what a request asks for: sampling, pooling, images, sources to translate."""

import math

import torch
import torch.nn.functional as F
from served_ways_frame import (
    ATTN,
    HEADS,
    INNER,
    VOCAB,
    WIDTH,
    AttentionB,
    Fault,
    GrownAttention,
    Kept,
    LmA,
    LmB,
    Part,
    Program,
    WrittenAttention,
    linear_of,
    table_of,
    tokens,
    tril,
)
from torch import nn

PROGRAMS = {}
ROOT = "the root's own code, no layer"

# ---- processors of logits and sampling with given Gumbel noise: in order of vocabulary with masks, or in sorted order

PENALTY, TEMPERATURE, TOP_K, TOP_P = 1.4, 0.7, 12, 0.8


class ProcessedLm(LmA):
    def __init__(self):
        super().__init__(GrownAttention)

    def serve(self, requests):
        prompt, noise = requests
        self.forget()
        ids, fresh, told = prompt, prompt, []
        for g in noise:
            logits = self(fresh[None], start=len(ids) - len(fresh))[0, -1]
            drawn = logits.gather(0, ids)
            drawn = torch.where(drawn < 0, drawn * PENALTY, drawn / PENALTY)
            logits = logits.scatter(0, ids, drawn) / TEMPERATURE
            logits = logits.masked_fill(logits < torch.topk(logits, TOP_K).values[-1], -torch.inf)
            rising, places = torch.sort(logits)
            removed = rising.softmax(-1).cumsum(-1) <= 1 - TOP_P
            logits = logits.masked_fill(removed.scatter(0, places, removed), -torch.inf)
            fresh = torch.argmax(logits.log_softmax(-1) + g).view(1)
            told += [logits.softmax(-1), fresh.to(logits.dtype)]
            ids = torch.cat((ids, fresh))
        return torch.cat(told)


class Sampler(Kept):
    def __call__(self, logits, seen, prompt_length, noise, t):
        counts = torch.bincount(seen[prompt_length:] if self.bad("penalty-without-prompt") else seen, minlength=VOCAB)
        factors = torch.where(counts > 0, PENALTY, 1.0).to(logits.dtype)
        lowered = torch.where((logits < 0) if self.bad("penalty-of-wrong-sign") else (logits > 0), logits / factors, logits * factors)
        cold = lowered if self.bad("temperature-after-cuts") else lowered / TEMPERATURE
        falling, places = cold.topk(TOP_K + 1 if self.bad("top-k-one-more") else TOP_K)
        shares = falling.softmax(-1)
        before = shares.cumsum(-1) if self.bad("top-p-counts-own-share") else shares.cumsum(-1) - shares
        falling = falling / TEMPERATURE if self.bad("temperature-after-cuts") else falling
        kept = torch.where(before < TOP_P, falling, -torch.inf).softmax(-1)
        gumbel = noise[max(t - 1, 0) if self.bad("noise-of-step-before") else t]
        token = places[torch.argmax(kept.log() + gumbel[places])]
        return torch.zeros_like(logits).index_copy(0, places, kept), token


class SampledLm(LmB):
    def __init__(self, theirs):
        super().__init__(theirs, WrittenAttention)
        self.sampler = Sampler()

    def serve(self, requests):
        prompt, noise = requests
        seen, told = prompt, []
        logits = self(prompt, start=0)[-1]
        for t in range(len(noise)):
            shares, token = self.sampler(logits, seen, len(prompt), noise, t)
            told += [shares, token.view(1).to(shares.dtype)]
            if t + 1 < len(noise):
                logits = self(token.view(1), start=len(seen))[-1]
                seen = torch.cat((seen, token.view(1)))
        return torch.cat(told)


def noisy_request():
    return tokens(6), -torch.log(-torch.log(torch.rand(4, VOCAB, dtype=torch.float64))).to(torch.get_default_dtype())


SAMPLING = "the sampler, no layer"
PROGRAMS["processors-sampler"] = Program(
    ProcessedLm,
    SampledLm,
    noisy_request,
    {
        "penalty-without-prompt": Fault("", ("",), "logits.gather|scatter\\(0, ids", "factors = ", SAMPLING),
        "penalty-of-wrong-sign": Fault("", ("",), "torch.where\\(drawn", outside=SAMPLING),
        "temperature-after-cuts": Fault("", ("",), "/ TEMPERATURE", outside=SAMPLING),
        "top-k-one-more": Fault("", ("",), "TOP_K", outside=SAMPLING),
        "top-p-counts-own-share": Fault("", ("",), "removed = ", "kept = ", SAMPLING),
        "noise-of-step-before": Fault("", ("",), "torch.argmax", "torch.argmax", SAMPLING),
    },
)

# ---- embeddings of sentences: transformers' BERT on a padded batch, or packed rows; mean, first and last token, each of length one


class HfBert:
    def __init__(self):
        from transformers import BertConfig, BertModel

        sizes = dict(vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=3, num_attention_heads=HEADS)
        self.root = BertModel(BertConfig(**sizes, max_position_embeddings=32, attn_implementation="sdpa"), add_pooling_layer=False)

    def serve(self, requests):
        longest = max(map(len, requests))
        ids = torch.stack([F.pad(r, (0, longest - len(r))) for r in requests])
        mask = torch.stack([(torch.arange(longest) < len(r)).long() for r in requests])
        rows = self.root(ids, attention_mask=mask).last_hidden_state
        mean = (rows * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        last = rows[torch.arange(len(rows)), mask.sum(1) - 1]
        return torch.stack([F.normalize(y, dim=-1) for y in (mean, rows[:, 0], last)])


class PostNorm(Part):
    def __init__(self, theirs):
        super().__init__()
        self.gain, self.shift = nn.Parameter(theirs.weight.clone()), nn.Parameter(theirs.bias.clone())

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        spread = centred.square().mean(-1, keepdim=True)
        return centred * torch.rsqrt(spread + (1e-3 if self.bad("norm-eps") else 1e-12)) * self.gain + self.shift


class BidirectionalAttention(Part):
    def __init__(self, theirs, out):
        super().__init__()
        three = theirs.query, theirs.key, theirs.value
        self.wqkv = linear_of(torch.cat([p.weight for p in three]), torch.cat([p.bias for p in three]))
        self.wo = linear_of(out.dense.weight, out.dense.bias)

    def forward(self, x, ends):
        q, k, v = self.wqkv(x).view(len(x), 3, HEADS, -1).unbind(1)
        rows, starts = [], [0, *ends[:-1]]
        for start, end in zip(starts, ends):
            left = max(start - 1, 0) if self.bad("row-of-request-before-seen") else start
            right = end - 1 if self.bad("last-row-unseen") else end
            keys, values = k[left:right], v[left:right]
            size = WIDTH if self.bad("scale-of-width") else q.shape[-1]
            scores = torch.einsum("nhs,mhs->hnm", q[start:end], keys) / math.sqrt(size)
            rows.append(torch.einsum("hnm,mhs->nhs", scores.softmax(-1), values))
        return self.wo(torch.cat(rows).flatten(1))


class EncoderBlock(nn.Module):
    def __init__(self, theirs):
        super().__init__()
        self.attn, self.norm_a = BidirectionalAttention(theirs.attention.self, theirs.attention.output), PostNorm(theirs.attention.output.LayerNorm)
        self.fc1, self.fc2 = Widened(theirs.intermediate.dense), linear_of(theirs.output.dense.weight, theirs.output.dense.bias)
        self.norm_b = PostNorm(theirs.output.LayerNorm)

    def forward(self, x, ends):
        x = self.norm_a(x + self.attn(x, ends))
        return self.norm_b(x + self.fc2(self.fc1(x)))


class Widened(Part):
    def __init__(self, theirs):
        super().__init__()
        self.weight, self.bias = nn.Parameter(theirs.weight.clone()), nn.Parameter(theirs.bias.clone())

    def forward(self, x):
        x = torch.addmm(self.bias, x, self.weight.T)
        return F.gelu(x, approximate="tanh") if self.bad("gelu-by-tanh") else x * 0.5 * (1 + torch.erf(x * 0.5**0.5))


class PackedBert(Part):
    def __init__(self, theirs):
        super().__init__()
        theirs = theirs.root
        kept = theirs.embeddings
        self.words, self.places = table_of(kept.word_embeddings.weight), table_of(kept.position_embeddings.weight)
        self.kinds, self.norm_e = nn.Parameter(kept.token_type_embeddings.weight.clone()), PostNorm(kept.LayerNorm)
        self.stack = nn.ModuleList(EncoderBlock(layer) for layer in theirs.encoder.layer)

    def forward(self, requests):
        ends = torch.tensor([len(r) for r in requests]).cumsum(0).tolist()
        places = torch.cat([torch.arange(len(r)) for r in requests])
        x = self.words(torch.cat(requests)) + self.places(places + 1 if self.bad("positions-from-one") else places)
        x = self.norm_e(x if self.bad("token-type-left-out") else x + self.kinds[0])
        for block in self.stack:
            x = block(x, ends)
        parts = x.tensor_split(ends[:-1])
        means = torch.stack([y[1:].mean(0) if self.bad("mean-without-first") else y.mean(0) for y in parts])
        lasts = torch.stack([y[-2] if self.bad("last-but-one-token") else y[-1] for y in parts])
        pooled = torch.stack([means, torch.stack([y[0] for y in parts]), lasts])
        return pooled / (pooled.abs().sum(-1, keepdim=True) if self.bad("length-of-sizes") else pooled.norm(dim=-1, keepdim=True))

    def serve(self, requests):
        return self(requests)


def sentences():
    return [tokens(5), tokens(8), tokens(6)]


BERT, POOLING = ("encoder.layer.1.attention.self",), "the pooling, no layer"
PROGRAMS["bert-packed"] = Program(
    HfBert,
    PackedBert,
    sentences,
    {
        "row-of-request-before-seen": Fault("stack.1.attn", BERT, near="keys, values = "),
        "last-row-unseen": Fault("stack.1.attn", BERT, near="keys, values = "),
        "scale-of-width": Fault("stack.1.attn", BERT, near="scores = "),
        "gelu-by-tanh": Fault("stack.1.fc1", ("encoder.layer.1.intermediate",)),
        "norm-eps": Fault("stack.1.norm_a", ("encoder.layer.1.attention.output.LayerNorm",)),
        "positions-from-one": Fault("", ("places", "embeddings"), near="self.words\\(", outside="the lookup of positions, no layer"),
        "mean-without-first": Fault("", ("",), "mean = ", outside=POOLING),
        "length-of-sizes": Fault("", ("",), "F.normalize", outside=POOLING),
    },
)

# ---- an image before the text: its tokens scattered into a batch of embeddings, or put in front of each request's rows

PATCH, ACROSS, IMAGE = 2, 2, VOCAB - 1


class PatchTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch_embedding = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.position_embedding = nn.Embedding(ACROSS**2, WIDTH)
        self.post_layernorm = nn.LayerNorm(WIDTH, eps=1e-6)

    def forward(self, pixels):
        x = self.patch_embedding(pixels).flatten(2).transpose(1, 2) + self.position_embedding.weight
        return self.post_layernorm(x)


class ScatteredLm(LmA):
    def __init__(self):
        super().__init__(GrownAttention)
        self.vision_tower = PatchTower()
        self.multi_modal_projector = nn.Sequential(nn.Linear(WIDTH, INNER), nn.GELU(), nn.Linear(INNER, WIDTH))

    def prepare(self):
        for attention in self.attentions():
            attention.forward = lambda x, positions, mask, self=attention: self.attend(*self.project(x, positions), mask)

    def forward(self, ids, pixels):
        features = self.multi_modal_projector(self.vision_tower(pixels)) / WIDTH**0.5
        x, images = self.model.embed_tokens(ids), ids == IMAGE
        x = x.masked_scatter(images[..., None].expand_as(x), features)
        mask = (tril(ids.shape[1]) | images[:, None, :])[:, None]
        return super().forward(x, positions=torch.arange(ids.shape[1]), mask=mask)

    def serve(self, requests):
        ids = torch.stack([F.pad(text, (ACROSS**2, 0), value=IMAGE) for text, _ in requests])
        return self(ids, torch.stack([pixels for _, pixels in requests]))[:, -2:]


class Unfolded(Part):
    def __init__(self, theirs):
        super().__init__()
        tower = theirs.vision_tower
        self.patches = linear_of(tower.patch_embedding.weight.flatten(1), tower.patch_embedding.bias)
        self.places, norm = nn.Parameter(tower.position_embedding.weight.clone()), tower.post_layernorm
        self.gain, self.shift = nn.Parameter(norm.weight.clone()), nn.Parameter(norm.bias.clone())

    def forward(self, pixels):
        cut = pixels.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH)
        cut = cut.transpose(1, 2) if self.bad("patches-by-column") else cut
        x = self.patches(cut.permute(1, 2, 0, 3, 4).reshape(ACROSS**2, -1))
        x = x if self.bad("patch-positions-left-out") else x + self.places
        return x if self.bad("post-norm-left-out") else F.layer_norm(x, (WIDTH,), self.gain, self.shift, 1e-6)


class PrefixAttention(AttentionB):
    def forward(self, x, image):
        places = torch.arange(len(x))
        places = (places - image).clamp(min=0) if self.bad("positions-from-text") else places
        q, k, v = self.project(x, places)
        index = torch.arange(len(x))
        allowed = index <= index[:, None] if self.bad("image-causal") else (index <= index[:, None]) | (index < image)
        allowed = allowed & (index > 0) | torch.eye(len(x), dtype=torch.bool) if self.bad("first-image-token-unseen") else allowed
        return self.wo(self.mixed(q, k, v, allowed))


class PrefixLm(LmB):
    def __init__(self, theirs):
        super().__init__(theirs, PrefixAttention, stack="layers")
        self.eyes, project = Unfolded(theirs), theirs.multi_modal_projector
        self.project_in, self.project_out = (linear_of(project[i].weight, project[i].bias) for i in (0, 2))

    def forward(self, text, pixels):
        features = self.project_out(F.gelu(self.project_in(self.eyes(pixels))))
        features = features if self.bad("features-unscaled") else features / math.sqrt(WIDTH)
        text = self.tok(text)
        return super().forward(torch.cat((text, features) if self.bad("image-behind-text") else (features, text)), image=len(features))

    def serve(self, requests):
        return torch.stack([self(text, pixels)[-2:] for text, pixels in requests])


def pictured_requests():
    return [(torch.randint(0, IMAGE, (5,)), torch.randn(3, 4, 4, dtype=torch.float32).to(torch.get_default_dtype())) for _ in range(2)]


EYES, LAYERS_ATTN = ("eyes", ("vision_tower",)), "layers.1.attn"
PROGRAMS["image-scattered"] = Program(
    ScatteredLm,
    PrefixLm,
    pictured_requests,
    {
        "patches-by-column": Fault(*EYES, "patch_embedding\\(pixels"),
        "patch-positions-left-out": Fault(*EYES, "position_embedding.weight"),
        "post-norm-left-out": Fault(*EYES, "post_layernorm\\(x"),
        "positions-from-text": Fault(LAYERS_ATTN, ATTN),
        "image-causal": Fault(LAYERS_ATTN, ATTN),
        "first-image-token-unseen": Fault(LAYERS_ATTN, ATTN),
        "features-unscaled": Fault("", ("",), "features = ", outside=ROOT),
    },
)

# ---- a source to translate: transformers' BART, or a decoder with its rows of the source kept from the start

ENCODED, SOURCE_PAD = WIDTH, 1


class HfBart:
    def __init__(self):
        from transformers import BartConfig, BartForConditionalGeneration

        layers = dict(encoder_layers=1, decoder_layers=3, encoder_attention_heads=HEADS, decoder_attention_heads=HEADS)
        sizes = dict(vocab_size=VOCAB, d_model=WIDTH, encoder_ffn_dim=INNER, decoder_ffn_dim=INNER, max_position_embeddings=32)
        self.root = BartForConditionalGeneration(BartConfig(**layers, **sizes, dropout=0.0, attn_implementation="sdpa"))

    def serve(self, requests):
        sources, forced = requests
        longest = max(map(len, sources))
        ids = torch.stack([F.pad(s, (0, longest - len(s)), value=SOURCE_PAD) for s in sources])
        mask = torch.stack([(torch.arange(longest) < len(s)).long() for s in sources])
        encoded = self.root.model.encoder(ids, attention_mask=mask)
        past, told = None, []
        for token in forced.unbind(1):
            given = dict(encoder_outputs=encoded, attention_mask=mask, decoder_input_ids=token[:, None])
            answer = self.root(**given, past_key_values=past, use_cache=True)
            past = answer.past_key_values
            told.append(answer.logits[:, -1])
        return torch.stack(told, 1)


class BartNorm(PostNorm):
    def forward(self, x):
        return F.layer_norm(x, (WIDTH,), self.gain, self.shift, 1e-3 if self.bad("norm-eps") else 1e-5)


class BartAttention(Part):
    """`full`: all rows at once; `step`: one row of each request against a kept cache."""

    def __init__(self, theirs):
        super().__init__()
        self.wq, self.wo = (linear_of(p.weight, p.bias) for p in (theirs.q_proj, theirs.out_proj))
        self.wkv = linear_of(torch.cat((theirs.k_proj.weight, theirs.v_proj.weight)), torch.cat((theirs.k_proj.bias, theirs.v_proj.bias)))
        self.kept = {}

    def heads_of(self, x):
        return self.wkv(x).view(*x.shape[:-1], 2, HEADS, -1).unbind(-3)

    def keep(self, request, rows):
        self.kept[request] = self.heads_of(rows)

    def grow(self, request, row, t):
        k, v = self.heads_of(row[None])
        if t:
            cut = -1 if self.bad("self-row-overwritten") else None
            k, v = (torch.cat((old[:cut], new)) for old, new in zip(self.kept[request], (k, v)))
        self.kept[request] = k, v

    def forward(self, x, requests):
        q, rows = self.wq(x), []
        q = q if self.bad("query-unscaled") else q / math.sqrt(WIDTH // HEADS)
        for i, request in enumerate(requests):
            k, v = self.kept[requests[i - 1] if self.bad("rows-of-other-request") else request]
            k, v = (k[:-1], v[:-1]) if self.bad("last-source-row-unseen") else (k, v)
            weights = torch.einsum("hd,mhd->hm", q[i].view(HEADS, -1), k).softmax(-1)
            rows.append(torch.einsum("hm,mhd->hd", weights, v).flatten())
        return self.wo(torch.stack(rows))


class BartBlock(Part):
    def __init__(self, theirs):
        super().__init__()
        self.self_att, self.cross_att = BartAttention(theirs.self_attn), BartAttention(theirs.encoder_attn)
        self.ln1, self.ln2 = BartNorm(theirs.self_attn_layer_norm), BartNorm(theirs.encoder_attn_layer_norm)
        self.ln3, self.fc1 = BartNorm(theirs.final_layer_norm), linear_of(theirs.fc1.weight, theirs.fc1.bias)
        self.fc2 = linear_of(theirs.fc2.weight, theirs.fc2.bias)

    def forward(self, x, requests, t):
        for request, row in zip(requests, x):
            self.self_att.grow(request, row, t)
        x = self.ln1(x + self.self_att(x, requests))
        crossed = self.cross_att(x, requests)
        x = self.ln2(crossed if self.bad("cross-residual-left-out") else x + crossed)
        return self.ln3(x + self.fc2(F.gelu(self.fc1(x))))


class OwnBart(Part):
    def __init__(self, theirs):
        super().__init__()
        theirs = theirs.root
        model, decoder = theirs.model, theirs.model.decoder
        self.shared, self.logit_bias = table_of(model.shared.weight), theirs.final_logits_bias[0].clone()
        self.source_places, self.target_places = table_of(model.encoder.embed_positions.weight), table_of(decoder.embed_positions.weight)
        self.source_norm, self.target_norm = BartNorm(model.encoder.layernorm_embedding), BartNorm(decoder.layernorm_embedding)
        self.encoder, self.blocks = BartEncoding(model.encoder.layers[0]), nn.ModuleList(BartBlock(layer) for layer in decoder.layers)

    def encode(self, request, source):
        x = self.source_norm(self.shared(source) + self.source_places(torch.arange(len(source)) + 2))
        x = self.encoder(x)
        for block in self.blocks:
            block.cross_att.keep(request, x)

    def forward(self, ids, t):
        place = torch.full((len(ids),), t if self.bad("offset-of-positions-left-out") else t + 2)
        x = self.target_norm(self.shared(ids) + self.target_places(place))
        for block in self.blocks:
            x = block(x, list(range(len(ids))), t)
        return torch.addmm(self.logit_bias, x, self.shared.weight.T)

    def serve(self, requests):
        sources, forced = requests
        for i, source in enumerate(sources):
            self.encode(i, source)
        return torch.stack([self(token, t) for t, token in enumerate(forced.unbind(1))], 1)


class BartEncoding(Part):
    def __init__(self, theirs):
        super().__init__()
        self.att, self.ln1, self.ln2 = BartAttention(theirs.self_attn), BartNorm(theirs.self_attn_layer_norm), BartNorm(theirs.final_layer_norm)
        self.fc1, self.fc2 = linear_of(theirs.fc1.weight, theirs.fc1.bias), linear_of(theirs.fc2.weight, theirs.fc2.bias)

    def forward(self, x):
        self.att.keep(0, x)
        x = self.ln1(x + self.att(x, [0] * len(x)))
        return self.ln2(x + self.fc2(F.gelu(self.fc1(x))))


def sources_and_targets():
    return [torch.randint(3, VOCAB, (n,)) for n in (4, 7)], torch.randint(3, VOCAB, (2, 4))


DECODER = "model.decoder.layers.1."
SELF, CROSS = ("blocks.1.self_att", (DECODER + "self_attn",)), ("blocks.1.cross_att", (DECODER + "encoder_attn",))
PROGRAMS["bart-kept-source"] = Program(
    HfBart,
    OwnBart,
    sources_and_targets,
    {
        "self-row-overwritten": Fault(*SELF, near="torch.cat\\(\\(old"),
        "query-unscaled": Fault(*CROSS, near="weights = "),
        "rows-of-other-request": Fault(*CROSS, near="weights = "),
        "last-source-row-unseen": Fault(*CROSS, near="weights = "),
        "cross-residual-left-out": Fault("blocks.1", ("model.decoder.layers.1",)),
        "offset-of-positions-left-out": Fault(
            "", ("target_places", "model.decoder.embed_positions"), near="self.target_places\\(", outside="the lookup of positions, no layer"
        ),
        "norm-eps": Fault("blocks.1.ln2", (DECODER + "encoder_attn_layer_norm",)),
    },
)
