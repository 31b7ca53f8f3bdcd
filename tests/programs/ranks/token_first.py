"""Two steps of a small transformer written for tensor parallelism by hand, as Megatron is: tokens are the first dimension, a batch the second; each
process has rows of the embedding, columns of what comes first and rows of what comes second, and says nothing of it. `--tp` processes
share out the weights, all others the batch. `--fault`: `scale` in the last process queries are larger; `no_reduce` the second block's
attention is not added up over the processes; `bias_twice` every process adds the bias; `skip` of one norm no gradients are averaged;
`other_shard` the last process has the first one's part of a weight; `decay` weights decay thirty times as fast."""

import argparse
import os
import time

import sum_functions
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, gelu, layer_norm, linear

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--tp", type=int, default=1)
parser.add_argument("--fault", default="")
args = parser.parse_args()
torch.set_num_threads(1)
world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
WIDTH, HEADS, TOKENS, BATCH, VOCABULARY = 16, 4, 6, 4, 40
mine, replica, replicas = rank % args.tp, rank // args.tp, world // args.tp
last = rank == world - 1
groups = {}
generator = torch.Generator().manual_seed(7)


def summed(x, group="tp"):
    if group in groups:
        x = x.clone()
        dist.all_reduce(x, group=groups[group])
    return x


Reduce, Spread = sum_functions.of(summed)


def part(*shape, dim, scale=0.3):
    """This process's part of a weight."""
    return nn.Parameter((torch.randn(*shape, generator=generator) * scale).chunk(args.tp, dim)[mine].clone())


class Columns(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.weight, self.bias = part(outside, inside, dim=0), part(outside, dim=0)

    def forward(self, x):
        return linear(Spread.apply(x), self.weight, self.bias)


class Rows(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.weight, self.bias = part(outside, inside, dim=1), nn.Parameter(torch.randn(outside, generator=generator) * 0.3)
        self.reduces, self.twice = True, False

    def forward(self, x):
        y = linear(x, self.weight, self.bias if self.twice else None)
        y = Reduce.apply(y) if self.reduces else y
        return y if self.twice else y + self.bias


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(1 + torch.randn(WIDTH, generator=generator) * 0.1)

    def forward(self, x):
        return layer_norm(x, (WIDTH,), self.weight)


class Attention(nn.Module):
    """Queries, keys and values of one head lie behind each other."""

    def __init__(self):
        super().__init__()
        self.qkv, self.o = Columns(WIDTH, 3 * WIDTH), Rows(WIDTH, WIDTH)
        self.scaled = False

    def forward(self, x):
        tokens, batch = x.shape[:2]
        q, k, v = self.qkv(x).view(tokens, batch, HEADS // args.tp, 3, WIDTH // HEADS).permute(3, 1, 2, 0, 4)
        scores = (q * 1.05 if self.scaled else q) @ k.transpose(-1, -2) / 2
        mixed = scores.masked_fill(torch.ones(tokens, tokens, dtype=torch.bool).triu(1), float("-inf")).softmax(-1) @ v
        return self.o(mixed.permute(2, 0, 1, 3).flatten(2))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = Columns(WIDTH, 2 * WIDTH), Rows(2 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention, self.norm2, self.mlp = Norm(), Attention(), Norm(), Mlp()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = part(VOCABULARY, WIDTH, dim=0, scale=1)
        self.first = mine * len(self.weight)

    def forward(self, ids):
        ids = ids - self.first
        outside = (ids < 0) | (ids >= len(self.weight))
        return Reduce.apply(nn.functional.embedding(ids.masked_fill(outside, 0), self.weight).masked_fill(outside[..., None], 0))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.blocks, self.norm = Embedding(), nn.ModuleList(Block() for _ in range(2)), Norm()
        self.head = nn.Parameter(torch.randn(VOCABULARY, WIDTH, generator=generator) * 0.3)

    def forward(self, ids):
        x = self.embedding(ids.t())
        for block in self.blocks:
            x = block(x)
        return linear(self.norm(x), self.head).transpose(0, 1)


def spoil(model):
    attention, mlp = model.blocks[1].attention, model.blocks[1].mlp
    attention.scaled = args.fault == "scale" and last
    attention.o.reduces = args.fault != "no_reduce"
    mlp.down.twice = args.fault == "bias_twice"
    if args.fault == "other_shard":
        first = mlp.up.weight.detach().clone()
        dist.broadcast(first, 0)
        if last:
            mlp.up.weight.data.copy_(first)


def share():
    dist.init_process_group("gloo")
    for name, members in (
        ("tp", [[r * args.tp + t for t in range(args.tp)] for r in range(replicas)]),
        ("dp", [[r * args.tp + t for r in range(replicas)] for t in range(args.tp)]),
    ):
        for ranks in members:
            group = dist.new_group(ranks)
            if rank in ranks and len(ranks) > 1:
                groups[name] = group


def main():
    if world > 1:
        share()
    model = Model()
    spoil(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.3 if args.fault == "decay" else 0.01, foreach=False)
    for step in range(2):
        batch = torch.randint(0, VOCABULARY, (2, BATCH, TOKENS), generator=torch.Generator().manual_seed(step))
        ids, wanted = batch.chunk(replicas, 1)[replica]
        loss = cross_entropy(model(ids).flatten(0, 1), wanted.flatten())
        loss.backward()
        for name, p in model.named_parameters():
            if "dp" in groups and not (args.fault == "skip" and name == "blocks.1.norm2.weight"):
                dist.all_reduce(p.grad, group=groups["dp"])
                p.grad /= replicas
        optimizer.step()
        optimizer.zero_grad()
        print(f"rank {rank} step {step} loss {loss.item():.7f}", flush=True)
    if world > 1:
        time.sleep(0.2)  # a gloo thread that lets go of a tensor while Python ends aborts the process (torch 2.13)
        dist.destroy_process_group()


main()
