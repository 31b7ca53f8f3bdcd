"""A small language model on several data-parallel workers, one of which may be at fault: python worker_faults.py HOW [OPTIONS].

HOW is ddp, hand (an all_reduce per parameter after backward) or fsdp. With --save FOLDER every worker writes its own gradients and losses
as .npy, from hooks that run before anything is reduced."""

import argparse
import datetime
import os
import tempfile
import time

import gloo_group
import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

FAULTS = "none tokens parameter rate repeat seed initial size order absent swapped micro".split()


class Block(nn.Module):
    def __init__(self, width, dropout, batch_norm):
        super().__init__()
        self.norm = nn.BatchNorm1d(8) if batch_norm else nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))


class Model(nn.Module):
    def __init__(self, dropout, batch_norm, width=16, vocabulary=32):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, dropout, batch_norm) for _ in range(2))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Saver:
    """Sums what each backward gives to each parameter."""

    def __init__(self, folder, rank):
        self.folder, self.rank, self.sums = folder, rank, {}

    def add(self, name, gradient):
        number = gradient.detach().numpy().astype(np.float64)
        self.sums[name] = self.sums[name] + number if name in self.sums else number.copy()

    def watch(self, model):
        for name, p in model.named_parameters():
            p.register_hook(lambda g, name=name: self.add(name, g))

    def watch_fsdp(self):
        import torch.distributed.fsdp._fully_shard._fsdp_param_group as groups

        reduce = groups.foreach_reduce

        def watched(params, gradients, *rest, **options):
            for p, g in zip(params, gradients):
                self.add(p._param_fqn, g)
            return reduce(params, gradients, *rest, **options)

        groups.foreach_reduce = watched

    def step_end(self, step, loss):
        np.savez(f"{self.folder}/{step}-{self.rank}.npz", loss=loss, **self.sums)
        self.sums = {}


def work(rank, args, folder):
    torch.set_num_threads(1)
    meeting = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=args.ranks, timeout=datetime.timedelta(seconds=args.timeout))
    bad = rank == 1
    torch.manual_seed(rank if args.fault == "initial" else 0)
    inner = model = Model(args.dropout, args.batch_norm)
    saver = Saver(args.save, rank) if args.save else None
    if saver and args.how != "fsdp":
        saver.watch(inner)
    if args.how == "ddp":
        model = DDP(inner, broadcast_buffers=False)
    if args.how == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        if saver:
            saver.watch_fsdp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    data = torch.Generator().manual_seed(100 + (0 if args.fault == "tokens" else rank))
    torch.manual_seed(5 if args.fault == "seed" else 1000 + rank)
    for step in range(args.steps):
        if args.fault == "rate" and bad and step == 1:
            optimizer.param_groups[0]["lr"] = 3e-2
        if args.fault == "parameter" and bad and step == 1:
            with torch.no_grad():
                inner.blocks[0].up.weight[0] += 1e-3
        total = 0.0
        for micro in range(args.micro - (args.fault == "micro" and bad and step == 1)):
            if not (args.fault == "repeat" and bad and step == 2):
                ids = torch.randint(0, 32, (4, 8), generator=data)
            loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()) / args.micro
            loss.backward()
            total += loss.item()
        if args.how == "hand":
            reduce_by_hand(args, inner, step, bad)
        if saver:
            saver.step_end(step, total)
        optimizer.step()
        optimizer.zero_grad()
    gloo_group.leave()


def reduce_by_hand(args, model, step, bad):
    at_fault = bad and step == 1
    if args.fault == "absent" and at_fault:
        time.sleep(2 * args.timeout)
        raise SystemExit("rank 1 stays away")
    if args.fault == "size" and step == 1:  # gloo takes less than there is room for without a word
        dist.broadcast(torch.zeros(5 if bad else 7), 1)
    if args.fault == "order" and step == 1:
        calls = [lambda: dist.broadcast(torch.ones(6), 0), lambda: dist.all_reduce(torch.ones(6))]
        for call in reversed(calls) if at_fault else calls:
            call()
    names = [name for name, _ in model.named_parameters()]
    parameters = dict(model.named_parameters())
    if args.fault == "swapped" and at_fault:
        a, b = names.index("blocks.0.up.weight"), names.index("blocks.1.up.weight")
        names[a], names[b] = names[b], names[a]
    for name in names:
        gradient = parameters[name].grad
        dist.all_reduce(gradient)
        gradient /= args.ranks


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("how", choices=["ddp", "hand", "fsdp"])
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--micro", type=int, default=1)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--batch-norm", action="store_true")
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("--save", help="folder for .npz files of each worker's own gradients")
    given = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (given, folder), nprocs=given.ranks)
