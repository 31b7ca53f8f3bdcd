"""Models as people write them from scratch, with the weights of transformers' model: a Llama whose rotary embedding turns complex numbers, a
GPT-2 of einsums, a GPT-2 with the sequence first, and a BERT of torch's own layers. Each packs queries, keys and values in another order."""

import math

import language_models
import ported_encoders
import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, GROUPS, SIZE, INNER, WORDS = 64, 4, 2, 16, 112, 96


class Norm(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.gain, self.eps = nn.Parameter(torch.ones(WIDTH)), eps

    def forward(self, x):
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.gain


class TurnedAttention(nn.Module):
    """The packed rows are (group, its queries with its key and its value, size)."""

    def __init__(self):
        super().__init__()
        self.wqkv = nn.Linear(WIDTH, (HEADS + 2 * GROUPS) * SIZE, bias=False)
        self.wo = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x, turns):
        batch, length, _ = x.shape
        packed = self.wqkv(x).view(batch, length, GROUPS, HEADS // GROUPS + 2, SIZE)
        q, k, v = packed[..., :-2, :], packed[..., -2:-1, :], packed[..., -1:, :]
        q, k = (torch.view_as_real(torch.view_as_complex(t.unflatten(-1, (-1, 2)).contiguous()) * turns).flatten(-2) for t in (q, k))
        k, v = k.expand_as(q), v.expand_as(q)
        q, k, v = (t.flatten(2, 3).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(batch, length, WIDTH))


class JointFeed(nn.Module):
    def __init__(self):
        super().__init__()
        self.w13 = nn.Linear(WIDTH, 2 * INNER, bias=False)
        self.w2 = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x):
        gate, up = self.w13(x).chunk(2, -1)
        return self.w2(F.silu(gate) * up)


class TurnedBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.feed = TurnedAttention(), JointFeed()
        self.attention_norm, self.feed_norm = Norm(), Norm()

    def forward(self, x, turns):
        x = x + self.attention(self.attention_norm(x), turns)
        return x + self.feed(self.feed_norm(x))


class ComplexLlama(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(TurnedBlock() for _ in range(3))
        self.norm, self.output = Norm(), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        x = self.words(tokens)
        rates = 10000.0 ** (-torch.arange(0, SIZE, 2).float() / SIZE)
        angles = torch.outer(torch.arange(tokens.shape[1]).float(), rates)
        turns = torch.polar(torch.ones_like(angles), angles)[:, None, None]
        for layer in self.layers:
            x = layer(x, turns)
        return self.output(self.norm(x))


def neighbours(rows):
    """Rows of heads whose halves are turned, in the order in which neighbours are."""
    return rows.unflatten(0, (-1, 2, SIZE // 2)).transpose(1, 2).flatten(0, 2)


def build_complex_llama(family, changes, attention):
    given = language_models.published("llama")
    state = {"words.weight": given["model.embed_tokens.weight"], "norm.gain": given["model.norm.weight"], "output.weight": given["lm_head.weight"]}
    for n in range(3):
        old, new = f"model.layers.{n}.", f"layers.{n}."
        q, k, v = (given[f"{old}self_attn.{w}_proj.weight"] for w in "qkv")
        parts = (neighbours(q).view(GROUPS, -1, SIZE, WIDTH), neighbours(k).view(GROUPS, 1, SIZE, WIDTH), v.view(GROUPS, 1, SIZE, WIDTH))
        state[new + "attention.wqkv.weight"] = torch.cat(parts, 1).flatten(0, 2)
        state[new + "attention.wo.weight"] = given[old + "self_attn.o_proj.weight"]
        state[new + "feed.w13.weight"] = torch.cat([given[old + "mlp.gate_proj.weight"], given[old + "mlp.up_proj.weight"]])
        state[new + "feed.w2.weight"] = given[old + "mlp.down_proj.weight"]
        state[new + "attention_norm.gain"] = given[old + "input_layernorm.weight"]
        state[new + "feed_norm.gain"] = given[old + "post_attention_layernorm.weight"]
    model = ComplexLlama()
    model.load_state_dict(state)
    return model


class EinsumBlock(nn.Module):
    """All of a layer in one module; `qkv` is (width, head, three, size)."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.qkv_bias = nn.Parameter(torch.empty(WIDTH, HEADS, 3, SIZE)), nn.Parameter(torch.empty(HEADS, 3, SIZE))
        self.out, self.out_bias = nn.Parameter(torch.empty(HEADS, SIZE, WIDTH)), nn.Parameter(torch.empty(WIDTH))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (torch.einsum("btd,dhcs->bthcs", self.norm1(x), self.qkv) + self.qkv_bias).unbind(3)
        scores = torch.einsum("bqhs,bkhs->bhqk", q, k) / math.sqrt(SIZE)
        unseen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(unseen, -1e9).softmax(-1)
        x = x + torch.einsum("bhqk,bkhs,hsd->bqd", weights, v, self.out) + self.out_bias
        inner = self.up(self.norm2(x))
        inner = 0.5 * inner * (1 + torch.tanh(math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)))
        return x + self.down(inner)


class EinsumGPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Parameter(torch.empty(WORDS, WIDTH)), nn.Parameter(torch.empty(64, WIDTH))
        self.blocks = nn.ModuleList(EinsumBlock() for _ in range(3))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens):
        x = self.words[tokens] + self.places[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return torch.einsum("btd,vd->btv", self.norm(x), self.words)


class SequenceFirstBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, HEADS)
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU("tanh"), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, mask):
        h = self.ln_1(x)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class SequenceFirstGPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, WIDTH)
        self.blocks = nn.ModuleList(SequenceFirstBlock() for _ in range(3))
        self.ln_f, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens):
        tokens = tokens.T
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[0])
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[0]))[:, None]
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.ln_f(x)).transpose(0, 1)


def build_gpt(family, changes, attention, sequence_first):
    given, state = language_models.published("gpt2"), {}
    words, places, norm = ("wte.weight", "wpe.weight", "ln_f") if sequence_first else ("words", "places", "norm")
    state[words], state[places] = given["transformer.wte.weight"], given["transformer.wpe.weight"]
    if sequence_first:
        state["head.weight"] = state[words]
    for kind in ("weight", "bias"):
        state[f"{norm}.{kind}"] = given[f"transformer.ln_f.{kind}"]
    for n in range(3):
        old, new = f"transformer.h.{n}.", f"blocks.{n}."
        qkv, bias, out = given[old + "attn.c_attn.weight"], given[old + "attn.c_attn.bias"], given[old + "attn.c_proj.weight"]
        up, down = ("mlp.0", "mlp.2") if sequence_first else ("up", "down")
        for theirs, ours in (("mlp.c_fc", up), ("mlp.c_proj", down)):
            state[f"{new}{ours}.weight"], state[f"{new}{ours}.bias"] = given[f"{old}{theirs}.weight"].T, given[f"{old}{theirs}.bias"]
        for number in "12":
            for kind in ("weight", "bias"):
                state[f"{new}{'ln_' if sequence_first else 'norm'}{number}.{kind}"] = given[f"{old}ln_{number}.{kind}"]
        if sequence_first:
            state[new + "attn.in_proj_weight"], state[new + "attn.in_proj_bias"] = qkv.T, bias
            state[new + "attn.out_proj.weight"], state[new + "attn.out_proj.bias"] = out.T, given[old + "attn.c_proj.bias"]
        else:
            state[new + "qkv"], state[new + "qkv_bias"] = (t.unflatten(-1, (3, HEADS, SIZE)).transpose(-3, -2) for t in (qkv, bias))
            state[new + "out"], state[new + "out_bias"] = out.unflatten(0, (HEADS, SIZE)), given[old + "attn.c_proj.bias"]
    model = SequenceFirstGPT() if sequence_first else EinsumGPT()
    model.load_state_dict(state)
    return model


class TorchBERT(nn.Module):
    """Without gradients torch runs each layer as one operation of its own."""

    def __init__(self):
        super().__init__()
        self.words, self.places, self.kinds = nn.Embedding(WORDS, WIDTH), nn.Embedding(32, WIDTH), nn.Embedding(2, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        layer = dict(d_model=WIDTH, nhead=HEADS, dim_feedforward=128, dropout=0.0, activation="gelu", layer_norm_eps=1e-12, batch_first=True)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(**layer) for _ in range(3))

    def forward(self, tokens, mask, kinds):
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]] + self.kinds(kinds)
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=mask == 0)
        return x


def build_torch_bert(family, changes, attention):
    import transformers

    parameters = transformers.BertModel(transformers.BertConfig(vocab_size=WORDS, **ported_encoders.BERT), add_pooling_layer=False).named_parameters()
    given = {name: ported_encoders.bert_weight("bert." + name, p.shape) for name, p in parameters}
    state = {
        f"{ours}.weight": given[f"embeddings.{name}_embeddings.weight"]
        for ours, name in (("words", "word"), ("places", "position"), ("kinds", "token_type"))
    }
    for kind in ("weight", "bias"):
        state[f"norm.{kind}"] = given[f"embeddings.LayerNorm.{kind}"]
        for n in range(3):
            old, new = f"encoder.layer.{n}.", f"layers.{n}."
            state[f"{new}self_attn.in_proj_{kind}"] = torch.cat([given[f"{old}attention.self.{w}.{kind}"] for w in ("query", "key", "value")])
            state[f"{new}self_attn.out_proj.{kind}"] = given[f"{old}attention.output.dense.{kind}"]
            state[f"{new}norm1.{kind}"] = given[f"{old}attention.output.LayerNorm.{kind}"]
            state[f"{new}linear1.{kind}"] = given[f"{old}intermediate.dense.{kind}"]
            state[f"{new}linear2.{kind}"] = given[f"{old}output.dense.{kind}"]
            state[f"{new}norm2.{kind}"] = given[f"{old}output.LayerNorm.{kind}"]
    model = TorchBERT()
    model.load_state_dict(state)
    model.scores_of = lambda batch: model(batch.tokens, batch.mask, batch.types)
    return model


BUILDERS = {
    ("llama", "complexllama"): build_complex_llama,
    ("gpt2", "einsumgpt"): lambda *given: build_gpt(*given, sequence_first=False),
    ("gpt2", "sequencefirst"): lambda *given: build_gpt(*given, sequence_first=True),
    ("bertencoder", "torchbert"): build_torch_bert,
}
