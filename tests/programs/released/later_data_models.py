"""Models of graphs, tables, sound and plain features: torch_geometric, rtdl, torchaudio and soft-moe-pytorch beside the same written again, and
recommenders (DLRM) and splines (KAN) as two people write them."""

import math

import other_language_models
import torch
import torch.nn.functional as F
from later_vision_models import copied
from other_vision_models import filled
from torch import nn

FAMILIES = ("gcn", "gat", "conformer", "tables", "softmoe", "clicks", "splines")
NODES, EDGES, WIDTH, HEADS, SIZE = 14, 40, 32, 4, 8
CARDINALITIES = (5, 9, 7)
BAG_SIZES = (11, 6, 17)


def graph(drawn):
    """A graph without a node that stands beside itself, in which no edge is listed twice."""
    pairs = torch.randperm(NODES * (NODES - 1), generator=drawn)[:EDGES]
    source, target = pairs // (NODES - 1), pairs % (NODES - 1)
    return torch.stack([source, target + (target >= source)])


def drawn_batch(family, drawn, dtype):
    if family in ("gcn", "gat"):
        return (torch.randn(NODES, 12, generator=drawn).to(dtype), graph(drawn)), torch.randint(0, 6, (NODES,), generator=drawn)
    if family == "conformer":
        return (torch.randn(2, 11, WIDTH, generator=drawn).to(dtype), torch.tensor([11, 8])), torch.randint(0, WIDTH, (22,), generator=drawn)
    if family == "tables":
        categories = torch.stack([torch.randint(0, n, (6,), generator=drawn) for n in CARDINALITIES], 1)
        return (torch.randn(6, 4, generator=drawn).to(dtype), categories), torch.randint(0, 5, (6,), generator=drawn)
    if family == "clicks":
        words = [torch.randint(0, n, (8, 3), generator=drawn) for n in BAG_SIZES]
        return (torch.randn(8, 7, generator=drawn).to(dtype), words), torch.randint(0, 2, (8,), generator=drawn)
    if family == "splines":
        return (torch.rand(9, 8, generator=drawn) * 1.8 - 0.9).to(dtype), torch.randint(0, 6, (9,), generator=drawn)
    return torch.randn(2, 10, WIDTH, generator=drawn).to(dtype), torch.randint(0, WIDTH, (20,), generator=drawn)


class LibraryGraph(nn.Module):
    """Three layers of a library's convolution."""

    def __init__(self, family):
        super().__init__()
        import torch_geometric.nn as source

        if family == "gcn":
            self.convs = nn.ModuleList(source.GCNConv(a, b) for a, b in ((12, WIDTH), (WIDTH, WIDTH), (WIDTH, 6)))
        else:
            self.convs = nn.ModuleList(
                source.GATConv(a, SIZE if b else 6, heads=HEADS, concat=b) for a, b in ((12, True), (WIDTH, True), (WIDTH, False))
            )

    def forward(self, x, edges):
        for conv in self.convs[:-1]:
            x = conv(x, edges).relu()
        return self.convs[-1](x, edges)

    def scores_of(self, batch):
        return self(*batch)


def adjacency(edges, count, dtype):
    """Rows are targets; every node stands beside itself."""
    beside = torch.zeros(count, count, dtype=dtype)
    beside[edges[1], edges[0]] = 1
    return beside + torch.eye(count, dtype=dtype)


class DenseConvolution(nn.Module):
    def __init__(self, given, out):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(given, out)), nn.Parameter(torch.zeros(out))

    def forward(self, x, beside):
        root = beside.sum(1).sqrt()
        return (beside @ ((x @ self.weight) / root[:, None])) / root[:, None] + self.bias


class DenseAttention(nn.Module):
    """Scores of all pairs of nodes, those without an edge at minus infinity."""

    def __init__(self, given, size, joined):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(HEADS, given, size)), nn.Parameter(torch.zeros(HEADS * size if joined else size))
        self.left, self.right = nn.Parameter(torch.zeros(HEADS, size)), nn.Parameter(torch.zeros(HEADS, size))
        self.joined = joined

    def forward(self, x, beside):
        h = torch.einsum("nd,hds->hns", x, self.weight)
        pairs = (h @ self.right[..., None]) + (h @ self.left[..., None]).transpose(1, 2)
        pairs = torch.where(pairs > 0, pairs, 0.2 * pairs).masked_fill(beside == 0, -math.inf)
        h = torch.softmax(pairs, -1) @ h
        return (h.transpose(0, 1).flatten(1) if self.joined else h.mean(0)) + self.bias


class DenseGraph(nn.Module):
    def __init__(self, family):
        super().__init__()
        if family == "gcn":
            self.layers = nn.ModuleList(DenseConvolution(a, b) for a, b in ((12, WIDTH), (WIDTH, WIDTH), (WIDTH, 6)))
        else:
            self.layers = nn.ModuleList(DenseAttention(*given) for given in ((12, SIZE, True), (WIDTH, SIZE, True), (WIDTH, 6, False)))

    def forward(self, x, edges):
        beside = adjacency(edges, x.shape[0], x.dtype)
        for number, layer in enumerate(self.layers):
            x = layer(x if number == 0 else F.relu(x), beside)
        return x

    def scores_of(self, batch):
        return self(*batch)


def build_dense_graph(family, changes, attention):
    given, state = dict(filled(LibraryGraph(family)).named_parameters()), {}
    for n in range(3):
        old, new = f"convs.{n}.", f"layers.{n}."
        weight = given[old + "lin.weight"]
        state[new + "bias"] = given[old + "bias"]
        if family == "gcn":
            state[new + "weight"] = weight.T
        else:
            state[new + "weight"] = weight.unflatten(0, (HEADS, -1)).transpose(1, 2)
            state[new + "left"], state[new + "right"] = given[old + "att_src"], given[old + "att_dst"]
    return copied(DenseGraph(family), state)


class ListGraph(nn.Module):
    """Messages along a list of edges with index_add_, the degree by bincount; loops are a term of their own."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in ((12, WIDTH), (WIDTH, WIDTH), (WIDTH, 6)))

    def forward(self, x, edges):
        source, target = edges
        degree = torch.bincount(target, minlength=x.shape[0]).to(x.dtype) + 1
        share = degree.rsqrt()
        for number, layer in enumerate(self.layers):
            h = x @ layer.weight.t()
            sent = h[source] * (share[source] * share[target]).unsqueeze(1)
            x = torch.zeros_like(h).index_add_(0, target, sent) + h / degree.unsqueeze(1) + layer.bias
            x = torch.clamp(x, min=0) if number < 2 else x
        return x

    def scores_of(self, batch):
        return self(*batch)


def build_list_graph(family, changes, attention):
    given = dict(filled(LibraryGraph(family)).named_parameters())
    state = {f"layers.{n}.{kind}": given[f"convs.{n}.{name}"] for n in range(3) for kind, name in (("weight", "lin.weight"), ("bias", "bias"))}
    return copied(ListGraph(), state)


def audio_conformer():
    other_language_models.without_extension("torchaudio", "torchaudio.models")
    from torchaudio.models.conformer import Conformer

    return filled(Conformer(input_dim=WIDTH, num_heads=HEADS, ffn_dim=2 * WIDTH, num_layers=3, depthwise_conv_kernel_size=3, use_group_norm=True))


def build_audio_conformer(family, changes, attention):
    model = audio_conformer()
    model.scores_of = lambda batch: model(*batch)[0]
    return model


class PlainConformerBlock(nn.Module):
    """Batch first; the convolution over time is a sum of three shifted products."""

    def __init__(self):
        super().__init__()
        self.feed1, self.feed2 = (nn.ModuleList([nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)]) for _ in "12")
        self.attention_norm, self.q, self.k, self.v, self.o = nn.LayerNorm(WIDTH), *(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.mix_norm, self.widen, self.narrow = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.kernel, self.offset = nn.Parameter(torch.zeros(3, WIDTH)), nn.Parameter(torch.zeros(WIDTH))
        self.group, self.norm = nn.GroupNorm(1, WIDTH), nn.LayerNorm(WIDTH)

    @staticmethod
    def feed(x, parts):
        h = parts[1](parts[0](x))
        return x + parts[2](F.silu(h)) / 2

    def attend(self, x, mask):
        h = self.attention_norm(x)
        q, k, v = (part(h).view(*h.shape[:2], HEADS, SIZE).transpose(1, 2) for part in (self.q, self.k, self.v))
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(SIZE)
        weights = torch.softmax(scores.masked_fill(mask[:, None, None], torch.finfo(x.dtype).min), -1)
        return x + self.o(torch.matmul(weights, v).transpose(1, 2).reshape(h.shape))

    def mix(self, x):
        value, gate = self.widen(self.mix_norm(x)).chunk(2, -1)
        h = F.pad(value * torch.sigmoid(gate), (0, 0, 1, 1))
        h = h[:, :-2] * self.kernel[0] + h[:, 1:-1] * self.kernel[1] + h[:, 2:] * self.kernel[2] + self.offset
        h = self.group(h.transpose(1, 2)).transpose(1, 2)
        return x + self.narrow(F.silu(h))

    def forward(self, x, mask):
        return self.norm(self.feed(self.mix(self.attend(self.feed(x, self.feed1), mask)), self.feed2))


class PlainConformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(PlainConformerBlock() for _ in range(3))

    def forward(self, batch):
        x, lengths = batch
        mask = torch.arange(x.shape[1])[None] >= lengths[:, None]
        for block in self.blocks:
            x = block(x, mask)
        return x


def build_plain_conformer(family, changes, attention):
    given, state = dict(audio_conformer().named_parameters()), {}
    names = {"norm": "final_layer_norm", "attention_norm": "self_attn_layer_norm", "o": "self_attn.out_proj", "mix_norm": "conv_module.layer_norm"}
    names |= {"widen": "conv_module.sequential.0", "group": "conv_module.sequential.3", "narrow": "conv_module.sequential.5"}
    names |= {f"feed{k}.{ours}": f"ffn{k}.sequential.{theirs}" for k in "12" for ours, theirs in ((0, 0), (1, 1), (2, 4))}
    for n in range(3):
        old, new = f"conformer_layers.{n}.", f"blocks.{n}."
        for kind in ("weight", "bias"):
            state |= {f"{new}{ours}.{kind}": given[f"{old}{theirs}.{kind}"] for ours, theirs in names.items()}
            state |= {f"{new}{w}.{kind}": part for w, part in zip("qkv", given[f"{old}self_attn.in_proj_{kind}"].chunk(3))}
        state[new + "kernel"] = given[old + "conv_module.sequential.2.weight"].permute(2, 0, 1)
        state[new + "offset"] = given[old + "conv_module.sequential.2.bias"]
    return copied(PlainConformer(), state)


def library_tables():
    from rtdl_revisiting_models import FTTransformer

    own = dict(n_blocks=3, d_block=WIDTH, attention_n_heads=HEADS, attention_dropout=0.0, ffn_d_hidden_multiplier=2.0, ffn_dropout=0.0)
    return filled(FTTransformer(n_cont_features=4, cat_cardinalities=list(CARDINALITIES), d_out=5, **own, residual_dropout=0.0))


def build_library_tables(family, changes, attention):
    model = library_tables()
    model.scores_of = lambda batch: model(*batch)
    return model


class TableBlock(nn.Module):
    def __init__(self, first):
        super().__init__()
        self.norm1, self.norm2 = nn.Identity() if first else nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.gate, self.value, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, SIZE)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(F.relu(self.gate(h)) * self.value(h))


class PlainTables(nn.Module):
    """All categories in one table with offsets; every block over all features."""

    def __init__(self):
        super().__init__()
        self.token, self.slope, self.level = (nn.Parameter(torch.zeros(n, WIDTH)) for n in (1, 4, 7))
        self.table = nn.Embedding(sum(CARDINALITIES), WIDTH)
        self.register_buffer("offsets", torch.tensor([0, *CARDINALITIES[:-1]]).cumsum(0))
        self.blocks = nn.ModuleList(TableBlock(n == 0) for n in range(3))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, batch):
        numbers, categories = batch
        features = torch.cat([numbers.unsqueeze(2) * self.slope, self.table(categories + self.offsets)], 1) + self.level
        x = torch.cat([self.token.expand(len(numbers), 1, WIDTH), features], 1)
        for block in self.blocks:
            x = block(x)
        return self.head(F.relu(self.norm(x[:, 0])))


def build_plain_tables(family, changes, attention):
    given = dict(library_tables().named_parameters())
    state = {"token": given["cls_embedding.weight"], "slope": given["cont_embeddings.weight"]}
    state["level"] = torch.cat([given["cont_embeddings.bias"], given["cat_embeddings.bias"]])
    state["table.weight"] = torch.cat([given[f"cat_embeddings.embeddings.{k}.weight"] for k in range(3)])
    for kind in ("weight", "bias"):
        state[f"norm.{kind}"], state[f"head.{kind}"] = given[f"backbone.output.normalization.{kind}"], given[f"backbone.output.linear.{kind}"]
        for n in range(3):
            old, new = f"backbone.blocks.{n}.", f"blocks.{n}."
            state[f"{new}qkv.{kind}"] = torch.cat([given[f"{old}attention.W_{w}.{kind}"] for w in "qkv"])
            state[f"{new}out.{kind}"] = given[f"{old}attention.W_out.{kind}"]
            state[f"{new}value.{kind}"], state[f"{new}gate.{kind}"] = given[f"{old}ffn.linear1.{kind}"].chunk(2)
            state[f"{new}down.{kind}"], state[f"{new}norm2.{kind}"] = given[f"{old}ffn.linear2.{kind}"], given[f"{old}ffn_normalization.{kind}"]
            if n:
                state[f"{new}norm1.{kind}"] = given[f"{old}attention_normalization.{kind}"]
    return copied(PlainTables(), state)


class SoftStack(nn.Module):
    """Three layers, each added to what it reads."""

    def __init__(self, layers):
        super().__init__()
        self.layers, self.norm = nn.ModuleList(layers), nn.LayerNorm(WIDTH)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return self.norm(x)


def library_softmoe():
    from soft_moe_pytorch.soft_moe import SoftMoE

    return filled(SoftStack(SoftMoE(dim=WIDTH, num_slots=2, num_experts=3, expert_mult=2, offload_unused_experts_to_cpu=False) for _ in range(3)))


class PlainSoft(nn.Module):
    """Experts stacked in one tensor; slots and experts are one axis until the experts run."""

    def __init__(self):
        super().__init__()
        self.gain, self.slot_gain, self.slots = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(6, WIDTH))
        self.up, self.up_bias = nn.Parameter(torch.zeros(3, WIDTH, 2 * WIDTH)), nn.Parameter(torch.zeros(3, 1, 2 * WIDTH))
        self.down, self.down_bias = nn.Parameter(torch.zeros(3, 2 * WIDTH, WIDTH)), nn.Parameter(torch.zeros(3, 1, WIDTH))

    def forward(self, x):
        x = self.gain * x / x.square().mean(-1, keepdim=True).sqrt()
        slots = self.slot_gain * self.slots / self.slots.square().mean(-1, keepdim=True).sqrt()
        scores = x @ slots.T
        mixed = scores.softmax(1).transpose(1, 2) @ x
        by_expert = mixed.unflatten(1, (3, 2)).transpose(0, 1).flatten(1, 2)
        h = torch.baddbmm(self.down_bias, F.gelu(torch.baddbmm(self.up_bias, by_expert, self.up)), self.down)
        return scores.softmax(-1) @ h.unflatten(1, (-1, 2)).transpose(0, 1).flatten(1, 2)


def build_plain_softmoe(family, changes, attention):
    given, state = dict(library_softmoe().named_parameters()), {}
    for kind in ("weight", "bias"):
        state[f"norm.{kind}"] = given[f"norm.{kind}"]
    for n in range(3):
        name = f"layers.{n}."
        experts = {k: [given[f"{name}experts.experts.{e}.{k}"] for e in range(3)] for k in ("0.weight", "0.bias", "3.weight", "3.bias")}
        state |= {
            name + "gain": given[name + "norm.gamma"],
            name + "slot_gain": given[name + "slot_norm.gamma"],
            name + "slots": given[name + "slot_embeds"],
        }
        state |= {name + ours: torch.stack([w.T for w in experts[k]]) for ours, k in (("up", "0.weight"), ("down", "3.weight"))}
        state |= {name + ours: torch.stack(experts[k]) for ours, k in (("up_bias", "0.bias"), ("down_bias", "3.bias"))}
    return copied(SoftStack(PlainSoft() for _ in range(3)), state)


class BagRecommender(nn.Module):
    """As the first program of the paper: bags of words with offsets, the products of all pairs below the diagonal, two towers."""

    def __init__(self):
        super().__init__()
        self.emb_l = nn.ModuleList(nn.EmbeddingBag(n, 16, mode="sum") for n in BAG_SIZES)
        self.bot_l = nn.Sequential(nn.Linear(7, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU())
        self.top_l = nn.Sequential(nn.Linear(22, 20), nn.ReLU(), nn.Linear(20, 2))

    def interact(self, x, ly):
        batch, width = x.shape
        T = torch.cat([x] + ly, dim=1).view((batch, -1, width))
        Z = torch.bmm(T, torch.transpose(T, 1, 2))
        ni, nj = Z.shape[1], Z.shape[2]
        li = torch.tensor([i for i in range(ni) for j in range(i)])
        lj = torch.tensor([j for i in range(nj) for j in range(i)])
        return torch.cat([x] + [Z[:, li, lj]], dim=1)

    def forward(self, batch):
        dense, words = batch
        x = self.bot_l(dense)
        ly = [bag(w.flatten(), torch.arange(0, w.numel(), w.shape[1])) for bag, w in zip(self.emb_l, words)]
        return self.top_l(self.interact(x, ly))


class PairRecommender(nn.Module):
    """One table for all features, sums over what was looked up, and a product for each pair."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(sum(BAG_SIZES), 16))
        self.dense1, self.dense2, self.over1, self.over2 = nn.Linear(7, 24), nn.Linear(24, 16), nn.Linear(22, 20), nn.Linear(20, 2)

    def lookup(self, words):
        starts = [sum(BAG_SIZES[:k]) for k in range(3)]
        return [F.embedding(w + start, self.table).sum(1) for w, start in zip(words, starts)]

    def pairs(self, x, features):
        rows = [x, *features]
        return [(rows[i] * rows[j]).sum(1, keepdim=True) for i in range(4) for j in range(i)]

    def forward(self, batch):
        dense, words = batch
        x = F.relu(self.dense2(F.relu(self.dense1(dense))))
        h = torch.cat([x, *self.pairs(x, self.lookup(words))], 1)
        return self.over2(F.relu(self.over1(h)))


def build_pair_recommender(family, changes, attention):
    given = dict(filled(BagRecommender()).named_parameters())
    state = {"table": torch.cat([given[f"emb_l.{k}.weight"] for k in range(3)])}
    for kind in ("weight", "bias"):
        for ours, theirs in (("dense1", "bot_l.0"), ("dense2", "bot_l.2"), ("over1", "top_l.0"), ("over2", "top_l.2")):
            state[f"{ours}.{kind}"] = given[f"{theirs}.{kind}"]
    return copied(PairRecommender(), state)


def loosely(model, changes):
    """With `loose` the outermost module is never called itself: its parts are, one after another."""
    if changes.get("loose"):
        model.scores_of = model.forward
    return model


GRID, ORDER = 5, 3


class GridSplines(nn.Module):
    """The efficient way: all bases of all inputs at once, one product with all coefficients."""

    def __init__(self, given, out):
        super().__init__()
        step = 2 / GRID
        self.register_buffer("grid", (torch.arange(-ORDER, GRID + ORDER + 1) * step - 1).expand(given, -1).contiguous())
        self.base_weight, self.spline_weight = nn.Parameter(torch.zeros(out, given)), nn.Parameter(torch.zeros(out, given, GRID + ORDER))
        self.spline_scaler = nn.Parameter(torch.zeros(out, given))

    def b_splines(self, x):
        x = x.unsqueeze(-1)
        bases = ((x >= self.grid[:, :-1]) & (x < self.grid[:, 1:])).to(x.dtype)
        for k in range(1, ORDER + 1):
            left = (x - self.grid[:, : -(k + 1)]) / (self.grid[:, k:-1] - self.grid[:, : -(k + 1)]) * bases[:, :, :-1]
            right = (self.grid[:, k + 1 :] - x) / (self.grid[:, k + 1 :] - self.grid[:, 1:-k]) * bases[:, :, 1:]
            bases = left + right
        return bases

    def forward(self, x):
        scaled = self.spline_weight * self.spline_scaler.unsqueeze(-1)
        base = F.linear(F.silu(x), self.base_weight)
        return base + F.linear(self.b_splines(x).view(x.shape[0], -1), scaled.view(scaled.shape[0], -1))


class EdgeSplines(nn.Module):
    """By the definition: a function on every edge, its cubic pieces as polynomials of the distance to a knot."""

    def __init__(self, given, out):
        super().__init__()
        self.coefficients, self.scale_base, self.scale_spline = (
            nn.Parameter(torch.zeros(*n)) for n in ((given, out, GRID + ORDER), (given, out), (given, out))
        )

    def basis(self, x):
        """The uniform cubic B-spline around each of its middles."""
        middles = torch.arange(GRID + ORDER, dtype=x.dtype) - 1
        u = ((x[..., None] + 1) * (GRID / 2) - middles).abs()
        near = (4 - 6 * u**2 + 3 * u**3) / 6
        far = (2 - u).clamp(min=0) ** 3 / 6
        return torch.where(u < 1, near, far)

    def forward(self, x):
        curves = torch.einsum("bik,iok->bio", self.basis(x), self.coefficients)
        activated = x[..., None] * torch.sigmoid(x)[..., None]
        return (self.scale_base * activated + self.scale_spline * curves).sum(1)


class SplineNet(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layers = nn.ModuleList(kind(a, b) for a, b in ((8, 10), (10, 10), (10, 6)))

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            x = layer(x if number == 0 else torch.tanh(x) * 0.9)
        return x


def build_edge_splines(family, changes, attention):
    given, state = dict(filled(SplineNet(GridSplines)).named_parameters()), {}
    for n in range(3):
        name = f"layers.{n}."
        state[name + "coefficients"] = given[name + "spline_weight"].transpose(0, 1)
        state[name + "scale_base"], state[name + "scale_spline"] = given[name + "base_weight"].T, given[name + "spline_scaler"].T
    return copied(SplineNet(EdgeSplines), state)


BUILDERS = {
    ("gcn", "pyg"): lambda family, *given: filled(LibraryGraph(family)),
    ("gat", "pyg"): lambda family, *given: filled(LibraryGraph(family)),
    ("gcn", "densegraph"): build_dense_graph,
    ("gat", "densegraph"): build_dense_graph,
    ("gcn", "listgraph"): build_list_graph,
    ("conformer", "torchaudio"): build_audio_conformer,
    ("conformer", "plainconformer"): build_plain_conformer,
    ("tables", "rtdl"): build_library_tables,
    ("tables", "plaintables"): build_plain_tables,
    ("softmoe", "softmoe"): lambda *given: library_softmoe(),
    ("softmoe", "plainsoft"): build_plain_softmoe,
    ("clicks", "bags"): lambda family, changes, *given: loosely(filled(BagRecommender()), changes),
    ("clicks", "pairs"): lambda family, changes, *given: loosely(build_pair_recommender(family, changes, *given), changes),
    ("splines", "grid"): lambda *given: filled(SplineNet(GridSplines)),
    ("splines", "edges"): build_edge_splines,
}
