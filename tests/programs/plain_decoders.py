"""Decoders of transformers as a person writes them again: other ops, fused projections, no masks of tensors, experts computed for all tokens."""

import torch
import torch.nn.functional as F
from plain_parts import Layer, angles, attended, causal, fused, heads, joined, layer_norm, own, rms, tanh_gelu, turned_halves, turned_pairs
from torch import nn

SIZE = 16  # of a head


class Decoder(nn.Module):
    def __init__(self, embed, layers, norm, head):
        super().__init__()
        self.embed, self.layers, self.norm = own(embed), nn.ModuleList(layers), own(norm)
        self.head = None if head.weight is embed.weight else own(head)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        return F.linear(x, self.embed.weight) if self.head is None else self.head(x)


class GptjLayer(Layer):
    """Attention and feed-forward of one norm, side by side; half of each head is turned."""

    faults = ("scale-by-width", "turned-halves", "whole-head", "exact-gelu", "second-norm", "no-feed-bias")

    def __init__(self, block):
        super().__init__()
        attn = block.attn
        self.norm, self.qkv, self.out = own(block.ln_1), fused(attn.q_proj, attn.k_proj, attn.v_proj), own(attn.out_proj)
        self.up, self.down = own(block.mlp.fc_in), own(block.mlp.fc_out)

    def turned(self, x):
        if self.has("whole-head"):
            return turned_pairs(x, angles(x.shape[2], SIZE, 10000, x))
        turn = turned_halves if self.has("turned-halves") else turned_pairs
        return torch.cat([turn(x[..., : SIZE // 2], angles(x.shape[2], SIZE // 2, 10000, x)), x[..., SIZE // 2 :]], -1)

    def attention(self, h):
        q, k, v = (heads(x, SIZE) for x in self.qkv(h).chunk(3, -1))
        scale = (h.shape[-1] if self.has("scale-by-width") else SIZE) ** -0.5
        return self.out(joined(attended(self.turned(q), self.turned(k), v, scale, causal(h.shape[1], like=h))))

    def forward(self, x):
        h = self.norm(x)
        y = self.up(self.norm(h) if self.has("second-norm") else h)
        y = F.gelu(y) if self.has("exact-gelu") else tanh_gelu(y)
        y = F.linear(y, self.down.weight) if self.has("no-feed-bias") else self.down(y)
        return x + self.attention(h) + y


def gptj(model):
    t = model.transformer
    return Decoder(t.wte, [GptjLayer(b) for b in t.h], t.ln_f, model.lm_head)


class BloomLayer(Layer):
    """Distances as a bias of attention, which rows of the fused projection hold head by head."""

    faults = ("slopes-doubled", "parts-before-heads", "bias-of-square", "exact-gelu", "residual-of-norm", "no-bias")

    def __init__(self, block):
        super().__init__()
        attn, mlp = block.self_attention, block.mlp
        self.norm, self.norm2 = own(block.input_layernorm), own(block.post_attention_layernorm)
        self.qkv, self.out, self.up, self.down = own(attn.query_key_value), own(attn.dense), own(mlp.dense_h_to_4h), own(mlp.dense_4h_to_h)

    def attention(self, h):
        count, length = h.shape[-1] // SIZE, h.shape[1]
        if self.has("parts-before-heads"):
            q, k, v = (heads(x, SIZE) for x in self.qkv(h).chunk(3, -1))
        else:
            q, k, v = self.qkv(h).unflatten(-1, (count, 3, SIZE)).permute(3, 0, 2, 1, 4)
        slopes = torch.tensor([2.0 ** (-8 * (n + 1) / count) for n in range(count)], dtype=h.dtype) * (2 if self.has("slopes-doubled") else 1)
        away = (torch.arange(length) - torch.arange(length)[:, None]).to(h.dtype)
        away = -away.square() if self.has("bias-of-square") else away
        return attended(q, k, v, SIZE**-0.5, slopes[:, None, None] * away + causal(length, like=h))

    def forward(self, x):
        h = self.norm(x)
        x = (h if self.has("residual-of-norm") else x) + self.out(joined(self.attention(h)))
        y = self.up(self.norm2(x))
        y = F.gelu(y) if self.has("exact-gelu") else tanh_gelu(y)
        return x + (F.linear(y, self.down.weight) if self.has("no-bias") else self.down(y))


class NormedEmbedding(nn.Module):
    def __init__(self, table, norm):
        super().__init__()
        self.table, self.norm = own(table), own(norm)

    @property
    def weight(self):
        return self.table.weight

    def forward(self, tokens):
        return self.norm(self.table(tokens))


def bloom(model):
    t = model.transformer
    made = Decoder(t.word_embeddings, [BloomLayer(b) for b in t.h], t.ln_f, model.lm_head)
    made.embed = NormedEmbedding(made.embed, t.word_embeddings_layernorm)
    return made


class CohereLayer(Layer):
    """One norm without bias, two branches, neighbours turned, groups of heads."""

    faults = ("turned-halves", "groups-repeated", "other-base", "in-turn", "norm-eps", "gate-and-value")

    def __init__(self, block):
        super().__init__()
        attn, mlp = block.self_attn, block.mlp
        self.gain = nn.Parameter(block.input_layernorm.weight.detach().clone())
        self.q, self.kv, self.out = own(attn.q_proj), fused(attn.k_proj, attn.v_proj), own(attn.o_proj)
        self.gate_up, self.down = fused(mlp.gate_proj, mlp.up_proj), own(mlp.down_proj)

    def attention(self, h):
        q, (k, v) = heads(self.q(h), SIZE), (heads(x, SIZE) for x in self.kv(h).chunk(2, -1))
        angle = angles(h.shape[1], SIZE, 1000 if self.has("other-base") else 10000, h)
        turn = turned_halves if self.has("turned-halves") else turned_pairs
        q, k = turn(q, angle), turn(k, angle)
        groups = q.shape[1] // k.shape[1]
        if self.has("groups-repeated"):
            k, v = k.repeat(1, groups, 1, 1), v.repeat(1, groups, 1, 1)
        else:
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        return self.out(joined(F.scaled_dot_product_attention(q, k, v, is_causal=True)))

    def feed(self, h):
        gate, up = self.gate_up(h).chunk(2, -1)
        gate, up = (up, gate) if self.has("gate-and-value") else (gate, up)
        return self.down(gate * torch.sigmoid(gate) * up)

    def forward(self, x):
        h = layer_norm(x, self.gain, None, 1e-2 if self.has("norm-eps") else 1e-5)
        y = self.attention(h)
        return x + y + self.feed(h + y if self.has("in-turn") else h)


class ScaledHead(nn.Module):
    def __init__(self, norm, scale):
        super().__init__()
        self.norm, self.scale = own(norm), scale

    def forward(self, x):
        return self.norm(x) * self.scale


def cohere(model):
    m = model.model
    made = Decoder(m.embed_tokens, [CohereLayer(b) for b in m.layers], m.norm, model.lm_head)
    made.norm = ScaledHead(m.norm, model.logit_scale)
    return made


class Groups(Layer):
    """Attention of the Llama kind: projections of their own, halves turned."""

    def taken(self, attn):
        self.q, self.k, self.v, self.o = (own(p) for p in (attn.q_proj, attn.k_proj, attn.v_proj, attn.o_proj))

    def read(self, q, k, v, scale, base=10000.0, part=SIZE):
        q, k, v = heads(q, SIZE), heads(k, SIZE), heads(v, SIZE)
        angle = angles(q.shape[2], part, base, q)
        q, k = (torch.cat([turned_halves(x[..., :part], angle), x[..., part:]], -1) for x in (q, k))
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        return self.o(joined(attended(q, k, v, scale, causal(q.shape[2], like=q))))


class GraniteLayer(Groups):
    """Multipliers of attention and of both branches."""

    faults = ("scale-of-head", "no-multiplier", "multiplied-sum", "other-multiplier", "relu-gate")
    SCALE, BRANCH = 0.2, 0.3

    def __init__(self, block):
        super().__init__()
        self.taken(block.self_attn)
        self.norm, self.norm2 = (nn.Parameter(n.weight.detach().clone()) for n in (block.input_layernorm, block.post_attention_layernorm))
        self.gate, self.up, self.down = (own(getattr(block.mlp, f"{n}_proj")) for n in ("gate", "up", "down"))

    def forward(self, x):
        h = rms(x, self.norm, 1e-6)
        scale = SIZE**-0.5 if self.has("scale-of-head") else self.SCALE
        y = self.read(self.q(h), self.k(h), self.v(h), scale)
        x = x + (y if self.has("no-multiplier") else y * self.BRANCH)
        h = rms(x, self.norm2, 1e-6)
        gate = torch.relu(self.gate(h)) if self.has("relu-gate") else F.silu(self.gate(h))
        y = self.down(gate * self.up(h))
        if self.has("multiplied-sum"):
            return (x + y) * self.BRANCH
        return x + y * (0.33 if self.has("other-multiplier") else self.BRANCH)


class Scaled(nn.Module):
    def __init__(self, inner, factor):
        super().__init__()
        self.inner, self.factor = inner, factor

    @property
    def weight(self):
        return self.inner.weight

    def forward(self, x):
        return self.inner(x) * self.factor


def granite(model):
    m, config = model.model, model.config
    made = Decoder(m.embed_tokens, [GraniteLayer(b) for b in m.layers], m.norm, model.lm_head)
    made.embed, made.head = Scaled(made.embed, config.embedding_multiplier), Scaled(made.head, 1 / config.logits_scaling)
    return made


class OlmoLayer(Groups):
    """Norms behind the branches, and of queries and keys before they are cut into heads."""

    faults = ("norm-of-heads", "no-key-norm", "norm-before", "norm-of-sum", "gate-and-value")

    def __init__(self, block):
        super().__init__()
        attn, mlp = block.self_attn, block.mlp
        self.taken(attn)
        self.take_weights(nq=attn.q_norm, nk=attn.k_norm, n1=block.post_attention_layernorm, n2=block.post_feedforward_layernorm)
        self.gate_up, self.down = fused(mlp.gate_proj, mlp.up_proj), own(mlp.down_proj)

    def attention(self, h):
        q, k = self.q(h), self.k(h)
        if self.has("norm-of-heads"):
            q = (rms(q.unflatten(-1, (-1, SIZE)), 1.0, 1e-6)).flatten(-2) * self.nq
        else:
            q = rms(q, self.nq, 1e-6)
        k = k if self.has("no-key-norm") else rms(k, self.nk, 1e-6)
        return self.read(q, k, self.v(h), SIZE**-0.5)

    def feed(self, h):
        gate, up = self.gate_up(h).chunk(2, -1)
        return self.down(F.silu(up) * gate if self.has("gate-and-value") else F.silu(gate) * up)

    def forward(self, x):
        if self.has("norm-before"):
            x = x + self.attention(rms(x, self.n1, 1e-6))
        else:
            x = x + rms(self.attention(x), self.n1, 1e-6)
        if self.has("norm-of-sum"):
            return rms(x + self.feed(x), self.n2, 1e-6)
        return x + rms(self.feed(x), self.n2, 1e-6)


class NemotronLayer(Groups):
    """Norms whose gain is one more than their weight, a square of relu, half of each head turned."""

    faults = ("whole-head", "scale-by-width", "no-square", "gain-without-one", "branch-scaled")

    def __init__(self, block):
        super().__init__()
        self.taken(block.self_attn)
        self.norm, self.norm2, self.up, self.down = (
            own(block.input_layernorm),
            own(block.post_attention_layernorm),
            own(block.mlp.up_proj),
            own(block.mlp.down_proj),
        )

    def forward(self, x):
        one = 0 if self.has("gain-without-one") else 1
        h = layer_norm(x, one + self.norm.weight, self.norm.bias, 1e-5)
        scale = (x.shape[-1] if self.has("scale-by-width") else SIZE) ** -0.5
        part = SIZE if self.has("whole-head") else SIZE // 2
        x = x + self.read(self.q(h), self.k(h), self.v(h), scale, part=part)
        y = torch.relu(self.up(layer_norm(x, 1 + self.norm2.weight, self.norm2.bias, 1e-5)))
        y = y if self.has("no-square") else y * y
        return x + self.down(y) * (0.9 if self.has("branch-scaled") else 1.0)


class ExpertsLayer(Groups):
    """Experts that all tokens go through, weighted by what the router gives those that were chosen, and by zero elsewhere."""

    faults = ("no-query-norm", "weights-renormed", "one-expert-less", "softmax-of-chosen", "up-and-gate")

    def __init__(self, block):
        super().__init__()
        attn, mlp = block.self_attn, block.mlp
        self.taken(attn)
        self.take_weights(nq=attn.q_norm, nk=attn.k_norm, n1=block.input_layernorm, n2=block.post_attention_layernorm)
        self.router = nn.Parameter(mlp.gate.weight.detach().clone())
        self.up, self.down = (nn.Parameter(p.detach().clone()) for p in (mlp.experts.gate_up_proj, mlp.experts.down_proj))

    def experts(self, h):
        scores = h @ self.router.T
        chosen = scores.topk(1 if self.has("one-expert-less") else 2, -1).indices
        weights = torch.softmax(scores, -1)
        if self.has("softmax-of-chosen"):
            weights = torch.zeros_like(scores).scatter(-1, chosen, torch.softmax(scores.gather(-1, chosen), -1))
        weights = weights * torch.zeros_like(scores).scatter(-1, chosen, 1.0)
        weights = weights / weights.sum(-1, keepdim=True) if self.has("weights-renormed") else weights
        gate, up = torch.einsum("btd,eod->bteo", h, self.up).chunk(2, -1)
        y = F.silu(up) * gate if self.has("up-and-gate") else F.silu(gate) * up
        return torch.einsum("bteo,edo,bte->btd", y, self.down, weights)

    def forward(self, x):
        h = rms(x, self.n1, 1e-5)
        q = self.q(h) if self.has("no-query-norm") else rms(self.q(h), self.nq, 1e-5)
        x = x + self.read(q, rms(self.k(h), self.nk, 1e-5), self.v(h), SIZE**-0.5)
        return x + self.experts(rms(x, self.n2, 1e-5))


def plain(kind):
    return lambda model: Decoder(model.model.embed_tokens, [kind(b) for b in model.model.layers], model.model.norm, model.lm_head)


BUILDERS = dict(
    gptj=(gptj, GptjLayer),
    bloom=(bloom, BloomLayer),
    cohere=(cohere, CohereLayer),
    granite=(granite, GraniteLayer),
    olmo2=(plain(OlmoLayer), OlmoLayer),
    nemotron=(plain(NemotronLayer), NemotronLayer),
    olmoe=(plain(ExpertsLayer), ExpertsLayer),
)
