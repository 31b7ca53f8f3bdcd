"""Checkpoints of random decoders, conversions composed at random, and faults planted in one layer of them.

A decoder is a dictionary of parts by what they are, `3.q`, `3.norm1.bias`; a conversion gives the names and tensors that a
program stores. Sizes are small, and large enough that rows of different tensors cannot be mistaken for each other.
"""

import math

import torch


class Draw:
    """Choices that a seed repeats."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def one(self, *choices):
        return choices[int(torch.randint(len(choices), (1,), generator=self.generator))]

    def normal(self, *shape, scale=0.2):
        return torch.randn(*shape, generator=self.generator) * scale


def decoder(draw, layers=4):
    """(sizes, parts) of a decoder: grouped or plain attention, gated or plain MLP or experts, LayerNorm or RMSNorm."""
    head, heads = draw.one(8, 12, 16), draw.one(4, 6)
    size = {
        "layers": layers, "heads": heads, "kv": draw.one(heads, heads // 2), "head": head, "width": head * heads,
        "inner": draw.one(72, 96, 100), "vocabulary": draw.one(53, 101, 130), "experts": draw.one(0, 0, 3), "gated": draw.one(True, True, False),
        "biases": draw.one("none", "qkv", "all"), "norm": draw.one("layer", "rms"), "tied": draw.one(True, False), "zeros": draw.one(True, False, False),
    }  # fmt: skip
    width, kv, parts = size["width"], size["kv"] * head, {}
    parts["embedding"] = draw.normal(size["vocabulary"], width, scale=1.0)
    if not size["tied"]:
        parts["head"] = draw.normal(size["vocabulary"], width)
    parts["norm"] = 1 + draw.normal(width)
    for i in range(layers):
        parts |= {f"{i}.norm1": 1 + draw.normal(width, scale=0.1), f"{i}.norm2": 1 + draw.normal(width, scale=0.1)}
        if size["norm"] == "layer":
            parts |= {f"{i}.norm1.bias": draw.normal(width), f"{i}.norm2.bias": draw.normal(width)}
        for name, rows, columns in (("q", width, width), ("k", kv, width), ("v", kv, width), ("o", width, width)):
            parts[f"{i}.{name}"] = draw.normal(rows, columns)
            if size["biases"] == "all" or (size["biases"] == "qkv" and name != "o"):
                parts[f"{i}.{name}.bias"] = torch.zeros(rows) if size["zeros"] else draw.normal(rows)
        for e in range(size["experts"]) or [""]:
            at = f"{i}.{e}." if e != "" else f"{i}."
            for name, rows, columns in (("gate", size["inner"], width), ("up", size["inner"], width), ("down", width, size["inner"])):
                if name != "gate" or size["gated"]:
                    parts[at + name] = draw.normal(rows, columns)
        if size["experts"]:
            parts[f"{i}.router"] = draw.normal(size["experts"], width)
    return size, parts


def heads_of(tensor, heads):
    return tensor.reshape(heads, -1, *tensor.shape[1:])


def as_pairs(tensor, heads):
    """Rotary halves as interleaved pairs: of each head row i of the second half stands behind row i of the first."""
    half = tensor.shape[0] // heads // 2
    return tensor.reshape(heads, 2, half, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


def fused(size, tensors, way):
    """q, k and v in one: behind each other, or group by group (a group is a key with the queries that read it)."""
    if way == "behind":
        return torch.cat(tensors)
    groups = size["kv"]
    return torch.cat([torch.cat([heads_of(t, groups)[g] for t in tensors]) for g in range(groups)])


PLAIN = {"qkv": None, "gate_up": None, "turned": False, "pairs": False, "one_plus": False, "scaled": False, "folded": False,
         "padding": 0, "experts": "apart", "twice": False, "dtype": None, "names": "short"}  # fmt: skip


def conversion(draw, size):
    """What another program does to a checkpoint."""
    exact = {
        "qkv": draw.one(None, "behind", "groups"), "gate_up": draw.one(None, "behind"), "turned": draw.one(True, False), "pairs": draw.one(True, False),
        "padding": draw.one(0, 0, 3, 11), "experts": draw.one("apart", "stacked"), "twice": draw.one(True, False), "names": draw.one("short", "long", "flat"),
    }  # fmt: skip
    change = draw.one("none", "none", "one_plus", "scaled", "folded", "dtype")
    way = PLAIN | exact
    if change == "dtype":
        way["dtype"] = draw.one(torch.bfloat16, torch.float16)
    elif change != "none":
        way[change] = True
    if change == "folded" and (size["experts"] or size["norm"] == "layer" and size["biases"] == "none"):
        way["folded"] = False
    return way


NAMES = {
    "short": {"layer": "h.{}.", "q": "attn.q", "k": "attn.k", "v": "attn.v", "o": "attn.o", "qkv": "attn.c", "gate": "ffn.g", "up": "ffn.u", "down": "ffn.d",
              "gate_up": "ffn.gu", "norm1": "pre", "norm2": "post", "router": "ffn.r", "expert": "ffn.x.{}.", "embedding": "wte", "head": "out", "norm": "ln_f"},
    "long": {"layer": "model.layers.{}.", "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj", "qkv": "self_attn.qkv_proj",
             "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj", "gate_up": "mlp.gate_up_proj", "norm1": "input_layernorm", "norm2": "post_layernorm",
             "router": "mlp.router", "expert": "mlp.experts.{}.", "embedding": "model.embed_tokens", "head": "lm_head", "norm": "model.norm"},
    "flat": {"layer": "blocks.{}.", "q": "query", "k": "key", "v": "value", "o": "proj", "qkv": "in_proj", "gate": "w1", "up": "w3", "down": "w2", "gate_up": "w13",
             "norm1": "n1", "norm2": "n2", "router": "gate", "expert": "e.{}.", "embedding": "tok", "head": "head", "norm": "norm"},
}  # fmt: skip


def layer_parts(size, parts, i, way):
    """The layer's matrices and biases, with what a conversion does to numbers, before they are fused."""
    own = {name[len(f"{i}.") :]: tensor.clone() for name, tensor in parts.items() if name.startswith(f"{i}.")}
    readers = {"norm1": ("q", "k", "v"), "norm2": ("gate", "up")}
    if way["folded"]:
        for norm, names in readers.items():
            gain, bias = own.pop(norm), own.pop(norm + ".bias", None)
            for name in names:
                if name not in own:
                    continue
                if bias is not None:
                    own[name + ".bias"] = own.get(name + ".bias", 0) + own[name] @ bias
                own[name] = own[name] * gain
    if way["scaled"]:
        for name in ("q", "q.bias"):
            if name in own:
                own[name] = own[name] / math.sqrt(size["head"])
    if way["one_plus"]:
        for norm in readers:
            own[norm] = own[norm] - 1
    if way["pairs"]:
        for name, heads in (("q", size["heads"]), ("k", size["kv"]), ("q.bias", size["heads"]), ("k.bias", size["kv"])):
            if name in own:
                own[name] = as_pairs(own[name], heads)
    return own


def store_layer(size, own, i, way, names, out):
    at, kind = names["layer"].format(i), {"": ".weight", ".bias": ".bias"}
    turn = (lambda t: t.T) if way["turned"] else (lambda t: t)
    for suffix, ending in kind.items():
        three = [own.pop(n + suffix) for n in "qkv"] if way["qkv"] and "q" + suffix in own else None
        if three:
            out[at + names["qkv"] + ending] = turn(fused(size, three, way["qkv"])) if not suffix else fused(size, three, way["qkv"])
        two = [own.pop(n + suffix) for n in ("gate", "up")] if way["gate_up"] and "gate" + suffix in own and "up" + suffix in own else None
        if two:
            out[at + names["gate_up"] + ending] = turn(torch.cat(two)) if not suffix else torch.cat(two)
    if size["experts"] and way["experts"] == "stacked":
        for name in ("gate", "up", "down"):
            if f"0.{name}" in own:
                out[at + names["expert"].split("{")[0] + names[name].split(".")[-1]] = torch.stack(
                    [own.pop(f"{e}.{name}") for e in range(size["experts"])]
                )
    for name, tensor in own.items():
        words = name.split(".")
        expert = names["expert"].format(words.pop(0)) if words[0].isdigit() else ""
        ending = ".bias" if words[-1] == "bias" else ".weight"
        stem = names[words[0]].split(".")[-1] if expert else names[words[0]]
        out[at + expert + stem + ending] = turn(tensor) if tensor.ndim == 2 and not expert and words[0] != "router" else tensor


def store(size, parts, way, change_layer=None):
    """The tensors that a program stores. `change_layer(i, own, way)` plants a fault in a layer before it is fused, or gives another way."""
    names, out = NAMES[way["names"]], {}
    table = parts["embedding"]
    if way["padding"]:
        table = torch.cat([table, torch.zeros(way["padding"], table.shape[1])])
    out[names["embedding"] + ".weight"] = table
    if "head" in parts:
        rows = parts["head"]
        out[names["head"] + ".weight"] = torch.cat([rows, torch.zeros(way["padding"], rows.shape[1])]) if way["padding"] else rows
    elif way["twice"]:
        out[names["head"] + ".weight"] = table.clone()
    out[names["norm"] + ".weight"] = parts["norm"] - 1 if way["one_plus"] else parts["norm"]
    for i in range(size["layers"]):
        now = dict(way)
        if change_layer:
            now |= change_layer(i, None) or {}
        own = layer_parts(size, parts, i, now)
        if change_layer:
            change_layer(i, own)
        store_layer(size, own, i, now, names, out)
    return {k: (v.to(way["dtype"]) if way["dtype"] else v).contiguous().clone() for k, v in out.items()}


def exchanged(own, one, other):
    own[one], own[other] = own[other].clone(), own[one].clone()


def turned_for_rotation(size, own, way):
    heads, head = size["heads"], size["head"]
    q = own["q"]
    own["q"] = q.reshape(heads, head // 2, 2, -1).transpose(1, 2).reshape(q.shape) if way["pairs"] else as_pairs(q, heads)


def expert_doubled(size, own, way):
    for name in ("gate", "up", "down"):
        if f"1.{name}" in own:
            own[f"1.{name}"] = own[f"0.{name}"].clone()


def expert_lost(size, own, way):
    for name in ("gate", "up", "down"):
        own.pop(f"2.{name}", None)


def first_head_turned_round(size, own, way):
    own["v"][: size["head"]] = own["v"][: size["head"]].flip(0).clone()


def columns_of_a_head_turned_round(size, own, way):
    own["o"][:, : size["head"]] = own["o"][:, : size["head"]].flip(1).clone()


def one_number(size, own, way):
    own["1.down" if size["experts"] else "down"][3, 5] += 0.5


def has_biases(size, own, way):
    return "v.bias" in own and bool(own["v.bias"].any())


# What may be planted in a layer, and where it can be told.
FAULTS = {
    "gate and up exchanged": (lambda s, own, w: exchanged(own, "gate", "up"), lambda s, own, w: s["gated"] and not s["experts"]),
    "q and k exchanged": (lambda s, own, w: exchanged(own, "q", "k"), lambda s, own, w: s["kv"] == s["heads"]),
    "norms exchanged": (lambda s, own, w: exchanged(own, "norm1", "norm2"), lambda s, own, w: not w["folded"]),
    "a bias of zeros": (lambda s, own, w: own["v.bias"].zero_(), has_biases),
    "a scale in one layer": (lambda s, own, w: own["q"].mul_(0.25), lambda *_: True),
    "an odd scale in one layer": (lambda s, own, w: own["o"].mul_(0.9), lambda *_: True),
    "rows of a head": (first_head_turned_round, lambda *_: True),
    "columns of a head": (columns_of_a_head_turned_round, lambda *_: True),
    "the other rotation": (turned_for_rotation, lambda *_: True),
    "an expert twice": (expert_doubled, lambda s, own, w: s["experts"]),
    "an expert lost": (expert_lost, lambda s, own, w: s["experts"] and w["experts"] == "apart"),
    "one number": (one_number, lambda *_: True),
}


def pair_of(seed, fault=None):
    """(checkpoint, other, layer): two programs' tensors of one decoder, a fault planted in a layer of the first or the second; None: no such fault there."""
    draw = Draw(seed)
    size, parts = decoder(draw)
    way = conversion(draw, size)
    plain = PLAIN | {"names": draw.one("short", "long", "flat"), "turned": draw.one(True, False), "qkv": draw.one(None, "behind")}
    layer, first, planted = draw.one(*range(size["layers"])), draw.one(True, False), []

    def plant(i, own):
        if own is not None and i == layer and FAULTS[fault][1](size, own, way):
            FAULTS[fault][0](size, own, way)
            planted.append(i)

    one, other = store(size, parts, way, plant if fault else None), store(size, parts, plain)
    if fault and not planted:
        return None
    return (one, other, layer) if first else (other, one, layer)
