"""A mixture of experts with dropout, a load-balancing loss and experts that may get no token at all."""

import hashlib

import torch
import torch.nn.functional as F
from torch import nn


class Expert(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.w1, self.w3 = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.w2 = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class SparseMoE(nn.Module):
    def __init__(self, width, experts=8, top_k=2, dropout=0.1):
        super().__init__()
        self.top_k = top_k
        self.gate = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(Expert(width, width) for _ in range(experts))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        rows = x.view(-1, x.shape[-1])
        scores = F.softmax(self.gate(rows), dim=-1, dtype=torch.float32)
        weights, chosen = torch.topk(scores, self.top_k, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        mask = F.one_hot(chosen, len(self.experts)).permute(2, 1, 0)  # (experts, k, tokens)
        out = torch.zeros_like(rows)
        for e in (mask.sum((1, 2)) > 0).nonzero().flatten().tolist():
            slot, token = torch.where(mask[e])
            out.index_add_(0, token, self.experts[e](rows[token]) * weights[token, slot, None])
        balance = (mask.sum(1).float().mean(1) * scores.mean(0)).sum() * len(self.experts)
        return self.dropout(out).view_as(x), balance


class Model(nn.Module):
    def __init__(self, vocab=64, width=32, depth=2):
        super().__init__()
        self.embed, self.drop = nn.Embedding(vocab, width), nn.Dropout(0.1)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(depth))
        self.moes = nn.ModuleList(SparseMoE(width) for _ in range(depth))
        self.head = nn.Linear(width, vocab)

    def forward(self, tokens):
        x, total = self.drop(self.embed(tokens)), 0.0
        for norm, moe in zip(self.norms, self.moes):
            y, balance = moe(norm(x))
            x, total = x + y, total + balance
        return self.head(x), total


torch.manual_seed(0)
torch.set_num_threads(1)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
for step in range(4):
    tokens = torch.randint(0, 64, (2, 8))
    logits, balance = model(tokens)
    loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten()) + 0.01 * balance
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f} balance {balance.item():.4f}")
print("digest", hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
