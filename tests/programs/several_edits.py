"""One Llama in two structures, with several edits at once: transformers' own modules, and a decoder that shares neither names, layouts nor ops.

python several_edits.py FOLDER [--train] [--half] NAME...

A NAME is a structure and its edits, "llama+eps.1+act.0": each is recorded as FOLDER/NAME.lb. An edit is a word and the layer that has it.
"""

import argparse
import math
import pathlib
import sys

import torch
from torch import nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "capture"))
import lastbit.torch  # noqa: E402

WIDTH, LAYERS, HEADS, INNER, WORDS, BOUND = 32, 3, 2, 48, 64, 0.02
SIZE = WIDTH // HEADS


class Edits:
    """Of one layer. `query` and `key` cancel, and so do `raised` and `lowered`, between which lie a product with a weight and a sum. `shift` adds one number to all scores of a row, which is
    nothing. Of `low` and `least` either alone is nothing: the other one keeps the bound."""

    def __init__(self, edits, layer):
        self.words = {edit.split(".")[0] for edit in edits if edit.split(".")[1] == str(layer)}

    def __contains__(self, word):
        return word in self.words

    def eps(self):
        return 1e-2 if "eps" in self else 1e-6

    def query(self, q):
        return q * 2.0 if "query" in self else q

    def key(self, k):
        return k * 0.5 if "key" in self else k

    def scaling(self):
        return SIZE**-0.5 * (1.5 if "scale" in self else 1.0)

    def scores(self, scores):
        return scores + 0.75 if "shift" in self else scores

    def ahead(self):
        return 2 if "mask" in self else 1

    def activated(self, x):
        return F.gelu(x) if "act" in self else F.silu(x)

    def raised(self, y):
        return y + 0.1 if "raised" in self else y

    def lowered(self, x, product):
        return x - product(torch.full_like(x, 0.1)) if "lowered" in self else x

    def bounded(self, x):
        x = x if "low" in self else torch.clamp(x, -BOUND, BOUND)
        x = x if "least" in self else F.hardtanh(x, -BOUND, BOUND)
        return x * 1.25 if "gain" in self else x

    def added(self, x, y):
        return y if "residual" in self else x + y


# ---- transformers' structure


class LlamaMlp(modeling_llama.LlamaMLP):
    def forward(self, x):
        return self.edits.bounded(self.down_proj(self.edits.activated(self.gate_proj(x)) * self.up_proj(x)))


class LlamaAttention(modeling_llama.LlamaAttention):
    def forward(self, hidden_states, position_embeddings, **kwargs):
        edits = self.edits
        q, k, v = (p(hidden_states).unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = modeling_llama.apply_rotary_pos_emb(edits.query(q), edits.key(k), *position_embeddings)
        scores = edits.scores(q @ k.transpose(2, 3) * edits.scaling())
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(edits.ahead())
        y = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1) @ v
        return self.o_proj(edits.raised(y.transpose(1, 2).flatten(2))), None


class LlamaLayer(modeling_llama.LlamaDecoderLayer):
    def forward(self, hidden_states, position_embeddings=None, **kwargs):
        x = hidden_states + self.self_attn(self.input_layernorm(hidden_states), position_embeddings)[0]
        x = self.edits.lowered(x, self.self_attn.o_proj)
        return self.edits.added(x, self.mlp(self.post_attention_layernorm(x)))


def llama(edits):
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
            num_key_value_heads=HEADS, max_position_embeddings=16, tie_word_embeddings=False, use_cache=False,
        )
    )  # fmt: skip
    for name, parameter in model.named_parameters():
        nn.init.uniform_(parameter, 0.5, 1.5) if "norm" in name else nn.init.normal_(parameter, std=0.2)
    for i, layer in enumerate(model.model.layers):
        layer.__class__, layer.self_attn.__class__, layer.mlp.__class__ = LlamaLayer, LlamaAttention, LlamaMlp
        layer.edits = layer.self_attn.edits = layer.mlp.edits = Edits(edits, i)
        layer.post_attention_layernorm.variance_epsilon = layer.edits.eps()
        if "weight" in layer.edits:
            layer.self_attn.o_proj.weight.data[3] *= 1.5
    return model


# ---- another structure


class Scale(nn.Module):
    def __init__(self, weight, eps):
        super().__init__()
        self.gain, self.eps = nn.Parameter(weight.detach().clone()), eps

    def forward(self, x):
        return F.rms_norm(x, (WIDTH,), self.gain, self.eps)


def linear(*modules):
    """The modules' products in one."""
    weight = torch.cat([m.weight.detach() for m in modules])
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    made.weight = nn.Parameter(weight.clone())
    return made


class Mix(nn.Module):
    def __init__(self, attn, edits):
        super().__init__()
        self.edits, self.joint, self.out = edits, linear(attn.q_proj, attn.k_proj, attn.v_proj), linear(attn.o_proj)

    @staticmethod
    def turned(t, cos, sin):
        a, b = t.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def forward(self, x, cos, sin):
        edits, length = self.edits, x.shape[1]
        q, k, v = self.joint(x).view(*x.shape[:2], 3, HEADS, SIZE).permute(2, 0, 3, 1, 4)
        q, k = self.turned(edits.query(q), cos, sin), self.turned(edits.key(k), cos, sin)
        scores = edits.scores(torch.einsum("bhqd,bhkd->bhqk", q, k) * edits.scaling())
        mask = torch.full((length, length), -math.inf).triu(edits.ahead())
        return self.out(edits.raised(((scores + mask).softmax(-1).to(v.dtype) @ v).transpose(1, 2).reshape(x.shape)))


class Feed(nn.Module):
    def __init__(self, mlp, edits):
        super().__init__()
        self.edits, self.up, self.down = edits, linear(mlp.gate_proj, mlp.up_proj), linear(mlp.down_proj)

    def forward(self, x):
        gate, value = self.up(x).chunk(2, -1)
        return self.edits.bounded(self.down(self.edits.activated(gate) * value))


class Block(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.edits = layer.edits
        self.before, self.between = Scale(layer.input_layernorm.weight, 1e-6), Scale(layer.post_attention_layernorm.weight, self.edits.eps())
        self.mix, self.feed = Mix(layer.self_attn, self.edits), Feed(layer.mlp, self.edits)

    def forward(self, x, cos, sin):
        x = self.edits.lowered(x + self.mix(self.before(x), cos, sin), self.mix.out)
        return self.edits.added(x, self.feed(self.between(x)))


class Decoder(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.words = nn.Embedding.from_pretrained(model.model.embed_tokens.weight.detach().clone(), freeze=False)
        self.blocks = nn.ModuleList(Block(layer) for layer in model.model.layers)
        self.last, self.head = Scale(model.model.norm.weight, 1e-6), linear(model.lm_head)
        angles = torch.outer(torch.arange(16).float(), 1 / 10000 ** (torch.arange(0, SIZE, 2).float() / SIZE))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, ids):
        x = self.words(ids)
        for block in self.blocks:
            x = block(x, self.cos[: ids.shape[1]], self.sin[: ids.shape[1]])
        return self.head(self.last(x))


def decoder(edits):
    return Decoder(llama(edits))


# ---- a run


def record(out, name, train, dtype):
    structure, *edits = name.split("+")
    model = {"llama": llama, "decoder": decoder}[structure]([edit for edit in edits if "." in edit]).to(dtype)
    ids = torch.randint(0, WORDS, (2, 9), generator=torch.Generator().manual_seed(1))
    rates = dict(lr=2e-3 if "lr" in edits else 1e-3, weight_decay=0.0 if "decay" in edits else 0.1)
    optimizer = torch.optim.AdamW(model.parameters(), **rates)
    with torch.set_grad_enabled(train), lastbit.torch.capture(out, level="ops"):
        for _ in range(2 if train else 1):
            logits = model(ids[:, :-1])
            logits = logits if structure == "decoder" else logits.logits
            if train:
                F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--half", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for name in asked.names:
        record(asked.folder / f"{name}.lb", name, asked.train, torch.bfloat16 if asked.half else torch.float32)
