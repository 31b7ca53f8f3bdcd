"""Two steps of decoding, two layers, in bf16: the cached keys and values are windows of what one projection gave, or tensors of their own.

--separate      three projections, of the same weights
--by-hand       softmax in its parts
--overwritten   something changes a cached value between the steps
--fault         the second step scales the values of the last layer"""

import argparse

import torch
from torch import nn
from torch.nn.functional import linear

SIZE, HEADS = 32, 2


class Attention(nn.Module):
    def __init__(self, args, last):
        super().__init__()
        self.args, self.last = args, last
        weight = torch.randn(3 * SIZE, SIZE) / SIZE**0.5
        if args.separate:
            self.q, self.k, self.v = (nn.Parameter(part.clone()) for part in weight.split(SIZE))
        else:
            self.qkv = nn.Parameter(weight)

    def project(self, x):
        parts = [linear(x, w) for w in (self.q, self.k, self.v)] if self.args.separate else linear(x, self.qkv).split(SIZE, -1)
        return [part.view(*x.shape[:2], HEADS, -1).transpose(1, 2) for part in parts]

    def forward(self, x, cache):
        q, k, v = self.project(x)
        if cache:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
            if self.args.fault and self.last:
                v = v * 1.01
        scores = q @ k.transpose(-1, -2) * 0.25
        if self.args.by_hand:
            p = (scores - scores.amax(-1, keepdim=True)).exp()
            p = p / p.sum(-1, keepdim=True)
        else:
            p = scores.softmax(-1)
        return x + (p @ v).transpose(1, 2).reshape(x.shape), (k, v)


class Model(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.layers = nn.ModuleList(Attention(args, last) for last in (False, True))

    def forward(self, x, caches):
        left = []
        for layer, cache in zip(self.layers, caches):
            x, cache = layer(x, cache)
            left.append(cache)
        return x, left


def main():
    parser = argparse.ArgumentParser()
    for name in ("separate", "by-hand", "overwritten", "fault"):
        parser.add_argument("--" + name, action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Model(args).bfloat16()
    batches = [torch.randn(4, n, SIZE).bfloat16() for n in (5, 1)]
    with torch.no_grad():
        _, caches = model(batches[0], [None, None])
        if args.overwritten:
            caches[1][1].view(torch.int16).numpy()[2, 1, 3, 4] ^= 0x4000
        model(batches[1], caches)


main()
