"""One sum over ranks, computed in many ways: python reductions.py RANKS HOW[:DTYPE] … [--without RANK] [--wide RANK]. Each HOW is a step.

HOW is gloo's all_reduce, collectives that together are one, or an all_reduce written out below as other libraries do it, or as it
goes wrong: the recorder sees the same `c10d::allreduce_`, the bits are of that order. "scatter-HOW" does the same to a reduce_scatter,
"coalesced-HOW" to an all_reduce of several tensors, and "gather-HOW" adds up by hand what all_gather brought ("whole-HOW": in one tensor).
"""

import argparse
import os

import gloo_group
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def rank_order(parts):
    out = parts[0].clone()
    for part in parts[1:]:
        out = out + part
    return out


def nccl_ring(parts):
    """Chunk c starts at rank c + 1 and walks up (one channel, sums smaller than NCCL's chunk)."""
    n, flat = len(parts), [p.reshape(-1) for p in parts]
    pieces = [torch.chunk(f, n) for f in flat]
    return torch.cat([rank_order([pieces[(c + 1 + i) % n][c] for i in range(n)]) for c in range(n)]).reshape(parts[0].shape)


def wide(parts):
    return rank_order([p.to(torch.float64 if p.dtype == torch.float32 else torch.float32) for p in parts]).to(parts[0].dtype)


ORDERS = {
    "rank": rank_order,
    "ring": nccl_ring,
    "wide": wide,
    "all_reduce": None,
    "altered": None,
    "dropped": lambda parts: rank_order(parts[:-1]),
    "twice": lambda parts: rank_order(parts + parts[-1:]),
    "narrow": lambda parts: rank_order(parts[:-1] + [parts[-1].to(torch.bfloat16).to(parts[-1].dtype)]),
    "divided": lambda parts: rank_order(parts) / len(parts),
    "payload": lambda parts: rank_order([p.to(torch.bfloat16) for p in parts]).to(parts[0].dtype),
    "stale": lambda parts: rank_order(parts) + 1e-3 * torch.randn(parts[0].shape, generator=torch.Generator().manual_seed(1)),
}


how = "all_reduce"  # of this step
group = None  # of all ranks, or of all but one
wide_rank = None  # its product is computed in f64


def reduction():
    return dist.ReduceOp.AVG if how == "avg" else dist.ReduceOp.SUM


def gathered(gloo, t):
    parts = [torch.empty_like(t) for _ in range(gloo.size())]
    gloo.allgather([parts], [t]).wait()
    return parts


def written_out():
    """What this step's sums are made by in gloo's place; None: by gloo itself."""
    return ORDERS.get(how.rpartition("-")[2])


def write_out():
    """Sums of our own in the place of gloo's: every contribution goes to everyone, who then sums as `how` says."""
    done = torch._C._distributed_c10d.FakeWork().boxed

    def backend(group):
        return dist.ProcessGroup.unbox(group)._get_backend(torch.device("cpu"))

    def all_reduce(tensors, group, *options):
        gloo = backend(group)
        for t in tensors:
            if written_out():
                t.copy_(written_out()(gathered(gloo, t)))
                continue
            asked = dist.AllreduceOptions()
            asked.reduceOp = reduction()
            gloo.allreduce([t], asked).wait()
        return tensors, done()

    def coalesced(tensors, group, *options):
        if written_out():
            all_reduce(tensors, group)
        else:
            backend(group).allreduce_coalesced(tensors).wait()
        return done()

    def reduce_scatter(out, x, group, *options):
        gloo = backend(group)
        if written_out():
            out.copy_(written_out()(gathered(gloo, x)).reshape(gloo.size(), -1)[gloo.rank()].reshape(out.shape))
        else:
            gloo._reduce_scatter_base(out, x, dist.ReduceScatterOptions()).wait()
        return out, done()

    library = torch.library.Library("c10d", "IMPL")
    for name, kernel in (("allreduce_", all_reduce), ("allreduce_coalesced_", coalesced), ("_reduce_scatter_base_", reduce_scatter)):
        library.impl(name, kernel, "CPU", allow_override=True)
    return library


def reduce_as(form, x):
    """The forms that are not one all_reduce of one tensor."""
    world = dist.get_world_size()
    if form == "scatter":
        part = torch.empty(x.numel() // world, dtype=x.dtype)
        dist.reduce_scatter_tensor(part, x.reshape(-1))
        return torch.cat([part] * world).reshape(x.shape)
    if form == "coalesced":
        tensors = [x[:7].clone(), x[7:8].clone(), x[8:].clone()]
        dist.all_reduce_coalesced(tensors)
        return torch.cat(tensors)
    if form == "whole":
        parts = torch.empty(world * x.shape[0], x.shape[1], dtype=x.dtype)
        dist.all_gather_into_tensor(parts, x)
        return written_out()(list(parts.chunk(world)))
    parts = [torch.empty_like(x) for _ in range(world)]
    dist.all_gather(parts, x)
    return written_out()(parts)


def reduce(x):
    if "-" in how:
        return reduce_as(how.partition("-")[0], x)
    world = dist.get_world_size(group)
    if group is not None and dist.get_rank(group) < 0:
        return x
    if how == "reduce_broadcast":
        dist.reduce(x, 0)
        dist.broadcast(x, 0)
        return x
    if how == "scatter_gather":
        part = torch.empty(x.numel() // world, dtype=x.dtype)
        dist.reduce_scatter_tensor(part, x.reshape(-1))
        out = torch.empty(x.numel(), dtype=x.dtype)
        dist.all_gather_into_tensor(out, part)
        return out.reshape(x.shape)
    if how == "gather_sum":
        parts = [torch.empty_like(x) for _ in range(world)]
        dist.all_gather(parts, x, group=group)
        return rank_order(parts)
    if how == "bf16":
        narrow = x.to(torch.bfloat16)
        dist.all_reduce(narrow)
        return narrow.to(x.dtype)
    if how == "functional":
        return torch.ops._c10d_functional.wait_tensor(torch.ops._c10d_functional.all_reduce(x, "sum", dist.group.WORLD.group_name))
    dist.all_reduce(x, op=reduction(), group=group)
    return x


class RowParallel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(24, 60) / 5)

    def forward(self, x):
        if dist.get_rank() == wide_rank:
            return reduce((x.double() @ self.weight.double()).to(x.dtype))
        return reduce(x @ self.weight)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.norm = RowParallel(), torch.nn.LayerNorm(60)

    def forward(self, x):
        return self.norm(self.down(x))


def work(rank, args):
    global how, group, wide_rank
    wide_rank = args.wide
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK=str(rank), WORLD_SIZE=str(args.ranks))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=args.ranks)
    library = write_out()  # noqa: F841  it lives as long as its ops
    if args.without is not None:
        group = dist.new_group([r for r in range(args.ranks) if r != args.without])
    torch.manual_seed(100 + rank)
    model = Model()
    for word in args.how:
        how, _, dtype = word.partition(":")
        dtype = getattr(torch, dtype or "float32")
        x = torch.randn(32, 24)
        if how == "altered" and rank == args.ranks - 2:
            x[3] *= 1 + 2**-10
        with torch.no_grad():
            model.to(dtype)(x.to(dtype))
    gloo_group.leave()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ranks", type=int)
    parser.add_argument("how", nargs="+")
    parser.add_argument("--without", type=int, help="this rank is no member of the group that all_reduce and gather_sum are for")
    parser.add_argument("--wide", type=int, help="this rank computes its product in f64")
    args = parser.parse_args()
    gloo_group.choose_port()
    mp.spawn(work, (args,), nprocs=args.ranks)
