"""Small nets as two people write them, in which elements change places, branches are scaled, rows are padded, or tables are read.

    python second_orders.py --all DIR [NET…]      # NET-first.lb, NET-second.lb, NET-FAULT.lb; of some a step of training: train-NET-…
    python second_orders.py --confirm              # in float64: both ways agree to 1e-9, and a fault moves more than 1e-6

Every net has three layers; a fault is one other expression of the second way, in layers.1 alone."""

import math

import torch
import torch.nn.functional as F
import two_ways
from torch import nn
from two_ways import HEADS, WIDTH, Layer

SIDE, WINDOW = 8, 4


class Shuffle(Layer):
    """Groups of channels, whose results are shuffled: by views, or by an index."""

    faults = ("left-out", "twice", "groups-exchanged", "rolled", "reversed")

    def __init__(self):
        super().__init__()
        self.into, self.norm = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=4), nn.GroupNorm(4, WIDTH)

    def shuffled(self, x, groups):
        if self.way == "first":
            return x.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)
        return x[:, torch.arange(WIDTH).view(groups, -1).T.flatten()]

    def forward(self, x):
        y = torch.tanh(self.into(x))
        if self.has("rolled"):
            y = y.roll(2, 1)
        if self.has("reversed"):
            y = y.flip(1)
        if not self.has("left-out"):
            y = self.shuffled(y, 2 if self.has("groups-exchanged") else 4)
        if self.has("twice"):
            y = self.shuffled(y, 4)
        return x + self.norm(y)


class Pixels(Layer):
    """Places become channels and channels places again."""

    faults = ("turned-pixels", "channels-last", "left-out")

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Conv2d(4 * WIDTH, WIDTH, 1), nn.Conv2d(WIDTH, 4 * WIDTH, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        if self.way == "first":
            y = torch.tanh(self.into(F.pixel_unshuffle(x, 2)))
            return x + F.pixel_shuffle(self.out(y), 2)
        y = x.reshape(b, c, h // 2, 2, w // 2, 2).permute(0, 1, 3, 5, 2, 4).reshape(b, 4 * c, h // 2, w // 2)
        y = self.out(torch.tanh(self.into(y)))
        if self.has("left-out"):
            return x + y.reshape(x.shape)
        if self.has("channels-last"):
            return x + y.view(b, 2, 2, c, h // 2, w // 2).permute(0, 3, 4, 1, 5, 2).reshape(x.shape)
        order = (0, 1, 4, 3, 5, 2) if self.has("turned-pixels") else (0, 1, 4, 2, 5, 3)
        return x + y.view(b, c, 2, 2, h // 2, w // 2).permute(order).reshape(x.shape)


class Windows(Layer):
    """Attention within shifted windows: views and rolls, or an index of all places."""

    faults = ("not-rolled-back", "rolled-twice", "opposite-roll", "not-put-back", "turned-windows", "turned-heads", "scale-by-width")

    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def attend(self, x):
        size = WIDTH // HEADS
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, size)).permute(2, 0, 3, 1, 4)
        scale = WIDTH**-0.5 if self.has("scale-by-width") else size**-0.5
        y = torch.softmax(q @ k.transpose(-1, -2) * scale, -1) @ v
        if self.has("turned-heads"):
            return self.out(y.permute(0, 2, 3, 1).flatten(2))
        return self.out(y.transpose(1, 2).flatten(2))

    def forward(self, x):  # (b, SIDE, SIDE, WIDTH)
        b, n, shift = len(x), SIDE // WINDOW, WINDOW // 2
        y = self.norm(x)
        if self.way == "first":
            y = y.roll((-shift, -shift), (1, 2)).view(b, n, WINDOW, n, WINDOW, WIDTH).transpose(2, 3)
            y = self.attend(y.reshape(b * n * n, WINDOW * WINDOW, WIDTH))
            y = y.view(b, n, n, WINDOW, WINDOW, WIDTH).transpose(2, 3).reshape(x.shape)
            return x + y.roll((shift, shift), (1, 2))
        by = shift if self.has("opposite-roll") else -shift
        y = torch.cat([y[:, -by % SIDE :], y[:, : -by % SIDE]], 1)
        y = torch.cat([y[:, :, -by % SIDE :], y[:, :, : -by % SIDE]], 2)
        rows = [w for tall in y.split(WINDOW, 1) for w in tall.split(WINDOW, 2)]
        y = self.attend(torch.stack([w.transpose(1, 2) if self.has("turned-windows") else w for w in rows], 1).view(b * n * n, -1, WIDTH))
        if self.has("not-put-back"):
            y = y.reshape(x.shape)
        else:
            y = y.view(b, n, n, WINDOW, WINDOW, WIDTH)
            y = torch.cat([torch.cat([y[:, i, j] for j in range(n)], 2) for i in range(n)], 1)
        back = 0 if self.has("not-rolled-back") else 2 * shift if self.has("rolled-twice") else shift
        return x + y.roll((back, back), (1, 2))


class Merge(Layer):
    """Four neighbours become one place and four again."""

    faults = ("merge-order", "turned-merge", "mean-of-two")

    def __init__(self):
        super().__init__()
        self.norm, self.into, self.out = nn.LayerNorm(4 * WIDTH), nn.Linear(4 * WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, 4 * WIDTH)

    def forward(self, x):
        b, n = len(x), SIDE // 2
        if self.way == "first":
            y = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
        else:
            order = (0, 1, 3, 2, 4, 5) if self.has("merge-order") else (0, 1, 3, 4, 2, 5)
            order = (0, 3, 1, 4, 2, 5) if self.has("turned-merge") else order
            y = x.view(b, n, 2, n, 2, WIDTH).permute(order).reshape(b, n, n, 4 * WIDTH)
            if self.has("mean-of-two"):
                y = (y + y.roll(WIDTH, -1)) / 2
        y = self.out(torch.tanh(self.into(self.norm(y)))).view(b, n, n, 2, 2, WIDTH)
        return x + y.transpose(2, 3).reshape(x.shape)


class Heads(Layer):
    """Rotary attention: halves or neighbours are turned, with rows of weights in the order of either."""

    faults = ("heads-within", "rolled-heads", "not-interleaved", "opposite-turn", "branch-scaled", "groups-repeated")

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.q, self.k, self.v = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH // 2), nn.Linear(WIDTH, WIDTH // 2)
        self.out = nn.Linear(WIDTH, WIDTH)

    def taken_over(self):
        for linear in () if self.has("not-interleaved") else (self.q, self.k):
            for p in (linear.weight, linear.bias):
                p.copy_(p.unflatten(0, (-1, 2, 2)).transpose(1, 2).flatten(0, 2).clone())

    def turned(self, x):  # (b, heads, t, 4)
        angles = torch.arange(x.shape[2], dtype=x.dtype)[:, None] * x.new_tensor([1.0, 0.1])
        cos, sin = angles.cos(), angles.sin()
        if self.way == "first":
            one, two = x.chunk(2, -1)
            return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)
        sin = -sin if self.has("opposite-turn") else sin
        one, two = x[..., 0::2], x[..., 1::2]
        return torch.stack([one * cos - two * sin, two * cos + one * sin], -1).flatten(-2)

    def forward(self, x):  # (b, t, WIDTH)
        h = self.norm(x)
        q, k, v = (f(h).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = self.turned(q), self.turned(k)
        if self.has("groups-repeated"):
            k, v = k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1)
        else:
            k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        y = torch.softmax(q @ k.transpose(-1, -2) * 0.5, -1) @ v
        y = y.roll(1, 1) if self.has("rolled-heads") else y
        y = y.permute(0, 2, 3, 1).flatten(2) if self.has("heads-within") else y.transpose(1, 2).flatten(2)
        return x + self.out(y) * (0.9 if self.has("branch-scaled") else 1.0)


class Branches(Layer):
    """A gated branch and a scaled one: the scale is a vector, or is in the weight."""

    faults = ("no-scale", "scaled-sum", "half-branch", "scale-of-stream", "branches-exchanged")

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x):
        one, two = self.up(self.norm(x)).chunk(2, -1)
        if self.way == "first":
            return x + self.scale * self.down(F.silu(one) * two)
        if self.has("branches-exchanged"):
            one, two = two, one
        y = F.linear(one * torch.sigmoid(one) * two, self.down.weight, self.down.bias)
        y = y if self.has("no-scale") else self.scale * y
        y = y * 0.5 if self.has("half-branch") else y
        x = x * 0.99 if self.has("scale-of-stream") else x
        return (y + x) * (1.01 if self.has("scaled-sum") else 1.0)


class Radial(Layer):
    """Functions around centres, which every layer has a table of, or computes."""

    faults = ("wider", "shifted-centres", "no-square", "unnormed")

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(WIDTH * 6, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def tabled(self):
        self.register_buffer("centres", torch.linspace(-2, 2, 6, dtype=self.out.weight.dtype))

    def forward(self, x):
        y = x if self.has("unnormed") else self.norm(x)
        if self.way == "first":
            return torch.tanh(self.out(torch.exp(-(((y[..., None] - self.centres) / 0.8) ** 2)).flatten(-2)))
        away = (y.unsqueeze(-1) - (torch.arange(6, dtype=x.dtype) * 0.8 - (1.9 if self.has("shifted-centres") else 2))) / 0.8
        away = away.abs() if self.has("no-square") else away * away
        return torch.tanh(self.out((-away * (0.9 if self.has("wider") else 1.0)).exp().reshape(*x.shape[:-1], -1)))


class Splines(Layer):
    """Cubic splines on every edge, by recursion or by their pieces."""

    faults = ("shifted-knots", "other-tail", "no-scale", "other-activation")

    def __init__(self):
        super().__init__()
        self.base, self.curves, self.scale = (nn.Parameter(torch.zeros(*n)) for n in ((WIDTH, WIDTH), (WIDTH, WIDTH, 8), (WIDTH, WIDTH)))

    def tabled(self):
        knots = torch.arange(-3, 9, dtype=self.base.dtype) * 0.4 - 1
        self.register_buffer("knots", knots.expand(WIDTH, -1).contiguous())

    def forward(self, x):
        x = torch.tanh(x)
        if self.way == "first":
            x = x.unsqueeze(-1)
            bases = ((x >= self.knots[:, :-1]) & (x < self.knots[:, 1:])).to(x.dtype)
            for k in range(1, 4):
                left = (x - self.knots[:, : -(k + 1)]) / (self.knots[:, k:-1] - self.knots[:, : -(k + 1)]) * bases[..., :-1]
                right = (self.knots[:, k + 1 :] - x) / (self.knots[:, k + 1 :] - self.knots[:, 1:-k]) * bases[..., 1:]
                bases = left + right
            weights = self.curves * self.scale.unsqueeze(-1)
            return F.linear(F.silu(x[..., 0]), self.base) + F.linear(bases.flatten(-2), weights.flatten(1))
        u = ((x[..., None] + 1) * 2.5 - (torch.arange(8, dtype=x.dtype) - (1.5 if self.has("shifted-knots") else 1))).abs()
        near, far = (4 - 6 * u**2 + 3 * u**3) / 6, (2 - u).clamp(min=0) ** 3 / (5 if self.has("other-tail") else 6)
        curves = torch.einsum("bik,oik->boi", torch.where(u < 1, near, far), self.curves)
        active = torch.relu(x) if self.has("other-activation") else x * torch.sigmoid(x)
        return (self.base * active[:, None] + (curves if self.has("no-scale") else self.scale * curves)).sum(-1)


class Waves(Layer):
    """Fourier features: sines and then cosines, or one beside the other, with columns of the weight in the order of either."""

    faults = ("not-interleaved", "cosine-first", "other-frequency", "half-turn")

    def __init__(self):
        super().__init__()
        self.out, self.norm = nn.Linear(WIDTH * 8, WIDTH), nn.LayerNorm(WIDTH)

    def taken_over(self):
        if not self.has("not-interleaved"):
            w = self.out.weight
            w.copy_(w.unflatten(1, (2, -1)).transpose(1, 2).flatten(1).clone())

    def forward(self, x):
        base = 1.9 if self.has("other-frequency") else 2.0
        y = self.norm(x)
        if self.way == "first":
            y = (y[..., None] * base ** torch.arange(4, dtype=x.dtype)).flatten(-2)
            return x + self.out(torch.cat([y.sin(), y.cos()], -1))
        angles = torch.stack([y * base**k for k in range(4)], -1).flatten(-2)
        one, two = angles.sin(), (angles + math.pi / 2).sin()
        if self.has("half-turn"):
            two = (angles - math.pi / 2).sin()
        return x + self.out(torch.stack([two, one] if self.has("cosine-first") else [one, two], -1).flatten(-2))


class Padded(Layer):
    """Causal attention over rows that the second way pads on the left, or on the right: tokens, or frames."""

    faults = ("norm-eps", "branch-scaled", "scale-by-width", "looks-ahead", "other-activation", "unmasked")

    def __init__(self):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x, seen):
        h = F.layer_norm(x, (WIDTH,), self.norm.weight, self.norm.bias, 1e-2 if self.has("norm-eps") else 1e-5)
        q, k, v = (f(h).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        ahead = 1 if self.has("looks-ahead") else 0
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(ahead)
        mask = mask if self.has("unmasked") else mask & seen[:, None, None, :]
        scores = q @ k.transpose(-1, -2) * (WIDTH if self.has("scale-by-width") else WIDTH // HEADS) ** -0.5
        y = torch.softmax(scores.masked_fill(~mask, -1e9), -1) @ v
        x = x + self.out(y.transpose(1, 2).flatten(2)) * (0.9 if self.has("branch-scaled") else 1.0)
        h = self.up(self.norm2(x))
        return x + self.down(F.gelu(h, approximate="tanh") if self.has("other-activation") else F.gelu(h))


class Stack(nn.Module):
    def __init__(self, kind, words=0):
        super().__init__()
        self.kind = kind
        self.embed = nn.Embedding(40, WIDTH) if words else None
        self.layers = nn.ModuleList(kind() for _ in range(3))
        self.head = nn.Linear(WIDTH, 6)

    def forward(self, x, seen=None):
        x = x if self.embed is None else self.embed(x)
        for layer in self.layers:
            x = layer(x) if seen is None else layer(x, seen)
        return self.head(x.movedim(1, -1) if self.kind in (Shuffle, Pixels) else x)


NETS = {
    "shuffle": (Shuffle, (2, WIDTH, SIDE, SIDE)),
    "pixels": (Pixels, (2, WIDTH, SIDE, SIDE)),
    "windows": (Windows, (2, SIDE, SIDE, WIDTH)),
    "merge": (Merge, (2, SIDE, SIDE, WIDTH)),
    "heads": (Heads, (2, 10, WIDTH)),
    "branches": (Branches, (2, 10, WIDTH)),
    "radial": (Radial, (12, WIDTH)),
    "splines": (Splines, (12, WIDTH)),
    "waves": (Waves, (12, WIDTH)),
    "left": (Padded, (2, 10)),
    "right": (Padded, (2, 10)),
    "ragged": (Padded, (2, 10)),
    "frames": (Padded, (2, 10, WIDTH)),
}


TRAINED = ("shuffle", "windows", "heads")


def built(name, way, fault, dtype):
    kind, shape = NETS[name]
    torch.manual_seed(3)
    net = two_ways.written(Stack(kind, words=kind is Padded and name != "frames"), way, fault, dtype)
    x = torch.randint(1, 40, shape) if net.embed is not None else torch.randn(shape, dtype=torch.float64).to(dtype)
    return net, x


def scores(net, name, way, x):
    if net.kind is not Padded:
        return net(x)
    seen = torch.ones(x.shape[:2], dtype=torch.bool)
    if way == "first":
        return net(x, seen)
    before, behind = {"left": (3, 0), "right": (0, 4), "ragged": (2, 3), "frames": (3, 0)}[name]
    beside = (0, 0) * (x.dim() - 2)
    return net(F.pad(x, (*beside, before, behind)), F.pad(seen, (before, behind)))[:, before : before + x.shape[1]]


def wide(name, way, fault=None):
    net, x = built(name, way, fault, torch.float64)
    with torch.no_grad():
        return scores(net, name, way, x)


def faults_of(name):
    """What is padded behind causal attention is read by no token."""
    return [f for f in NETS[name][0].faults if (name, f) != ("right", "unmasked")]


def pairs():
    """Name, way, fault, and whether a step of training is recorded."""
    for trained in (False, True):
        for name in TRAINED if trained else NETS:
            yield name, "first", None, trained
            for fault in (None, *faults_of(name)):
                yield name, "second", fault, trained


def record(out, name, way, fault, trained):
    import lastbit.torch

    net, x = built(name, way, fault, torch.float32)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with torch.set_grad_enabled(trained), lastbit.torch.capture(out, level="ops"):
        loss = scores(net, name, way, x).square().mean()
        if trained:
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    two_ways.main(pairs(), wide, record)
