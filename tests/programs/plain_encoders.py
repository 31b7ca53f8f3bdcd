"""Encoders of transformers, and an encoder with its decoder, as a person writes them again: fused projections, transforms as matrices, channels last."""

import math

import torch
import torch.nn.functional as F
from plain_parts import Layer, angles, attended, causal, fused, heads, joined, layer_norm, own, turned_halves, turned_pairs
from torch import nn

SIZE = 16  # of a head


class Stack(nn.Module):
    """`first` makes of the inputs what the layers read, `last` the scores of what they leave."""

    def __init__(self, first, layers, last):
        super().__init__()
        self.first, self.layers, self.last = first, nn.ModuleList(layers), last

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


class Words(nn.Module):
    """Words and, where there are any, places and kinds of tokens; normed."""

    def __init__(self, words, norm, places=None, kinds=None):
        super().__init__()
        self.words, self.norm, self.places, self.kinds = own(words), own(norm), own(places), own(kinds)

    def forward(self, tokens):
        x = self.words.weight[tokens]
        if self.places is not None:
            x = x + self.places.weight[: tokens.shape[1]]
        if self.kinds is not None:
            x = x + self.kinds.weight[0]
        return self.norm(x)


class ModernLayer(Layer):
    """Global and local attention in turn, a gated feed-forward."""

    faults = ("narrow-window", "global-base", "turned-pairs", "no-norm", "other-half-active", "branch-scaled")

    def __init__(self, block, number):
        super().__init__()
        self.norm, self.norm2 = own(block.attn_norm), own(block.mlp_norm)
        self.qkv, self.out, self.up, self.down = own(block.attn.Wqkv), own(block.attn.Wo), own(block.mlp.Wi), own(block.mlp.Wo)
        self.local = number % 3 != 0

    def attention(self, h):
        q, k, v = self.qkv(h).unflatten(-1, (3, -1, SIZE)).permute(2, 0, 3, 1, 4)
        length = h.shape[1]
        base = 10000.0 if self.local and not self.has("global-base") else 160000.0
        turn = turned_pairs if self.has("turned-pairs") else turned_halves
        q, k = turn(q, angles(length, SIZE, base, h)), turn(k, angles(length, SIZE, base, h))
        far = (torch.arange(length)[:, None] - torch.arange(length)).abs()
        window = length if not self.local else 2 if self.has("narrow-window") else 3
        hidden = torch.zeros(length, length, dtype=h.dtype).masked_fill(far > window, -math.inf)
        return self.out(joined(attended(q, k, v, SIZE**-0.5, hidden)))

    def forward(self, x):
        y = self.attention(x if self.has("no-norm") else self.norm(x))
        x = x + y * (0.9 if self.has("branch-scaled") else 1.0)
        h = self.norm2(x)
        half = len(self.up.weight) // 2
        one, two = F.linear(h, self.up.weight[:half]), F.linear(h, self.up.weight[half:])
        one, two = (two, one) if self.has("other-half-active") else (one, two)
        return x + self.down(F.gelu(one) * two)


def modernbert(model):
    e = model.embeddings
    return Stack(Words(e.tok_embeddings, e.norm), [ModernLayer(b, n) for n, b in enumerate(model.layers)], own(model.final_norm))


class RoformerLayer(Layer):
    """Neighbours turned; norms behind the sums."""

    faults = ("turned-halves", "values-turned", "no-scale", "tanh-gelu", "norm-before-sum", "norm-eps")

    def __init__(self, block):
        super().__init__()
        attn, out = block.attention.self, block.attention.output
        self.qkv, self.out, self.norm = fused(attn.query, attn.key, attn.value), own(out.dense), own(out.LayerNorm)
        self.up, self.down, self.norm2 = own(block.intermediate.dense), own(block.output.dense), own(block.output.LayerNorm)

    def forward(self, x):
        q, k, v = (heads(y, SIZE) for y in self.qkv(x).chunk(3, -1))
        angle = angles(x.shape[1], SIZE, 10000.0, x)
        turn = turned_halves if self.has("turned-halves") else turned_pairs
        v = turned_pairs(v, angle) if self.has("values-turned") else v
        y = self.out(joined(attended(turn(q, angle), turn(k, angle), v, 1.0 if self.has("no-scale") else SIZE**-0.5)))
        x = self.norm(x + y)
        y = self.down(F.gelu(self.up(x), approximate="tanh" if self.has("tanh-gelu") else "none"))
        if self.has("norm-before-sum"):
            return x + self.norm2(y)
        return layer_norm(x + y, self.norm2.weight, self.norm2.bias, 1e-2 if self.has("norm-eps") else 1e-12)


def roformer(model):
    e = model.embeddings
    return Stack(Words(e.word_embeddings, e.LayerNorm, kinds=e.token_type_embeddings), [RoformerLayer(b) for b in model.encoder.layer], nn.Identity())


class FourierLayer(Layer):
    """The real part of a transform over tokens and features, as products with cosines and sines."""

    faults = ("imaginary-part", "features-alone", "half-the-sum", "exact-gelu", "residual-of-input")

    def __init__(self, block):
        super().__init__()
        self.norm, self.norm2 = own(block.fourier.output.LayerNorm), own(block.output.LayerNorm)
        self.up, self.down = own(block.intermediate.dense), own(block.output.dense)

    def mixed(self, x):
        def waves(n):
            turns = torch.outer(torch.arange(n), torch.arange(n)).to(x.dtype) * (2 * math.pi / n)
            return turns.cos(), turns.sin()

        (ct, st), (cf, sf) = waves(x.shape[1]), waves(x.shape[2])
        if self.has("features-alone"):
            return x @ cf
        if self.has("imaginary-part"):
            return -(st @ (x @ cf)) - ct @ (x @ sf)
        return ct @ (x @ cf) - st @ (x @ sf)

    def forward(self, x):
        y = self.mixed(x)
        h = self.norm((x + y) * 0.5 + y * 0.1 if self.has("half-the-sum") else x + y)
        up = F.gelu(self.up(h), approximate="none" if self.has("exact-gelu") else "tanh")
        return self.norm2((x if self.has("residual-of-input") else h) + self.down(up))


class Projected(nn.Module):
    def __init__(self, first, last):
        super().__init__()
        self.first, self.last = first, own(last)

    def forward(self, tokens):
        return self.last(self.first(tokens))


def fnet(model):
    e = model.embeddings
    words = Words(e.word_embeddings, e.LayerNorm, e.position_embeddings, e.token_type_embeddings)
    return Stack(Projected(words, e.projection), [FourierLayer(b) for b in model.encoder.layer], nn.Identity())


class SpectrogramLayer(Layer):
    """Norms before the branches, all heads in one product."""

    faults = ("scale-by-width", "heads-within", "keys-and-values", "tanh-gelu", "residual-of-norm")

    def __init__(self, block):
        super().__init__()
        attn = block.attention
        self.qkv, self.out = fused(attn.q_proj, attn.k_proj, attn.v_proj), own(attn.o_proj)
        self.norm, self.norm2, self.up, self.down = own(block.layernorm_before), own(block.layernorm_after), own(block.mlp.fc1), own(block.mlp.fc2)

    def forward(self, x):
        h = self.norm(x)
        q, k, v = (heads(y, SIZE) for y in self.qkv(h).chunk(3, -1))
        k, v = (v, k) if self.has("keys-and-values") else (k, v)
        y = attended(q, k, v, (x.shape[-1] if self.has("scale-by-width") else SIZE) ** -0.5)
        x = x + self.out(y.permute(0, 2, 3, 1).flatten(2) if self.has("heads-within") else joined(y))
        h = self.norm2(x)
        y = F.gelu(self.up(h), approximate="tanh" if self.has("tanh-gelu") else "none")
        return (h if self.has("residual-of-norm") else x) + self.down(y)


class Spectrogram(nn.Module):
    """Patches that overlap, unfolded and multiplied by one matrix, behind two tokens."""

    def __init__(self, e):
        super().__init__()
        conv = e.patch_embeddings.projection
        self.size, self.stride = conv.kernel_size, conv.stride
        self.weight, self.bias = nn.Parameter(conv.weight.detach().flatten(1).clone()), nn.Parameter(conv.bias.detach().clone())
        self.tokens = nn.Parameter(torch.cat([e.cls_token, e.distillation_token], 1).detach().clone())
        self.places = nn.Parameter(e.position_embeddings.detach().clone())

    def forward(self, x):
        patches = F.unfold(x.transpose(1, 2)[:, None], self.size, stride=self.stride).transpose(1, 2)
        y = patches @ self.weight.T + self.bias
        return torch.cat([self.tokens.expand(len(x), -1, -1), y], 1) + self.places


def spectrogram(model):
    return Stack(Spectrogram(model.embeddings), [SpectrogramLayer(b) for b in model.layers], own(model.layernorm))


class ResponseLayer(Layer):
    """Channels last throughout: a depthwise convolution as a sum over its taps, and responses normed over places."""

    faults = ("no-response", "response-over-channels", "gain-of-input", "tanh-gelu", "mirrored-taps")

    def __init__(self, block):
        super().__init__()
        self.taps, self.bias = nn.Parameter(block.dwconv.weight.detach()[:, 0].clone()), nn.Parameter(block.dwconv.bias.detach().clone())
        self.norm, self.up, self.down = own(block.layernorm), own(block.pwconv1), own(block.pwconv2)
        self.gain, self.offset = (nn.Parameter(p.detach().flatten().clone()) for p in (block.grn.weight, block.grn.bias))

    def convolved(self, x):  # (b, h, w, c)
        taps = self.taps.flip(2) if self.has("mirrored-taps") else self.taps
        padded = F.pad(x, (0, 0, 3, 3, 3, 3))
        windows = padded.unfold(1, 7, 1).unfold(2, 7, 1)  # (b, h, w, c, 7, 7)
        return torch.einsum("bhwcij,cij->bhwc", windows, taps) + self.bias

    def forward(self, x):
        h = self.norm(self.convolved(x))
        y = F.gelu(self.up(h), approximate="tanh" if self.has("tanh-gelu") else "none")
        strength = y.square().sum((1, 2), keepdim=True).sqrt()
        mean = strength.mean() if self.has("response-over-channels") else strength.mean(-1, keepdim=True)
        response = y * strength / (mean + 1e-6)
        if self.has("no-response"):
            return x + self.down(y)
        return x + self.down(self.gain * response + self.offset + (response if self.has("gain-of-input") else y))


class Pixels(nn.Module):
    def __init__(self, e):
        super().__init__()
        conv = e.patch_embeddings
        self.size, self.proj, self.norm = conv.kernel_size[0], nn.Linear(3 * conv.kernel_size[0] ** 2, conv.out_channels), own(e.layernorm)
        self.proj.weight, self.proj.bias = nn.Parameter(conv.weight.detach().flatten(1).clone()), nn.Parameter(conv.bias.detach().clone())

    def forward(self, x):
        b, c, h, w = x.shape
        y = x.view(b, c, h // self.size, self.size, w // self.size, self.size).permute(0, 2, 4, 1, 3, 5).flatten(3)
        y = self.proj(y)
        return layer_norm(y, self.norm.weight, self.norm.bias, 1e-6)


class Pooled(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.norm = own(norm)

    def forward(self, x):
        return self.norm(x.mean((1, 2)))


def convnextv2(model):
    return Stack(Pixels(model.embeddings), [ResponseLayer(b) for b in model.encoder.stages[0].layers], Pooled(model.layernorm))


class BartLayer(Layer):
    """Norms behind the sums; where `crossed` is given, attention to what the encoder made."""

    faults = ("not-causal", "keys-of-decoder", "norm-of-branch", "relu", "other-residual", "scale-by-width")

    def __init__(self, block):
        super().__init__()
        attn = block.self_attn
        self.qkv, self.out, self.norm = fused(attn.q_proj, attn.k_proj, attn.v_proj), own(attn.out_proj), own(block.self_attn_layer_norm)
        self.up, self.down, self.norm3 = own(block.fc1), own(block.fc2), own(block.final_layer_norm)
        cross = getattr(block, "encoder_attn", None)
        if cross is not None:
            self.q, self.kv, self.out2 = own(cross.q_proj), fused(cross.k_proj, cross.v_proj), own(cross.out_proj)
            self.norm2 = own(block.encoder_attn_layer_norm)

    def forward(self, x, crossed=None):
        q, k, v = (heads(y, SIZE) for y in self.qkv(x).chunk(3, -1))
        hidden = causal(x.shape[1], like=x) if crossed is not None and not self.has("not-causal") else None
        x = self.norm(x + self.out(joined(attended(q, k, v, SIZE**-0.5, hidden))))
        given = x
        if crossed is not None:
            k, v = (heads(y, SIZE) for y in self.kv(x if self.has("keys-of-decoder") else crossed).chunk(2, -1))
            scale = (x.shape[-1] if self.has("scale-by-width") else SIZE) ** -0.5
            y = self.out2(joined(attended(heads(self.q(x), SIZE), k, v, scale)))
            x = x + self.norm2(y) if self.has("norm-of-branch") else self.norm2(x + y)
        y = torch.relu(self.up(x)) if self.has("relu") else F.gelu(self.up(x))
        return self.norm3((given if self.has("other-residual") else x) + self.down(y))


class Bart(nn.Module):
    def __init__(self, model):
        super().__init__()
        m = model.model
        self.words = own(m.shared)
        self.places, self.places2 = (nn.Parameter(s.embed_positions.weight.detach()[2:].clone()) for s in (m.encoder, m.decoder))
        self.norm, self.norm2 = own(m.encoder.layernorm_embedding), own(m.decoder.layernorm_embedding)
        self.readers, self.layers = (nn.ModuleList(BartLayer(b) for b in s.layers) for s in (m.encoder, m.decoder))

    def forward(self, tokens):
        x = self.norm(self.words(tokens) + self.places[: tokens.shape[1]])
        for layer in self.readers:
            x = layer(x)
        y = tokens.roll(1, 1)[:, :8]
        y = self.norm2(self.words(y) + self.places2[: y.shape[1]])
        for layer in self.layers:
            y = layer(y, x)
        return y @ self.words.weight.T


BUILDERS = dict(
    modernbert=(modernbert, ModernLayer),
    roformer=(roformer, RoformerLayer),
    fnet=(fnet, FourierLayer),
    spectrogram=(spectrogram, SpectrogramLayer),
    convnextv2=(convnextv2, ResponseLayer),
    bart=(Bart, BartLayer),
)
