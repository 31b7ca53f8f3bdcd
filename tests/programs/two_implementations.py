"""One Llama twice: transformers' own, and a decoder written from the papers, with other names, layouts and ops. Same weights, same tokens.

python two_implementations.py transformers|decoder [--train | --decode] [--fault NAME]...
"""

import argparse
import math

import torch
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

WIDTH, LAYERS, HEADS, GROUPS, INNER, WORDS, LONGEST = 64, 3, 4, 2, 96, 100, 64
SIZE = WIDTH // HEADS

parser = argparse.ArgumentParser()
parser.add_argument("side", choices=["transformers", "decoder"])
parser.add_argument("--train", action="store_true")
parser.add_argument("--decode", action="store_true", help="transformers reads the last four tokens one by one, with a cache")
parser.add_argument("--kept", choices=["first", "before"], help="the table is no buffer: the first step makes it, or it was made before")
parser.add_argument("--fault", action="append", default=[])
options = parser.parse_args()
faults = options.fault


class Scale(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.gain, self.eps = nn.Parameter(torch.ones(WIDTH)), eps

    def forward(self, x):
        return functional.rms_norm(x, (WIDTH,), self.gain, self.eps)


class Attention(nn.Module):
    """Queries, keys and values come out of one product; the mask is added; scores are divided."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.joint = nn.Linear(WIDTH, WIDTH + 2 * GROUPS * SIZE, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        q, k, v = (t.view(batch, length, -1, SIZE).transpose(1, 2) for t in self.joint(x).split([WIDTH, GROUPS * SIZE, GROUPS * SIZE], -1))
        q, k = self.turned(q, cos, sin), self.turned(k, cos, sin)
        k, v = (t.repeat_interleave(HEADS // GROUPS, 1) for t in (k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(SIZE)
        if "scale" in faults and self.layer == 1:
            scores = scores * 1.1
        mask = torch.full((length, length), -math.inf).triu(2 if "mask" in faults and self.layer == 1 else 1)
        return self.out(((scores + mask).softmax(-1) @ v).transpose(1, 2).reshape(batch, length, WIDTH))

    @staticmethod
    def turned(t, cos, sin):
        a, b = t.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Feed(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * INNER, bias=False), nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x):
        gate, value = self.up(x).chunk(2, -1)
        return self.down((functional.gelu(gate) if "act" in faults else functional.silu(gate)) * value)


class Block(nn.Module):
    def __init__(self, layer, eps):
        super().__init__()
        self.layer, self.before, self.between = layer, Scale(eps), Scale(1e-2 if "eps" in faults and layer == 1 else eps)
        self.mix, self.feed = Attention(layer), Feed()

    def forward(self, x, cos, sin):
        mixed = self.mix(self.before(x), cos, sin)
        x = x + (mixed * 0.5 if "residual" in faults and self.layer == 1 else mixed)
        return x + self.feed(self.between(x))


class Decoder(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block(i, eps) for i in range(LAYERS))
        self.last, self.head = Scale(eps), nn.Linear(WIDTH, WORDS, bias=False)
        self.kept = self.table() if options.kept == "before" else None
        if not options.kept:
            cos, sin = self.table()
            self.register_buffer("cos", cos, persistent=False)
            self.register_buffer("sin", sin, persistent=False)

    @staticmethod
    def table():
        base = 20000.0 if "rope" in faults else 10000.0
        angles = torch.outer(torch.arange(LONGEST).float(), 1 / base ** (torch.arange(0, SIZE, 2).float() / SIZE))
        return angles.cos(), angles.sin()

    def turns(self):
        if not options.kept:
            return self.cos, self.sin
        if self.kept is None:
            self.kept = self.table()
        cos, sin = self.kept
        if "worn" in faults:  # the next step reads other numbers
            self.kept = cos * 1.01, sin
        return cos, sin

    def forward(self, ids):
        x = self.words(ids)
        cos, sin = (t[: ids.shape[1]] for t in self.turns())
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.last(x))


def port(state, decoder):
    with torch.no_grad():
        decoder.words.weight.copy_(state["model.embed_tokens.weight"])
        decoder.last.gain.copy_(state["model.norm.weight"])
        decoder.head.weight.copy_(state["lm_head.weight"])
        for i, block in enumerate(decoder.blocks):
            of = {name.removeprefix(f"model.layers.{i}."): t for name, t in state.items() if name.startswith(f"model.layers.{i}.")}
            block.before.gain.copy_(of["input_layernorm.weight"])
            block.between.gain.copy_(of["post_attention_layernorm.weight"])
            block.mix.joint.weight.copy_(torch.cat([of[f"self_attn.{p}_proj.weight"] for p in "qkv"]))
            block.mix.out.weight.copy_(of["self_attn.o_proj.weight"])
            parts = [of["mlp.gate_proj.weight"], of["mlp.up_proj.weight"]]
            block.feed.up.weight.copy_(torch.cat(parts[::-1] if "swapped" in faults and i == 1 else parts))
            block.feed.down.weight.copy_(of["mlp.down_proj.weight"])
            if "weight" in faults and i == 1:
                block.mix.out.weight[3] *= 1.5
    return decoder


torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=WORDS,
    hidden_size=WIDTH,
    intermediate_size=INNER,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    num_key_value_heads=GROUPS,
    max_position_embeddings=LONGEST,
    tie_word_embeddings=False,
)
model = LlamaForCausalLM(config)
for name, parameter in model.named_parameters():
    if "norm" in name:
        nn.init.uniform_(parameter, 0.5, 1.5)
if options.side == "decoder":
    model = port(model.state_dict(), Decoder(config.rms_norm_eps))
ids = torch.randint(0, WORDS, (2, 12), generator=torch.Generator().manual_seed(1))


def decode():
    cache = None
    for tokens in ids.split([8, 1, 1, 1, 1], 1):
        cache = model(input_ids=tokens, past_key_values=cache, use_cache=True).past_key_values


def logits():
    return model(ids) if options.side == "decoder" else model(input_ids=ids, use_cache=False).logits


if options.train:
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3 if "lr" in faults else 1e-3, weight_decay=0.0 if "decay" in faults else 0.1)
    for step in range(2):
        scores = logits()[:, :-1]
        if step and "drop" in faults:
            scores = functional.dropout(scores)
        functional.cross_entropy(scores.reshape(-1, WORDS), ids[:, 1:].reshape(-1)).backward()
        optimizer.step()
        optimizer.zero_grad()
else:
    with torch.no_grad():
        decode() if options.decode else logits()
