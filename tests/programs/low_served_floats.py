"""Programs of low_served with weights in fp8: per tensor, per channel, and in blocks with exponents for scales.

Inputs of the last layer's projections that `coded` names are in fp8, too: were all of them, what the two ways round otherwise
would flip so many codes that the innocent pair lay as far apart as quantisation itself does."""

import torch
import torch.nn.functional as F
from low_served_frame import (
    B_ATTN,
    BRAIN,
    DOWN,
    EPS,
    EXCHANGED,
    FULL,
    GATE_UP,
    HALF,
    OUT,
    QKV,
    SHORT,
    TILED,
    WIDTH,
    AttentionA,
    AttentionB,
    Fault,
    FlatNormA,
    LayerA,
    LmA,
    LmB,
    MlpA,
    MlpB,
    NormA,
    NormB,
    Part,
    Program,
    held,
    two_requests,
    up,
)
from torch import nn

PROGRAMS = {}
E4M3, E5M2, LARGEST = torch.float8_e4m3fn, torch.float8_e5m2, 448.0
B_QKV, B_WO, B_W13, B_W2 = B_ATTN + ".qkv", B_ATTN + ".wo", "blocks.1.ffn.w13", "blocks.1.ffn.w2"


class CodedInputs(LmA):
    coded = ()

    def prepare(self):
        for name in self.coded:
            self.model.layers[1].get_submodule(name).coded = True


def trainer(linear, norm=NormA, coded=()):
    """A model of the first house whose projections are of a class."""
    attention = type("Attention", (AttentionA,), dict(linear=linear))
    kinds = (attention, type("Mlp", (MlpA,), dict(linear=linear)), norm, LayerA)
    return type("Lm", (CodedInputs,), dict(kinds=kinds, coded=coded))


def engine(linear, attention=AttentionB, mlp=MlpB, norm=NormB):
    """A model of the second house whose projections are of a class, which takes those of the first house that it merges."""
    return type("Engine", (LmB,), dict(kinds=(type("Attention", (attention,), dict(linear=linear)), type("Mlp", (mlp,), dict(linear=linear)), norm)))


def eight_bits(x, scale, kind=E4M3, largest=LARGEST):
    return (up(x) / scale).clamp(-largest, largest).to(kind)


# ---- one scale for a tensor, static ones for inputs: bf16 weights that hold the dequantised numbers, or codes with a scale a shard


def input_scale(inputs):
    return torch.tensor(0.008 if inputs == WIDTH else 0.012, dtype=torch.get_default_dtype())


class TensorFloats(nn.Linear):
    coded = False

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs, bias=False)

    def prepare(self):
        self.scale = up(self.weight).abs().max() / LARGEST
        self.codes = eight_bits(self.weight, self.scale)
        self.weight.copy_(up(self.codes).to(self.scale.dtype) * self.scale)

    def forward(self, x):
        if self.coded:
            step = input_scale(x.shape[-1])
            x = (eight_bits(x, step).to(step.dtype) * step).to(x.dtype)
        return F.linear(x, self.weight)


class ShardedCodes(Part):
    """Shards of one product, each with its scale; the product is of codes, and scaled behind."""

    def __init__(self, *theirs):
        super().__init__()
        self.sizes, self.coded = [len(t.codes) for t in theirs], theirs[0].coded
        self.register_buffer("codes", torch.cat([t.codes.view(torch.uint8) for t in theirs]).view(E4M3))
        self.register_buffer("scales", torch.stack([t.scale for t in theirs]))
        self.register_buffer("input_scale", input_scale(self.codes.shape[1]))

    def forward(self, x):
        step = self.input_scale
        largest = 240.0 if self.bad("range-of-other-format") else LARGEST
        if self.coded:
            codes = eight_bits(x, 1 / step if self.bad("input-scale-inverted") else step, largest=largest).to(step.dtype)
        else:
            codes, step = up(x), torch.ones_like(step)
        sums = codes @ self.codes.to(step.dtype).T
        scales = self.scales[:1].expand_as(self.scales) if self.bad("scale-of-first-shard") else self.scales
        scales = self.scales.max().expand_as(scales) if self.bad("largest-scale-without-recoding") else scales
        scales = scales.flip(0) if self.bad("scales-of-shards-exchanged") else scales
        scales = torch.repeat_interleave(scales, torch.tensor(self.sizes))
        scales = scales if self.bad("input-scale-left-out") else scales * step
        scales = scales * scales if self.bad("weight-scale-twice") else scales
        return (sums * scales).to(x.dtype)


PROGRAMS["fp8-tensor"] = Program(
    trainer(TensorFloats, coded=("mlp.down_proj",)),
    engine(ShardedCodes),
    two_requests,
    {
        "range-of-other-format": Fault(B_W2, DOWN, near=r"eight_bits\(x, 1"),
        "input-scale-inverted": Fault(B_W2, DOWN),
        "scale-of-first-shard": Fault(B_QKV, QKV, near="sums \\* scales"),
        "largest-scale-without-recoding": Fault(B_QKV, QKV, near="sums \\* scales"),
        "scales-of-shards-exchanged": Fault(B_QKV, QKV, near="sums \\* scales"),
        "input-scale-left-out": Fault(B_W2, DOWN, near="sums \\* scales"),
        "weight-scale-twice": Fault(B_QKV, QKV, near="sums \\* scales"),
        "kv-heads-tiled": TILED,
        "mask-one-short": SHORT,
    },
    (FULL, HALF),
    seed=4,
)

# ---- a scale for each output channel and each token, with biases: fp16 on both sides, codes transposed on the second


class ChannelFloats(nn.Linear):
    coded = False

    def prepare(self):
        self.scale = up(self.weight).abs().amax(1, keepdim=True) / LARGEST
        self.codes = eight_bits(self.weight, self.scale)
        self.weight.copy_(self.codes.to(self.scale.dtype) * self.scale)

    def forward(self, x):
        if self.coded:
            step = up(x).abs().amax(-1, keepdim=True) / LARGEST
            x = (eight_bits(x, step).to(step.dtype) * step).to(x.dtype)
        return F.linear(x, self.weight, self.bias)


class TokenScaled(Part):
    """Codes (inputs, outputs); sums in f32, scaled by a row and a column."""

    wide = ("bias",)

    def __init__(self, *theirs):
        super().__init__()
        self.coded, codes = theirs[0].coded, torch.cat([t.codes.view(torch.uint8) for t in theirs])
        self.register_buffer("codes", codes.T.contiguous().view(E4M3))
        self.register_buffer("scales", torch.cat([t.scale for t in theirs])[:, 0])
        self.bias = held(torch.cat([t.bias for t in theirs]))

    def forward(self, x):
        steps = up(x).abs().amax(-1) / LARGEST
        steps = steps.clamp(min=0.05) if self.bad("scale-floor-too-high") else steps
        codes = eight_bits(x, steps[:, None], E5M2 if self.bad("codes-of-other-format") else E4M3).to(steps.dtype)
        codes, steps = (codes, steps) if self.coded else (up(x), torch.ones_like(steps))
        sums = codes @ self.codes.to(steps.dtype)
        steps = steps.max() if self.bad("one-step-for-all-tokens") else steps
        steps = steps[:, None] if steps.dim() else steps
        scales = self.scales.mean() if self.bad("one-scale-for-all-channels") else self.scales
        scales = self.scales.roll(1) if self.bad("scales-one-channel-late") else scales
        y = sums * steps
        y = (y + self.bias) * scales if self.bad("bias-scaled") else y * scales + self.bias
        y = y + self.bias if self.bad("bias-twice") else y
        return y.to(x.dtype)


PROGRAMS["fp8-channels"] = Program(
    trainer(ChannelFloats, FlatNormA, ("mlp.down_proj",)),
    engine(TokenScaled),
    two_requests,
    {
        "scale-floor-too-high": Fault(B_W2, DOWN, near=r"eight_bits\(x, steps", subtle=True),
        "codes-of-other-format": Fault(B_W2, DOWN, near=r"eight_bits\(x, steps", subtle=True),
        "one-step-for-all-tokens": Fault(B_W2, DOWN, near="y = sums"),
        "one-scale-for-all-channels": Fault(B_QKV, QKV, near=r"y \* scales"),
        "scales-one-channel-late": Fault(B_W13, GATE_UP, near=r"y \* scales"),
        "bias-scaled": Fault(B_QKV, QKV),
        "bias-twice": Fault(B_WO, OUT),
        "gate-and-up-exchanged": EXCHANGED,
    },
    (HALF, HALF),
    seed=3,
)

# ---- blocks of 16 with powers of two for scales: f32 with the dequantised numbers beside bf16 with codes and exponents

BLOCK = 16


def exponents(sizes):
    """The least powers of two with which sizes fit, as exponents."""
    return torch.ceil(torch.log2(sizes / LARGEST))


class BlockFloats(nn.Linear):
    coded = False

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs, bias=False)

    def prepare(self):
        blocks = self.weight.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK))
        rows, columns = torch.arange(blocks.shape[0]), torch.arange(blocks.shape[2])
        blocks.mul_(torch.exp2((rows[:, None] + columns * columns) % 3 - 1)[:, None, :, None])  # else all blocks were alike
        self.exponent = exponents(up(blocks).abs().amax((1, 3)))
        scale = torch.exp2(self.exponent)[:, None, :, None]
        self.codes = eight_bits(blocks, scale)
        self.weight.copy_((self.codes.to(scale.dtype) * scale).flatten(2).flatten(0, 1))

    def forward(self, x):
        if self.coded:
            groups = x.unflatten(-1, (-1, BLOCK))
            scale = torch.exp2(exponents(up(groups).abs().amax(-1, keepdim=True)))
            x = (eight_bits(groups, scale).to(x.dtype) * scale.to(x.dtype)).flatten(-2)
        return F.linear(x, self.weight)


class BlockCodes(Part):
    """Codes (row blocks, column blocks, 16, 16), exponents with the bias of a float's exponent, in uint8."""

    def __init__(self, *theirs):
        super().__init__()
        self.coded = theirs[0].coded
        codes = torch.cat([t.codes.transpose(1, 2).contiguous().view(torch.uint8) for t in theirs])
        self.register_buffer("codes", codes.view(E4M3))
        self.register_buffer("exponents", torch.cat([t.exponent + 127 for t in theirs]).to(torch.uint8))

    def scales(self, kind):
        exponents = self.exponents.T.reshape(self.exponents.shape) if self.bad("block-scales-transposed") else self.exponents
        exponents = exponents.roll(1, 1) if self.bad("scale-of-column-before") else exponents
        exponents = exponents[:, :1].expand_as(exponents) if self.bad("scale-of-first-column") else exponents
        return torch.exp2(exponents.to(kind) - (128 if self.bad("exponent-bias-one-more") else 127))

    def forward(self, x):
        kind = up(x).dtype
        groups = x.unflatten(-1, (-1, BLOCK))
        codes, steps = up(groups), torch.ones(*groups.shape[:-1], 1)
        if self.coded:
            fit = exponents(codes.abs().amax(-1, keepdim=True))
            codes = eight_bits(codes, torch.exp2(fit)).to(kind)
            steps = torch.exp2(fit - 1 if self.bad("steps-rounded-down") else fit)
        steps = steps.roll(1, 1) if self.bad("step-of-group-before") else steps
        used = self.codes.transpose(2, 3) if self.bad("blocks-transposed") else self.codes
        parts = torch.einsum("ngi,rgoi->nrgo", codes, used.to(kind))
        parts = parts * steps[:, None] * self.scales(kind)[None, ..., None]
        parts = parts[:, :, 1:] if self.bad("first-partial-sum-lost") else parts
        return parts.sum(2).flatten(1).to(x.dtype)


PROGRAMS["fp8-exponents"] = Program(
    trainer(BlockFloats, coded=("mlp.down_proj",)),
    engine(BlockCodes),
    two_requests,
    {
        "block-scales-transposed": Fault(B_W13, GATE_UP, near=r"parts \* steps"),
        "scale-of-column-before": Fault(B_W13, GATE_UP, near=r"parts \* steps"),
        "scale-of-first-column": Fault(B_W2, DOWN, near=r"parts \* steps"),
        "exponent-bias-one-more": Fault(B_QKV, QKV, near=r"parts \* steps"),
        "steps-rounded-down": Fault(B_W2, DOWN, near=r"parts \* steps"),
        "step-of-group-before": Fault(B_W2, DOWN, near=r"parts \* steps"),
        "blocks-transposed": Fault(B_W13, GATE_UP, near="parts = torch.einsum"),
        "first-partial-sum-lost": Fault(B_W13, GATE_UP, near="parts.sum"),
        "norm-eps": EPS._replace(subtle=True),
    },
    (FULL, BRAIN),
    seed=10,
)
