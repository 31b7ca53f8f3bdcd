"""Programs of served_ways about layers: latent rows, scaled positions, ranks."""

import math

import torch
import torch.nn.functional as F
from served_ways_frame import (
    ATTN,
    HEADS,
    HF,
    INNER,
    SIZE,
    VOCAB,
    WIDTH,
    AttentionA,
    Fault,
    GrownAttention,
    LmA,
    LmB,
    Part,
    Program,
    WrittenAttention,
    linear_of,
    one_request,
    rotate_half,
    tril,
)
from torch import nn

PROGRAMS = {}

# ---- latent attention: keys and values expanded, or their projections absorbed and the latent rows kept

RANK, TURNED, MSCALE = 12, 4, 1.2


def spun(x, positions):
    """Neighbouring features are the pairs (DeepSeek)."""
    angles = positions[:, None] * 1000.0 ** (-torch.arange(0, TURNED, 2) / TURNED)
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), -1).flatten(-2)


class ExpandedLatent(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.kv_a_proj_with_mqa = nn.Linear(WIDTH, HEADS * (SIZE + TURNED), bias=False), nn.Linear(WIDTH, RANK + TURNED, bias=False)
        self.kv_a_layernorm = nn.RMSNorm(RANK, eps=1e-6)
        self.kv_b_proj, self.o_proj = nn.Linear(RANK, HEADS * 2 * SIZE, bias=False), nn.Linear(HEADS * SIZE, WIDTH, bias=False)
        self.past = None

    def forward(self, x, start):
        time, positions = x.shape[1], torch.arange(start, start + x.shape[1])
        q = self.q_proj(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        latent, turned = self.kv_a_proj_with_mqa(x).split((RANK, TURNED), -1)
        k, v = self.kv_b_proj(self.kv_a_layernorm(latent)).unflatten(-1, (HEADS, -1)).transpose(1, 2).chunk(2, -1)
        turned = spun(turned, positions)[:, None].expand(-1, HEADS, -1, -1)
        q, k = torch.cat((q[..., :SIZE], spun(q[..., SIZE:], positions)), -1), torch.cat((k, turned), -1)
        k, v = AttentionA.grown(self, k, v)
        y = F.scaled_dot_product_attention(q, k, v, tril(time, start + time, start), scale=(SIZE + TURNED) ** -0.5 * MSCALE**2)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class ExpandedLm(LmA):
    def __init__(self):
        super().__init__(ExpandedLatent)


class AbsorbedLatent(Part):
    def __init__(self, theirs):
        super().__init__()
        self.wq, self.wo = linear_of(theirs.q_proj.weight), linear_of(theirs.o_proj.weight)
        self.wkv_a, self.wkv_b = linear_of(theirs.kv_a_proj_with_mqa.weight), nn.Parameter(theirs.kv_b_proj.weight.clone())
        self.kv_norm = nn.Parameter(theirs.kv_a_layernorm.weight.clone())
        self.register_buffer("kv_cache", torch.zeros(16, RANK))
        self.register_buffer("pe_cache", torch.zeros(16, TURNED))

    def forward(self, x, start):
        end, places = start + len(x), torch.arange(start, start + len(x))
        q, q_pe = self.wq(x).unflatten(-1, (HEADS, -1)).split((SIZE, TURNED), -1)
        q_pe = spun(q_pe.transpose(0, 1), places)
        latent, pe = self.wkv_a(x).split((RANK, TURNED), -1)
        first = start - 1 if self.bad("latent-row-overwritten") and start else start
        kept = latent if self.bad("latent-unnormed") else F.rms_norm(latent, (RANK,), self.kv_norm, 1e-6)
        self.kv_cache[first : first + len(x)] = kept
        self.pe_cache[start:end] = pe if self.bad("rotary-key-unrotated") else spun(pe, places)
        of_keys, of_values = self.wkv_b.view(HEADS, 2, SIZE, RANK).unbind(1)
        q = torch.einsum("nhs,hsr->hnr", q, of_values if self.bad("values-absorbed-for-keys") else of_keys)
        rows, turned = self.kv_cache[:end], self.pe_cache[:end]
        scale = (SIZE if self.bad("scale-without-rotary-size") else SIZE + TURNED) ** -0.5
        scale = scale if self.bad("mscale-left-out") else scale * MSCALE * MSCALE
        scores = (q @ rows.T + q_pe @ turned.T) * scale
        weights = scores.masked_fill(~tril(len(x), end, start), -torch.inf).softmax(-1)
        return self.wo(torch.einsum("hnr,hsr->nhs", weights @ rows, of_values).flatten(1))


class AbsorbedLm(LmB):
    def __init__(self, theirs):
        super().__init__(theirs, AbsorbedLatent, stack="layers", names=("attn_norm", "attn", "ffn_norm", "ffn"))


LATENT = "layers.1.attn"
PROGRAMS["latent-absorbed"] = Program(
    ExpandedLm,
    AbsorbedLm,
    one_request,
    {
        "latent-row-overwritten": Fault(LATENT, ATTN, near=r"self\.kv_cache\["),
        "latent-unnormed": Fault(LATENT, ATTN, r"self\.kv_a_layernorm\("),
        "rotary-key-unrotated": Fault(LATENT, ATTN, r"turned = spun"),
        "values-absorbed-for-keys": Fault(LATENT, ATTN),
        "scale-without-rotary-size": Fault(LATENT, ATTN, "scaled_dot_product", near="scores = "),
        "mscale-left-out": Fault(LATENT, ATTN, "scaled_dot_product", near="scores = "),
    },
)

# ---- scaled rotary positions: Llama 3.1's bands at the model, and YaRN in every layer

FACTOR, LOW, HIGH, OLD, BASE = 8.0, 1.0, 4.0, 24, 20.0


class BandedRotary(nn.Module):
    def forward(self, positions):
        inverse = 1.0 / BASE ** (torch.arange(0, SIZE, 2) / SIZE)
        length = 2 * math.pi / inverse
        scaled = torch.where(length > OLD / LOW, inverse / FACTOR, inverse)
        smooth = (OLD / length - LOW) / (HIGH - LOW)
        smoothed = (1 - smooth) * scaled / FACTOR + smooth * scaled
        medium = ~(length < OLD / HIGH) * ~(length > OLD / LOW)
        inverse = torch.where(medium, smoothed, scaled)
        angles = torch.cat([torch.outer(positions, inverse)] * 2, -1)
        return angles.cos(), angles.sin()


class GivenAttention(AttentionA):
    """Cosines and sines come from outside, or from its own `rotary_emb`."""

    def forward(self, x, start, turn=None):
        time, shape = x.shape[1], (*x.shape[:2], -1, SIZE)
        cos, sin = turn or self.rotary_emb(torch.arange(start, start + time))
        q, k, v = (p(x).view(shape).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        return self.attend(q, *self.grown(k, v), tril(time, start + time, start))


class BandedLm(LmA):
    def __init__(self):
        super().__init__(GivenAttention)
        self.model.rotary_emb = BandedRotary()

    def forward(self, ids, start):
        turn = self.model.rotary_emb(torch.arange(start, start + ids.shape[1]))
        return super().forward(ids, start=start, turn=turn)


class FrequencyTable(Part):
    """A band at a time, as Meta's own code has it; the turned table of complex numbers is of all positions."""

    def __init__(self, theirs=None):
        super().__init__()
        self.register_buffer("freqs", BASE ** (-torch.arange(0, SIZE, 2) / SIZE))

    def forward(self):
        low, high = OLD / LOW, OLD / HIGH
        low, high = (low, high * 3) if self.bad("high-band-too-long") else (low, high)
        kept = []
        for f in self.freqs.unbind():
            length = 2 * math.pi / f
            if length < high:
                kept.append(f)
            elif length > low:
                kept.append(f if self.bad("factor-left-out") else f / FACTOR)
            else:
                smooth = (OLD / length - LOW) / (HIGH - LOW)
                smooth = 1 - smooth if self.bad("smoothing-inverted") else smooth
                slow = f * FACTOR if self.bad("multiplied-by-factor") else f / FACTOR
                kept.append(f if self.bad("middle-band-unscaled") else smooth * f + (1 - smooth) * slow)
        angles = torch.outer(torch.arange(16, dtype=self.freqs.dtype), torch.stack(kept))
        return torch.cat((angles.cos(), angles.sin()), -1)


class TabledAttention(WrittenAttention):
    def forward(self, x, start, table=None):
        self.table = table
        return super().forward(x, start=start)


class TabledLm(LmB):
    def __init__(self, theirs):
        super().__init__(theirs, TabledAttention, stack="h")
        self.rope = FrequencyTable()

    def forward(self, ids, start):
        return super().forward(ids, start=start, table=self.rope())


BANDS = (HF.split(".")[0] + ".rotary_emb",)
PROGRAMS["rotary-in-bands"] = Program(
    BandedLm,
    TabledLm,
    one_request,
    {
        "high-band-too-long": Fault("rope", BANDS, "inverse = torch.where|medium =", near=r"kept\.append"),
        "factor-left-out": Fault("rope", BANDS, "inverse / FACTOR, inverse"),
        "smoothing-inverted": Fault("rope", BANDS, "smoothed = "),
        "multiplied-by-factor": Fault("rope", BANDS, "smoothed = "),
        "middle-band-unscaled": Fault("rope", BANDS, "smoothed = "),
    },
)


class YarnRotary(nn.Module):
    """YaRN (Peng et al. 2023) as transformers writes it: a factor of the attention on cosines and sines."""

    def forward(self, positions):
        def dim_of(turns):
            return SIZE * math.log(OLD / (turns * 2 * math.pi)) / (2 * math.log(BASE))

        low, high = max(math.floor(dim_of(3.0)), 0), min(math.ceil(dim_of(0.5)), SIZE - 1)
        ramp = ((torch.arange(SIZE // 2) - low) / (high - low)).clamp(0, 1)
        powers = BASE ** (torch.arange(0, SIZE, 2) / SIZE)
        inverse = ramp / (FACTOR * powers) + (1 - ramp) / powers
        angles = torch.cat([positions[:, None] * inverse] * 2, -1)
        attention_factor = 0.1 * math.log(FACTOR) + 1.0
        return angles.cos() * attention_factor, angles.sin() * attention_factor


class YarnAttention(GivenAttention):
    def __init__(self):
        super().__init__()
        self.rotary_emb = YarnRotary()


class YarnLm(LmA):
    def __init__(self):
        super().__init__(YarnAttention)


class YarnTurn(Part):
    def __init__(self):
        super().__init__()
        self.register_buffer("theta", BASE ** (-torch.arange(0, SIZE, 2) / SIZE))

    def forward(self, x, places):
        """x (n, heads, size) without the factor of the attention, which the scores have squared."""
        turns = self.theta * OLD / (2 * math.pi)
        fast, slow = (0.5, 3.0) if self.bad("borders-exchanged") else (3.0, 0.5)
        fast, slow = ((SIZE / 2) * math.log(OLD / (2 * math.pi * b), BASE) for b in (fast, slow))
        start, stop = (fast, slow) if self.bad("borders-unrounded") else (max(int(fast // 1), 0), min(-int(-slow // 1), SIZE - 1))
        share = 1 - torch.clamp((torch.arange(len(turns)) - start) / (stop - start), min=0, max=1)
        share = 1 - share if self.bad("ramp-inverted") else share
        theta = self.theta / FACTOR if self.bad("all-interpolated") else self.theta * (share + (1 - share) / FACTOR)
        angles = (places[:, None] * theta)[:, None]
        turned = torch.view_as_complex(torch.stack(x.chunk(2, -1), -1)) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat((turned.real, turned.imag), -1)


class YarnTurnedAttention(WrittenAttention):
    def __init__(self, theirs):
        super().__init__(theirs)
        self.rope = YarnTurn()

    def turned(self, x, places):
        return self.rope(x, places)

    def mixed(self, q, k, v, allowed):
        factor = 0.1 * math.log(FACTOR) + 1
        q = q if self.bad("attention-factor-left-out") else q * factor**2
        return super().mixed(q, k, v, allowed)


class YarnTurnedLm(LmB):
    def __init__(self, theirs):
        super().__init__(theirs, YarnTurnedAttention)


YARN = ("blocks.1.attn.rope", (HF + "self_attn.rotary_emb",))
PROGRAMS["rotary-yarn"] = Program(
    YarnLm,
    YarnTurnedLm,
    one_request,
    {
        "borders-exchanged": Fault(*YARN, "low, high = ", near="share = "),
        "borders-unrounded": Fault(*YARN, "low, high = ", near="share = "),
        "ramp-inverted": Fault(*YARN, "ramp = |inverse = ramp"),
        "all-interpolated": Fault(*YARN, "inverse = ramp"),
        "attention-factor-left-out": Fault("blocks.1.attn", ATTN, r"\* attention_factor"),
    },
)

# ---- one device, or two ranks in one process: heads, columns and vocabulary cut


class BiasedMlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc_in, self.fc_out = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x, **context):
        return self.fc_out(F.gelu(self.fc_in(x), approximate="tanh"))


class WholeModel(LmA):
    def __init__(self):
        super().__init__(GrownAttention, BiasedMlp, names=("norm_1", "attention", "norm_2", "ff"))


class ShardedEmbedding(Part):
    def __init__(self, weight):
        super().__init__()
        self.shards = nn.ParameterList(w.clone() for w in weight.chunk(2))

    def forward(self, ids):
        total, half = 0, VOCAB // 2
        for rank, shard in enumerate(self.shards):
            ours = (ids >= rank * half) & (ids < (rank + 1) * half)
            local = ids.clamp(max=half - 1) if self.bad("vocabulary-offset-left-out") else (ids - rank * half).clamp(0, half - 1)
            rows = shard[local]
            total = total + (rows if self.bad("rows-of-others-unmasked") else rows * ours[:, None])
        return total


class ShardedMlp(Part):
    def __init__(self, theirs):
        super().__init__()
        self.up = nn.ParameterList(w.clone() for w in theirs.fc_in.weight.chunk(2))
        self.up_bias = nn.ParameterList(b.clone() for b in theirs.fc_in.bias.chunk(2))
        self.down = nn.ParameterList(w.clone() for w in theirs.fc_out.weight.chunk(2, 1))
        self.down_bias = nn.Parameter(theirs.fc_out.bias.clone())

    def forward(self, x, **context):
        parts = []
        for rank in range(2):
            h = x @ self.up[rank].T + self.up_bias[0 if self.bad("bias-of-rank-0") else rank]
            h = 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
            parts.append(h @ self.down[rank].T)
        total = parts[0] if self.bad("sum-over-ranks-left-out") else parts[0] + parts[1]
        return total + self.down_bias * (2 if self.bad("bias-added-by-each-rank") else 1)


class ShardedAttention(WrittenAttention):
    def __init__(self, theirs):
        super().__init__(theirs)
        self.outs = nn.ParameterList(w.clone() for w in theirs.o_proj.weight.chunk(2, 1))
        del self.wo

    def forward(self, x, start):
        end, both = start + len(x), []
        q, self.rows[0, start:end], self.rows[1, start:end] = self.project(x, torch.arange(start, end))
        for rank, heads in enumerate(q.chunk(2, 1)):
            k, v = self.rows[:, :end, 0 if self.bad("kv-head-of-rank-0") else rank]
            scores = torch.einsum("nhs,ms->hnm", heads, k) / SIZE**0.5
            scores = scores + torch.zeros(len(x), end).masked_fill(~tril(len(x), end, start), -torch.inf)
            both.append(torch.einsum("hnm,ms->nhs", scores.softmax(-1), v).flatten(1))
        outs = reversed(self.outs) if self.bad("output-shards-exchanged") else self.outs
        return sum(F.linear(y, w) for y, w in zip(both, outs))


class ShardedLm(LmB):
    def __init__(self, theirs):
        super().__init__(theirs, ShardedAttention, ShardedMlp, names=("pre", "mix", "post", "ff"))
        self.tok = ShardedEmbedding(theirs.model.embed_tokens.weight)


FF, TOK, MIX = ("blocks.1.ff", (HF + "ff",)), ("tok", ("model.embed_tokens",)), ("blocks.1.mix", (HF + "attention",))
PROGRAMS["whole-sharded"] = Program(
    WholeModel,
    ShardedLm,
    one_request,
    {
        "vocabulary-offset-left-out": Fault(*TOK, near="rows = shard"),
        "rows-of-others-unmasked": Fault(*TOK),
        "bias-of-rank-0": Fault(*FF),
        "sum-over-ranks-left-out": Fault(*FF),
        "bias-added-by-each-rank": Fault(*FF),
        "kv-head-of-rank-0": Fault(*MIX),
        "output-shards-exchanged": Fault(*MIX, near="zip\\(both, outs"),
    },
)
