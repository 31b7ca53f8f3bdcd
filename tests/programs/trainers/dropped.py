"""Two training steps of a model with dropout: dropped.py P MODE [WHAT].

P: the dropout's p. MODE: "train" or "eval". WHAT: "layers.1", only that layer drops; "attention", so do the attention's weights; "bf16", in bfloat16;
"norm", a batch normalisation in place of each layer normalisation.
"""

import sys

import torch
import torch.nn.functional as F

p, mode, what = float(sys.argv[1]), sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else ""


class Layer(torch.nn.Module):
    def __init__(self, number):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(17) if what == "norm" else torch.nn.LayerNorm(32)
        self.qkv, self.out = torch.nn.Linear(32, 96), torch.nn.Linear(32, 32)
        self.up, self.down = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)
        self.drop = torch.nn.Dropout(0 if what == "layers.1" and number != 1 else p)

    def forward(self, h):
        q, k, v = self.qkv(self.norm(h)).unflatten(-1, (3, 4, 8)).transpose(1, 3).unbind(2)
        weights = p if what == "attention" and self.training else 0.0
        h = h + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=weights).transpose(1, 2).flatten(2))
        return h + self.drop(self.down(F.gelu(self.up(h))))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(50, 32), torch.nn.Linear(32, 50)
        self.layers = torch.nn.ModuleList(Layer(i) for i in range(3))

    def forward(self, tokens):
        h = self.embed(tokens)
        for layer in self.layers:
            h = layer(h)
        return self.head(h)


torch.manual_seed(0)
model = Model().to(torch.bfloat16 if what == "bf16" else torch.float32).train(mode == "train")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(2):
    tokens = torch.randint(0, 50, (4, 18), generator=torch.Generator().manual_seed(step))
    loss = F.cross_entropy(model(tokens[:, :-1]).float().flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
