"""Programs of low_served that multiply with codes as today's servers do: AWQ, W8A8 with zero points, fp8 by blocks and by alpha,
HQQ, LLM.int8(), Marlin's order, ternary bytes, sums of two codebooks, LoRA beside int4, coded tables, rotated weights."""

import torch
import torch.nn.functional as F
from low_served_floats import B_QKV, B_W2, B_W13, B_WO, E4M3, LARGEST, CodedInputs, eight_bits, engine, trainer
from low_served_frame import (
    ATTN,
    B_ATTN,
    BASE,
    BRAIN,
    DOWN,
    EPS,
    EXCHANGED,
    FULL,
    GATE_UP,
    HALF,
    INNER,
    LATE,
    NORM2,
    OUT,
    QKV,
    RESIDUAL,
    SHORT,
    SIZE,
    TILED,
    WIDTH,
    AttentionB,
    Fault,
    FlatNormA,
    LmA,
    LmB,
    NormB,
    Part,
    Program,
    held,
    two_requests,
    up,
)
from torch import nn

PROGRAMS = {}
MLP_ALL = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


class Unbiased(nn.Linear):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs, bias=False)


def joined(kind):
    """A class of parts coded apart, whose outputs are joined."""

    class Joined(nn.Module):
        def __init__(self, *theirs):
            super().__init__()
            self.parts = nn.ModuleList(kind(t) for t in theirs)

        def forward(self, x):
            return torch.cat([part(x) for part in self.parts], -1)

    return Joined


def unsigned_groups(groups, dim=-1):
    """Codes of four bits, scales and whole zero points of groups along a dimension."""
    low, high = groups.amin(dim, keepdim=True).clamp(max=0), groups.amax(dim, keepdim=True).clamp(min=0)
    scale = (high - low) / 15
    zero = torch.round(-low / scale)
    return torch.clamp(torch.round(groups / scale) + zero, 0, 15), scale, zero


def int32s(lanes):
    """Eight codes of four bits, the lowest first, in an int32."""
    packed = (lanes.to(torch.int64) << (4 * torch.arange(8))).sum(-1)
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)


def lanes_of(packed):
    return (packed[..., None] >> (4 * torch.arange(8, dtype=torch.int32))) & 15


# ---- AWQ: channels scaled in the norm before, zero points, int32s in an interleaved order

RUN = 8
ORDER, BACK = [0, 2, 4, 6, 1, 3, 5, 7], [0, 4, 1, 5, 2, 6, 3, 7]


class AwareLm(CodedInputs):
    """The scales by channel that the second way folds into its norms."""

    def prepare(self):
        for layer in self.model.layers:
            theirs, ffn = layer.self_attn, layer.mlp
            fold = torch.exp2(torch.arange(WIDTH) % 3 - 1)
            for part in (layer.input_layernorm, theirs.q_proj, theirs.k_proj, theirs.v_proj):
                part.fold = fold
            for part in (layer.post_attention_layernorm, ffn.gate_proj, ffn.up_proj):
                part.fold = fold.flip(0)


class AwareLinear(Unbiased):
    fold = 1.0

    def prepare(self):
        self.codes, self.scale, self.zero = unsigned_groups((up(self.weight) * self.fold).unflatten(1, (-1, RUN)))
        self.weight.copy_(((self.codes - self.zero) * self.scale).flatten(1) / self.fold)


class FoldedNorm(NormB):
    def __init__(self, theirs):
        super().__init__(theirs)
        self.register_buffer("fold", torch.as_tensor(getattr(theirs, "fold", 1.0)).to(self.scale.dtype))

    def forward(self, x, carried=None):
        x = x if carried is None else x + carried
        scale = self.scale if self.bad("fold-left-out") else self.scale / self.fold
        scale = self.scale * self.fold if self.bad("fold-inverted") else scale
        return F.rms_norm(x, x.shape[-1:], scale.to(x.dtype), 1e-2 if self.bad("norm-eps") else self.eps), x


class AwareCodes(Part):
    """qweight (inputs, outputs / 8), qzeros (groups, outputs / 8), scales (groups, outputs)."""

    def __init__(self, *theirs):
        super().__init__()
        codes = torch.cat([t.codes.flatten(1) for t in theirs]).T
        zeros = torch.cat([t.zero[..., 0] for t in theirs]).T
        self.register_buffer("qweight", int32s(codes.unflatten(1, (-1, 8))[..., ORDER]))
        self.register_buffer("qzeros", int32s(zeros.unflatten(1, (-1, 8))[..., ORDER]))
        self.register_buffer("scales", torch.cat([t.scale[..., 0] for t in theirs]).T.contiguous())

    def forward(self, x):
        back = list(range(8)) if self.bad("order-of-lanes-ignored") else BACK
        codes = lanes_of(self.qweight)[..., back].flatten(1)
        back = ORDER if self.bad("order-of-zeros-not-inverted") else BACK
        zeros = lanes_of(self.qzeros)[..., back].flatten(1)
        zeros = zeros + 1 if self.bad("zero-point-one-more") else zeros
        scales = self.scales.roll(1, 0) if self.bad("scale-of-group-before") else self.scales
        weight = (codes.unflatten(0, (-1, RUN)) - zeros[:, None]) * scales[:, None]
        return x @ weight.flatten(0, 1).to(x.dtype)


AwareTrainer = type("Aware", (trainer(AwareLinear, FlatNormA), AwareLm), {"prepare": AwareLm.prepare})
PROGRAMS["awq-folded"] = Program(
    AwareTrainer,
    engine(AwareCodes, norm=FoldedNorm),
    two_requests,
    {
        "order-of-lanes-ignored": Fault(B_W13, GATE_UP, near=r"lanes_of\(self\.qweight"),
        "order-of-zeros-not-inverted": Fault(B_W2, DOWN, near=r"lanes_of\(self\.qzeros"),
        "zero-point-one-more": Fault(B_QKV, QKV, near=r"codes\.unflatten\(0, \(-1, RUN"),
        "scale-of-group-before": Fault(B_WO, OUT, near=r"codes\.unflatten\(0, \(-1, RUN"),
        "fold-left-out": Fault("blocks.1.ln2", NORM2),
        "fold-inverted": Fault("blocks.1.ln2", NORM2),
        "norm-eps": EPS,
    },
    (HALF, HALF),
)


class FoldedBefore(NormB):
    """The same, folded when the model is built, as AWQ's checkpoints have it; a fault unfolds."""

    def __init__(self, theirs):
        super().__init__(theirs)
        self.fold = torch.as_tensor(getattr(theirs, "fold", 1.0)).to(self.scale.dtype)
        self.scale = held(up(theirs.weight) / self.fold)

    def forward(self, x, carried=None):
        x = x if carried is None else x + carried
        scale = self.scale * self.fold if self.bad("fold-left-out") else self.scale
        scale = scale * self.fold**2 if self.bad("fold-inverted") else scale
        return F.rms_norm(x, x.shape[-1:], scale.to(x.dtype), 1e-2 if self.bad("norm-eps") else self.eps), x


# Written behind the first asking: what of the answers is due to a division that engines do once.
PROGRAMS["awq-folded-before"] = PROGRAMS["awq-folded"]._replace(second=engine(AwareCodes, norm=FoldedBefore))

# ---- W8A8: one static step and zero point for inputs, a scale by channel, what the zero point adds taken off again

ZERO = 17


def static_step(inputs):
    return torch.tensor(0.035 if inputs == WIDTH else 0.06, dtype=torch.get_default_dtype())


class ShiftedLinear(nn.Linear):
    coded = False

    def prepare(self):
        self.scale = up(self.weight).abs().amax(1, keepdim=True) / 127
        self.codes = torch.round(up(self.weight) / self.scale)
        self.weight.copy_(self.codes * self.scale)

    def forward(self, x):
        if self.coded:
            step = static_step(x.shape[-1])
            x = ((torch.clamp(torch.round(up(x) / step) + ZERO, -128, 127) - ZERO) * step).to(x.dtype)
        return F.linear(x, self.weight, self.bias)


class ShiftedSums(Part):
    """Sums of int8 in int32; `sums` are those of the weight's rows."""

    wide = ("bias",)

    def __init__(self, *theirs):
        super().__init__()
        codes, self.coded = torch.cat([t.codes for t in theirs]), theirs[0].coded
        self.register_buffer("codes", codes.to(torch.int8))
        self.register_buffer("sums", codes.sum(1).to(torch.int32))
        self.register_buffer("scales", torch.cat([t.scale for t in theirs])[:, 0])
        self.register_buffer("step", static_step(codes.shape[1]))
        self.bias = held(torch.cat([t.bias for t in theirs]))

    def forward(self, x):
        scales = self.scales.roll(1) if self.bad("scale-of-channel-before") else self.scales
        if not self.coded:
            return (up(x) @ (self.codes * scales[:, None]).T + self.bias).to(x.dtype)
        zero = ZERO - 1 if self.bad("zero-point-one-less") else ZERO
        codes = ((up(x) / self.step).round() + zero).clamp(-128, 127).to(torch.int32)
        total = codes @ self.codes.to(torch.int32).T
        offset = ZERO * (self.codes.sum() // len(self.sums) if self.bad("sums-of-all-rows") else self.sums)
        total = total if self.bad("correction-left-out") else total - offset
        total = total + 2 * offset if self.bad("correction-added") else total
        bias = self.bias * scales if self.bad("bias-scaled") else self.bias
        return torch.addcmul(bias, total.to(scales.dtype), scales * self.step).to(x.dtype)


PROGRAMS["w8a8-shifted"] = Program(
    trainer(ShiftedLinear, coded=MLP_ALL),
    engine(ShiftedSums),
    two_requests,
    {
        "correction-left-out": Fault(B_W2, DOWN, "- ZERO", near="addcmul"),
        "correction-added": Fault(B_W13, GATE_UP, "- ZERO", near="addcmul"),
        "sums-of-all-rows": Fault(B_W13, GATE_UP, "- ZERO", near="total - offset"),
        "zero-point-one-less": Fault(B_W2, DOWN, near=r"\.round\(\) \+ zero", subtle=True),
        "bias-scaled": Fault(B_W2, DOWN, near="addcmul", subtle=True),
        "scale-of-channel-before": Fault(B_QKV, QKV, near=r"self\.codes \* scales"),
        "kv-heads-tiled": TILED,
    },
    (FULL, HALF),
)

# ---- fp8 in blocks of 16 by 16, inputs in runs of 16, and sums that gather block by block

BLOCK = 16


class SquareFloats(Unbiased):
    coded = False

    def prepare(self):
        blocks = up(self.weight).unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK))
        rows, columns = torch.arange(blocks.shape[0]), torch.arange(blocks.shape[2])
        blocks = blocks * (0.5 + (2 * rows[:, None] + columns) % 5 / 4)[:, None, :, None]  # else all blocks were alike
        self.scale = blocks.abs().amax((1, 3)) / LARGEST
        self.codes = eight_bits(blocks, self.scale[:, None, :, None]).flatten(2).flatten(0, 1)
        scale = self.scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        self.weight.copy_(self.codes.to(scale.dtype) * scale)

    def forward(self, x):
        if self.coded:
            runs = up(x).unflatten(-1, (-1, BLOCK))
            step = runs.abs().amax(-1, keepdim=True) / LARGEST
            x = (eight_bits(runs, step).to(step.dtype) * step).flatten(-2).to(x.dtype)
        return F.linear(x, self.weight)


class GatheredBlocks(Part):
    def __init__(self, *theirs):
        super().__init__()
        self.coded = theirs[0].coded
        self.register_buffer("codes", torch.cat([t.codes.view(torch.uint8) for t in theirs]).view(E4M3))
        self.register_buffer("weight_scale_inv", torch.cat([t.scale for t in theirs]))

    def forward(self, x):
        runs = up(x).unflatten(-1, (-1, BLOCK))
        steps = runs.abs().amax(-1) / LARGEST if self.coded else torch.ones(runs.shape[:-1], dtype=runs.dtype)
        codes = eight_bits(runs, steps[..., None]).to(runs.dtype) if self.coded else runs
        scales = self.weight_scale_inv.roll(1, 0) if self.bad("scale-of-row-block-before") else self.weight_scale_inv
        scales = scales.mean(1, keepdim=True).expand_as(scales) if self.bad("scales-of-a-row-averaged") else scales
        gathered = 0
        for i in range(runs.shape[1]):
            part = codes[:, i] @ self.codes[:, i * BLOCK : (i + 1) * BLOCK].to(runs.dtype).T
            part = part * scales[:, 0 if self.bad("scale-of-first-block") else i].repeat_interleave(BLOCK)
            part = part * steps[:, 0 if self.bad("step-of-first-run") else i, None]
            gathered = part if self.bad("sum-begun-anew") and i == 1 else gathered + part
        return gathered.to(x.dtype)


PROGRAMS["fp8-squares"] = Program(
    trainer(SquareFloats, coded=("mlp.down_proj",)),
    engine(GatheredBlocks),
    two_requests,
    {
        "scale-of-row-block-before": Fault(B_W13, GATE_UP, near=r"part = part \* scales"),
        "scales-of-a-row-averaged": Fault(B_QKV, QKV, near=r"part = part \* scales"),
        "scale-of-first-block": Fault(B_WO, OUT),
        "step-of-first-run": Fault(B_W2, DOWN),
        "sum-begun-anew": Fault(B_W2, DOWN),
        "gate-and-up-exchanged": EXCHANGED,
        "mask-one-short": SHORT,
    },
    (FULL, HALF),
)

# ---- HQQ: zero points that are no whole numbers, groups along the outputs, halves of a tensor in one byte


class FloatZeros(Unbiased):
    def prepare(self):
        groups = up(self.weight).reshape(RUN, -1)
        low, high = groups.amin(0), groups.amax(0)
        self.scale = (high - low) / 15
        self.zero = -low / self.scale + 0.3
        self.codes = torch.clamp(torch.round(groups / self.scale + self.zero), 0, 15)
        self.weight.copy_(((self.codes - self.zero) * self.scale).view_as(self.weight))


class HalvedBytes(Part):
    def __init__(self, theirs):
        super().__init__()
        high, low = theirs.codes.to(torch.uint8).chunk(2)
        self.shape = theirs.weight.shape
        self.register_buffer("packed", high << 4 | low)
        self.register_buffer("meta", torch.stack((theirs.scale, theirs.zero)))

    def forward(self, x):
        scale, zero = self.meta
        halves = (self.packed & 15, self.packed >> 4) if self.bad("halves-exchanged") else (self.packed >> 4, self.packed & 15)
        codes = torch.cat(halves)
        zero = zero.round() if self.bad("zero-rounded") else zero
        scale = scale.roll(1) if self.bad("scale-of-group-before") else scale
        if self.bad("groups-along-inputs"):
            codes, scale, zero = codes.reshape(-1, RUN), scale[:, None], zero[:, None]
        weight = codes * scale - zero if self.bad("zero-behind-scale") else (codes - zero) * scale
        return F.linear(x, weight.view(self.shape).to(x.dtype))


PROGRAMS["hqq-halves"] = Program(
    trainer(FloatZeros),
    engine(joined(HalvedBytes)),
    two_requests,
    {
        "halves-exchanged": Fault(B_W2 + ".parts.0", DOWN, near=r"codes = torch\.cat\(halves"),
        "zero-rounded": Fault(B_W13 + ".parts.0", GATE_UP[:1], near=r"\(codes - zero\) \* scale$"),
        "scale-of-group-before": Fault(B_W13 + ".parts.1", GATE_UP[1:], near=r"\(codes - zero\) \* scale$"),
        "groups-along-inputs": Fault(B_WO + ".parts.0", OUT, near=r"\(codes - zero\) \* scale$"),
        "zero-behind-scale": Fault(B_QKV + ".parts.2", QKV[2:]),
        "residual-after-norm": RESIDUAL,
    },
    (HALF, HALF),
)

# ---- LLM.int8(): columns of outliers in fp16 beside int8


def outliers(inputs):
    return torch.arange(3, inputs, 11)


class OutlierLinear(Unbiased):
    coded = False

    def prepare(self):
        rest, out = up(self.weight).clone(), outliers(self.in_features)
        rest[:, out] = 0
        self.scale = rest.abs().amax(1, keepdim=True) / 127
        self.codes = torch.round(rest / self.scale)
        kept = self.weight[:, out]
        self.weight.copy_(self.codes * self.scale)
        self.weight[:, out] = kept

    def forward(self, x):
        if self.coded:
            rest, out = up(x).clone(), outliers(self.in_features)
            rest[..., out] = 0
            step = rest.abs().amax(-1, keepdim=True) / 127
            rest = torch.round(rest / step) * step
            rest[..., out] = up(x[..., out])
            x = rest.to(x.dtype)
        return F.linear(x, self.weight)


class OutliersBeside(Part):
    def __init__(self, *theirs):
        super().__init__()
        self.coded, out = theirs[0].coded, outliers(theirs[0].in_features)
        self.register_buffer("codes", torch.cat([t.codes for t in theirs]).to(torch.int8))
        self.register_buffer("scales", torch.cat([t.scale for t in theirs])[:, 0])
        self.register_buffer("outliers", out)
        self.kept = held(torch.cat([t.weight[:, out] for t in theirs]).T)

    def forward(self, x):
        mask = torch.zeros(x.shape[-1], dtype=torch.bool).index_fill(0, self.outliers, True)
        rest = up(x).masked_fill(mask, 0.0)
        steps = rest.abs().amax(1, keepdim=True) / 127
        if self.coded:
            sums = ((rest / steps).round().to(torch.int32) @ self.codes.to(torch.int32).T).to(steps.dtype)
        else:
            sums, steps = rest @ self.codes.to(rest.dtype).T, torch.ones_like(steps)
        scales = self.scales.flip(0) if self.bad("scales-reversed") else self.scales
        steps = steps.amax() if self.bad("largest-step-for-all-rows") else steps
        steps = steps.roll(1, 0) if self.bad("step-of-row-before") else steps
        y = (sums * (steps * scales)).to(x.dtype)
        columns = self.outliers - 1 if self.bad("outliers-one-column-early") else self.outliers
        beside = x[:, columns] @ self.kept
        y = y if self.bad("outliers-left-out") else y + beside
        return y + beside if self.bad("outliers-twice") else y


PROGRAMS["int8-outliers"] = Program(
    trainer(OutlierLinear, FlatNormA, ("mlp.down_proj",)),
    engine(OutliersBeside),
    two_requests,
    {
        "largest-step-for-all-rows": Fault(B_W2, DOWN, near=r"sums \* \(steps"),
        "scales-reversed": Fault(B_QKV, QKV, near=r"sums \* \(steps"),
        "step-of-row-before": Fault(B_W2, DOWN, near=r"sums \* \(steps"),
        "outliers-one-column-early": Fault(B_W13, GATE_UP, near=r"beside = x\["),
        "outliers-left-out": Fault(B_WO, OUT, near=r"y \+ beside"),
        "outliers-twice": Fault(B_W13, GATE_UP),
        "rope-base": BASE,
    },
    (FULL, HALF),
    seed=2,
)

# ---- Marlin: int4 around eight, tiles of 16 by 16 in the order of a warp's threads, scales in an order of their own


def tile_order():
    places = []
    for thread in range(32):
        rows = [2 * (thread % 4), 2 * (thread % 4) + 1, 2 * (thread % 4 + 4), 2 * (thread % 4 + 4) + 1]
        places += [16 * row + thread // 4 + 8 * half for half in (0, 1) for row in rows]
    return torch.tensor(places).unflatten(0, (-1, 8))[:, ORDER].flatten()


TILE = tile_order()
SCALES = torch.tensor([2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)])


class EightLinear(Unbiased):
    def prepare(self):
        groups = up(self.weight).unflatten(1, (-1, BLOCK))
        self.scale = groups.abs().amax(-1, keepdim=True) / 7
        self.codes = torch.clamp(torch.round(groups / self.scale) + 8, 0, 15)
        self.weight.copy_(((self.codes - 8) * self.scale).flatten(1))


class TiledCodes(Part):
    """B (inputs / 16, outputs * 2) in int32, s (groups, outputs)."""

    def __init__(self, *theirs):
        super().__init__()
        codes = torch.cat([t.codes.flatten(1) for t in theirs]).T
        self.sizes = codes.shape
        tiles = codes.unflatten(1, (-1, 16)).unflatten(0, (-1, 16)).transpose(1, 2).flatten(2)[..., TILE]
        self.register_buffer("B", int32s(tiles.flatten(1).unflatten(1, (-1, 8))))
        scales = torch.cat([t.scale[..., 0] for t in theirs]).T
        self.register_buffer("s", scales.unflatten(1, (-1, 32))[..., SCALES].flatten(1))

    def forward(self, x):
        tiles = lanes_of(self.B).flatten(1).unflatten(1, (-1, 256))
        order = TILE if self.bad("order-of-tile-not-inverted") else TILE.argsort()
        tiles = tiles[..., order].unflatten(2, (16, 16))
        tiles = tiles.transpose(2, 3) if self.bad("tiles-transposed") else tiles
        codes = tiles.transpose(1, 2).reshape(self.sizes)
        order = torch.arange(32) if self.bad("order-of-scales-ignored") else SCALES.argsort()
        scales = self.s.unflatten(1, (-1, 32))[..., order].flatten(1)
        scales = scales.flip(0) if self.bad("groups-reversed") else scales
        codes = codes - (7 if self.bad("seven-for-eight") else 8)
        weight = codes.to(x.dtype) * scales.to(x.dtype).repeat_interleave(BLOCK, 0)
        return torch.mm(x, weight)


PROGRAMS["marlin-tiles"] = Program(
    trainer(EightLinear),
    engine(TiledCodes),
    two_requests,
    {
        "order-of-tile-not-inverted": Fault(B_W13, GATE_UP, near=r"tiles = tiles\[\.\.\., order"),
        "tiles-transposed": Fault(B_WO, OUT, near=r"codes = tiles\.transpose"),
        "order-of-scales-ignored": Fault(B_W2, DOWN, near="weight = codes"),
        "groups-reversed": Fault(B_QKV, QKV, near="weight = codes"),
        "seven-for-eight": Fault(B_QKV, QKV, near="weight = codes"),
        "decode-position-one-late": LATE,
    },
    (HALF, HALF),
)

# ---- fp8 with a scale for a tensor, which is the alpha of the product


class AlphaLm(CodedInputs):
    def prepare(self):
        for layer in self.model.layers:
            theirs, ffn = layer.self_attn, layer.mlp
            for part in (theirs.q_proj, theirs.k_proj, theirs.v_proj, theirs.o_proj, ffn.down_proj):
                part.scale = float(part.weight.abs().max()) / LARGEST
            both = max(float(part.weight.abs().max()) for part in (ffn.gate_proj, ffn.up_proj)) / LARGEST
            ffn.gate_proj.scale = ffn.up_proj.scale = both


class AlphaFloats(nn.Linear):
    def prepare(self):
        self.codes = eight_bits(self.weight, self.scale)
        self.weight.copy_(self.codes.to(up(self.weight).dtype) * self.scale)


class AlphaProducts(Part):
    """Shards of one size and scale are one batch; others are multiplied one by one."""

    def __init__(self, *theirs):
        super().__init__()
        self.alphas = [t.scale for t in theirs]
        for i, t in enumerate(theirs):
            self.register_buffer(f"codes{i}", t.codes.T.contiguous())
        self.biases = nn.ParameterList(held(t.bias) for t in theirs)

    def forward(self, x):
        codes = [getattr(self, f"codes{i}").to(x.dtype) for i in range(len(self.alphas))]
        alphas = self.alphas[1:] + self.alphas[:1] if self.bad("alpha-of-next-shard") else self.alphas
        beta = 0.0 if self.bad("beta-of-zero") else 1.0
        beta = 2.0 if self.bad("bias-twice") else beta
        beta, alphas = (alphas[0], [1 / LARGEST]) if self.bad("alpha-for-beta") else (beta, alphas)
        if len(codes) == 2:
            alpha = alphas[0] ** 2 if self.bad("alpha-squared") else alphas[0]
            each = torch.stack(list(self.biases))[:, None]
            y = torch.baddbmm(each, x.expand(2, *x.shape), torch.stack(codes), beta=beta, alpha=alpha)
            return y.transpose(0, 1).flatten(1)
        each = zip(self.biases, codes, alphas, strict=True)
        return torch.cat([torch.addmm(b, x, c, beta=beta, alpha=a) for b, c, a in each], -1)


PROGRAMS["fp8-alpha"] = Program(
    type("Alpha", (trainer(AlphaFloats), AlphaLm), {"prepare": AlphaLm.prepare}),
    engine(AlphaProducts),
    two_requests,
    {
        "alpha-of-next-shard": Fault(B_QKV, QKV, near=r"torch\.addmm"),
        "beta-of-zero": Fault(B_W2, DOWN, near=r"torch\.addmm", subtle=True),
        "bias-twice": Fault(B_W13, GATE_UP, near=r"torch\.baddbmm"),
        "alpha-for-beta": Fault(B_WO, OUT, near=r"torch\.addmm"),
        "alpha-squared": Fault(B_W13, GATE_UP, near=r"torch\.baddbmm"),
        "kv-heads-tiled": TILED,
    },
    (HALF, HALF),
)

# ---- BitNet: -1, 0 and 1, four rows to a byte, scaled by the mean size


class TernaryLinear(Unbiased):
    coded = False

    def prepare(self):
        self.scale = up(self.weight).abs().mean()
        self.codes = torch.clamp(torch.round(up(self.weight) / self.scale), -1, 1)
        self.weight.copy_(self.codes * self.scale)

    def forward(self, x):
        if self.coded:
            step = 127 / up(x).abs().amax(-1, keepdim=True)
            x = (torch.clamp(torch.round(up(x) * step), -128, 127) / step).to(x.dtype)
        return F.linear(x, self.weight)


class TernaryBytes(Part):
    """Row r of a byte holds rows r, r + n, r + 2 n and r + 3 n, the lowest bits first, as codes of 0, 1 and 2."""

    def __init__(self, *theirs):
        super().__init__()
        self.sizes, self.coded = [len(t.codes) for t in theirs], theirs[0].coded
        codes = (torch.cat([t.codes for t in theirs]) + 1).to(torch.int64).unflatten(0, (4, -1))
        self.register_buffer("packed", (codes << (2 * torch.arange(4))[:, None, None]).sum(0).to(torch.uint8))
        self.register_buffer("scales", torch.stack([t.scale for t in theirs]))

    def forward(self, x):
        shifts = torch.tensor([6, 4, 2, 0] if self.bad("highest-bits-first") else [0, 2, 4, 6], dtype=torch.uint8)
        codes = (self.packed[None] >> shifts[:, None, None]) & 3
        codes = codes.transpose(0, 1).flatten(0, 1) if self.bad("rows-of-a-byte-as-neighbours") else codes.flatten(0, 1)
        codes = codes.to(up(x).dtype) - (0 if self.bad("codes-not-moved-down") else 1)
        steps = 127 / up(x).abs().amax(1, keepdim=True)
        rows = (up(x) * steps).round().clamp(-128, 127) if self.coded else up(x)
        steps = steps if self.coded else torch.ones_like(steps)
        scales = self.scales.mean().expand(len(self.sizes)) if self.bad("mean-of-shards-scales") else self.scales
        scales = scales.repeat_interleave(torch.tensor(self.sizes))
        steps = steps.mean() if self.bad("mean-of-steps") else steps
        y = rows @ codes.T
        return (y / steps / scales if self.bad("scale-divided-by") else y / steps * scales).to(x.dtype)


PROGRAMS["ternary-bytes"] = Program(
    trainer(TernaryLinear, coded=("mlp.down_proj",)),
    engine(TernaryBytes),
    two_requests,
    {
        "highest-bits-first": Fault(B_W13, GATE_UP, near=r"self\.packed\[None\]"),
        "rows-of-a-byte-as-neighbours": Fault(B_W2, DOWN, near=r"y = rows @"),
        "codes-not-moved-down": Fault(B_WO, OUT, near=r"y = rows @"),
        "mean-of-shards-scales": Fault(B_QKV, QKV, near=r"y / steps", subtle=True),
        "mean-of-steps": Fault(B_W2, DOWN, near=r"y / steps", subtle=True),
        "scale-divided-by": Fault(B_QKV, QKV),
        "mask-one-short": SHORT,
    },
    (FULL, BRAIN),
    seed=2,
)

# ---- AQLM: a weight's four neighbours are a vector of one table plus one of another; the second way looks products up

PIECE, ENTRIES = 4, 16


class TwoBooks(Unbiased):
    def prepare(self):
        self.scale = up(self.weight).norm(dim=1, keepdim=True) / self.in_features**0.5
        rest = (up(self.weight) / self.scale).unflatten(1, (-1, PIECE))
        books, codes = [], []
        for at in range(2):
            flat = rest.flatten(0, 1)
            book = flat[at :: len(flat) // ENTRIES][:ENTRIES].clone()
            chosen = (rest[..., None, :] - book).square().sum(-1).argmin(-1)
            rest = rest - book[chosen]
            books.append(book)
            codes.append(chosen)
        self.books, self.codes = torch.stack(books), torch.stack(codes, -1)
        weight = self.books[0][self.codes[..., 0]] + self.books[1][self.codes[..., 1]]
        self.weight.copy_(weight.flatten(1) * self.scale)


class LookedUp(Part):
    """codes (outputs, pieces, 2) in uint8; a product of each piece with each vector, of which a row takes its own."""

    def __init__(self, theirs):
        super().__init__()
        self.register_buffer("codes", theirs.codes.to(torch.uint8))
        self.register_buffer("codebooks", theirs.books)
        self.register_buffer("scales", theirs.scale[:, 0])

    def forward(self, x):
        books = self.codebooks.flip(0) if self.bad("codebooks-exchanged") else self.codebooks
        pieces = up(x).unflatten(-1, (-1, PIECE))
        table = torch.einsum("nps,bes->npbe", pieces, books)
        codes = self.codes.to(torch.int64)
        codes = codes[..., :1].expand_as(codes) if self.bad("codes-of-first-book") else codes
        codes = codes.roll(1, 1) if self.bad("codes-one-piece-late") else codes
        starts = torch.arange(codes.shape[1] * 2).view(-1, 2) * ENTRIES
        taken = table.flatten(1)[:, (codes + starts).flatten()].unflatten(1, codes.shape)
        taken = taken[..., :1] if self.bad("second-book-left-out") else taken
        scales = self.scales.roll(1) if self.bad("scale-of-row-before") else self.scales
        return (taken.sum((2, 3)) * scales).to(x.dtype)


PROGRAMS["two-codebooks"] = Program(
    trainer(TwoBooks, FlatNormA),
    engine(joined(LookedUp)),
    two_requests,
    {
        "codebooks-exchanged": Fault(B_W2 + ".parts.0", DOWN, near="nps,bes"),
        "codes-of-first-book": Fault(B_W13 + ".parts.0", GATE_UP[:1], near="taken = table"),
        "codes-one-piece-late": Fault(B_WO + ".parts.0", OUT, near="taken = table"),
        "second-book-left-out": Fault(B_QKV + ".parts.2", QKV[2:], near=r"taken\.sum"),
        "scale-of-row-before": Fault(B_W13 + ".parts.1", GATE_UP[1:], near=r"taken\.sum"),
        "norm-eps": EPS,
    },
    (FULL, HALF),
)

# ---- LoRA beside int4: adapters by projection, or those of merged projections in one stack

RANK, ALPHA = 4, 1.0


class AdaptedLinear(Unbiased):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.lora_A = nn.Parameter(torch.zeros(RANK, inputs))
        self.lora_B = nn.Parameter(torch.zeros(outputs, RANK))

    def prepare(self):
        EightLinear.prepare(self)

    def forward(self, x):
        return F.linear(x, self.weight) + F.linear(F.linear(x, self.lora_A), self.lora_B) * (ALPHA / RANK)


class StackedAdapters(Part):
    """Nibbles (outputs, inputs / 2), the low one first, and the adapters of all shards, one under another."""

    def __init__(self, *theirs):
        super().__init__()
        codes = torch.cat([t.codes.flatten(1) for t in theirs]).to(torch.uint8)
        self.sizes = [len(t.codes) for t in theirs]
        self.register_buffer("nibbles", codes[:, 1::2] << 4 | codes[:, ::2])
        self.register_buffer("scales", torch.cat([t.scale for t in theirs]))
        self.A = held(torch.cat([t.lora_A for t in theirs]))
        self.B = nn.ParameterList(held(t.lora_B.T) for t in theirs)

    def forward(self, x):
        low, high = self.nibbles & 15, self.nibbles >> 4
        codes = torch.stack((high, low) if self.bad("high-nibble-first") else (low, high), -1).flatten(1)
        codes = codes.to(self.scales.dtype).unflatten(1, (-1, BLOCK)) - 8
        scales = self.scales.roll(1, 1) if self.bad("scale-of-group-before") else self.scales
        base = x @ (codes * scales).flatten(1).to(x.dtype).T
        narrow = x @ self.A.T
        narrow = narrow.unflatten(1, (-1, RANK))
        narrow = narrow[:, :1].expand_as(narrow) if self.bad("adapter-of-first-shard") else narrow
        added = torch.cat([narrow[:, i] @ b for i, b in enumerate(self.B)], 1)
        factor = RANK / ALPHA if self.bad("factor-inverted") else ALPHA / RANK
        factor = ALPHA / RANK**0.5 if self.bad("factor-of-root-of-rank") else factor
        return base - factor * added if self.bad("adapter-taken-off") else torch.add(base, added, alpha=factor)


PROGRAMS["lora-nibbles"] = Program(
    trainer(AdaptedLinear),
    engine(StackedAdapters),
    two_requests,
    {
        "high-nibble-first": Fault(B_W13, GATE_UP, near="base = x @"),
        "scale-of-group-before": Fault(B_W2, DOWN, near="base = x @", subtle=True),
        "adapter-of-first-shard": Fault(B_QKV, QKV, near=r"added = torch\.cat"),
        "factor-inverted": Fault(B_W2, DOWN, r"\(ALPHA / RANK\)", near=r"alpha=factor"),
        "factor-of-root-of-rank": Fault(B_WO, OUT, r"\(ALPHA / RANK\)", near=r"alpha=factor"),
        "adapter-taken-off": Fault(B_QKV, QKV, r"\(ALPHA / RANK\)"),
        "residual-after-norm": RESIDUAL,
    },
    (BRAIN, BRAIN),
    seed=1,
)

# ---- tables of int8 rows: embeddings scaled by runs, a head scaled by row


class CodedEnds(LmA):
    def prepare(self):
        for part, run in ((self.model.embed_tokens, RUN), (self.lm_head, WIDTH)):
            runs = up(part.weight).unflatten(1, (-1, run))
            part.scale = runs.abs().amax(-1, keepdim=True) / 127
            part.codes = torch.round(runs / part.scale)
            part.weight.copy_((part.codes * part.scale).flatten(1))


class CodedTable(Part):
    """Rows of bytes: codes with 128 added."""

    def __init__(self, theirs, dtype):
        super().__init__()
        self.register_buffer("bytes_", (theirs.codes.flatten(1) + 128).to(torch.uint8))
        self.register_buffer("scales", theirs.scale[..., 0])
        self.dtype = dtype

    def forward(self, ids):
        codes = F.embedding(ids, self.bytes_).to(self.scales.dtype) - (127 if self.bad("middle-one-less") else 128)
        scales = F.embedding((ids - 1).clamp(min=0) if self.bad("scale-of-token-before") else ids, self.scales)
        scales = scales[:, :1].expand_as(scales) if self.bad("scale-of-first-run") else scales
        scales = scales.repeat(1, RUN) if self.bad("scales-tiled") else scales.repeat_interleave(RUN, 1)
        return (codes * scales).to(torch.float64 if scales.dtype == torch.float64 else self.dtype)


class CodedHead(Part):
    def __init__(self, theirs):
        super().__init__()
        self.register_buffer("codes", theirs.codes.flatten(1).T.contiguous().to(torch.int8))
        self.register_buffer("scales", theirs.scale[:, 0, 0])

    def forward(self, x):
        sums = up(x) @ self.codes.to(up(x).dtype)
        scales = self.scales.mean() if self.bad("mean-of-scales") else self.scales
        scales = scales.roll(-1) if self.bad("scale-of-row-behind") else scales
        return (sums * scales).to(x.dtype)


class CodedEngine(LmB):
    def __init__(self, theirs):
        super().__init__(theirs)
        self.tok, self.out = CodedTable(theirs.model.embed_tokens, BRAIN), CodedHead(theirs.lm_head)


TABLE, HEAD = ("model.embed_tokens",), ("lm_head",)
PROGRAMS["coded-tables"] = Program(
    CodedEnds,
    CodedEngine,
    two_requests,
    {
        "middle-one-less": Fault("tok", TABLE, near=r"\(codes \* scales\)\.to", subtle=True),
        "scale-of-token-before": Fault("tok", TABLE, near=r"\(codes \* scales\)\.to"),
        "scale-of-first-run": Fault("tok", TABLE, near=r"\(codes \* scales\)\.to"),
        "scales-tiled": Fault("tok", TABLE, near=r"\(codes \* scales\)\.to"),
        "mean-of-scales": Fault("out", HEAD, near=r"\(sums \* scales\)\.to", subtle=True),
        "scale-of-row-behind": Fault("out", HEAD, near=r"\(sums \* scales\)\.to"),
        "kv-heads-tiled": TILED,
        "decode-position-one-late": LATE,
    },
    (FULL, BRAIN),
)

# ---- QuaRot: a residual stream in turned coordinates, heads turned behind the rotary, int8 in the turned space of the mlp


def hadamard(size):
    made = torch.ones(1, 1, dtype=torch.get_default_dtype())
    while len(made) < size:
        made = torch.cat((torch.cat((made, made), 1), torch.cat((made, -made), 1)))
    return made / size**0.5


def stream():
    """A Hadamard matrix whose rows have signs."""
    return (1 - 2 * (torch.arange(WIDTH) % 5 % 2))[:, None] * hadamard(WIDTH)


def inner():
    return torch.block_diag(*[hadamard(BLOCK)] * (INNER // BLOCK))


class TurnedLm(LmA):
    def prepare(self):
        for layer in self.model.layers:
            down = layer.mlp.down_proj
            weight = stream().T @ up(down.weight) @ inner()
            down.scale = weight.abs().amax(1, keepdim=True) / 127
            down.codes = torch.round(weight / down.scale)
            down.weight.copy_(stream() @ (down.codes * down.scale) @ inner().T)


class TurnedDown(Part):
    """Turns its input block by block, by sums and differences."""

    def __init__(self, theirs):
        super().__init__()
        self.register_buffer("codes", theirs.codes.to(torch.int8))
        self.register_buffer("scales", theirs.scale[:, 0])

    def forward(self, x):
        y = up(x).unflatten(-1, (BLOCK, -1)).mT if self.bad("blocks-interleaved") else up(x).unflatten(-1, (-1, BLOCK))
        for half in (1, 2, 4) if self.bad("last-stage-left-out") else (1, 2, 4, 8):
            a, b = y.unflatten(-1, (-1, 2, half)).unbind(-2)
            y = torch.stack((a + b, a - b), -2).flatten(-3)
        y = (y / (1 if self.bad("turned-without-norm") else BLOCK**0.5)).flatten(-2)
        y = up(x) if self.bad("turn-left-out") else y
        scales = self.scales.roll(1) if self.bad("scale-of-row-before") else self.scales
        return ((y @ self.codes.to(y.dtype).T) * scales).to(x.dtype)


class TurnedAttention(AttentionB):
    def mixed(self, q, k, v):
        turn = hadamard(SIZE).to(q.dtype)
        q, k = q @ turn, k if self.bad("keys-not-turned") else k @ turn
        return super().mixed(q, k, v)


class TurnedEngine(LmB):
    kinds = (TurnedAttention, LmB.kinds[1], NormB)

    def __init__(self, theirs):
        super().__init__(theirs)
        turn = stream()

        def read(part, norm):
            part.weight.data = (up(part.weight.data) * norm.scale.data) @ turn
            norm.scale.data = torch.ones_like(norm.scale.data)

        self.tok.weight.data = up(self.tok.weight.data) @ turn
        for block, layer in zip(self.blocks, theirs.model.layers, strict=True):
            read(block.attn.qkv, block.ln1)
            block.attn.wo.weight.data = turn.T @ up(block.attn.wo.weight.data)
            read(block.ffn.w13, block.ln2)
            block.ffn.w2 = TurnedDown(layer.mlp.down_proj)
        read(self.out, self.ln_f)


PROGRAMS["turned-stream"] = Program(
    TurnedLm,
    TurnedEngine,
    two_requests,
    {
        "blocks-interleaved": Fault(B_W2, DOWN),
        "last-stage-left-out": Fault(B_W2, DOWN),
        "turned-without-norm": Fault(B_W2, DOWN),
        "turn-left-out": Fault(B_W2, DOWN),
        "scale-of-row-before": Fault(B_W2, DOWN, near=r"\* scales\)\.to"),
        "keys-not-turned": Fault(B_ATTN, ATTN),
        "mask-one-short": SHORT,
        "norm-eps": EPS,
    },
    (FULL, HALF),
)
