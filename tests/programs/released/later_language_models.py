"""Language models that came later: peft's adapters beside adapters by hand, a cache beside the whole, rows padded on the left, a Llama and a GPT-2 in
the manner of two small projects, and retention and long convolutions in the ways in which they may be computed."""

import math

import language_models
import named_weights
import ported_language_models
import torch
import torch.nn.functional as F
from later_vision_models import copied
from other_vision_models import filled
from torch import nn

WIDTH, HEADS, GROUPS, SIZE, WORDS, RANK, SCALE = 64, 4, 2, 16, 96, 4, 2.0
ADAPTED = {"lora": ("q_proj", "v_proj", "down_proj"), "dora": ("q_proj", "down_proj"), "ia3": ("k_proj", "v_proj", "down_proj")}


def drawn_adapter(name, shape):
    """Of the size that adapters have after some training; vectors are near one."""
    return named_weights.weight(name + ".weight", shape) * (1.0 if len(shape) == 1 else 0.4)


def build_peft(family, changes, attention):
    import peft

    model = language_models.build_transformers("llama", changes, attention)
    targets = list(ADAPTED[family])
    if family == "ia3":
        config = peft.IA3Config(target_modules=targets, feedforward_modules=["down_proj"])
    else:
        config = peft.LoraConfig(r=RANK, lora_alpha=RANK * SCALE, target_modules=targets, lora_dropout=0.0, use_dora=family == "dora")
    model = peft.get_peft_model(model, config)
    with torch.no_grad():
        for name, module in model.named_modules():
            place = name.removeprefix("base_model.model.")
            if hasattr(module, "lora_A"):
                a, b = module.lora_A["default"].weight, module.lora_B["default"].weight
                a.copy_(drawn_adapter(place + ".a", a.shape))
                b.copy_(drawn_adapter(place + ".b", b.shape))
                if family == "dora":
                    m = module.lora_magnitude_vector["default"].weight
                    m.copy_(drawn_adapter(place + ".m", m.shape) * 0.9)
            elif hasattr(module, "ia3_l"):
                scale = module.ia3_l["default"]
                scale.copy_(drawn_adapter(place + ".l", (scale.numel(),)).reshape(scale.shape))
    return model


class LowRank(nn.Module):
    """A frozen matrix and a product of two small ones, which is added to the matrix before it meets `x`, or to its result."""

    def __init__(self, linear, place, kind):
        super().__init__()
        self.weight, self.kind = nn.Parameter(linear.weight.detach().clone(), requires_grad=False), kind
        out, given = self.weight.shape
        self.down = nn.Parameter(drawn_adapter(place + ".a", (RANK, given)).T.contiguous())
        self.up = nn.Parameter(drawn_adapter(place + ".b", (out, RANK)).T.contiguous())
        if kind == "dora":
            self.magnitude = nn.Parameter(drawn_adapter(place + ".m", (out,)) * 0.9)

    def forward(self, x):
        if self.kind == "lora":
            return x @ self.weight.T + ((x * SCALE) @ self.down) @ self.up
        weight = self.weight + SCALE * (self.down @ self.up).T
        norm = weight.detach().square().sum(1).sqrt()
        return (x @ weight.T) * (self.magnitude / norm)


class Scaled(nn.Module):
    """A frozen matrix whose input or output features are scaled."""

    def __init__(self, linear, place, feedforward):
        super().__init__()
        self.weight, self.feedforward = nn.Parameter(linear.weight.detach().clone(), requires_grad=False), feedforward
        self.gain = nn.Parameter(drawn_adapter(place + ".l", (self.weight.shape[1 if feedforward else 0],)))

    def forward(self, x):
        if self.feedforward:
            return torch.einsum("bti,oi,i->bto", x, self.weight, self.gain)
        return torch.einsum("bti,oi,o->bto", x, self.weight, self.gain)


def build_by_hand(family, changes, attention):
    model = language_models.build_transformers("llama", changes, attention)
    model.requires_grad_(False)
    for n, layer in enumerate(model.model.layers):
        for name in ADAPTED[family]:
            part = "mlp" if name == "down_proj" else "self_attn"
            owner, place = getattr(layer, part), f"model.layers.{n}.{part}.{name}"
            linear = getattr(owner, name)
            setattr(owner, name, Scaled(linear, place, name == "down_proj") if family == "ia3" else LowRank(linear, place, family))
    return model


def build_merged(family, changes, attention):
    """Without adapters: their products are in the weights."""
    made, model = build_by_hand(family, changes, attention), language_models.build_transformers("llama", changes, attention)
    with torch.no_grad():
        for name, module in made.named_modules():
            if isinstance(module, LowRank):
                model.get_submodule(name).weight.add_(SCALE * (module.down @ module.up).T)
    return model


def build_decoded(family, changes, attention):
    """The first five tokens at once, the others one by one from a cache."""
    from transformers import DynamicCache

    model = language_models.build_transformers("llama", changes, attention)

    def scores_of(tokens):
        cache = DynamicCache()
        parts = [model(tokens[:, :5], past_key_values=cache, use_cache=True).logits]
        for place in range(5, tokens.shape[1]):
            parts.append(model(tokens[:, place : place + 1], past_key_values=cache, use_cache=True).logits)
        return torch.cat(parts, 1)

    model.scores_of = scores_of
    return model


def build_left_padded(family, changes, attention):
    """Three places before each row that nobody looks at."""
    model = language_models.build_transformers("llama", changes, attention)

    def scores_of(tokens):
        padded, mask = F.pad(tokens, (3, 0)), F.pad(torch.ones_like(tokens), (3, 0))
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        return model(padded, attention_mask=mask, position_ids=positions).logits[:, 3:]

    model.scores_of = scores_of
    return model


class FastAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wqkv, self.wo = nn.Linear(WIDTH, WIDTH + 2 * GROUPS * SIZE, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        for name in ("k_cache", "v_cache"):
            self.register_buffer(name, torch.zeros(2, GROUPS, 64, SIZE))

    def forward(self, x, freqs_cis, mask, input_pos):
        bsz, seqlen, _ = x.shape
        q, k, v = self.wqkv(x).split([WIDTH, GROUPS * SIZE, GROUPS * SIZE], dim=-1)
        q, k, v = (t.view(bsz, seqlen, -1, SIZE) for t in (q, k, v))
        q, k = apply_rotary_emb(q, freqs_cis), apply_rotary_emb(k, freqs_cis)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        k_out, v_out = self.k_cache.clone(), self.v_cache.clone()
        k_out[:, :, input_pos] = k
        v_out[:, :, input_pos] = v
        k, v = (t.repeat_interleave(HEADS // GROUPS, dim=1) for t in (k_out, v_out))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.0)
        return self.wo(y.transpose(1, 2).contiguous().view(bsz, seqlen, WIDTH))


def apply_rotary_emb(x, freqs_cis):
    pairs = x.float().reshape(*x.shape[:-1], -1, 2)
    freqs_cis = freqs_cis.view(1, pairs.size(1), 1, pairs.size(3), 2)
    real = pairs[..., 0] * freqs_cis[..., 0] - pairs[..., 1] * freqs_cis[..., 1]
    imaginary = pairs[..., 1] * freqs_cis[..., 0] + pairs[..., 0] * freqs_cis[..., 1]
    return torch.stack([real, imaginary], dim=-1).flatten(3).type_as(x)


class FastNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        x32 = x.float()
        return (x32 * torch.rsqrt(torch.mean(x32 * x32, dim=-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


class FastFeed(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w3, self.w2 = nn.Linear(WIDTH, 112, bias=False), nn.Linear(WIDTH, 112, bias=False), nn.Linear(112, WIDTH, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class FastBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.feed_forward, self.ffn_norm, self.attention_norm = FastAttention(), FastFeed(), FastNorm(), FastNorm()

    def forward(self, x, input_pos, freqs_cis, mask):
        h = x + self.attention(self.attention_norm(x), freqs_cis, mask, input_pos)
        return h + self.feed_forward(self.ffn_norm(h))


class FastLlama(nn.Module):
    """Keys and values lie in a cache of fixed size, beyond whose filled part a mask hides the zeros; tables for all positions."""

    def __init__(self):
        super().__init__()
        self.tok_embeddings, self.output, self.norm = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False), FastNorm()
        self.layers = nn.ModuleList(FastBlock() for _ in range(3))
        rates = 1.0 / (10000.0 ** (torch.arange(0, SIZE, 2).float() / SIZE))
        turns = torch.polar(torch.ones(64, SIZE // 2), torch.outer(torch.arange(64).float(), rates))
        self.register_buffer("freqs_cis", torch.view_as_real(turns).contiguous())
        self.register_buffer("causal_mask", torch.tril(torch.ones(64, 64, dtype=torch.bool)))

    def forward(self, tokens):
        input_pos = torch.arange(tokens.shape[1])
        mask, freqs_cis, x = self.causal_mask[None, None, input_pos], self.freqs_cis[input_pos], self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, input_pos, freqs_cis, mask)
        return self.output(self.norm(x))


def build_fast_llama(family, changes, attention):
    given = language_models.published("llama")
    state = {"tok_embeddings.weight": given["model.embed_tokens.weight"], "norm.weight": given["model.norm.weight"]}
    state["output.weight"] = given["lm_head.weight"]
    names = {"attention.wo": "self_attn.o_proj", "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    names |= {"feed_forward.w1": "mlp.gate_proj", "feed_forward.w2": "mlp.down_proj", "feed_forward.w3": "mlp.up_proj"}
    for n in range(3):
        old, new = f"model.layers.{n}.", f"layers.{n}."
        state |= {f"{new}{ours}.weight": given[f"{old}{theirs}.weight"] for ours, theirs in names.items()}
        q, k, v = (given[f"{old}self_attn.{w}_proj.weight"] for w in "qkv")
        state[new + "attention.wqkv.weight"] = torch.cat([*map(ported_language_models.turned_in_pairs, (q, k)), v])
    return copied(FastLlama(), state)


class SmallBlock(nn.Module):
    """A block of GPT-2 as a teaching project has it."""

    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.ModuleDict(dict(c_fc=nn.Linear(WIDTH, 4 * WIDTH), c_proj=nn.Linear(4 * WIDTH, WIDTH)))
        self.register_buffer("bias", torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64))

    def attn(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(WIDTH, dim=2)
        k = k.view(B, T, HEADS, C // HEADS).transpose(1, 2)
        q = q.view(B, T, HEADS, C // HEADS).transpose(1, 2)
        v = v.view(B, T, HEADS, C // HEADS).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = F.softmax(att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf")), dim=-1)
        return self.c_proj((att @ v).transpose(1, 2).contiguous().view(B, T, C))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        h = self.mlp.c_fc(self.ln_2(x))
        h = 0.5 * h * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (h + 0.044715 * torch.pow(h, 3.0))))
        return x + self.mlp.c_proj(h)


class SmallGPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer = nn.ModuleDict(
            dict(
                wte=nn.Embedding(WORDS, WIDTH), wpe=nn.Embedding(64, WIDTH), h=nn.ModuleList(SmallBlock() for _ in range(3)), ln_f=nn.LayerNorm(WIDTH)
            )
        )

    def forward(self, idx):
        pos = torch.arange(0, idx.shape[1], dtype=torch.long).unsqueeze(0)
        x = self.transformer.wte(idx) + self.transformer.wpe(pos)
        for block in self.transformer.h:
            x = block(x)
        return self.transformer.ln_f(x) @ self.transformer.wte.weight.T


def build_small_gpt(family, changes, attention):
    given = language_models.published("gpt2")
    state = {}
    for name, value in given.items():
        turned = value.T if name.endswith("weight") and ".h." in name and "ln_" not in name else value
        if not name.startswith("lm_head"):
            state[name.replace(".attn.", ".")] = turned
    return copied(SmallGPT(), state)


class Retention(nn.Module):
    """Retention without a rotary embedding: each head forgets at a rate of its own."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.g, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(5))
        self.group = nn.GroupNorm(HEADS, WIDTH)
        self.register_buffer("decay", torch.log(1 - 2.0 ** (-2.0 - torch.arange(HEADS, dtype=torch.float32))))

    def heads_of(self, x):
        return [t.unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for t in (self.q(x), self.k(x) * SIZE**-0.5, self.v(x))]

    def joined(self, y, x):
        """`y` is (batch, head, time, size)."""
        y = self.group(y.transpose(1, 2).reshape(-1, WIDTH)).view(x.shape)
        return self.o(F.silu(self.g(x)) * y)

    def forward(self, x):
        q, k, v = self.heads_of(x)
        places = torch.arange(x.shape[1])
        apart = (places[:, None] - places[None]).to(x.dtype)
        shares = torch.exp(self.decay[:, None, None] * apart.clamp(min=0)) * (apart >= 0)
        return self.joined((q @ k.transpose(-1, -2) * shares) @ v, x)


class RecurrentRetention(Retention):
    """A state for each head, token by token."""

    def forward(self, x):
        q, k, v = self.heads_of(x)
        keep, state, given = torch.exp(self.decay)[None, :, None, None], x.new_zeros(x.shape[0], HEADS, SIZE, SIZE), []
        for t in range(x.shape[1]):
            state = keep * state + k[:, :, t, :, None] * v[:, :, t, None, :]
            given.append((q[:, :, t, :, None] * state).sum(-2))
        return self.joined(torch.stack(given, 2), x)


class ChunkedRetention(Retention):
    """Four tokens at once, and a state from one such piece to the next."""

    def forward(self, x):
        q, k, v = self.heads_of(x)
        step = 4
        places = torch.arange(step, dtype=x.dtype)
        decay = self.decay[:, None]
        inside = torch.where(places[:, None] >= places, torch.exp(decay[..., None] * (places[:, None] - places)), 0.0)
        since, until = torch.exp(decay * (places + 1))[..., None], torch.exp(decay * (step - 1 - places))[..., None]
        state, given = x.new_zeros(x.shape[0], HEADS, SIZE, SIZE), []
        for start in range(0, x.shape[1], step):
            qs, ks, vs = (t[:, :, start : start + step] for t in (q, k, v))
            given.append(torch.einsum("bhqk,hqk,bhkd->bhqd", qs @ ks.mT, inside, vs) + (qs * since) @ state)
            state = torch.exp(decay * step)[..., None] * state + (ks * until).mT @ vs
        return self.joined(torch.cat(given, 2), x)


class Mixers(nn.Module):
    """Tokens, three layers of a mixer and a feed-forward, scores."""

    def __init__(self, mixer):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                dict(
                    norm=nn.RMSNorm(WIDTH, eps=1e-5),
                    mixer=mixer(),
                    feed_norm=nn.RMSNorm(WIDTH, eps=1e-5),
                    up=nn.Linear(WIDTH, 112),
                    down=nn.Linear(112, WIDTH),
                )
            )
            for _ in range(3)
        )
        self.norm, self.head = nn.RMSNorm(WIDTH, eps=1e-5), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + layer.mixer(layer.norm(x))
            x = x + layer.down(F.gelu(layer.up(layer.feed_norm(x))))
        return self.head(self.norm(x))


class FourierConvolution(nn.Module):
    """A filter as long as the sequence, by its transform; gates before and behind."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.filter, self.skip = nn.Parameter(torch.zeros(WIDTH, 12)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x):
        before, value, behind = self.into(x).transpose(1, 2).chunk(3, 1)
        u = value * before
        count = 2 * u.shape[-1]
        y = torch.fft.irfft(torch.fft.rfft(u, n=count) * torch.fft.rfft(self.filter, n=count), n=count)[..., : u.shape[-1]]
        return self.out(((y + u * self.skip[:, None]) * behind).transpose(1, 2))


class MatrixConvolution(FourierConvolution):
    """The same as a product with the matrix of the shifted filter."""

    def forward(self, x):
        before, value, behind = self.into(x).split(WIDTH, -1)
        u, length = value * before, x.shape[1]
        apart = torch.arange(length)[:, None] - torch.arange(length)
        shifted = self.filter[:, apart.clamp(min=0)] * (apart >= 0)
        return self.out((torch.einsum("dts,bsd->btd", shifted, u) + u * self.skip) * behind)


class PaddedConvolution(FourierConvolution):
    """The same as a grouped convolution over time."""

    def forward(self, x):
        before, value, behind = self.into(x).transpose(1, 2).chunk(3, 1)
        u = value * before
        y = F.conv1d(F.pad(u, (11, 0)), self.filter.flip(-1)[:, None], groups=WIDTH)
        return self.out(((y + u * self.skip.view(1, -1, 1)) * behind).mT)


BUILDERS = {
    **{(family, "peft"): build_peft for family in ADAPTED},
    **{(family, "byhand"): build_by_hand for family in ADAPTED},
    ("lora", "merged"): build_merged,
    ("llama", "decoded"): build_decoded,
    ("llama", "leftpadded"): build_left_padded,
    ("llama", "fastllama"): build_fast_llama,
    ("gpt2", "smallgpt"): build_small_gpt,
    ("retention", "parallel"): lambda *given: filled(Mixers(Retention)),
    ("retention", "recurrent"): lambda *given: filled(Mixers(RecurrentRetention)),
    ("retention", "chunked"): lambda *given: filled(Mixers(ChunkedRetention)),
    ("longconv", "fourier"): lambda *given: filled(Mixers(FourierConvolution)),
    ("longconv", "matrix"): lambda *given: filled(Mixers(MatrixConvolution)),
    ("longconv", "grouped"): lambda *given: filled(Mixers(PaddedConvolution)),
}
