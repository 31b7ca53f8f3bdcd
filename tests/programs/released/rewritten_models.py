"""Models written again from their papers, each by another habit: one flat tensor per kind of weight and a loop over tokens, a function over a dict
of weights, attention in chunks with a running softmax and derivatives by hand, a recurrence step by step, latent attention that is never
expanded, experts by dispatch and combine, LSTM cells by hand."""

import math

import language_models
import named_weights
import other_language_models
import ported_language_models
import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, GROUPS, SIZE, INNER, WORDS, LAYERS = 64, 4, 2, 16, 112, 96, 3


class Layer(nn.Module):
    """Weights of one layer under short names; `forward` gets what it needs."""

    def __init__(self, weights):
        super().__init__()
        for name, value in weights.items():
            self.register_parameter(name, nn.Parameter(value.clone()))


def rms(x, gain, eps=1e-5):
    return gain * (x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps))


class FlatLlama(nn.Module):
    """As a C program: all layers of one kind of weight in one tensor, a cache of keys and values, one token at a time, one head at a time."""

    def __init__(self, given):
        super().__init__()
        names = dict(rms_att="input_layernorm", rms_ffn="post_attention_layernorm", w1="mlp.gate_proj", w2="mlp.down_proj", w3="mlp.up_proj")
        names |= {f"w{k}": f"self_attn.{k}_proj" for k in "qkvo"}
        for ours, theirs in names.items():
            layers = [given[f"model.layers.{n}.{theirs}.weight"] for n in range(LAYERS)]
            turned = [ported_language_models.turned_in_pairs(w) for w in layers] if ours in ("wq", "wk") else layers
            self.register_parameter(ours, nn.Parameter(torch.stack(turned)))
        self.token_table, self.rms_final = nn.Parameter(given["model.embed_tokens.weight"]), nn.Parameter(given["model.norm.weight"])
        self.wcls = nn.Parameter(given["lm_head.weight"])

    def rotate(self, x, position):
        """Neighbours of each head turned by the position's angle."""
        rates = 10000.0 ** (-torch.arange(0, SIZE, 2, dtype=x.dtype) / SIZE)
        cos, sin = torch.cos(position * rates), torch.sin(position * rates)
        pairs = x.view(*x.shape[:-1], -1, SIZE // 2, 2)
        a, b = pairs[..., 0], pairs[..., 1]
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).view_as(x)

    def attend(self, q, keys, values):
        heads = []
        for h in range(HEADS):
            kv = slice((h // (HEADS // GROUPS)) * SIZE, (h // (HEADS // GROUPS) + 1) * SIZE)
            scores = [(q[:, h * SIZE : (h + 1) * SIZE] * k[:, kv]).sum(-1) / math.sqrt(SIZE) for k in keys]
            weights = torch.softmax(torch.stack(scores, -1), -1)
            heads.append(sum(weights[:, t, None] * v[:, kv] for t, v in enumerate(values)))
        return torch.cat(heads, -1)

    def step(self, token, position, cache):
        x = self.token_table[token]
        for n in range(LAYERS):
            h = rms(x, self.rms_att[n])
            q, k, v = h @ self.wq[n].T, h @ self.wk[n].T, h @ self.wv[n].T
            keys, values = cache[n]
            keys.append(self.rotate(k, position))
            values.append(v)
            x = x + self.attend(self.rotate(q, position), keys, values) @ self.wo[n].T
            h = rms(x, self.rms_ffn[n])
            gate = h @ self.w1[n].T
            x = x + (gate * (1.0 / (1.0 + torch.exp(-gate))) * (h @ self.w3[n].T)) @ self.w2[n].T
        return rms(x, self.rms_final) @ self.wcls.T

    def forward(self, tokens):
        cache = [([], []) for _ in range(LAYERS)]
        return torch.stack([self.step(tokens[:, t], t, cache) for t in range(tokens.shape[1])], 1)


class DictLlama(nn.Module):
    """Functions over a dict of weights, which are turned beforehand, by head, and stacked over the layers; the sequence comes first."""

    def __init__(self, given):
        super().__init__()
        self.weights = nn.ParameterDict({k: nn.Parameter(v.contiguous()) for k, v in self.stacked(given).items()})

    @staticmethod
    def stacked(given):
        def layers(name):
            return torch.stack([given[f"model.layers.{n}.{name}.weight"] for n in range(LAYERS)])

        by_head = {k: layers(f"self_attn.{k}_proj").unflatten(1, (-1, SIZE)).permute(0, 1, 3, 2) for k in "qkv"}
        out = layers("self_attn.o_proj").transpose(1, 2).unflatten(1, (HEADS, SIZE))
        gate_up = torch.stack([layers("mlp.gate_proj").transpose(1, 2), layers("mlp.up_proj").transpose(1, 2)], -1)
        weights = dict(**by_head, o=out, gate_up=gate_up, down=layers("mlp.down_proj").transpose(1, 2))
        weights |= dict(scale1=layers("input_layernorm"), scale2=layers("post_attention_layernorm"), scale=given["model.norm.weight"])
        return weights | dict(embed=given["model.embed_tokens.weight"], unembed=given["lm_head.weight"].T)

    def forward(self, tokens):
        w, x = self.weights, F.embedding(tokens.T, self.weights["embed"])
        angles = rope_angles(tokens.shape[1], x.dtype)
        bias = torch.where(torch.arange(tokens.shape[1])[:, None] >= torch.arange(tokens.shape[1])[None], 0.0, -1e30).to(x.dtype)
        for n in range(LAYERS):
            x = x + attention_of({k: w[k][n] for k in "qkvo"}, norm_of(x, w["scale1"][n]), angles, bias)
            x = x + feed_of(w["gate_up"][n], w["down"][n], norm_of(x, w["scale2"][n]))
        return torch.einsum("sbd,dv->bsv", norm_of(x, w["scale"]), w["unembed"])


def norm_of(x, scale):
    return torch.einsum("sbd,d,sb->sbd", x, scale, torch.rsqrt(torch.einsum("sbd,sbd->sb", x, x) / WIDTH + 1e-5))


def rope_angles(length, dtype):
    return torch.einsum("s,f->sf", torch.arange(length, dtype=dtype), torch.exp(-math.log(10000.0) * torch.arange(SIZE // 2, dtype=dtype) * 2 / SIZE))


def turned(x, angles):
    """x: (sequence, batch, head, size); its halves are turned."""
    one, other = x.split(SIZE // 2, -1)
    cos, sin = angles.cos()[:, None, None], angles.sin()[:, None, None]
    return torch.cat([one * cos - other * sin, other * cos + one * sin], -1)


def attention_of(w, x, angles, bias):
    q, k, v = (torch.einsum("sbd,hdc->sbhc", x, w[name]) for name in "qkv")
    q, k = turned(q, angles) * SIZE**-0.5, turned(k, angles)
    q = q.unflatten(2, (GROUPS, HEADS // GROUPS))
    scores = torch.einsum("qbgrc,kbgc->bgrqk", q, k) + bias
    scores = torch.exp(scores - scores.amax(-1, keepdim=True))
    mixed = torch.einsum("bgrqk,kbgc->qbgrc", scores / scores.sum(-1, keepdim=True), v)
    return torch.einsum("qbhc,hcd->qbd", mixed.flatten(2, 3), w["o"])


def feed_of(gate_up, down, x):
    gate, up = torch.einsum("sbd,dfk->ksbf", x, gate_up)
    return torch.einsum("sbf,fd->sbd", gate * torch.sigmoid(gate) * up, down)


class TanhGELU(torch.autograd.Function):
    """GELU's tanh form with its derivative by hand."""

    @staticmethod
    def forward(ctx, x):
        inner = torch.tanh(0.7978845608028654 * (x + 0.044715 * x**3))
        ctx.save_for_backward(x, inner)
        return 0.5 * x * (1.0 + inner)

    @staticmethod
    def backward(ctx, given):
        x, inner = ctx.saved_tensors
        slope = (1.0 - inner * inner) * 0.7978845608028654 * (1.0 + 3 * 0.044715 * x * x)
        return given * (0.5 * (1.0 + inner) + 0.5 * x * slope)


class OnlineBlock(Layer):
    def centred(self, x, gain, shift):
        x = x - x.mean(-1, keepdim=True)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * gain + shift

    def attend(self, q, k, v, block=4):
        """Keys in blocks; what was summed is scaled when a larger score comes."""
        length, kept = q.shape[2], []
        for start in range(0, length, block):
            rows = q[:, :, start : start + block]
            top = torch.full(rows.shape[:-1], -float("inf"), dtype=q.dtype)
            total, mixed = torch.zeros_like(top), torch.zeros_like(rows)
            for other in range(0, start + block, block):
                scores = rows @ k[:, :, other : other + block].mT * SIZE**-0.5
                seen = torch.arange(start, start + rows.shape[2])[:, None] >= torch.arange(other, other + block)[None]
                scores = scores.masked_fill(~seen, -float("inf"))
                higher = torch.maximum(top, scores.amax(-1))
                old, new = torch.exp(top - higher), torch.exp(scores - higher[..., None])
                total, mixed = total * old + new.sum(-1), mixed * old[..., None] + new @ v[:, :, other : other + block]
                top = higher
            kept.append(mixed / total[..., None])
        return torch.cat(kept, 2)

    def forward(self, x):
        h = self.centred(x, self.g1, self.b1)
        q, k, v = (torch.addmm(b, h.flatten(0, 1), w).view(*h.shape[:2], HEADS, SIZE).transpose(1, 2) for w, b in self.projections())
        y = self.attend(q, k, v).transpose(1, 2).flatten(2)
        x = x + y @ self.wo + self.bo
        h = TanhGELU.apply(self.centred(x, self.g2, self.b2) @ self.wi + self.bi)
        return x + h @ self.wd + self.bd

    def projections(self):
        return (self.wq, self.bq), (self.wk, self.bk), (self.wv, self.bv)


class OnlineGPT(nn.Module):
    def __init__(self, given):
        super().__init__()
        self.wte, self.wpe = nn.Parameter(given["transformer.wte.weight"]), nn.Parameter(given["transformer.wpe.weight"])
        self.gain, self.shift = nn.Parameter(given["transformer.ln_f.weight"]), nn.Parameter(given["transformer.ln_f.bias"])
        self.blocks = nn.ModuleList(OnlineBlock(self.layer(given, f"transformer.h.{n}.")) for n in range(LAYERS))

    @staticmethod
    def layer(given, old):
        w = {f"w{k}": part for k, part in zip("qkv", given[old + "attn.c_attn.weight"].chunk(3, 1))}
        w |= {f"b{k}": part for k, part in zip("qkv", given[old + "attn.c_attn.bias"].chunk(3))}
        for ours, theirs in (("o", "attn.c_proj"), ("i", "mlp.c_fc"), ("d", "mlp.c_proj")):
            w["w" + ours], w["b" + ours] = given[f"{old}{theirs}.weight"], given[f"{old}{theirs}.bias"]
        for n in "12":
            w["g" + n], w["b" + n] = given[f"{old}ln_{n}.weight"], given[f"{old}ln_{n}.bias"]
        return w

    def forward(self, tokens):
        x = F.embedding(tokens, self.wte) + self.wpe.narrow(0, 0, tokens.shape[1])
        for block in self.blocks:
            x = block(x)
        return F.layer_norm(x, (WIDTH,), self.gain, self.shift) @ self.wte.T


class RecurrentMixer(Layer):
    """Mamba-2 as it is defined: one state a head, updated token by token."""

    def forward(self, x):
        batch, length, _ = x.shape
        z, xbc, dt = (x @ self.win.T).split([128, 128 + 2 * GROUPS * 8, 8], -1)
        padded = F.pad(xbc, (0, 0, 3, 0))
        xbc = sum(padded[:, k : k + length] * self.kernel[:, k] for k in range(4)) + self.shift
        xbc = xbc * torch.sigmoid(xbc)
        x, b, c = xbc.split([128, GROUPS * 8, GROUPS * 8], -1)
        x = x.view(batch, length, 8, 16)
        b, c = (t.view(batch, length, GROUPS, 8).repeat_interleave(8 // GROUPS, 2) for t in (b, c))
        dt = torch.log1p(torch.exp(dt + self.dt_bias))
        decay = torch.exp(-dt * self.a_log.exp())
        state, out = x.new_zeros(batch, 8, 16, 8), []
        for t in range(length):
            state = decay[:, t, :, None, None] * state + (dt[:, t, :, None] * x[:, t])[..., None] * b[:, t, :, None]
            out.append((state * c[:, t, :, None]).sum(-1) + self.skip[:, None] * x[:, t])
        y = torch.stack(out, 1).flatten(2) * (z * torch.sigmoid(z))
        y = y.unflatten(-1, (GROUPS, -1))
        y = (y / torch.sqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).flatten(2) * self.gain
        return y @ self.wout.T


class RecurrentMamba(nn.Module):
    def __init__(self, given):
        super().__init__()
        self.words, self.output = nn.Parameter(given["backbone.embeddings.weight"]), nn.Parameter(given["lm_head.weight"])
        self.norm = nn.Parameter(given["backbone.norm_f.weight"])
        self.norms = nn.ParameterList(given[f"backbone.layers.{n}.norm.weight"] for n in range(LAYERS))
        names = dict(
            win="in_proj.weight", shift="conv1d.bias", dt_bias="dt_bias", a_log="A_log", skip="D", gain="norm.weight", wout="out_proj.weight"
        )
        layers = [{k: given[f"backbone.layers.{n}.mixer.{v}"] for k, v in names.items()} for n in range(LAYERS)]
        for n, layer in enumerate(layers):
            layer["kernel"] = given[f"backbone.layers.{n}.mixer.conv1d.weight"][:, 0]
        self.mixers = nn.ModuleList(RecurrentMixer(layer) for layer in layers)

    def forward(self, tokens):
        x = self.words[tokens]
        for norm, mixer in zip(self.norms, self.mixers):
            x = x + mixer(rms(x, norm))
        return rms(x, self.norm) @ self.output.T


class LatentAttention(Layer):
    """Keys and values stay latent: the queries are turned into their space, and the sum of latents out of it."""

    def forward(self, x, turns):
        batch, length, _ = x.shape
        q = (rms(x @ self.qa.T, self.qn, 1e-6) @ self.qb.T).view(batch, length, HEADS, 16)
        plain, turning = q.split([8, 8], -1)
        latent, key = (x @ self.kva.T).split([24, 8], -1)
        latent = rms(latent, self.kvn, 1e-6)
        turning, key = in_complex(turning, turns[:, None]), in_complex(key, turns)
        by_head = self.kvb.view(HEADS, 24, 24)
        up, out = by_head[:, :8], by_head[:, 8:]
        scores = torch.einsum("bqhd,hdr,bkr->bhqk", plain, up, latent) + torch.einsum("bqhd,bkd->bhqk", turning, key)
        scores = (scores / math.sqrt(16)).masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
        mixed = torch.einsum("bhqk,bkr->bqhr", scores.softmax(-1), latent)
        return torch.einsum("bqhr,hdr->bqhd", mixed, out).flatten(2) @ self.o.T


def in_complex(x, turns):
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turns).flatten(-2)


class Gated(Layer):
    def forward(self, x):
        return (F.silu(x @ self.gate.T) * (x @ self.up.T)) @ self.down.T


class GroupRouter(Layer):
    """DeepSeek's: sigmoids, a bias that chooses alone, the best groups, weights that are made one and scaled."""

    def forward(self, x):
        scores = torch.sigmoid(x @ self.weight.T)
        chosen_by = (scores + self.bias).unflatten(-1, (4, 2))
        groups = chosen_by.sum(-1).topk(2, -1).indices
        allowed = torch.zeros(len(x), 4, dtype=torch.bool).scatter(1, groups, True)
        chosen_by = chosen_by.masked_fill(~allowed[..., None], -torch.inf).flatten(1)
        best = chosen_by.topk(3, -1).indices
        weights = scores.gather(1, best)
        return best, weights / weights.sum(-1, keepdim=True) * 2.5


class Experts(nn.Module):
    """Each expert sees the tokens that chose it; its results are added at their rows."""

    def __init__(self, router, experts, shared):
        super().__init__()
        self.router, self.experts, self.shared = router, nn.ModuleList(experts), shared

    def forward(self, x):
        rows = x.flatten(0, 1)
        best, weights = self.router(rows)
        out = self.shared(rows)
        for number, expert in enumerate(self.experts):
            row, place = torch.where(best == number)
            out = out.index_add(0, row, expert(rows[row]) * weights[row, place, None])
        return out.view_as(x)


class LatentBlock(nn.Module):
    def __init__(self, given, n):
        super().__init__()
        old = f"model.layers.{n}."
        names = dict(qa="q_a_proj", qn="q_a_layernorm", qb="q_b_proj", kva="kv_a_proj_with_mqa", kvn="kv_a_layernorm", kvb="kv_b_proj", o="o_proj")
        self.attention = LatentAttention({k: given[f"{old}self_attn.{v}.weight"] for k, v in names.items()})
        self.norm1, self.norm2 = (nn.Parameter(given[f"{old}{v}.weight"]) for v in ("input_layernorm", "post_attention_layernorm"))

        def gated(place):
            return Gated({k: given[f"{old}mlp.{place}{k}_proj.weight"] for k in ("gate", "up", "down")})

        if n == 0:
            self.feed = gated("")
        else:
            router = GroupRouter(dict(weight=given[old + "mlp.gate.weight"], bias=given[old + "mlp.gate.e_score_correction_bias"]))
            router.bias.requires_grad_(False)
            self.feed = Experts(router, [gated(f"experts.{e}.") for e in range(8)], gated("shared_experts."))

    def forward(self, x, turns):
        x = x + self.attention(rms(x, self.norm1), turns)
        return x + self.feed(rms(x, self.norm2))


class LatentModel(nn.Module):
    def __init__(self, given):
        super().__init__()
        self.words, self.output = nn.Parameter(given["model.embed_tokens.weight"]), nn.Parameter(given["lm_head.weight"])
        self.blocks, self.norm = nn.ModuleList(LatentBlock(given, n) for n in range(LAYERS)), nn.Parameter(given["model.norm.weight"])

    def forward(self, tokens):
        x = self.words[tokens]
        rates = 10000.0 ** (-torch.arange(0, 8, 2, dtype=x.dtype) / 8)
        angles = torch.outer(torch.arange(tokens.shape[1], dtype=x.dtype), rates)
        turns = torch.polar(torch.ones_like(angles), angles)
        for block in self.blocks:
            x = block(x, turns)
        return rms(x, self.norm) @ self.output.T


class DispatchExperts(Layer):
    """One-hot tensors say which expert takes which token; every expert computes all tokens, and the combine tensor is zero where it was not chosen."""

    def forward(self, x):
        probabilities = F.softmax(torch.einsum("btd,ed->bte", x, self.router), -1)
        best, chosen = torch.topk(probabilities, 2, -1)
        combine = torch.einsum("btk,btke->bte", best, F.one_hot(chosen, 4).to(x.dtype))
        gate, up = torch.einsum("btd,efd->btef", x, self.w_in).chunk(2, -1)
        routed = torch.einsum("btef,edf,bte->btd", F.silu(gate) * up, self.w_out, combine)
        shared = (F.silu(x @ self.shared_gate.T) * (x @ self.shared_up.T)) @ self.shared_down.T
        return routed + torch.sigmoid(torch.einsum("btd,od->bto", x, self.shared_choice)) * shared


class GroupedAttention(Layer):
    """Queries of one group are taken as more rows against its one key."""

    def forward(self, x, angles):
        batch, length, _ = x.shape
        q, k, v = (F.linear(x, w, b).unflatten(-1, (-1, SIZE)) for w, b in ((self.wq, self.bq), (self.wk, self.bk), (self.wv, self.bv)))
        q, k = (turned(t.transpose(0, 1), angles).transpose(0, 1) for t in (q, k))
        q = q.unflatten(2, (GROUPS, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3)
        k, v = k.permute(0, 2, 3, 1), v.transpose(1, 2)
        scores = (q @ k).div(math.sqrt(SIZE))
        unseen = torch.ones(length, length, dtype=torch.bool).triu(1).repeat(HEADS // GROUPS, 1)
        mixed = torch.softmax(torch.where(unseen, torch.finfo(x.dtype).min, scores), -1) @ v
        mixed = mixed.unflatten(2, (-1, length)).permute(0, 3, 1, 2, 4).flatten(2)
        return mixed @ self.wo.T


class DispatchModel(nn.Module):
    def __init__(self, given):
        super().__init__()
        self.words, self.output = nn.Parameter(given["model.embed_tokens.weight"]), nn.Parameter(given["lm_head.weight"])
        self.norm = nn.Parameter(given["model.norm.weight"])
        self.attentions, self.feeds, self.norms = nn.ModuleList(), nn.ModuleList(), nn.ParameterList()
        for n in range(LAYERS):
            old = f"model.layers.{n}."
            w = {f"w{k}": given[f"{old}self_attn.{k}_proj.weight"] for k in "qkvo"} | {f"b{k}": given[f"{old}self_attn.{k}_proj.bias"] for k in "qkv"}
            self.attentions.append(GroupedAttention(w))
            w = dict(router="gate.weight", w_in="experts.gate_up_proj", w_out="experts.down_proj", shared_choice="shared_expert_gate.weight")
            w |= {f"shared_{k}": f"shared_expert.{k}_proj.weight" for k in ("gate", "up", "down")}
            self.feeds.append(DispatchExperts({k: given[f"{old}mlp.{v}"] for k, v in w.items()}))
            self.norms.extend([given[old + "input_layernorm.weight"], given[old + "post_attention_layernorm.weight"]])

    def forward(self, tokens):
        x, angles = self.words[tokens], rope_angles(tokens.shape[1], self.words.dtype)
        for n in range(LAYERS):
            x = x + self.attentions[n](rms(x, self.norms[2 * n]), angles)
            x = x + self.feeds[n](rms(x, self.norms[2 * n + 1]))
        return rms(x, self.norm) @ self.output.T


class TorchLSTM(nn.Module):
    """Words through two layers of torch's LSTM."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.output = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        return self.output(self.lstm(self.words(tokens))[0])


class Cell(Layer):
    """One matrix for input and state together; its gates in the order of TensorFlow: input, cell, forget, output."""

    def forward(self, x, state):
        h, c = state
        i, g, f, o = (torch.cat([x, h], 1) @ self.kernel + self.bias).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class CellLSTM(nn.Module):
    def __init__(self, given):
        super().__init__()
        self.words = nn.Parameter(given["words.weight"])
        self.cells = nn.ModuleList(Cell(self.cell(given, n)) for n in range(2))
        self.kernel, self.bias = nn.Parameter(given["output.weight"].T), nn.Parameter(given["output.bias"])

    @staticmethod
    def cell(given, n):
        both = torch.cat([given[f"lstm.weight_ih_l{n}"], given[f"lstm.weight_hh_l{n}"]], 1)
        bias = given[f"lstm.bias_ih_l{n}"] + given[f"lstm.bias_hh_l{n}"]
        order = [0, 2, 1, 3]
        return dict(kernel=both.unflatten(0, (4, -1))[order].flatten(0, 1).T, bias=bias.unflatten(0, (4, -1))[order].flatten())

    def forward(self, tokens):
        x = self.words[tokens]
        states = [(x.new_zeros(len(x), WIDTH), x.new_zeros(len(x), WIDTH)) for _ in self.cells]
        out = []
        for t in range(x.shape[1]):
            h = x[:, t]
            for n, cell in enumerate(self.cells):
                states[n] = cell(h, states[n])
                h = states[n][0]
            out.append(h)
        return torch.stack(out, 1) @ self.kernel + self.bias


def lstm():
    model = TorchLSTM()
    named_weights.fill(model)
    return model


BUILDERS = {
    ("llama", "flatllama"): lambda *given: FlatLlama(language_models.published("llama")),
    ("llama", "dictllama"): lambda *given: DictLlama(language_models.published("llama")),
    ("gpt2", "onlinegpt"): lambda *given: OnlineGPT(language_models.published("gpt2")),
    ("mamba2", "recurrent"): lambda *given: RecurrentMamba(other_language_models.published("mamba2")),
    ("deepseek", "latent"): lambda *given: LatentModel(other_language_models.one_by_one(other_language_models.published("deepseek"))),
    ("qwen2moe", "dispatch"): lambda *given: DispatchModel(other_language_models.published("qwen2moe")),
    ("lstm", "torchlstm"): lambda *given: lstm(),
    ("lstm", "cells"): lambda *given: CellLSTM(dict(lstm().named_parameters())),
}
