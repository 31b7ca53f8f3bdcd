"""Small operators of networks as two people write them: convolutions by products, resampling by matrices, buckets, pools, windows, mixtures.

    python second_operators.py --all DIR [NET…]    # NET-first.lb, NET-second.lb, NET-FAULT.lb, and train-NET-… of a step of training
    python second_operators.py --confirm              # in float64: both ways agree to 1e-9, and a fault moves more than 1e-6

Every net has three layers; a fault is one other expression of the second way, in layers.1 alone."""

import math

import torch
import torch.nn.functional as F
import two_ways
from torch import nn
from two_ways import HEADS, LENGTH, SIZE, WIDTH, Layer, causal, heads


class Unfolded(Layer):
    """A convolution over time: by the op, or by windows and a product."""

    faults = ("half-padded", "dilated", "kernel-reversed", "ungrouped-norm")

    def __init__(self):
        super().__init__()
        self.norm, self.along = nn.GroupNorm(4, WIDTH), nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x):
        h = x.transpose(1, 2)
        if self.way == "first":
            return x + F.silu(self.along(self.norm(h))).transpose(1, 2)
        parts = h.reshape(h.shape[0], 1 if self.has("ungrouped-norm") else 4, -1)
        parts = (parts - parts.mean(-1, keepdim=True)) / torch.sqrt(parts.var(-1, correction=0, keepdim=True) + 1e-5)
        h = parts.view_as(h) * self.norm.weight[:, None] + self.norm.bias[:, None]
        h = F.pad(h, (2, 2)) if self.has("dilated") else F.pad(h, (2, 0) if self.has("half-padded") else (1, 1))
        if self.has("dilated"):
            windows = torch.stack([h[..., 0:-4], h[..., 2:-2], h[..., 4:]], -1)
        else:
            windows = h.unfold(-1, 3, 1)
        windows = windows.flip(-1) if self.has("kernel-reversed") else windows
        y = torch.einsum("bctk,ock->bto", windows, self.along.weight) + self.along.bias
        return x + y * torch.sigmoid(y)


class Upsampled(Layer):
    """Half as many rows and back: pooled and interpolated by ops, or by two matrices."""

    faults = ("corners-aligned", "nearest", "largest-of-two", "residual-twice")

    def __init__(self):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        h = self.norm(x).transpose(1, 2)
        if self.way == "first":
            y = F.interpolate(F.avg_pool1d(h, 2), scale_factor=2, mode="linear", align_corners=False)
            return x + F.gelu(self.mix(y.transpose(1, 2)))
        pairs = h.unflatten(-1, (LENGTH // 2, 2))
        half = pairs.amax(-1) if self.has("largest-of-two") else pairs.mean(-1)
        places = torch.arange(LENGTH, dtype=x.dtype)
        if self.has("corners-aligned"):
            at = places * ((LENGTH // 2 - 1) / (LENGTH - 1))
        else:
            at = ((places + 0.5) / 2 - 0.5).clamp(min=0, max=LENGTH // 2 - 1)
        at = at.floor() if self.has("nearest") else at
        weights = torch.relu(1 - (at[:, None] - torch.arange(LENGTH // 2, dtype=x.dtype)).abs())
        y = torch.matmul(weights, half.transpose(1, 2))
        return (2 if self.has("residual-twice") else 1) * x + F.gelu(y @ self.mix.weight.T + self.mix.bias)


class Buckets(Layer):
    """Attention with a learned bias for buckets of distances (T5): by the logarithm, or by a table."""

    faults = ("bucket-shifted", "bias-scaled", "one-bias-for-all", "distance-turned")

    def __init__(self):
        super().__init__()
        self.norm, self.bias = nn.RMSNorm(WIDTH, eps=1e-6), nn.Embedding(8, HEADS)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x):
        h = self.norm(x)
        places = torch.arange(x.shape[1])
        if self.way == "first":
            away = (places[None] - places[:, None]).neg().clamp(min=0)
            large = 4 + (torch.log(away.clamp(min=1).to(x.dtype) / 4) / math.log(4) * 4).long()
            bias = self.bias(torch.where(away < 4, away, large.clamp(max=7))).permute(2, 0, 1)
            q, k, v = (heads(f(h)) for f in (self.q, self.k, self.v))
            mask = bias.masked_fill(~causal(x.shape[1]), torch.finfo(x.dtype).min)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)
            return x + self.out(y.transpose(1, 2).flatten(2))
        table = torch.tensor([0, 1, 2, 3, 4, 4, 5, 5, 6, 6] if not self.has("bucket-shifted") else [0, 1, 2, 3, 3, 4, 5, 5, 6, 6])
        away = (places[:, None] - places).abs() if self.has("distance-turned") else (places[:, None] - places).relu()
        if self.has("distance-turned"):
            away = (x.shape[1] - 1 - away) * causal(x.shape[1])
        weight = self.bias.weight[:, :1].expand(-1, HEADS) if self.has("one-bias-for-all") else self.bias.weight
        q, k, v = (F.linear(h, f.weight).view(*h.shape[:2], HEADS, SIZE) for f in (self.q, self.k, self.v))
        scores = torch.einsum("bthd,bshd->bhts", q, k) + weight[table[away]].movedim(-1, 0) * (1.1 if self.has("bias-scaled") else 1)
        scores = scores.where(causal(x.shape[1]), -torch.inf)
        y = torch.einsum("bhts,bshd->bthd", scores.softmax(-1), v)
        return x + F.linear(y.flatten(2), self.out.weight)


class Bilinear(Layer):
    """A product of two projections and one of three dimensions: by the op, or by outer products."""

    faults = ("factors-exchanged", "bias-twice", "one-squared", "scaled-by-root")

    def __init__(self):
        super().__init__()
        self.one, self.two, self.form = nn.Linear(WIDTH, 5), nn.Linear(WIDTH, 5), nn.Bilinear(5, 5, WIDTH)

    def forward(self, x):
        if self.way == "first":
            return x + torch.tanh(self.form(self.one(x), self.two(x)))
        one, two = self.one(x), self.two(x)
        if self.has("factors-exchanged"):
            one, two = two, one
        if self.has("one-squared"):
            two = one
        outer = (one.unsqueeze(-1) * two.unsqueeze(-2)).flatten(-2)
        y = outer @ self.form.weight.flatten(1).T + self.form.bias * (2 if self.has("bias-twice") else 1)
        return x + torch.tanh(y / 5**0.5 if self.has("scaled-by-root") else y)


class Pooled(Layer):
    """Rows are weighed by a score and summed, and each row is told the sum (attention pooling): by a softmax, or by exponentials."""

    faults = ("mean-of-all", "unweighed", "over-features", "told-before-norm")

    def __init__(self):
        super().__init__()
        self.score, self.norm, self.tell = nn.Linear(WIDTH, 1), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        if self.way == "first":
            summary = (torch.softmax(torch.tanh(self.score(x)), 1) * x).sum(1, keepdim=True)
            return x + self.tell(self.norm(summary))
        weights = torch.exp(torch.tanh(x @ self.score.weight.squeeze(0) + self.score.bias))
        if self.has("mean-of-all"):
            weights = torch.ones_like(weights)
        total = weights.sum(-1, keepdim=True)
        summary = torch.einsum("bt,btd->bd", weights, x) / (x.shape[1] if self.has("unweighed") else total)
        if self.has("over-features"):
            summary = summary.softmax(-1)
        told = summary if self.has("told-before-norm") else self.norm(summary)
        return x + self.tell(told)[:, None]


class Mixture(Layer):
    """A density of Gaussians at every row's own place: by logarithms, or by their values."""

    faults = ("no-root", "variance-for-deviation", "unmixed", "halved")

    def __init__(self):
        super().__init__()
        self.mean, self.width, self.mix, self.out = nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 4), nn.Linear(4, WIDTH)

    def forward(self, x):
        place = x.mean(-1, keepdim=True)
        if self.way == "first":
            width = F.softplus(self.width(x)) + 0.1
            logs = -0.5 * ((place - self.mean(x)) / width).square() - width.log() - 0.5 * math.log(2 * math.pi)
            return x + self.out(torch.exp(logs + torch.log_softmax(self.mix(x), -1)))
        width = torch.log1p(self.width(x).exp()) + 0.1
        away = place - self.mean(x)
        down = width if self.has("variance-for-deviation") else width**2
        density = torch.exp(-away * away / ((1 if self.has("halved") else 2) * down)) / width
        density = density if self.has("no-root") else density / math.sqrt(2 * math.pi)
        mix = self.mix(x).sigmoid() if self.has("unmixed") else self.mix(x).softmax(-1)
        return x + F.linear(density * mix, self.out.weight, self.out.bias)


class Cumulative(Layer):
    """Running means of rows and their running deviations: by cumulative sums, or by a triangle."""

    faults = ("with-the-next", "sample-deviation", "unscaled-mean", "eps")

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        counts = torch.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None]
        if self.way == "first":
            mean = x.cumsum(1) / counts
            deviation = torch.sqrt((x.square().cumsum(1) / counts - mean.square()).clamp(min=0) + 1e-3)
            return x + self.down(F.silu(self.up(torch.cat([mean, deviation], -1))))
        triangle = causal(x.shape[1], 1 if self.has("with-the-next") else 0).to(x.dtype)
        mean = torch.einsum("ts,bsd->btd", triangle, x)
        mean = mean if self.has("unscaled-mean") else mean / counts
        square = triangle @ (x * x) / ((counts - 1).clamp(min=1) if self.has("sample-deviation") else counts)
        deviation = (torch.relu(square - mean * mean) + (1e-1 if self.has("eps") else 1e-3)) ** 0.5
        one, two = self.up.weight.chunk(2, -1)
        h = mean @ one.T + deviation @ two.T + self.up.bias
        return x + self.down(h * torch.sigmoid(h))


class Local(Layer):
    """Attention inside blocks of rows, which overlap those before them: with one mask for all, or block by block."""

    faults = ("no-block-before", "looks-ahead", "scale-of-width", "value-unprojected")

    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        h = self.norm(x)
        q, k, v = (heads(y) for y in self.qkv(h).chunk(3, -1))
        block = torch.arange(x.shape[1]) // 5
        if self.way == "first":
            mask = causal(x.shape[1]) & (block[:, None] - block[None] <= 1)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            return x + self.out(y.transpose(1, 2).flatten(2))
        v = heads(h) if self.has("value-unprojected") else v
        rows = []
        for i in range(0, x.shape[1], 5):
            begin = i if self.has("no-block-before") else max(0, i - 5)
            scores = q[:, :, i : i + 5] @ k[:, :, begin : i + 5].mT * (WIDTH if self.has("scale-of-width") else SIZE) ** -0.5
            ahead = torch.ones(5, i + 5 - begin, dtype=torch.bool).triu(i - begin + (2 if self.has("looks-ahead") else 1))
            rows.append(scores.masked_fill(ahead, -1e9).softmax(-1) @ v[:, :, begin : i + 5])
        return x + self.out(torch.cat(rows, 2).transpose(1, 2).reshape(x.shape))


class Experts(Layer):
    """The best two of four experts for each row: a loop over those that were chosen, or all of them weighed."""

    faults = ("not-normalised", "softmax-of-chosen", "one-expert", "gate-for-up", "no-shared")

    def __init__(self):
        super().__init__()
        self.norm, self.router, self.shared = nn.RMSNorm(WIDTH, eps=1e-6), nn.Linear(WIDTH, 4, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up, self.down = (nn.Parameter(torch.zeros(4, 8, WIDTH)) for _ in range(3))

    def forward(self, x):
        h = self.norm(x)
        scores = self.router(h).softmax(-1)
        best, chosen = scores.topk(1 if self.has("one-expert") else 2, -1)
        if self.way == "first":
            best = best / best.sum(-1, keepdim=True)
            flat, out = h.flatten(0, 1), torch.zeros_like(h.flatten(0, 1))
            for e in range(4):
                row, rank = torch.where(chosen.flatten(0, 1) == e)
                if row.numel():
                    y = (F.silu(flat[row] @ self.gate[e].T) * (flat[row] @ self.up[e].T)) @ self.down[e]
                    out = out.index_add(0, row, y * best.flatten(0, 1)[row, rank, None])
            return x + out.view_as(x) + self.shared(h)
        if self.has("softmax-of-chosen"):
            best = best.softmax(-1)
        elif not self.has("not-normalised"):
            best = best / best.sum(-1, keepdim=True)
        weights = torch.zeros_like(scores).scatter(-1, chosen, best)
        up = torch.einsum("btd,efd->btef", h, self.up)
        gate = up if self.has("gate-for-up") else torch.einsum("btd,efd->btef", h, self.gate)
        y = torch.einsum("btef,efd,bte->btd", gate * gate.sigmoid() * up, self.down, weights)
        return x + y if self.has("no-shared") else x + (y + F.linear(h, self.shared.weight))


class Recurrent(Layer):
    """A minimal gated unit over time: by torch's GRU, or by hand with the gates' weights taken from it."""

    faults = ("reset-left-out", "gates-exchanged", "keeps-the-new", "begins-with-ones")

    def __init__(self):
        super().__init__()
        self.norm, self.unit = nn.LayerNorm(WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x):
        if self.way == "first":
            return x + self.unit(self.norm(x))[0]
        given = F.linear(self.norm(x), self.unit.weight_ih_l0, self.unit.bias_ih_l0)
        state, rows = (torch.ones_like if self.has("begins-with-ones") else torch.zeros_like)(x[:, 0]), []
        for t in range(x.shape[1]):
            r, z, n = given[:, t].chunk(3, -1)
            hr, hz, hn = F.linear(state, self.unit.weight_hh_l0, self.unit.bias_hh_l0).chunk(3, -1)
            reset, keep = torch.sigmoid(r + hr), torch.sigmoid(z + hz)
            if self.has("gates-exchanged"):
                reset, keep = keep, reset
            new = torch.tanh(n + (hn if self.has("reset-left-out") else reset * hn))
            state = keep * new + (1 - keep) * state if self.has("keeps-the-new") else (1 - keep) * new + keep * state
            rows.append(state)
        return x + torch.stack(rows, 1)


class Similar(Layer):
    """Rows look at rows like them by the cosine, at a learned temperature (CLIP, Swin V2): normalised by the op, or by roots."""

    faults = ("temperature-inverted", "unnormalised-keys", "unclamped", "itself-left-out")

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.scale = nn.Parameter(torch.full((HEADS, 1, 1), 4.0))

    def forward(self, x):
        q, k, v = (heads(f(x)) for f in (self.q, self.k, self.v))
        if self.way == "first":
            scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
            scores = scores * self.scale.clamp(max=3.9).exp()
            return x + (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        lengths = [torch.sqrt((y * y).sum(-1)).clamp(min=1e-12) for y in (q, k)]
        down = lengths[0][..., None] if self.has("unnormalised-keys") else lengths[0][..., :, None] * lengths[1][..., None, :]
        scale = self.scale if self.has("unclamped") else torch.minimum(self.scale, torch.tensor(3.9, dtype=x.dtype))
        scores = q @ k.mT / down * torch.exp(-scale if self.has("temperature-inverted") else scale)
        if self.has("itself-left-out"):
            scores = scores.masked_fill(torch.eye(x.shape[1], dtype=torch.bool), -torch.inf)
        return x + torch.einsum("bhts,bhsd->bthd", scores.softmax(-1), v).reshape(x.shape)


class Spectrum(Layer):
    """Rows are filtered by frequencies (global filters): by a Fourier transform, or by the matrix of a circular convolution."""

    faults = ("not-circular", "filter-turned", "one-frequency-less", "residual-scaled")

    def __init__(self):
        super().__init__()
        self.norm, self.filter, self.out = nn.LayerNorm(WIDTH), nn.Parameter(torch.zeros(LENGTH, WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        h = self.norm(x)
        if self.way == "first":
            y = torch.fft.irfft(torch.fft.rfft(h, dim=1) * torch.fft.rfft(self.filter, dim=0), n=LENGTH, dim=1)
            return x + self.out(y)
        places = torch.arange(LENGTH)
        lag = places[:, None] - places[None]
        rows = self.filter.flip(0) if self.has("filter-turned") else self.filter
        matrix = rows[lag % LENGTH]
        if self.has("not-circular"):
            matrix = matrix * (lag >= 0)[..., None]
        y = torch.einsum("tsd,bsd->btd", matrix, h)
        if self.has("one-frequency-less"):
            y = y - y.mean(1, keepdim=True)
        return (0.9 if self.has("residual-scaled") else 1) * x + self.out(y)


class Partial(Layer):
    """Half of a head's features are turned by their places, the others are not (GPT-NeoX, GLM): put together, or by a rotation of all."""

    faults = ("all-turned", "other-half", "turned-back", "one-key-for-all")

    def __init__(self):
        super().__init__()
        self.norm, self.q, self.k, self.v, self.out = nn.LayerNorm(WIDTH), *(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def turned(self, x):
        places = torch.arange(x.shape[2], dtype=x.dtype)
        if self.way == "first":
            kept, turned = x[..., 2:], x[..., :2]
            cos, sin = places.cos()[:, None], places.sin()[:, None]
            turned = turned * cos + torch.cat([-turned[..., 1:], turned[..., :1]], -1) * sin
            return torch.cat([turned, kept], -1)
        angles = torch.stack([places, places if self.has("all-turned") else torch.zeros_like(places)], -1)
        angles = angles.flip(-1) if self.has("other-half") else angles
        angles = -angles if self.has("turned-back") else angles
        cos, sin = torch.cos(angles), torch.sin(angles)
        rotation = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)
        return torch.einsum("tpij,bhtpj->bhtpi", rotation, x.unflatten(-1, (2, 2))).flatten(-2)

    def forward(self, x):
        h = self.norm(x)
        q, k, v = (heads(f(h)) for f in (self.q, self.k, self.v))
        k = k[:, :1].expand_as(k) if self.has("one-key-for-all") else k
        q, k = self.turned(q), self.turned(k)
        if self.way == "first":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = torch.baddbmm(torch.zeros(1, dtype=x.dtype), q.flatten(0, 1), k.flatten(0, 1).mT, beta=0, alpha=0.5)
            bias = torch.full((x.shape[1], x.shape[1]), -torch.inf, dtype=x.dtype).triu(1)
            y = torch.bmm((scores + bias).softmax(-1), v.flatten(0, 1)).view_as(q)
        return x + self.out(y.transpose(1, 2).flatten(2))


class Noted(Layer):
    """Each row reads a memory that the rows before it wrote (fast weights): with one sum over all, or row by row."""

    faults = ("reads-before-writing", "kernel-without-one", "undivided", "forgets")

    def __init__(self):
        super().__init__()
        self.norm, self.q, self.k, self.v = nn.LayerNorm(WIDTH), *(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        h = self.norm(x)
        one = 0.1 if self.has("kernel-without-one") else 1
        q, k, v = F.elu(self.q(h)) + 1, F.elu(self.k(h)) + one, self.v(h)
        if self.way == "first":
            scores = (q @ k.transpose(1, 2)).tril()
            return x + scores @ v / scores.sum(-1, keepdim=True)
        memory, total, rows = x.new_zeros(x.shape[0], WIDTH, WIDTH), x.new_zeros(x.shape[0], WIDTH), []
        for t in range(x.shape[1]):
            before = memory
            memory = (0.9 if self.has("forgets") else 1) * memory + k[:, t, :, None] * v[:, t, None, :]
            total = total + k[:, t]
            read = torch.einsum("bd,bde->be", q[:, t], before if self.has("reads-before-writing") else memory)
            rows.append(read if self.has("undivided") else read / (q[:, t] * total).sum(-1, keepdim=True))
        return x + torch.stack(rows, 1)


NETS = {
    "unfolded": Unfolded,
    "upsampled": Upsampled,
    "buckets": Buckets,
    "bilinear": Bilinear,
    "pooled": Pooled,
    "mixture": Mixture,
    "cumulative": Cumulative,
    "local": Local,
    "experts": Experts,
    "recurrent": Recurrent,
    "similar": Similar,
    "spectrum": Spectrum,
    "partial": Partial,
    "noted": Noted,
}


if __name__ == "__main__":
    two_ways.main_of(NETS)
