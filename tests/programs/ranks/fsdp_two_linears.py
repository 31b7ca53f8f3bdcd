"""Fully sharded data parallelism (FSDP2) over gloo: two blocks of linear layers, AdamW, a clipped gradient norm."""

import argparse
import os
import socket

import gloo_group
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def worker(rank, world, port, mixed):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Sequential(nn.Linear(24, 33), nn.SiLU(), nn.Linear(33, 24)) for _ in range(2)))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if mixed else MixedPrecisionPolicy()
    mesh = torch.distributed.init_device_mesh("cpu", (world,))
    for block in net:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(net, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(rank)
    for step in range(2):
        x = torch.randn(8, 24, generator=draw)
        loss = (net(x).float() - x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"rank {rank} step {step} loss {loss.item():.6f}", flush=True)
    gloo_group.leave()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    parser.add_argument("--mixed", action="store_true")
    args = parser.parse_args()
    if not args.port:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            args.port = s.getsockname()[1]
    torch.multiprocessing.spawn(worker, (args.world, args.port, args.mixed), args.world)
