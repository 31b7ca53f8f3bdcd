"""Programs of low_served about what is kept between steps: keys and values in fp8 pages and in an int8 ring, latents, normed keys."""

import math

import torch
import torch.nn.functional as F
from low_served_floats import E4M3, eight_bits
from low_served_frame import (
    ATTN,
    B_ATTN,
    EXCHANGED,
    GROUP,
    HALF,
    HEADS,
    KV,
    LATE,
    SIZE,
    WIDTH,
    AttentionA,
    AttentionB,
    Fault,
    FlatNormA,
    Kept,
    LayerA,
    LmA,
    LmB,
    MlpA,
    MlpB,
    NormA,
    NormB,
    Part,
    Program,
    Rows,
    held,
    linear_of,
    plain,
    rotary,
    tokens,
    tril,
    turned,
    two_requests,
    up,
)
from low_served_scores import PaddedAttention, PaddedRoot
from torch import nn

PROGRAMS = {}

# ---- fp8 with static scales in the last layer: rounded there and back in one forward, or codes in pages of a pool

PAGE, K_SCALE, V_SCALE = 4, 0.03, 0.007


def there_and_back(x, scale):
    return (up(eight_bits(x, scale)).to(up(x).dtype) * scale).to(x.dtype)


class RoundedAttention(AttentionA):
    coded = False

    def forward(self, x):
        q, k, v = self.split(x)
        places = torch.arange(x.shape[1])
        q, k = rotary(q, places), rotary(k, places)
        if self.coded:
            k, v = there_and_back(k, K_SCALE), there_and_back(v, V_SCALE)
        return self.attend(q, k, v)


class LastCoded(LmA):
    def prepare(self):
        self.model.layers[-1].self_attn.coded = True


class RoundedLm(LastCoded):
    kinds = (RoundedAttention, MlpA, FlatNormA, LayerA)


class Pool(Kept):
    """Bytes of keys and values, (2, pages, PAGE, KV, SIZE); written and read at the places of a table of pages."""

    def __init__(self, coded):
        self.coded, self.scales, self.bytes = coded, [K_SCALE, V_SCALE], None

    def put(self, table, places, *fresh):
        if self.bytes is None:
            self.bytes = fresh[0].new_zeros(2, 7, PAGE, KV, SIZE, dtype=torch.uint8 if self.coded else None)
        late = places + 1 if self.bad("slot-one-late") else places
        for i, (y, scale) in enumerate(zip(fresh, self.scales)):
            scale = scale / 16 if self.bad("written-with-stale-scale") and places[0] else scale
            y = eight_bits(y, scale).view(torch.uint8) if self.coded else y
            self.bytes[i][table[late // PAGE], late % PAGE] = y

    def get(self, table, end, kind):
        table = table.roll(1) if self.bad("pages-in-wrong-order") else table
        read = self.bytes[:, table].flatten(1, 2)[:, :end]
        if not self.coded:
            return read
        scales = [1.0, 1.0] if self.bad("read-without-scale") else self.scales
        scales = [scales[0]] * 2 if self.bad("key-scale-for-values") else scales
        codes = read.view(torch.float8_e4m3fnuz if self.bad("read-as-other-format") else E4M3)
        wide = up(codes).to(torch.get_default_dtype())
        return [(y * scale).to(kind) for y, scale in zip(wide, scales)]


class PagedAttention(AttentionB):
    def __init__(self, theirs):
        super().__init__(theirs)
        self.pool, self.table = Pool(theirs.coded), None

    def forward(self, x, start):
        q, k, v = self.split(x)
        places = torch.arange(start, start + len(x))
        table = self.table.flip(0) if self.bad("table-of-other-request") and start else self.table
        self.pool.put(self.table[0], places, turned(k, places), v)
        return self.wo(self.mixed(turned(q, places), *self.pool.get(table[0], start + len(x), x.dtype)))


class PagedLm(LmB):
    kinds = (PagedAttention, MlpB, NormB)

    def step(self, table, ids, start):
        for block in self.blocks:
            block.attn.table = table
        return self(ids, start)[-1]

    def serve(self, requests):
        tables = torch.tensor([[5, 2, 3], [1, 6, 0]])
        tables = [tables, tables.flip(0)]
        rows = [[self.step(table, prompt, 0)] for table, (prompt, _) in zip(tables, requests)]
        for t in range(3):
            for row, table, (prompt, forced) in zip(rows, tables, requests):
                row.append(self.step(table, forced[t : t + 1], len(prompt) + t))
        return torch.stack(sum(rows, []))


PROGRAMS["fp8-pages"] = Program(
    RoundedLm,
    PagedLm,
    lambda: [(tokens(7), tokens(3)), (tokens(6), tokens(3))],
    {
        "slot-one-late": Fault(B_ATTN, ATTN, near=r"self\.bytes\[i\]", subtle=True),
        "written-with-stale-scale": Fault(B_ATTN, ATTN, near="y = eight_bits"),
        "pages-in-wrong-order": Fault(B_ATTN, ATTN, near="read = self.bytes"),
        "read-without-scale": Fault(B_ATTN, ATTN, near=r"y \* scale\)\.to\(kind"),
        "key-scale-for-values": Fault(B_ATTN, ATTN, near=r"y \* scale\)\.to\(kind"),
        "read-as-other-format": Fault(B_ATTN, ATTN),
        "table-of-other-request": Fault(B_ATTN, ATTN, near=r"self\.pool\.get"),
        "gate-and-up-exchanged": EXCHANGED,
    },
)

# ---- int8 with a scale for each token and head, and a window: a masked forward, or a ring of slots

WINDOW = 4


def integers(x):
    scale = up(x).abs().amax(-1, keepdim=True) / 127
    return torch.round(up(x) / scale), scale


class WindowAttention(AttentionA):
    def attend(self, q, k, v):
        (k, of_k), (v, of_v) = integers(k), integers(v)
        k, v = (y.repeat_interleave(GROUP, 1) for y in ((k * of_k).to(q.dtype), (v * of_v).to(q.dtype)))
        time = q.shape[2]
        allowed = tril(time) & ~tril(time, ahead=-WINDOW)
        scores = (q @ k.mT).mul(SIZE**-0.5).masked_fill(~allowed, -torch.inf)
        return self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class WindowLm(LmA):
    kinds = (WindowAttention, MlpA, NormA, LayerA)


class Ring(Kept):
    """WINDOW slots of codes, their scales, and the place that lies in each (-1: none yet)."""

    def __init__(self):
        self.clear()

    def clear(self):
        self.codes, self.scales = torch.zeros(2, WINDOW, KV, SIZE, dtype=torch.int8), torch.zeros(2, WINDOW, KV, 1)
        self.places = torch.full((WINDOW,), -1)

    def put(self, place, both):
        slots = WINDOW - 1 if self.bad("ring-one-slot-short") else WINDOW
        scale = up(both).abs().amax(-1, keepdim=True) / 127
        codes = up(both) / scale
        codes = codes.clamp(-63, 63) if self.bad("saturates-at-half") else codes
        self.codes[:, place % slots] = codes.round().to(torch.int8)
        if not (self.bad("scale-of-slot-kept") and place >= slots):
            self.scales[:, place % slots] = scale.to(self.scales.dtype)
        self.places[place % slots] = place

    def get(self, place, kind):
        scales = self.scales.flip(0) if self.bad("scales-of-keys-and-values-exchanged") else self.scales
        scales = scales.roll(1, 1) if self.bad("scale-of-slot-before") else scales
        codes = self.codes - 8 if self.bad("zero-point-taken-off") else self.codes
        seen = self.places > place - (WINDOW - 1 if self.bad("window-one-short") else WINDOW)
        return *(codes * scales).to(kind), seen & (self.places >= 0)


class RingAttention(AttentionB):
    def __init__(self, theirs):
        super().__init__(theirs)
        self.ring = Ring()

    def forward(self, x, start):
        if start == 0:
            self.ring.clear()
        places = torch.arange(start, start + len(x))
        q, k, v = self.split(x)
        q, k = turned(q, places), turned(k, places % WINDOW if self.bad("position-of-slot") else places)
        rows = []
        for t, place in enumerate(places.tolist()):
            self.ring.put(place, torch.stack((k[t], v[t])))
            keys, values, seen = self.ring.get(place, x.dtype)
            scores = torch.einsum("kgs,mks->kgm", q[t].unflatten(0, (KV, GROUP)), keys) / SIZE**0.5
            weights = torch.where(seen, scores, -torch.inf).softmax(-1)
            rows.append(torch.einsum("kgm,mks->kgs", weights, values).flatten())
        return self.wo(torch.stack(rows))


class RingLm(LmB):
    kinds = (RingAttention, MlpB, NormB)


PROGRAMS["int8-ring"] = Program(
    WindowLm,
    RingLm,
    two_requests,
    {
        "ring-one-slot-short": Fault(B_ATTN, ATTN, near=r"self\.codes\[:, place"),
        "saturates-at-half": Fault(B_ATTN, ATTN, near="codes.round"),
        "scale-of-slot-kept": Fault(B_ATTN, ATTN, near=r"self\.scales\[:, place"),
        "scales-of-keys-and-values-exchanged": Fault(B_ATTN, ATTN, near=r"codes \* scales\)"),
        "scale-of-slot-before": Fault(B_ATTN, ATTN, near=r"codes \* scales\)"),
        "zero-point-taken-off": Fault(B_ATTN, ATTN, near=r"codes \* scales\)"),
        "window-one-short": Fault(B_ATTN, ATTN),
        "position-of-slot": Fault(B_ATTN, ATTN),
    },
    seed=6,
)

# ---- a latent for keys and values (DeepSeek's MLA): expanded by head, or absorbed into queries and outputs

RANK, NOPE, ROPE, STRETCH = 12, 8, 4, 1.5


def pairs_turned(x, places):
    """Neighbours turned as one, (…, time, ROPE)."""
    angles = up(places[:, None]) / 100.0 ** (torch.arange(0, ROPE, 2) / ROPE)
    a, b = x[..., ::2], x[..., 1::2]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


class LatentAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.kv_a_proj_with_mqa = plain(WIDTH, HEADS * (NOPE + ROPE)), plain(WIDTH, RANK + ROPE)
        self.kv_a_layernorm, self.kv_b_proj = NormA(RANK), plain(RANK, HEADS * (NOPE + SIZE))
        self.o_proj = plain(HEADS * SIZE, WIDTH)

    def prepare(self):
        self.q_proj.weight.mul_(0.4)  # else the largest score has all the weight, whatever its scale

    def forward(self, x):
        places, time = torch.arange(x.shape[1]), x.shape[1]
        q, q_rope = self.q_proj(x).unflatten(-1, (HEADS, -1)).transpose(1, 2).split((NOPE, ROPE), -1)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split((RANK, ROPE), -1)
        k, v = self.kv_b_proj(self.kv_a_layernorm(latent)).unflatten(-1, (HEADS, -1)).transpose(1, 2).split((NOPE, SIZE), -1)
        k_rope = pairs_turned(k_rope, places)[:, None].expand(-1, HEADS, -1, -1)
        q, k = torch.cat((q, pairs_turned(q_rope, places)), -1), torch.cat((k, k_rope), -1)
        y = F.scaled_dot_product_attention(q, k, v, tril(time), scale=(NOPE + ROPE) ** -0.5 * STRETCH**2)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class LatentLm(LmA):
    kinds = (LatentAttention, MlpA, NormA, LayerA)


class AbsorbedAttention(AttentionB):
    def __init__(self, theirs):
        Part.__init__(self)
        self.q, self.kv_a, self.wo = (linear_of(p.weight) for p in (theirs.q_proj, theirs.kv_a_proj_with_mqa, theirs.o_proj))
        of_heads = theirs.kv_b_proj.weight.unflatten(0, (HEADS, NOPE + SIZE))
        self.w_uk, self.w_uv = held(of_heads[:, :NOPE]), held(of_heads[:, NOPE:].transpose(1, 2))
        self.kv_norm, self.rows = NormB(theirs.kv_a_layernorm), Rows()

    def spun(self, x, places):
        angles = torch.outer(places, 100.0 ** (torch.arange(0, ROPE, 2) / -ROPE))
        a, b = up(x).chunk(2, -1) if self.bad("halves-for-pairs") else up(x).unflatten(-1, (-1, 2)).unbind(-1)
        angles = angles[:, None] if x.dim() == 3 else angles
        return torch.stack((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), -1).flatten(-2).to(x.dtype)

    def forward(self, x, start):
        places = self.places(start, len(x))
        q, q_rope = self.q(x).unflatten(-1, (HEADS, -1)).split((NOPE, ROPE), -1)
        latent, k_rope = self.kv_a(x).split((RANK, ROPE), -1)
        latent = latent if self.bad("latent-norm-left-out") else self.kv_norm(latent)[0]
        turned_key = k_rope if self.bad("decode-key-unrotated") and start else self.spun(k_rope, places)
        latents, k_ropes = self.rows.put(start, latent, turned_key)
        w_uk = self.w_uk.flip(0) if self.bad("absorbed-in-wrong-heads") else self.w_uk
        w_uv = self.w_uk.transpose(1, 2) if self.bad("key-part-for-values") else self.w_uv
        absorbed = torch.einsum("nhs,hsr->nhr", q, w_uk)
        scores = torch.einsum("nhr,mr->hnm", absorbed, latents) + torch.einsum("nhs,ms->hnm", self.spun(q_rope, places), k_ropes)
        scale = 1.0 if self.bad("scale-left-out") else (NOPE + ROPE) ** -0.5
        scale = scale if self.bad("stretch-left-out") else scale * STRETCH**2
        weights = (scores * scale).masked_fill(~tril(len(x), len(latents), start), -torch.inf).softmax(-1)
        mixed = torch.einsum("hnm,mr->nhr", weights, latents)
        return self.wo(torch.einsum("nhr,hrs->nhs", mixed, w_uv).flatten(1))


class AbsorbedLm(LmB):
    kinds = (AbsorbedAttention, MlpB, NormB)


PROGRAMS["latent-absorbed"] = Program(
    LatentLm,
    AbsorbedLm,
    two_requests,
    {
        "halves-for-pairs": Fault(B_ATTN, ATTN),
        "latent-norm-left-out": Fault(B_ATTN, ATTN, "kv_a_layernorm\\(latent", near=r"self\.rows\.put\(start, latent"),
        "decode-key-unrotated": Fault(B_ATTN, ATTN, near=r"self\.rows\.put\(start, latent", subtle=True),
        "absorbed-in-wrong-heads": Fault(B_ATTN, ATTN, near="absorbed = "),
        "key-part-for-values": Fault(B_ATTN, ATTN, near=r"nhr,hrs->nhs"),
        "scale-left-out": Fault(B_ATTN, ATTN, near="scores \\* scale"),
        "stretch-left-out": Fault(B_ATTN, ATTN, "scale=\\(NOPE", near="scores \\* scale"),
        "decode-position-one-late": LATE,
    },
    seed=5,
)

# ---- norms of queries and keys (Qwen3): one request at a time, or a batch padded on the left; fp16


class NormedAttention(AttentionA):
    def __init__(self):
        super().__init__()
        self.q_norm, self.k_norm = NormA(SIZE), NormA(SIZE)

    def split(self, x):
        q, k, v = super().split(x)
        return self.q_norm(q), self.k_norm(k), v


class NormedLm(LmA):
    kinds = (NormedAttention, MlpA, NormA, LayerA)


class NormedPadded(PaddedAttention):
    def __init__(self, theirs):
        super().__init__(theirs)
        self.qn, self.kn = held(theirs.q_norm.weight * SIZE**-0.5), held(theirs.k_norm.weight)

    def split(self, x):
        q, k, v = super().split(x)
        q = q * self.qn if self.bad("query-unnormed") else F.rms_norm(q, (SIZE,), self.qn, 1e-6)
        if self.bad("key-norm-over-all-heads"):
            return q * math.sqrt(SIZE), F.rms_norm(k, (KV, SIZE), self.kn.expand(KV, SIZE), 1e-6), v
        key_norm = self.qn * math.sqrt(SIZE) if self.bad("key-norm-of-queries") else self.kn
        k = F.rms_norm(k, (SIZE,), None if self.bad("key-norm-without-weight") else key_norm, 1e-6)
        return (q if self.bad("scale-twice") else q * math.sqrt(SIZE)), k, v


class NormedEngine(PaddedRoot):
    kinds = (NormedPadded, MlpB, NormB)

    def serve(self, requests):
        longest = max(len(prompt) for prompt, _ in requests)
        pads = torch.tensor([longest - len(prompt) for prompt, _ in requests])
        batch = torch.stack([torch.cat((prompt.new_zeros(longest - len(prompt)), prompt)) for prompt, _ in requests])
        logits = [self(batch, 0, pads)]
        for t, token in enumerate(torch.stack([forced for _, forced in requests], 1)):
            logits.append(self(token[:, None], longest + t, pads))
        return torch.stack(logits, 1).flatten(0, 1)


PROGRAMS["normed-padded"] = Program(
    NormedLm,
    NormedEngine,
    lambda: [(tokens(n), tokens(3)) for n in (7, 3, 5)],
    {
        "query-unnormed": Fault(B_ATTN, ATTN, r"self\.q_norm\("),
        "key-norm-over-all-heads": Fault(B_ATTN, ATTN, r"self\.k_norm\(", near=r"\(KV, SIZE\), self\.kn"),
        "key-norm-of-queries": Fault(B_ATTN, ATTN, r"self\.k_norm\(", near="k = F.rms_norm"),
        "key-norm-without-weight": Fault(B_ATTN, ATTN, r"self\.k_norm\("),
        "scale-twice": Fault(B_ATTN, ATTN),
        "decode-position-of-slot": Fault(B_ATTN, ATTN),
        "padding-seen": Fault(B_ATTN, ATTN, near="allowed = "),
        "rows-of-other-request": Fault(B_ATTN, ATTN, near=r"keys\.roll\(1, 0\)"),
    },
    (HALF, HALF),
)
