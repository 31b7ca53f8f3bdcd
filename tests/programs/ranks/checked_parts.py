"""Ranks that hold parts of one model: checked_parts.py FOLDER NAME… writes FOLDER/NAME.lb.

tp        two blocks whose linears are split by columns and by rows, with an all-reduce forward and one backward (Megatron's g and f),
          biases of the split ones that begin with zeros
sp        the same where norms work on halves of the sequence, and the gradients of their weights are added up by hand
pp        two stages that send results and gradients, four micro-batches
dptp      two copies of tp on four ranks, whose gradients are averaged
hsdp      two copies of two parts, by FSDP2 on a mesh of four ranks
dtensor   linears split by torch.distributed.tensor.parallel
gpipe     two stages by torch.distributed.pipelining

Behind the name what goes wrong: `_clipped` by the norm of all parts, `_clipped_alone` by each rank's own; `_partial`: the sum of f is
missing; `_twice`: g's backward adds up, too; `_unsummed`: the norms' gradients stay each rank's own; `_doubled`: gradients of the
logits' input are added up, which each rank has in full; `_hooked`: a hook divides by the
number of micro-batches once more; `_crossing`: no fault, but steps end where an optimizer does, so that a stage receives before its step begins; `_leaking`: tokens see those behind them;
`_misled`: gradients are averaged over the ranks of one model;
`_detached`: nothing goes back to the up projection;
`_half`: a custom backward of the down projection's result gives half."""

import contextlib
import os
import pathlib
import sys

import gloo_group
import lastbit.torch
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F

WIDTH, WORDS, ROWS, LENGTH, GAS = 16, 32, 2, 8, 4
group = None  # the ranks of one model


def reduced(x):
    x = x.clone()
    dist.all_reduce(x, group=group)
    return x


class Reduce(torch.autograd.Function):
    """Megatron's g."""

    @staticmethod
    def forward(ctx, x, twice):
        ctx.twice = twice
        return reduced(x)

    @staticmethod
    def backward(ctx, g):
        return (reduced(g) if ctx.twice else g), None


class Spread(torch.autograd.Function):
    """Megatron's f."""

    @staticmethod
    def forward(ctx, x, partial):
        ctx.partial = partial
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return (g if ctx.partial else reduced(g)), None


class Gather(torch.autograd.Function):
    """Halves of a sequence become the whole one; gradients of the whole are added up where ranks do other things with it, and each rank
    takes its half."""

    @staticmethod
    def forward(ctx, x, apart):
        ctx.apart = apart
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts, 1)

    @staticmethod
    def backward(ctx, g):
        return (reduced(g) if ctx.apart else g).chunk(dist.get_world_size(group), 1)[dist.get_rank(group)], None


class Scatter(torch.autograd.Function):
    """Sums over ranks of a whole sequence, of which each takes its half."""

    @staticmethod
    def forward(ctx, x):
        return reduced(x).chunk(dist.get_world_size(group), 1)[dist.get_rank(group)].clone()

    @staticmethod
    def backward(ctx, g):
        parts = [torch.empty_like(g) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, g.contiguous(), group=group)
        return torch.cat(parts, 1)


class Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g * 0.5


class Block(nn.Module):
    def __init__(self, fault, sequence=False):
        super().__init__()
        self.fault, self.sequence = fault, sequence
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        share = slice(dist.get_rank(group) * WIDTH, (dist.get_rank(group) + 1) * WIDTH)
        whole = torch.randn(2 * WIDTH, WIDTH) / 4, torch.randn(WIDTH, 2 * WIDTH) / 4  # alike on all ranks
        with torch.no_grad():
            self.up.weight.copy_(whole[0][share]), self.down.weight.copy_(whole[1][:, share]), self.up.bias.zero_()

    def forward(self, x):
        h = Gather.apply(self.norm(x), True) if self.sequence else Spread.apply(self.norm(x), self.fault == "partial")
        h = F.gelu(self.up(h))
        if self.fault == "leaking":
            h = h + h.flip(1)
        h = self.down(h.detach() if self.fault == "detached" else h)
        if self.fault == "half":
            h = Half.apply(h)
        return x + (Scatter.apply(h) if self.sequence else Reduce.apply(h, self.fault == "twice"))


class Split(nn.Module):
    def __init__(self, fault, sequence=False):
        super().__init__()
        self.doubled = fault == "doubled"
        self.wte, self.blocks, self.sequence = nn.Embedding(WORDS, WIDTH), nn.Sequential(*(Block(fault, sequence) for _ in range(2))), sequence
        self.final, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        with torch.no_grad():
            self.final.weight.uniform_(0.5, 1.5)  # as in the midst of a training

    def forward(self, ids):
        x = self.wte(ids)
        if self.sequence:
            x = x.chunk(dist.get_world_size(group), 1)[dist.get_rank(group)]
        x = self.final(self.blocks(x))
        return self.head(Gather.apply(x, self.doubled) if self.sequence else x)


def clip(model, fault):
    """To a norm of 0.1, of parts and copies."""
    squares = sum(p.grad.square().sum() for p in model.parameters())
    if fault == "clipped":
        dist.all_reduce(squares)
        squares = squares / 2
    for p in model.parameters():
        p.grad.mul_(0.1 / squares.sqrt())


def add_up(model, fault):
    """What ranks hold alike each has its half of the gradient of."""
    for name, p in model.named_parameters():
        if ("norm" in name or "final" in name) and fault != "unsummed":
            dist.all_reduce(p.grad, group=group)
        if "wte" in name:
            dist.all_reduce(p.grad, group=group)


def split(capture, rank, kind, fault):
    model = Split(fault, kind == "sp")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ids = torch.randint(0, WORDS, (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(rank // 2))
    with capture.step(0):
        F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
        if kind == "sp":
            add_up(model, fault)
        if kind == "dptp":
            for p in model.parameters():
                dist.all_reduce(p.grad, group=group if fault == "misled" else pairs[rank % 2])
                p.grad /= 2
        if fault.startswith("clipped"):
            clip(model, fault)
        optimizer.step()


def pp(capture, rank, kind, fault):
    layers = [nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)] if rank == 0 else [nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)]
    stage = nn.Sequential(*layers)
    with torch.no_grad():
        stage[1].bias.zero_()
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-2)
    batches = torch.randint(0, WORDS, (GAS, ROWS, LENGTH), generator=torch.Generator().manual_seed(7))
    with capture.step(0):
        for ids in batches:
            if rank == 0:
                x, g = stage(ids), torch.empty(ROWS, LENGTH, WIDTH)
                if fault == "hooked":
                    x.register_hook(lambda g: g / GAS)
                dist.send(x.detach(), 1)
                dist.recv(g, 1)
                x.backward(g)
            else:
                x = torch.empty(ROWS, LENGTH, WIDTH)
                dist.recv(x, 0)
                x.requires_grad_()
                (F.cross_entropy(stage(x).flatten(0, 1), ids.roll(-1, 1).flatten()) / GAS).backward()
                dist.send(x.grad, 0)
        optimizer.step()


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.up, self.down = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        x = self.wte(ids)
        return self.head(self.norm(x + self.down(F.gelu(self.up(x)))))


def by_torch(capture, rank, kind, fault):
    model, seed = Whole(), 7
    if kind == "hsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
        seed = rank
    else:
        parallelize_module(model, init_device_mesh("cpu", (2,)), {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    ids = torch.randint(0, WORDS, (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(seed))
    with capture.step(0):
        F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimizer.step()


def gpipe(capture, rank, kind, fault):
    model = nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, WIDTH))
    schedule = ScheduleGPipe(PipelineStage(model, rank, 2, torch.device("cpu")), 2, loss_fn=lambda y, t: (y - t).square().mean())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = torch.randn(2, 4, WIDTH, generator=torch.Generator().manual_seed(7))
    for step in range(4 if fault else 2):  # shapes are exchanged in the first
        with contextlib.nullcontext() if fault == "crossing" else capture.step(step):
            schedule.step(*([x] if rank == 0 else []), **({"target": y} if rank == 1 else {}))
            optimizer.step()
            optimizer.zero_grad()


pairs = []


def work(rank, ranks, folder, names):
    global group
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks))
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    if ranks == 4:
        models = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        pairs.extend([dist.new_group([0, 2]), dist.new_group([1, 3])])
        group = models[rank // 2]
    for name in names:
        torch.manual_seed(0)
        kind, _, fault = name.partition("_")
        with lastbit.torch.capture(pathlib.Path(folder) / f"{name}.lb", level="ops") as capture:
            {"pp": pp, "gpipe": gpipe, "hsdp": by_torch, "dtensor": by_torch}.get(kind, split)(capture, rank, kind, fault)
        dist.barrier()
    gloo_group.leave()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    for ranks in (2, 4):
        named = [name for name in sys.argv[2:] if name.startswith(("dptp", "hsdp")) == (ranks == 4)]
        if named:
            gloo_group.choose_port()
            mp.spawn(work, (ranks, sys.argv[1], named), nprocs=ranks)
