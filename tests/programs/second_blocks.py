"""Blocks of today's networks as two people write them: latent attention, modulation, codebooks, flows, routing, solvers, packed rows.

    python second_blocks.py --all DIR [NET…]       # NET-first.lb, NET-second.lb, NET-FAULT.lb, and train-NET-… of a step of training
    python second_blocks.py --confirm              # in float64: both ways agree to 1e-9, and a fault moves more than 1e-6

Every net has three layers; a fault is one other expression of the second way, in layers.1 alone."""

import math

import torch
import torch.nn.functional as F
import two_ways
from torch import nn
from two_ways import HEADS, LENGTH, SIZE, WIDTH, Layer, causal, heads

RANK = 6


class Latent(Layer):
    """Keys and values from a latent row (DeepSeek-V2): expanded, or their projections absorbed into queries and outputs."""

    faults = ("unnormed-latent", "scale-of-latent", "looks-ahead", "value-for-key")

    def __init__(self):
        super().__init__()
        self.norm, self.norm_latent = nn.RMSNorm(WIDTH, eps=1e-6), nn.RMSNorm(RANK, eps=1e-6)
        self.q, self.down = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, RANK, bias=False)
        self.up, self.out = nn.Linear(RANK, 2 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        h = self.norm(x)
        q, latent = heads(self.q(h)), self.down(h)
        latent = latent if self.has("unnormed-latent") else self.norm_latent(latent)
        if self.way == "first":
            k, v = (heads(y) for y in self.up(latent).chunk(2, -1))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return x + self.out(y.transpose(1, 2).flatten(2))
        keys, values = self.up.weight.view(2, HEADS, SIZE, RANK)
        keys = values if self.has("value-for-key") else keys
        scores = torch.einsum("bhtd,hdr,bsr->bhts", q, keys, latent) / math.sqrt(RANK if self.has("scale-of-latent") else SIZE)
        scores = scores.masked_fill(~causal(x.shape[1], int(self.has("looks-ahead"))), -torch.inf)
        y = torch.einsum("bhts,bsr,hdr->bthd", scores.softmax(-1), latent, values)
        return x + self.out(y.flatten(2))


class Modulated(Layer):
    """A condition gives shift, scale and gate of two branches (DiT): by one product that is cut, or by six."""

    faults = ("scale-without-one", "gate-left-out", "shift-of-other", "norm-eps", "gate-and-scale-exchanged")

    def __init__(self):
        super().__init__()
        self.condition = nn.Linear(WIDTH, 6 * WIDTH)
        self.mix, self.up, self.down = nn.Linear(LENGTH, LENGTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        c = F.silu(x.mean(1))
        if self.way == "first":
            shift, scale, gate, shift2, scale2, gate2 = self.condition(c).unsqueeze(1).chunk(6, -1)
            h = F.layer_norm(x, (WIDTH,), eps=1e-6) * (1 + scale) + shift
            x = x + gate * self.mix(h.transpose(1, 2)).transpose(1, 2)
            h = F.layer_norm(x, (WIDTH,), eps=1e-6) * (1 + scale2) + shift2
            return x + gate2 * self.down(F.gelu(self.up(h), approximate="tanh"))
        weight, bias = self.condition.weight.view(6, WIDTH, WIDTH), self.condition.bias.view(6, WIDTH)
        shift, scale, gate, shift2, scale2, gate2 = (F.linear(c, w, b)[:, None, :] for w, b in zip(weight, bias))
        if self.has("shift-of-other"):
            shift2 = shift
        if self.has("gate-and-scale-exchanged"):
            gate, scale = scale, gate
        h = F.layer_norm(x, (WIDTH,), eps=1e-2 if self.has("norm-eps") else 1e-6)
        h = torch.addcmul(shift, h, scale) if self.has("scale-without-one") else torch.addcmul(h + shift, h, scale)
        y = torch.einsum("bsd,ts->btd", h, self.mix.weight) + self.mix.bias[:, None]
        x = x + y if self.has("gate-left-out") else torch.addcmul(x, gate, y)
        h = F.layer_norm(x, (WIDTH,), eps=1e-6)
        return torch.addcmul(x, gate2, self.down(F.gelu(self.up(torch.addcmul(h + shift2, h, scale2)), approximate="tanh")))


class Codebook(Layer):
    """The nearest row of a codebook, past which the gradient goes straight (VQ-VAE): by distances and an index, or by products and ones."""

    faults = ("nearest-by-angle", "weaker-product", "residual-left-out", "code-scaled")

    def __init__(self):
        super().__init__()
        self.into, self.codes, self.out = nn.Linear(WIDTH, SIZE), nn.Parameter(torch.zeros(12, SIZE)), nn.Linear(SIZE, WIDTH)

    def forward(self, x):
        h = self.into(x)
        if self.way == "first":
            code = self.codes[torch.cdist(h.flatten(0, 1), self.codes).argmin(-1)].view_as(h)
            return x + torch.tanh(self.out(h + (code - h).detach()))
        square = self.codes.square().sum(-1)
        away = (0.0 if self.has("nearest-by-angle") else square) - (0.3 if self.has("weaker-product") else 2) * h @ self.codes.T
        code = F.one_hot(away.argmin(-1), 12).to(h.dtype) @ self.codes
        code = code * 1.1 if self.has("code-scaled") else code
        y = torch.tanh(F.linear(h - h.detach() + code.detach(), self.out.weight, self.out.bias))
        return y if self.has("residual-left-out") else x + y


class Crossed(Layer):
    """Explicit crosses of features (DCN-V2) and products of all pairs (factorisation machines): half a difference of squares, or pair by pair."""

    faults = ("crosses-itself", "no-bias", "with-squares", "no-half")

    def __init__(self):
        super().__init__()
        self.cross, self.fields, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5 * SIZE), nn.Linear(SIZE, WIDTH)

    def forward(self, x):
        if self.way == "first":
            y = x * self.cross(x) + x
            fields = self.fields(y).unflatten(-1, (5, SIZE))
            return torch.tanh(y + self.out(0.5 * (fields.sum(-2).square() - fields.square().sum(-2))))
        h = x @ self.cross.weight.T
        h = h if self.has("no-bias") else h + self.cross.bias
        y = (h if self.has("crosses-itself") else x) * h + x
        fields = self.fields(y).unflatten(-1, (5, SIZE))
        rows, columns = torch.triu_indices(5, 5, 0 if self.has("with-squares") else 1)
        crossed = (fields[..., rows, :] * fields[..., columns, :]).sum(-2)
        return torch.tanh(y + self.out(2 * crossed if self.has("no-half") else crossed))


class Coupling(Layer):
    """An affine coupling (RealNVP): half of the features gives scale and shift of the other half, then they change places."""

    faults = ("scale-unbounded", "shift-left-out", "halves-exchanged", "shift-first")

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH // 2, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        if self.way == "first":
            kept, moved = x.chunk(2, -1)
            scale, shift = self.down(F.relu(self.up(kept))).chunk(2, -1)
            return torch.cat([moved * torch.exp(torch.tanh(scale)) + shift, kept], -1)
        kept, moved = x[..., : WIDTH // 2], x[..., WIDTH // 2 :]
        h = self.up(kept).clamp(min=0)
        scale, shift = (F.linear(h, w, b) for w, b in zip(self.down.weight.split(WIDTH // 2), self.down.bias.split(WIDTH // 2)))
        factor = (scale if self.has("scale-unbounded") else scale.tanh()).exp()
        if self.has("shift-left-out"):
            moved = factor * moved
        elif self.has("shift-first"):
            moved = factor * (moved + shift)
        else:
            moved = factor * moved + shift
        return torch.cat([kept, moved] if self.has("halves-exchanged") else [moved, kept], -1)


class Slopes(Layer):
    """Attention with slopes (ALiBi) in a window: biases and mask in one table, or each row's places by themselves."""

    faults = ("other-slopes", "wider-window", "two-sided", "no-scale")

    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (heads(y) for y in self.qkv(self.norm(x)).chunk(3, -1))
        places = torch.arange(x.shape[1])
        if self.way == "first":
            away = places[None, :] - places[:, None]
            slopes = torch.tensor([2.0 ** -(2 * (i + 1)) for i in range(HEADS)], dtype=x.dtype)
            bias = (slopes[:, None, None] * away).masked_fill((away > 0) | (away <= -5), -torch.inf)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
            return x + self.out(y.transpose(1, 2).flatten(2))
        scores = torch.matmul(q * (1.0 if self.has("no-scale") else SIZE**-0.5), k.mT)
        base = 0.3 if self.has("other-slopes") else 0.25
        away = (places[:, None] - places[None, :]).to(x.dtype)
        scores = scores - torch.pow(base, torch.arange(1, HEADS + 1, dtype=x.dtype)).view(-1, 1, 1) * away
        window = away < (6 if self.has("wider-window") else 5)
        window = window & (away > -5) if self.has("two-sided") else window & (away >= 0)
        weights = torch.where(window, scores, torch.finfo(x.dtype).min).softmax(-1)
        y = torch.einsum("bhts,bhsd->bthd", weights, v).flatten(2)
        return x + y @ self.out.weight.T + self.out.bias


class Queries(Layer):
    """Learned queries read the rows, which read them back (Q-Former): by an op of attention, or by products."""

    faults = ("queries-unnormed", "softmax-over-queries", "read-back-scaled", "keys-for-values")

    def __init__(self):
        super().__init__()
        self.queries, self.norm, self.norm_queries = nn.Parameter(torch.zeros(3, WIDTH)), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.kv, self.back = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        h = self.norm(x)
        k, v = self.kv(h).chunk(2, -1)
        queries = self.queries if self.has("queries-unnormed") else self.norm_queries(self.queries)
        if self.way == "first":
            q = self.q(queries).expand(x.shape[0], -1, -1)
            read = F.scaled_dot_product_attention(heads(q), heads(k), heads(v)).transpose(1, 2).flatten(2)
            weights = torch.softmax(h @ read.transpose(1, 2) / math.sqrt(WIDTH), -1)
            return x + self.back(weights @ read)
        q = self.q(queries).view(-1, HEADS, SIZE)
        scores = torch.einsum("qhd,bthd->bhqt", q, k.unflatten(-1, (HEADS, SIZE))) * 0.5
        weights = scores.softmax(-2 if self.has("softmax-over-queries") else -1)
        v = k if self.has("keys-for-values") else v
        read = torch.einsum("bhqt,bthd->bqhd", weights, v.unflatten(-1, (HEADS, SIZE))).flatten(2)
        weights = torch.einsum("btd,bqd->btq", h * (0.5 if self.has("read-back-scaled") else 0.25), read).softmax(-1)
        return x + F.linear(torch.bmm(weights, read), self.back.weight, self.back.bias)


class Streams(Layer):
    """Two residual streams that are mixed (hyper-connections): as one tensor with products, or one after the other."""

    faults = ("mixed-transposed", "depth-left-out", "reads-one-stream", "norm-eps")

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH // 2), nn.Linear(WIDTH // 2, WIDTH), nn.Linear(WIDTH, WIDTH // 2)
        self.read, self.mix, self.depth = (nn.Parameter(torch.zeros(*n)) for n in ((2,), (2, 2), (2,)))

    def forward(self, x):
        if self.way == "first":
            streams = x.unflatten(-1, (2, WIDTH // 2))
            h = torch.einsum("n,btnd->btd", self.read, streams)
            y = self.down(F.silu(self.up(self.norm(h))))
            return (torch.einsum("mn,btnd->btmd", self.mix, streams) + self.depth[:, None] * y.unsqueeze(-2)).flatten(-2)
        one, two = x.split(WIDTH // 2, -1)
        h = one * self.read[0] if self.has("reads-one-stream") else one * self.read[0] + two * self.read[1]
        h = F.layer_norm(h, (WIDTH // 2,), self.norm.weight, self.norm.bias, 1e-2 if self.has("norm-eps") else 1e-5)
        h = self.up(h)
        y = self.down(h * torch.sigmoid(h))
        mix = self.mix.T if self.has("mixed-transposed") else self.mix
        depth = self.depth
        first = mix[0, 0] * one + mix[0, 1] * two + depth[0] * y
        second = mix[1, 0] * one + mix[1, 1] * two + (y if self.has("depth-left-out") else depth[1] * y)
        return torch.cat((first, second), dim=-1)


class Excited(Layer):
    """Channels are weighed by what all places say of them (squeeze and excitation) behind a depthwise convolution over time."""

    faults = ("largest-place", "hard-gate", "bottleneck-linear", "shifted-convolution")

    def __init__(self):
        super().__init__()
        self.along, self.down, self.up = nn.Conv1d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH), nn.Linear(WIDTH, SIZE), nn.Linear(SIZE, WIDTH)

    def forward(self, x):
        if self.way == "first":
            y = F.hardswish(self.along(x.transpose(1, 2)))
            gate = torch.sigmoid(self.up(F.relu(self.down(F.adaptive_avg_pool1d(y, 1).squeeze(-1)))))
            return x + (y * gate.unsqueeze(-1)).transpose(1, 2)
        padded = F.pad(x, (0, 0, 2, 0) if self.has("shifted-convolution") else (0, 0, 1, 1))
        y = sum(padded[:, i : i + x.shape[1]] * self.along.weight[:, 0, i] for i in range(3)) + self.along.bias
        y = y * F.relu6(y + 3) / 6
        h = self.down(y.amax(1) if self.has("largest-place") else y.mean(1))
        h = self.up(h if self.has("bottleneck-linear") else F.relu(h))
        return x + y * (F.hardsigmoid(h) if self.has("hard-gate") else h.sigmoid())[:, None]


class Solved(Layer):
    """A differential equation over a second in two steps of Runge and Kutta's fourth order, with the weights before or behind the sums."""

    faults = ("first-order", "wrong-weight", "whole-step-inside", "one-step-less")

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def slope(self, x, t):
        return self.down(torch.tanh(self.up(x) + t))

    def forward(self, x):
        step = 0.5
        for i in range(1 if self.has("one-step-less") else 2):
            t = i * step
            one = self.slope(x, t)
            if self.way == "first":
                two = self.slope(x + step / 2 * one, t + step / 2)
                three = self.slope(x + step / 2 * two, t + step / 2)
                four = self.slope(x + step * three, t + step)
                x = x + step / 6 * (one + 2 * two + 2 * three + four)
                continue
            two = self.slope(torch.add(x, one, alpha=step if self.has("whole-step-inside") else step / 2), t + step / 2)
            three = self.slope(torch.add(x, two, alpha=step / 2), t + step / 2)
            four = self.slope(torch.add(x, three, alpha=step), t + step)
            if self.has("first-order"):
                x = x.add(one, alpha=step)
            else:
                x = x + (one + four) * (step / 6) + (two + three) * (step / (4 if self.has("wrong-weight") else 3))
        return x


class Normed(Layer):
    """Weights as a length and a direction (weight normalisation): the weight is divided, or what the product gives."""

    faults = ("length-left-out", "norm-of-columns", "bias-scaled", "other-slope")

    def __init__(self):
        super().__init__()
        self.direction, self.length, self.bias = (nn.Parameter(torch.zeros(*n)) for n in ((WIDTH, WIDTH), (WIDTH,), (WIDTH,)))

    def forward(self, x):
        if self.way == "first":
            weight = self.length[:, None] * self.direction / self.direction.norm(dim=1, keepdim=True)
            return x + F.leaky_relu(F.linear(x, weight, self.bias), 0.1)
        inverse = self.direction.square().sum(0 if self.has("norm-of-columns") else 1).rsqrt()
        h = x @ self.direction.T * (inverse if self.has("length-left-out") else self.length * inverse)
        h = (h + self.bias) * 1.02 if self.has("bias-scaled") else h + self.bias
        return x + torch.maximum(h, (0.2 if self.has("other-slope") else 0.1) * h)


class Kronecker(Layer):
    """A product with a Kronecker product of two matrices: the large matrix is built, or rows are turned into squares."""

    faults = ("factors-exchanged", "one-transposed", "unrolled-otherwise", "cubed-activation")

    def __init__(self):
        super().__init__()
        self.norm, self.one, self.two = nn.LayerNorm(WIDTH), nn.Parameter(torch.zeros(4, 4)), nn.Parameter(torch.zeros(4, 4))

    def forward(self, x):
        h = self.norm(x)
        if self.way == "first":
            return x + torch.tanh(h @ torch.kron(self.one, self.two).T)
        one, two = (self.two, self.one) if self.has("factors-exchanged") else (self.one, self.two)
        one = one.T if self.has("one-transposed") else one
        y = one @ h.unflatten(-1, (4, 4)) @ two.T
        y = (y.mT if self.has("unrolled-otherwise") else y).flatten(-2)
        return x + torch.tanh(y**3 if self.has("cubed-activation") else y)


class Tags(Layer):
    """Sums over all paths of tags (a conditional random field): in logarithms, or of numbers that are divided by their largest."""

    faults = ("best-path", "transitions-transposed", "no-start", "emission-twice")

    def __init__(self):
        super().__init__()
        self.score, self.moves, self.start, self.out = (
            nn.Linear(WIDTH, 5),
            nn.Parameter(torch.zeros(5, 5)),
            nn.Parameter(torch.zeros(5)),
            nn.Linear(5, WIDTH),
        )

    def forward(self, x):
        scores = torch.tanh(self.score(x))
        rows = []
        if self.way == "first":
            alpha = self.start + scores[:, 0]
            rows.append(alpha)
            for t in range(1, x.shape[1]):
                alpha = torch.logsumexp(alpha.unsqueeze(2) + self.moves, 1) + scores[:, t]
                rows.append(alpha)
            return x + torch.tanh(0.1 * self.out(torch.stack(rows, 1)))
        moves = (self.moves.T if self.has("transitions-transposed") else self.moves).exp()
        alpha = scores[:, 0] if self.has("no-start") else scores[:, 0] + self.start
        rows.append(alpha)
        for t in range(1, x.shape[1]):
            top = alpha.amax(1, keepdim=True)
            if self.has("best-path"):
                alpha = (alpha.unsqueeze(2) + self.moves).amax(1)
            else:
                alpha = torch.log(torch.exp(alpha - top) @ moves) + top
            alpha = alpha + scores[:, t] * (2 if self.has("emission-twice") and t == 4 else 1)
            rows.append(alpha)
        return x + torch.tanh(self.out(torch.stack(rows, 1)) * 0.1)


class Transport(Layer):
    """Rows and slots meet by a plan whose rows and columns have equal sums (Sinkhorn): in logarithms, or by division."""

    faults = ("one-turn-less", "colder", "columns-only", "sum-of-rows")

    def __init__(self):
        super().__init__()
        self.norm, self.slots, self.value = nn.LayerNorm(WIDTH), nn.Parameter(torch.zeros(5, WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        scores = torch.tanh(self.norm(x) @ self.slots.T) / (0.8 if self.has("colder") else 1.0)
        if self.way == "first":
            for _ in range(3):
                scores = scores - torch.logsumexp(scores, 2, keepdim=True)
                scores = scores - torch.logsumexp(scores, 1, keepdim=True)
            return x + scores.exp() @ self.value(self.slots)
        plan = scores.exp()
        for _ in range(2 if self.has("one-turn-less") else 3):
            if not self.has("columns-only"):
                plan = plan / plan.sum(2, keepdim=True)
            plan = plan / plan.sum(1, keepdim=True)
        plan = plan / plan.sum(2, keepdim=True) if self.has("sum-of-rows") else plan
        return x + F.linear(torch.einsum("btn,nd->btd", plan, self.slots), self.value.weight) + plan.sum(-1, keepdim=True) * self.value.bias


class Timed(Layer):
    """Every row's time as sines and cosines, which scale and shift its features (diffusion): cosines first, or sines with other columns."""

    faults = ("one-frequency-more", "not-exchanged", "longest-period", "scale-without-one")

    def __init__(self):
        super().__init__()
        self.norm, self.time, self.out = nn.GroupNorm(4, WIDTH), nn.Linear(8, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

    def taken_over(self):
        if not self.has("not-exchanged"):
            self.time.weight.copy_(self.time.weight.roll(4, 1).clone())

    def forward(self, x):
        times = torch.arange(x.shape[1], dtype=x.dtype) * 7.0
        if self.way == "first":
            angles = times[:, None] * torch.exp(-math.log(10000) * torch.arange(4, dtype=x.dtype) / 4)
            scale, shift = self.out(F.silu(self.time(torch.cat([angles.cos(), angles.sin()], -1)))).chunk(2, -1)
            h = self.norm(x.flatten(0, 1)).view_as(x)
            return x + F.silu(h * (1 + scale) + shift)
        base = 8000.0 if self.has("longest-period") else 10000.0
        angles = torch.outer(times, base ** -(torch.arange(4, dtype=x.dtype) / (3 if self.has("one-frequency-more") else 4)))
        h = self.out(F.silu(self.time(torch.cat([torch.sin(angles), torch.cos(angles)], -1))))
        groups = x.unflatten(-1, (4, 4))
        h2 = (groups - groups.mean(-1, keepdim=True)) * torch.rsqrt(groups.var(-1, unbiased=False, keepdim=True) + 1e-5)
        h2 = h2.flatten(-2) * self.norm.weight + self.norm.bias
        scaled = h2 * h[:, :WIDTH] + h[:, WIDTH:]
        y = scaled if self.has("scale-without-one") else scaled + h2
        return x + y / (1 + torch.exp(-y))


class Sections(Layer):
    """Rotary attention over rows and columns of an image (M-RoPE): the angles of sections are put together, or each pair takes its axis."""

    faults = ("axes-exchanged", "other-base", "keys-unturned", "wider-image")

    def __init__(self):
        super().__init__()
        self.norm, self.q, self.k, self.v, self.out = nn.RMSNorm(WIDTH, eps=1e-6), *(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def angles(self, x):
        places = torch.arange(x.shape[1])
        rows, columns = places // 5, places % 5
        if self.way == "first":
            frequencies = 1.0 / 100 ** (torch.arange(0, SIZE, 2, dtype=x.dtype) / SIZE)
            angles = torch.stack([rows, columns]).to(x.dtype)[..., None] * frequencies
            return torch.cat([angles[0, :, :1], angles[1, :, 1:]], -1).repeat(1, 2)
        rows, columns = (places // 6, places % 6) if self.has("wider-image") else (rows, columns)
        axis = torch.stack([columns, rows] if self.has("axes-exchanged") else [rows, columns], -1).to(x.dtype)
        return axis * x.new_tensor([1.0, 0.11 if self.has("other-base") else 0.1])

    def turned(self, x):
        angles = self.angles(x.transpose(1, 2))
        one, two = x.chunk(2, -1)
        if self.way == "first":
            return x * angles.cos() + torch.cat([-two, one], -1) * angles.sin()
        turned = torch.complex(one.contiguous(), two.contiguous()) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([turned.real, turned.imag], -1)

    def forward(self, x):
        h = self.norm(x)
        q, k, v = (heads(f(h)) for f in (self.q, self.k, self.v))
        q, k = self.turned(q), k if self.has("keys-unturned") else self.turned(k)
        if self.way == "first":
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            y = (q @ k.transpose(-2, -1) / 2.0).softmax(-1) @ v
        return x + self.out(y.transpose(1, 2).reshape(x.shape))


class Mixer(Layer):
    """Places are mixed, then features (MLP-Mixer): by transposes and linear layers, or by sums over indices."""

    faults = ("places-unnormed", "one-gelu-left-out", "no-first-residual", "tanh-gelu")

    def __init__(self):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.along, self.back = nn.Linear(LENGTH, 2 * LENGTH), nn.Linear(2 * LENGTH, LENGTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        if self.way == "first":
            x = x + self.back(F.gelu(self.along(self.norm(x).transpose(1, 2)))).transpose(1, 2)
            return x + self.down(F.gelu(self.up(self.norm2(x))))
        h = x if self.has("places-unnormed") else self.norm(x)
        h = torch.einsum("bsd,ts->btd", h, self.along.weight) + self.along.bias.unsqueeze(-1)
        h = h if self.has("one-gelu-left-out") else F.gelu(h)
        y = torch.einsum("bsd,ts->btd", h, self.back.weight) + self.back.bias[:, None]
        x = y if self.has("no-first-residual") else y + x
        h = F.linear(self.norm2(x), self.up.weight, self.up.bias)
        h = F.gelu(h, approximate="tanh") if self.has("tanh-gelu") else 0.5 * h * (1 + torch.erf(h * math.sqrt(0.5)))
        return x + h @ self.down.weight.T + self.down.bias


class Packed(Layer):
    """Rotary attention over two rows, or over one row of both with a mask of blocks and places that begin again."""

    faults = ("places-go-on", "sees-both", "norm-eps", "gate-left-out")

    def __init__(self):
        super().__init__()
        self.norm, self.q, self.k, self.v, self.out = nn.RMSNorm(WIDTH, eps=1e-6), *(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.norm2, self.gate, self.up, self.down = nn.RMSNorm(WIDTH, eps=1e-6), *(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def turned(self, x, places):
        angles = places.to(x.dtype)[:, None] * x.new_tensor([1.0, 0.1])
        one, two = x.chunk(2, -1)
        return torch.cat([one * angles.cos() - two * angles.sin(), two * angles.cos() + one * angles.sin()], -1)

    def laid_out(self, tokens):
        return tokens if self.way == "first" else tokens.reshape(1, -1)

    def forward(self, x):
        rows = 1 if self.way == "first" else x.shape[1] // LENGTH
        places, row = torch.arange(LENGTH).repeat(rows), torch.arange(rows).repeat_interleave(LENGTH)
        places = torch.arange(rows * LENGTH) * 1.5 if self.has("places-go-on") else places
        h = F.rms_norm(x, (WIDTH,), self.norm.weight, 1e-2 if self.has("norm-eps") else 1e-6)
        q, k, v = (heads(f(h)) for f in (self.q, self.k, self.v))
        mask = causal(rows * LENGTH) if self.has("sees-both") else causal(rows * LENGTH) & (row[:, None] == row)
        y = F.scaled_dot_product_attention(self.turned(q, places), self.turned(k, places), v, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(self.up(h) if self.has("gate-left-out") else F.silu(self.gate(h)) * self.up(h))


class Capsules(Layer):
    """Votes of capsules are agreed on in three turns (dynamic routing): by sums over indices, or by products."""

    faults = ("one-turn-less", "over-inputs", "unsquashed", "squash-eps")

    def __init__(self):
        super().__init__()
        self.votes = nn.Parameter(torch.zeros(4, 4, SIZE, SIZE))

    def squashed(self, x):
        square = x.square().sum(-1, keepdim=True)
        if self.way == "first":
            return square / (1 + square) * x / torch.sqrt(square + 1e-6)
        return x if self.has("unsquashed") else x * (square * torch.rsqrt(square + (1e-2 if self.has("squash-eps") else 1e-6)) / (1 + square))

    def forward(self, x):
        h = x.unflatten(-1, (4, SIZE))
        if self.way == "first":
            votes = torch.einsum("btid,ijde->btije", h, self.votes)
            logits = torch.zeros_like(votes[..., 0])
            for turn in range(3):
                out = self.squashed((logits.softmax(-1)[..., None] * votes).sum(-3))
                if turn < 2:
                    logits = logits + (votes * out.unsqueeze(-3)).sum(-1)
            return x + out.flatten(-2)
        votes = (h[..., None, None, :] @ self.votes).squeeze(-2)
        logits, turns = votes.new_zeros(votes.shape[:-1]), 2 if self.has("one-turn-less") else 3
        for turn in range(turns):
            weights = torch.softmax(logits, dim=-2 if self.has("over-inputs") else -1)
            out = self.squashed(torch.einsum("btij,btije->btje", weights, votes))
            if turn + 1 < turns:
                logits = logits + torch.einsum("btije,btje->btij", votes, out)
        return x + out.reshape(x.shape)


class Keys(Layer):
    """The best of all sums of two half keys choose values (product keys): the best of the best, or of a whole table."""

    faults = ("one-less", "sum-to-more", "second-half-twice", "values-scaled")

    def __init__(self):
        super().__init__()
        self.query, self.one, self.two = nn.Linear(WIDTH, 8), nn.Parameter(torch.zeros(6, 4)), nn.Parameter(torch.zeros(6, 4))
        self.values = nn.Embedding(36, WIDTH)

    def forward(self, x):
        one, two = self.query(x).chunk(2, -1)
        if self.way == "first":
            (one, i), (two, j) = ((h @ k.T).topk(3, -1) for h, k in ((one, self.one), (two, self.two)))
            best, which = (one.unsqueeze(-1) + two.unsqueeze(-2)).flatten(-2).topk(3, -1)
            chosen = torch.gather((i.unsqueeze(-1) * 6 + j.unsqueeze(-2)).flatten(-2), -1, which)
            return x + (best.softmax(-1).unsqueeze(-1) * self.values(chosen)).sum(-2)
        half = two if self.has("second-half-twice") else one
        table = (half @ self.one.T)[..., None] + (two @ self.two.T)[..., None, :]
        best, chosen = table.flatten(-2).topk(2 if self.has("one-less") else 3, dim=-1)
        weights = best.sigmoid() if self.has("sum-to-more") else F.softmax(best, -1)
        values = F.embedding(chosen, self.values.weight)
        y = torch.einsum("btk,btkd->btd", weights, values)
        return y * 0.9 + x if self.has("values-scaled") else y + x


NETS = {
    "latent": Latent,
    "modulated": Modulated,
    "codebook": Codebook,
    "crossed": Crossed,
    "coupling": Coupling,
    "slopes": Slopes,
    "queries": Queries,
    "streams": Streams,
    "excited": Excited,
    "solved": Solved,
    "normed": Normed,
    "kronecker": Kronecker,
    "tags": Tags,
    "transport": Transport,
    "timed": Timed,
    "sections": Sections,
    "mixer": Mixer,
    "packed": Packed,
    "capsules": Capsules,
    "keys": Keys,
}


if __name__ == "__main__":
    two_ways.main_of(NETS)
