"""Two ranks that train copies of a small transformer, recorded by gloo: checked_ranks.py FOLDER NAME… writes FOLDER/NAME.lb. A name says
how gradients meet, and what goes wrong."""

import os
import pathlib
import socket
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import checked_steps
import lastbit.torch
import torch
import torch.distributed as dist
import torch.multiprocessing
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard

RANKS = 2


def reduce_by_hand(name, model):
    for i, p in enumerate(model.parameters()):
        late = p.grad.clone() if name == "late" and i == 3 else None
        if name == "lost" and i == 4:  # one parameter that the program forgot
            p.grad /= RANKS
            continue
        dist.all_reduce(p.grad)
        if name != "sum":
            p.grad /= RANKS
        if name == "twice_divided" and i == 2:
            p.grad /= RANKS
        if late is not None:
            p.grad += late


def step(name, rank, folder):
    torch.manual_seed(0)
    model = checked_steps.Model("custom_twice" if name.endswith("custom_twice") else "plain")
    net = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view="view" in name) if name.startswith("ddp") else model
    if name.startswith("fsdp"):
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    torch.manual_seed(rank + 1)
    parts = 2 if name == "ddp_no_sync" else 1
    batches = torch.randint(0, checked_steps.VOCABULARY, (parts, 2, 12))
    with lastbit.torch.capture(folder / f"{name}.lb", level="ops") as capture, capture.step(0):
        for i, ids in enumerate(batches):
            if parts > 1:
                net.require_backward_grad_sync = i + 1 == parts
            logits = net(ids)[:, :-1].reshape(-1, checked_steps.VOCABULARY)
            (F.cross_entropy(logits, ids[:, 1:].reshape(-1)) / parts).backward()
        if not name.startswith(("ddp", "fsdp")):
            reduce_by_hand(name, model)
        if "clip" in name:
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()


def work(rank, folder, names, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(RANKS))
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    for name in names:
        step(name, rank, pathlib.Path(folder))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    torch.multiprocessing.spawn(work, (sys.argv[1], sys.argv[2:], number), nprocs=RANKS)
