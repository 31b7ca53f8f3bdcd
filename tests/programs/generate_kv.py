"""Inference: prefill, then one token at a time from a key-value cache, greedy or sampled. There is no optimizer."""

import argparse
import hashlib

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.RMSNorm(width), nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))

    def forward(self, x, past):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, -1))
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(x), (k, v)


class Decoder(nn.Module):
    def __init__(self, vocab=64, width=32, heads=4, depth=2, length=64):
        super().__init__()
        self.embed, self.position = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, tokens, cache=None):
        start = 0 if cache is None else cache[0][0].shape[2]
        x = self.embed(tokens) + self.position(torch.arange(start, start + tokens.shape[1]))
        fresh = []
        for i, layer in enumerate(self.layers):
            x, past = layer(x, None if cache is None else cache[i])
            fresh.append(past)
        return self.head(self.norm(x))[:, -1], fresh


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--mode", choices=["no_grad", "inference_mode"], default="inference_mode")
parser.add_argument("--sample", action="store_true", help="at temperature 0.8 from the best 16, not greedily")
parser.add_argument("--tokens", type=int, default=8)
parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
args = parser.parse_args()
torch.manual_seed(0)
torch.set_num_threads(1)
model = Decoder().to(getattr(torch, args.dtype)).eval()
digest = hashlib.sha256()
with getattr(torch, args.mode)():
    text, cache = torch.randint(0, 64, (2, 8)), None
    token = text
    for _ in range(args.tokens):
        logits, cache = model(token, cache)
        digest.update(logits.float().numpy().tobytes())
        if args.sample:
            best, ids = (logits.float() / 0.8).topk(16)
            token = ids.gather(1, torch.multinomial(best.softmax(-1), 1))
        else:
            token = logits.argmax(-1, keepdim=True)
        text = torch.cat([text, token], 1)
print("text", text.tolist())
print("digest", digest.hexdigest())
