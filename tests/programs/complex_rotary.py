"""A training step of attention with rotary embeddings as complex products (Meta's Llama, torchtitan), right or with a fault in them."""

import sys

import torch

how = sys.argv[1] if len(sys.argv) > 1 else "right"
torch.manual_seed(0)


def turned(x, angles):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles[None, :, None]).flatten(3).type_as(x)


def turned_as_real(x, angles):
    pairs, cos, sin = x.float().reshape(*x.shape[:-1], -1, 2), angles.real[None, :, None], angles.imag[None, :, None]
    a, b = pairs[..., 0], pairs[..., 1]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(3).type_as(x)


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(32, 96, bias=False), torch.nn.Linear(32, 32, bias=False)
        angle = torch.outer(torch.arange(16), 1.0 / (10000.0 ** (torch.arange(0, 8, 2).float() / 8))).float()
        if how == "flipped":  # the sine of one angle has the other sign
            angle[3, 1] *= -1
        self.register_buffer("angles", torch.polar(torch.ones(16, 4), angle))
        self.register_buffer("halves", torch.polar(torch.ones(16, 4), angle / 2))

    def forward(self, x):
        q, k, v = [t.reshape(2, 16, 4, 8) for t in self.qkv(x).chunk(3, -1)]
        angles = self.angles
        if how == "conjugated":
            angles = angles.conj()
        if how == "moved":
            angles = angles + 0.01
        if how == "twice":
            q = turned(q, self.halves)
        if how == "once":  # the same: by the sum of both angles
            angles = self.halves * angles
        if how == "real":
            q, k = turned_as_real(q, angles), turned_as_real(k, angles)
        else:
            q, k = turned(q * 1.01 if how == "scaled" else q, angles), turned(k, self.angles)
        y = torch.nn.functional.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        return self.out(y.transpose(1, 2).reshape(2, 16, 32))


model = Attention()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
model(torch.randn(2, 16, 32)).square().mean().backward()
optimizer.step()
