"""The norm by which gradients are clipped, where ranks hold parts of the model: python shard_norms.py CASE [--fault].

fsdp       FSDP2, clipped by torch; fault: by the norm of the local shards
logged     FSDP2, clipped by torch; fault: what is logged is the norm of the local shards
tensor     tensor parallelism by hand, where norms are copies; fault: copies are counted once for every rank
stages     two stages of a pipeline; fault: each is clipped by its own norm
workers    data parallelism, where each worker logs the norm of its own gradient before it is reduced: nothing is wrong
alone      ranks that train alone and clip by their own norms: nothing is wrong"""

import argparse
import os

import axis_copies
import gloo_group
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(32, 16), nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 32))


def norm_of(gradients):
    return torch.stack([g.norm() for g in gradients]).norm()


def clip(parameters, norm, most=0.1):
    factor = (most / (norm + 1e-6)).clamp(max=1.0)
    for p in parameters:
        g = p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad
        g.mul_(factor)


def plain_steps(rank, model, finish, own_data=True):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    data = torch.Generator().manual_seed(7 + (rank if own_data else 0))
    for _ in range(2):
        ids = torch.randint(0, 32, (4, 8), generator=data)
        F.cross_entropy(model(ids).flatten(0, -2), ids.flatten()).backward()
        finish(list(model.parameters()))
        optimizer.step()
        optimizer.zero_grad()


def fsdp(rank, args):
    from torch.distributed.fsdp import fully_shard

    model = small()
    fully_shard(model)

    def finish(parameters):
        local = [p.grad.to_local() for p in parameters]
        if args.case == "fsdp" and args.fault:
            clip(parameters, norm_of(local))
        elif args.case == "logged" and args.fault:
            print("norm", norm_of(local).item())
            nn.utils.clip_grad_norm_(parameters, 0.1)
        else:
            print("norm", nn.utils.clip_grad_norm_(parameters, 0.1).full_tensor().item())

    plain_steps(rank, model, finish)


def tensor(rank, args):
    model = axis_copies.BiasModel(rank)
    copies = [p for n, p in model.named_parameters() if not n.startswith("shards")]
    shards = [p for n, p in model.named_parameters() if n.startswith("shards")]

    def finish(parameters):
        if args.fault:
            squares = norm_of([p.grad for p in parameters]).square()
            dist.all_reduce(squares)
        else:
            squares = norm_of([p.grad for p in shards]).square()
            dist.all_reduce(squares)
            squares = squares + norm_of([p.grad for p in copies]).square()
        clip(parameters, squares.sqrt())

    plain_steps(rank, model, finish, own_data=False)


def stages(rank, args):
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Embedding(32, 16), nn.Linear(16, 16)) if rank == 0 else nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    data = torch.Generator().manual_seed(7)
    for _ in range(2):
        ids = torch.randint(0, 32, (4, 8), generator=data)
        if rank == 0:
            x, g = model(ids), torch.empty(4, 8, 16)
            dist.send(x.detach(), 1)
            dist.recv(g, 1)
            x.backward(g)
        else:
            x = torch.empty(4, 8, 16)
            dist.recv(x, 0)
            x.requires_grad_()
            F.cross_entropy(model(x).flatten(0, 1), ids.flatten()).backward()
            dist.send(x.grad, 0)
        norm = norm_of([p.grad for p in model.parameters()])
        if not args.fault:
            squares = norm.square()
            dist.all_reduce(squares)
            norm = squares.sqrt()
        clip(list(model.parameters()), norm)
        optimizer.step()
        optimizer.zero_grad()


def workers(rank, args):
    def finish(parameters):
        print("own norm", norm_of([p.grad for p in parameters]).item())
        for p in parameters if args.case == "workers" else []:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        nn.utils.clip_grad_norm_(parameters, 0.1)

    plain_steps(rank, small(), finish)


CASES = {"fsdp": fsdp, "logged": fsdp, "tensor": tensor, "stages": stages, "workers": workers, "alone": workers}


def work(rank, args):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    CASES[args.case](rank, args)
    gloo_group.leave()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--fault", action="store_true")
    given = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    gloo_group.choose_port()
    mp.spawn(work, (given,), nprocs=2)
