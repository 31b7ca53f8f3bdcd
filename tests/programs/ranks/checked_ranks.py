"""Two ranks that train copies of a small transformer, recorded by gloo: checked_ranks.py FOLDER NAME… writes FOLDER/NAME.lb. A name says
how gradients meet, and what goes wrong."""

import os
import pathlib
import socket
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import checked_steps
import digit_steps
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
        if name == "mean_bf16":
            narrow = p.grad.bfloat16()
            dist.all_reduce(narrow)
            p.grad.copy_(narrow / RANKS)
            continue
        dist.all_reduce(p.grad)
        if name != "sum":
            p.grad /= RANKS
        if name == "twice_divided" and i == 2:
            p.grad /= RANKS
        if late is not None:
            p.grad += late


def model_of(name):
    torch.manual_seed(0)
    if "rope" in name:
        return digit_steps.Model(name.split("_", 1)[1])
    return checked_steps.Model("custom_twice" if name.endswith("custom_twice") else "plain")


def batches_of(name, rank):
    torch.manual_seed(rank + 1)
    if "rope" in name:
        return torch.randint(0, digit_steps.VOCABULARY, (1, 1, digit_steps.TOKENS))
    return torch.randint(0, checked_steps.VOCABULARY, (2 if name == "ddp_no_sync" else 1, 2, 12))


def loss_of(logits, ids):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def exact_loss(name):
    """The mean over ranks of their losses, by a model in f64."""
    batches = [ids for rank in range(RANKS) for ids in batches_of(name, rank)]
    with torch.no_grad():
        return sum(loss_of(model_of(name).double()(ids), ids).item() for ids in batches) / len(batches)


def step(name, rank, folder):
    model = model_of(name)
    net = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view="view" in name) if name.startswith("ddp") else model
    if name.startswith("fsdp"):
        for block in getattr(model, "blocks", []):
            fully_shard(block)
        fully_shard(model)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    batches = batches_of(name, rank)
    parts = len(batches)
    with lastbit.torch.capture(folder / f"{name}.lb", level="ops") as capture, capture.step(0):
        for i, ids in enumerate(batches):
            if parts > 1:
                net.require_backward_grad_sync = i + 1 == parts
            (loss_of(net(ids), ids) / parts).backward()
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
