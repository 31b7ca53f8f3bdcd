"""Programs of low_served with integer or table weights: int8 with smoothed inputs, int4 in order of activation, nf4 with nested scales."""

import torch
import torch.nn.functional as F
from low_served_floats import B_QKV, B_W2, B_W13, B_WO, engine, trainer
from low_served_frame import (
    DOWN,
    EXCHANGED,
    FULL,
    GATE_UP,
    HALF,
    LATE,
    OUT,
    QKV,
    RESIDUAL,
    SHORT,
    TILED,
    Fault,
    FlatNormA,
    Part,
    Program,
    two_requests,
    up,
)
from torch import nn

PROGRAMS = {}


class Unbiased(nn.Linear):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs, bias=False)


# ---- int8 on both sides of the product, inputs smoothed (SmoothQuant): fake quantisation in fp16, or integers


class SmoothLinear(Unbiased):
    coded = False

    def smoothing(self):
        return torch.exp2(torch.arange(self.in_features) % 5 - 2)

    def prepare(self):
        self.smooth = self.smoothing().to(torch.get_default_dtype())
        weight = up(self.weight) * self.smooth
        self.scale = weight.abs().amax(1, keepdim=True) / 127
        self.codes = torch.clamp(torch.round(weight / self.scale), -127, 127)
        self.weight.copy_(self.codes * self.scale)

    def forward(self, x):
        y = up(x) / self.smooth
        if self.coded:
            step = y.abs().amax(-1, keepdim=True) / 127
            y = torch.clamp(torch.round(y / step), -127, 127) * step
        return F.linear(y.to(x.dtype), self.weight)


class IntegerProduct(Part):
    def __init__(self, *theirs):
        super().__init__()
        self.register_buffer("codes", torch.cat([t.codes for t in theirs]).to(torch.int8))
        self.register_buffer("scales", torch.cat([t.scale for t in theirs])[:, 0])
        self.register_buffer("divisors", theirs[0].smooth)
        self.coded = theirs[0].coded

    def forward(self, x):
        scales = self.scales.sort().values if self.bad("channel-scales-sorted") else self.scales
        divisors = 1 / self.divisors if self.bad("smoothing-inverted") else self.divisors
        divisors = torch.ones_like(divisors) if self.bad("smoothing-left-out") else divisors
        divisors = divisors.roll(1) if self.bad("smoothing-one-channel-late") else divisors
        y = up(x) / divisors
        if not self.coded:
            return ((y @ self.codes.to(y.dtype).T) * scales).to(x.dtype)
        steps = y.abs().amax(1) / 127
        codes = (y / steps[:, None]).round()
        codes = codes.clamp(-63, 63) if self.bad("saturates-at-half") else codes.clamp(-127, 127)
        codes = codes.abs() if self.bad("codes-taken-as-unsigned") else codes
        sums = torch.matmul(codes.to(torch.int32), self.codes.to(torch.int32).T)
        steps = steps.roll(1) if self.bad("step-of-token-before") else steps
        return torch.outer(steps, scales).mul(sums).to(x.dtype)


PROGRAMS["int8-smoothed"] = Program(
    trainer(SmoothLinear, coded=("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")),
    engine(IntegerProduct),
    two_requests,
    {
        "smoothing-inverted": Fault(B_W13, GATE_UP, "/ self.smooth", near=r"up\(x\) / divisors"),
        "smoothing-left-out": Fault(B_QKV, QKV, "/ self.smooth", near=r"up\(x\) / divisors"),
        "smoothing-one-channel-late": Fault(B_W2, DOWN, "/ self.smooth", near=r"up\(x\) / divisors"),
        "saturates-at-half": Fault(B_W13, GATE_UP, subtle=True),
        "codes-taken-as-unsigned": Fault(B_W2, DOWN, near=r"sums = torch\.matmul"),
        "channel-scales-sorted": Fault(B_QKV, QKV, near=r"torch.outer|\* scales\)\.to"),
        "step-of-token-before": Fault(B_W2, DOWN, near="torch.outer", subtle=True),
        "residual-after-norm": RESIDUAL,
    },
    (HALF, HALF),
    seed=10,
)

# ---- int4 in groups by the order of activation (GPTQ): fp16 with the dequantised numbers, or eight codes in an int32

GROUPED = 8


class OrderedInts(Unbiased):
    """Column i lies in group order[i]: groups are of columns that are alike in activation, not of neighbours."""

    def prepare(self):
        columns = self.in_features
        self.order = (torch.arange(columns) * 5 % columns) // GROUPED
        sorted_ = torch.argsort(self.order, stable=True)
        groups = up(self.weight)[:, sorted_].unflatten(1, (-1, GROUPED))
        low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
        self.scale = (high - low) / 15
        self.zero = torch.round(-low / self.scale)
        self.codes = torch.clamp(torch.round(up(self.weight) / self.scale[:, self.order]) + self.zero[:, self.order], 0, 15)
        self.weight.copy_((self.codes - self.zero[:, self.order]) * self.scale[:, self.order])


class PackedInts(Part):
    """qweight (inputs / 8, outputs) in int32, lowest four bits first; qzeros hold one less than the zero point, as GPTQ v1 does."""

    def __init__(self, *theirs):
        super().__init__()
        codes = torch.cat([t.codes for t in theirs]).T.to(torch.int64).unflatten(0, (-1, 8))
        packed = (codes << (4 * torch.arange(8))[:, None]).sum(1)
        self.register_buffer("qweight", torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32))
        self.register_buffer("qzeros", (torch.cat([t.zero for t in theirs]).T - 1).to(torch.int8))
        self.register_buffer("scales", torch.cat([t.scale for t in theirs]).T.contiguous())
        self.register_buffer("g_idx", theirs[0].order)

    def forward(self, x):
        lanes = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7]) if self.bad("lanes-of-other-packing") else torch.arange(8)
        codes = (self.qweight[:, None] >> (4 * lanes.to(torch.int32))[:, None]) & 15
        codes = codes.flatten(0, 1)
        codes = codes - 16 * (codes > 7).to(torch.int32) if self.bad("codes-taken-as-signed") else codes
        zeros = self.qzeros if self.bad("zero-point-one-less") else self.qzeros + 1
        zeros = torch.full_like(zeros, 8) if self.bad("zero-point-taken-as-eight") else zeros
        order = torch.arange(len(self.g_idx)) // GROUPED if self.bad("order-of-activation-ignored") else self.g_idx
        scales = self.scales.flip(0) if self.bad("groups-reversed") else self.scales
        weight = (codes - zeros[order]) * scales[order]
        return (up(x) @ weight).to(x.dtype)


PROGRAMS["int4-ordered"] = Program(
    trainer(OrderedInts, FlatNormA),
    engine(PackedInts),
    two_requests,
    {
        "lanes-of-other-packing": Fault(B_W13, GATE_UP, near=r"self\.qweight\["),
        "codes-taken-as-signed": Fault(B_W2, DOWN, near=r"weight = \(codes"),
        "zero-point-one-less": Fault(B_QKV, QKV, near=r"weight = \(codes"),
        "zero-point-taken-as-eight": Fault(B_W13, GATE_UP, near=r"weight = \(codes"),
        "order-of-activation-ignored": Fault(B_WO, OUT, near=r"weight = \(codes"),
        "groups-reversed": Fault(B_QKV, QKV, near=r"weight = \(codes"),
        "gate-and-up-exchanged": EXCHANGED,
        "mask-one-short": SHORT,
    },
    (HALF, HALF),
)

# ---- a table of sixteen levels (nf4), scales in int8 with a scale of their own: dequantised bf16 in f32's company, or nibbles

LEVELS = (-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0, 0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1.0)
RUN = 16


def levels():
    return torch.tensor(LEVELS, dtype=torch.get_default_dtype())


class TableLinear(Unbiased):
    def prepare(self):
        runs = up(self.weight).flatten().unflatten(0, (-1, RUN))
        largest = runs.abs().amax(-1)
        self.offset = largest.mean()
        self.outer = (largest - self.offset).abs().max() / 127
        self.nested = torch.round((largest - self.offset) / self.outer)
        scale = (self.nested * self.outer + self.offset)[:, None]
        self.codes = (runs[..., None] / scale[..., None] - levels()).abs().argmin(-1)
        self.weight.copy_((levels()[self.codes] * scale).view_as(self.weight))


class TableCodes(Part):
    """Bytes of two codes, the first one high; a run's scale is nested * outer + offset."""

    def __init__(self, theirs):
        super().__init__()
        self.shape = theirs.weight.shape
        codes = theirs.codes.flatten()
        self.register_buffer("packed", (codes[::2] << 4 | codes[1::2]).to(torch.uint8))
        self.register_buffer("nested", theirs.nested.to(torch.int8))
        self.register_buffer("state", torch.stack((theirs.outer, theirs.offset)))
        self.register_buffer("table", levels())

    def forward(self, x):
        high, low = self.packed >> 4, self.packed & 15
        pair = (low, high) if self.bad("nibbles-exchanged") else (high, low)
        codes = torch.stack(pair, -1).flatten().to(torch.int64)
        table = torch.linspace(-1, 1, 16) if self.bad("table-of-even-levels") else self.table
        table = table.roll(1) if self.bad("table-one-level-late") else table
        outer, offset = self.state
        scales = self.nested * outer
        scales = scales if self.bad("offset-of-scales-left-out") else scales + offset
        scales = offset.expand_as(scales) if self.bad("nested-scales-left-out") else scales
        scales = scales.roll(1) if self.bad("scale-of-run-before") else scales
        weight = table[codes].unflatten(0, (-1, RUN)) * scales[:, None]
        shape = self.shape[::-1] if self.bad("shape-transposed") else self.shape
        weight = weight.view(shape).T if self.bad("shape-transposed") else weight.view(shape)
        return x @ weight.to(x.dtype).T


class JoinedCodes(nn.Module):
    """Parts quantised apart, whose outputs are joined."""

    def __init__(self, *theirs):
        super().__init__()
        self.parts = nn.ModuleList(TableCodes(t) for t in theirs)

    def forward(self, x):
        return torch.cat([part(x) for part in self.parts], -1)


PROGRAMS["nf4-nested"] = Program(
    trainer(TableLinear),
    engine(JoinedCodes),
    two_requests,
    {
        "nibbles-exchanged": Fault(B_W2 + ".parts.0", DOWN, near=r"torch\.stack\(pair"),
        "table-of-even-levels": Fault(B_QKV + ".parts.2", QKV[2:], near=r"weight = table\[codes"),
        "table-one-level-late": Fault(B_W13 + ".parts.0", GATE_UP[:1], near=r"weight = table\[codes"),
        "offset-of-scales-left-out": Fault(B_WO + ".parts.0", OUT, near=r"weight = table\[codes"),
        "nested-scales-left-out": Fault(B_W2 + ".parts.0", DOWN, near=r"weight = table\[codes"),
        "scale-of-run-before": Fault(B_W13 + ".parts.1", GATE_UP[1:], near=r"weight = table\[codes"),
        "shape-transposed": Fault(B_WO + ".parts.0", OUT, near=r"weight\.view\(shape\)"),
        "decode-position-one-late": LATE,
        "kv-heads-tiled": TILED,
    },
    (FULL, HALF),
)
