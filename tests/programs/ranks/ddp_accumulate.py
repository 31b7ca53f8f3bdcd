"""Data-parallel training with gradient accumulation: under torchrun, or two processes of its own (--spawn N)."""

import argparse
import contextlib
import hashlib
import os

import gloo_group
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def compress(state, bucket):
    """As torch's bf16_compress_hook, which wants NCCL: half the bytes on the wire."""
    narrow = bucket.buffer().to(torch.bfloat16).div_(dist.get_world_size())
    return dist.all_reduce(narrow, async_op=True).get_future().then(lambda done: bucket.buffer().copy_(done.value()[0]))


def train(local_rank, args):
    if args.spawn:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(args.port), RANK=str(local_rank), WORLD_SIZE=str(args.spawn))
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 10)), gradient_as_bucket_view=args.bucket_view)
    if args.compress:
        model.register_comm_hook(None, compress)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.Generator().manual_seed(100 + rank)  # every rank has its own
    for step in range(args.steps):
        optimizer.zero_grad()
        mean = torch.zeros(())
        for micro in range(args.accumulate):
            x = torch.randn(4, 16, generator=data)
            y = x.argmax(1) % 10
            last = micro == args.accumulate - 1
            with contextlib.nullcontext() if last else model.no_sync():
                loss = F.cross_entropy(model(x), y) / args.accumulate
                loss.backward()
            mean += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step} loss {mean.item() / world:.6f}")
    if rank == 0:
        print("digest", hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
    gloo_group.leave()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spawn", type=int, default=0 if "RANK" in os.environ else 2)
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    parser.add_argument("--accumulate", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--bucket-view", action="store_true")
    parser.add_argument("--compress", action="store_true", help="gradients are sent in bf16")
    args = parser.parse_args()
    if args.spawn and not args.port:
        args.port = gloo_group.free_port()
    mp.spawn(train, (args,), args.spawn) if args.spawn else train(0, args)
