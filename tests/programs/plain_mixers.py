"""Recurrent layers of transformers in the other way in which each can be computed: a scan as one product, chunks as one token after another."""

import math

import torch
import torch.nn.functional as F
from plain_parts import Layer, angles, attended, causal, fused, heads, joined, own, rms, tanh_gelu, turned_halves
from torch import nn

SIZE = 16  # of a head


class GriffinLayer(Layer):
    """A gated linear recurrence as a matrix of decays, or attention within a window with one head of keys."""

    faults = ("other-constant", "no-multiplier", "gates-exchanged", "convolution-ahead", "no-input-gate", "square-in-root", "exact-gelu")

    def __init__(self, block):
        super().__init__()
        mixer, mlp = block.temporal_block, block.mlp_block
        self.n1, self.n2 = (nn.Parameter(n.weight.detach().clone()) for n in (block.temporal_pre_norm, block.channel_pre_norm))
        self.gate_up, self.down = fused(mlp.gate_proj, mlp.up_proj), own(mlp.down_proj)
        self.recurrent = hasattr(mixer, "rg_lru")
        if self.recurrent:
            self.xy, self.out = fused(mixer.linear_x, mixer.linear_y), own(mixer.linear_out)
            self.taps, self.bias = nn.Parameter(mixer.conv_1d.weight.detach()[:, 0].clone()), nn.Parameter(mixer.conv_1d.bias.detach().clone())
            lru = mixer.rg_lru
            names = dict(wi="input_gate_weight", bi="input_gate_bias", wr="recurrent_gate_weight", br="recurrent_gate_bias", decay="recurrent_param")
            for name, theirs in names.items():
                self.register_parameter(name, nn.Parameter(getattr(lru, theirs).detach().clone()))
        else:
            self.q, self.kv, self.out = own(mixer.q_proj), fused(mixer.k_proj, mixer.v_proj), own(mixer.o_proj)

    def gate(self, x, weight, bias):  # a block of features by itself
        y = torch.einsum("btni,nij->btnj", x.unflatten(-1, (len(weight), -1)), weight) + bias
        return torch.sigmoid(y).flatten(-2)

    def recurrence(self, h):
        x, y = self.xy(h).chunk(2, -1)
        length, width = h.shape[1], self.taps.shape[1]
        ahead = 1 if self.has("convolution-ahead") else 0
        padded = F.pad(x, (0, 0, width - 1 - ahead, ahead))
        x = sum(padded[:, k : k + length] * self.taps[:, k] for k in range(width)) + self.bias
        given, forgotten = self.gate(x, self.wi, self.bi), self.gate(x, self.wr, self.br)
        given, forgotten = (forgotten, given) if self.has("gates-exchanged") else (given, forgotten)
        log = -(4.0 if self.has("other-constant") else 8.0) * forgotten * F.softplus(self.decay)
        x = x if self.has("no-input-gate") else x * given
        if not self.has("no-multiplier"):
            root = torch.sqrt(1 - torch.exp(log if self.has("square-in-root") else 2 * log))
            x = torch.cat([x[:, :1], x[:, 1:] * root[:, 1:]], 1)
        total = log.cumsum(1)
        until = (total[:, :, None] - total[:, None]).masked_fill(~torch.ones(length, length, dtype=torch.bool).tril()[..., None], -math.inf)
        return self.out(torch.einsum("btsc,bsc->btc", torch.exp(until), x) * tanh_gelu(y))

    def attention(self, h):
        q, (k, v) = heads(self.q(h), SIZE), (heads(x, SIZE) for x in self.kv(h).chunk(2, -1))
        angle = angles(h.shape[1], SIZE // 2, 10000.0, h)
        q, k = (torch.cat([turned_halves(x[..., : SIZE // 2], angle), x[..., SIZE // 2 :]], -1) for x in (q, k))
        return self.out(joined(attended(q, k.expand_as(q), v.expand_as(q), SIZE**-0.5, causal(h.shape[1], 4, like=h))))

    def forward(self, x):
        h = rms(x, 1 + self.n1, 1e-6)
        x = x + (self.recurrence(h) if self.recurrent else self.attention(h))
        gate, up = self.gate_up(rms(x, 1 + self.n2, 1e-6)).chunk(2, -1)
        return x + self.down((F.gelu(gate) if self.has("exact-gelu") else tanh_gelu(gate)) * up)


class Griffin(nn.Module):
    def __init__(self, model):
        super().__init__()
        m = model.model
        self.words, self.layers = own(m.embed_tokens), nn.ModuleList(GriffinLayer(b) for b in m.layers)
        self.gain = nn.Parameter(m.final_norm.weight.detach().clone())
        self.cap = model.config.logits_soft_cap

    def forward(self, tokens):
        x = self.words(tokens) * math.sqrt(self.words.weight.shape[1])
        for layer in self.layers:
            x = layer(x)
        scores = rms(x, 1 + self.gain, 1e-6) @ self.words.weight.T
        return torch.tanh(scores / self.cap) * self.cap


class DeltaLayer(Layer):
    """The gated delta rule, one token after another."""

    faults = ("no-delta", "decay-behind", "beta-of-value-alone", "keys-unnormed", "read-before-write", "gate-before-norm", "no-scale")

    def __init__(self, block):
        super().__init__()
        mixer, mlp = block.linear_attn, block.mlp
        self.n1, self.n2 = (nn.Parameter(n.weight.detach().clone()) for n in (block.input_layernorm, block.post_attention_layernorm))
        self.qkvz, self.ba, self.out = own(mixer.in_proj_qkvz), own(mixer.in_proj_ba), own(mixer.out_proj)
        self.taps = nn.Parameter(mixer.conv1d.weight.detach()[:, 0].clone())
        self.dt, self.log, self.gain = (nn.Parameter(p.detach().clone()) for p in (mixer.dt_bias, mixer.A_log, mixer.norm.weight))
        self.up, self.down = fused(mlp.gate_proj, mlp.up_proj), own(mlp.down_proj)

    def projected(self, h):
        """Queries, keys, values and gates of two heads each, and what either head writes and forgets."""
        y = self.qkvz(h).unflatten(-1, (2, 4 * SIZE))
        b, a = self.ba(h).unflatten(-1, (2, 2)).unbind(-1)
        q, k, v, z = y.split(SIZE, -1)
        x = torch.cat([part.flatten(-2) for part in (q, k, v)], -1)
        padded = F.pad(x, (0, 0, self.taps.shape[1] - 1, 0))
        x = F.silu(sum(padded[:, i : i + h.shape[1]] * self.taps[:, i] for i in range(self.taps.shape[1])))
        q, k, v = (part.unflatten(-1, (2, SIZE)) for part in x.chunk(3, -1))
        return q, k, v, z, torch.sigmoid(b), torch.exp(-torch.exp(self.log) * F.softplus(a + self.dt))

    def mixed(self, h):
        q, k, v, z, beta, decay = self.projected(h)
        q = q / (q.square().sum(-1, keepdim=True) + 1e-6).sqrt() * (1.0 if self.has("no-scale") else SIZE**-0.5)
        k = k if self.has("keys-unnormed") else k / (k.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        state, outs = torch.zeros(len(h), 2, SIZE, SIZE, dtype=h.dtype), []
        for t in range(h.shape[1]):
            kept = state * decay[:, t, :, None, None]
            held = torch.einsum("bhkv,bhk->bhv", state if self.has("decay-behind") else kept, k[:, t])
            new = v[:, t] if self.has("no-delta") else v[:, t] - held
            new = v[:, t] * beta[:, t, :, None] - held if self.has("beta-of-value-alone") else new * beta[:, t, :, None]
            before, state = state, kept + k[:, t, :, :, None] * new[:, :, None]
            outs.append(torch.einsum("bhkv,bhk->bhv", before if self.has("read-before-write") else state, q[:, t]))
        y = torch.stack(outs, 1)
        y = rms(y * F.silu(z), self.gain, 1e-6) if self.has("gate-before-norm") else rms(y, self.gain, 1e-6) * F.silu(z)
        return self.out(y.flatten(-2))

    def forward(self, x):
        x = x + self.mixed(rms(x, 1 + self.n1, 1e-6))
        gate, up = self.up(rms(x, 1 + self.n2, 1e-6)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Delta(nn.Module):
    def __init__(self, model):
        super().__init__()
        m = model.model
        self.words, self.layers, self.head = own(m.embed_tokens), nn.ModuleList(DeltaLayer(b) for b in m.layers), own(model.lm_head)
        self.gain = nn.Parameter(m.norm.weight.detach().clone())

    def forward(self, tokens):
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(rms(x, 1 + self.gain, 1e-6))


BUILDERS = dict(griffin=(Griffin, GriffinLayer), delta=(Delta, DeltaLayer))
