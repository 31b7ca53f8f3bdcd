"""Programs of served_ways about what the weights are: in eight and four bits, of experts."""

import torch
import torch.nn.functional as F
from served_ways_frame import (
    HEADS,
    HF,
    INNER,
    KV,
    MLP,
    SIZE,
    WIDTH,
    Fault,
    GrownAttention,
    LmA,
    LmB,
    MlpA,
    Part,
    Program,
    WrittenAttention,
    linear_of,
    one_request,
)
from torch import nn

PROGRAMS = {}

# ---- int8 weights and activations: dequantised and multiplied, or accumulated as integers and scaled


class FakeQuantLinear(nn.Linear):
    """Weights per channel, symmetric; activations per token, with a zero point."""

    def prepare(self):
        self.scale = self.weight.abs().amax(1, keepdim=True) / 127
        self.codes = torch.round(self.weight / self.scale).to(torch.int8)

    def forward(self, x):
        low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
        step = (high - low) / 255
        zero = torch.round(-low / step)
        x = (torch.clamp(torch.round(x / step) + zero, 0, 255) - zero) * step
        return F.linear(x, self.codes.to(x.dtype) * self.scale, self.bias)


class FakeQuantAttention(GrownAttention):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj = FakeQuantLinear(WIDTH, HEADS * SIZE), FakeQuantLinear(WIDTH, KV * SIZE)
        self.v_proj, self.o_proj = FakeQuantLinear(WIDTH, KV * SIZE), FakeQuantLinear(HEADS * SIZE, WIDTH)


class PreparedLm(LmA):
    def prepare(self):
        for part in self.modules():
            if part is not self and hasattr(part, "prepare"):
                part.prepare()


class FakeQuantLm(PreparedLm):
    def __init__(self):
        super().__init__(FakeQuantAttention, names=("ln_1", "attn", "ln_2", "mlp"))


class IntegerLinear(Part):
    def __init__(self, *theirs):
        super().__init__()
        self.register_buffer("codes", torch.cat([t.codes for t in theirs]))
        self.register_buffer("scales", torch.cat([t.scale[:, 0] for t in theirs]))
        self.bias = nn.Parameter(torch.cat([t.bias for t in theirs]))

    def forward(self, x):
        every = (0, 1) if self.bad("activation-scale-of-tensor") else (1,)
        low, high = x.amin(every, keepdim=True), x.amax(every, keepdim=True)
        steps = (high - low) / 255
        zeros = (-low / steps).round()
        codes = ((x / steps).round() + zeros).clamp(0, 255).to(torch.int32)
        sums = codes @ self.codes.T.to(torch.int32)
        sums = sums.clamp(-32768, 32767) if self.bad("accumulator-saturates") else sums
        of_weights = self.codes.sum(1, dtype=torch.int32)
        zeros = zeros + 1 if self.bad("zero-point-off-by-one") else zeros
        sums = sums if self.bad("zero-point-left-out") else sums - zeros.to(torch.int32) * of_weights
        scales = self.scales.mean() if self.bad("channel-scale-of-tensor") else self.scales
        y = sums.to(x.dtype) * steps
        return (y + self.bias) * scales if self.bad("bias-scaled") else torch.addcmul(self.bias, y, scales)


class IntegerAttention(WrittenAttention):
    def __init__(self, theirs):
        super().__init__(theirs)
        self.qkv, self.wo = IntegerLinear(theirs.q_proj, theirs.k_proj, theirs.v_proj), IntegerLinear(theirs.o_proj)


class IntegerLm(LmB):
    def __init__(self, theirs):
        super().__init__(theirs, IntegerAttention)


QKV = tuple(f"{HF}attn.{p}_proj" for p in "qkv")
OUT = (HF + "attn.o_proj",)
PROGRAMS["int8-weights"] = Program(
    FakeQuantLm,
    IntegerLm,
    one_request,
    {
        "activation-scale-of-tensor": Fault("blocks.1.attn.qkv", QKV, "low, high = ", near="low, high = "),
        "accumulator-saturates": Fault("blocks.1.attn.wo", OUT),
        "zero-point-off-by-one": Fault("blocks.1.attn.qkv", QKV),
        "zero-point-left-out": Fault("blocks.1.attn.wo", OUT, r"- zero\) \* step"),
        "channel-scale-of-tensor": Fault("blocks.1.attn.qkv", QKV, r"\* self\.scale", near="torch.addcmul"),
        "bias-scaled": Fault("blocks.1.attn.wo", OUT),
    },
)

# ---- int4 weights in groups: floats, or packed in uint8

BUNCH = 8


class GroupedFloats(nn.Linear):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs, bias=False)

    def prepare(self):
        groups = self.weight.unflatten(1, (-1, BUNCH))
        low, high = groups.amin(-1, keepdim=True).clamp(max=0), groups.amax(-1, keepdim=True).clamp(min=0)
        self.scale = (high - low) / 15
        self.zero = torch.round(-low / self.scale)
        self.codes = torch.clamp(torch.round(groups / self.scale) + self.zero, 0, 15)

    def forward(self, x):
        weight = (self.codes - self.zero) * self.scale
        return F.linear(x, weight.flatten(1))


class GroupedMlp(MlpA):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = GroupedFloats(WIDTH, INNER), GroupedFloats(WIDTH, INNER)
        self.down_proj = GroupedFloats(INNER, WIDTH)


class GroupedLm(PreparedLm):
    def __init__(self):
        super().__init__(GrownAttention, GroupedMlp)


class PackedLinear(Part):
    """Two codes in a byte, the even column low; a group's sum is scaled, and its zero point times the group's inputs taken off."""

    def __init__(self, *theirs):
        super().__init__()
        codes = torch.cat([t.codes for t in theirs]).flatten(1).to(torch.uint8)
        self.register_buffer("qweight", codes[:, ::2] | codes[:, 1::2] << 4)
        self.register_buffer("scales", torch.cat([t.scale for t in theirs]).squeeze(-1))
        self.register_buffer("qzeros", torch.cat([t.zero for t in theirs]).squeeze(-1).to(torch.uint8))

    def forward(self, x):
        low, high = self.qweight & 15, self.qweight >> 4
        low, high = (high, low) if self.bad("nibbles-exchanged") else (low, high)
        codes = torch.stack((low, high), -1).flatten(1).to(x.dtype)
        codes = codes - 16 * (codes > 7) if self.bad("codes-taken-as-signed") else codes
        zeros = self.qzeros.to(x.dtype)
        zeros = zeros + 1 if self.bad("zero-point-off-by-one") else zeros
        scales = self.scales.T.reshape(self.scales.shape) if self.bad("scales-transposed") else self.scales
        scales = scales.roll(1, 1) if self.bad("scale-of-group-before") else scales
        groups = x.unflatten(-1, (-1, BUNCH))
        sums = torch.einsum("ngi,ogi->nog", groups, codes.unflatten(1, (-1, BUNCH)))
        inputs = groups.sum(-1)
        return ((sums - zeros * inputs[:, None]) * scales).sum(-1)


class PackedMlp(Part):
    def __init__(self, theirs):
        super().__init__()
        self.w13, self.w2 = PackedLinear(theirs.gate_proj, theirs.up_proj), PackedLinear(theirs.down_proj)

    def forward(self, x, **context):
        gate, up = self.w13(x).chunk(2, -1)
        return self.w2(torch.sigmoid(gate) * gate * up)


class PackedLm(LmB):
    def __init__(self, theirs):
        super().__init__(theirs, WrittenAttention, PackedMlp, stack="layers", names=("n1", "mixer", "n2", "feed"))


GATE_UP, DOWN = (HF + "mlp.gate_proj", HF + "mlp.up_proj"), (HF + "mlp.down_proj",)
PROGRAMS["int4-packed"] = Program(
    GroupedLm,
    PackedLm,
    one_request,
    {
        "nibbles-exchanged": Fault("layers.1.feed.w13", GATE_UP),
        "codes-taken-as-signed": Fault("layers.1.feed.w2", DOWN),
        "zero-point-off-by-one": Fault("layers.1.feed.w13", GATE_UP, "- self.zero", near="sums - zeros"),
        "scales-transposed": Fault("layers.1.feed.w2", DOWN, r"\* self\.scale"),
        "scale-of-group-before": Fault("layers.1.feed.w13", GATE_UP, r"\* self\.scale"),
    },
)

# ---- fp8 in blocks of weights and groups of activations (DeepSeek-V3): dequantised, or partial sums scaled one by one

BLOCK = 8


def eight_bits(x):
    return x.to(torch.float8_e4m3fn)


class BlockedFloats(nn.Linear):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs, bias=False)

    def prepare(self):
        blocks = self.weight.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK))
        self.weight_scale_inv = blocks.abs().amax((1, 3)) / 448
        self.codes = eight_bits((blocks / self.weight_scale_inv[:, None, :, None]).flatten(2).flatten(0, 1))

    def forward(self, x):
        scales = self.weight_scale_inv.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        groups = x.unflatten(-1, (-1, BLOCK))
        steps = groups.abs().amax(-1, keepdim=True) / 448
        x = (eight_bits(groups / steps).to(x.dtype) * steps).flatten(-2)
        return F.linear(x, self.codes.to(x.dtype) * scales)


class BlockedMlp(MlpA):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = BlockedFloats(WIDTH, INNER), BlockedFloats(WIDTH, INNER)
        self.down_proj = BlockedFloats(INNER, WIDTH)


class BlockedLm(PreparedLm):
    def __init__(self):
        super().__init__(GrownAttention, BlockedMlp, names=("norm1", "attn", "norm2", "ffn"))


class PartialSums(Part):
    def __init__(self, *theirs):
        super().__init__()
        self.register_buffer("scales", torch.cat([t.weight_scale_inv for t in theirs]))
        self.codes = torch.cat([t.codes.to(torch.float32) for t in theirs]).to(torch.float8_e4m3fn)

    def forward(self, x):
        groups = x.split(BLOCK, -1)
        scales = self.scales.T.reshape(self.scales.shape) if self.bad("block-scales-transposed") else self.scales
        scales = 1 / scales if self.bad("inverse-of-scales") else scales
        total, before = 0, None
        for column, group in enumerate(groups):
            largest = group.abs().max() if self.bad("group-scale-of-batch") else group.abs().amax(-1, keepdim=True)
            step = largest / (240 if self.bad("range-of-other-format") else 448)
            codes = eight_bits(group / step).to(x.dtype)
            part = codes @ self.codes[:, column * BLOCK : (column + 1) * BLOCK].to(x.dtype).T
            used = before if self.bad("group-scale-of-block-before") and column else step
            rows = scales[:, 0 if self.bad("scale-of-first-column") else column]
            total = total + part * used * rows.repeat_interleave(BLOCK)
            before = step
        return total


class PartialMlp(Part):
    def __init__(self, theirs):
        super().__init__()
        self.gate_up, self.down = PartialSums(theirs.gate_proj, theirs.up_proj), PartialSums(theirs.down_proj)

    def forward(self, x, **context):
        gate, up = self.gate_up(x).tensor_split(2, -1)
        return self.down(F.silu(gate).mul(up))


class PartialLm(LmB):
    def __init__(self, theirs):
        super().__init__(theirs, WrittenAttention, PartialMlp)


IN, BACK = ("blocks.1.ffn.gate_up", (HF + "ffn.gate_proj", HF + "ffn.up_proj")), ("blocks.1.ffn.down", (HF + "ffn.down_proj",))
PROGRAMS["fp8-blocks"] = Program(
    BlockedLm,
    PartialLm,
    one_request,
    {
        "block-scales-transposed": Fault(*IN, "scales = self.weight_scale_inv", near="total = total"),
        "group-scale-of-batch": Fault(*BACK, "steps = "),
        "range-of-other-format": Fault(*IN, "steps = "),
        "group-scale-of-block-before": Fault(*BACK, near="total = total"),
        "scale-of-first-column": Fault(*IN, "scales = self.weight_scale_inv", near="total = total"),
        "inverse-of-scales": Fault(*BACK, near="total = total"),
    },
)

# ---- experts: dense under a mask, or tokens sorted by expert and brought back

EXPERTS, TOP, ROUTED_SCALE = 6, 2, 1.5


class DenseExperts(nn.Module):
    """Sigmoid scores; a bias that only chooses; weights renormalised and scaled; a gated shared expert (DeepSeek-V3's manner)."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.e_score_correction_bias = nn.Parameter(torch.zeros(EXPERTS))
        self.experts = nn.ModuleList(MlpA() for _ in range(EXPERTS))
        self.shared_expert, self.shared_expert_gate = MlpA(), nn.Linear(WIDTH, 1, bias=False)

    def forward(self, x, **context):
        scores = self.gate(x).sigmoid()
        chosen = torch.topk(scores + self.e_score_correction_bias, TOP).indices
        weights = torch.zeros_like(scores).scatter(-1, chosen, 1.0) * scores
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * ROUTED_SCALE
        routed = sum(weights[..., i : i + 1] * expert(x) for i, expert in enumerate(self.experts))
        return routed + torch.sigmoid(self.shared_expert_gate(x)) * self.shared_expert(x)


class DenseLm(LmA):
    def __init__(self):
        super().__init__(GrownAttention, DenseExperts)


class SortedExperts(Part):
    def __init__(self, theirs):
        super().__init__()
        self.router, self.bias = linear_of(theirs.gate.weight), nn.Parameter(theirs.e_score_correction_bias.clone())
        all_of = [*theirs.experts]
        self.w13 = nn.Parameter(torch.stack([torch.cat((e.gate_proj.weight, e.up_proj.weight)) for e in all_of]))
        self.w2 = nn.Parameter(torch.stack([e.down_proj.weight for e in all_of]))
        shared = theirs.shared_expert
        self.shared13 = linear_of(torch.cat((shared.gate_proj.weight, shared.up_proj.weight)))
        self.shared2, self.shared_gate = linear_of(shared.down_proj.weight), linear_of(theirs.shared_expert_gate.weight)

    def glu(self, both):
        gate, up = both.chunk(2, -1)
        return F.silu(gate) * up

    def forward(self, x, **context):
        scores = torch.sigmoid(self.router(x))
        biased = scores + self.bias
        ids = biased.topk(TOP, -1)[1]
        weights = (biased if self.bad("choosing-bias-in-weights") else scores).gather(1, ids)
        weights = weights if self.bad("renormalisation-left-out") else weights / weights.sum(1, keepdim=True)
        weights = weights if self.bad("routed-scale-left-out") else weights * ROUTED_SCALE
        order = torch.argsort(ids.flatten(), stable=True)
        rows = x[order // TOP]
        counts = torch.bincount(ids.flatten(), minlength=EXPERTS)
        ends = counts.cumsum(0)
        ends = F.pad((ends[:-1] - 1).clamp(min=0), (0, 1), value=len(rows)) if self.bad("border-row-to-next-expert") else ends
        starts = [0, *ends[:-1].tolist()]
        done = [self.glu(rows[a:b] @ w13.T) @ w2.T for a, b, w13, w2 in zip(starts, ends.tolist(), self.w13, self.w2)]
        back = order if self.bad("brought-back-by-order") else order.argsort()
        routed = torch.cat(done)[back].unflatten(0, (-1, TOP))
        routed = torch.einsum("nkw,nk->nw", routed, weights)
        shared = self.shared2(self.glu(self.shared13(x)))
        return torch.add(routed, shared if self.bad("shared-gate-left-out") else shared * self.shared_gate(x).sigmoid())


class SortedLm(LmB):
    def __init__(self, theirs):
        super().__init__(theirs, WrittenAttention, SortedExperts, names=("norm_a", "attn", "norm_m", "moe"))


MOE = "blocks.1.moe"
PROGRAMS["experts-sorted"] = Program(
    DenseLm,
    SortedLm,
    one_request,
    {
        "choosing-bias-in-weights": Fault(MOE, MLP, r"scatter\(-1, chosen"),
        "renormalisation-left-out": Fault(MOE, MLP, r"weights\.sum\(-1"),
        "routed-scale-left-out": Fault(MOE, MLP, r"\* ROUTED_SCALE"),
        "border-row-to-next-expert": Fault(MOE, MLP, near="done = "),
        "brought-back-by-order": Fault(MOE, MLP, near="routed = torch.cat"),
        "shared-gate-left-out": Fault(MOE, MLP, r"shared_expert_gate\(x"),
    },
)
