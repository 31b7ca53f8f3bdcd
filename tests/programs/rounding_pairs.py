"""Pairs of training runs that compute the same real function in other ops, or the same ops in another order: MODEL and VARIANT (0 or 1) say which.

gpt       attention written out, against scaled_dot_product_attention
llama     the same, with rotary embeddings, RMSNorm and SwiGLU
batches   one batch of eight rows, against two of four whose gradients add up
resnet    convolutions with batch norms in one memory layout, against the other
muon      Newton-Schulz on a matrix as it lies, against its transpose
norms     a layer norm of torch, against one written out by its mean and variance
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, width, heads, written_out, rotary):
        super().__init__()
        self.heads, self.written_out, self.rotary = heads, written_out, rotary
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        if self.rotary:
            q, k = rotate(q), rotate(k)
        if self.written_out:
            mask = torch.ones(t, t, dtype=torch.bool).tril()
            scores = (q @ k.transpose(-2, -1)) * (q.shape[-1] ** -0.5)
            y = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


def rotate(x):
    half = x.shape[-1] // 2
    angles = torch.outer(torch.arange(x.shape[-2]).float(), 10000 ** (-torch.arange(half).float() / half))
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)


class WrittenNorm(nn.LayerNorm):
    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        var = ((x - mean) ** 2).mean(-1, keepdim=True)
        return (x - mean) * torch.rsqrt(var + self.eps) * self.weight + self.bias


class Gated(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(a, b, bias=False) for a, b in ((width, 3 * width), (width, 3 * width), (3 * width, width)))

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


def plain(width):
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class Block(nn.Module):
    def __init__(self, width, heads, written_out, llama, norm):
        super().__init__()
        self.ln1, self.ln2 = norm(width), norm(width)
        self.attn = Attention(width, heads, written_out, llama)
        self.mlp = Gated(width) if llama else plain(width)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Decoder(nn.Module):
    def __init__(self, layers, width, heads, written_out=False, llama=False, norm=None, vocabulary=256):
        super().__init__()
        norm = norm or (nn.RMSNorm if llama else nn.LayerNorm)
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Block(width, heads, written_out, llama, norm) for _ in range(layers))
        self.norm, self.head = norm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Residual(nn.Module):
    def __init__(self, before, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.short = nn.Sequential()
        if stride > 1 or before != width:
            self.short = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.short(x))


class Resnet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        widths = [width * (1 << i) for i in (0, 0, 1, 1, 2, 2, 3, 3)]
        self.stages = nn.Sequential(*(Residual(a, b, 1 + (b > a)) for a, b in zip([width] + widths, widths)))
        self.fc = nn.Linear(widths[-1], 10)

    def forward(self, x):
        return self.fc(self.stages(F.relu(self.bn(self.stem(x)))).mean((2, 3)))


class Muon(torch.optim.Optimizer):
    def __init__(self, params, turned):
        super().__init__(params, {"lr": 0.02})
        self.turned = turned

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
            momentum.lerp_(p.grad, 0.05)
            x = p.grad.lerp(momentum, 0.95)
            x = x.T if self.turned else x
            x = x / (x.norm() + 1e-7)
            for _ in range(5):
                a = x @ x.T if not self.turned else (x.T @ x).T
                b = -4.775 * a + 2.0315 * a @ a
                x = 3.4445 * x + b @ x if not self.turned else 3.4445 * x + x @ b
            p.add_(x.T if self.turned else x, alpha=-self.param_groups[0]["lr"])


def decoder(o):
    written_out, norm = o.variant == 1 and o.model in ("gpt", "llama"), WrittenNorm if o.variant == 1 and o.model == "norms" else None
    return Decoder(o.layers, o.width, max(1, o.width // 32), written_out, o.model == "llama", norm)


def tokens(o, step):
    ids = torch.randint(256, (8, o.length + 1), generator=torch.Generator().manual_seed(step))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def train_decoder(o):
    model = decoder(o)
    inside = [p for n, p in model.named_parameters() if p.ndim == 2 and n.startswith("layers")] if o.model == "muon" else []
    rest = [p for p in model.parameters() if not any(p is q for q in inside)]
    optimizers = [torch.optim.AdamW(rest, lr=1e-3)] + ([Muon(inside, bool(o.variant))] if inside else [])
    parts = 2 if o.model == "batches" and o.variant else 1
    for step in range(o.steps):
        ids, targets = tokens(o, step)
        for x, y in zip(ids.chunk(parts), targets.chunk(parts)):
            (F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / parts).backward()
        for optimizer in optimizers:
            optimizer.step()
        for optimizer in optimizers:
            optimizer.zero_grad()


def train_resnet(o):
    model = Resnet(o.width)
    layout = torch.channels_last if o.variant else torch.contiguous_format
    model = model.to(memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(o.steps):
        g = torch.Generator().manual_seed(step)
        x, y = torch.randn(4, 3, o.length, o.length, generator=g), torch.randint(10, (4,), generator=g)
        F.cross_entropy(model(x.to(memory_format=layout)), y).backward()
        optimizer.step(), optimizer.zero_grad()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["gpt", "llama", "batches", "resnet", "muon", "norms"])
    parser.add_argument("variant", type=int, choices=[0, 1])
    for name, value in (("layers", 3), ("width", 64), ("length", 64), ("steps", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    o = parser.parse_args()
    torch.manual_seed(0), torch.set_num_threads(1)
    train_resnet(o) if o.model == "resnet" else train_decoder(o)


if __name__ == "__main__":
    main()
