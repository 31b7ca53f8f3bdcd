"""Programs of low_served with experts: routers in f32 and in bf16, biases that only choose, shared experts, weights in fp8 and mxfp4."""

import torch
import torch.nn.functional as F
from low_served_floats import E4M3, eight_bits
from low_served_frame import (
    B_FFN,
    FULL,
    HALF,
    HF,
    INNER,
    MLP,
    SHORT,
    WIDTH,
    AttentionA,
    AttentionB,
    Fault,
    FlatNormA,
    LayerA,
    LmA,
    LmB,
    MlpA,
    NormA,
    NormB,
    Part,
    Program,
    held,
    linear_of,
    plain,
    two_requests,
    up,
)
from torch import nn

PROGRAMS = {}


def pair(experts, served, norm=NormA):
    """Models of both houses with experts in the place of their channels."""
    first = type("Lm", (LmA,), dict(kinds=(AttentionA, experts, norm, LayerA)))
    return first, type("Engine", (LmB,), dict(kinds=(AttentionB, served, NormB)))


def stacked(experts, *names):
    """(experts, rows, columns): the weights of each expert's projections, one below the other."""
    return torch.stack([torch.cat([getattr(e, name).weight for name in names]) for e in experts])


def dispatched(x, ids, one):
    """one(rows, i) for the rows of each expert i, brought back as (rows, chosen, width)."""
    order = torch.argsort(ids.flatten(), stable=True)
    counts = torch.bincount(ids.flatten(), minlength=int(ids.max()) + 1).tolist()
    sorted_ = x[order // ids.shape[1]].split(counts)
    done = torch.cat([one(rows, i) for i, rows in enumerate(sorted_)])
    return done.new_empty(done.shape).index_copy(0, order, done).unflatten(0, ids.shape)


# ---- softmax in f32 over all experts, cut and normed (Mixtral), or the best logits in bf16 and a softmax over these

EXPERTS, TOP = 6, 2


class LoopedExperts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.experts = plain(WIDTH, EXPERTS), nn.ModuleList(MlpA() for _ in range(EXPERTS))

    def prepare(self):
        self.gate.weight.mul_(0.5)  # shares so even that norming them matters

    def forward(self, x):
        shares = F.linear(up(x), up(self.gate.weight)).softmax(-1)
        weights, chosen = shares.topk(TOP, -1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        y = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            y = y + expert(x) * (weights * (chosen == i)).sum(-1, keepdim=True)
        return y


class ChosenExperts(Part):
    def __init__(self, theirs):
        super().__init__()
        self.router = linear_of(theirs.gate.weight)
        self.w13, self.w2 = held(stacked(theirs.experts, "gate_proj", "up_proj")), held(stacked(theirs.experts, "down_proj"))

    def forward(self, x):
        logits = self.router(x)
        best, ids = logits.topk(1 if self.bad("one-expert-only") else TOP)
        if self.bad("worst-experts"):
            best, ids = logits.topk(TOP, largest=False)
        weights = logits.softmax(-1).gather(1, ids) if self.bad("shares-not-normed") else best.softmax(-1)
        weights = weights.flip(1) if self.bad("weights-of-other-choice") else weights
        weights = torch.full_like(weights, 0.5) if self.bad("weights-left-out") else weights
        ids = (ids + 1) % EXPERTS if self.bad("experts-one-late") else ids
        gate, up_ = torch.einsum("nw,nkiw->nki", x, self.w13[ids]).chunk(2, -1)
        gate, up_ = (up_, gate) if self.bad("gate-and-up-exchanged") else (gate, up_)
        done = torch.einsum("nki,nkwi->nkw", F.silu(gate) * up_, self.w2[ids])
        done = done * weights[..., None] if self.bad("weights-twice") else done
        return torch.einsum("nkw,nk->nw", done, weights)


PROGRAMS["experts-brain"] = Program(
    *pair(LoopedExperts, ChosenExperts, FlatNormA),
    two_requests,
    {
        "one-expert-only": Fault(B_FFN, MLP, r"topk\(TOP"),
        "worst-experts": Fault(B_FFN, MLP, r"topk\(TOP", near=r"largest=False"),
        "shares-not-normed": Fault(B_FFN, MLP, r"weights\.sum\(-1", subtle=True),
        "weights-of-other-choice": Fault(B_FFN, MLP, near="nkw,nk->nw"),
        "weights-left-out": Fault(B_FFN, MLP, near="nkw,nk->nw"),
        "experts-one-late": Fault(B_FFN, MLP, near=r"self\.w13\[ids\]"),
        "gate-and-up-exchanged": Fault(B_FFN, MLP, near=r"F\.silu\(gate\) \* up_"),
        "weights-twice": Fault(B_FFN, MLP, near="nkw,nk->nw", subtle=True),
    },
    seed=7,
)

# ---- sigmoid scores, a bias that only chooses, groups, a shared expert (DeepSeek-V3): dense in f32, or sorted rows in fp16

MANY, GROUPS, KEPT, FACTOR = 8, 4, 2, 2.5


class GroupRouter(Part):
    wide = ("weight", "e_score_correction_bias")

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(MANY, WIDTH))
        self.e_score_correction_bias = nn.Parameter(torch.zeros(MANY))

    def forward(self, x):
        scores = F.linear(up(x), self.weight).sigmoid()
        choice = scores + self.e_score_correction_bias
        groups = choice.unflatten(-1, (GROUPS, -1)).topk(2, -1).values.sum(-1)
        kept = torch.zeros_like(groups).scatter(-1, groups.topk(KEPT, -1).indices, 1.0)
        choice = choice.masked_fill(kept.repeat_interleave(MANY // GROUPS, -1) == 0, -torch.inf)
        chosen = torch.zeros_like(scores).scatter(-1, choice.topk(TOP, -1).indices, 1.0)
        weights = chosen * scores
        return weights / weights.sum(-1, keepdim=True) * FACTOR


class GroupedExperts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.experts = GroupRouter(), nn.ModuleList(MlpA() for _ in range(MANY))
        self.shared_experts = MlpA()

    def forward(self, x):
        weights = self.gate(x)
        every = torch.stack([expert(x) for expert in self.experts], -2)
        return (weights[..., None] * every).sum(-2).to(x.dtype) + self.shared_experts(x)


class GroupChoice(Part):
    """Ids and weights of the chosen, (rows, TOP)."""

    wide = ("kernel", "bias")

    def __init__(self, theirs):
        super().__init__()
        self.kernel, self.bias = held(theirs.weight.T), held(theirs.e_score_correction_bias)

    def forward(self, x):
        logits = up(x) @ self.kernel
        scores = logits.softmax(-1) if self.bad("softmax-for-sigmoid") else torch.sigmoid(logits)
        biased = scores if self.bad("choosing-bias-left-out") else scores + self.bias
        by_group = biased.view(len(x), GROUPS, -1)
        of_group = by_group[..., 0] if self.bad("groups-by-first-expert") else by_group.sum(-1)
        last = of_group.sort(-1).values[:, -KEPT]
        allowed = torch.ones_like(of_group, dtype=torch.bool) if self.bad("groups-ignored") else of_group >= last[:, None]
        ids = torch.where(allowed[..., None], by_group, -torch.inf).flatten(1).argsort(-1, descending=True)[:, :TOP]
        weights = (biased if self.bad("choosing-bias-in-weights") else scores).gather(1, ids)
        weights = weights if self.bad("renormalisation-left-out") else weights / weights.sum(1, keepdim=True)
        return ids, weights if self.bad("routed-factor-left-out") else weights * FACTOR


class SortedExperts(Part):
    def __init__(self, theirs):
        super().__init__()
        self.choice = GroupChoice(theirs.gate)
        every = [*theirs.experts, theirs.shared_experts]
        self.w13, self.w2 = held(stacked(every, "gate_proj", "up_proj")), held(stacked(every, "down_proj"))

    def one(self, rows, i):
        gate, up_ = F.linear(rows, self.w13[i]).tensor_split(2, -1)
        return F.linear(gate * torch.sigmoid(gate) * up_, self.w2[i])

    def forward(self, x):
        ids, weights = self.choice(x)
        done = dispatched(x, ids, self.one)
        routed = torch.matmul(weights[:, None], up(done))[:, 0].to(x.dtype)
        shared = self.one(x, MANY)
        if self.bad("factor-on-shared"):
            return routed + shared * FACTOR
        return routed if self.bad("shared-left-out") else routed + shared


CHOICE, GATE = B_FFN + ".choice", (HF + "mlp.gate",)
PROGRAMS["experts-grouped"] = Program(
    *pair(GroupedExperts, SortedExperts),
    two_requests,
    {
        "softmax-for-sigmoid": Fault(CHOICE, GATE, r"sigmoid\(\)"),
        "choosing-bias-left-out": Fault(CHOICE, GATE, r"scores \+ self\.e_score"),
        "groups-by-first-expert": Fault(CHOICE, GATE, r"topk\(2, -1\)"),
        "groups-ignored": Fault(CHOICE, GATE, "kept.repeat_interleave"),
        "choosing-bias-in-weights": Fault(CHOICE, GATE, r"chosen \* scores"),
        "renormalisation-left-out": Fault(CHOICE, GATE, r"weights\.sum\(-1"),
        "routed-factor-left-out": Fault(CHOICE, GATE, r"\* FACTOR"),
        "factor-on-shared": Fault(B_FFN, MLP, near=r"shared \* FACTOR"),
        "shared-left-out": Fault(B_FFN, MLP, "self.shared_experts\\(x"),
    },
    (FULL, HALF),
    seed=17,
)

# ---- experts in fp8 with two scales each and a gated shared one (Qwen): dequantised fp16, or codes


class FloatExpert(MlpA):
    """Gate and up projection share a scale."""

    def prepare(self):
        wide = [up(p.weight) for p in (self.gate_proj, self.up_proj, self.down_proj)]
        both = max(wide[0].abs().max(), wide[1].abs().max()) / 448
        self.scales = torch.stack((both, wide[2].abs().max() / 448))
        self.codes = [eight_bits(w, s) for w, s in zip(wide, (both, both, self.scales[1]))]
        for p, codes, s in zip((self.gate_proj, self.up_proj, self.down_proj), self.codes, (both, both, self.scales[1])):
            p.weight.copy_(codes.to(s.dtype) * s)


class GatedShare(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.experts = plain(WIDTH, EXPERTS), nn.ModuleList(FloatExpert() for _ in range(EXPERTS))
        self.shared_expert, self.shared_expert_gate = MlpA(), plain(WIDTH, 1)

    def prepare(self):
        for i, expert in enumerate(self.experts):  # experts of other sizes have other scales
            expert.gate_proj.weight.mul_(2.0 ** (i % 3 - 1))
            expert.down_proj.weight.mul_(2.0 ** ((i + 1) % 3 - 1))
        for expert in self.experts:
            expert.prepare()

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(TOP, -1)
        routed = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            row, *rest = torch.where(chosen == i)
            y = expert(x[(row, rest[0])]) * weights[(row, *rest)][:, None]
            routed = routed.index_put((row, rest[0]), y, accumulate=True)
        return routed + torch.sigmoid(self.shared_expert_gate(x)) * self.shared_expert(x)


class CodedExperts(Part):
    def __init__(self, theirs):
        super().__init__()
        self.router, self.mix = linear_of(theirs.gate.weight), linear_of(theirs.shared_expert_gate.weight)
        codes = [[c.view(torch.uint8) for c in e.codes] for e in theirs.experts]
        self.register_buffer("w13", torch.stack([torch.cat(c[:2]) for c in codes]).view(E4M3))
        self.register_buffer("w2", torch.stack([c[2] for c in codes]).view(E4M3))
        self.register_buffer("scales", torch.stack([e.scales for e in theirs.experts]))
        shared = theirs.shared_expert
        self.shared13, self.shared2 = linear_of(shared.gate_proj.weight, shared.up_proj.weight), linear_of(shared.down_proj.weight)

    def one(self, rows, i):
        s13, s2 = self.scales[(i + 1) % EXPERTS if self.bad("scales-of-next-expert") else i]
        s13, s2 = (s2, s13) if self.bad("scales-of-both-products-exchanged") else (s13, s2)
        s2 = torch.ones_like(s2) / 448 if self.bad("second-scale-left-out") else s2
        rows = up(rows)
        gate, up_ = (rows @ self.w13[i].to(rows.dtype).T * s13).chunk(2, -1)
        gate = gate * s13.sqrt() if self.bad("gate-scaled-again") else gate
        return (F.silu(gate) * up_) @ self.w2[i].to(rows.dtype).T * s2

    def forward(self, x):
        shares = torch.softmax(self.router(x), -1)
        weights, ids = torch.topk(shares, TOP)
        weights = weights / weights.sum(-1, keepdim=True) if self.bad("renormed-against-config") else weights
        routed = (dispatched(x, ids, self.one) * weights[..., None]).sum(1)
        gate, up_ = self.shared13(x).chunk(2, -1)
        shared = self.shared2(F.silu(gate) * up_)
        mix = self.mix(x) if self.bad("shared-gate-without-sigmoid") else self.mix(x).sigmoid()
        return routed.to(x.dtype) + (shared if self.bad("shared-gate-left-out") else shared * mix)


PROGRAMS["experts-fp8"] = Program(
    *pair(GatedShare, CodedExperts),
    two_requests,
    {
        "scales-of-next-expert": Fault(B_FFN, MLP, near="chunk\\(2, -1\\)"),
        "scales-of-both-products-exchanged": Fault(B_FFN, MLP, near=r"self\.w13\[i\]\.to|self\.w2\[i\]\.to"),
        "second-scale-left-out": Fault(B_FFN, MLP, near="to\\(rows.dtype\\).T \\* s2"),
        "gate-scaled-again": Fault(B_FFN, MLP),
        "renormed-against-config": Fault(B_FFN, MLP),
        "shared-gate-without-sigmoid": Fault(B_FFN, MLP, "torch.sigmoid\\(self.shared_expert_gate"),
        "shared-gate-left-out": Fault(B_FFN, MLP, "torch.sigmoid\\(self.shared_expert_gate"),
        "mask-one-short": SHORT,
    },
    (HALF, HALF),
)

# ---- mxfp4 with clamped, interleaved gates and biases (GPT-OSS): dequantised bf16, or nibbles and exponents

STEPS, LIMIT, ALPHA, LANES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0), 2.0, 1.702, 16


def steps():
    return torch.tensor(STEPS, dtype=torch.get_default_dtype())


def nibbles(weight):
    """Codes (…, groups, LANES) with the sign in the highest of four bits, and exponents (…, groups)."""
    groups = up(weight).unflatten(-1, (-1, LANES))
    exponent = torch.floor(torch.log2(groups.abs().amax(-1))) - 2
    scaled = groups / torch.exp2(exponent)[..., None]
    codes = (scaled.abs()[..., None] - steps()).abs().argmin(-1)
    return codes + 8 * (scaled < 0), exponent


class ClampedExperts(nn.Module):
    """Even rows of gate_up_proj are gates, odd ones their factors."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.gate_up_proj, self.gate_up_proj_bias = (
            nn.Parameter(torch.zeros(EXPERTS, 2 * INNER, WIDTH)),
            nn.Parameter(torch.zeros(EXPERTS, 2 * INNER)),
        )
        self.down_proj, self.down_proj_bias = nn.Parameter(torch.zeros(EXPERTS, WIDTH, INNER)), nn.Parameter(torch.zeros(EXPERTS, WIDTH))

    def prepare(self):
        self.coded = []
        self.down_proj_bias.mul_(3)
        for weight in (self.gate_up_proj, self.down_proj):
            codes, exponent = nibbles(weight)
            signs = 1 - 2 * (codes // 8)
            weight.copy_((steps()[codes % 8] * signs * torch.exp2(exponent)[..., None]).flatten(-2))
            self.coded.append((codes, exponent))

    def forward(self, x):
        best, chosen = self.router(x).topk(TOP, -1)
        weights = torch.zeros(*x.shape[:-1], EXPERTS, dtype=x.dtype).scatter(-1, chosen, best.softmax(-1))
        both = torch.einsum("btw,eiw->btei", x, self.gate_up_proj) + self.gate_up_proj_bias
        gate, up_ = both[..., ::2].clamp(max=LIMIT), both[..., 1::2].clamp(-LIMIT, LIMIT)
        done = torch.einsum("btei,ewi->btew", (up_ + 1) * gate * torch.sigmoid(ALPHA * gate), self.down_proj)
        return ((done + self.down_proj_bias) * weights[..., None]).sum(-2)


class Microscaled(Part):
    """(experts, rows, columns) in bytes of two codes, the first one low, and biased exponents."""

    def __init__(self, codes, exponent):
        super().__init__()
        codes = codes.flatten(-2).to(torch.uint8)
        self.register_buffer("blocks", codes[..., ::2] | codes[..., 1::2] << 4)
        self.register_buffer("scales", (exponent + 127).to(torch.uint8))

    def weight(self, kind):
        low, high = self.blocks & 15, self.blocks >> 4
        low, high = (high, low) if self.bad("nibbles-exchanged") else (low, high)
        codes = torch.stack((low, high), -1).flatten(-2).to(torch.int32)
        table = torch.arange(8) * 6 / 7 if self.bad("even-steps") else steps()
        table = torch.cat((table, table if self.bad("sign-lost") else -table))
        scales = self.scales.roll(1, -1) if self.bad("scale-of-group-before") else self.scales
        bias = 126 if self.bad("exponent-bias-one-less") else 127
        values = table[codes].unflatten(-1, (-1, LANES))
        return torch.ldexp(values, scales.to(torch.int32)[..., None] - bias).flatten(-2).to(kind)


class NibbleExperts(Part):
    def __init__(self, theirs):
        super().__init__()
        self.router = linear_of(theirs.router.weight, bias=theirs.router.bias)
        self.w13, self.w2 = (Microscaled(*coded) for coded in theirs.coded)
        self.b13, self.b2 = held(theirs.gate_up_proj_bias), held(theirs.down_proj_bias)

    def forward(self, x):
        best, ids = torch.topk(self.router(x), TOP)
        w13, w2 = self.w13.weight(x.dtype), self.w2.weight(x.dtype)

        def one(rows, i):
            both = F.linear(rows, w13[i], self.b13[i])
            gate, up_ = both.chunk(2, -1) if self.bad("halves-for-interleaved") else both.unflatten(-1, (-1, 2)).unbind(-1)
            limit = torch.inf if self.bad("limit-left-out") else LIMIT
            gate, up_ = gate.clamp(max=limit), up_.clamp(-limit, limit)
            up_ = up_ if self.bad("plus-one-missing") else up_ + 1
            glu = gate * torch.sigmoid(gate * ALPHA)
            return F.linear(glu * up_, w2[i], None if self.bad("second-bias-left-out") else self.b2[i])

        return torch.einsum("nkw,nk->nw", dispatched(x, ids, one), torch.softmax(best, -1))


PROGRAMS["experts-mxfp4"] = Program(
    *pair(ClampedExperts, NibbleExperts),
    two_requests,
    {
        "nibbles-exchanged": Fault(B_FFN + ".w13", MLP, near=r"values = table"),
        "even-steps": Fault(B_FFN + ".w2", MLP, near=r"values = table", subtle=True),
        "sign-lost": Fault(B_FFN + ".w2", MLP, near=r"values = table"),
        "scale-of-group-before": Fault(B_FFN + ".w13", MLP, near="torch.ldexp"),
        "exponent-bias-one-less": Fault(B_FFN + ".w13", MLP, near="torch.ldexp"),
        "halves-for-interleaved": Fault(B_FFN, MLP, "both\\[..., ::2\\]"),
        "limit-left-out": Fault(B_FFN, MLP, near=r"clamp\(max=limit\)"),
        "plus-one-missing": Fault(B_FFN, MLP),
        "second-bias-left-out": Fault(B_FFN, MLP, r"self\.down_proj_bias\)"),
    },
    seed=1,
)
