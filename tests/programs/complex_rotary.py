"""A training step of attention with rotary embeddings as complex products (Meta's Llama, torchtitan), right or with a fault in them."""
import sys

import torch

how = sys.argv[1] if len(sys.argv) > 1 else "right"
torch.manual_seed(0)


def turned(x, angles):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles[None, :, None]).flatten(3).type_as(x)


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(32, 96, bias=False), torch.nn.Linear(32, 32, bias=False)
        angle = torch.outer(torch.arange(16), 1.0 / (10000.0 ** (torch.arange(0, 8, 2).float() / 8))).float()
        self.register_buffer("angles", torch.polar(torch.ones(16, 4), angle))

    def forward(self, x):
        q, k, v = [t.reshape(2, 16, 4, 8) for t in self.qkv(x).chunk(3, -1)]
        angles = {"conjugated": self.angles.conj(), "moved": self.angles + 0.01}.get(how, self.angles)
        q, k = turned(q * 1.01 if how == "scaled" else q, angles), turned(k, self.angles)
        y = torch.nn.functional.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        return self.out(y.transpose(1, 2).reshape(2, 16, 32))


model = Attention()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
model(torch.randn(2, 16, 32)).square().mean().backward()
optimizer.step()
