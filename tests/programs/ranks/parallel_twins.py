"""Two steps of a small transformer on any number of processes, which share out its work as `--how` says: `tp` columns and rows of weights,
`sp` the sequence between them as well (`sq`: not the embedding and the head), `fsdp1`, `fsdp2` parameters, `hsdp` parameters over half of the processes, `grid` columns and rows over pairs of them and parameters over the others,
`ddp` the batch, `cp` the
sequence in a zigzag, `ep` experts. Of one process all are the same program. `--fault`: see `spoil`."""

import argparse
import functools
import os
import time

import sum_functions
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, gelu

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--how", choices=["tp", "sp", "sq", "fsdp1", "fsdp2", "hsdp", "grid", "ddp", "cp", "ep"], default="tp")
parser.add_argument("--width", type=int, default=16)
parser.add_argument("--vocabulary", type=int, default=32)
parser.add_argument("--fault", choices=["other_shard", "drift", "scaled", "eps", "decay"])
parser.add_argument("--flat", action="store_true", help="of FSDP1 the program sees flat parameters alone")
parser.add_argument("--unnamed", action="store_true", help="of what the program shares out by hand nothing is said")
args = parser.parse_args()
torch.set_num_threads(1)
world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
BATCH, TOKENS, HEADS, EXPERTS = 4, 8, 4, 4


def named(t, pieces, whole=None):
    """Says which part of the whole a tensor is."""
    if world > 1 and not args.unnamed:
        import lastbit.torch

        lastbit.torch.shard(t, pieces, whole, axis=args.how, size=world)
    return t


def zigzag():
    """The tokens of this process: the n-th piece from the front and the n-th from the back."""
    size = TOKENS // (2 * world)
    return [(rank * size, (rank + 1) * size), (TOKENS - (rank + 1) * size, TOKENS - rank * size)]


def positions(of=None):
    global rank
    mine, rank = rank, rank if of is None else of
    found = torch.cat([torch.arange(*piece) for piece in zigzag()])
    rank = mine
    return found


class Gather(torch.autograd.Function):
    """Keys or values of all processes, in the order of tokens."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(world)]
        dist.all_gather(parts, x.contiguous())
        order = torch.cat([positions(r) for r in range(world)])
        return torch.cat(parts, 2).index_select(2, order.argsort())

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient.index_select(2, positions())


def summed(x):
    x = x.clone()
    dist.all_reduce(x)
    return x


Reduce, Spread = sum_functions.of(summed)


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.size = width // HEADS

    def forward(self, x):
        q, k, v = (layer(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        rows = torch.arange(TOKENS)
        if args.how == "cp" and world > 1:
            k, v, rows = Gather.apply(k), Gather.apply(v), positions()
        scores = q @ k.transpose(-1, -2) / self.size**0.5
        scores = scores.masked_fill(torch.arange(TOKENS) > rows[:, None], float("-inf"))
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.scaled = False

    def forward(self, x):
        inner = gelu(self.up(x))
        return self.down(inner * 1.01 if self.scaled else inner)


class Experts(nn.Module):
    """Every token goes to all experts, weighted; a process has some of them."""

    def __init__(self, width):
        super().__init__()
        self.router = nn.Linear(width, EXPERTS, bias=False)
        self.up, self.down = nn.Parameter(torch.randn(EXPERTS, width, width) / 4), nn.Parameter(torch.randn(EXPERTS, width, width) / 4)

    def share(self):
        mine = slice(rank * EXPERTS // world, (rank + 1) * EXPERTS // world)
        for name in ("up", "down"):
            setattr(self, name, nn.Parameter(getattr(self, name).data[mine].clone()))
            named(getattr(self, name), {0: [(mine.start, mine.stop)]}, {0: EXPERTS})

    def forward(self, x):
        weights = self.router(x).softmax(-1)
        if world > 1 and args.how == "ep":
            x, weights = Spread.apply(x), Spread.apply(weights).chunk(world, -1)[rank]
        h = torch.einsum("bsd,edf->ebsf", x, self.up).relu()
        y = torch.einsum("ebsf,efd,bse->bsd", h, self.down, weights)
        return Reduce.apply(y) if world > 1 and args.how == "ep" else y


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width)
        self.norm2, self.mlp = nn.LayerNorm(width), Experts(width) if args.how == "ep" else Mlp(width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self, width, vocabulary):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def share_weights(model, mesh=None):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        PrepareModuleOutput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",)) if mesh is None else mesh
    plan = {f"attention.{name}": ColwiseParallel() for name in "qkv"}
    plan.update({"attention.o": RowwiseParallel(), "mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel()})
    if args.how in ("sp", "sq"):
        local = dict(output_layouts=Shard(1))
        inputs = dict(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
        plan.update({"norm1": SequenceParallel(), "norm2": SequenceParallel()})
        plan.update({"attention": PrepareModuleInput(**inputs), "mlp": PrepareModuleInput(**inputs)})
        plan.update({"attention.o": RowwiseParallel(**local), "mlp.down": RowwiseParallel(**local)})
        top = {"embedding": RowwiseParallel(input_layouts=Replicate(), **local), "norm": SequenceParallel()}
        top["head"] = ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())
        if args.how == "sq":
            top["embedding"] = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(1))
            top["head"] = PrepareModuleInput(**inputs, use_local_output=True)
        parallelize_module(model, mesh, top)
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    return model


def share(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    if args.how == "fsdp1":
        return FullyShardedDataParallel(
            model, auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=not args.flat, device_id=torch.device("cpu")
        )
    if args.how in ("fsdp2", "hsdp"):
        shape, names = ((world,), ("dp",)) if args.how == "fsdp2" else ((2, world // 2), ("replicate", "shard"))
        wrap = functools.partial(fully_shard, mesh=init_device_mesh("cpu", shape, mesh_dim_names=names))
        for block in model.blocks:
            wrap(block)
        return wrap(model)
    if args.how == "grid":
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
        share_weights(model, mesh["tp"])
        for block in model.blocks:
            fully_shard(block, mesh=mesh["dp"])
        return fully_shard(model, mesh=mesh["dp"])
    if args.how == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if args.how == "ep":
        for block in model.blocks:
            block.mlp.share()
    return model if args.how in ("cp", "ep") else share_weights(model)


def spoil(model):
    """`other_shard`: the last process has the first one's part of a weight. `drift`: its norm is another one. `scaled`: what the
    second MLP computes inside is a percent too large. `eps`: a norm adds another number. `decay`: weights decay ten times as fast."""
    if args.fault == "other_shard":
        flat = getattr(model.blocks[1], "_handle", None)  # of FSDP1 all parameters of the block
        weight = flat.flat_param.data if flat else model.blocks[1].mlp.up.weight.data
        weight = getattr(weight, "_local_tensor", weight)
        first = weight.clone()
        dist.broadcast(first, 0)
        if rank == world - 1:
            weight.copy_(first)
    if args.fault == "scaled":
        model.blocks[1].mlp.scaled = True
    if args.fault == "eps":
        model.blocks[1].norm2.eps = 0.1
    if args.fault == "drift" and rank == world - 1:
        weight = model.blocks[1].norm1.weight.data
        getattr(weight, "_local_tensor", weight).mul_(1.01)


def main():
    if world > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Model(args.width, args.vocabulary)
    runs = share(model) if world > 1 else model
    spoil(model)
    optimizer = torch.optim.AdamW(runs.parameters(), lr=1e-2, weight_decay=0.1 if args.fault == "decay" else 0.01, foreach=False)
    by_batch = world > 1 and args.how in ("ddp", "fsdp1", "fsdp2", "hsdp")
    for step in range(2):
        batch = torch.randint(0, args.vocabulary, (2, BATCH, TOKENS), generator=torch.Generator().manual_seed(step))
        ids, wanted = batch.chunk(world, 1)[rank] if by_batch else batch
        if args.how == "grid" and world > 1:
            ids, wanted = batch.chunk(2, 1)[rank // (world // 2)]
        if args.how == "cp" and world > 1:
            ids, wanted = (named(t[:, positions()], {1: zigzag()}, {1: TOKENS}) for t in (ids, wanted))
        loss = cross_entropy(runs(ids).flatten(0, 1), wanted.flatten())
        loss.backward()
        if args.how == "cp" and world > 1:
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= world
        optimizer.step()
        optimizer.zero_grad()
        print(f"rank {rank} step {step} loss {loss.item():.7f}", flush=True)
    if world > 1:
        time.sleep(0.2)  # a gloo thread that lets go of a tensor while Python ends aborts the process (torch 2.13)
        dist.destroy_process_group()


main()
