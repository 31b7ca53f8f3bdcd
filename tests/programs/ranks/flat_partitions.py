"""ZeRO by hand, as DeepSpeed lays it: all parameters are windows on one flat buffer, rank i's optimizer holds partition i of it in f32, and the
partitions are gathered after the update. Stage 1 all-reduces each gradient,
stage 2 scatters the flat one or (2-reduce) reduces each partition to its owner. `late` leaves rank 1's gathered
parameters as they were in step 1."""

import os
import sys

import gloo_group
import torch
import torch.distributed as dist

STEPS, WORLD = 3, 2


def main(rank, world, stage, fault):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(20, 8), torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 20))
    parameters = list(model.parameters())
    flat = torch.cat([p.detach().flatten() for p in parameters])
    flat = torch.nn.functional.pad(flat, (0, -len(flat) % world)).to(torch.bfloat16)
    at = 0
    for p in parameters:
        p.data = flat[at : at + p.numel()].view(p.shape)
        at += p.numel()
    size = len(flat) // world
    own = slice(rank * size, (rank + 1) * size)
    partition = torch.nn.Parameter(flat[own].float())
    optimizer = torch.optim.AdamW([partition], lr=1e-2)
    torch.manual_seed(1 + rank)
    for step in range(STEPS):
        tokens = torch.randint(0, 20, (4, 6))
        torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.roll(-1, 1).flatten()).backward()
        if stage == "1":
            for p in parameters:
                dist.all_reduce(p.grad)
        gradient = torch.cat([p.grad.flatten() for p in parameters])
        gradient = torch.nn.functional.pad(gradient, (0, len(flat) - len(gradient)))
        part = gradient[own]
        if stage == "2":
            part = torch.empty(size, dtype=gradient.dtype)
            dist.reduce_scatter_tensor(part, gradient)
        if stage == "2-reduce":
            for owner in range(world):
                dist.reduce(gradient[owner * size : (owner + 1) * size], owner)
        partition.grad = (part / world).float()
        optimizer.step()
        flat[own].copy_(partition.detach())
        if fault == "late" and step == 1 and rank == 1:
            before = flat.clone()
            dist.all_gather_into_tensor(flat, flat[own].clone())
            flat.copy_(before)
        else:
            dist.all_gather_into_tensor(flat, flat[own].clone())
        for p in parameters:
            p.grad = None
    gloo_group.leave()


def worker(rank, *arguments):
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    main(rank, WORLD, *arguments)


if __name__ == "__main__":
    gloo_group.choose_port()
    torch.multiprocessing.spawn(worker, args=(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""), nprocs=WORLD)
