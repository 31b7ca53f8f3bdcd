"""One recorded step whose tensors are large enough for the loops of replay to be shared among threads.

large_model.py FOLDER"""

import sys

import lastbit.torch
import torch

torch.manual_seed(0)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(64, 64)
        self.norm = torch.nn.LayerNorm(64)
        self.qkv = torch.nn.Linear(64, 192)
        self.convolution = torch.nn.Conv1d(64, 64, 3, padding=1)
        self.recurrent = torch.nn.LSTM(64, 64, batch_first=True)
        self.head = torch.nn.Linear(64, 64)

    def forward(self, tokens):
        x = self.norm(self.embed(tokens))
        q, k, v = (part.view(16, 64, 2, 32).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        x = x + torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(16, 64, 64)
        x = x + torch.nn.functional.max_pool1d(torch.nn.functional.gelu(self.convolution(x.mT)), 3, 1, 1).mT
        x = x + self.recurrent(x)[0].cumsum(1).tanh() + x.sum(-1, keepdim=True).sigmoid()
        return torch.log_softmax(self.head(x).bfloat16().float(), -1)


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
with lastbit.torch.capture(sys.argv[1], level="ops"):
    tokens = torch.randint(0, 64, (16, 64))
    torch.nn.functional.nll_loss(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()
